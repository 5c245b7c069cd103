"""train_grpo.py that kills itself: killed.py MOMENT FLAGS."""

import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import train_grpo
from grpo.runs import checkpoints
from grpo.training import callbacks
from grpo.training.run_trainer import RunTrainer


def kill(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at_step_2(self, args, state, control, **kwargs):
    if state.global_step == 2:
        kill()


if __name__ == "__main__":
    _, moment, *flags = sys.argv
    if moment == "starting":
        RunTrainer.train = kill
    elif moment == "training":
        callbacks.MetricsFile.on_step_begin = kill_at_step_2
    else:
        checkpoints.seal = kill  # every file of the checkpoint is written, but not that it is complete
    sys.exit(train_grpo.main(flags))
