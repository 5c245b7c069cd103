"""Several runs are compared in one table: their gains, the mean gain, and the settings that differ."""

import json
from pathlib import Path

import pytest
import scipy
from helpers_report import add_kinds, change, write_learner

from grpo.__main__ import main as tool
from grpo.results import comparison
from grpo.runs.facts import JUDGE


@pytest.fixture
def runs():
    """Three finished runs of one experiment, whose gains differ."""
    return [write_learner(Path(f"seed{seed}"), gain, seed=seed) for seed, gain in ((1, 2), (2, 4), (3, 5))]


def shown(capsys, *words):
    assert tool(["compare", *map(str, words)]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_the_table_has_gains_their_mean_and_what_differs(runs, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = shown(capsys, *runs)
    assert "seed1 50.0 → 62.5" in text and "+25.0" in text
    gain, mean = comparison.tango(2, 0, 8), scipy.stats.ttest_1samp([25.0, 50.0, 62.5], 0).confidence_interval(0.95)
    for low, high in ([100 * end for end in gain], mean):
        assert f"({low:+.1f} to {high:+.1f})".replace("-", "−") in text
    assert "mean gain +45.8" in text and text.endswith("What differs: seed: 1 | 2 | 3")
    other = write_learner(Path("other"), 3, seed=1, learning_rate=1e-4, eval_every=5)
    text = shown(capsys, runs[0], other)
    assert text.endswith("What differs: learning_rate: – | 0.0001") and "mean gain" not in text
    same = write_learner(Path("again"), 3, seed=1)
    assert "What differs" not in shown(capsys, runs[0], same)


def test_a_prompt_that_only_a_recipe_spells_out_is_the_same_prompt(runs, capsys):
    again = write_learner(Path("again"), 3, seed=1, system_prompt="Respond so:\nas above")
    assert "one experiment" in shown(capsys, runs[0], again)


def test_a_run_that_was_resumed_with_something_else_is_another_experiment(runs, capsys):
    """Its settings are those of its last session."""
    again = write_learner(Path("again"), 3, seed=1)
    assert "one experiment" in shown(capsys, runs[0], again)
    sessions = [{"from_step": 0}, {"from_step": 2, "changed": ["learning_rate 0.0001 → 0.0003", "the code of f"]}]
    change(again, sessions=sessions)
    text = shown(capsys, runs[0], again)
    assert "again was resumed, from step 2 on: learning_rate 0.0001 → 0.0003, the code of f" in text
    assert "one experiment" not in text and "mean gain" not in text


def test_an_unfinished_run_is_shown_without_a_gain(runs, capsys):
    for name in ("eval_after.json", "completions_after.jsonl", "comparison.json"):
        (runs[2] / name).unlink()
    change(runs[2], status="interrupted by SIGTERM")
    text = shown(capsys, *runs)
    assert "seed3 50.0 37.5 25.0 (interrupted by SIGTERM)" in text and "mean gain +37.5" in text


def test_what_no_setting_names_is_shown_and_makes_two_experiments(capsys):
    """Each label that both runs have, in its words; the rest of the script where nothing else differs."""
    first, other = (write_learner(Path(name), gain) for name, gain in (("a", 2), ("b", 4)))
    sources = {"system prompt": "1", "code of date_exact": "1", "rest of the script": "1"}
    change(first, sources=sources, data={"fingerprint": "1"})
    change(other, sources=sources, data={"fingerprint": "1"})
    said = shown(capsys, first, other)
    assert said.endswith("No setting that matters differs: one experiment, counted several times")
    assert "mean gain" in said
    for changed, words in (
        ({"system prompt": "2", "code of date_exact": "2", "rest of the script": "2"},
         "Other system prompt, other code in date_exact"),
        ({"rest of the script": "2"}, "Other rest of the script"),
    ):  # fmt: skip
        change(other, sources=sources | changed)
        said = shown(capsys, first, other)
        assert said.endswith(f"What differs: {words}") and "one experiment" not in said and "mean gain" not in said
    change(other, sources={key: sources[key] for key in ("system prompt", "code of date_exact")}, data={})
    assert "Other" not in shown(capsys, first, other)  # it is not known, since it ran in a notebook
    change(other, sources=sources, data={"fingerprint": "2"})
    assert shown(capsys, first, other).endswith("What differs: Other training rows")


def test_settings_that_teach_nothing_make_no_other_experiment(capsys):
    """What a resumed run may change, too, apart from its data and its questions."""
    first, other = (write_learner(Path(name), gain) for name, gain in (("a", 2), ("b", 4)))
    before = json.loads((first / "run.json").read_text())["settings"]
    harmless = {"stop_on_alarm": True, "push_to_hub": True, "save_steps": 7, "packed": False, "logging_steps": 9}
    change(other, settings=before | harmless | {"eval_every": 3})
    said = shown(capsys, first, other)
    assert "No setting that matters differs" in said and "mean gain" in said
    for key, value in (("eval_samples", 9), ("dataset_name", "other.csv"), ("learning_rate", 0.5)):
        change(other, settings=before | {key: value}, origin={key: "flag"})
        said = shown(capsys, first, other)
        assert f"What differs: {key}: " in said and "mean gain" not in said


def test_settings_of_one_version_alone_differ_only_if_they_are_used(capsys):
    """Removed ones, new ones of this project or of TRL: at their defaults they are a line, beside the versions."""
    first, other = (write_learner(Path(name), gain) for name, gain in (("a", 2), ("b", 4)))
    before = json.loads((first / "run.json").read_text())["settings"]
    change(first, settings=before | {"use_unsloth": False, "stages": None}, origin={"use_unsloth": "script"})
    change(other, settings=before | {"max_prompt_length": 256, "of_trl": 0.5}, origin={"max_prompt_length": "recipe"})
    change(first, versions={"trl": "1.15.0", "torch": "2.13"})
    change(other, versions={"trl": "1.16.0", "torch": "2.13"})
    said = shown(capsys, first, other)
    line = "only some have the settings use_unsloth, stages, max_prompt_length, of_trl, which no run uses"
    assert f"Versions: trl 1.15.0 | 1.16.0; {line} No setting that matters differs" in said and "mean gain" in said
    for key, value, source in (("of_trl", 0.5, "script"), ("max_prompt_length", 9, "recipe"), ("off", False, "flag")):
        change(other, settings=before | {key: value}, origin={key: source})
        assert shown(capsys, first, other).endswith(f"What differs: {key}: – | {value}")


def test_other_processes_or_another_length_make_another_experiment(capsys):
    first, other = (write_learner(Path(name), gain) for name, gain in (("a", 2), ("b", 4)))
    change(other, geometry={"world_size": 8})
    said = shown(capsys, first, other)
    assert "What differs: processes: 2 | 8" in said and "mean gain" not in said
    change(other, geometry={"world_size": 2}, status="stopped by an alarm", step=4)
    for name in ("eval_after.json", "comparison.json"):
        change(other, name, step=4)
    said = shown(capsys, first, other)
    assert "What differs: steps: 24 | 4" in said and "mean gain" not in said


def test_only_seeds_may_differ_between_runs_of_one_experiment(runs, capsys):
    change(runs[1], commit="another")
    said = shown(capsys, *runs)
    assert "mean gain" not in said and "commit: " in said and "seed: 1 | 2 | 3" in said


def test_later_runs_are_compared_with_the_first_question_by_question(runs, capsys):
    said = shown(capsys, *runs)
    low, high = (100 * end for end in comparison.tango(2, 0, 8))
    figures = f"+25.0 points (95 % interval {low:+.1f} to {high:+.1f}; 2 better, 0 worse)".replace("-", "−")
    assert f"After training, on the same 8 questions, seed2 against seed1: lenient {figures}, strict {figures}" in said
    assert "seed3 against seed1: lenient +37.5" in said


def rewrite(run, edit):
    """Edit the list of a run's answers after training."""
    path = run / "completions_after.jsonl"
    rows = edit([json.loads(line) for line in path.read_text().splitlines()])
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize("changed", [{"question": "another"}, {"answer": "8"}])
def test_other_questions_are_not_paired(changed, runs, capsys):
    rewrite(runs[1], lambda rows: [row | changed for row in rows])
    said = shown(capsys, *runs)
    assert "seed1 and seed2 answered other questions: their gains cannot be compared" in said
    assert "seed2 against" not in said and "seed3 against seed1" in said


def test_runs_are_compared_on_the_questions_that_both_answered(runs, capsys):
    """As after another `eval_samples`, which draws most of the same questions, in any order."""
    rewrite(runs[1], lambda rows: [{**rows[0], "question": "another"}, *rows[:3:-1]])  # 7, 6, 5, 4: two are right
    said = shown(capsys, *runs)
    assert "After training, on the 4 questions that both answered (of 8 and 5), seed2 against seed1" in said
    low, high = (100 * end for end in comparison.tango(2, 0, 4))
    figures = f"+50.0 points (95 % interval {low:+.1f} to {high:+.1f}; 2 better, 0 worse)".replace("-", "−")
    assert f"lenient {figures}" in said
    assert "on the same 8 questions, seed3 against seed1" in said


def test_a_question_asked_twice_is_paired_twice(runs, capsys):
    for run in runs:
        rewrite(run, lambda rows: [*rows, *rows])
    assert "on the same 16 questions, seed2 against seed1: lenient +25.0" in shown(capsys, *runs)


def test_other_judges_are_not_paired(runs, capsys):
    change(runs[1], "eval_after.json", judge="mine.is_right")
    sources = json.loads((runs[0] / "run.json").read_text())["sources"]
    change(runs[2], sources=sources | {"code of the judge mine.is_right": "1"})
    change(runs[2], "eval_after.json", judge="mine.is_right")
    said = shown(capsys, *runs)
    assert said.count("have other judges: their gains") == 2 and "against" not in said
    ours = sources | {"code of the judge mine.is_right": "1", "code in my_helpers.py": "1"}
    for label, said in (
        ("code of the judge mine.is_right", "have other judges"),
        ("code in my_helpers.py", "may have other judges (other code in my_helpers.py)"),
    ):
        change(runs[1], sources=ours | {label: "2"})
        change(runs[2], sources=ours)
        assert f"seed2 and seed3 {said}: their gains cannot be compared" in shown(capsys, runs[1], runs[2])


def test_answers_are_not_paired_that_other_rules_of_the_judge_read(runs, capsys):
    """Runs of 0.1.0 do not name the rule, which paid arithmetic that was left to it."""
    sources = json.loads((runs[0] / "run.json").read_text())["sources"]
    for run, rule in zip(runs, ({}, {JUDGE: "2"}, {JUDGE: "2"}), strict=True):
        change(run, sources={key: value for key, value in sources.items() if key != JUDGE} | rule)
    said = shown(capsys, *runs)
    for run in ("seed2", "seed3"):
        assert f"seed1 and {run} have other judges: their gains cannot be compared" in said
    assert "Other rule of the judge" in said
    assert "other judges" not in shown(capsys, *runs[1:])


@pytest.mark.parametrize("words", ["seed1", "seed1 ./seed1", "seed1 nothing", "seed1 empty", "seed1 seed2 --fast"])
def test_a_mistake_is_one_line_and_status_2(words, runs, capsys):
    for path in write_learner(Path("empty"), 1).glob("eval_*.json"):
        path.unlink()
    assert tool(["compare", *words.split()]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ") and captured.err.count("\n") == 1 and not captured.out


def test_copies_of_a_run_count_once(runs, capsys):
    """Seeds that change nothing, such as a setting without effect, would give an interval without width."""
    copies = [write_learner(Path(f"copy{seed}"), 2, seed=seed) for seed in (4, 5)]
    text = shown(capsys, runs[0], *copies)
    assert "copy4 has the same answers as seed1, letter by letter: they count as one run" in text
    assert "copy5 has the same answers as seed1" in text and "mean gain –" in text
    text = shown(capsys, *runs, copies[0])
    mean = scipy.stats.ttest_1samp([25.0, 50.0, 62.5], 0).confidence_interval(0.95)
    assert "mean gain +45.8" in text and f"({mean[0]:+.1f} to {mean[1]:+.1f})".replace("-", "−") in text


RESTS_ON = {  # a part of what a run rests on; what is said if it differs alone, and with what changes it anyway
    "further columns of the training rows": {"data": {"fingerprint": "2"}},
    "tokens of the prompts": {"sources": {"system prompt": "2", "tokens of the prompts": "2"}},
    "weights to begin with": {"settings": {"model_name_or_path": "other"}},
    "held-out questions": None,
}


@pytest.mark.parametrize("part", RESTS_ON)
def test_what_a_run_rests_on_is_compared(capsys, part):
    first, other = (write_learner(Path(name), gain) for name, gain in (("a", 2), ("b", 4)))
    change(first, sources={part: "1", "system prompt": "1"}, data={"fingerprint": "1"})
    change(other, sources={part: "2"}, data={"fingerprint": "1"})
    said = shown(capsys, first, other)
    assert said.endswith(f"What differs: Other {part}") and "mean gain" not in said
    if cause := RESTS_ON[part]:
        settings = json.loads((other / "run.json").read_text())["settings"]
        change(other, **cause | ({"settings": settings | cause["settings"]} if "settings" in cause else {}))
        said = shown(capsys, first, other)
        assert part not in said and "What differs" in said
    change(other, sources={}, settings=json.loads((first / "run.json").read_text())["settings"])
    change(other, data={"fingerprint": "1"})  # a record of an earlier version
    assert "What differs" not in shown(capsys, first, other)


@pytest.mark.parametrize("other", [{"reward_funcs": ["x"]}, {"reward_weights": [0.5]}, {"reward_args": {"f": {}}}])
def test_values_of_other_rewards_share_no_column(runs, capsys, other):
    again = write_learner(Path("again"), 3, seed=1)
    for run in (runs[0], again):
        for when in ("before", "after"):
            change(run, f"eval_{when}.json", reward=1.25)
    assert "1.25 → 1.25" in shown(capsys, runs[0], again)
    change(again, settings=json.loads((again / "run.json").read_text())["settings"] | other)
    change(again, origin=dict.fromkeys(other, "flag"))
    assert "1.25" not in shown(capsys, runs[0], again)


def test_kinds_of_questions_have_a_row_of_each_run_and_a_line_against_the_first(runs, capsys, monkeypatch):
    """By the column of the runs that have it, since the others' answers name it, too."""
    monkeypatch.setenv("COLUMNS", "200")
    for run in runs:
        add_kinds(run, ["algebra", "sets"])
    for run in runs[1:]:
        change(run, settings=json.loads((run / "run.json").read_text())["settings"] | {"eval_by": None})
    said = shown(capsys, *runs)
    assert "Accuracy, lenient, by subject seed1 seed2 seed3 mean gain" in said
    low, high = (f"{100 * end:+.1f}".replace("-", "−") for end in comparison.tango(1, 0, 4))
    assert "algebra (4) 25.0 → 50.0 25.0 → 75.0 25.0 → 100.0 +50.0" in said  # the mean of 25, 50 and 75
    assert said.count("too few to tell") >= 6
    line = f"lenient +25.0 points (95 % interval {low} to {high}; 1 better, 0 worse), too few to tell"
    assert f"algebra (4): {line} sets (4): {line}" in said
    change(runs[1], settings=json.loads((runs[1] / "run.json").read_text())["settings"] | {"eval_by": "level"})
    said = shown(capsys, *runs)
    assert "No accuracy by kind of question: eval_by is subject in seed1, level in seed2" in said
    assert "algebra" not in said and "What differs: seed: 1 | 2 | 3" in said


def test_a_run_without_the_column_has_no_kinds(runs, capsys):
    add_kinds(runs[0], ["algebra"])
    said = shown(capsys, *runs[:2])
    assert "algebra (8) 25.0 → 50.0 – " in said and "– –" not in said.partition("algebra (8)")[0]
    assert "algebra" not in shown(capsys, *runs[1:])


def test_a_judge_of_ones_own_pairs_the_rows_that_it_reads(runs, capsys):
    """The same question with another tolerance is another question."""
    for run in runs[:2]:
        change(run, "eval_after.json", judge="mine.near")
    assert "After training, on the same 8 questions" in shown(capsys, *runs[:2])
    path = runs[1] / "completions_after.jsonl"
    lines = [json.loads(line) | {"row": {"tolerance": 50}} for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert "seed1 and seed2 answered other questions" in shown(capsys, *runs[:2])
