"""assets/demo: honest by construction, reproducible, and the demo run really learns."""

import json
import random
import sys
from pathlib import Path

import pytest
from helpers_commands import command
from helpers_runs import DEMO, LONG, ROOT

sys.path.insert(0, str(DEMO))
import make_demo

from grpo.data.prompts import PromptFormat
from rewards import extract_hash_answer, has_strict_format


def test_the_committed_problems_are_what_the_script_makes():
    for name, rows in make_demo.make_rows().items():
        lines = (DEMO / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        assert [json.loads(line) for line in lines] == rows


def test_every_solution_is_right():
    for rows in (*make_demo.make_rows().values(), make_demo.make_unseen_rows()):
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


def test_unseen_kinds_are_new_and_written_on_request(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["make_demo.py", "--unseen", str(tmp_path / "unseen.jsonl")])
    make_demo.main()
    rows = [json.loads(line) for line in (tmp_path / "unseen.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len({row["question"] for row in rows}) == make_demo.NUM_TEST
    for file in ("unseen", str(tmp_path / "nowhere" / "unseen.jsonl")):
        monkeypatch.setattr(sys, "argv", ["make_demo.py", "--unseen", file])
        with pytest.raises(SystemExit, match="2"):
            make_demo.main()
    known = {wording.lstrip("*") for kind in make_demo.KINDS for wording in kind.wordings}
    assert not known & {wording for kind in make_demo.UNSEEN for wording in kind.wordings}
    orders = {kind.name: kind.right for kind in (*make_demo.KINDS, *make_demo.UNSEEN)}
    assert len(orders) == len(make_demo.KINDS) + len(make_demo.UNSEEN)
    two_steps = [right for name, right in orders.items() if len(right) == 2]
    assert len(set(two_steps)) == len(two_steps)  # as the comment on UNSEEN says


def test_demonstrations_are_noisy_as_described():
    rng = random.Random(1)
    drawn = [make_demo.draw_demonstration(rng) for _ in range(6000)]
    plain = [completion for _, completion in drawn if "</" not in completion]
    assert 0.3 < len(plain) / len(drawn) <= 0.40
    assert sum("<think>" in completion for _, completion in drawn) / len(drawn) > 0.1
    assert sum(isinstance(prompt, str) for prompt, _ in drawn) / len(drawn) > 0.1
    assert all(has_strict_format(completion) for _, completion in drawn if completion.startswith("<reasoning>"))
    problems = [make_demo.draw_problem(rng, held_out=False) for _ in range(3000)]
    gold = [make_demo.solve(p.kind.right, p.named_numbers)[-1][1] for p in problems]
    shown = [
        make_demo.demonstrate(problem, rng, PromptFormat("", "", "{reasoning}\n= {answer}")) for problem in problems
    ]
    wrong = sum(str(answer) not in text.split()[-1] for answer, text in zip(gold, shown, strict=True))
    assert 0.3 < wrong / len(problems) < 0.6


def test_the_assets_are_small_and_the_model_is_stored_in_bf16():
    assert sum(path.stat().st_size for path in DEMO.rglob("*") if path.is_file()) < 8_000_000
    assert json.loads((DEMO / "model" / "config.json").read_text())["dtype"] == "bfloat16"
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {p.name for p in (DEMO / "model").iterdir()}


OTHER = pytest.param("demo_think", marks=pytest.mark.skipif(not LONG, reason="the long profile's"))


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["demo", OTHER])
def test_the_demo_learns_more_than_the_format(recipe):
    argv = ["--config", f"recipes/{recipe}.yaml", "--output_dir", Path("run").resolve()]
    done = command("train_grpo.py", argv, directory=ROOT, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    before, after = (json.loads(Path(f"run/eval_{when}.json").read_text()) for when in ("before", "after"))
    assert before["n"] == after["n"] == 200
    assert before["accuracy_strict"] <= 0.50 and after["accuracy_strict"] >= 0.90
    assert before["format_strict"] < 0.90 and after["format_strict"] >= 0.98
    assert after["accuracy_lenient"] >= before["accuracy_lenient"] + 0.30
    assert not Path("run/alarms.jsonl").exists()
    assert json.loads(Path("run/comparison.json").read_text())["verdict"] == "got_better"
