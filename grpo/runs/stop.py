"""End a run before its last step, as signals, alarms and faulty rewards want it.

While a run trains, a signal asks for its end. It is looked at after a rollout with its steps, after a batch of an
evaluation, and after a step; whoever cannot wait sends a second one, but under torchrun, which repeats its own. At any
other time a signal ends the run at once.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

from grpo.core.errors import STOPPED, Interrupted
from grpo.core.processes import GivenUp, failure_left, is_first_process, is_one_of_several, largest

# Ctrl-C, the system's, SLURM's before a time limit, and a closed terminal's
SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1", "SIGHUP") if hasattr(signal, name)]
# torchrun also sends SIGTERM to the other processes once one has ended
BY_LAUNCHER = " by the launcher's SIGTERM: you stopped the run, or another process has ended; its own lines or the"
BY_LAUNCHER += " launcher's say which"


class Stop:
    """A request to end a run before its last step, and its reason.

    Args:
        repeated: says what the run is doing if a resumed run repeats it, such as `this evaluation`; else "".

    Attributes:
        training: True from the first optimizer step to the last, when a signal only asks for the end.
        signal: the number of the signal that this process received while training, 0 for none.
        ending: how the run ends before its last step, in the record's words; "" if nothing asked for that.
        status: the exit status for `ending`.
        early: True if a callback, or the end of the data, ended training before its last step, which is an end like
            that of the last step.
        has_told: True once this process has received a signal or has failed: torchrun's SIGTERM that follows is none.
    """

    def __init__(self, repeated: Callable[[], str] = lambda: "") -> None:
        self.repeated = repeated
        self.training = self.early = self.has_told = False
        self.signal, self.ending, self.status = 0, "", 0
        self._process = os.getpid()
        self._earlier: dict[int, Any] = {}  # handlers of the signals that are handled

    @property
    def is_asked(self) -> bool:
        """True if something asked for the end."""
        return bool(self.ending)

    def ask(self, reason: str, status: int = STOPPED) -> None:
        """Ask for the end of training at the end of the rollout, in all processes alike. The first reason counts."""
        if not self.is_asked:
            self.ending = f"{'stopped' if status == STOPPED else 'interrupted'} by {reason}"
            self.status = status

    @contextlib.contextmanager
    def handling(self) -> Iterator[None]:
        """Handle SIGNALS. A second signal has its usual effect, and ignored ones (nohup) stay ignored.

        Only the main thread of a process can handle signals; elsewhere this does nothing.
        """
        with contextlib.suppress(ValueError):  # not the main thread
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self._earlier[number] = signal.signal(number, self.take)
        try:
            yield
        finally:
            self._restore()

    def _restore(self) -> None:
        for number, handler in self._earlier.items():
            signal.signal(number, handler or signal.SIG_DFL)

    def take(self, signum: int, frame: Any = None) -> None:
        """Handle a signal: note it while training, else raise Interrupted."""
        if os.getpid() != self._process:  # in a data loader's worker, a fork of this process
            if signum != signal.SIGINT:  # the parent handles Ctrl-C, and needs the worker to finish the step
                signal.signal(signum, signal.SIG_DFL)
                signal.raise_signal(signum)
            return
        launched = "TORCHELASTIC_RUN_ID" in os.environ
        if launched and self.has_told:  # torchrun forwards signals that its processes already have
            return
        self.has_told = True
        if not launched:
            self._restore()
        of_launcher = is_one_of_several() and signum == signal.SIGTERM
        if not self.training:
            raise Interrupted(BY_LAUNCHER if of_launcher else f" by {signal_name(signum)}", 128 + signum)
        self.signal = signum
        # where a process has failed, nothing will be saved
        if is_first_process() and not (of_launcher and failure_left()):
            repeated = self.repeated()
            reaction = f"giving up {repeated}" if repeated else "finishing this rollout's steps"
            text = f"\n{signal_name(signum)}: {reaction}, then saving"
            text += ", unless another process has ended" if of_launcher else ""
            text += "; torchrun kills it after its --shutdown-timeout (30 seconds by default)" if launched else ""
            os.write(2, f"{text}\n".encode())  # print() may already be in the middle of a line

    def after_batch(self) -> None:
        """Raise GivenUp after a batch of an evaluation if this process has received a signal while training."""
        if self.training and self.signal:
            raise GivenUp

    def after_step(self) -> None:
        """Ask for the end in all processes if any of them has received a signal."""
        if number := largest(self.signal):
            self.ask(signal_name(number), 128 + number)

    def after_training(self) -> None:
        """Raise Interrupted for a signal that came too late to end training early."""
        if self.signal and not self.is_asked:
            raise Interrupted(f" by {signal_name(self.signal)}", 128 + self.signal)


def signal_name(signum: int) -> str:
    """Return a signal's name for messages: `Ctrl-C`, `SIGTERM`, …"""
    return "Ctrl-C" if signum == signal.SIGINT else signal.Signals(signum).name
