"""Callbacks that read their trainer: transformers passes them its model and optimizer, but not itself."""

from typing import Any

from transformers import TrainerCallback


class OfTrainer(TrainerCallback):
    """A callback of a RunTrainer, which introduces itself once it is built.

    Attributes:
        trainer: the RunTrainer.
    """

    trainer: Any

    def join(self, trainer: Any) -> None:
        """Learn which trainer this is a callback of."""
        self.trainer = trainer
