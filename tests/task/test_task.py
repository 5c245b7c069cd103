"""A task finds completions right by the lenient rule or a judge of the user's: in rewards, groups and runs."""

import dataclasses
import json
import pickle
import random
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers_trainer import NO_TASK, trained

import train_grpo
from exact_answers.verdict import grade_any
from grpo.scoring import registry
from grpo.scoring.scorer import judge_reward_func
from grpo.task import PromptFormat, Task
from grpo.task.prompts import XML
from grpo.task.task import Format, Verdict
from grpo.training.run_trainer import RunTrainer
from rewards import REWARD_FUNCS, completion_text

BOXED = dataclasses.replace(XML, completion="{reasoning} \\boxed{{answer}}", pattern="boxed")


def judged_by(function):
    return Task(XML, judge=function, judge_name="mine")


def chosen(names, task):
    return registry.rewards_by_name(names, {}, registry.parameters_of_run(task, 64), registry.shipped())


# --- Verdicts


def test_what_is_not_right_is_not_strictly_right():
    task, row = Task(XML), {"answer": "72"}
    for text, right in ((task.perfect("So", "72"), True), (f"{task.perfect('So', '72')}That is wrong.", False)):
        assert task.verdict(text, row)[:3] == ("72", right, right)


def test_the_lenient_rule_reads_answers_by_the_formats_pattern():
    task = Task(BOXED)
    assert task.answer(r"so \boxed{72}.") == "72" and task.perfect("So", "72") == r"So \boxed{72}"
    right, wrong = (task.verdict(text, {"answer": "72"}) for text in (r"so \boxed{72.0}.", r"\boxed{7}"))
    assert right.lenient is True and wrong.lenient is False
    assert task.verdict("72", {"answer": None}) == Verdict("72") and not task.can_judge({"answer": None})


@pytest.mark.parametrize(
    ("answer", "strict", "lenient"),
    [("4", True, True), ("four", True, True), ("4.0", False, True), ("Four.", False, True), ("5", False, False),
     ("4 or 5", False, False), ("", False, False)],
)  # fmt: skip
def test_any_of_several_gold_answers_is_right(answer, strict, lenient):
    task, row, text = Task(XML), {"answer": ["4", "four"]}, XML.answered("So.", answer)
    verdict = task.verdict(text, row)
    assert (verdict.lenient, verdict.strict) == (lenient, strict)
    assert REWARD_FUNCS["correctness_reward_func"]([text], answer=[row["answer"]]) == [2.0 * strict]
    assert judge_reward_func([text], task=task, answer=[row["answer"]]) == [2.0 * lenient]


def test_a_judge_of_ones_own_gets_text_and_row_and_what_it_raises_is_passed_on():
    task = judged_by(lambda text, row: text == row["target"])
    assert [task.verdict(text, {"target": "7"}).lenient for text in "78"] == [True, False] and task.can_judge({})
    with pytest.raises(KeyError):
        task.verdict("7", {})
    with pytest.raises(KeyError):  # a reward's fault, which excludes the row
        judge_reward_func(["a"], task=task)
    for no_verdict in (0.5, "no", None):
        with pytest.raises(TypeError, match="let it return True or False"):
            judged_by(lambda text, row, value=no_verdict: value).verdict("7", {})


def test_a_judge_may_change_its_copy_of_the_row():
    row = {"level": 1}
    assert judged_by(lambda text, row: row.pop("level") == 1).verdict("7", row).lenient and row == {"level": 1}


def test_a_recorded_runs_judge_that_is_not_here_gives_no_verdict():
    task = Task(XML, judge_name="mine.f")
    assert task.verdict("7", {"answer": "7"}) == Verdict("7") and not task.can_judge({"answer": "7"})


RIGHT = "<reasoning>\nr\n</reasoning>\n<answer>\n7.0\n</answer>\n"
SHAPED = "<reasoning>r</reasoning><answer>8</answer>"


@pytest.mark.parametrize(
    ("text", "verdict", "form", "by_a_judge"),
    [  # read, right, strictly right; the strict format, the soft one; with a judge strict is right in the format
        (RIGHT, ("7.0", True, False), (True, True), True),
        (RIGHT.replace(".0", ""), ("7", True, True), (True, True), True),
        (SHAPED, ("8", False, False), (False, True), False),
        ("7", ("7", True, True), (False, False), False),
    ],
)
def test_strict_is_by_characters_and_lenient_by_value(text, verdict, form, by_a_judge):
    assert Task(XML).verdict(text, {"answer": "7"})[:3] == verdict and Task(XML).form(text) == form
    judged = judged_by(lambda text, row: True).verdict(text, {})
    assert judged == Verdict(verdict[0], True, by_a_judge)


SHORT = PromptFormat("", completion="{answer}", pattern="text")


def test_without_a_format_nothing_is_said_of_it():
    """Any text is the answer, which is strictly right if it is the gold answer, or if the judge says so."""
    assert not Task(SHORT).has_format and Task(XML).has_format and Task(BOXED).has_format
    for text, right, exact in (("billing", True, True), ("Billing.", True, False), ("", False, False)):
        assert Task(SHORT).verdict(text, {"answer": "billing"})[:3] == (text, right, exact)
        assert Task(SHORT).form(text) == Format(None, None)
    judged = Task(SHORT, judge=lambda text, row: True, judge_name="mine")
    assert judged.verdict("Billing.", {"answer": "billing"}) == Verdict("Billing.", True, True)


def test_a_verdict_says_what_the_rule_read_and_why():
    for text, judged, why in [
        ("<answer>7 cm</answer>", "7 cm", "unit"),
        ("So she has 6.", "6", "value"),
        ("It is 6 or 7.", "6 or 7", "two answers"),
        ("Now we add 3 and 4.", "", "not understood"),
    ]:
        verdict = Task(XML).verdict(text, {"answer": ["7 km", "8"]})
        assert (verdict.judged, verdict.why) == (judged, why)


def test_the_record_asks_a_question_again():
    task = Task(BOXED, [("1 + 1?", "1 + 1 = 2", "2")])
    record = json.loads(json.dumps(task.record()))
    again = Task(type(XML)(**record["prompt"]), record["shots"])
    assert again.ask("2 + 2?") == task.ask("2 + 2?")


# --- Rewards


def test_the_judge_reward_pays_what_the_task_finds_right():
    assert judge_reward_func(["It is 7.", "<answer>8</answer>"], answer=["7", "7"], trainer_state=None) == [2.0, 0.0]


def test_a_judges_row_holds_the_columns_of_the_rollout():
    def judge(text, row):
        return row == {"answer": text, "kept": text, "prompt": "q"}

    columns = {"answer": ["a", "b"], "trainer_state": object(), "log_extra": print, "kept": ("a", "b"), "short": [1]}
    assert judge_reward_func(["a", "x"], task=judged_by(judge), prompts=["q", "q"], **columns) == [2.0, 0.0]


def test_the_runs_rewards_follow_its_task():
    names = ["correctness_reward_func", "int_reward_func", "soft_format_reward_func", "judge_reward_func"]
    rewards = chosen(names, Task(BOXED))
    values = [reward([r"so \boxed{72}"], answer=["72"]) for reward in rewards.values()]
    assert values == [[2.0], [0.5], [0.5], [2.0]] and list(rewards) == names
    assert pickle.loads(pickle.dumps(rewards["int_reward_func"]))([r"\boxed{7}"]) == [0.5]
    usual = chosen(names[:3], Task(XML))
    assert all(usual[name] is REWARD_FUNCS[name] for name in usual)


# --- Groups of a rollout

KINDS = ("all_right", "all_wrong", "mixed")


def test_groups_are_judged_once_a_completion(tiny_model, tmp_path):
    asked = []
    task = judged_by(lambda text, row: asked.append((row["number"], text)) or len(text) % 2)
    judged = list(chosen(["judge_reward_func"], task).values())
    columns = {"answer": ["1"] * 40, "number": list(range(40))}
    _, log, trainer = trained(RunTrainer, tiny_model, tmp_path, reward=judged, columns=columns, task=task)
    assert len(asked) == len(set(asked)) > 1  # by the reward and for the groups together
    texts = [completion_text(completion) for completion in trainer._logs["completion"]]
    shares = torch.tensor([len(text) % 2 for text in texts]).float().view(-1, trainer.num_generations).mean(1)
    assert torch.equal(trainer.solved, shares)
    counts = [(shares == 1).sum(), (shares == 0).sum(), ((shares > 0) & (shares < 1)).sum()]
    assert [log[0][f"groups/{kind}"] for kind in KINDS] == [count / len(shares) for count in counts]


def test_the_lenient_rule_is_asked_once_a_completion(tiny_model, tmp_path, monkeypatch):
    """By its reward and for the groups, as a judge of one's own is."""
    asked = []
    monkeypatch.setattr("grpo.task.task.grade_any", lambda *pair: asked.append(pair) or grade_any(*pair))
    task = Task(XML)
    judged = list(chosen(["judge_reward_func"], task).values())
    _, _, trainer = trained(RunTrainer, tiny_model, tmp_path, reward=judged, columns={"answer": ["1"] * 40}, task=task)
    assert [text for text, *_ in asked] == [completion_text(completion) for completion in trainer._logs["completion"]]


def test_groups_that_nobody_can_judge_are_not_logged(tiny_model, tmp_path, capsys):
    def logged(task, answer="1"):
        _, log, trainer = trained(RunTrainer, tiny_model, tmp_path, columns={"answer": [answer] * 40}, task=task)
        return [key for key in log[0] if key.startswith("groups/")], trainer.solved.isnan().all()

    assert logged(Task(XML), answer=None) == ([], True)
    assert len(logged(Task(XML))[0]) == 3
    capsys.readouterr()
    for function in (lambda text, row: row["gone"], lambda text, row: sys.exit("no key")):
        assert logged(judged_by(function)) == ([], True)
        assert capsys.readouterr().out.count("note: the judge fails") == 1


def test_a_judge_that_draws_random_numbers_changes_no_training(tiny_model, tmp_path):
    def gradients(task):
        options = {"task": task, "max_steps": 2, "max_completion_length": 6, "lengths": "sampled"}
        return trained(RunTrainer, tiny_model, tmp_path, **options)[0]

    def drawing(text, row):
        return random.random() + np.random.rand() + torch.rand(1).item() > 1.5

    plain, judged = gradients(NO_TASK), gradients(judged_by(drawing))
    assert all(torch.equal(one[name], other[name]) for one, other in zip(plain, judged, strict=True) for name in one)
    assert any(gradient.any() for gradient in plain[1].values())


# --- A run's command


MY_TASK = '''
class Even:
    """Right: an even number of words, and the question is there."""
    def __call__(self, text, row):
        return bool(row["question"]) and len(text.split()) % 2 == 0

even = Even()
'''


@pytest.fixture
def my_task():
    """A file of one's own in the working directory, with a judge."""
    Path("my_task.py").write_text(MY_TASK)
    return {"judge": "my_task.even"}


def test_a_run_is_judged_by_it_everywhere(my_task, tiny_run):
    argv = tiny_run(**my_task, allow_custom_rewards="true", eval_num_samples="2", max_completion_length="12")
    assert train_grpo.main([*argv, "--reward_funcs", "judge_reward_func", "xmlcount_reward_func"]) == 0
    records = [json.loads(line) for line in Path("run/completions_after.jsonl").read_text().splitlines()]
    assert [record["lenient"] for record in records] == [len(r["completion"].split()) % 2 == 0 for r in records]
    summary = json.loads(Path("run/eval_after.json").read_text())
    even = [[len(text.split()) % 2 == 0 for text in record["samples"]] for record in records]
    assert summary["pass_k"] == sum(map(any, even)) / len(records)
    assert json.loads(Path("run/run.json").read_text())["settings"]["judge"] == "my_task.even"


def test_data_without_gold_answers_needs_a_judge_alone(my_task, tiny_run, write_jsonl, capsys):
    data = write_jsonl([{"question": f"Reach {2 * n + 1} with {n} and {n + 1}."} for n in range(60)])
    argv = tiny_run(**my_task, dataset_name=data, reward_funcs="judge_reward_func", dry_run="true")
    assert train_grpo.main(argv) == 2
    assert "judge: " in capsys.readouterr().err  # whose code may not run
    assert train_grpo.main([*argv, "--allow_custom_rewards", "true"]) == 0
