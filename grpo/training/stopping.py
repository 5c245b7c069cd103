"""How a run ends before its last step: for a signal, an alarm or faulty rewards, with everything saved.

A checkpoint holds no rollout, and a resumed run samples one at once: only where the next micro-batch would sample anew
anyway does it go on as if it had never stopped. So training ends, and checkpoints are written, only there.
"""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from transformers import TrainerCallback

from grpo.core import processes
from grpo.core.errors import Interrupted, UserError
from grpo.core.processes import is_first_process
from grpo.runs import checkpoints
from grpo.runs import record as records

SIGNALS = (signal.SIGINT, signal.SIGTERM)
TORCHRUN_WAITS = 30  # seconds, unless it is told otherwise
ECHO = 3.0  # seconds in which torchrun passes on a signal that its processes have got, too, as Slurm sends it
STOPPED = 3  # exit status of a run that an alarm or the reward guard has ended


class Stopping(TrainerCallback):
    """Ends training at a rollout's boundary, on all processes at the same step, for the first reason that it is given.

    To be the last of a trainer's callbacks, so that it sees what the others have asked for.

    Args:
        argv: the command line, to name the one that goes on.

    Attributes:
        reason: why the run was ended; empty while it was not.
        status: the exit status that says so.
    """

    def __init__(self, trainer: Any, argv: list[str]) -> None:
        self.trainer, self.argv = trainer, argv
        self._start = self._began = time.perf_counter()
        self._took = 0.0  # seconds of the last step
        self.reason, self.status = "", 0
        self._save = True
        self._training = self._trained = False  # now, and at any time
        self._signal = 0  # that this process has got
        self._taken: dict[int, Any] = {}  # the signals it takes, and who took them before
        self._process, self._first = os.getpid(), 0.0  # when the first one came
        self._postponed = False  # a checkpoint that was due in the middle of a rollout
        self._told = False
        self._saved = -1  # the step of the newest checkpoint

    def ask(self, reason: str, status: int = STOPPED, save: bool = True) -> None:
        """End training at the next boundary; to be called on all processes alike.

        Args:
            reason: completes "stopped by …".
            save: whether a checkpoint is worth having there.
        """
        if not self.reason:
            self.reason, self.status, self._save = reason, status, save

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Take SIGINT and SIGTERM: in training they ask for an end, otherwise they raise Interrupted.

        A second one has its usual effect, at once. What was ignored (nohup) stays so. Only a process' main thread can
        take signals; elsewhere this does nothing.
        """
        try:
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._taken[number] = signal.signal(number, self._take)
        except ValueError:  # not the main thread
            pass
        try:
            yield
        except Interrupted as error:
            self._note(f"interrupted by {error.args[0]}")
            raise Interrupted(f" by {error.args[0]}. {self.way_on()}", error.status) from None
        except Exception as error:
            reason = "" if isinstance(error, UserError) else processes.reason_gone(error)
            self._note(f"failed: {reason or next(iter(str(error).splitlines()), type(error).__name__)}")
            if reason:
                raise processes.gone(reason, self._what_is_left()) from error
            raise
        finally:
            for number, handler in self._taken.items():
                signal.signal(number, handler or signal.SIG_DFL)

    def _take(self, signum: int, frame: Any) -> None:
        launched = "TORCHELASTIC_RUN_ID" in os.environ
        if os.getpid() != self._process:  # a data loader's worker, forked from it
            if signum != signal.SIGINT:  # the terminal's is for its parent, which finishes the step with its help
                _as_usual(signum)
            return
        if self._first:
            if not launched or time.monotonic() - self._first > ECHO:
                _as_usual(signum)
            return
        self._first = time.monotonic()
        for number in self._taken if not launched else ():
            signal.signal(number, signal.SIG_DFL)  # the system's own effect waits for no computation
        if not self._training:
            raise Interrupted(signal.Signals(signum).name, 128 + signum)
        self._signal = signum
        if is_first_process():  # print may be in the middle of a line of its own: write at once
            name = signal.Signals(signum).name
            text = f"\n{name}: finishing this rollout's steps, then saving; a second one stops at once\n"
            if "TORCHELASTIC_RUN_ID" in os.environ and self._took > TORCHRUN_WAITS / 2:
                text += (
                    f"note: the last step took {self._took:.0f} s, and torchrun kills its processes after "
                    f"{TORCHRUN_WAITS} s (--shutdown-timeout); should that come first, the newest checkpoint is left\n"
                )
            os.write(2, text.encode())

    def _note(self, status: str) -> None:
        """Write down how the run ended, if there is a record of it and room on the disk."""
        seconds = time.perf_counter() - self._start
        if self.trainer.is_world_process_zero():
            with contextlib.suppress(OSError, ValueError):
                records.finish(Path(self.trainer.args.output_dir), status, seconds)

    def way_on(self) -> str:
        """What can be done with what there is of the run."""
        output = Path(self.trainer.args.output_dir)
        command = records.resume_command(output, self.argv)
        if checkpoints.newest(output)[0]:
            return f"To go on{processes.on_each()}: {command}"
        if not self.reason and any(output.glob("*.safetensors")):
            return f"Training had ended, and its weights are in {output} (--eval_only true measures them)"
        if self.reason:
            return "There is no checkpoint to go on from: start a new run"
        lost = "No checkpoint was complete" if self._trained else "Nothing was trained yet"
        return f"{lost}. To start again{processes.on_each()}: {command}"

    def _what_is_left(self) -> str:
        """`way_on` where the run has broken off, with the checkpoint that it would go on from."""
        last, _ = checkpoints.newest(Path(self.trainer.args.output_dir))
        return f"The newest complete checkpoint is {last}. {self.way_on()}" if last else self.way_on()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._training = self._trained = True

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._training = False
        if (signum := self._agreed()) and not self.reason:  # after the last step's end
            self.ask(signal.Signals(signum).name, 128 + signum)
            if self._saved < state.global_step:
                self.trainer._save_checkpoint(self.trainer.model, None)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._began = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._took = time.perf_counter() - self._began
        if signum := self._agreed():
            self.ask(signal.Signals(signum).name, 128 + signum)
        last = state.global_step >= state.max_steps
        if not self.at_boundary and not last:
            self._postponed |= control.should_save
            control.should_save = False
            if self._postponed and not self._told and state.is_world_process_zero:
                self._told = True
                Console().print(
                    f"note: a checkpoint was due at step {state.global_step}, amid a rollout; it is written "
                    "where the rollout ends, so that a resumed run goes on as if it had never stopped"
                )
            return
        control.should_save |= self._postponed
        self._postponed = False
        if self.reason:
            control.should_training_stop = True
            control.should_save = self._save

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._saved = state.global_step

    @property
    def at_boundary(self) -> bool:
        """Whether the next micro-batch begins with a rollout."""
        return self.trainer._step % (self.trainer.args.steps_per_generation * self.trainer.num_iterations) == 0

    def _agreed(self) -> int:
        """The signal that any of the processes has got, 0 for none."""
        accelerator = self.trainer.accelerator
        if accelerator.num_processes == 1:
            return self._signal
        return int(accelerator.gather(torch.tensor([self._signal], device=accelerator.device)).max())


def _as_usual(signum: int) -> None:
    signal.signal(signum, signal.SIG_DFL)
    signal.raise_signal(signum)
