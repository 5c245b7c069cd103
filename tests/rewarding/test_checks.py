"""Preflight names the rewards that fail, tell nothing apart, or pay for what is wrong, each with its remedy."""

import asyncio
import json
from types import SimpleNamespace

import pytest
from rich.console import Console
from trl.rewards import get_repetition_penalty_reward

from grpo.core.checklist import Trial
from grpo.rewarding import checks
from grpo.rewarding.probe import perturbed, try_rewards
from grpo.task import Task
from grpo.task.prompts import XML
from rewards import REWARD_FUNCS

TASK = Task(XML)
FIVE = dict(list(REWARD_FUNCS.items())[:5])
ROW = {"prompt": [{"role": "user", "content": "5 + 4?"}], "answer": "9", "other": 3}


def planned(rewards, row=ROW, reasoning="5 + 4 = <<5+4=9>>9", task=TASK, **weights):
    """The part of preflight's plan that the checks of rewards read; a token is a word."""
    values, changed, exact = try_rewards(rewards, row, reasoning, task, str.split)
    texts = perturbed(reasoning, row["answer"], task)
    trial = Trial(texts, values, changed, exact, dict.fromkeys(rewards, 1.0) | weights)
    data = SimpleNamespace(train=SimpleNamespace(column_names=list(row)))
    return SimpleNamespace(task=task, data=data, rewards=rewards, trial=trial, first_row=row)


def checked(rewards, **options):
    plan = planned(rewards, **options)
    return {check.name: check for about in (checks.about_rewards, checks.about_all_rewards) for check in about(plan)}


def constant(completions, **kwargs):
    return [1.0] * len(completions)


def test_the_five_are_sound():
    assert {check.status for check in checked(FIVE).values()} == {"ok"}


def test_the_matrix_has_every_reward_and_their_sum(capsys):
    def sometimes(completions, **kwargs):
        return [float(len(completion[0]["content"].split("<answer>")[1])) for completion in completions]

    rewards = {**FIVE, "sometimes": sometimes}
    Console(width=80).print(checks.matrix(planned(rewards, int_reward_func=0.5).trial))
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["correctness", "2", "0", "0", "2", "0"] in rows
    assert ["int", "×", "0.5", "0.5", "0.5", "0", "0.5", "0"] in rows
    assert ["sometimes", "13", "13", "raises", "38", "raises"] in rows
    assert rows[-1] == ["weighted", "sum", "3.75", "1.75", "0", "3.2", "0"]  # of those that do not fail
    found, line = checked(rewards)["reward sometimes"], sometimes.__code__.co_firstlineno + 1
    assert found.status == "error"
    assert f"IndexError: list index out of range (test_checks.py:{line}) on 'no tags' and 'empty'" in found.finding


@pytest.mark.parametrize(("gold", "wrong"), [("9", "8"), ("2007-04-13", "not 2007-04-13"), (None, None)])
def test_the_test_completions_are_shown_within_80_columns(gold, wrong, capsys):
    texts = perturbed("It takes [bold] steps. " * 20, gold, TASK)
    Console(width=80).print(checks.listing(texts))
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 80 and [line for line in lines if line.startswith("empty") and "(no text)" in line]
    first = "".join(shown.partition("wrong" if gold else "no tags")[0].split()).replace("↵", "")
    assert first == "".join((next(iter(texts)) + next(iter(texts.values()))).split())
    if wrong:
        _, _, rest = shown.partition("wrong answer")
        assert f"<answer>↵ {wrong}↵ </answer>" in " ".join(rest.partition("no tags")[0].split())


# --- Rewards that teach nothing, or what is wrong


def test_a_reward_that_tells_nothing_apart_is_named():
    found = checked({"constant": constant, "debug_reward_func": REWARD_FUNCS["debug_reward_func"], **FIVE})
    warned = {name for name, check in found.items() if check.status == "warning"}
    assert warned == {"reward constant", "reward debug"} and "moves no advantage" in found["reward debug"].remedy
    assert checked({"constant": constant})["all rewards"].status == "warning"
    with_unit = checked(FIVE, row={**ROW, "answer": "9 days"}, reasoning="")
    assert "gives 0 to every test completion" in with_unit["reward int"].finding


def words(completions, **kwargs):
    return [-len(completion[0]["content"].split()) for completion in completions]


def wrong_is_better(completions, answer, **kwargs):
    return [2.0 - value for value in REWARD_FUNCS["correctness_reward_func"](completions, answer)]


def test_a_reward_that_prefers_a_wrong_answer_is_a_warning():
    found = checked({"wrong_is_better": wrong_is_better, **FIVE})["reward wrong_is_better"]
    assert found.status == "warning" and "wrong answer earns 2, perfect 0" in found.finding
    assert "reward wrong_is_better" not in checked({"wrong_is_better": wrong_is_better}, wrong_is_better=-1.0)
    right = checked(FIVE, correctness_reward_func=-1.0)
    assert "wrong answer earns 0, perfect -2" in right["reward correctness"].finding


@pytest.mark.parametrize("gold", ["9", "99", "-1", "Paris", "9 days", "0.5"])
def test_a_reward_for_the_form_prefers_nothing(gold):
    rewards = {reward.__name__: reward for reward in (get_repetition_penalty_reward(2, -1.0), words)}
    rewards["length_reward_func"] = REWARD_FUNCS["length_reward_func"]
    for reasoning in ("", f"it is {gold}", "word " * 30, "word " * 450):
        found = checked(rewards, row={**ROW, "answer": gold}, reasoning=reasoning)
        assert not any("wrong answer earns" in found[name].finding for name in found if name != "all rewards")


def test_without_a_gold_answer_rewards_are_tried_on_the_format():
    without = {"row": {**ROW, "answer": None}, "reasoning": ""}
    soft = {"soft_format": REWARD_FUNCS["soft_format_reward_func"]}
    values = planned(soft, **without).trial.values["soft_format"]
    assert values == {"in the format": 0.5, "no tags": 0, "extra text": 0.5, "empty": 0}
    assert checked(soft, **without)["all rewards"].status == "ok"
    assert checked({"constant": constant}, **without)["all rewards"].status == "warning"


# --- Rewards that fail


def test_a_reward_that_raises_is_an_error_that_says_what():
    def broken(completions, **kwargs):
        raise KeyError("solution")

    found = checked({"broken": broken, **FIVE})
    assert found["reward broken"].status == "error" and "KeyError: 'solution'" in found["reward broken"].finding
    assert found["all rewards"].status == "ok"
    assert "all rewards" not in checked({"broken": broken})


def test_the_line_that_is_named_is_the_users_not_a_librarys():
    def parses(completions, **kwargs):
        return [json.loads("{") for _ in completions]

    finding = checked({"parses": parses})["reward parses"].finding
    assert f"(test_checks.py:{parses.__code__.co_firstlineno + 1})" in finding


@pytest.mark.parametrize("result", ["words", None])
def test_a_result_that_is_no_list_of_numbers_is_an_error(result):
    found = checked({"odd": lambda completions, **kwargs: result, **FIVE})
    assert found["reward odd"].status == "error" and repr(result) in found["reward odd"].finding
    assert found["all rewards"].status == "ok"


def test_a_number_that_is_not_finite_is_an_error_with_its_place():
    def odd(completions, **kwargs):
        return [float("nan") if "8" in completion[0]["content"] else 1.0 for completion in completions]

    found = checked({"odd": odd, **FIVE})
    assert found["reward odd"].status == "error" and "nan on 'wrong answer'" in found["reward odd"].finding


def test_a_reward_that_changes_its_input_is_named_with_the_argument():
    def tidies(completions, **kwargs):
        for completion in completions:
            completion[0]["content"] = completion[0]["content"].strip() + "."
        return [1.0] * len(completions)

    async def clears(prompts, answer, **kwargs):
        prompts.clear()
        answer.clear()
        raise ValueError("and fails")

    plan = planned({"tidies": tidies, "clears": clears, "constant": constant})
    assert plan.trial.changed == {"tidies": ["completions"], "clears": ["answer", "prompts"]}
    found = [check for check in checks.about_rewards(plan) if check.finding.startswith("changes its input")]
    assert [(check.status, check.name) for check in found] == [
        ("warning", "reward tidies"),
        ("warning", "reward clears"),
    ]
    assert "changes its input: answer and prompts" in found[1].finding and "copy" in found[1].remedy


class NeedsLevel:
    def __call__(self, completions, *, level, **kwargs):
        return [1.0] * len(completions)


def test_a_reward_that_asks_for_what_there_is_not_gets_the_list_of_columns():
    def needs(completions, solution, **kwargs):
        return [1.0] * len(completions)

    def inner(completions, **kwargs):
        return needs(completions)

    found = checked({"needs": needs, "NeedsLevel": NeedsLevel(), "inner": inner})
    for name, missing in (("needs", "solution"), ("NeedsLevel", "level")):
        assert f"'{missing}'" in found[f"reward {name}"].finding
        assert found[f"reward {name}"].remedy.startswith(
            "it gets prompts, completions, completion_ids, answer, other:"
        )
    assert found["reward inner"].remedy == "fix it"  # its own call, which no column helps


def test_a_reward_without_kwargs_is_an_error_with_the_remedy():
    found = checked({"mine": lambda completions: [1.0] * len(completions)})["reward mine"]
    assert found.status == "error" and "**kwargs" in found.remedy


def test_async_rewards_are_tried_also_inside_an_event_loop():
    class Later:
        async def __call__(self, completions, **kwargs):
            await asyncio.sleep(0)
            return [float(len(completion[0]["content"])) for completion in completions]

    async def broken(completions, **kwargs):
        raise KeyError("server")

    async def cancelled(completions, **kwargs):
        raise asyncio.CancelledError

    rewards = {"later": Later(), "broken": broken, "cancelled": cancelled}

    async def in_a_notebook():
        return planned(rewards)

    for plan in (planned(rewards), asyncio.run(in_a_notebook())):
        found = {check.name: check for check in checks.about_rewards(plan)}
        assert "CancelledError" in found["reward cancelled"].finding
        assert plan.trial.values["later"]["empty"] == 0.0 and plan.trial.values["later"]["perfect"] > 10
        assert found["reward broken"].status == "error" and "KeyError: 'server'" in found["reward broken"].finding


# --- A judge of one's own


def judged(function, **row):
    task = Task(XML, judge=function, judge_name="mine")
    plan = SimpleNamespace(task=task, first_row={"question": "2 + 2?", "answer": "4", "prompt": "2 + 2?", **row})
    return next(checks.about_judge(plan), None)


def test_a_judge_is_tried_on_the_same_completions():
    assert judged(None) is None  # the lenient rule is known
    fine = judged(lambda text, row: "<answer>\n4\n" in text)
    assert fine.status == "ok" and fine.finding.endswith("perfect, extra text")  # those that it finds right
    for same_for_all in (True, False):
        assert judged(lambda text, row, value=same_for_all: value).status == "warning"
    assert judged(lambda text, row: False, answer=None).status == "ok"
    assert "0.5" in judged(lambda text, row: 0.5).finding  # that is neither right nor wrong
    assert "KeyError: 'x' (test_checks.py:" in judged(lambda text, row: row["x"]).finding
