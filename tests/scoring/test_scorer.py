"""A completion has one shape and one road to its verdict, format and rewards, whoever made it."""

import functools
import json
import re
from pathlib import Path

import pytest
from helpers_samples import Bytes, answered
from helpers_trainer import make_trainer

from grpo.policy.evaluation import HeldOut
from grpo.preflight.reward_trial import try_rewards
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


TEXT = XML.answered("3 + 4 is 7.", "7.0")
ROW = {"question": "3 + 4?", "answer": "7", "prompt": XML.prompt("3 + 4?")}
OF_A_RUN = ("judge_reward_func", *REWARD_FUNCS)


def found_by(sample):
    return sample.verdict, sample.format, sample.rewards, sample.reward


def in_training(scorer, tiny_model, monkeypatch):
    scored = []
    real = Scorer.score

    def score(self, *args):
        samples = real(self, *args)
        scored.extend(samples)
        return samples

    trainer = make_trainer(RunTrainer, tiny_model, "out")
    trainer.scorer = scorer
    with monkeypatch.context() as patched:
        patched.setattr(Scorer, "score", score)
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
    text = trial.texts["perfect"]  # with 7 instead of 7.0
    (sample,) = scorer.score([Sample(ROW, text)])
    assert trial.judged["perfect"].verdict == sample.verdict and trial.judged["perfect"].format == sample.format
    assert {name: values["perfect"] for name, values in trial.values.items()} == sample.rewards
    return scorer.score([Sample(ROW, TEXT)])[0]


def by_the_xray(scorer, *_):
    Path("foreign.jsonl").write_text(json.dumps({"completion": TEXT, "answer": "7", "question": "3 + 4?"}) + "\n")
    samples = xray.read_foreign(Path("foreign.jsonl"))
    judged = Scorer(scorer.task, {}, {}).judge(list(samples.values()))
    return xray.scored(judged, OF_A_RUN, scorer.task, False)[0]


@pytest.mark.parametrize("caller", [in_training, held_out, in_preflight, by_the_xray])
def test_a_text_is_worth_the_same_wherever_it_comes_from(caller, tiny_model, monkeypatch):
    task = Task(XML)
    rewards = {"judge_reward_func": functools.partial(judge_reward_func, task=task), **REWARD_FUNCS}
    sample = caller(scorer_of(task, **rewards), tiny_model, monkeypatch)
    assert sample.verdict == ("7.0", True, False, "7.0", "value") and sample.format == (True, True)
    values = {"xmlcount": 0.5, "soft_format": 0.5, "strict_format": 0.5, "int": 0.0, "correctness": 0.0, "judge": 2.0}
    assert sample.rewards == {f"{name}_reward_func": values[name] for name in ("judge", *list(values)[:-1])}
    assert sample.reward == 3.5


@pytest.mark.parametrize("caller", [in_training, held_out, in_preflight])
def test_the_users_judge_is_asked_once_a_completion(caller, tiny_model, monkeypatch):
    asked = []
    task = judged_by(lambda text, row: asked.append((text, row["answer"])) or True)
    rewards = {"judge_reward_func": functools.partial(judge_reward_func, task=task), **REWARD_FUNCS}
    if caller is in_preflight:
        try_rewards(scorer_of(task, **rewards), ROW, "3 + 4 is 7.", Bytes())
        assert len(asked) == len(set(asked)) > 4
        return
    caller(scorer_of(task, **rewards), tiny_model, monkeypatch)
    assert asked == [(TEXT, "7")] * (4 if caller is in_training else 1)


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
