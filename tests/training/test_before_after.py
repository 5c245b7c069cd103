"""The same held-out questions are asked before and after training, whatever judges the answers."""

import html
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers_runs import LEARNS
from helpers_samples import answered

import train_grpo
from grpo.policy.evaluation import Evaluation, HeldOut
from grpo.results.by_kind import by_kind
from grpo.results.samples import read_samples
from grpo.results.summary import summarize
from grpo.runs.stop import Stop
from grpo.scoring.sample import Sample
from grpo.scoring.scorer import Scorer
from grpo.task import Task
from grpo.task.prompts import XML
from grpo.training.accuracy import AccuracyCurve, refused_golds, saved_evaluation
from grpo.training.causes import History


def test_only_a_whole_evaluation_of_the_same_questions_is_reused(tmp_path):
    rows = [{"question": "1 + 1?", "answer": "2"}, {"question": "1 + 2?", "answer": "3"}]
    lines = [json.dumps(row) + "\n" for row in rows]
    (tmp_path / "eval_before.json").write_text('{"n": 2, "measure": "a"}')

    def saved(text, measure="a", samples=1):
        (tmp_path / "completions_before.jsonl").write_text(text)
        return saved_evaluation(tmp_path, HeldOut(rows, Scorer(Task(XML), {}, {}), samples), measure)

    assert saved("".join(lines)) == Evaluation({"n": 2, "measure": "a"}, list(map(Sample.from_json, rows)))
    assert saved(lines[0]) is None and saved("".join(lines)[:-9]) is None  # killed while it was written
    assert saved("".join(lines), measure="b") is None and saved("".join(lines), samples=4) is None


def evaluated(text, *values):
    """An evaluation whose answers were all this wrong text, and whose one reward gave these values."""
    flags = dict.fromkeys(("strict", "lenient", "format_strict", "format_soft", "truncated"), False)
    answers = [
        answered(f"{place}?", "7", text, text, rewards={"own": value}, reward=value, tokens=3, **flags)
        for place, value in enumerate(values)
    ]
    return Evaluation(summarize(answers) | {"seconds": 1.0}, answers)


def test_the_comparison_needs_no_file_of_the_run(tmp_path, capsys):
    """A damaged file of logs costs it nothing: its history is in memory."""
    (tmp_path / "metrics.jsonl").write_text("{half a li\n")
    history = [{"step": step, "frac_reward_zero_std": 0.0, "loss": 0.0} for step in range(1, 13)]
    state = SimpleNamespace(global_step=12, log_history=history)
    trainer = SimpleNamespace(
        history=History(weights_moved=False, updates=12),
        state=state,
        weights_step=12,
        scorer=Scorer(Task(XML), {}, {}),
    )
    config = SimpleNamespace(script=SimpleNamespace(eval_by=None))
    run = SimpleNamespace(output=tmp_path, stop=Stop(), config=config)
    before, after = evaluated("6", 0.0, 0.5, 0.5), evaluated("8", 1.0, 1.0, None)
    AccuracyCurve.measure_after(SimpleNamespace(run=run, trainer=trainer, before=before, after=after))
    compared = json.loads((tmp_path / "comparison.json").read_text())
    assert compared["step"] == json.loads((tmp_path / "eval_after.json").read_text())["step"] == 12
    assert compared["reward"]["n"] == compared["rewards"]["own"]["n"] == 2 and compared["reward"]["difference"] == 0.75
    shown = " ".join(capsys.readouterr().out.split())
    assert "own │ 0.33 │ 1.00" in shown and "Likely cause: no sampled weight has changed in 12" in shown


def test_gold_answers_that_the_judge_refuses_are_said_with_the_rows_columns():
    golds = ["['6', '6 pens']"] * 3 + ["7"]
    answers = [answered(question="?", answer=gold, row={"unit": "km"}) for gold in golds]
    assert refused_golds(Task(XML), answers).startswith("3 of 4 gold answers are not accepted")
    assert refused_golds(Task(XML), answers[3:]) == ""
    judge = Task(XML, judge=lambda text, row: row["unit"] in text or "\n7\n" in text)
    assert refused_golds(judge, answers).startswith("3 of 4 gold answers are not accepted")
    of_another_column = Task(XML, judge=lambda text, row: row["unit"] in text)
    assert refused_golds(of_another_column, answers) == ""


def read(name):
    return json.loads((Path("run") / name).read_text())


def test_a_run_without_gold_answers_reports_rewards(tiny_run, write_jsonl):
    Path("own_style.py").write_text(
        "def brevity(completions, level, **_): return [each / 10 for each in level]\n"
        "def paced(completions, trainer_state, **_): return [trainer_state.max_steps * 9.0] * len(completions)\n"
    )
    # the last column is called like a figure of the evaluation
    asked = [
        {"prompt": [{"role": "user", "content": f"Write {n} words."}], "level": n, "tokens": 900} for n in range(40)
    ]
    words = ["--allow_custom_rewards", "true", "--reward_funcs"]
    words += ["own_style.brevity", "own_style.paced", "soft_format_reward_func"]
    assert train_grpo.main([*tiny_run(dataset_name=write_jsonl(asked), max_steps="1", eval_every="1"), *words]) == 0
    summary, compared = read("eval_after.json"), read("comparison.json")
    records = [json.loads(line) for line in Path("run/completions_after.jsonl").read_text().splitlines()]
    levels = [record["row"]["level"] / 10 for record in records]
    assert [record["rewards"]["brevity"] for record in records] == levels
    assert all(record["row"]["tokens"] == 900 and record["tokens"] < 900 for record in records)
    assert summary["reward_brevity"] == pytest.approx(sum(levels) / 10) and summary["reward"] > 0
    assert not any("accuracy" in key for key in summary) and summary["n"] == compared["n"] == 10
    assert compared["reward"]["difference"] == pytest.approx(summary["reward"] - read("eval_before.json")["reward"])
    assert "lenient" not in compared
    # one reward for all evaluations, although it follows the step in training
    metrics = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert compared["rewards"]["paced"]["difference"] == summary["reward_paced"] == 0
    assert {line["eval/reward_paced"] for line in metrics if "eval/reward_paced" in line} == {0}
    assert [line["rewards/paced/mean"] for line in metrics if "rewards/paced/mean" in line] == [9]
    for name in ("README.md", "report.html"):
        text = Path("run", name).read_text()
        assert "Reward, weighted sum" in text and "Accuracy, lenient" not in text


def test_kinds_of_questions_may_be_asked_for_later(tiny_run, write_jsonl, capsys):
    """They change neither what is learned nor what a figure rests on, and follow from the answers alone."""
    rows = [{"question": f"{n} + 1?", "answer": f"#### {n + 1}", "subject": "ab"[n % 2]} for n in range(40)]
    words = tiny_run(**LEARNS | {"dataset_name": write_jsonl(rows), "save_steps": "1", "eval_every": "1"})
    assert train_grpo.main(words) == 0
    weights, before = Path("run/model.safetensors").read_bytes(), read("eval_before.json")
    assert "by" not in read("comparison.json") and "by subject" not in capsys.readouterr().out
    assert train_grpo.main([*words, "--resume_from_checkpoint", "auto", "--eval_by", "subject"]) == 0
    out, compared = " ".join(capsys.readouterr().out.split()), read("comparison.json")
    assert "(eval_by changed)" in out and "reused from the start of the run" in out
    assert Path("run/model.safetensors").read_bytes() == weights and read("eval_before.json") == before
    pair = [read_samples(Path(f"run/completions_{when}.jsonl")) for when in ("before", "after")]
    assert compared["by"] == by_kind("subject", dict(zip(("before", "after"), pair, strict=True))).to_json()
    assert [kind["kind"] for kind in compared["by"]["kinds"]] == ["a", "b"]
    assert "2 kinds by subject: a " in out and "│ Accuracy, lenient, by subject" in out
    assert "Accuracy, lenient, by subject" in Path("run/report.html").read_text()


def test_a_judge_that_raises_gives_no_accuracy_but_the_reason(tiny_run, write_jsonl):
    """A judge that raises costs nobody the training; 0 % would be a result."""
    Path("my_judge.py").write_text("def reads_hint(text, row): return row['hint'] in text\n")
    rows = [{"question": f"{n} + 1?", "hint": str(n + 1)} for n in range(40)]
    words = tiny_run(
        dataset_name=write_jsonl(rows[:30]),
        eval_dataset_name=write_jsonl([{"question": row["question"]} for row in rows[30:]], "held_out.jsonl"),
        max_steps="2", eval_every="1", judge="my_judge.reads_hint", allow_custom_rewards="true",
    )  # fmt: skip
    assert train_grpo.main([*words, "--reward_funcs", "xmlcount_reward_func"]) == 0
    reason = "judge my_judge.reads_hint: KeyError: 'hint' (my_judge.py:1)"
    for name in ("eval_before", "eval_after"):
        summary = read(f"{name}.json")
        assert summary["judge_error"] == reason and not any("accuracy" in key for key in summary)
    assert read("comparison.json")["verdict"] == "no_accuracy" and reason in read("comparison.json")["sentence"]
    assert read("run.json")["status"] == "finished" and Path("run/model.safetensors").exists()
    for name in ("report.html", "README.md"):
        text = html.unescape(Path("run", name).read_text()).replace("`", "")  # in the card, names of files are code
        assert "No accuracy" in text and reason.removeprefix("judge ") in text
