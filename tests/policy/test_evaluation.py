"""Evaluations grade answers once, in the same arithmetic before and after training, and change nothing else."""

import datetime
import functools
import json
import math
import random
from pathlib import Path

import judged_in_shares
import numpy as np
import pytest
import torch
from helpers_programs import run_on_two
from helpers_runs import DEMO
from transformers import AutoModelForCausalLM
from trl import GRPOConfig

from exact_answers.verdict import grade_any
from grpo.data import dataset, sources
from grpo.policy import evaluation
from grpo.policy.answering import Policy
from grpo.policy.evaluation import Evaluation, HeldOut, judged
from grpo.results.summary import summarize
from grpo.scoring.sample import Sample
from grpo.scoring.scorer import Scorer, judge_reward_func
from grpo.task import Task
from grpo.task.prompts import XML
from rewards import REWARD_FUNCS

TASK = Task(XML)
SCORER = Scorer(TASK, {}, {})


def judged_by(function):
    return Task(XML, judge=function, judge_name="mine")


@pytest.fixture(scope="module")
def questions():
    rows = sources.load_source(str(DEMO / "test.jsonl"))["train"][:24]
    return dataset.make_prompts(rows, TASK, ())[0]


def test_the_summary_has_the_share_that_the_rule_does_not_understand():
    rows = [{"question": "3 + 4?", "answer": "7"}] * 4
    texts = ["It is 7.", "<answer>6</answer>", "We add 3 and 4.", "It is not 7."]
    answers, error = judged([Sample(row, text) for row, text in zip(rows, texts, strict=True)], SCORER)
    assert not error and [one.verdict.why for one in answers] == ["value", "value", "not understood", "denied"]
    assert summarize(answers)["not_understood"] == 0.25


def test_the_summary_has_the_share_that_is_not_computed():
    rows = [{"question": "3 + 4?", "answer": gold} for gold in ("7", "7", ["6", "7"], "2 + 5")]
    texts = ["It is 7.", "<answer>3 + 4</answer>", r"\boxed{3 + 4}", "<answer>3 + 4</answer>"]
    answers, error = judged([Sample(row, text) for row, text in zip(rows, texts, strict=True)], SCORER)
    assert not error and [one.verdict.why for one in answers] == ["value", "not computed", "not computed", "value"]
    assert [one.verdict.lenient for one in answers] == [True, False, False, True]
    summary = summarize(answers)
    assert (summary["not_computed"], summary["accuracy_lenient"], summary["not_understood"]) == (0.5, 0.5, 0.0)


PAIRS = [("spam", "not spam"), ("positive", "very positive"), ("class 1", "class 2"), ("Sci/Tech", "World"),
    ("True", "Half true"), ("I", "II"), ("C++", "C#"), ("😢", "😀"), ("United States", "USA")]  # fmt: skip


@pytest.mark.parametrize("form", ["{}", "<answer>{}</answer>", " {}."])
@pytest.mark.parametrize("labels", PAIRS)
def test_another_questions_label_is_understood_and_wrong(labels, form):
    """The judge sees one gold answer; the evaluation knows all of them. Other texts stay what they are."""
    rows = [{"question": "?", "answer": labels[number % 2]} for number in range(8)]
    said = [labels[1 - number % 2] for number in range(6)] + ["whatever this may be"] * 2
    answers, _ = judged([Sample(row, form.format(text)) for row, text in zip(rows, said, strict=True)], SCORER)
    assert [one.verdict.why for one in answers] == ["value"] * 6 + ["not understood"] * 2
    assert not any(one.verdict.lenient for one in answers)


def test_gold_answers_that_do_not_repeat_are_no_labels():
    rows = [{"question": "?", "answer": gold} for gold in ("Paris", "Rome", "Oslo", "Bern")]
    answers, _ = judged([Sample(row, "Oslo") for row in rows], SCORER)
    assert [one.verdict.why for one in answers] == ["not understood"] * 2 + ["value", "not understood"]


def test_saved_files_are_json_and_keep_every_completion(tmp_path):
    row = {"day": datetime.date(2026, 1, 2), "score": math.nan}  # of the data: JSON has no form for them
    asked = {"question": "3 + 4?", "answer": "7", "prompt": "3 + 4?"}
    answer = Sample(asked | row, "‹é›\n\u2028", rewards={"own": None})
    evaluation.save(tmp_path, "before", Evaluation({"n": 1}, [answer]), step=4)
    assert json.loads((tmp_path / "eval_before.json").read_text(encoding="utf-8")) == {"n": 1, "step": 4}
    (line,) = (tmp_path / "completions_before.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
    fields = {"question": "3 + 4?", "answer": "7", "completion": "‹é›\n\u2028", "read": ""}
    fields |= {"rewards": {"own": None}, "reward": None, "row": {"day": "2026-01-02", "score": None}}
    assert json.loads(line) == fields
    assert Sample.from_json(fields).to_json() == fields


def test_an_evaluation_that_is_killed_while_it_is_saved_mixes_no_two(tmp_path, monkeypatch):
    evaluation.save(tmp_path, "after", Evaluation({"n": 1}, [Sample(text="old")]))
    monkeypatch.setattr(evaluation.jsonfiles, "write_json", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        evaluation.save(tmp_path, "after", Evaluation({"n": 1}, [Sample(text="new")]))
    assert not (tmp_path / "eval_after.json").exists()  # the old shares never stand beside the new completions


def measure(model, tokenizer, questions, task=TASK, bf16=False, rewards=None, samples=1):
    args = GRPOConfig("out", use_cpu=True, report_to="none", max_completion_length=40, per_device_eval_batch_size=64)
    args.bf16 = bf16
    policy = Policy.in_training(model, tokenizer, args, task.prompt.prefill)
    rewards = rewards or {}
    return HeldOut(questions, Scorer(task, rewards, dict.fromkeys(rewards, 1.0)), samples).evaluate(policy)


def test_before_and_after_are_measured_in_the_same_arithmetic(demo, questions):
    """Accelerate casts in the forward of a model that it has prepared: the same weights must answer the same."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(DEMO / "model", dtype=torch.float32), demo[1]
    full = measure(model, tokenizer, questions).samples
    before = measure(model, tokenizer, questions, bf16=True).samples
    model.forward = torch.autocast("cpu", torch.bfloat16)(model.forward)
    assert before == measure(model, tokenizer, questions, bf16=True).samples != full


# --- Several samples of each question


@pytest.mark.parametrize(
    ("answers", "winner"),
    [
        (["3", "4", "it is 4.0"], 1),  # equal as numbers
        (["5", "6", "6", "5"], 0),  # of equals the first
        (["0", "0", "1"], 0),  # zero is an answer
        (["", "", "7"], 2),  # no answer, no vote
        (["3 + 4", "7", "7"], 1),  # one that is not computed is another answer
        (["7", "3 + 4", "5", "5"], 2),
        (["yes", "no", "no"], 1),  # words vote as they are
        (["", ""], None),
    ],
)
def test_the_majority_is_the_first_of_the_most_frequent_answer(answers, winner):
    assert evaluation.majority(answers) == winner


def test_k_samples_give_majority_and_pass_at_k():
    right, wrong = "<answer>4</answer>", "<answer>5</answer>"
    mixes = [[right] * 4, [wrong] * 4, [right, wrong, wrong, wrong], [wrong, right, right, right]]
    row = {"answer": "4"}
    answers, _ = judged([Sample(row, right, draws=[Sample(row, text) for text in mix]) for mix in mixes], SCORER)
    summary = summarize(answers)
    assert (summary["k"], summary["maj_k"], summary["pass_k"]) == (4, 0.5, 0.75) and summary["maj_k_low"] < 0.5


# --- A judge of one's own


def test_a_judge_of_ones_own_is_asked_once_a_completion(demo, questions):
    asked = []

    def is_even(text, row):
        asked.append((row["question"], text))
        return len(text) % 2 == 0

    task = judged_by(is_even)
    rewards = {"judge_reward_func": functools.partial(judge_reward_func, task=task)}
    four = questions.select(range(4))
    answers = measure(*demo, four, task, rewards=rewards, samples=3).samples
    texts = [(one.question, sample.text) for one in answers for sample in (one, *one.draws)]
    assert asked == list(dict.fromkeys(texts))  # by accuracy and by the reward together
    for one in answers:
        lenient = len(one.text) % 2 == 0
        assert one.verdict.lenient == lenient and one.verdict.strict == (lenient and one.format.strict)
        assert one.rewards["judge_reward_func"] == 2.0 * lenient
        assert [draw.verdict.lenient for draw in one.draws] == [len(draw.text) % 2 == 0 for draw in one.draws]
        # the built-in rule chooses the majority's answer, and the judge says if it is right
        chosen = evaluation.majority([TASK.answer(draw.text) for draw in one.draws])
        assert one.majority_right == one.draws[chosen].verdict.lenient


def test_the_lenient_rule_is_asked_once_a_completion(demo, questions, monkeypatch):
    """By accuracy, by the grade and by the reward together."""
    asked = []
    monkeypatch.setattr("grpo.task.task.grade_any", lambda *of: asked.append(of) or grade_any(*of))
    task = Task(XML)
    rewards = {"judge_reward_func": functools.partial(judge_reward_func, task=task)}
    four = questions.select(range(4))
    answers = measure(*demo, four, task, rewards=rewards, samples=2).samples
    texts = [(one.question, one.gold, sample.text) for one in answers for sample in (one, *one.draws)]
    assert [(gold, text) for text, (gold,), _ in asked] == [each[1:] for each in dict.fromkeys(texts)]
    assert all(one.verdict.why for one in answers)


def test_what_a_judge_draws_depends_on_nothing_before_it(demo, questions):
    """So that it does not depend on the number of processes that share the answers."""

    def draws(text, row):
        return random.random() + np.random.rand() + torch.rand(1).item() > 1.5

    four, found = questions.select(range(4)), []
    for seed in (1, 2):
        random.seed(seed)
        torch.manual_seed(seed)
        found.append(measure(*demo, four, judged_by(draws), samples=5).samples)
    verdicts = [sample.verdict.lenient for one in found[0] for sample in (one, *one.draws)]
    assert found[0] == found[1] and len(set(verdicts)) == 2


@pytest.mark.slow
def test_two_processes_judge_as_one_each_its_share():
    """The same verdicts and error, each completion judged once by one of them, and both give up if one does."""
    alone = judged_in_shares.results()
    run_on_two(judged_in_shares.__file__)
    first, second = (json.loads(Path(f"rank{rank}.json").read_text()) for rank in (0, 1))
    for case in ("right", "failing"):
        assert [first[case][0], first[case][2]] == [second[case][0], second[case][2]] == alone[case][::2]
    asked = sorted(first["right"][1] + second["right"][1])
    assert asked == sorted(alone["right"][1]) and len(asked) == 6 * 4
    assert abs(len(first["right"][1]) - len(second["right"][1])) <= 1
    assert "cannot read 3 + 1?" in alone["failing"][0]["summary"]["judge_error"]
    assert alone["given up"] and first["given up"] and second["given up"]


# --- Rewards


def drawn_after(call):
    """The call's result, and whether the global random numbers after it are those without it."""

    def draw():
        return random.random(), np.random.rand(), torch.rand(1).item()

    def seed():
        for each in (random.seed, np.random.seed, torch.manual_seed):
            each(1)

    seed()
    found, after = call(), draw()
    seed()
    return found, after == draw()


def test_every_reward_is_recorded_and_changes_neither_random_states_nor_the_screen(demo, questions, capsys):
    """A reward that prints, draws and empties what it gets, one that fails on a row, and an async one."""

    def noisy(completions, prompts, question, **kwargs):
        print("sample of a gist")
        values = [random.random() + np.random.rand() + torch.rand(1).item() for _ in completions]
        completions.clear()
        return values

    def fails(completions, question, **kwargs):
        return [1 / (text != second) for text in question]

    async def right(completions, answer, **kwargs):
        return [float(gold in c[0]["content"]) for c, gold in zip(completions, answer, strict=True)]

    four, second = questions.select(range(4)), questions["question"][1]
    rewards = {reward.__name__: reward for reward in (noisy, fails, right)}
    found, kept = drawn_after(lambda: measure(*demo, four, rewards=rewards))
    assert kept
    shown = capsys.readouterr().out
    assert "sample of a gist" not in shown and "rewards fail on 1 of 4 answers" in shown
    assert [one.rewards["fails"] for one in found.samples] == [1, None, 1, 1]
    assert found.samples[1].reward is None and all(set(one.rewards) == set(rewards) for one in found.samples)
    known = [one.rewards["right"] for one in found.samples if one.rewards["right"] is not None]
    assert found.summary["reward_right"] == sum(known) / 3 and {"reward", "accuracy_lenient"} < set(found.summary)


def test_a_judge_of_ones_own_changes_neither_random_states_nor_the_screen(demo, questions, capsys):
    def noisy(text, row):
        print("asks a model")
        return random.random() + np.random.rand() + torch.rand(1).item() > 0

    found, kept = drawn_after(lambda: measure(*demo, questions.select(range(2)), judged_by(noisy)))
    assert kept and found.summary["accuracy_lenient"] == 1 and "asks a model" not in capsys.readouterr().out
    found, kept = drawn_after(lambda: measure(*demo, questions.select(range(2)), judged_by(exiting)))
    assert kept and found.summary["judge_error"].startswith("judge mine: SystemExit: no key (")


def exiting(text, row):
    raise SystemExit(f"no key{'' if random.random() + torch.rand(1) else '!'}")


def test_a_sum_that_lacks_a_reward_is_no_reward(demo, questions):
    """Without gold answers the rewards that need them are not scored, and the others are not all."""
    without = questions.select(range(2)).remove_columns("answer").add_column("answer", [None, None])
    rewards = {name: REWARD_FUNCS[name] for name in ("correctness_reward_func", "xmlcount_reward_func")}
    found = measure(*demo, without, judged_by(lambda text, row: True), rewards=rewards)
    assert "reward_xmlcount_reward_func" in found.summary and "reward_correctness_reward_func" not in found.summary
    assert "reward" not in found.summary and [one.reward for one in found.samples] == [None, None]
