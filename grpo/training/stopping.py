"""End training and write checkpoints only at the end of a rollout.

A checkpoint does not contain a rollout, so a resumed run samples at once. It continues exactly only if the
uninterrupted run would sample at that point, too.
"""

from typing import Any

from transformers import TrainerControl, TrainerState

from grpo.runs.run import Run
from grpo.training.of_trainer import OfTrainer


class StopAtRolloutEnd(OfTrainer):
    """End training at the end of a rollout, at the same step on all processes, after the run's end was requested.

    It moves itself to the end of its trainer's callbacks, and keeps the run's steps and whether it trains.

    Requests of other callbacks, such as transformers' EarlyStoppingCallback, wait for that moment, too.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self._due = False  # True if a checkpoint was due amid a rollout

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.run.begin_training(state.max_steps)
        self.run.step = state.global_step
        # last, to see requests of the others; a new list, since this event iterates over the old one
        callbacks = self.trainer.callback_handler.callbacks
        self.trainer.callback_handler.callbacks = sorted(callbacks, key=lambda callback: callback is self)

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.run.stop.training, self.run.best_step = False, self.trainer.best_step
        if state.global_step < state.max_steps:  # without a known reason, the data may have ended
            self.run.stop.early = True

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.run.step = state.global_step
        if state.global_step < state.max_steps:  # the last weights are kept, and what follows them is interrupted
            self.run.stop.after_step()
        self._due |= control.should_save
        self._take_over(state, control)
        control.should_save = self._due and self._may_end(state)
        if self._may_end(state):
            self._due = False
            if self.run.stop.is_asked or self.run.stop.early:
                control.should_training_stop = control.should_save = True
        control.should_evaluate &= self.run.stop.status < 128  # a signal does not wait for an evaluation
        # checkpoints lack metrics that wait for a log, and a run must log all of its steps
        control.should_log |= control.should_save or state.global_step >= state.max_steps

    def _after_step(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._take_over(state, control) and self._may_end(state):
            control.should_save = True  # saving comes after these events
        control.should_evaluate &= self.run.stop.status < 128

    on_log = on_evaluate = on_epoch_end = _after_step

    def _may_end(self, state: TrainerState) -> bool:
        return bool(self.trainer.at_boundary) or state.global_step >= state.max_steps

    def _take_over(self, state: TrainerState, control: TrainerControl) -> bool:
        """Postpone another callback's request to end until the end of a rollout. Return True if there is one."""
        known = self.run.stop.is_asked or self.run.stop.early
        requested = control.should_training_stop and state.global_step < state.max_steps and not known
        if requested:
            self.run.stop.early = True
        control.should_training_stop &= self._may_end(state)
        return requested
