"""grpo/evaluation/curve.py: accuracy while a run trains, and what it leaves alone."""

import json
import time
from pathlib import Path

import pytest
from helpers_resume import assert_same, interrupted, state_of, without_clock
from helpers_runs import LEARNS, LONG
from safetensors.torch import load_file
from transformers import TrainerCallback

import train_grpo
from grpo.evaluation import evaluate

FLAGS = {**LEARNS, "max_steps": "3", "eval_samples": "6", "logging_steps": "1", "save_strategy": "no"}
IN_THE_LONG_PROFILE = pytest.mark.skipif(not LONG, reason="the long profile's")
CURVE = {**FLAGS, "max_steps": "4", "eval_every": "2", "save_strategy": "steps", "save_steps": "1"}
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
    """The evaluations so far."""

    def count():
        calls, measure = [], evaluate.measure

        def counted(*args):
            calls.append(args)
            return measure(*args)

        monkeypatch.setattr(evaluate, "measure", counted)
        return calls

    return count


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


@pytest.mark.slow
def test_a_resumed_run_continues_the_curve(tiny_run):
    flags = tiny_run(**CURVE, save_total_limit="9")
    assert train_grpo.main(flags) == 0
    again = interrupted("run", 3)
    Path("run").rename("whole")
    assert train_grpo.main([*flags, "--output_dir", str(again), "--resume_from_checkpoint", "auto"]) == 0
    assert list(lines_of(again)[0]) == [0, 2, 4] and record(again)["step"] == 4
    assert_same(state_of(again), state_of(Path("whole")))


class StopAt(TrainerCallback):
    """Ends a run as a signal would at this step."""

    def __init__(self, run):
        self.run = run

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 1:
            self.run.request_stop("a test")


@pytest.mark.slow
def test_a_stop_comes_before_an_evaluation(tiny_run, measures, monkeypatch):
    """Which a resumed run makes first."""
    calls = measures()
    watch = train_grpo.watch

    def stopped(trainer, run, *args):
        trainer.callback_handler.callbacks.insert(0, StopAt(run))
        watch(trainer, run, *args)

    with monkeypatch.context() as patched:
        patched.setattr(train_grpo, "watch", stopped)
        assert train_grpo.main(tiny_run(**CURVE)) == 3
    assert list(lines_of()[0]) == [0] and len(calls) == 1
    assert train_grpo.main([*tiny_run(**CURVE), "--resume_from_checkpoint", "auto"]) == 0
    assert list(lines_of()[0]) == [0, 2, 4] and len(calls) == 3
    assert record()["step"] == 4


@pytest.mark.slow
def test_it_is_also_measured_within_a_rollout(tiny_run):
    flags = {**FLAGS, "max_steps": "6", "steps_per_generation": "2", "eval_every": "3"}
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
    assert [line["step"] for line in others if "reward" in line] == [2]
    shown = [line.split() for line in capfd.readouterr().out.splitlines()]
    assert len([words for words in shown if words[:2] == ["eval", f"{sampled[0]['eval_reward']:.2f}"]]) >= 1
