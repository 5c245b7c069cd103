"""Preflight names rewards and judges that fail or cannot teach, with a remedy, and shows what each reward gives."""

import json
from types import SimpleNamespace

import pytest
from rich.console import Console
from test_reward_trial import FIVE, ROW, TASK, constant, try_out
from trl.rewards import get_repetition_penalty_reward

from examples import more_rewards
from grpo.preflight import reward_checks
from grpo.preflight.plan import Plan
from grpo.preflight.reward_trial import Trial, completions_table, perturbed, rewards_table, sums
from grpo.task import PromptFormat, Task
from grpo.task.prompts import XML
from rewards import REWARD_FUNCS


def planned(rewards, row=ROW, reasoning="5 + 4 = <<5+4=9>>9", **weights):
    """The part of preflight's plan that the checks of rewards read."""
    tried = try_out(row, reasoning, **rewards)
    trial = Trial(texts=next(iter(tried.values())), values=tried, weights=dict.fromkeys(rewards, 1.0) | weights)
    data = SimpleNamespace(train=SimpleNamespace(column_names=list(row)))
    return SimpleNamespace(trial=trial, task=TASK, data=data, rewards=rewards)


def checked(rewards, **options):
    """The checks of rewards, by name."""
    plan = planned(rewards, **options)
    return {
        check.name: check
        for about in (reward_checks.about_rewards, reward_checks.about_all_rewards)
        for check in about(plan)
    }


def test_rewards_that_teach_are_ok():
    assert {name: check.status for name, check in checked(FIVE).items()} == {"all rewards": "ok"}
    shaped = {"soft": REWARD_FUNCS["soft_format_reward_func"]}
    assert checked(shaped, row={**ROW, "answer": None}, reasoning="")["all rewards"].status == "ok"


def test_the_matrix_has_every_reward_and_their_sum(capsys):
    def sometimes(completions, **kwargs):
        return [float(len(completion[0]["content"].split("<answer>")[1])) for completion in completions]

    rewards = {**FIVE, "sometimes": sometimes}
    Console(width=80).print(rewards_table(planned(rewards, int_reward_func=0.5).trial))
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["correctness", "2", "0", "0", "2", "0"] in rows
    assert ["int", "×", "0.5", "0.5", "0.5", "0", "0.5", "0"] in rows
    assert ["sometimes", "13", "13", "fails", "38", "fails"] in rows
    assert rows[-1] == ["weighted", "sum", "16.8", "14.8", "–", "41.2", "–"]  # as in training, none where one fails
    check, line = checked(rewards)["reward sometimes"], sometimes.__code__.co_firstlineno + 1
    assert (
        f"IndexError: list index out of range (test_reward_checks.py:{line}) on 'no tags' and 'empty'" in check.finding
    )


def test_sums_that_differ_by_rounding_earn_the_same():
    """A right answer earns 0.1 and 0.2, a wrong one 0.3 and 0: in Python the first sum is larger."""

    def paying(right, wrong):
        def reward(completions, **kwargs):
            return [
                right if ">9<" in "".join(completion[0]["content"].split()) else wrong for completion in completions
            ]

        return reward

    found = checked({"one": paying(0.1, 0.3), "other": paying(0.2, 0.0)})
    assert "they all earn the same" in found["all rewards"].remedy


def of_json(completions, **kwargs):
    return [json.loads("{") for _ in completions]


def of_eight(completions, **kwargs):
    return [float("nan") if "8" in completion[0]["content"] else 1.0 for completion in completions]


def of_solution(completions, solution, **kwargs):
    return [1.0] * len(completions)


def of_another(completions, **kwargs):
    return of_solution(completions)


class OfLevel:
    def __call__(self, completions, *, level, **kwargs):
        return [1.0] * len(completions)


async def of_a_server(completions, **kwargs):
    raise KeyError("server")


COLUMNS = "it gets prompts, completions, completion_ids, answer, other: use these names"
FAILING = [  # a reward, what is said of it, and the remedy
    (
        of_json,
        f"(test_reward_checks.py:{of_json.__code__.co_firstlineno + 1})",
        "fix it",
    ),  # the user's line, no library's
    (of_eight, "nan on 'wrong answer'", "fix it"),
    (of_a_server, "KeyError: 'server'", "fix it"),
    (lambda completions, **kwargs: "words", "'words'", "fix it"),
    (lambda completions, **kwargs: None, "None", "fix it"),
    (lambda completions: [1.0] * len(completions), "unexpected keyword", "add **kwargs to its parameters"),
    (of_solution, "'solution'", COLUMNS),
    (OfLevel(), "'level'", COLUMNS),
    (of_another, "'solution'", "fix it"),  # its own call, which no column helps
]


@pytest.mark.parametrize(("reward", "finding", "remedy"), FAILING)
def test_a_reward_that_fails_is_an_error_that_says_what(reward, finding, remedy):
    name = getattr(reward, "__name__", "OfLevel")
    by_name = checked({name: reward, **FIVE})
    check = by_name[f"reward {name}"]
    assert check.status == "error" and finding in check.finding and check.remedy == remedy
    assert by_name["all rewards"].status == "ok"
    assert "all rewards" not in checked({name: reward})


def test_a_reward_that_tells_nothing_apart_is_named():
    debug = {"debug_reward_func": more_rewards.debug_reward_func}
    by_name = checked({"constant": constant, **debug, **FIVE})
    assert {name for name, check in by_name.items() if check.status == "warning"} == {
        "reward constant",
        "reward debug",
    }
    for row in (ROW, {**ROW, "answer": None}):
        assert checked({"constant": constant}, row=row)["all rewards"].status == "warning"


def words(completions, **kwargs):
    return [-len(completion[0]["content"].split()) for completion in completions]


def wrong_is_better(completions, answer, **kwargs):
    return [2.0 - value for value in REWARD_FUNCS["correctness_reward_func"](completions, answer)]


def test_a_reward_that_prefers_a_wrong_answer_is_a_warning():
    check = checked({"wrong_is_better": wrong_is_better, **FIVE})["reward wrong_is_better"]
    assert check.status == "warning" and "a wrong answer in perfect form earns 2, the right one 0" in check.finding
    assert "reward wrong_is_better" not in checked({"wrong_is_better": wrong_is_better}, wrong_is_better=-1.0)


@pytest.mark.parametrize("gold", ["9", "99", "-1", "Paris", "9 days", "0.5"])
def test_a_reward_for_the_form_prefers_nothing(gold):
    rewards = {reward.__name__: reward for reward in (get_repetition_penalty_reward(2, -1.0), words)}
    rewards["length_reward_func"] = more_rewards.length_reward_func
    for reasoning in ("", f"it is {gold}", "word " * 30, "word " * 450):
        by_name = checked(rewards, row={**ROW, "answer": gold}, reasoning=reasoning)
        assert not any("form earns" in by_name[name].finding for name in by_name if name != "all rewards")


def test_the_test_completions_are_shown_within_80_columns(capsys):
    texts = perturbed("It takes [bold] steps. " * 9, "2007-04-13", TASK)
    Console(width=80).print(completions_table(texts))
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80 and "(no text)" in shown
    first, _, others = "".join(shown.split()).partition("wronganswer")
    assert first.replace("↵", "") == "".join(f"perfect{texts['perfect']}".split())
    assert "<answer>↵2007-04-14↵</answer>" in others


def raises_on_empty(completions, answer, **kwargs):
    return [2.0 * (answer[0] in completion[0]["content"].split()[-2]) for completion in completions]


def test_a_fault_costs_the_sum_of_its_completion_alone():
    """As in training, where a row on which one fails has no reward."""
    plan = planned({"judge": raises_on_empty, "soft": REWARD_FUNCS["soft_format_reward_func"]})
    total = sums(plan.trial)
    assert total == {"perfect": 2.5, "wrong answer": 0.5, "no tags": 0.0, "extra text": 0.5}
    (check,) = reward_checks.about_all_rewards(plan)
    assert (check.status, check.finding) == ("ok", "perfect earns 2.5, a wrong answer in perfect form 0.5")


def judged_plan(task, row, wrong=""):
    """The part of preflight's plan that the check of a judge reads."""
    return Plan(None, None, task, SimpleNamespace(rows=[row], wrong_answer=wrong), {})


@pytest.mark.parametrize(
    ("judge", "status"),
    [(lambda text, row: "billing" in text, "ok"), (lambda text, row: text in ("billing", "account"), "warning")],
)
def test_a_judge_of_labels_is_tried_on_another_label(judge, status):
    task = Task(PromptFormat("", completion="{answer}", pattern="text"), judge=judge, judge_name="mine")
    (check,) = reward_checks.about_judge(judged_plan(task, {"question": "a", "answer": "billing"}, "account"))
    assert check.status == status


GOLD = {"question": "2 + 2?", "answer": "4", "prompt": "2 + 2?"}
JUDGES = [  # a judge, the row's gold answer, and what is said of it
    (lambda text, row: "<answer>\n4\n" in text, "4", "ok", "perfect, extra text"),  # those that it finds right
    (lambda text, row: True, "4", "warning", "perfect, wrong answer"),
    (lambda text, row: False, "4", "warning", "none of them"),
    (lambda text, row: False, None, "ok", "none of them"),
    (lambda text, row: 0.5, "4", "error", "0.5"),  # neither right nor wrong
    (lambda text, row: row["x"], "4", "error", "KeyError: 'x' (test_reward_checks.py:"),
]


@pytest.mark.parametrize(("judge", "gold", "status", "finding"), JUDGES)
def test_a_judge_of_ones_own_is_tried(judge, gold, status, finding):
    task = Task(XML, judge=judge, judge_name="mine")
    (check,) = reward_checks.about_judge(judged_plan(task, {**GOLD, "answer": gold}))
    assert check.status == status and finding in check.finding
    assert not list(reward_checks.about_judge(judged_plan(TASK, GOLD)))
