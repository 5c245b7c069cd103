"""A run while it is made: its directory is held, its record kept, and whatever ends it leaves a readable line.

A run ends before its last step for a signal, an alarm or faulty rewards. While it trains, the end is asked for here
and comes at a rollout's boundary (training/stopping.py); at any other time a signal ends it at once.
"""

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpo.core.errors import (
    STOPPED,
    Interrupted,
    UserError,
    is_disk_full,
    is_out_of_memory,
    origins,
    out_of_memory,
    reason_of,
)
from grpo.core.processes import is_first_process, say
from grpo.core.settings import Config
from grpo.core.text import human_bytes
from grpo.runs import checkpoints, directory, record, report

SIGNALS = (signal.SIGINT, signal.SIGTERM)
EXAMPLE = "Lea has 6 boxes with 8 pens in each. How many pens does Lea have?"  # the demo learns to


class Run:
    """What a run's parts share about how it ends.

    Attributes:
        output: its directory.
        reason: why it is to end early, completing "stopped by …"; empty while nothing asks for that.
        status: the exit status that says so.
        save: whether a checkpoint is worth having there.
        training: whether optimizer steps are under way, which a signal lets come to a rollout's end.
        signal: the number of the signal that this process has got, 0 for none.
    """

    def __init__(self, config: Config) -> None:
        self.config, self.output = config, config.output
        self.reason, self.status, self.save = "", 0, True
        self.training = False
        self.signal = 0
        self._trained = self._recorded = False
        self._taken: dict[int, Any] = {}  # the signals it takes, and who took them before
        self._process, self._signalled = os.getpid(), False

    @property
    def stopped(self) -> bool:
        return bool(self.reason)

    def ask(self, reason: str, status: int = STOPPED, save: bool = True) -> None:
        """End training at the next boundary; all processes ask alike. The first reason counts."""
        if not self.reason:
            self.reason, self.status, self.save = reason, status, save

    @property
    def exit_status(self) -> int:
        """The first process' tells all of them: torchrun ends the others where one fails."""
        return self.status if is_first_process() else 0

    def begin(self, **facts: Any) -> None:
        """Write `run.json`."""
        say(f"Run: {self.config.training.run_name}, in {self.output}")
        if is_first_process():
            record.start_record(self.output, self.config, **facts)
            self._recorded = True

    def begin_training(self) -> None:
        self.training = self._trained = True

    def end(self, status: str = "finished") -> None:
        """Write how the run ended and the report, and say what to do next."""
        if self.stopped:
            status = f"{'stopped' if self.status == STOPPED else 'interrupted'} by {self.reason}"
        if is_first_process():
            self._note(status)
            written, complete = report.write(self.output), self._trained and not self.stopped
            say(f"Saved in {self.output}" + ("" if complete else f"; the report is {written}"))
            if self.stopped:
                say(f"{status[0].upper()}{status[1:]}. {self.way_on()}")
            elif complete:
                say(self.next_steps(written))

    def _note(self, status: str) -> None:
        if self._recorded:
            record.finish(self.output, status, time.perf_counter() - self.config.started)

    # What is left of it

    def what_is_left(self) -> str:
        """The newest complete checkpoint."""
        last, _ = checkpoints.newest(self.output)
        return f"the newest complete checkpoint is {last}" if last else "no checkpoint is complete"

    def next_steps(self, written: Path) -> str:
        """What a finished run is good for, in commands to copy."""
        ask = ["train_grpo.py", "--model_name_or_path", str(self.output), "--ask", EXAMPLE]
        publish = ["hf", "upload", f"your-name/{self.output.name}", str(self.output), "--exclude", "checkpoint-*/*"]
        steps = {
            "read the report": written,
            "ask the model": f"python {shlex.join(ask)}",
            "evaluate more": record.evaluate_command(self.output, self.config.argv) if self._judged() else "",
            "publish it": "" if self.config.training.push_to_hub else shlex.join(publish),
        }
        return "\n".join(["Next:", *(_row(name, str(command)) for name, command in steps.items() if command)])

    def _judged(self) -> bool:
        """Whether held-out answers were right or wrong; without gold answers they only earned rewards."""
        path = self.output / "eval_after.json"
        return path.is_file() and "accuracy_lenient" in json.loads(path.read_text(encoding="utf-8"))

    def way_on(self) -> str:
        """What can be done with what there is of the run."""
        if self.config.script.eval_only:
            return "Nothing was measured or written"
        argv = self.config.argv
        if checkpoints.newest(self.output)[0]:
            return f"To resume: {record.resume_command(self.output, argv)}"
        if not self.reason and any(self.output.glob("*.safetensors")):
            return f"Training had ended, and its weights are in {self.output} (--eval_only true measures them)"
        if self.reason and self.status == STOPPED:
            return "There is no checkpoint to resume from: start a new run"
        lost = "No checkpoint was complete" if self._trained else "Nothing was trained yet"
        return f"{lost}. To start again: {record.start_command(self.output, argv)}"

    # Signals

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Take SIGINT and SIGTERM: in training they ask for an end, otherwise they raise Interrupted.

        A second one acts as if nobody had taken the first. What was ignored (nohup) stays so. Only a process' main
        thread can take signals; elsewhere this does nothing.
        """
        with contextlib.suppress(ValueError):  # not the main thread
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._taken[number] = signal.signal(number, self._take)
        try:
            yield
        finally:
            for taken, handler in self._taken.items():
                signal.signal(taken, handler or signal.SIG_DFL)

    def _take(self, signum: int, frame: Any) -> None:
        if os.getpid() != self._process:  # a data loader's worker, forked from it
            if signum != signal.SIGINT:  # the terminal's is for its parent, which finishes the step with its help
                signal.signal(signum, signal.SIG_DFL)
                signal.raise_signal(signum)
            return
        launched = "TORCHELASTIC_RUN_ID" in os.environ
        if launched and self._signalled:  # torchrun passes on what its processes have got, too
            return
        self._signalled = True
        for number, handler in self._taken.items() if not launched else ():
            signal.signal(number, handler or signal.SIG_DFL)  # a second one acts as ever
        if not self.training:
            raise Interrupted(name_of(signum), 128 + signum)
        self.signal = signum
        if is_first_process():  # print may be in the middle of a line of its own: write at once
            text = f"\n{name_of(signum)}: finishing this rollout's steps, then saving"
            text += "; torchrun kills it after 30 seconds (--shutdown-timeout)" if launched else ""
            os.write(2, f"{text}\n".encode())

    # Errors

    @contextlib.contextmanager
    def _noted(self) -> Iterator[None]:
        """Write down how the run broke off, if there is a record of it and room on the disk."""
        try:
            yield
        except (Exception, KeyboardInterrupt) as error:
            if self.training and sys.stderr.isatty():
                print(file=sys.stderr)  # a line of its own, not the progress bar's
            by_signal = isinstance(error, KeyboardInterrupt)
            name = str(error) or "Ctrl-C"
            with contextlib.suppress(OSError, ValueError):
                self._note(f"interrupted by {name}" if by_signal else f"failed: {reason_of(error)}")
            if self._trained and is_first_process():
                report.refresh(self.output)  # the page says so, and no longer reloads itself
            if by_signal:
                raise Interrupted(f" by {name}. {self.way_on()}", getattr(error, "status", 130)) from None
            raise

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """A full device, a full disk and a mistake that shows in training are one line, with the way on."""
        try:
            yield
        except Exception as error:
            # they hide behind what the libraries in between make of them
            full = next((each for each in origins(error) if is_out_of_memory(each)), None)
            if full:
                line = out_of_memory(full)
            elif any(map(is_disk_full, origins(error))):
                free = human_bytes(shutil.disk_usage(self.output).free)
                line = (
                    f"output_dir: the disk of {str(self.output)!r} is full ({free} free); free some space, or lower "
                )
                line += "save_total_limit"
            elif isinstance(error, UserError) and self.training:
                line = str(error)
            else:
                raise
            raise UserError(f"{line}. {self.way_on()}") from error


@contextlib.contextmanager
def open_run(config: Config) -> Iterator[Run]:
    """Hold the run's directory, take signals, make errors readable.

    Raises:
        UserError: another process writes there; the disk is full; a device is full; another process is gone.
        Interrupted: a signal came while nothing was trained.
    """
    run = Run(config)
    with (
        directory.held(run.output, directory.last_written(run.output)),
        run._signals(),
        run._noted(),
        run._explained(),
    ):
        yield run


def _row(name: str, command: str) -> str:
    """Both on one line of 80 columns, or the command below, with breaks that a shell takes, before its flags."""
    if len(command) < 62:
        return f"  {name:17}{command}"
    lines = ["   "]
    for part in re.split(r" (?=--)", command):
        lines += ["     "] if len(lines[-1] + part) > 76 else []
        lines[-1] += f" {part}"
    return f"  {name}\n" + " \\\n".join(lines)


def name_of(signum: int) -> str:
    return "Ctrl-C" if signum == signal.SIGINT else signal.Signals(signum).name
