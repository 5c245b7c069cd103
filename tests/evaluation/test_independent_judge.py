"""benchmarks/independent_judge.py: what it reads of runs, and why two judges disagree; the harness has a stand-in.

Where lm-eval is installed, it judges, too: python -m pytest -n 0 tests/evaluation/test_independent_judge.py
"""

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest
from helpers_report import write_run
from helpers_runs import DEMO, LEARNS, ROOT, TINY, flags

import rewards
import train_grpo

sys.path.insert(0, str(ROOT / "benchmarks"))
import independent_judge
from independent_judge import RULES, UNEXPLAINED, Answers

INSTALLED = importlib.util.find_spec("lm_eval") is not None


def stand_in(texts, golds):
    """The last figures of a text, with signs, points and commas, or those after the first "#### ", as text."""

    def last(text):
        found = [each for each in re.findall(r"-?[$\d.,]+", text) if len(each) > 1 or each.isdigit()]
        return found[-1] if found else "[invalid]"

    def first(text):
        found = re.search(r"#### (-?[\d.,]+)", text)
        return found[1] if found else "[invalid]"

    def right(taken, gold):
        return re.sub(r"\.$", "", re.sub("[,$]", "", taken)) == gold

    takers = {"strict-match": first, "flexible-extract": last}
    return {
        name: [(take(text), right(take(text), gold)) for text, gold in zip(texts, golds, strict=True)]
        for name, take in takers.items()
    }


def answers_to(text, gold, pattern="xml", **own):
    verdicts = {name: rule.ours(text, gold, pattern) for name, rule in RULES.items()}
    record = {"question": "?", "answer": gold, "completion": text, "truncated": False, **verdicts, **own}
    return Answers("run", "after", [record], pattern)


def reasons_of(answers, harness):
    found = independent_judge.compare(answers, harness).disagreements
    reasons = independent_judge.explain(found, harness)
    return {each.rule: reason for each, reason in zip(found, reasons, strict=True)}


DISAGREE = [  # completion, gold answer, answer pattern, our rule, part of the reason
    ("<answer>5.0</answer>", "5", "xml", "lenient", "zeros: 5.0, 05 and 5"),
    ("So she has 2.50 left.", "2.5", "xml", "lenient", "zeros: 5.0, 05 and 5"),
    ("The answer is 072", "72", "xml", "lenient", "zeros: 5.0, 05 and 5"),
    ("The answer is 144/2", "72", "xml", "lenient", "an expression such as 144/2"),
    ("<answer>16 + 2 + 16", "34", "xml", "lenient", "an expression such as 144/2"),
    ("<answer>144/2 kg</answer>", "72", "xml", "lenient", "an expression such as 144/2"),
    ("It rose by 50%", "0.5", "xml", "lenient", "a percentage"),
    ("The answer is 72...", "72", "xml", "lenient", "punctuation that the harness takes"),
    ("There are 2, 3, or 7", "7", "xml", "lenient", "the last number is not alone"),
    ("They are 1,2", "2", "xml", "lenient", "a comma that separates no thousands"),
    ("So it is 23-5", "5", "xml", "lenient", "a minus behind a number"),
    ("<answer>72 cm^2</answer>", "72", "xml", "lenient", "a power of a unit"),
    ("<answer>72</answer> That took 3 steps.", "72", "xml", "lenient", "a number after the answer"),
    ("<answer>72 or 71</answer>", "71", "xml", "lenient", "the last number is not alone"),
    ("The answer is not 72", "72", "xml", "lenient", "the last number is not alone"),
    ("#### $18", "18", "hash", "strict", "a dollar sign after ####"),
    ("####18", "18", "hash", "strict", "no single space after ####"),
    ("####\n18", "18", "hash", "strict", "no single space after ####"),
    ("#### 9\nNo, wait:\n#### 18", "18", "hash", "strict", "several ####"),
    ("#### 18 apples", "18", "hash", "strict", "text after the number"),
    ("<answer>1,000</answer>", "1000", "xml", "strict", "thousands separators"),
    ("<answer>18.</answer>", "18", "xml", "strict", "text after the number"),
    ("So:\n#### 72", "72", "xml", "strict", "#### where the run's format has another mark"),
    ("72", "72", "xml", "strict", "a number and no mark"),
    ("72", "72", "boxed", "strict", "a number and no mark"),
    ("20", "20", "hash", "strict", "a number and no mark"),
    ("<answer>1,000 kg</answer>", "1000", "xml", "strict", "thousands separators"),
]


@pytest.mark.parametrize("text, gold, pattern, rule, reason", DISAGREE, ids=[case[0] for case in DISAGREE])
def test_a_disagreement_has_the_reason_that_removes_it(text, gold, pattern, rule, reason):
    assert reason in reasons_of(answers_to(text, gold, pattern), stand_in)[rule]


def test_every_reason_has_an_example():
    assert {
        each.says for each in independent_judge.REASONS if not any(case[4] in each.says for case in DISAGREE)
    } == set()


def test_two_reasons_together_are_both_named():
    reason = reasons_of(answers_to("<answer>5.0</answer> in 3 steps.", "5"), stand_in)["lenient"]
    assert "zeros: 5.0, 05 and 5" in reason and "a number after the answer" in reason


def test_what_no_reason_removes_is_unexplained():
    def contrary(texts, golds):
        return {name: [(taken, not right) for taken, right in found] for name, found in stand_in(texts, golds).items()}

    assert reasons_of(answers_to("<answer>72</answer>", "72"), contrary)["lenient"] == UNEXPLAINED


def test_a_verdict_of_other_rules_is_called_so():
    answers = answers_to("<answer>72</answer>", "72", strict=True, lenient=False)
    assert reasons_of(answers, stand_in) == {"lenient": independent_judge.OTHER_RULES}


@pytest.mark.parametrize("text", ["<answer>72</answer>", "so it is 72", "20% of 72", "no idea", "", "71"])
@pytest.mark.parametrize("pattern", ["xml", "hash"])
def test_judges_that_agree_have_no_disagreement(text, pattern):
    assert independent_judge.compare(answers_to(text, "72", pattern), stand_in).disagreements == []


def test_strict_match_gets_the_answer_behind_hashes():
    compared = independent_judge.compare(answers_to("2 + 70\n<answer>\n72\n</answer>\n", "72"), stand_in)
    assert compared.as_written["strict-match"] == [("[invalid]", False)]
    assert compared.theirs == {"strict": [True], "lenient": [True]}
    seen = []
    independent_judge.compare(answers_to("#### 72", "72", "hash"), lambda *got: (seen.append(got), stand_in(*got))[1])
    assert seen == [(["#### 72"], ["72"])]  # as it is written, and once


def judged_run(path, **changed):
    run = write_run(path)
    record = {"question": "?", "answer": "7", "completion": "<answer>7</answer>", "strict": True, "lenient": True}
    for when in ("before", "after"):
        line = json.dumps({**record, "truncated": False, **changed})
        (run / f"completions_{when}.jsonl").write_text(line + "\n")
    return run


def test_a_run_is_read_with_its_pattern(tmp_path):
    run = judged_run(tmp_path / "run")
    record = json.loads((run / "run.json").read_text())
    record["prompt"]["pattern"] = "boxed"
    (run / "run.json").write_text(json.dumps(record))
    found = independent_judge.read_run(run)
    assert [(each.when, each.pattern, len(each.records)) for each in found] == [
        ("before", "boxed", 1),
        ("after", "boxed", 1),
    ]


def test_solutions_are_completions_of_their_own(tmp_path):
    file = tmp_path / "rows.jsonl"
    rows = [
        {"question": "?", "answer": "2 * 500 = <<2*500=1000>>1000\n#### 1,000"},
        {"question": "?", "answer": "#### -3"},
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = independent_judge.read_solutions(file)
    assert found.column("answer") == ["1000", "-3"] and found.column("strict") == found.column("lenient") == [True] * 2
    assert independent_judge.compare(found, stand_in).disagreements == []


def without_answers(run):
    for file in run.glob("completions_*.jsonl"):
        file.unlink()


def by_own_judge(run):
    summary = json.loads((run / "eval_before.json").read_text())
    (run / "eval_before.json").write_text(json.dumps({**summary, "judge": "mine.is_right"}))


MISTAKES = [
    ([], None, "name a RUN or --solutions FILE"),
    (["--model", "--solutions", "x"], None, "--model needs a RUN"),
    (["nowhere"], None, "'nowhere' holds no run"),
    (["run"], without_answers, "'run' holds no answers"),
    (["run"], by_own_judge, "'run' was judged by mine.is_right"),
    (["run"], lambda run: judged_run(run, answer="Paris"), "'run' has the gold answer 'Paris'"),
    (["run"], lambda run: (run / "completions_after.jsonl").write_text('{"answer": "7"}\n'), "holds no verdicts"),
    (
        ["--solutions", "run/README.md"],
        lambda run: (run / "README.md").write_text('{"answer": "7"}\n'),
        "'7' has no ####",
    ),
]


@pytest.mark.parametrize("argv, change, message", MISTAKES, ids=[case[2] for case in MISTAKES])
def test_a_mistake_is_one_line_and_status_two(monkeypatch, tmp_path, capsys, argv, change, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(independent_judge.importlib.util, "find_spec", lambda name: True)
    run = judged_run(Path("run"))
    if change:
        change(run)
    assert independent_judge.main(argv) == 2
    out, error = capsys.readouterr()
    assert message in error and error.startswith("error: ") and error.count("\n") == 1 and not out


def test_without_the_harness_one_line_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr(independent_judge.importlib.util, "find_spec", lambda name: None)
    assert independent_judge.main(["run"]) == 2
    assert "pip install lm-eval" in capsys.readouterr().err


def test_the_table_and_every_disagreement_are_printed(monkeypatch, tmp_path, capsys):
    run = judged_run(tmp_path / "run", completion="\x1b[1m<answer>7</answer> in 2 steps", truncated=True)
    monkeypatch.setattr(independent_judge, "kappa", lambda ours, theirs: None)
    compared = [independent_judge.compare(each, stand_in) for each in independent_judge.read_run(run)]
    independent_judge.table(compared)
    independent_judge.disagreements(compared, stand_in)
    shown = capsys.readouterr().out
    assert "2 disagreements:\n     2  a number after the answer, which the harness takes" in shown
    assert shown.count("answer 1: right by lenient, wrong by flexible-extract, which takes '2'; gold '7'") == 2
    assert shown.count("</answer> in 2 steps' (cut off)") == 2 and "\x1b[1m<" not in shown


needs_harness = pytest.mark.skipif(not INSTALLED, reason="needs lm-eval")


@needs_harness
@pytest.mark.slow
@pytest.mark.parametrize(
    "more", [{}, {"num_shots": "2"}, {"use_chat_template": "false"}], ids=["chat", "shots", "plain"]
)
def test_the_harness_gets_the_prompts_and_completions_of_a_run(capsys, more):
    held_out = {"eval_dataset_name": str(DEMO / "test.jsonl"), "eval_samples": "8", "eval_only": "true"}
    assert train_grpo.main(flags(**{**TINY, **LEARNS, **held_out, **more})) == 0
    assert independent_judge.main(["--model", "run"]) == 0
    assert "Prompts: all 8 token for token the run's. Completions: 100.0 % identical" in capsys.readouterr().out


@needs_harness
@pytest.mark.slow
def test_the_harness_adds_an_adapter_to_its_model(learned_adapter, capsys):
    assert independent_judge.main(["--model", str(learned_adapter.path)]) == 0
    assert "Completions: 100.0 % identical" in capsys.readouterr().out


@needs_harness
@pytest.mark.slow
def test_the_harness_itself_gives_the_same_reasons():
    for text, gold, pattern, rule, reason in DISAGREE:
        assert reason in reasons_of(answers_to(text, gold, pattern), independent_judge.harness)[rule], text


@needs_harness
@pytest.mark.slow
def test_the_harness_agrees_on_plain_answers():
    texts = [f"{n} + 1 = {n + 1}\n#### {n + 1}" for n in range(0, 3000, 300)]
    golds = [str(n + 1) for n in range(0, 3000, 300)]
    found = independent_judge.harness(texts, golds)
    assert all(right for verdicts in found.values() for _, right in verdicts)
    assert all(rewards.is_right(text, gold, "hash") for text, gold in zip(texts, golds, strict=True))
