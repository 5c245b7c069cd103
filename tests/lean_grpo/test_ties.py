"""lean_grpo/ties.py: rewards that are equal up to rounding teach nothing, and real differences do, however small."""

import math
from fractions import Fraction

import pytest
import torch
from helpers_runs import examples
from helpers_trainer import largest_difference, make_trainer, seven_tenths, trained
from hypothesis import given
from hypothesis import strategies as st
from trl import GRPOTrainer

from grpo.training.run_trainer import RunTrainer
from lean_grpo import LeanGRPOTrainer
from lean_grpo.ties import tied

NONE = math.nan


def is_tied(rows, weights=None, **options):
    rewards = torch.tensor(rows, dtype=torch.float32).view(len(rows), -1)
    weights = torch.tensor(weights or [1.0] * rewards.shape[1], dtype=torch.float32)
    return tied(rewards, weights, len(rows), **options).tolist() == [True]


TIES = {
    "one value": ([0.7] * 8,),
    "a third": ([1 / 3] * 6,),
    "a single completion": ([0.7],),
    "None beside one value": ([0.7, NONE, 0.7],),
    "the same sum": ([(0.1, 0.2), (0.2, 0.1), (0.3, 0.0)],),
    "a weighted sum": ([(2.0, 1.0), (0.0, 2.0), (4.0, 0.0)], (0.1, 0.2)),
    "signs that cancel": ([(0.7, -0.7), (0.1, -0.1), (1000.1, -1000.1)],),
    "a weight of 0": ([(0.7, 0.0), (0.7, 1.0)], (1.0, 0.0)),
    "a constant beside a sum": ([(1e6, 0.1, 0.2), (1e6, 0.3, 0.0)],),
}
DIFFERENCES = {
    "a ten-thousandth": ([1.0, 1.0001],),
    "a millionth": ([1.0, 1.000001],),
    "of small rewards": ([1e-5, 1.1e-5],),
    "of tiny rewards": ([1e-30, 2e-30],),
    "None is 0 in a sum": ([(0.7, 1.0), (NONE, 1.0)],),
    "beside a large constant": ([(1e6, 0.1), (1e6, 0.2)],),
    "beside another that cancels": ([(0.7, -0.7, 0.0), (0.1, -0.1, 0.001)],),
    "no reward at all": ([NONE, NONE],),
    "infinite": ([math.inf, 1.0],),
    "all infinite": ([math.inf, math.inf],),
}


@pytest.mark.parametrize("case", TIES)
@pytest.mark.parametrize("scale", [1.0, 1e-6, 1e6])
def test_rounding_is_no_difference(case, scale):
    rows, *weights = TIES[case]
    scaled = (scale * torch.tensor(rows, dtype=torch.double)).tolist()
    assert is_tied(scaled, *weights)


@pytest.mark.parametrize("case", DIFFERENCES)
def test_a_real_difference_is_one(case):
    assert not is_tied(*DIFFERENCES[case])


def test_normalized_rewards_are_compared_as_they_are_summed():
    opposite = [(1e6, 0.0), (0.0, 1e8)]  # each is one standard deviation of its own
    assert is_tied(opposite, normalize_first=True) and not is_tied(opposite)
    assert is_tied([(0.7, 1 / 3)] * 8, normalize_first=True)
    assert is_tied([0.7, NONE, 0.7], normalize_first=True)
    for constant in (0.7, 1e6):
        assert not is_tied([(constant, 1.0), (constant, 1.001)], normalize_first=True)
    assert not is_tied([(1.0, 1.0), (1.0, 0.0), (0.0, 0.0)], normalize_first=True)


numbers = st.integers(-3000, 3000).map(lambda number: Fraction(number, 1000))


@examples(60)
@given(
    st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=2, max_size=8),
    st.lists(numbers, min_size=3, max_size=3),
)
def test_decimal_rewards_are_tied_where_their_exact_sums_are(rows, weights):
    sums = {sum(weight * value for weight, value in zip(weights, row, strict=True)) for row in rows}
    if len(sums) > 1 and max(sums) - min(sums) < Fraction(1, 10**5):
        return  # float32 cannot tell them apart
    assert is_tied([[float(value) for value in row] for row in rows], [float(w) for w in weights]) is (len(sums) == 1)


def test_groups_are_judged_one_by_one():
    rewards = torch.tensor([0.7] * 8 + [0.7] * 7 + [0.8]).view(-1, 1)
    assert tied(rewards, torch.ones(1), 8).tolist() == [True, False]


# --- In a run


def tenths(prompts, **kwargs):
    """One value in each group: 0.1, 0.2, … 0.9."""
    return [(sum(map(ord, prompt)) % 9 + 1) / 10 for prompt in prompts]


SCALES = [
    {"scale_rewards": "group"},
    {"scale_rewards": "batch"},
    {"scale_rewards": "none"},
    {"multi_objective_aggregation": "normalize_then_sum"},
]


def moves(trainer):
    before = [weight.detach().clone() for weight in trainer.model.parameters()]
    trainer.train()
    return any(not torch.equal(old, new) for old, new in zip(before, trainer.model.parameters(), strict=True))


@pytest.mark.parametrize("own", [{}, {"packed": False}], ids=["packs", "rows"])
@pytest.mark.parametrize("settings", SCALES, ids=lambda settings: "-".join(settings.values()))
@pytest.mark.parametrize("reward", [tenths, seven_tenths])
def test_a_reward_that_says_nothing_moves_no_weight(reward, settings, own, tiny_model, tmp_path):
    options = {"num_generations": 8, "optim": "adamw_torch", "learning_rate": 1e-3, "max_steps": 2, **settings}
    trainer = make_trainer(LeanGRPOTrainer, tiny_model, tmp_path, reward=reward, own=own, **options)
    assert not moves(trainer)
    logs = trainer.state.log_history[:-1]
    assert set(trainer._logs["advantages"]) == {0.0} and not any(log["grad_norm"] or log["loss"] for log in logs)
    if reward is seven_tenths or settings.get("scale_rewards") != "batch":  # by which TRL compares all rows
        assert [log["frac_reward_zero_std"] for log in logs] == [1.0] * 2
    for spread in ("reward_std", f"rewards/{reward.__name__}/std"):
        largest = max(log[spread] for log in logs)
        assert largest == 0 if reward is seven_tenths else largest > 0.01


@pytest.mark.parametrize("settings", SCALES, ids=lambda settings: "-".join(settings.values()))
def test_stock_trl_makes_full_steps_of_rounding(settings, tiny_model, tmp_path):
    options = {"num_generations": 8, "optim": "adamw_torch", "learning_rate": 1e-3, "max_steps": 4, **settings}
    assert moves(make_trainer(GRPOTrainer, tiny_model, tmp_path, reward=tenths, **options))


@pytest.mark.parametrize("settings", SCALES, ids=lambda settings: "-".join(settings.values()))
def test_beside_ties_other_groups_have_stock_advantages(settings, tiny_model, tmp_path):
    def some(completion_ids, prompts, **kwargs):
        chosen = zip(completion_ids, tenths(prompts), strict=True)
        return [sum(ids) % 7 + value if value > 0.5 else value for ids, value in chosen]

    options = {"reward": some, "num_generations": 8, "per_device_train_batch_size": 16, **settings}
    stock, _, theirs = trained(GRPOTrainer, tiny_model, tmp_path, **options)
    lean, logs, ours = trained(LeanGRPOTrainer, tiny_model, tmp_path, **options)
    pairs = list(zip(theirs._logs["advantages"], ours._logs["advantages"], theirs._logs["prompt"], strict=True))
    dead = [value for _, value, prompt in pairs if tenths([prompt])[0] <= 0.5]
    assert set(dead) == {0.0} and 0 < len(dead) < len(pairs)
    assert all(value == expected for expected, value, _ in pairs if value)
    together = settings != SCALES[0] and settings != SCALES[2]
    assert logs[0]["frac_reward_zero_std"] == (0 if together else len(dead) / len(pairs))
    assert largest_difference(stock, lean) < 1e-2  # stock's with its rest of the dead groups
    assert len(ours._plan.computed) == len(pairs) and ours._plan.computed.sum() == len(pairs) - len(dead)


def test_rows_without_a_reward_leave_a_tie(tiny_model, tmp_path):
    """The guard's, too, which a subclass takes out after TRL has gathered the rewards."""

    def faulty(completion_ids, **kwargs):
        return [float("nan") if place % 4 == 0 else 0.7 for place in range(len(completion_ids))]

    def infinite(completions, **kwargs):
        return [math.inf if place % 4 == 0 else 0.7 for place in range(len(completions))]

    for trainer_class, reward in (LeanGRPOTrainer, faulty), (RunTrainer, infinite):
        own = {"max_faulty_rewards": 1.0} if trainer_class is RunTrainer else {}
        trainer = make_trainer(
            trainer_class, tiny_model, tmp_path, reward=reward, own=own, optim="adamw_torch", num_generations=8
        )
        assert not moves(trainer) and trainer.state.log_history[0]["frac_reward_zero_std"] == 1


def test_evaluations_of_trl_settle_ties(tiny_model, tmp_path):
    """More rows than the log of completions holds."""
    settings = {"per_device_eval_batch_size": 24, "num_generations_eval": 3, "per_device_train_batch_size": 4}
    trainer = make_trainer(LeanGRPOTrainer, tiny_model, tmp_path, reward=tenths, **settings)
    found = trainer.evaluate(trainer.train_dataset.select(range(12)))
    assert found["eval_frac_reward_zero_std"] == 1 and found["eval_loss"] == 0
    assert set(trainer._logs["advantages"]) == {0.0}
