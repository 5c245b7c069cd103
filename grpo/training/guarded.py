"""A GRPOTrainer that is ready for what goes wrong on the way: rewards, losses, the device's memory."""

import sys
from pathlib import Path
from typing import Any

import torch
from trl import GRPOTrainer

from grpo.core import out_of_memory
from grpo.core.out_of_memory import phase
from grpo.policy import sharding
from grpo.rewarding.guard import RewardGuard


class GuardedGRPOTrainer(GRPOTrainer):
    """TRL's GRPOTrainer, whose rewards may fail, and which says what it was doing when its device was full.

    Args:
        max_faulty_rewards: the largest share of a rollout's rows on which rewards may fail (guard.py).

    Attributes:
        losses_finite: whether all losses of this process were, since somebody has last set it.
    """

    pack_tokens: int | None = None  # what a training step computes at once; None: TRL's micro-batch

    def __init__(self, *args: Any, max_faulty_rewards: float = 0.1, **kwargs: Any) -> None:
        with phase(out_of_memory.START):
            super().__init__(*args, **kwargs)
        self.guard = RewardGuard(Path(self.args.output_dir), max_faulty_rewards)
        self.losses_finite = torch.ones((), dtype=torch.bool, device=self.accelerator.device)

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, ids: Any) -> torch.Tensor:
        with phase(out_of_memory.REWARDS, self), self.guard.watching(self) as seen:
            values = super()._calculate_rewards(inputs, prompts, completions, ids)
        return self.guard.leave_out(self, values, seen, prompts=prompts, completions=completions)

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        with phase(out_of_memory.TRAINING, self):
            loss = super().training_step(*args, **kwargs)
        self.losses_finite &= loss.isfinite().all()
        return loss

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        with phase(out_of_memory.GENERATION, self):
            return super()._generate(*args, **kwargs)

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        with phase(out_of_memory.SCORING, self):
            return super()._generate_and_score_completions(inputs)

    def weights_are_finite(self) -> bool:
        """Whether all trained weights are, on all processes alike."""
        local, device = [sharding.part(w) for w in self.model.parameters() if w.requires_grad], self.accelerator.device
        finite = torch.stack([torch.isfinite(weight).all().to(device) for weight in local]).all()
        return bool(self.accelerator.gather(finite[None]).all())

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        with phase(out_of_memory.EVALUATION, self):
            return super().evaluate(*args, **kwargs)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        try:
            with phase(out_of_memory.OPTIMIZER, self):  # all else in it has a phase of its own
                return super().train(*args, **kwargs)
        except Exception:
            if not self.args.disable_tqdm and self.is_world_process_zero():
                print(file=sys.stderr)  # the error is to have a line of its own, not the progress bar's
            raise
