"""grpo/training/trainer.py: a step computes what can move the policy, in bounded packs, and logs what it computed.

Its gradient is stock TRL's: test_exactness.py.
"""

import pytest
from helpers_trainer import PROMPTS, completions, largest_difference, make_trainer, no_group_lives, trained
from transformers import AutoModelForCausalLM
from trl import GRPOTrainer

from grpo.training.trainer import LeanGRPOTrainer


def shapes_of(model):
    """The shapes of what goes through a model, as a list that grows."""
    seen = []
    model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["input_ids"].shape), with_kwargs=True
    )
    return seen


def loaded(tiny_model):
    return AutoModelForCausalLM.from_pretrained(tiny_model, dtype="float32")


def test_no_more_than_a_pack_is_computed_at_once(tiny_model, tmp_path):
    """pack_tokens bounds the memory of a step, whatever the micro-batch is."""
    seen = shapes_of(model := loaded(tiny_model))
    trained(LeanGRPOTrainer, model, tmp_path, own={"pack_tokens": 64})
    assert len(seen) > 3 and max(rows * length for rows, length in seen) <= 64


def test_a_step_computes_half_as_many_positions_as_stocks(tiny_model, tmp_path):
    """Without padding, equal prompts and dead completions; but for the two rows of the trial at the start."""
    computed = {}
    for trainer_class in (GRPOTrainer, LeanGRPOTrainer):
        seen = shapes_of(model := loaded(tiny_model))
        trainer = make_trainer(trainer_class, model, tmp_path)
        seen.clear()
        trainer.train()
        computed[trainer_class] = sum(rows * length for rows, length in seen)
    assert computed[LeanGRPOTrainer] < computed[GRPOTrainer] / 2


def test_without_any_advantage_gradients_are_zero_as_in_stock(tiny_model, tmp_path):
    """Not none: the optimizer's momentum and weight decay go on."""
    gradients, logs, _ = trained(LeanGRPOTrainer, tiny_model, tmp_path, reward=no_group_lives)
    stock, _, _ = trained(GRPOTrainer, tiny_model, tmp_path, reward=no_group_lives)
    assert gradients[0].keys() == stock[0].keys()
    assert not any(gradient.any() for gradient in gradients[0].values())
    assert logs[0]["loss"] == 0 and logs[0]["entropy"] is None  # nothing was computed that could tell


def test_the_entropy_is_stocks_where_all_completions_are_computed(tiny_model, tmp_path):
    """Without an advantage they are not, and the logged entropy is that of the others."""
    options = {"reward": lambda completion_ids, **_: [float(place % 4) for place in range(len(completion_ids))]}
    stock, lean = (trained(kind, tiny_model, tmp_path, **options)[1][0] for kind in (GRPOTrainer, LeanGRPOTrainer))
    assert lean["entropy"] == pytest.approx(stock["entropy"], rel=1e-5)


def test_every_epoch_has_stocks_order_of_prompts(tiny_model, tmp_path):
    orders = []
    for trainer_class in (GRPOTrainer, LeanGRPOTrainer):
        asked = []

        def sample(prompt_ids, *others, asked=asked):
            asked.append(list(dict.fromkeys(map(tuple, prompt_ids))))
            return [[5, 2]] * len(prompt_ids), None

        options = {"prompts": PROMPTS[:8], "lengths": sample, "max_steps": -1, "num_train_epochs": 2}
        make_trainer(trainer_class, tiny_model, tmp_path, **options).train()
        orders.append(asked)
    assert orders[0] == orders[1] and len(orders[0]) == 4 and orders[0][:2] != orders[0][2:]  # two rollouts an epoch


def test_evaluation_during_training_is_stocks(tiny_model, tmp_path):
    settings = {"per_device_eval_batch_size": 4, "num_generations_eval": 2}
    losses = []
    for trainer_class in (GRPOTrainer, LeanGRPOTrainer):
        _, _, trainer = trained(trainer_class, tiny_model, tmp_path, learning_rate=0.0, beta=0.1, **settings)
        trainer._generate_single_turn = completions()
        losses.append(trainer.evaluate(trainer.train_dataset.select(range(6))))
    for key in ("eval_loss", "eval_entropy", "eval_kl", "eval_clip_ratio/region_mean"):
        assert losses[1][key] == pytest.approx(losses[0][key], rel=1e-4, abs=1e-6)


def test_under_autocast_the_gradients_are_stocks_to_its_rounding(tiny_model, tmp_path):
    """In bfloat16 both sides round, each in shapes of its own."""
    stock, _, _ = trained(GRPOTrainer, tiny_model, tmp_path, bf16=True)
    lean, _, trainer = trained(LeanGRPOTrainer, tiny_model, tmp_path, bf16=True, own={"pack_tokens": 30})
    exact, _, _ = trained(GRPOTrainer, tiny_model, tmp_path)
    assert trainer.kernel is not None
    assert 1e-4 < largest_difference(exact, lean) < 0.05  # it is under autocast
    assert largest_difference(stock, lean) < 0.05
