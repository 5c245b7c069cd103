"""A completion has one shape and one road to its verdict, format and rewards, whoever made it."""

import functools
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from helpers_samples import Bytes, answered
from helpers_trainer import make_trainer

from grpo.policy.evaluation import HeldOut
from grpo.preflight.reward_trial import sums, try_rewards
from grpo.scoring.sample import Fault, Sample
from grpo.scoring.scorer import Scorer, judge_reward_func, weighted_sum
from grpo.task import Task
from grpo.task.prompts import XML
from grpo.tools import xray
from grpo.training.run_trainer import RunTrainer
from rewards import REWARD_FUNCS


def judged_by(function):
    return Task(XML, judge=function, judge_name="mine")


def scorer_of(task, **rewards):
    return Scorer(task, rewards, dict.fromkeys(rewards, 1.0))


# --- One road


TEXT = XML.answered("3 + 4 is 7.", "7")
ROW = {"question": "3 + 4?", "answer": "7", "prompt": XML.prompt("3 + 4?")}
OF_A_RUN = ("judge_reward_func", *REWARD_FUNCS)


def in_training(scorer, tiny_model, monkeypatch):
    scored = []
    real = Scorer.reward

    def reward(self, *args):
        scored.extend(real(self, *args))
        return scored

    trainer = make_trainer(RunTrainer, tiny_model, "out")
    trainer.scorer = scorer
    with monkeypatch.context() as patched:
        patched.setattr(Scorer, "reward", reward)
        trainer._calculate_rewards([ROW] * 4, [], [[{"role": "assistant", "content": TEXT}]] * 4, [[1, 2]] * 4)
    return scored[0]


def held_out(scorer, *_):
    class Fixed:
        def answer(self, rows, draws, check):
            return [Sample(row, TEXT) for row in rows]

    class Rows(list):
        def to_list(self):
            return self

    (sample,) = HeldOut(Rows([ROW]), scorer).evaluate(Fixed()).samples
    return Sample.from_json(json.loads(json.dumps(sample.to_json())))


def in_preflight(scorer, *_):
    trial = try_rewards(scorer, ROW, "3 + 4 is 7.", Bytes())
    assert trial.texts["perfect"] == TEXT
    rewards = {name: values["perfect"] for name, values in trial.values.items()}
    return replace(trial.judged["perfect"], rewards=rewards, reward=sums(trial)["perfect"])


def by_the_xray(scorer, *_):
    Path("foreign.jsonl").write_text(json.dumps({"completion": TEXT, "answer": "7", "question": "3 + 4?"}) + "\n")
    judged = Scorer(scorer.task, {}, {}).judge(list(xray.read_foreign(Path("foreign.jsonl")).values()))
    return xray.scored(judged, OF_A_RUN, scorer.task, False)[0]


def of_a_run(task):
    return scorer_of(task, judge_reward_func=functools.partial(judge_reward_func, task=task), **REWARD_FUNCS)


@pytest.mark.parametrize("caller", [in_training, held_out, in_preflight, by_the_xray])
def test_a_text_is_worth_the_same_wherever_it_comes_from(caller, tiny_model, monkeypatch):
    sample = caller(of_a_run(Task(XML)), tiny_model, monkeypatch)
    assert sample.verdict == ("7", True, True, "7", "value") and sample.format == (True, True)
    assert sample.rewards == dict(zip(OF_A_RUN, (2.0, 0.5, 0.5, 0.5, 0.5, 2.0), strict=True)) and sample.reward == 6.0


@pytest.mark.parametrize("caller", [in_training, held_out, in_preflight])
def test_the_users_judge_is_asked_once_a_completion(caller, tiny_model, monkeypatch):
    """The X-ray has the verdicts that a run has recorded: tests/tools/test_xray.py."""
    asked = []
    task = judged_by(lambda text, row: asked.append((text, row["answer"])) or True)
    caller(of_a_run(task), tiny_model, monkeypatch)
    assert len(asked) == len(set(asked)) and (TEXT, "7") in asked
    assert len(asked) == 1 or caller is in_preflight  # which makes up more completions


# --- Verdicts


def test_a_verdict_is_kept_and_the_judge_not_asked_again():
    asked = []
    scorer = scorer_of(judged_by(lambda text, row: asked.append(text) or True))
    (sample,) = scorer.judge([Sample({}, "7")])
    assert scorer.judge([sample]) == [sample] and asked == ["7"]


def test_a_judge_that_fails_is_asked_once_and_its_reward_has_its_faults():
    asked = []

    def judge(text, row):
        asked.append(text)
        if text == "c":
            return "no verdict"
        return 1 / (text != "b") > 0

    samples = [Sample({"prompt": "q", "answer": None}, text) for text in "abc"]
    first, *failed = scorer_of(judged_by(judge), judge_reward_func=judge_reward_func).score(samples)
    assert asked == ["a", "b", "c"] and first.rewards == {"judge_reward_func": 2.0} and first.verdict.lenient
    for sample in failed:
        (fault,) = sample.faults
        assert fault.fault == sample.judge_fault.fault and sample.verdict.lenient is None
        assert (fault.function, sample.judge_fault.function) == ("judge_reward_func", "mine")
        assert sample.rewards == {"judge_reward_func": None}
    faults = [sample.judge_fault for sample in failed]
    assert re.fullmatch(r"ZeroDivisionError: .* \(test_scorer.py:\d+\)", faults[0].fault)
    assert "no verdict" in faults[1].fault and faults[0].traceback.count("in judge") == 1


def test_a_judges_failure_is_worded_like_a_rewards():
    def judge(text, row):
        return {"a": lambda: exec("raise SystemExit('no key')"), "b": lambda: 0.5}[text]()

    first, second = scorer_of(judged_by(judge)).judge([Sample({}, text) for text in "ab"])
    assert str(first.judge_fault).startswith("mine: SystemExit: no key (test_scorer.py:")
    assert str(second.judge_fault) == "mine: it returned 0.5; let it return True or False"


def test_a_judge_without_memory_ends_the_run():
    """That is no fault of the completion."""

    def judge(text, row):
        raise RuntimeError("CUDA out of memory")

    with pytest.raises(RuntimeError):
        scorer_of(judged_by(judge)).judge([Sample({}, "7")])


def test_the_lenient_rule_has_no_verdict_without_a_gold_answer():
    samples = [Sample({"answer": gold}, "It is 7.") for gold in ("7", None)]
    assert [sample.verdict.lenient for sample in scorer_of(Task(XML)).judge(samples)] == [True, None]


def test_a_function_around_the_judges_reward_is_called_and_reads_its_verdicts():
    asked, entered = [], []
    task = judged_by(lambda text, row: asked.append(text) or text == "a")

    @functools.wraps(judge_reward_func)
    def half(*args, **kwargs):
        entered.append(1)
        return [value / 2 for value in judge_reward_func(*args, task=task, **kwargs)]

    async def later(**kwargs):
        return judge_reward_func(task=task, **kwargs)

    samples = scorer_of(task, half=half, later=later).score([Sample(ROW, "a"), Sample(ROW, "b")])
    assert [sample.rewards for sample in samples] == [{"half": 1.0, "later": 2.0}, {"half": 0.0, "later": 0.0}]
    assert asked == ["a", "b"] and entered == [1]


def test_a_reward_that_asks_about_another_gold_answer_gets_that_verdict():
    def distracted(completions, answer, **kwargs):
        return judge_reward_func(completions, answer=["8"] * len(answer))

    (sample,) = scorer_of(Task(XML), distracted=distracted, judge_reward_func=judge_reward_func).score(
        [Sample(ROW, "7")]
    )
    assert sample.rewards == {"distracted": 0.0, "judge_reward_func": 2.0}
    assert judge_reward_func(["7"], answer=["8"]) == [0.0]  # nothing is remembered


def test_a_verdict_is_true_where_it_was_a_boolean():
    """Rewards of one's own get the task, and ask it."""
    verdicts = [Task(XML).verdict(text, row) for text, row in (("7", ROW), ("8", ROW), ("7", {}))]
    assert [bool(verdict) for verdict in verdicts] == [True, False, False]


# --- Rewards


def test_a_row_with_a_fault_has_no_value_from_any_reward():
    def fails(completions, **kwargs):
        return [1.0 if completion[0]["content"] == "a" else 1 / 0 for completion in completions]

    async def twos(completions, **kwargs):
        return [2.0] * len(completions)

    whole, faulty = scorer_of(Task(XML), fails=fails, twos=twos).score([Sample(ROW, "a"), Sample(ROW, "b")])
    assert whole.rewards == {"fails": 1.0, "twos": 2.0} and whole.reward == 3.0 and not whole.faults
    assert faulty.rewards == {"fails": None, "twos": None} and faulty.reward is None
    assert [str(fault)[:13] for fault in faulty.faults] == ["fails: ZeroDi"] and isinstance(faulty.faults[0], Fault)


def test_the_reward_of_a_sample_is_the_weighted_sum():
    def a(completions, **kwargs):
        return [1.0, 3.0]

    def b(completions, **kwargs):
        return [2.0, None]

    samples = Scorer(Task(XML), {"a": a, "b": b}, {"a": 0.5, "b": -1.0}).reward([Sample(ROW), Sample(ROW)])
    assert [sample.reward for sample in samples] == [-1.5, 1.5]
    assert weighted_sum({"a": 0.1, "b": 0.2}, {"a": 1.0, "b": 1.0}) == 0.3


def test_a_line_of_a_file_is_a_sample_and_back():
    drawn = {"samples": ["7"], "samples_right": [True]}
    line = answered("3 + 4?", "7", TEXT, "7.0", strict=False, lenient=True, **drawn).to_json()
    assert line["any_right"] is True and Sample.from_json(line).to_json() == line
