"""Accuracy while a run trains is a curve that ends with the evaluations before and after, and changes nothing else."""

import json
from pathlib import Path

import pytest
from helpers_resume import interrupted, without_clock
from helpers_runs import LEARNS, flags

import train_grpo
from grpo.core.jsonfiles import read_lines
from grpo.policy.evaluation import HeldOut

FLAGS = {**LEARNS, "max_steps": "4", "eval_samples": "6", "logging_steps": "1"}


def lines_of(run="run"):
    """Lines of metrics.jsonl: those of evaluations by their step, and the others."""
    lines = [json.loads(line) for line in (Path(run) / "metrics.jsonl").read_text().splitlines()]
    measured = {line["step"]: line for line in lines if "eval/accuracy_lenient" in line}
    assert len(measured) == sum("eval/accuracy_lenient" in line for line in lines)  # no step twice
    return measured, [line for line in lines if "eval/accuracy_lenient" not in line]


def summary(when, run="run"):
    return json.loads((Path(run) / f"eval_{when}.json").read_text())


@pytest.mark.slow
def test_the_run_is_that_without_it(tiny_run, monkeypatch):
    """Bit by bit, also with dropout, in a rollout and before one; the curve's ends cost no further evaluation."""
    given = {**FLAGS, "max_steps": "3", "steps_per_generation": "2", "save_strategy": "no"}
    given |= {"use_peft": "true", "lora_r": "4", "lora_dropout": "0.5", "learning_rate": "3e-2"}
    calls, measure = [], HeldOut.evaluate
    monkeypatch.setattr(HeldOut, "evaluate", lambda *args: calls.append(1) or measure(*args))
    assert train_grpo.main(tiny_run(**given, output_dir="without")) == 0
    assert train_grpo.main(tiny_run(**given, eval_every="1", eval_num_samples="3")) == 0
    assert len(calls) == 2 + 4
    saved = [Path(run, "adapter_model.safetensors").read_bytes() for run in ("run", "without")]
    assert saved[0] == saved[1]
    measured, others = lines_of()
    assert without_clock(others) == without_clock(lines_of("without")[1])
    assert list(measured) == [0, 1, 2, 3] and not lines_of("without")[0]
    for step, when in ((0, "before"), (3, "after")):
        found = summary(when)
        assert all(found[key[5:]] == value for key, value in measured[step].items() if key.startswith("eval/"))
        assert {"pass_k", "accuracy_lenient_low"} < set(found)
    asked = read_lines(Path("run/completions_during.jsonl"))
    assert [line["step"] for line in asked] == [1] * 4 + [2] * 4 + [3] * 4
    assert {line["measure"] for line in asked} == {summary("before")["measure"]}
    assert all({"completion", "read", "lenient", "reward", "rewards"} <= line.keys() for line in asked)
    after = {line["question"]: line for line in read_lines(Path("run/completions_after.jsonl"))}
    assert all(after[line["question"]]["completion"] == line["completion"] for line in asked[8:])
    assert len({line["question"] for line in asked}) == 4 and not Path("without/completions_during.jsonl").exists()
    assert summary("after")["step"] == 3 and "pass_k" not in measured[3]
    assert all(f"Step {step}" in Path("run/report.html").read_text() for step in (1, 2))
    low, share, high = (measured[1][f"eval/accuracy_lenient{end}"] for end in ("_low", "", "_high"))
    assert low <= share <= high and measured[1]["time/evaluation"] > 0


def test_a_run_that_is_extended_or_killed_keeps_each_answer_once(tiny_run):
    """Those of steps after the checkpoint, which are repeated, and half a line of a kill are dropped."""
    words = tiny_run(**{**FLAGS, "max_steps": "2", "save_steps": "1", "eval_every": "1", "save_total_limit": "9"})
    assert train_grpo.main(words) == 0
    first = read_lines(Path("run/completions_during.jsonl"))
    assert [line["step"] for line in first] == [1] * 4 + [2] * 4
    for run, kept in ((interrupted("run", 1), 4), (Path("run"), 8)):
        with (run / "completions_during.jsonl").open("a") as file:
            file.write('{"step": 3, "half')
        again = {"max_steps": "3", "output_dir": str(run), "resume_from_checkpoint": "auto"}
        assert train_grpo.main([*words, *flags(**again)]) == 0
        lines = read_lines(run / "completions_during.jsonl")
        assert [line["step"] for line in lines] == [1] * 4 + [2] * 4 + [3] * 4 and lines[:kept] == first[:kept]
        questions = [line["question"] for line in lines]
        assert questions == questions[:4] * 3
