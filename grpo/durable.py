"""A GRPOTrainer whose runs survive: complete checkpoints, and the same order of prompts when one is gone on from."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from trl import GRPOTrainer
from trl.trainer.utils import RepeatSampler


class DurableGRPOTrainer(GRPOTrainer):
    """TRL's GRPOTrainer: its arguments, its results, and runs that can be gone on with."""

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        stock = super()._get_train_sampler(dataset)
        return _InEpochs(stock, lambda: int(self.state.epoch or 0))


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
