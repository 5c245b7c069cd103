"""A script whose last process sends itself a signal at a moment of its run: ended.py SIGNAL MOMENT SCRIPT FLAGS.

SIGXFSZ, which says that a file has become too long, is not sent: that process can write no more, as on a full disk.

The moment is before an optimizer step (once so many are done), `starting`, `evaluating` (the second time while
training), or `saving`: a checkpoint's files are written, but not that it is complete.
"""

import os
import resource
import runpy
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


def end(number):
    if number == signal.SIGXFSZ:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
    else:
        os.kill(os.getpid(), number)


def sending(number, step):
    """The callback `MetricsFile`, which also sends this process the signal once so many optimizer steps are done."""
    from grpo.training import callbacks

    class Ended(callbacks.MetricsFile):
        def on_step_begin(self, args, state, control, **kwargs):
            last = os.environ.get("RANK", "0") == str(int(os.environ.get("WORLD_SIZE", "1")) - 1)
            if state.global_step == step and last:
                end(number)

    return Ended


if __name__ == "__main__":
    _, number, moment, *sys.argv = sys.argv
    from grpo.runs import checkpoints
    from grpo.training import callbacks
    from grpo.training.accuracy import AccuracyCurve
    from grpo.training.run_trainer import RunTrainer

    def send(*args, **kwargs):
        end(int(number))

    def measure(self, *, measure=AccuracyCurve.measure, done=[]):  # noqa: B006
        done.append(self.trainer.state.global_step)
        if len(done) == 2 and os.environ.get("RANK") != "0":
            send()
        return measure(self)

    if moment == "starting":
        RunTrainer.train = send
    elif moment == "evaluating":
        AccuracyCurve.measure = measure
    elif moment == "saving":
        checkpoints.seal = send
    else:
        callbacks.MetricsFile = sending(int(number), int(moment))
    runpy.run_path(sys.argv[0], run_name="__main__")
