"""What a subclass of LeanGRPOTrainer overrides is called, and its gradients are those of the same GRPOTrainer."""

import pytest
import torch
from helpers_trainer import largest_difference, rewards_by_sum, trained
from trl import GRPOTrainer

from grpo.training.trainer import LeanGRPOTrainer


class LossOfItsOwn:
    """Not a sum over rows: the largest loss of the micro-batch's tokens."""

    def _compute_loss(self, model, inputs):
        ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1)
        mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1)
        width = inputs["completion_ids"].shape[1]
        logps, _, _ = self._get_per_token_logps_and_entropies(model, ids, mask, width, compute_entropy=True)
        return super()._compute_loss(model, inputs) - (logps * inputs["completion_mask"]).sum(1).max()


class AdvantagePerToken:
    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        mask = output["completion_mask"]
        output["advantages"] = output["advantages"][:, None] * torch.linspace(1, 0, mask.shape[1])
        return output


class OtherInputs:
    """Replaces every micro-batch when its turn comes."""

    def compute_loss(self, model, inputs, *args, **kwargs):
        return super().compute_loss(model, {**inputs, "advantages": inputs["advantages"] + 1}, *args, **kwargs)


class InputsInPlace:
    def _prepare_inputs(self, generation_batch):
        inputs = super()._prepare_inputs(generation_batch)
        inputs["advantages"] += 1
        return inputs


@pytest.mark.parametrize("change", [LossOfItsOwn, AdvantagePerToken, OtherInputs, InputsInPlace])
def test_subclasses_have_the_gradients_of_stocks_subclass(tiny_model, tmp_path, change):
    gradients = []
    for base in (GRPOTrainer, LeanGRPOTrainer):
        changed = type("Changed", (change, base), {})
        found, _, trainer = trained(changed, tiny_model, tmp_path, loss_type="grpo")
        gradients.append(found)
    assert trainer.backend is not None and largest_difference(*gradients) < 1e-5


def test_a_loss_asked_for_outside_a_step_is_that_of_its_inputs(tiny_model, tmp_path):
    losses = []
    for base in (GRPOTrainer, LeanGRPOTrainer):
        _, _, trainer = trained(base, tiny_model, tmp_path, reward=rewards_by_sum, learning_rate=0.0)
        trainer.model.train()
        losses.append([trainer.compute_loss(trainer.model, batch).item() for batch in trainer._buffered_inputs])
    assert losses[1] == pytest.approx(losses[0], rel=1e-4, abs=1e-6) and losses[0][0] != losses[0][1]


def test_metrics_may_be_plain_dicts(tiny_model, tmp_path):
    """As in TRL's own tests, which replace `_metrics`."""
    _, _, trainer = trained(LeanGRPOTrainer, tiny_model, tmp_path, learning_rate=0.0)
    trainer._metrics = {"train": {}, "eval": {}}
    with trainer._timed("time/generation"):
        pass
    assert len(trainer._metrics["train"]["time/generation"]) == 1


def test_train_takes_its_arguments_by_position(tiny_model, tmp_path, monkeypatch):
    _, _, trainer = trained(LeanGRPOTrainer, tiny_model, tmp_path, learning_rate=0.0)
    given = []
    monkeypatch.setattr(GRPOTrainer, "train", lambda self, *args, **kwargs: given.append((args, kwargs)))
    trainer.train(None, {"a trial": 1})
    assert given == [((None, {"a trial": 1}), {})]
