"""Preflight calls rewards as TRL does, on a perfect completion and on others, and names those that cannot teach."""

import asyncio
import json

import pytest
from rich.console import Console
from trl.rewards import get_repetition_penalty_reward

from grpo.rewarding import probe
from grpo.rewarding.probe import about_rewards, matrix, perturbed, try_rewards
from grpo.rewarding.registry import choose, following
from grpo.task import PromptFormat, Task
from grpo.task.prompts import XML
from rewards import REWARD_FUNCS

TASK = Task(XML)
FIVE = dict(list(REWARD_FUNCS.items())[:5])
ROW = {"prompt": [{"role": "user", "content": "5 + 4?"}], "answer": "9", "other": 3}


def try_out(row=ROW, reasoning="5 + 4 = <<5+4=9>>9", encode=lambda text: list(text.encode()), **rewards):
    return try_rewards(rewards, row, reasoning, TASK, encode)[0]


def checks(tried, **weights):
    weights = {name: 1.0 for name in tried} | weights
    return {check.name: check for check in about_rewards(tried, weights, list(ROW), TASK)}


def constant(completions, **kwargs):
    return [1.0] * len(completions)


def test_each_reward_is_tried_on_all_of_them():
    tried = try_out(**FIVE)
    totals = {kind: sum(values[kind] for values in tried.values()) for kind in tried["int_reward_func"]}
    assert totals == pytest.approx(
        {"perfect": 4.0, "wrong answer": 2.0, "no tags": 0.0, "extra text": 3.45, "empty": 0.0}
    )
    assert {check.status for check in checks(tried).values()} == {"ok"}


def test_the_matrix_has_every_reward_and_their_sum(capsys):
    def sometimes(completions, **kwargs):
        return [float(len(completion[0]["content"].split("<answer>")[1])) for completion in completions]

    tried = try_out(**FIVE, sometimes=sometimes)
    Console(width=80).print(matrix(tried, {name: 1.0 for name in tried} | {"int_reward_func": 0.5}))
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["correctness", "2", "0", "0", "2", "0"] in rows
    assert ["int", "×", "0.5", "0.5", "0.5", "0", "0.5", "0"] in rows
    assert ["sometimes", "13", "13", "raises", "38", "raises"] in rows
    assert rows[-1] == ["weighted", "sum", "3.75", "1.75", "0", "3.2", "0"]  # of those that do not fail
    found, line = checks(tried)["reward sometimes"], sometimes.__code__.co_firstlineno + 1
    assert found.status == "error"
    assert f"IndexError: list index out of range (test_probe.py:{line}) on 'no tags' and 'empty'" in found.finding


def test_rewards_get_what_trl_gives_them():
    seen = {}

    def curious(prompts, completions, completion_ids, answer, other, trainer_state, log_extra, log_metric):
        seen.update(prompts=prompts, completions=completions, ids=completion_ids, answer=answer, other=other)
        log_metric("some", 1.0)
        log_extra("some", [1] * len(completions))
        return [float(trainer_state.global_step)] * len(completions)

    assert set(try_out(curious=curious)["curious"].values()) == {0.0}
    count = len(seen["completions"])
    assert seen["prompts"] == [ROW["prompt"]] * count and seen["other"] == [3] * count and seen["answer"][-1] == "9"
    assert seen["completions"][0] == [
        {"role": "assistant", "content": perturbed("5 + 4 = <<5+4=9>>9", "9", TASK)["perfect"]}
    ]
    assert seen["ids"][4] == [] and len(seen["ids"][0]) > 10


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
    assert f"(test_probe.py:{parses.__code__.co_firstlineno + 1})" in finding


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


def test_a_wrong_answer_is_as_long_as_the_right_one():
    golds = ("9", "99", "72", "0", "-1", "9 days", "Paris")
    wrong = [perturbed("", gold, TASK)["wrong answer"].splitlines()[-2] for gold in golds]
    assert wrong == ["8", "98", "73", "1", "-2", "8 days", "not Paris"]


@pytest.mark.parametrize(
    ("task", "gold", "names"),
    [
        (TASK, "9", ["int_reward_func", "correctness_reward_func"]),  # `9.` is right, too
        (TASK, "9 days", ["correctness_reward_func"]),
        (TASK, None, []),
        (Task(PromptFormat("", completion="{answer}", pattern="text")), "1 May", ["correctness_reward_func"]),
    ],
)
def test_rewards_that_want_every_character_of_the_gold_answer_are_known_by_what_they_pay(task, gold, names):
    rewards = choose(["soft_format_reward_func", *list(FIVE)[3:], "judge_reward_func"], {}, following(task, 64))
    needed = {name: reward for name, reward in rewards.items() if gold or name == "soft_format_reward_func"}
    tried, _, exact = try_rewards(needed, {**ROW, "answer": gold}, "", task, str.split)
    assert exact == names and all(probe.REWRITTEN not in values for values in tried.values())


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
    found = list(probe.about_changed(changed))
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

    found = checks(try_out(needs=needs, NeedsLevel=NeedsLevel(), inner=inner))
    for name, missing in (("needs", "solution"), ("NeedsLevel", "level")):
        assert f"'{missing}'" in found[f"reward {name}"].finding
        assert found[f"reward {name}"].remedy.startswith(
            "it gets prompts, completions, completion_ids, answer, other:"
        )
    assert found["reward inner"].remedy == "fix it"  # its own call, which no column helps


@pytest.mark.parametrize(("gold", "wrong"), [("9", "8"), ("2007-04-13", "not 2007-04-13"), (None, None)])
def test_the_test_completions_are_shown_within_80_columns(gold, wrong, capsys):
    texts = perturbed("It takes [bold] steps. " * 9, gold, TASK)
    Console(width=80).print(probe.listing(texts))
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    assert max(map(len, lines)) <= 80 and [line for line in lines if line.startswith("empty") and "(no text)" in line]
    first = "".join(shown.partition("wrong" if gold else "no tags")[0].split())
    assert first == "".join((next(iter(texts)) + next(iter(texts.values()))).split())
    if wrong:
        (line,) = [line for line in lines if line.startswith("wrong answer")]
        assert line.rstrip().endswith(f"<answer> {wrong} </answer>")


def test_a_reward_without_kwargs_is_an_error_with_the_remedy():
    found = checks(try_out(mine=lambda completions: [1.0] * len(completions)))["reward mine"]
    assert found.status == "error" and "**kwargs" in found.remedy


def test_an_async_reward_that_never_answers_is_a_fault(monkeypatch):
    monkeypatch.setattr(probe, "PATIENCE", 0.05)

    async def never(completions, **kwargs):
        await asyncio.Event().wait()

    assert all("TimeoutError: no answer" in fault for fault in try_out(never=never)["never"].values())


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
        return try_out(**rewards)

    for tried in (try_out(**rewards), asyncio.run(in_a_notebook())):
        assert "CancelledError" in checks(tried)["reward cancelled"].finding
        assert tried["later"]["empty"] == 0.0 and tried["later"]["perfect"] > 10
        found = checks(tried)["reward broken"]
        assert found.status == "error" and "KeyError: 'server'" in found.finding


def test_without_a_gold_answer_rewards_are_tried_on_the_format():
    row = {**ROW, "answer": None}
    tried = try_out(row, "", soft_format=REWARD_FUNCS["soft_format_reward_func"])
    assert tried["soft_format"] == {"in the format": 0.5, "no tags": 0, "extra text": 0.5, "empty": 0}
    assert checks(tried)["all rewards"].status == "ok"
    assert checks(try_out(row, "", constant=constant))["all rewards"].status == "warning"


# --- In an evaluation

ROWS = [{"prompt": "1 + 1?", "question": "1 + 1?", "level": 1}, {"prompt": "2?", "question": "2?", "level": 2}]


@pytest.mark.parametrize("chat", [True, False])
def test_columns_are_those_that_trl_passes(chat):
    columns = probe.columns_of(ROWS, ["a", "b"], [[1], [2, 3]], chat)
    assert columns["prompts"] == ["1 + 1?", "2?"] and columns["level"] == [1, 2] and "prompt" not in columns
    assert columns["completions"][1] == ([{"role": "assistant", "content": "b"}] if chat else "b")
    assert columns["completion_ids"] == [[1], [2, 3]] and columns["trainer_state"].global_step == 0
    assert columns["log_metric"]("any", 1.0) is None


def test_a_reward_that_fails_on_a_row_is_excluded_there(capsys):
    def fails(completions, **kwargs):
        return [1.0 if text == "a" else 1 / 0 for text in completions]

    async def twos(completions, **kwargs):
        return [2.0] * len(completions)

    columns = probe.columns_of(ROWS, ["a", "b"], [[1], [2]], chat=False)
    assert probe.scores({"fails": fails, "twos": twos}, columns) == {"fails": [1.0, None], "twos": [2.0, None]}
    assert "1 of 2" in capsys.readouterr().out
