"""grpo/console.py: what is shown is readable."""

from grpo.config.preflight import print_checks
from grpo.core.check import Check
from grpo.evaluation import evaluate
from grpo.evaluation.evaluate import print_evaluations
from grpo.training.console import SampleTable, describe

LOGS = {
    "loss": float("nan"),
    "reward": 2.4375,
    "reward_std": 1.5,
    "rewards/correctness_reward_func/mean": 0.88,
    "rewards/correctness_reward_func/std": 1.0,
    "rewards/my_own/mean": None,
    "completions/mean_length": 30.4,
    "completions/clipped_ratio": 0.25,
}


def test_a_log_is_one_line_with_the_rewards_by_name():
    line = describe(7, LOGS)
    assert line == "step    7  reward 2.44 ± 1.50 = correctness 0.88 my_own - · length 30, 25 % cut"


def test_a_log_of_one_stage_of_several_names_it_and_leaves_out_the_rewards_of_others():
    logs = {**LOGS, "stage": 2.0, "reward_weights/correctness_reward_func": 1.5, "reward_weights/my_own": 0.0}
    line = describe(7, logs, ["format", "correctness"])
    assert line == "step    7 correctness  reward 2.44 ± 1.50 = correctness 0.88 · length 30, 25 % cut"


def test_samples_show_the_question_the_completion_and_every_reward_a_tenth_of_the_time(capsys):
    table = SampleTable(total_steps=100)
    prompt = [{"role": "system", "content": "SYSTEM"}, {"role": "user", "content": "What is [2] + 2?"}]
    completion = [{"role": "assistant", "content": "<answer>\n4\n</answer>\n"}]
    for step in range(1, 101):
        table([prompt] * 4, [completion] * 4, {"correctness_reward_func": [2.0] * 4}, [0.7] * 4, step, 2)
    shown = capsys.readouterr().out
    assert shown.count("What is [2] + 2?") == 2 * 10
    assert "SYSTEM" not in shown and "correctness 2.00" in shown and "advantage +0.70" in shown


def test_a_long_completion_is_shortened_and_says_so(capsys):
    SampleTable(1, longest=50)(["prompt"], ["x" * 1000], {}, [0.0], 1)
    shown = capsys.readouterr().out
    assert shown.count("x") == 50 and "…" in shown


def record(strict, lenient, format_strict, samples=None):
    flags = {"strict": strict, "lenient": lenient, "format_strict": format_strict, "format_soft": format_strict}
    more = {} if samples is None else {"samples": samples, "answer": "4"}
    return {**flags, "truncated": False, "length": 10, **more}


def test_two_evaluations_beside_each_other_fit_80_columns_and_show_the_change(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    before = evaluate.summarize([record(False, True, False)] * 4)
    after = evaluate.summarize([record(True, True, True)] * 4)
    print_evaluations({"before": before, "after": after}, "It learned the tags.")
    shown = capsys.readouterr().out
    assert "accuracy, strict" in shown and "+100.0" in shown and "4 held-out questions" in shown
    assert "100.0 (51-100)" in shown and all(len(line) <= 80 for line in shown.splitlines())
    assert "It learned the tags." in shown and "maj@" not in shown


def test_one_evaluation_alone_with_samples(capsys):
    summary = evaluate.summarize([record(True, True, True, ["4", "4", "5"])] * 4)
    print_evaluations({"some/model": summary})
    shown = capsys.readouterr().out
    assert "some/model" in shown and "maj@3" in shown and "pass@3" in shown and "change" not in shown


def test_the_table_of_checks_shows_findings_and_remedies_whatever_they_hold(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    print_checks([Check("ok", "one", "[fine]"), Check("warning", "two", "odd", "mend [it]")], "[/bold] <|prompt|>")
    shown = capsys.readouterr().out
    assert "[fine]" in shown and "→ mend [it]" in shown and "[/bold] <|prompt|>" in shown
    assert all(len(line) <= 80 for line in shown.splitlines())
