"""A script whose last process sends itself a signal before an optimizer step: ended.py SIGNAL STEP SCRIPT FLAGS."""

import os
import runpy
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


def sending(number, step):
    """The callback `MetricsFile`, which also sends this process the signal once so many optimizer steps are done."""
    from grpo.training import callbacks

    class Ended(callbacks.MetricsFile):
        def on_step_begin(self, args, state, control, **kwargs):
            last = os.environ.get("RANK", "0") == str(int(os.environ.get("WORLD_SIZE", "1")) - 1)
            if state.global_step == step and last:
                os.kill(os.getpid(), number)

    return Ended


if __name__ == "__main__":
    _, number, step, *sys.argv = sys.argv
    from grpo.training import callbacks

    callbacks.MetricsFile = sending(int(number), int(step))
    runpy.run_path(sys.argv[0], run_name="__main__")
