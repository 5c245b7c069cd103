"""grpo/rewarding/groups.py: which groups teach, and the gradient without those that no completion solves."""

import math
from pathlib import Path

import pytest
import torch
from helpers_commands import command
from helpers_groups import Skipping, both, is_right, rollouts
from helpers_runs import ROOT
from helpers_trainer import largest_difference, trained

from grpo.rewarding import groups
from grpo.rewarding.judge import Judge


def test_equal_texts_of_a_row_are_judged_once():
    asked = []

    def judged(text, row):
        asked.append((text, row["question"]))
        return text == row["question"]

    rows = [{"question": "a"}, {"question": "a"}, {"question": "a"}, {"question": "b"}, {"question": "b"}]
    texts = ["a", "b", "a", "b", [{"role": "assistant", "content": "a"}]]
    assert groups.verdicts(Judge(function=judged), rows, texts) == [1, 0, 1, 1, 0]
    assert asked == [("a", "a"), ("b", "a"), ("b", "b"), ("a", "b")]


def test_rows_that_nobody_can_judge_are_not_counted():
    rows = [{"answer": "7"}, {"answer": "7"}, {"answer": None}, {"answer": None}]
    right = groups.verdicts(Judge(), rows, ["<answer>7</answer>", "8", "7", "7"])
    assert right[:2] == [1, 0] and all(map(math.isnan, right[2:]))
    solved = groups.solved(torch.tensor(right), 2)
    assert groups.shares(solved) == {"groups/all_right": 0, "groups/all_wrong": 0, "groups/mixed": 1}
    assert groups.shares(solved[1:]) == {}


def test_the_three_shares_add_up():
    nan = math.nan
    solved = groups.solved(torch.tensor([1, 1, 0, 0, 1, 0, 1, nan, nan, 0, nan, nan]), 2)
    shares = {"groups/all_right": 0.4, "groups/all_wrong": 0.4, "groups/mixed": 0.2}
    assert groups.shares(solved) == pytest.approx(shares)


CASES = {
    "dapo": {},
    "with a reference model": {"beta": 0.2},
    "grpo": {"loss_type": "grpo", "beta": 0.2},
    "bnpo": {"loss_type": "bnpo"},
    "dr_grpo": {"loss_type": "dr_grpo"},
    "several steps of a rollout": {"steps_per_generation": 4, "beta": 0.2, "max_steps": 2},
    "batch scale": {"scale_rewards": "batch"},
}


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "stock step"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_unsolved_groups_move_nothing(case, packed, tiny_model, tmp_path):
    """As in stock TRL with these rows masked; the rewards of every completion differ."""
    (stock, stock_log, _), (lean, lean_log, trainer) = both(tiny_model, tmp_path, own={"packed": packed}, **case)
    assert (trainer.backend is not None) is packed
    assert largest_difference(stock, lean) < 1e-6
    shares = [lean_log[0][f"groups/{kind}"] for kind in ("all_right", "all_wrong", "mixed")]
    assert sum(shares) == pytest.approx(1) and 0 < shares[1] < 1 and shares[2] > 0
    assert lean_log[0]["loss"] == pytest.approx(stock_log[0]["loss"], rel=1e-4, abs=1e-6)
    for key in ("reward", "reward_std", "frac_reward_zero_std"):  # what was sampled is logged as it is
        assert lean_log[0][key] == stock_log[0][key]


def test_without_it_they_do_move_something(tiny_model, tmp_path):
    class Judging(Skipping):
        skip_unsolved = False

    (stock, *_), _ = both(tiny_model, tmp_path)
    settings = {"lengths": rollouts(3), "columns": {"hopeless": [True] * 40}}
    lean, log, _ = trained(Judging, tiny_model, tmp_path, **settings)
    assert largest_difference(stock, lean) > 0.01 and log[0]["groups/all_wrong"] == 1
    skipped, log, _ = trained(Skipping, tiny_model, tmp_path, beta=0.2, **settings)
    assert not any(gradient.any() for gradient in skipped[0].values())  # and it does not fail


def test_completions_whose_rewards_failed_are_not_in_their_group(tiny_model, tmp_path):
    """Here these are the right ones."""

    def fails_where_right(completions, hopeless, **kwargs):
        for text, row in zip(completions, hopeless, strict=True):
            if is_right(text, {"hopeless": row}):
                raise ValueError("it fails")
        return [float(len(text)) for text in completions]

    own = {"max_faulty_rewards": 1.0}
    settings = {"lengths": rollouts(3), "columns": {"hopeless": [False] * 40}, "own": own}
    steps, log, _ = trained(Skipping, tiny_model, tmp_path, reward=fails_where_right, **settings)
    assert log[0]["rewards/left_out"] > 0.5 and log[0]["groups/all_wrong"] == 1
    assert not any(gradient.any() for gradient in steps[0].values())


TWO_PROCESSES = """
import os, sys
from pathlib import Path
sys.path[:0] = [{root!r}, {root!r} + "/tests/helpers"]
from accelerate import PartialState
from helpers_groups import both
from helpers_trainer import largest_difference

rank = int(os.environ["RANK"])
for settings in (dict(), dict(beta=0.2, loss_type="grpo", num_generations=16)):  # 16: a group of both processes
    (stock, _, _), (lean, log, trainer) = both({model!r}, Path({out!r}), seed=3 + 10 * rank, **settings)
    assert largest_difference(stock, lean) < 5e-6
    assert rank or 0 < log[0]["groups/all_wrong"] < 1
    print("equal", flush=True)
PartialState().wait_for_everyone()
trainer.accelerator.end_training()
"""


@pytest.mark.slow
def test_two_processes_skip_the_same_groups(tiny_model, tmp_path):
    Path("two.py").write_text(TWO_PROCESSES.format(root=str(ROOT), model=tiny_model, out=str(tmp_path / "out")))
    done = command("two.py", processes=2)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.count("equal") == 4
