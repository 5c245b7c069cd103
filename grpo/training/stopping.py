"""Where training may end, and where checkpoints may be written: at a rollout's boundary.

A checkpoint holds no rollout, and a resumed run samples one at once: only where the next micro-batch would sample anew
anyway does it continue as if it had never stopped.
"""

from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState

from grpo.core.processes import show
from grpo.runs.run import Run, name_of
from grpo.training.base_trainer import BaseGRPOTrainer


class Stopping(TrainerCallback):
    """Ends training at a rollout's boundary, on all processes at the same step, once the run is asked to end.

    To be the last of a trainer's callbacks, so that it sees what the others have asked for.
    """

    def __init__(self, trainer: BaseGRPOTrainer, run: Run) -> None:
        self.trainer, self.run = trainer, run
        self._postponed = self._noted = False  # a checkpoint that was due in the middle of a rollout
        self._saved = -1  # the step of the newest checkpoint

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.run.begin_training()

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.run.training = False
        if self._asked_by_signal() and self._saved < state.global_step:  # after the last step's end
            self.trainer._save_checkpoint(self.trainer.model, None)

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._asked_by_signal()
        self._postponed |= control.should_save
        may_end = self.trainer.at_boundary or state.global_step >= state.max_steps
        control.should_save = self._postponed and may_end
        if may_end:
            self._postponed = False
            if self.run.stopped:
                control.should_training_stop, control.should_save = True, self.run.save
        elif self._postponed and not self._noted and state.is_world_process_zero:
            self._noted = True
            show(
                f"note: a checkpoint was due at step {state.global_step}, during a rollout; it is written where the "
                "rollout ends, so that a resumed run continues as if it had never stopped"
            )

    def on_save(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._saved = state.global_step

    def _asked_by_signal(self) -> bool:
        """Ask the run to end for the signal that any of the processes has got; whether that is why it ends."""
        found, accelerator = self.run.signal, self.trainer.accelerator
        if accelerator.num_processes > 1:
            found = int(accelerator.gather(torch.tensor([found], device=accelerator.device)).max())
        if not found or self.run.stopped:
            return False
        self.run.ask(name_of(found), 128 + found)
        return True
