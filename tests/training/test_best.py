"""The best checkpoint: what is said is measured with the weights that are saved, whatever chose them."""

import json
import shutil
import signal
from functools import partial
from pathlib import Path

import pytest
from ended import sending
from helpers_programs import FSDP2, ZERO3, run_on_two, run_sharded_on_two
from helpers_report import Page
from helpers_runs import LEARNS, ROOT
from transformers import EarlyStoppingCallback

import train_grpo
from grpo import __main__ as tools
from grpo.config.configure import configure
from grpo.core.errors import UserError
from grpo.runs import checkpoints
from grpo.training import callbacks
from grpo.training.accuracy import AccuracyCurve

BEST = {**LEARNS, "max_steps": "6", "eval_samples": "6", "save_steps": "2", "eval_every": "2", "logging_steps": "1"}
BEST |= {"load_best_model_at_end": "true", "metric_for_best_model": "accuracy_lenient", "save_total_limit": "1"}
VALUES = {2: 0.5, 4: 0.9, 6: 0.7}  # so that the best is in the middle


@pytest.fixture
def scripted(monkeypatch):
    """Let evaluations while training find these values, by step, instead of the accuracy; the rest is real."""

    def script(values=VALUES):
        measure = AccuracyCurve._evaluate

        def measured(curve, held_out):
            found = measure(curve, held_out)
            if curve.run.stop.training:
                found.summary["accuracy_lenient"] = values[curve.trainer.state.global_step]
            return found

        monkeypatch.setattr(AccuracyCurve, "_evaluate", measured)

    return script


def read(path):
    return json.loads(Path(path).read_text())


def weights(directory):
    names = ("model.safetensors", "adapter_model.safetensors")
    return next((directory / name).read_bytes() for name in names if (directory / name).exists())


def assert_same_answers(one, other):
    one, other = ([json.loads(line)["completion"] for line in path.read_text().splitlines()] for path in (one, other))
    assert one == other


def assert_is_of(run, step, last, shown, metric="accuracy_lenient", newest=None):
    """All that a finished run says is of the weights of this step, and it has them."""
    assert weights(run) == weights(run / f"checkpoint-{step}")
    assert [read(run / name)["step"] for name in ("eval_after.json", "comparison.json")] == [step] * 2
    record, said = read(run / "run.json"), f"weights of step {step}, the best by {metric} on"
    assert (record["status"], record["step"], record["best_step"]) == ("finished", last, step)
    page, card = Page(run / "report.html").text, (run / "README.md").read_text()
    assert f"{last} of {record['planned']} optimizer steps" in page and "Change" in page and "| After |" in card
    assert all(said in text for text in (page, card, " ".join(shown.split())))
    # the last checkpoint is kept, too: from there the run resumes
    assert checkpoints.newest(run)[0] == run / f"checkpoint-{newest or last}"
    argv = ["--eval_only", "true", "--model_name_or_path", str(run), "--output_dir", "alone"]
    given = {key: value for key, value in record["settings"].items() if key in ("dataset_name", "max_samples")}
    given |= {"max_completion_length": 24, "eval_samples": 6, "use_cpu": "true", "report_to": "none"}
    assert train_grpo.main([*argv, *(word for key, value in given.items() for word in (f"--{key}", str(value)))]) == 0
    assert_same_answers(Path("alone/completions_only.jsonl"), run / "completions_after.jsonl")
    assert read("alone/eval_only.json")["accuracy_lenient"] == read(run / "eval_after.json")["accuracy_lenient"]
    assert tools.main(["compare", str(run), shutil.copytree(run, f"copy-{last}")]) == 0


BY_STEPS = {"eval_strategy": "steps", "eval_steps": "2", "eval_every": None}
CASES = {  # settings, and the best step
    "all weights": ({}, 4),
    "an adapter": ({"use_peft": "true", "lora_r": "4", "learning_rate": "3e-2"}, 4),
    "the worst": ({"greater_is_better": "false", "eval_num_samples": "2"}, 2),
    "only the best are saved": ({"save_strategy": "best", "save_steps": None}, 4),
    "by transformers' settings": (BY_STEPS | {"metric_for_best_model": "eval/accuracy_lenient"}, 4),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_what_is_said_is_of_the_weights_that_are_saved(tiny_run, scripted, capsys, case):
    settings, best = CASES[case]
    settings = BEST | settings
    scripted()
    assert train_grpo.main(tiny_run(**settings)) == 0
    metric = settings["metric_for_best_model"].removeprefix("eval/")
    newest = best if settings.get("save_strategy") == "best" else 6
    assert_is_of(Path("run"), best, 6, capsys.readouterr().out, metric, newest)


@pytest.mark.slow
@pytest.mark.parametrize("file", [None, FSDP2, ZERO3], ids=["whole", "FSDP2", "ZeRO-3"])
def test_two_processes_save_the_best_weights(tiny_run, file):
    """Of equal values the first counts, and all answers are cut off."""
    if file is ZERO3:
        pytest.importorskip("deepspeed")
    own = {"per_device_train_batch_size": "8", "max_steps": "3", "save_steps": "1", "eval_every": "1"}
    argv = tiny_run(**BEST | own | {"metric_for_best_model": "truncated", "max_completion_length": "4"})
    launch = partial(run_sharded_on_two, file=file) if file else run_on_two
    launch(ROOT / "train_grpo.py", *argv)
    run = Path("run")
    assert weights(run) == weights(run / "checkpoint-1") != weights(run / "checkpoint-3")
    assert read(run / "eval_after.json")["step"] == read(run / "run.json")["best_step"] == 1
    argv += ["--eval_only", "true", "--model_name_or_path", "run", "--output_dir", "alone"]
    assert train_grpo.main(argv) == 0
    assert_same_answers(Path("alone/completions_only.jsonl"), run / "completions_after.jsonl")


@pytest.mark.slow
def test_the_best_checkpoint_moves_with_its_run(tiny_run, scripted, monkeypatch, capsys):
    """Interrupted after it, moved and resumed, then extended."""
    scripted({2: 0.5, 4: 0.9, 6: 0.7, 8: 0.8})
    argv = tiny_run(**BEST | {"lr_scheduler_type": "constant"})
    with monkeypatch.context() as patched:
        patched.setattr(callbacks, "MetricsFile", sending(signal.SIGTERM, 4))
        assert train_grpo.main(argv) == 143
    run = Path("run").rename("moved")
    assert not (run / "model.safetensors").exists() and checkpoints.newest(run)[0] == run / "checkpoint-5"
    Path("run").mkdir()  # with another checkpoint of that name
    shutil.copytree(run / "checkpoint-4", "run/checkpoint-4")
    resume = ["--output_dir", "moved", "--resume_from_checkpoint", "auto"]
    assert train_grpo.main([*argv, *resume]) == 0
    state = read(run / "checkpoint-6" / "trainer_state.json")
    assert (state["best_global_step"], state["best_metric"]) == (4, 0.9)
    assert Path(state["best_model_checkpoint"]) == run / "checkpoint-4"
    assert_is_of(run, 4, 6, capsys.readouterr().out)
    shutil.rmtree("alone")
    assert train_grpo.main([*argv, *resume, "--max_steps", "8"]) == 0
    assert_is_of(run, 4, 8, capsys.readouterr().out)
    aside = read(run / "_ended-at-step-6" / "run.json")
    assert (aside["step"], aside["best_step"]) == (6, 4)


@pytest.mark.slow
def test_an_early_stop_by_the_runs_own_accuracy(tiny_run, scripted, monkeypatch, capsys):
    scripted({2: 0.9, 4: 0.5, 6: 0.7, 8: 0.95})
    ours = train_grpo.callbacks_of
    monkeypatch.setattr(train_grpo, "callbacks_of", lambda *args: [*ours(*args), EarlyStoppingCallback(2)])
    argv = tiny_run(**BEST | {"max_steps": "8"})
    assert train_grpo.main(argv) == 0
    shown = capsys.readouterr().out
    assert_is_of(Path("run"), 2, 6, shown)
    assert "A callback ended training at step 6 of 8" in shown
    # no checkpoint is needed for it, and the last weights are kept where the best are not asked for
    apart = {"load_best_model_at_end": "false", "save_steps": "100", "output_dir": "apart"}
    assert train_grpo.main(tiny_run(**BEST | {"max_steps": "8"} | apart)) == 0
    assert read("apart/run.json")["step"] == read("apart/eval_after.json")["step"] == 6
    assert "best_step" not in read("apart/run.json") and weights(Path("apart")) == weights(Path("apart/checkpoint-6"))
    capsys.readouterr()
    none = tiny_run(**LEARNS, output_dir="other", eval_samples="2")
    assert train_grpo.main(none) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: EarlyStoppingCallback: it needs a metric; use --metric_for_best_model ")
    assert len(error.splitlines()) == 1


@pytest.mark.slow
def test_a_schedule_that_follows_a_measure_without_a_value_gets_the_last_one(tiny_run, monkeypatch, capsys):
    measure = AccuracyCurve._evaluate

    def lacking(curve, held_out):
        found = measure(curve, held_out)
        if curve.run.stop.training and curve.trainer.state.global_step == 2:
            del found.summary["accuracy_lenient"]
        return found

    monkeypatch.setattr(AccuracyCurve, "_evaluate", lacking)
    own = {"lr_scheduler_type": "reduce_lr_on_plateau", "max_steps": "3", "eval_every": "1", "eval_samples": "4"}
    own |= {"metric_for_best_model": "accuracy_lenient", "save_steps": "1"}
    assert train_grpo.main(tiny_run(**LEARNS | own)) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "accuracy_lenient has no value at step 2: the learning rate follows its last one" in shown


CPU = ["--use_cpu", "true", "--report_to", "none"]
BY = "--metric_for_best_model"
OWN = "--metric_for_best_model accuracy_lenient"
REFUSED = [  # flags, and the line
    ("--load_best_model_at_end true --eval_strategy steps --eval_steps 10 --save_steps 10",
     "metric_for_best_model: eval_loss, by which load_best_model_at_end chooses, says nothing in GRPO"),
    ("--load_best_model_at_end true", "metric_for_best_model: eval_loss, by which"),
    ("--save_strategy best", "metric_for_best_model: eval_loss, by which save_strategy best chooses"),
    (f"{BY} eval_loss", "metric_for_best_model: eval_loss says nothing in GRPO"),
    (f"{BY} loss --load_best_model_at_end true", "metric_for_best_model: loss says nothing"),
    (f"{BY} accuracy --eval_every 10", "metric_for_best_model: 'accuracy' is not a metric; did you"),
    (f"{BY} f1 --eval_strategy steps --eval_steps 5", "metric_for_best_model: 'f1' is not a metric; use"),
    (OWN, "metric_for_best_model: accuracy_lenient is measured while training; add --eval_every 10"),
    (f"{OWN} --eval_every 10 --config demo --eval_samples 0", "eval_samples: 0 leaves "),
    (f"{BY} rewards/x/mean --eval_every 10", "metric_for_best_model: 'rewards/x/mean' is not a metric"),
    (f"{BY} kl --eval_strategy steps --eval_steps 5 --beta 0.1", "metric_for_best_model: 'kl' is not a metric"),
    (f"{OWN} --save_strategy best --config demo --eval_strategy steps --eval_steps 4 --num_iterations 3",
     "eval_steps: 4: .* use a multiple of 12"),
    ("--lr_scheduler_type reduce_lr_on_plateau --eval_every 5",
     "metric_for_best_model: eval_loss, by which the schedule reduce_lr_on_plateau goes, says nothing in GRPO"),
    ("--eval_every 5 --eval_strategy epoch", "eval_every: 5: eval_strategy epoch says when to evaluate, too; drop"),
    (f"{OWN} --load_best_model_at_end true --config demo", "save_strategy: no saves no checkpoint where"),
    (f"{OWN} --load_best_model_at_end true --eval_every 10 --save_steps 15",
     "save_steps: 15: accuracy_lenient is measured every 10 steps; use a multiple of 10"),
    (f"{OWN} --load_best_model_at_end true --eval_every 5 --save_steps 5 --num_iterations 2",
     "save_steps: 5: checkpoints are saved at the ends of rollouts, each of 2 optimizer steps, and .* multiple of 10"),
    (f"{OWN} --save_strategy best --eval_every 5 --num_iterations 2", "eval_every: 5: .* use a multiple of 10"),
    (f"{OWN} --save_strategy best --eval_strategy steps --eval_steps 5 --num_iterations 2", "eval_steps: 5: .* of 10"),
    (f"{OWN} --load_best_model_at_end true --eval_strategy epoch --save_steps 5", ".* strategy to match"),
]  # fmt: skip


@pytest.mark.parametrize(("flags", "line"), REFUSED)
def test_a_choice_that_cannot_be_made_is_a_line(flags, line):
    with pytest.raises(UserError, match=f"^{line}"):
        configure(train_grpo.HYPERPARAMETERS, [*CPU, *flags.split()])


CHOSEN = [  # flags; the measure that chooses, and whether more of it is better
    (f"{OWN} --load_best_model_at_end true --eval_every 10 --save_steps 20", "accuracy_lenient", True),
    (f"{BY} eval/accuracy_strict --save_strategy best --eval_every 10", "accuracy_strict", True),
    (f"{BY} eval_truncated --eval_every 10", "truncated", False),
    (f"{BY} reward_int_reward_func --eval_every 10", "reward_int_reward_func", True),
    (f"{BY} reward_my_loss --eval_every 10", "reward_my_loss", True),
    (f"{BY} reward --eval_every 10", "reward", True),
    (f"{BY} reward --eval_every 10 --greater_is_better false", "reward", False),
    (f"{BY} reward --eval_strategy steps --eval_steps 10", "reward", True),
    (f"{OWN} --load_best_model_at_end true --eval_strategy steps --eval_steps 10 --save_steps 10",
     "accuracy_lenient", True),
]  # fmt: skip


@pytest.mark.parametrize(("flags", "metric", "better"), CHOSEN)
def test_measures_of_evaluations_can_choose(flags, metric, better):
    training = configure(train_grpo.HYPERPARAMETERS, [*CPU, *flags.split()]).training
    assert (training.metric_for_best_model, training.greater_is_better) == (metric, better)
    assert training.load_best_model_at_end is ("load_best_model_at_end" in flags)
    assert training.eval_strategy == "steps" and training.eval_steps == 10


WHEN = [  # settings of the script, flags, and when transformers evaluates
    ({}, "", "no"),
    ({"eval_every": 10}, "", "steps"),
    ({"eval_every": 10}, "--eval_strategy no", "no"),
    ({"eval_every": 10}, "--eval_strategy epoch", "epoch"),
    ({"eval_strategy": "epoch"}, "--eval_every 10", "steps"),
    ({"eval_every": 10}, "--eval_samples 0", "no"),
    ({"eval_strategy": "epoch"}, "--eval_samples 0", "no"),
    ({}, "--config demo --eval_samples 0", "no"),
]


@pytest.mark.parametrize(("script", "flags", "strategy"), WHEN)
def test_the_later_source_says_when_to_evaluate(script, flags, strategy):
    config = configure(train_grpo.HYPERPARAMETERS | script, [*CPU, *flags.split()])
    assert config.training.eval_strategy == strategy
    if strategy == "steps":
        assert config.training.eval_steps == 10
