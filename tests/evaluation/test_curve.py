"""grpo/evaluation/curve.py: accuracy while a run trains, what it leaves alone, and the best checkpoint."""

import json
import shutil
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers_resume import assert_same, interrupted, state_of, without_clock
from helpers_runs import DEMO, LEARNS, LONG
from safetensors.torch import load_file
from transformers import TrainerCallback

import train_grpo
from grpo.core.errors import UserError
from grpo.evaluation import curve, evaluate
from grpo.runs import checkpoints

FLAGS = {**LEARNS, "max_steps": "3", "eval_samples": "6", "logging_steps": "1", "save_strategy": "no"}
IN_THE_LONG_PROFILE = pytest.mark.skipif(not LONG, reason="the long profile's")
BEST = {**FLAGS, "max_steps": "4", "eval_every": "1", "keep_best": "true", "save_strategy": "steps", "save_steps": "1"}
OTHERS = {"eval_dataset_name": str(DEMO / "test.jsonl")}  # which has more questions than eval_samples
LORA = {"use_peft": "true", "lora_r": "4", "learning_rate": "3e-2"}


def lines_of(run="run"):
    lines = [json.loads(line) for line in (Path(run) / "metrics.jsonl").read_text().splitlines()]
    measured = {line["step"]: line for line in lines if "eval/accuracy_lenient" in line}
    assert len(measured) == sum("eval/accuracy_lenient" in line for line in lines)  # no step twice
    return measured, [line for line in lines if "eval/accuracy_lenient" not in line]


def weights(directory):
    return load_file(next(path for path in Path(directory).glob("*.safetensors")))


def record(run="run", name="eval_after"):
    return json.loads((Path(run) / f"{name}.json").read_text())


@pytest.fixture
def measures(monkeypatch):
    """The lenient accuracies that the evaluations find, one after the other; the calls so far."""

    def plan(*found):
        left, calls, measure = list(found), [], evaluate.measure

        def planned(config, model, tokenizer, data, *args):
            summary, answers = measure(config, model, tokenizer, data, *args)
            calls.append([row["question"] for row in answers])
            return summary | ({"accuracy_lenient": left.pop(0)} if left else {}), answers

        monkeypatch.setattr(evaluate, "measure", planned)
        return calls

    return plan


@pytest.mark.slow
@pytest.mark.parametrize(
    "more",
    [pytest.param({}, marks=IN_THE_LONG_PROFILE), {**LORA, "lora_dropout": "0.5"}],
    ids=["all weights", "LoRA"],
)
def test_the_run_is_that_without_it(tiny_run, measures, more):
    """Its weights are bitwise the same, and so is what it logs."""
    calls = measures()
    assert train_grpo.main(tiny_run(**FLAGS, **more, output_dir="without")) == 0
    assert len(calls) == 2
    assert train_grpo.main(tiny_run(**FLAGS, **more, eval_every="2", eval_num_samples="3")) == 0
    assert len(calls) == 5  # before, at step 2, and after
    assert_same(weights("run"), weights("without"))
    measured, others = lines_of()
    assert without_clock(others) == without_clock(lines_of("without")[1])
    assert list(measured) == [0, 2, 3] and not lines_of("without")[0]
    for step, name in ((0, "eval_before"), (3, "eval_after")):
        found = record(name=name)
        assert all(found[key[5:]] == value for key, value in measured[step].items() if key.startswith("eval/"))
        assert {"pass_k", "accuracy_lenient_low"} < set(found)
    assert record()["step"] == 3 and "pass_k" not in measured[3]
    low, share, high = (measured[2][f"eval/accuracy_lenient{end}"] for end in ("_low", "", "_high"))
    assert low <= share <= high and measured[2]["time/evaluation"] > 0


@pytest.mark.slow
@IN_THE_LONG_PROFILE
def test_it_is_no_part_of_a_steps_time(tiny_run, monkeypatch):
    measure = evaluate.measure

    def slow(*args):
        time.sleep(1.5)
        return measure(*args)

    monkeypatch.setattr(evaluate, "measure", slow)
    assert train_grpo.main(tiny_run(**{**FLAGS, "max_steps": "2", "logging_steps": "2"}, eval_every="1")) == 0
    measured, others = lines_of()
    (line,) = [line for line in others if "reward" in line]
    assert line["step"] == 2 and line["step_time"] < 1.5  # the mean of both
    assert len(measured) == 3


def test_sharded_weights_need_whole_checkpoints():
    script = SimpleNamespace(eval_every=5, keep_best=True)
    config = SimpleNamespace(script=script, training=SimpleNamespace(save_only_model=True))
    trainer = SimpleNamespace(is_fsdp_enabled=True, is_deepspeed_enabled=False)
    with pytest.raises(UserError, match=r"keep_best: sharded weights .* drop save_only_model"):
        curve.follow(config, None, trainer, None, SimpleNamespace(picking=None), ({}, []))


@pytest.mark.slow
@pytest.mark.parametrize("gone", [False, pytest.param(True, marks=IN_THE_LONG_PROFILE)])
def test_a_resumed_run_continues_the_curve(tiny_run, measures, capfd, gone):
    """Also where it was moved; where its best checkpoint is gone, a line says so."""
    measures(0.5, 0.1, 0.8, 0.2, 0.3, 0.6, *(0.2, 0.3, 0.6))  # before, steps 0, 2, 4, 5, after; 4, 5, after
    flags = tiny_run(**{**BEST, "max_steps": "5", "eval_every": "2", "save_total_limit": "9"}, **OTHERS)
    assert train_grpo.main(flags) == 0
    again = interrupted("run", 3)
    Path("run").rename("whole")
    if gone:
        shutil.rmtree(again / "checkpoint-2")
    assert train_grpo.main([*flags, "--output_dir", str(again), "--resume_from_checkpoint", "auto"]) == 0
    assert list(lines_of(again)[0]) == [0, 2, 4, 5] and record("whole")["step"] == 2
    assert ("the best so far, is gone" in capfd.readouterr().out) is gone
    if gone:
        assert record(again)["step"] == 5
        return
    found, wanted = state_of(again), state_of(Path("whole"))
    for each in (found, wanted):  # which run's
        each["state"].pop("best_model_checkpoint")
    assert_same(found, wanted)


class StopAt(TrainerCallback):
    """Ends a run as a signal would at this step."""

    def __init__(self, run):
        self.run = run

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 1:
            self.run.ask("a test")


@pytest.mark.slow
def test_a_stop_comes_before_an_evaluation(tiny_run, measures, monkeypatch):
    """Which a resumed run makes first, with the checkpoint that it resumes from as its best."""
    calls = measures(0.1, 0.5, 0.4, 0.3)
    follow = curve.follow

    def stopped(config, run, trainer, *args):
        trainer.callback_handler.callbacks.insert(0, StopAt(run))
        return follow(config, run, trainer, *args)

    with monkeypatch.context() as patched:
        patched.setattr(curve, "follow", stopped)
        flags = {**BEST, "eval_every": "2", "eval_dataset_name": OTHERS["eval_dataset_name"]}
        assert train_grpo.main(tiny_run(**flags)) == 3
    assert list(lines_of()[0]) == [0] and len(calls) == 2  # of the two sets of questions
    assert train_grpo.main([*tiny_run(**flags), "--resume_from_checkpoint", "auto"]) == 0
    measured, _ = lines_of()
    assert [measured[step]["eval/accuracy_lenient"] for step in (2, 4)] == [0.4, 0.3]
    assert record()["step"] == 2
    assert_same(weights("run"), weights("run/checkpoint-2"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "found", "best"),
    [({}, [0.3, 0.7, 0.7, 0.1], 2), (LORA, [0.0, 0.0, 0.0, 0.0], 1)],
    ids=["all weights", "LoRA, never right"],
)
def test_the_best_checkpoint_is_kept_and_saved(tiny_run, measures, capfd, more, found, best):
    calls = measures(0.9, 0.8, *found)  # before; then steps 0 to 4 by other questions
    assert train_grpo.main(tiny_run(**BEST, **OTHERS, **more, save_total_limit="1")) == 0
    assert list(lines_of()[0]) == [0, 1, 2, 3, 4]
    assert sorted(path.name for path in Path("run").glob("checkpoint-*")) == [f"checkpoint-{best}"]
    assert_same(weights("run"), weights(f"run/checkpoint-{best}"))
    assert record()["step"] == best
    assert f"Step {best} was the best: its weights replace those of step 4" in " ".join(capfd.readouterr().out.split())
    before, picking, after = set(calls[0]), set(calls[1]), set(calls[-1])
    assert before == after and not before & picking and len(picking) == 6
    assert all(set(call) == picking for call in calls[1:-1]) and len(calls) == 7
    asked = [json.loads(line) for line in Path("run/completions_after.jsonl").read_text().splitlines()]
    assert {row["question"] for row in asked} == before


@pytest.mark.slow
def test_a_last_step_that_is_best_stays(tiny_run, measures, capfd):
    """Its evaluation is that after training, where the questions are the same."""
    calls = measures(0.9, 0.2, 0.2, 0.3, 0.4)
    assert train_grpo.main(tiny_run(**BEST)) == 0
    out = " ".join(capfd.readouterr().out.split())
    assert len(calls) == 5 and "replace" not in out and f"note: the best checkpoint is {curve.BIASED}" in out
    assert record()["step"] == 4 and record()["accuracy_lenient"] == 0.4
    assert_same(weights("run"), weights("run/checkpoint-4"))


@pytest.mark.slow
def test_what_is_picked_is_measured_at_a_rollouts_end(tiny_run):
    flags = {**BEST, "max_steps": "6", "steps_per_generation": "2", "save_steps": "9"}
    assert train_grpo.main(tiny_run(**flags, **OTHERS)) == 0
    assert list(lines_of()[0]) == [0, 2, 4, 6]
    assert all(checkpoints.step_of(path) % 2 == 0 for path in checkpoints.all_of(Path("run")))
    shutil.rmtree("run")
    flags |= {"keep_best": "false", "eval_every": "3"}
    assert train_grpo.main(tiny_run(**flags)) == 0
    assert list(lines_of()[0]) == [0, 3, 6]


@pytest.mark.slow
def test_trls_own_evaluation_runs_beside_it(tiny_run, capfd):
    flags = {**FLAGS, "max_steps": "3", "eval_every": "1", "per_device_eval_batch_size": "16", "eval_samples": "3"}
    flags["logging_steps"] = "2"
    assert train_grpo.main(tiny_run(**flags, eval_strategy="steps", eval_steps="1")) == 0
    measured, others = lines_of()
    assert list(measured) == [0, 1, 2, 3]
    sampled = [line for line in others if "eval_reward" in line]
    assert [line["step"] for line in sampled] == [1, 2, 3] and "eval_groups/mixed" in sampled[0]
    assert [line["step"] for line in others if "reward" in line] == [2, 3]
    shown = [line.split() for line in capfd.readouterr().out.splitlines()]
    assert len([words for words in shown if words[:2] == ["eval", f"{sampled[0]['eval_reward']:.2f}"]]) >= 1
    page = Path("run/report.html").read_text()
    assert "TRL's evaluation" in page and "Accuracy while it trained" in page
