"""assets/demo: honest by construction, reproducible, and the demo run really learns."""

import json
import random
import sys
from pathlib import Path

import pytest
from helpers_runs import DEMO

sys.path.insert(0, str(DEMO))
import make_demo

import train_grpo
from rewards import extract_hash_answer


def test_the_committed_problems_are_what_the_script_makes():
    for name, rows in make_demo.make_rows().items():
        lines = (DEMO / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        assert [json.loads(line) for line in lines] == rows


def test_every_solution_is_right():
    for rows in make_demo.make_rows().values():
        for row in rows:
            *steps, last = row["answer"].split("\n")
            for step in steps:
                expression, _, result = step.partition(" = ")
                assert result == f"<<{expression.replace(' ', '')}={eval(expression)}>>{eval(expression)}"
            assert last == f"#### {eval(expression)}" and extract_hash_answer(row["answer"]) == str(eval(expression))


def test_held_out_problems_are_new_and_half_in_new_words():
    test = make_demo.draw_problems(random.Random(f"{make_demo.SEED} test"), make_demo.NUM_TEST, held_out=True)
    train = make_demo.draw_problems(random.Random(f"{make_demo.SEED} train"), make_demo.NUM_TRAIN, held_out=False)
    rng = random.Random(0)
    supervised = [make_demo.draw_problem(rng, held_out=False) for _ in range(20_000)]
    seen = {(problem.kind.name, problem.numbers) for problem in train + supervised}
    assert not seen & {(problem.kind.name, problem.numbers) for problem in test}
    questions = {problem.question for problem in train + supervised}
    assert not questions & {problem.question for problem in test}
    new = [problem for problem in test if problem.wording >= len(problem.kind.wordings) - make_demo.HELD_OUT_WORDINGS]
    assert 0.4 < len(new) / len(test) < 0.6
    wordings = {(problem.kind.name, problem.wording) for problem in train + supervised}
    assert not wordings & {(problem.kind.name, problem.wording) for problem in new}


def test_the_demo_earns_more_within_eight_steps():
    """Also of what the answers themselves earn."""
    steep = "--max_steps 8 --learning_rate 3e-4 --lr_scheduler_type constant --eval_samples 0 --logging_steps 1"
    assert train_grpo.main(["--config", "demo", "--output_dir", "run", *steep.split()]) == 0
    lines = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    for key, more in (("reward", 0.5), ("rewards/correctness_reward_func/mean", 0.3)):
        earned = [line[key] for line in lines if key in line]
        assert len(earned) == 8 and sum(earned[-2:]) / 2 > sum(earned[:2]) / 2 + more


@pytest.mark.slow
def test_the_demo_learns_more_than_the_format():
    assert train_grpo.main(["--config", "demo", "--output_dir", "run"]) == 0
    before, after = (json.loads(Path(f"run/eval_{when}.json").read_text()) for when in ("before", "after"))
    assert before["n"] == after["n"] == 200
    assert before["accuracy_strict"] <= 0.50 and after["accuracy_strict"] >= 0.90
    assert before["format_strict"] < 0.90 and after["format_strict"] >= 0.98
    assert after["accuracy_lenient"] >= before["accuracy_lenient"] + 0.30
    assert not Path("run/alarms.jsonl").exists()
    assert json.loads(Path("run/comparison.json").read_text())["verdict"] == "got_better"
