"""grpo/monitoring.py and grpo/alarms.py: every alarm in a real (tiny) run that provokes it, and silence otherwise."""

import json
import math
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers_runs import DEMO, ROOT
from helpers_watch import STEP, Spoil, alarms, equal, is_long, is_text, make_prompt, trainer
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

import train_grpo
from grpo.data import dataset, sources
from grpo.evaluation import evaluate
from grpo.rewarding.stages import Stage
from grpo.rewarding.weighting import RewardWeights
from grpo.training.alarms import ALARMS, NEVER
from grpo.training.callbacks import SKIPPED, MetricsFile
from grpo.training.observed import Observed, Rollout
from grpo.training.trainer import LeanGRPOTrainer

LOGS = {"loss": float("nan"), "reward": 2.4375, "rewards/my_own/mean": None}


@pytest.fixture
def train(tiny_run):
    """Train the demo's model for some steps by the real command; the alarms that were raised."""

    def run(expected=0, **overrides):
        flags = {
            "model_name_or_path": str(DEMO / "model"),
            "dataset_name": str(DEMO / "train.jsonl"),
            "max_samples": "200",
            "eval_samples": "2",
            "max_completion_length": "48",
            "num_generations": "8",
            "per_device_train_batch_size": "16",
            "learning_rate": "1e-4",
            "log_completions": "false",
            "save_strategy": "no",
            "logging_steps": "50",  # alarms do not wait for logs
        }
        assert train_grpo.main(tiny_run(**{**flags, **overrides})) == expected
        return alarms()

    return run


@pytest.fixture(scope="module")
def greedy():
    """Rows of the demo's training data, and how its model answers each greedily."""
    model = AutoModelForCausalLM.from_pretrained(DEMO / "model", dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(DEMO / "model", padding_side="left")
    rows = sources.load_source(str(DEMO / "train.jsonl"))["train"].select(range(200))
    asked, _ = dataset.make_prompts(rows, make_prompt)
    records = evaluate.evaluate(model, tokenizer, asked, 48)[1]
    return list(zip(rows.to_list(), records, strict=True))


def test_metrics_are_one_json_object_a_line_without_nan(tmp_path):
    callback = MetricsFile(tmp_path)
    for step in (1, 2):
        callback.on_log(None, SimpleNamespace(is_world_process_zero=True, global_step=step), None, logs=LOGS)
    callback.on_log(None, SimpleNamespace(is_world_process_zero=False, global_step=3), None, logs=LOGS)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2]
    assert lines[0]["loss"] is None and lines[0]["reward"] == 2.4375


# --- Provoked in real runs


@pytest.mark.slow
def test_a_healthy_run_raises_nothing(train):
    assert train(max_steps="14") == {} and not Path("run/alarms.jsonl").exists()


def test_all_truncated_within_five_steps_whatever_logging_steps_says(train, capfd):
    found = train(max_steps="5", max_completion_length="3")
    assert found["all_truncated"]["step"] <= 5 and "max_completion_length" in found["all_truncated"]["remedy"]
    assert "alarm at step 3: all_truncated" in capfd.readouterr().out


def test_zero_variance_all_wrong(train, tiny_model):
    found = train(max_steps="3", model_name_or_path=tiny_model, max_completion_length="8")
    assert "(all wrong)" in found["zero_variance"]["message"]


@pytest.mark.slow
def test_zero_variance_all_right(train, greedy, write_jsonl):
    perfect = [row for row, record in greedy if record["strict"] and record["format_strict"]]
    assert len(perfect) > 20
    found = train(max_steps="3", dataset_name=write_jsonl(perfect), temperature="1e-4", learning_rate="0")
    assert set(found) == {"zero_variance"} and "(all right)" in found["zero_variance"]["message"]


def test_zero_variance_of_a_constant_reward(train, tiny_model):
    flags = {"model_name_or_path": tiny_model, "max_completion_length": "8"}
    found = train(max_steps="3", reward_funcs="soft_format_reward_func", **flags)
    assert "(constant reward)" in found["zero_variance"]["message"]


@pytest.mark.slow
def test_dead_reward_is_named(train, greedy, write_jsonl):
    rows = [{"question": row["question"], "answer": "#### 987654"} for row, _ in greedy]
    found = train(
        max_steps="21", dataset_name=write_jsonl(rows), warmup_steps="2", stop_on_alarm="true", learning_rate="1e-6",
    )  # fmt: skip
    assert set(found) == {"dead_reward"}  # which stops no run that has other rewards to learn from
    assert found["dead_reward"]["step"] == 21  # after NEVER rollouts of a policy that moves
    assert "correctness_reward_func has been 0" in found["dead_reward"]["message"]
    assert json.loads(Path("run/run.json").read_text())["status"] == "finished"


@pytest.mark.slow
def test_mode_collapse_of_answers_that_are_not_right(train, greedy, write_jsonl):
    wrong = [row for row, record in greedy if not record["strict"]]
    found = train(max_steps="3", dataset_name=write_jsonl(wrong), temperature="1e-4", learning_rate="0")
    assert "identical" in found["mode_collapse"]["message"]


@pytest.mark.slow
def test_kl_runaway_is_seen_where_kl_is_computed(train):
    found = train(max_steps="8", beta="0.001", learning_rate="3e-3", max_grad_norm="10")
    assert "above 0.5" in found["kl_runaway"]["message"]


@pytest.mark.slow
def test_entropy_runaway(train):
    found = train(max_steps="20", entropy_coef="1", learning_rate="1e-3", max_grad_norm="10")
    assert "rose from" in found["entropy_runaway"]["message"]


@pytest.mark.slow
def test_weights_unchanged_once_the_learning_rate_was_above_zero(train):
    found = train(max_steps="6", learning_rate="1e-30")
    assert set(found) == {"weights_unchanged"} and found["weights_unchanged"]["step"] == 5
    assert train(max_steps="6", learning_rate="0", overwrite_run="true") == {}


def test_bare_text_for_a_chat_model_is_named(tmp_path, tiny_model):
    bare, watch = trainer(tmp_path, tiny_model, prompt=lambda question: question)
    bare.train()
    assert {"all_truncated", "no_chat_template"} <= set(watch.names)
    chat, watch = trainer(tmp_path, tiny_model)
    chat.train()
    assert "all_truncated" in watch.names and "no_chat_template" not in watch.names


@pytest.mark.parametrize(("scale_rewards", "raised"), [("group", True), ("none", False)])
def test_tiny_differences_that_decide_alone(tmp_path, tiny_model, scale_rewards, raised):
    made, watch = trainer(
        tmp_path, tiny_model, reward_funcs=[is_text, is_long], scale_rewards=scale_rewards, max_completion_length=6
    )
    made.train()
    assert ("tiny_variance" in watch.names) is raised
    if raised:
        message = alarms(tmp_path / "run")["tiny_variance"]["message"]
        assert "is_long" in message and "is_text" not in message


def holds_an_a(completions, **kwargs):
    return [completion[0]["content"].count("a") for completion in completions]


@pytest.mark.slow
def test_entropy_collapse_of_a_reward_that_one_token_wins(tmp_path, tiny_model):
    flags = {"max_completion_length": 6, "per_device_train_batch_size": 64, "num_generations": 32, "max_steps": 40}
    made, watch = trainer(tmp_path, tiny_model, reward_funcs=[holds_an_a], learning_rate=2e-2, **flags)
    made.train()
    assert "entropy_collapse" in watch.names
    assert "fell from" in alarms(tmp_path / "run")["entropy_collapse"]["message"]


class SpoilTheGradient(TrainerCallback):
    def on_train_begin(self, args, state, control, model=None, **kwargs):
        next(model.parameters()).register_hook(lambda gradient: gradient * float("nan"))


@pytest.mark.parametrize("max_grad_norm", [0.1, 0.0])
def test_a_gradient_that_is_not_finite_is_named_before_the_step(tmp_path, tiny_model, max_grad_norm):
    settings = {"max_steps": 1, "max_grad_norm": max_grad_norm, "reward_funcs": [is_long], "max_completion_length": 6}
    made, watch = trainer(tmp_path, tiny_model, callbacks=[SpoilTheGradient()], **settings)
    start = [weight.detach().clone() for weight in made.model.parameters()]
    made.train()
    assert "nonfinite_gradient" in watch.names and alarms(tmp_path / "run")["nonfinite_gradient"]["step"] == 1
    assert all(torch.equal(old, new) for old, new in zip(start, made.model.parameters(), strict=True))  # skipped


@pytest.mark.parametrize("what", ["gradient", "loss"])
@pytest.mark.parametrize("optim", ["stable_adamw", "adamw_torch_fused", "adamw_torch", "adafactor", "rmsprop"])
def test_a_step_that_is_not_finite_changes_neither_weights_nor_moments_and_the_run_goes_on(
    tmp_path, tiny_model, optim, what
):
    made, _ = trainer(tmp_path, tiny_model, max_steps=5, reward_funcs=[is_long], optim=optim, **STEP)
    made.add_callback(spoil := Spoil(made, [3, 4], what))
    made.train()
    spoil.note()
    assert [spoil.same(step, step + 1) for step in range(5)] == [False, False, True, True, False]
    assert [line["skipped_steps"] for line in made.state.log_history if "skipped_steps" in line] == [1, 2, 2]
    message = alarms(tmp_path / "run")["nonfinite_gradient"]["message"]
    assert message.startswith("the gradient holds" if what == "gradient" else "the loss is")
    assert all(math.isfinite(line["loss"]) for line in made.state.log_history if "loss" in line)
    rates = [line["learning_rate"] for line in made.state.log_history if "learning_rate" in line]
    assert len(set(rates)) == 5  # the schedule goes on


@pytest.mark.parametrize("skipped", [[2, 3, 5, 6], [2, 3, 4]])
def test_as_many_as_are_skipped_in_a_row_end_the_run_and_fewer_do_not(tmp_path, tiny_model, skipped):
    made, watch = trainer(tmp_path, tiny_model, max_steps=7, reward_funcs=[is_long], **STEP)
    watch.stop, asked = lambda reason, save=True: asked.append((made.state.global_step + 1, reason, save)), []
    made.add_callback(Spoil(made, skipped, "gradient"))
    made.train()
    if len(skipped) == SKIPPED:
        ((step, reason, save),) = asked
        assert step == 4 and save and "3 skipped steps in a row: the gradient holds NaN or infinity" in reason
        assert "the weights are those from before" in reason
    else:
        assert not asked


def spoil_the_command(monkeypatch, first, last):
    plain = LeanGRPOTrainer.compute_loss

    def compute_loss(self, *args, **kwargs):
        loss = plain(self, *args, **kwargs)
        return loss * float("nan") if first <= self.state.global_step + 1 <= last else loss

    monkeypatch.setattr(LeanGRPOTrainer, "compute_loss", compute_loss)


def checkpoints(run="run"):
    return sorted(int(path.name[11:]) for path in Path(run).glob("checkpoint-*"))


@pytest.mark.slow
def test_a_run_of_bad_steps_ends_with_the_weights_from_before_them_and_goes_on_from_there(train, monkeypatch, capfd):
    flags = {"max_steps": "9", "save_strategy": "steps", "save_steps": "2", "save_total_limit": "9"}
    flags["max_completion_length"] = "24"
    with monkeypatch.context() as spoilt:
        spoil_the_command(spoilt, 3, 9)
        train(expected=3, **flags)
    shown = " ".join(capfd.readouterr().out.split())
    assert "Stopped by 3 skipped steps in a row: the gradient holds NaN or infinity; they have changed" in shown
    assert "--resume_from_checkpoint auto" in shown and checkpoints() == [2, 4, 5]
    before, after = (load_file(f"run/checkpoint-{step}/model.safetensors") for step in (2, 5))
    assert equal(before, after) and not Path("run/model.safetensors").exists()
    moments = [torch.load(f"run/checkpoint-{step}/optimizer.pt", weights_only=True)["state"] for step in (2, 5)]
    assert equal(*moments)
    with monkeypatch.context() as spoilt:
        spoil_the_command(spoilt, 3, 9)
        train(expected=3, **{**flags, "resume_from_checkpoint": "auto"})  # as many again
    assert checkpoints()[-1] == 8
    train(**{**flags, "resume_from_checkpoint": "auto"})
    assert not equal(load_file("run/model.safetensors"), after)


class SpoilAWeight(TrainerCallback):
    def __init__(self, made, step):
        self.made, self.step = made, step

    def on_optimizer_step(self, args, state, control, **kwargs):
        if state.global_step + 1 == self.step:
            with torch.no_grad():
                next(self.made.model.parameters())[0, 0] = float("inf")


@pytest.mark.parametrize(("step", "left"), [(4, [2]), (3, [2]), (2, []), (5, [2, 4])])
def test_weights_that_are_not_finite_are_never_written(train, monkeypatch, capfd, step, left):
    """Also where they are so at the very end, or have been so since before a step that saves."""
    plain = LeanGRPOTrainer.__init__

    def init(self, *args, **kwargs):
        plain(self, *args, **kwargs)
        self.add_callback(SpoilAWeight(self, step))

    monkeypatch.setattr(LeanGRPOTrainer, "__init__", init)
    flags = {"max_steps": "5", "save_strategy": "steps", "save_steps": "2", "save_total_limit": "9"}
    train(expected=3, max_completion_length="16", **flags)
    assert checkpoints() == left and not Path("run/model.safetensors").exists()
    shown = " ".join(capfd.readouterr().out.split())
    assert "weights that hold NaN or infinity, of which no checkpoint is written: the newest one is from" in shown


def test_a_checkpoint_of_such_weights_is_not_even_written_where_another_reason_asks_for_one(tmp_path, tiny_model):
    made, _ = trainer(tmp_path, tiny_model, max_steps=2, reward_funcs=[is_long], **STEP)
    made.args.save_strategy, made.state.save_steps = "steps", 1
    made.train()
    made._save_checkpoint(made.model, None)
    assert checkpoints(tmp_path / "run") == [2]
    next(made.model.parameters()).data[0, 0] = float("nan")
    made.state.global_step = 7
    made._save_checkpoint(made.model, None)
    assert checkpoints(tmp_path / "run") == [2]


TWO_PROCESSES = """
import os, sys
from pathlib import Path
sys.path[:0] = [{root!r}, {helpers!r}]
import torch
from accelerate import PartialState
from helpers_watch import STEP, Spoil, is_long, trainer

rank = int(os.environ["RANK"])
for what, steps in (("loss", [2]), ("gradient", [2, 3, 4])):
    made, watch = trainer(Path({out!r}) / what, {model!r}, max_steps=5, reward_funcs=[is_long], **STEP)
    asked = []
    watch.stop = lambda reason, save=True: asked.append((made.state.global_step + 1, save))
    spoil = Spoil(made, steps if rank == 1 else [], what)
    made.add_callback(spoil)
    made.train()
    spoil.note()
    same = [step + 1 for step in range(5) if spoil.same(step, step + 1)]
    print(f"rank {{rank}} {{what}} skipped {{same}} asked {{asked}}", flush=True)
PartialState().wait_for_everyone()
made.accelerator.end_training()
"""


@pytest.mark.slow
def test_what_is_not_finite_on_one_process_is_skipped_by_all(tiny_model, tmp_path):
    script = tmp_path / "two.py"
    helpers = str(ROOT / "tests" / "helpers")
    script.write_text(
        TWO_PROCESSES.format(root=str(ROOT), helpers=helpers, model=tiny_model, out=str(tmp_path / "out"))
    )
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", str(script)]
    done = subprocess.run(launcher, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    for rank in (0, 1):
        assert f"rank {rank} loss skipped [2] asked []" in done.stdout
        assert f"rank {rank} gradient skipped [2, 3, 4] asked [(4, True)]" in done.stdout


def test_frozen_weights_are_named(tmp_path, tiny_model):
    made, watch = trainer(tmp_path, tiny_model, max_steps=6, reward_funcs=[is_long], max_completion_length=6)
    for parameter in made.model.parameters():
        parameter.requires_grad_(False)
    made.model.lm_head.weight.requires_grad_(True)  # autograd needs one; the optimizer does not get it
    made.create_optimizer()
    made.optimizer.param_groups[0]["params"].clear()
    made.train()
    assert "weights_unchanged" in watch.names


def test_truncation_is_told_within_five_steps_also_where_a_rollout_lasts_for_four(train):
    flags = {"gradient_accumulation_steps": "1", "steps_per_generation": "4", "per_device_train_batch_size": "8"}
    found = train(max_steps="5", max_completion_length="3", **flags)
    assert found["all_truncated"]["step"] <= 5


def test_stop_on_alarm_ends_with_a_checkpoint_a_report_and_status_3(train, capfd):
    found = train(expected=3, stop_on_alarm="true", max_steps="9", max_completion_length="3", log_completions="true")
    assert found["all_truncated"]["step"] == 3
    run = Path("run")
    assert (run / "checkpoint-3" / "model.safetensors").exists() and not (run / "model.safetensors").exists()
    record = json.loads((run / "run.json").read_text())
    assert record["status"].startswith("stopped by an alarm: all_truncated")
    assert "all_truncated" in (run / "report.html").read_text() and not (run / "eval_after.json").exists()
    assert "--resume_from_checkpoint auto" in capfd.readouterr().out
    logged = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert any(line.get("alarms/all_truncated") == 1 for line in logged)  # where trackers read it


def test_a_run_that_goes_on_after_its_alarm_is_not_ended_by_the_same_one_again(train):
    """The command that was printed would otherwise do one step at a time."""
    flags = {"stop_on_alarm": "true", "max_steps": "6", "max_completion_length": "3"}
    train(expected=3, **flags)
    train(expected=0, **flags, resume_from_checkpoint="auto")
    assert checkpoints() == [3]


# --- The checks by themselves


def rollout(texts, group=2, prompts=None, **columns):
    return Rollout(prompts or [str(index // group) for index in range(len(texts))], texts, columns, group)


def test_identical_right_answers_are_no_collapse_also_in_a_stage_that_does_not_pay_for_them():
    right, wrong = ([2.0] * 4, [0.0] * 4)
    for others, expected in (({"correctness_reward_func": right}, False), ({"correctness_reward_func": wrong}, True)):
        seen = Observed()
        for _ in range(3):
            stage = Rollout(["a", "a", "b", "b"], ["x", "x", "y", "y"], {"format": [1.0] * 4}, 2, others=others)
            seen.add(stage)
        assert bool(ALARMS["mode_collapse"][0](seen)) is expected


def observed(*rollouts, **facts):
    seen = Observed(**facts)
    for one in rollouts:
        seen.add(one)
    return seen


def check(name, seen):
    return ALARMS[name][0](seen)


def test_zero_variance_says_how_many_groups_are_right_and_wrong():
    mixed = rollout(list("abcd"), correctness_reward_func=[2.0, 2.0, 0.0, 0.0])
    assert "3 groups all right, 3 groups all wrong" in check("zero_variance", observed(mixed, mixed, mixed))
    assert check("zero_variance", observed(mixed, mixed)) is None
    live = rollout(list("abcd"), correctness_reward_func=[2.0, 0.0, 0.0, 0.0])
    assert check("zero_variance", observed(mixed, mixed, live)) is None


def test_rewards_that_cancel_out_are_no_variance():
    opposed = rollout(list("ab"), one=[1.0, 0.0], other=[0.0, 1.0])
    assert "constant reward" in check("zero_variance", observed(opposed, opposed, opposed))


@pytest.mark.parametrize(
    ("values", "dead"), [([0.0, 0.0], True), ([-1.0, -1.0], True), ([0.0, -0.5], False), ([1.0, 1.0], False)]
)
def test_a_dead_reward_is_constant_and_not_above_zero(values, dead):
    one = rollout(list("ab"), some=values, none=[None, None])
    assert check("dead_reward", observed(*[one] * (NEVER - 1))) == {}
    seen = observed(*[one] * NEVER)
    assert ("some" in check("dead_reward", seen)) is dead and "none" not in check("dead_reward", seen)


@pytest.mark.parametrize(
    ("name", "values", "kind"),
    [
        ("accuracy_reward", [1.0, 1.0], "all right"),
        ("accuracy_reward", [0.0, 0.0], "all wrong"),
        ("incorrect_penalty", [0.0, 0.0], "all right"),  # the best that was seen
        ("incorrect_penalty", [-1.0, -1.0], "all wrong"),
        ("style", [0.5, 0.5], "constant reward"),  # between the best and the worst
    ],
)
def test_right_and_wrong_are_told_by_the_rewards_name_or_by_what_was_seen(name, values, kind):
    extremes = {"accuracy_reward": [0.0, 1.0], "incorrect_penalty": [-1.0, 0.0], "style": [0.0, 1.0]}[name]
    now = rollout(list("ab"), **{name: values})
    seen = observed(rollout(list("ab"), **{name: extremes}), now, now, now)
    assert f"({kind})" in check("zero_variance", seen)


def test_one_long_tail_does_not_make_all_other_differences_tiny():
    tail = rollout(list("abcd") * 5, xmlcount=[-7.6] + [0.5] * 19)
    tags = rollout(list("abcd") * 5, xmlcount=[0.375, 0.5] * 10)
    assert check("tiny_variance", observed(tail, tags, tags, tags)) is None
    assert check("tiny_variance", observed(tags, tail, tags)) is None


def test_one_text_for_every_prompt_is_mode_collapse_and_one_right_answer_is_not():
    same = rollout(["x"] * 20, correctness_reward_func=[0.0] * 20)
    assert "whatever the prompt" in check("mode_collapse", observed(same, same, same))
    right = rollout(["1", "1", "2", "2"], correctness_reward_func=[2.0] * 4)
    assert check("mode_collapse", observed(right, right, right)) is None
    lonely = rollout(["x", "x"], prompts=["p", "p"], correctness_reward_func=[2.0, 2.0])
    assert check("mode_collapse", observed(lonely, lonely, lonely)) is None  # one prompt, answered right


def test_a_reward_is_dead_after_rollouts_of_its_own_and_whatever_its_weight_comes_to():
    off = rollout(list("ab"), format=[0.5, 0.0])
    seen = observed(*[off] * NEVER)
    for index in range(NEVER):
        assert check("dead_reward", seen) == {}  # it was switched on with the last stage
        weight = 1.2**index
        seen.add(Rollout(["0", "0"], ["a", "b"], {"answers": [-weight, -weight]}, 2, {"answers": weight}))
    message = check("dead_reward", seen)["answers"]
    assert f"answers has been -1 for every completion of {NEVER} rollouts" in message


def test_a_reward_with_a_negative_weight_is_judged_by_what_it_adds():
    always = Rollout(["0", "0"], ["a", "b"], {"long": [-0.5, -0.5]}, 2, {"long": -0.5})
    assert "long has been -1 " in check("dead_reward", observed(*[always] * NEVER))["long"]


def test_the_best_and_the_worst_are_those_of_the_weights_in_force():
    before = Rollout(["0", "0"], ["a", "b"], {"style": [0.0, 5.0]}, 2, {"style": 5.0})
    now = Rollout(["0", "0"], ["a", "b"], {"style": [1.0, 1.0]}, 2, {"style": 1.0})
    assert observed(before, before).totals == (0.0, 5.0) and observed(before, now).totals == (1.0, 1.0)


def test_rewards_of_another_stage_are_not_looked_at(tmp_path, tiny_model):
    made, watch = trainer(tmp_path, tiny_model, reward_funcs=[is_text, is_long], max_steps=4, max_completion_length=6)
    stages = [Stage("one", 1, 2, ["is_text"], [1.0]), Stage("two", 3, 4, ["is_long"], [2.0])]
    script = SimpleNamespace(
        reward_funcs=["is_text", "is_long"], adaptive_rewards=["is_long"], adaptive_threshold=0.0,
        adaptive_bounds=[0.25, 4.0],
    )  # fmt: skip
    made.add_callback(RewardWeights(made, script, stages))  # after the watch: the order does not matter
    seen = []
    watch.seen.add, add = lambda rollout, **kwargs: (seen.append(rollout), add(rollout, **kwargs)), watch.seen.add
    made.train()
    assert [list(one.weights.items()) for one in seen] == [
        [("is_text", 1.0)], [("is_text", 1.0)], [("is_long", 2.0)], [("is_long", pytest.approx(1.8))]
    ]  # fmt: skip
    assert [list(one.rewards) for one in seen] == [["is_text"], ["is_text"], ["is_long"], ["is_long"]]
    assert watch.seen.rollouts_seen == {"is_text": 2, "is_long": 2}


def test_a_completion_that_the_guard_left_out_has_no_part_in_its_group():
    right = rollout(list("abcd"), correctness_reward_func=[2.0, None, 2.0, 2.0], format=[0.5, None, 0.5, 0.5])
    assert "(all right)" in check("zero_variance", observed(right, right, right))
    nobody = rollout(list("abcd"), correctness_reward_func=[0.0, 0.0, None, None])
    assert "all wrong" in check("zero_variance", observed(nobody, nobody, nobody))
    silent = rollout(list("abcd"), correctness_reward_func=[2.0, None, 2.0, 2.0], format=[0.5] * 4)  # None from one: 0
    assert check("zero_variance", observed(silent, silent, silent)) is None


def test_missing_rewards_do_not_disturb_the_checks():
    seen = observed(*[rollout(list("abcd"), correctness_reward_func=[None, 2.0, None, None])] * 3)
    assert all(check(name, seen) is None or isinstance(check(name, seen), str | dict) for name in ALARMS)


@pytest.mark.parametrize(
    ("values", "alarm"),
    [
        ([0.4] * 5 + [0.03] * 5, "entropy_collapse"),
        ([0.4] * 5 + [0.05] * 5, None),
        ([0.4] * 5 + [1.3] * 5, "entropy_runaway"),
        ([0.05] * 5 + [0.3] * 5, None),  # from hardly any to little
        ([0.4] * 5 + [0.0] * 4, None),
    ],
)
def test_entropies_are_compared_with_the_first_ones(values, alarm):
    seen = observed(metrics={"entropy": values})
    assert [name for name in ("entropy_collapse", "entropy_runaway") if check(name, seen)] == [alarm] * bool(alarm)


def test_one_spike_of_the_kl_is_no_runaway():
    assert check("kl_runaway", observed(metrics={"kl": [0.1, 9.0, 0.1]})) is None
    assert check("kl_runaway", observed(metrics={"kl": [0.1, 0.6, 0.7, 0.8]}))
