"""grpo/evaluation/curve.py: accuracy while a run trains, and what it leaves alone."""

import json
from pathlib import Path

import pytest
from helpers_resume import assert_same, interrupted, state_of, without_clock
from helpers_runs import LEARNS
from safetensors.torch import load_file
from transformers import TrainerCallback

import train_grpo
from grpo.evaluation import evaluate

FLAGS = {**LEARNS, "max_steps": "3", "eval_samples": "6", "logging_steps": "1", "save_strategy": "no"}
CURVE = {**FLAGS, "max_steps": "4", "eval_every": "2", "save_strategy": "steps", "save_steps": "1"}


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
    """A list that grows with each evaluation."""
    calls, measure = [], evaluate.measure
    monkeypatch.setattr(evaluate, "measure", lambda *args: calls.append(1) or measure(*args))
    return calls


@pytest.mark.slow
def test_the_run_is_that_without_it(tiny_run, measures):
    """Its weights are bitwise the same, also with dropout, and so is what it logs."""
    flags = {**FLAGS, "use_peft": "true", "lora_r": "4", "lora_dropout": "0.5", "learning_rate": "3e-2"}
    assert train_grpo.main(tiny_run(**flags, output_dir="without")) == 0
    assert len(measures) == 2
    assert train_grpo.main(tiny_run(**flags, eval_every="2", eval_num_samples="3")) == 0
    assert len(measures) == 5  # before, at step 2, and after
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
def test_a_resumed_run_continues_the_curve(tiny_run):
    flags = tiny_run(**CURVE, save_total_limit="9")
    assert train_grpo.main(flags) == 0
    again = interrupted("run", 3)
    Path("run").rename("whole")
    assert train_grpo.main([*flags, "--output_dir", str(again), "--resume_from_checkpoint", "auto"]) == 0
    assert list(lines_of(again)[0]) == [0, 2, 4] and record(again)["step"] == 4
    assert_same(state_of(again), state_of(Path("whole")))


@pytest.mark.slow
def test_a_stop_comes_before_an_evaluation(tiny_run, measures, monkeypatch):
    """Which a resumed run makes first."""
    watch = train_grpo.watch

    def stopped(trainer, run, *args):
        class StopAt(TrainerCallback):
            def on_step_begin(self, args, state, control, **kwargs):
                if state.global_step == 1:
                    run.request_stop("a test")

        trainer.callback_handler.callbacks.insert(0, StopAt())
        watch(trainer, run, *args)

    with monkeypatch.context() as patched:
        patched.setattr(train_grpo, "watch", stopped)
        assert train_grpo.main(tiny_run(**CURVE)) == 3
    assert list(lines_of()[0]) == [0] and len(measures) == 1
    assert train_grpo.main([*tiny_run(**CURVE), "--resume_from_checkpoint", "auto"]) == 0
    assert list(lines_of()[0]) == [0, 2, 4] and len(measures) == 3
    assert record()["step"] == 4


@pytest.mark.slow
def test_it_runs_within_a_rollout_and_beside_trls_own(tiny_run):
    flags = {**FLAGS, "max_steps": "6", "steps_per_generation": "2", "eval_every": "3", "logging_steps": "2"}
    flags |= {"eval_strategy": "steps", "eval_steps": "3", "per_device_eval_batch_size": "16", "eval_samples": "3"}
    assert train_grpo.main(tiny_run(**flags)) == 0
    measured, others = lines_of()
    assert list(measured) == [0, 3, 6]
    assert [line["step"] for line in others if "eval_reward" in line] == [3, 6]
    assert [line["step"] for line in others if "reward" in line] == [2, 4, 6]
