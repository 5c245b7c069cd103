"""grpo/geometry.py: what TRL will do with a batch, said before."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo.config.geometry import solve
from grpo.core.errors import UserError

BASE = {
    "per_device_train_batch_size": 16,
    "gradient_accumulation_steps": 4,
    "num_generations": 16,
    "steps_per_generation": None,
    "generation_batch_size": None,
    "num_iterations": 1,
}


def solved(world_size=1, **overrides):
    return solve({**BASE, **overrides}, world_size)


def test_the_inline_defaults_are_the_demo_gists_64_completions():
    geometry = solved()
    assert (geometry.rollout, geometry.per_step, geometry.rollout_prompts) == (64, 64, 4)
    assert "4 prompts × 16 generations = 64 completions per optimizer step" in geometry.describe()
    assert "on-policy" in geometry.describe()


def test_steps_per_epoch_of_gsm8k():
    assert solved().steps_per_epoch(7473) == 1868
    assert solved(world_size=4).steps_per_epoch(7473) == 467
    assert solved(num_iterations=2).steps_per_epoch(7473) == 3736
    assert solved().steps_per_epoch(3) == 0


def test_generation_batch_size_counts_all_devices():
    two = solved(2, per_device_train_batch_size=32, gradient_accumulation_steps=1, generation_batch_size=64)
    assert two.steps_per_generation == 1 and "on-policy" in two.describe()
    one = solved(1, per_device_train_batch_size=32, gradient_accumulation_steps=1, generation_batch_size=64)
    assert one.steps_per_generation == 2 and "serves 2 optimizer step(s)" in one.describe()


@pytest.mark.parametrize(
    ("overrides", "names", "remedy"),
    [
        (dict(per_device_train_batch_size=1), "num_generations: 16", "per_device_train_batch_size 4"),
        (dict(num_generations=24), "num_generations: 24", "num_generations 2, 4, 8, 16"),
        (dict(steps_per_generation=3), "steps_per_generation: 3", "give 4"),
        (dict(generation_batch_size=24), "generation_batch_size: 24", "multiple of 16"),
        (dict(generation_batch_size=48), "generation_batch_size: 48, or 3 steps", "give 64"),
        (dict(generation_batch_size=64, num_generations=24), "num_generations: 24", "generation_batch_size 192, 384"),
        (dict(generation_batch_size=64, steps_per_generation=4), "generation_batch_size: 64", "give one"),
    ],
)
def test_impossible_geometry_names_the_value_and_what_would_do(overrides, names, remedy):
    with pytest.raises(UserError) as caught:
        solved(**overrides)
    assert names in str(caught.value) and remedy in str(caught.value)


small = st.integers(1, 12)


@given(small, small, small, st.integers(2, 12), st.one_of(st.none(), small))
def test_solved_geometry_holds_whole_groups_and_advice_is_valid(world, batch, accumulation, group, steps):
    settings = dict(
        BASE,
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=accumulation,
        num_generations=group,
        steps_per_generation=steps,
    )
    try:
        geometry = solve(settings, world)
    except UserError as error:
        if "does not divide" in str(error):
            advised = int(str(error).split("give per_device_train_batch_size ")[1].split(",")[0])
            assert solve({**settings, "per_device_train_batch_size": advised}, world)
        return
    assert geometry.rollout % group == 0
    assert geometry.rollout_prompts * group == geometry.rollout
