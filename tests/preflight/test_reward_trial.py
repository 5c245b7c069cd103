"""Preflight tries rewards as TRL calls them, on a perfect completion and on flawed ones."""

import asyncio
import json

import pytest
from helpers_samples import Bytes

from grpo.preflight import reward_trial
from grpo.preflight.reward_trial import Trial, perfect_values, perturbed, try_rewards
from grpo.scoring.registry import parameters_of_run, rewards_by_name, shipped
from grpo.scoring.scorer import Scorer
from grpo.task import PromptFormat, Task
from grpo.task.prompts import XML
from rewards import REWARD_FUNCS

TASK = Task(XML)
FIVE = REWARD_FUNCS
ROW = {"prompt": [{"role": "user", "content": "5 + 4?"}], "answer": "9", "other": 3}


def try_out(row=ROW, reasoning="5 + 4 = <<5+4=9>>9", **rewards):
    return tried_by(TASK, rewards, row, reasoning).values


def tried_by(task, rewards, row, reasoning="", wrong=""):
    return try_rewards(Scorer(task, rewards, dict.fromkeys(rewards, 1.0)), row, reasoning, Bytes(), wrong)


def constant(completions, **kwargs):
    return [1.0] * len(completions)


def test_each_reward_is_tried_on_all_of_them():
    tried = try_out(**FIVE)
    totals = {kind: sum(values[kind] for values in tried.values()) for kind in tried["int_reward_func"]}
    assert totals == pytest.approx(
        {"perfect": 4.0, "wrong answer": 2.0, "no tags": 0.0, "extra text": 3.45, "empty": 0.0}
    )
    without_gold = try_out({**ROW, "answer": None}, "", soft=REWARD_FUNCS["soft_format_reward_func"])
    assert without_gold["soft"] == {"in the format": 0.5, "no tags": 0, "extra text": 0.5, "empty": 0}


def test_what_a_perfect_answer_earns_is_known_only_where_it_earns_more_than_another():
    """A fragment of JSON earned 0 from the reward of whole objects, and the report drew a line at 0 below 0.9."""

    def rewards_long(completions, **kwargs):
        return [-1.0 if REWARD_FUNCS["soft_format_reward_func"]([each])[0] else 0.0 for each in completions]

    def punishes(completions, **kwargs):
        return [0.0] * len(completions)

    none = {"none": lambda completions, **kwargs: [0.0] * len(completions)}
    tried = try_out(**FIVE, **none, constant=constant, rewards_long=rewards_long, punishes=punishes)
    known = perfect_values(Trial(values=tried), {"punishes"})
    assert known == {name: tried[name]["perfect"] for name in FIVE} | {"punishes": 0.0}


def test_rewards_get_what_trl_gives_them():
    seen = {}

    def curious(prompts, completions, completion_ids, answer, other, trainer_state, log_extra, log_metric):
        seen.update(prompts=prompts, completions=completions, ids=completion_ids, answer=answer, other=other)
        log_metric("some", 1.0)
        log_extra("some", [1] * len(completions))
        return [float(trainer_state.global_step)] * len(completions)

    assert set(try_out(curious=curious)["curious"].values()) == {0.0}
    count = len(seen["completions"])
    assert seen["prompts"] == [ROW["prompt"]] * count and seen["other"] == [3] * count
    assert seen["answer"] == ["9"] * (count - 1) + ["8"]  # the last one shows whether a reward reads the gold answer
    perfect = perturbed("5 + 4 = <<5+4=9>>9", "9", TASK)["perfect"]
    assert seen["completions"][0] == [{"role": "assistant", "content": perfect}]
    assert seen["ids"][4] == [] and len(seen["ids"][0]) > 10


def test_a_wrong_answer_is_as_long_as_the_right_one():
    golds = ("9", "99", "72", "0", "-1", "9 days", "Paris", ["9", "8"], ["9", "8", "10 days", "seven"])
    wrong = [perturbed("", gold, TASK)["wrong answer"].splitlines()[-2] for gold in golds]
    assert wrong == ["8", "98", "73", "1", "-2", "8 days", "another answer", "7", "6"]


@pytest.mark.parametrize(
    ("task", "gold", "names"),
    [
        (TASK, "9", ["correctness_reward_func"]),  # `9.` is right, too; int does not read the gold answer
        (TASK, "9 days", ["correctness_reward_func"]),
        (TASK, None, []),
        (Task(PromptFormat("", completion="{answer}", pattern="text")), "1 May", ["correctness_reward_func"]),
    ],
)
def test_rewards_that_want_every_character_of_the_gold_answer_are_known_by_what_they_pay(task, gold, names):
    rewards = rewards_by_name(
        ["soft_format_reward_func", *list(FIVE)[3:], "judge_reward_func"], {}, parameters_of_run(task, 64), shipped()
    )
    needed = {name: reward for name, reward in rewards.items() if gold or name == "soft_format_reward_func"}
    trial = tried_by(task, needed, {**ROW, "answer": gold})
    assert trial.exact == names
    assert all(reward_trial.REWRITTEN not in values for values in (trial.texts, *trial.values.values()))


TEXT = Task(PromptFormat("", completion="{answer}", pattern="text"))
RECEIPT = '{"shop": "Ada", "total": 5.70}'


def field(completions, answer, **kwargs):
    return [
        float(json_of(text).items() >= json_of(gold).items() > set())
        for text, gold in zip(completions, answer, strict=True)
    ]


def json_of(text):
    try:
        return json.loads(text if isinstance(text, str) else text[0]["content"])
    except ValueError:
        return {}


def well_formed(completions, **kwargs):
    return [0.5 * bool(json_of(text)) for text in completions]


def exact(completions, answer, **kwargs):
    return [float(text[0]["content"] == gold) for text, gold in zip(completions, answer, strict=True)]


def test_json_gets_a_wrong_field_and_only_what_compares_characters_wants_them():
    rewards = {reward.__name__: reward for reward in (field, well_formed, exact)}
    row = {**ROW, "answer": RECEIPT}
    trial = tried_by(TEXT, rewards, row, wrong=RECEIPT.replace("5.70", "9.05"))
    assert trial.exact == ["exact"] and trial.texts["wrong answer"] == '{"shop": "Ada", "total": 9.05}'
    assert [values["wrong answer"] for values in trial.values.values()] == [0.0, 0.5, 0.0]
    assert list(trial.texts) == ["perfect", "wrong answer", "in a sentence", "extra text", "empty"]


def test_what_the_users_judge_finds_wrong_is_no_other_way_to_write_it():
    judge = Task(TEXT.prompt, judge=lambda text, row: text == row["answer"], judge_name="mine")
    assert tried_by(judge, {"exact": exact}, {**ROW, "answer": "billing"}, wrong="account").exact == []
    fails = Task(TEXT.prompt, judge=lambda text, row: 1 / 0, judge_name="mine")
    assert tried_by(fails, {"exact": exact}, {**ROW, "answer": "billing"}, wrong="account").exact == []


def test_async_rewards_are_tried_also_inside_an_event_loop(monkeypatch):
    monkeypatch.setattr(reward_trial, "PATIENCE", 0.05)

    class Later:
        async def __call__(self, completions, **kwargs):
            await asyncio.sleep(0)
            return [float(len(completion[0]["content"])) for completion in completions]

    async def cancelled(completions, **kwargs):
        raise asyncio.CancelledError

    async def never(completions, **kwargs):
        await asyncio.Event().wait()

    rewards = {"later": Later(), "cancelled": cancelled, "never": never}

    async def in_a_notebook():
        return try_out(**rewards)

    for tried in (try_out(**rewards), asyncio.run(in_a_notebook())):
        assert tried["later"]["empty"] == 0.0 and tried["later"]["perfect"] > 10
        assert all("CancelledError" in str(fault) for fault in tried["cancelled"].values())
        assert all("TimeoutError: no answer" in str(fault) for fault in tried["never"].values())
