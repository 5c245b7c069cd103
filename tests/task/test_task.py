"""One judge, the built-in rule or the user's own, finds completions right in rewards, evaluations and preflight."""

import json
import pickle
import random
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from grpo.rewarding.judge import Judge
from helpers_runs import DEMO, ROOT
from helpers_trainer import make_trainer, trained

import train_grpo
from grpo.core.checklist import Check
from grpo.rewarding import probe, registry
from grpo.training.run_trainer import RunTrainer
from rewards import REWARD_FUNCS, completion_text


@pytest.fixture(autouse=True)
def my_tasks(monkeypatch):
    shutil.copy(ROOT / "tests/programs/my_tasks.py", ".")
    monkeypatch.syspath_prepend(str(Path.cwd()))
    monkeypatch.delitem(sys.modules, "my_tasks", raising=False)


def test_the_built_in_judge_reads_answers_by_its_pattern():
    judge = Judge("boxed")
    assert judge.extract(r"so \boxed{72}.") == "72"
    assert judge.verdict(r"so \boxed{72.0}.", {"answer": "72"}) and not judge.verdict(r"\boxed{7}", {"answer": "72"})
    assert not judge.verdict("72", {"answer": None})


def test_a_judge_of_ones_own_gets_text_and_row_and_what_it_raises_is_passed_on():
    judge = Judge(function=lambda text, row: text == row["target"], name="mine")
    assert judge.verdict("7", {"target": "7"}) and not judge.verdict("8", {"target": "7"})
    with pytest.raises(KeyError):
        judge.verdict("7", {})
    with pytest.raises(KeyError):  # a reward's fault, which excludes the row
        REWARD_FUNCS["judge_reward_func"](["a"], judge=judge)


KINDS = ("all_right", "all_wrong", "mixed")


@pytest.mark.parametrize("reward", ["judge_reward_func", "xmlcount_reward_func"])
def test_groups_are_judged_whatever_the_rewards_and_once_a_completion(reward, tiny_model, tmp_path, monkeypatch):
    asked = []
    judge = Judge(function=lambda text, row: asked.append((row["number"], text)) or len(text) % 2, name="mine")
    monkeypatch.setattr(RunTrainer, "judge", judge)
    chosen = list(registry.choose([reward], {}, {"judge": judge}).values())
    columns = {"answer": ["1"] * 40, "number": list(range(40))}
    _, log, trainer = trained(RunTrainer, tiny_model, tmp_path, reward=chosen, columns=columns, max_steps=1)
    assert len(asked) == len(set(asked)) > 1  # by the reward and for the groups together
    texts = [completion_text(completion) for completion in trainer._logs["completion"]]
    shares = torch.tensor([len(text) % 2 for text in texts]).float().view(-1, trainer.num_generations).mean(1)
    assert torch.equal(trainer.solved, shares)
    counts = [(shares == 1).sum(), (shares == 0).sum(), ((shares > 0) & (shares < 1)).sum()]
    assert [log[0][f"groups/{kind}"] for kind in KINDS] == [count / len(shares) for count in counts]


def test_groups_that_nobody_can_judge_are_not_logged(tiny_model, tmp_path, monkeypatch, capsys):
    def logged(judge, **columns):
        monkeypatch.setattr(RunTrainer, "judge", judge)
        _, log, trainer = trained(RunTrainer, tiny_model, tmp_path, columns=columns, max_steps=1)
        return [key for key in log[0] if key.startswith("groups/")], trainer.solved.isnan().all()

    assert logged(None, answer=["1"] * 40) == ([], True)
    assert logged(Judge(), answer=[None] * 40) == ([], True)
    assert len(logged(Judge(), answer=["1"] * 40)[0]) == 3
    capsys.readouterr()
    for function in (lambda text, row: row["gone"], lambda text, row: sys.exit("no key")):
        assert logged(Judge(function=function, name="mine"), answer=["1"] * 40) == ([], True)
        assert capsys.readouterr().out.count("note: the judge fails") == 1


def test_a_judge_that_fails_on_another_process_is_named_too(tiny_model, tmp_path, capsys):
    trainer = make_trainer(RunTrainer, tiny_model, tmp_path)
    for _ in range(2):
        trainer._note_solved(torch.tensor([1.0, 0.0, 1.0, torch.inf] + [1.0] * 4))
    assert trainer.solved.isnan().tolist() == [True, False] and trainer.solved[1] == 1
    assert capsys.readouterr().out.count("note: the judge fails") == 1


def test_a_judge_that_draws_random_numbers_changes_no_training(tiny_model, tmp_path, monkeypatch):
    def gradients(judge):
        monkeypatch.setattr(RunTrainer, "judge", judge)
        options = {"max_steps": 2, "max_completion_length": 6, "lengths": "sampled"}
        return trained(RunTrainer, tiny_model, tmp_path, **options)[0]

    def drawing(text, row):
        return random.random() + np.random.rand() + torch.rand(1).item() > 1.5

    plain, judged = gradients(None), gradients(Judge(function=drawing, name="mine"))
    assert all(torch.equal(one[name], other[name]) for one, other in zip(plain, judged, strict=True) for name in one)
    assert any(gradient.any() for gradient in plain[1].values())


def test_a_judge_remembers_a_verdict_until_it_is_told_to_forget():
    asked = []
    judge = Judge(function=lambda text, row: asked.append(row.pop("level")) is None, name="mine")
    rows = [{"level": 1}, {"level": 2}, {"level": 1, "prompts": "other", "completion": "x", "completion_ids": [3]}]
    assert all(judge.verdict("7", row) for row in rows) and asked == [1, 2]
    assert rows[0] == {"level": 1}  # it may change its own copy
    judge.forget()
    assert judge.verdict("7", rows[0]) and asked == [1, 2, 1]


def test_the_judge_reward_pays_what_the_judge_finds_right():
    reward = REWARD_FUNCS["judge_reward_func"]
    assert reward(["It is 7.", "<answer>8</answer>"], answer=["7", "7"], trainer_state=None) == [2.0, 0.0]
    judge = Judge(function=lambda text, row: int(text) in row["numbers"], name="mine")
    assert reward(["3", "4"], judge=judge, numbers=[[1, 3], [5, 6]], question=["?", "?"]) == [2.0, 0.0]
    asked = Judge(function=lambda text, row: text in row["prompt"], name="mine")
    assert reward(["3", "4"], judge=asked, prompts=["3?", "5?"]) == [2.0, 0.0]


def test_a_judges_row_holds_the_columns_of_the_rollout():
    def kept(text, row):
        return row == {"answer": text, "kept": text, "prompts": "q", "prompt": "q"}

    columns = {"answer": ["a", "b"], "trainer_state": object(), "log_extra": print, "kept": ("a", "b"), "short": [1]}
    reward = REWARD_FUNCS["judge_reward_func"]
    assert reward(["a", "b"], judge=Judge(function=kept), prompts=["q", "q"], **columns) == [2.0, 2.0]


def test_the_runs_rewards_follow_its_judge_and_pattern():
    follow = {"answer_pattern": "boxed", "judge": Judge("boxed")}
    names = ["correctness_reward_func", "int_reward_func", "judge_reward_func"]
    rewards = registry.choose(names, {}, follow)
    values = [reward([r"so \boxed{72}"], answer=["72"]) for reward in rewards.values()]
    assert values == [[2.0], [0.5], [2.0]] and list(rewards) == names
    assert pickle.loads(pickle.dumps(rewards["int_reward_func"]))([r"\boxed{7}"]) == [0.5]
    usual = registry.choose(names, {}, {"answer_pattern": "xml"})
    assert usual["correctness_reward_func"] is REWARD_FUNCS["correctness_reward_func"]


ROW = {"question": "2 + 2?", "answer": "4", "prompt": "2 + 2?"}


def judged(function, row=ROW) -> Check:
    (check,) = probe.about_judge(Judge(function=function, name="mine"), row, train_grpo.PROMPT_FORMATS["xml"])
    return check


def test_preflight_tries_a_judge_of_ones_own():
    assert not list(probe.about_judge(Judge(), ROW, train_grpo.PROMPT_FORMATS["xml"]))
    fine = judged(lambda text, row: "<answer>\n4\n" in text)
    assert fine.status == "ok" and fine.finding.endswith("perfect, extra text")  # those that it finds right
    for same_for_all in (True, False):
        assert judged(lambda text, row, value=same_for_all: value).status == "warning"
    assert judged(lambda text, row: False, {"question": "?", "answer": None}).status == "ok"
    assert "0.5" in judged(lambda text, row: 0.5).finding  # that is neither right nor wrong
    assert "KeyError: 'x' (test_judge.py:" in judged(lambda text, row: row["x"]).finding


@pytest.mark.slow
def test_a_run_is_judged_by_it_everywhere(tiny_run):
    argv = tiny_run(
        judge="my_tasks.either", allow_custom_rewards="true", output_dir="run", eval_num_samples="2",
        max_steps="2", max_completion_length="12",
    )  # fmt: skip
    assert train_grpo.main([*argv, "--reward_funcs", "judge_reward_func", "xmlcount_reward_func"]) == 0
    records = [json.loads(line) for line in Path("run/completions_after.jsonl").read_text().splitlines()]
    assert [record["lenient"] for record in records] == [len(r["completion"].split()) % 2 == 0 for r in records]
    summary = json.loads(Path("run/eval_after.json").read_text())
    even = [[len(text.split()) % 2 == 0 for text in record["samples"]] for record in records]
    assert summary["pass_k"] == sum(map(any, even)) / len(records)
    assert json.loads(Path("run/run.json").read_text())["settings"]["judge"] == "my_tasks.either"


DRY_RUN = ["--config", "demo", "--dry_run", "true", "--report_to", "none"]


@pytest.mark.parametrize(
    "flags",
    [
        ["--judge", "my_tasks.even"],  # whose code may not run
        ["--judge", "my_tasks.broken", "--allow_custom_rewards", "true"],
    ],
)
def test_a_mistake_names_its_setting(flags, capsys):
    assert train_grpo.main([*DRY_RUN, "--dataset_name", str(DEMO / "test.jsonl"), *flags]) == 2
    assert f"{flags[0].removeprefix('--')}: " in capsys.readouterr().err


def test_data_without_gold_answers_needs_a_judge_alone(write_jsonl):
    data = write_jsonl([{"question": f"Reach {2 * n + 1} with {n} and {n + 1}."} for n in range(60)])
    argv = [*DRY_RUN, "--dataset_name", data, "--reward_funcs", "judge_reward_func", "soft_format_reward_func"]
    assert train_grpo.main(argv) == 2
    assert train_grpo.main([*argv, "--judge", "my_tasks.yes", "--allow_custom_rewards", "true"]) == 0
