"""A GRPOTrainer whose runs survive: complete checkpoints, the same order of prompts when one is gone on from, rewards
that may fail, and a full device that is told by what it was doing.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from trl import GRPOTrainer
from trl.trainer.utils import RepeatSampler

from . import UserError, out_of_memory
from .guard import RewardGuard
from .out_of_memory import phase


class DurableGRPOTrainer(GRPOTrainer):
    """TRL's GRPOTrainer: its arguments, its results, and runs that can be gone on with.

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

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        stock = super()._get_train_sampler(dataset)
        return _InEpochs(stock, lambda: int(self.state.epoch or 0))

    # What can go wrong on the way: rewards that fail, losses that are not finite, a device that is full

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

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        if self.weights_are_finite():  # the last checkpoint is to be one that can be gone on from
            with phase(out_of_memory.CHECKPOINT, self):
                super()._save_checkpoint(*args, **kwargs)

    def weights_are_finite(self) -> bool:
        """Whether all trained weights are, on all processes alike; what DeepSpeed keeps to itself counts as such."""
        local = [w.to_local() if hasattr(w, "to_local") else w for w in self.model.parameters() if w.requires_grad]
        device = self.accelerator.device
        finite = torch.stack([torch.isfinite(weight.detach()).all().to(device) for weight in local]).all()
        return bool(self.accelerator.gather(finite[None]).all())

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        with phase(out_of_memory.EVALUATION, self):
            return super().evaluate(*args, **kwargs)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        try:
            with phase(out_of_memory.OPTIMIZER, self):  # all else in it has a phase of its own
                return super().train(*args, **kwargs)
        except UserError:
            if not self.args.disable_tqdm and self.is_world_process_zero():
                print(file=sys.stderr)  # the error is to have a line of its own, not the progress bar's
            raise


class _InEpochs(RepeatSampler):
    """TRL's sampler, whose order of prompts depends on the epoch that begins.

    Stock draws one order after the other from a generator that a resumed run starts anew, so that a run resumed in its
    third epoch would see the prompts in the order of the first.
    """

    def __init__(self, stock: RepeatSampler, epoch: Callable[[], int]) -> None:
        self.__dict__.update(stock.__dict__)
        self._epoch = epoch

    def __iter__(self) -> Iterator[int]:
        if self.shuffle:
            self.generator.manual_seed(self.seed)
            for _ in range(self._epoch()):
                torch.randperm(self.num_samples, generator=self.generator)
        return super().__iter__()
