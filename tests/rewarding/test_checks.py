"""grpo/rewarding/checks.py: preflight names the rewards that cannot teach, by their values for test completions."""

import json
from types import SimpleNamespace

import pytest
from rich.console import Console
from trl.rewards import get_repetition_penalty_reward

from grpo.core.checklist import Trial
from grpo.rewarding.checks import about_all_rewards, about_rewards, listing, matrix
from grpo.rewarding.probe import perturbed, try_rewards
from grpo.task import Task
from grpo.task.prompts import XML
from rewards import REWARD_FUNCS

TASK = Task(XML)
FIVE = dict(list(REWARD_FUNCS.items())[:5])
ROW = {"prompt": [{"role": "user", "content": "5 + 4?"}], "answer": "9", "other": 3}


def try_out(row=ROW, reasoning="5 + 4 = <<5+4=9>>9", encode=lambda text: list(text.encode()), **rewards):
    return try_rewards(rewards, row, reasoning, TASK, encode)[0]


def trial(tried, **weights):
    texts = dict.fromkeys(next(iter(tried.values())), "")
    return Trial(texts, tried, weights={name: 1.0 for name in tried} | weights)


def plan(tried):
    data = SimpleNamespace(train=SimpleNamespace(column_names=list(ROW)))
    return SimpleNamespace(trial=tried, task=TASK, data=data)


def checks(tried, **weights):
    subject = plan(trial(tried, **weights))
    return {check.name: check for about in (about_rewards, about_all_rewards) for check in about(subject)}


def test_the_five_are_fine():
    assert {check.status for check in checks(try_out(**FIVE)).values()} == {"ok"}


def constant(completions, **kwargs):
    return [1.0] * len(completions)


def test_the_matrix_has_every_reward_and_their_sum(capsys):
    def sometimes(completions, **kwargs):
        return [float(len(completion[0]["content"].split("<answer>")[1])) for completion in completions]

    tried = try_out(**FIVE, sometimes=sometimes)
    Console(width=80).print(matrix(trial(tried, int_reward_func=0.5)))
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["correctness", "2", "0", "0", "2", "0"] in rows
    assert ["int", "×", "0.5", "0.5", "0.5", "0", "0.5", "0"] in rows
    assert ["sometimes", "13", "13", "raises", "38", "raises"] in rows
    assert rows[-1] == ["weighted", "sum", "3.75", "1.75", "0", "3.2", "0"]  # of those that do not fail
    found, line = checks(tried)["reward sometimes"], sometimes.__code__.co_firstlineno + 1
    assert found.status == "error"
    assert f"IndexError: list index out of range (test_checks.py:{line}) on 'no tags' and 'empty'" in found.finding


def test_a_reward_that_tells_nothing_apart_is_named():
    debug = REWARD_FUNCS["debug_reward_func"]
    found = checks(try_out(constant=constant, debug_reward_func=debug, **FIVE))
    warned = {name for name, check in found.items() if check.status == "warning"}
    assert warned == {"reward constant", "reward debug"} and "moves no advantage" in found["reward debug"].remedy
    assert checks(try_out(constant=constant))["all rewards"].status == "warning"
    with_unit = try_out({**ROW, "answer": "9 days"}, "", str.split, **FIVE)
    assert "gives 0 to every test completion" in checks(with_unit)["reward int"].finding


def test_a_reward_that_raises_is_an_error_that_says_what():
    def broken(completions, **kwargs):
        raise KeyError("solution")

    found = checks(try_out(broken=broken, **FIVE))
    assert found["reward broken"].status == "error" and "KeyError: 'solution'" in found["reward broken"].finding
    assert found["all rewards"].status == "ok"
    assert "all rewards" not in checks(try_out(broken=broken))


def test_the_line_that_is_named_is_the_users_not_a_librarys():
    def parses(completions, **kwargs):
        return [json.loads("{") for _ in completions]

    finding = checks(try_out(parses=parses))["reward parses"].finding
    assert f"(test_checks.py:{parses.__code__.co_firstlineno + 1})" in finding


@pytest.mark.parametrize("result", ["words", None])
def test_a_result_that_is_no_list_of_numbers_is_an_error(result):
    found = checks(try_out(odd=lambda completions, **kwargs: result, **FIVE))
    assert found["reward odd"].status == "error" and repr(result) in found["reward odd"].finding
    assert found["all rewards"].status == "ok"


def test_a_number_that_is_not_finite_is_an_error_with_its_place():
    def odd(completions, **kwargs):
        return [float("nan") if "8" in completion[0]["content"] else 1.0 for completion in completions]

    found = checks(try_out(odd=odd, **FIVE))
    assert found["reward odd"].status == "error" and "nan on 'wrong answer'" in found["reward odd"].finding


def words(completions, **kwargs):
    return [-len(completion[0]["content"].split()) for completion in completions]


def wrong_is_better(completions, answer, **kwargs):
    return [2.0 - value for value in REWARD_FUNCS["correctness_reward_func"](completions, answer)]


def test_a_reward_that_prefers_a_wrong_answer_is_a_warning():
    found = checks(try_out(wrong_is_better=wrong_is_better, **FIVE))["reward wrong_is_better"]
    assert found.status == "warning" and "wrong answer earns 2, perfect 0" in found.finding
    assert "reward wrong_is_better" not in checks(try_out(wrong_is_better=wrong_is_better), wrong_is_better=-1.0)
    right = checks(try_out(**FIVE), correctness_reward_func=-1.0)
    assert "wrong answer earns 0, perfect -2" in right["reward correctness"].finding


@pytest.mark.parametrize("gold", ["9", "99", "-1", "Paris", "9 days", "0.5"])
def test_a_reward_for_the_form_prefers_nothing(gold):
    rewards = {reward.__name__: reward for reward in (get_repetition_penalty_reward(3, -1.0), words)}
    rewards["length_reward_func"] = REWARD_FUNCS["length_reward_func"]
    for reasoning in ("", f"it is {gold}", "word " * 30, "word " * 450):
        found = checks(try_out({**ROW, "answer": gold}, reasoning, str.split, **rewards))
        assert not any("wrong answer earns" in found[name].finding for name in found if name != "all rewards")


def test_a_reward_that_changes_its_input_is_named_with_the_argument():
    def tidies(completions, **kwargs):
        for completion in completions:
            completion[0]["content"] = completion[0]["content"].strip() + "."
        return [1.0] * len(completions)

    async def clears(prompts, answer, **kwargs):
        prompts.clear()
        answer.clear()
        raise ValueError("and fails")

    rewards = {"tidies": tidies, "clears": clears, "constant": constant}
    _, changed, _ = try_rewards(rewards, ROW, "", TASK, lambda text: list(text.encode()))
    assert changed == {"tidies": ["completions"], "clears": ["answer", "prompts"]}
    found = {check.name: check for check in about_rewards(plan(Trial(changed=changed)))}
    assert {check.status for check in found.values()} == {"warning"} and "copy" in found["reward tidies"].remedy
    assert "changes its input: answer and prompts" in found["reward clears"].finding


class NeedsLevel:
    def __call__(self, completions, *, level, **kwargs):
        return [1.0] * len(completions)


def test_a_reward_that_asks_for_what_there_is_not_gets_the_list_of_columns():
    def needs(completions, solution, **kwargs):
        return [1.0] * len(completions)

    def inner(completions, **kwargs):
        return needs(completions)

    found = checks(try_out(needs=needs, NeedsLevel=NeedsLevel(), inner=inner))
    for name, missing in (("needs", "solution"), ("NeedsLevel", "level")):
        assert f"'{missing}'" in found[f"reward {name}"].finding
        assert found[f"reward {name}"].remedy.startswith(
            "it gets prompts, completions, completion_ids, answer, other:"
        )
    assert found["reward inner"].remedy == "fix it"  # its own call, which no column helps


@pytest.mark.parametrize("gold", ["9", "2007-04-13", None])
def test_the_test_completions_are_shown_within_80_columns(gold, capsys):
    texts = perturbed("It takes [bold] steps. " * 5, gold, TASK)
    Console(width=80).print(listing(texts))
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    as_one = "".join(shown.split()).replace("↵", "")
    for kind, text in texts.items():
        assert "".join((kind + text).split()) in as_one
    assert as_one.endswith("empty(notext)") and "</reasoning>↵ <answer>↵" in " ".join(shown.split())


def test_of_a_long_test_completion_the_end_is_shown(capsys):
    Console(width=80).print(listing(perturbed("It takes two steps. " * 30, "9", TASK)))
    shown = capsys.readouterr().out
    assert shown.count("It takes two steps. " * 2) >= 1 and "…" in shown.partition("wrong answer")[2]
    assert "".join(shown.split()).count("<answer>↵8↵</answer>") == 1


def test_a_reward_without_kwargs_is_an_error_with_the_remedy():
    found = checks(try_out(mine=lambda completions: [1.0] * len(completions)))["reward mine"]
    assert found.status == "error" and "**kwargs" in found.remedy


def test_without_a_gold_answer_rewards_are_held_to_tell_completions_apart():
    row = {**ROW, "answer": None}
    soft = try_out(row, "", soft_format=REWARD_FUNCS["soft_format_reward_func"])
    assert checks(soft)["all rewards"].status == "ok"
    assert checks(try_out(row, "", constant=constant))["all rewards"].status == "warning"
