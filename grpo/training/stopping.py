"""End training, and write checkpoints, at a rollout's end only.

A checkpoint holds no rollout, and a resumed run samples one at once: only where the next micro-batch would sample anew
anyway does it continue as if it had never stopped.
"""

from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState

from grpo.runs.run import Run, name_of
from grpo.training.trainer import LeanGRPOTrainer


class StopAtRolloutEnd(TrainerCallback):
    """Ends training at a rollout's end, on all processes at the same step, once the run is asked to end.

    Add it as the last callback, so that it sees the requests of the others.
    """

    def __init__(self, trainer: LeanGRPOTrainer, run: Run) -> None:
        self.trainer, self.run = trainer, run
        self._due = False  # a checkpoint, in the middle of a rollout

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.run.begin_training()

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.run.training = False

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._stop_for_signal()
        self._due |= control.should_save
        may_end = self.trainer.at_boundary or state.global_step >= state.max_steps
        control.should_save = self._due and may_end
        if may_end:
            self._due = False
            if self.run.stopped:
                control.should_training_stop = control.should_save = True
        control.should_log |= control.should_save  # a checkpoint holds no metrics that wait for a log

    def _stop_for_signal(self) -> None:
        """Request the end for a signal that any of the processes has got."""
        found, accelerator = self.run.signal, self.trainer.accelerator
        if accelerator.num_processes > 1:
            found = int(accelerator.gather(torch.tensor([found], device=accelerator.device)).max())
        if found:
            self.run.request_stop(name_of(found), 128 + found)
