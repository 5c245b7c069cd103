"""Two processes of a run that end: ending.py PHASE WHAT-THE-FIRST-DOES WHAT-THE-SECOND-DOES.

The phase is `training` or another one. A process does one of DONE; its run has a record, and no model. A file `ready`
says that they have begun.
"""

import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

LIMIT = 4  # seconds for which processes wait for each other


def sleep():
    time.sleep(60)


def wait():
    from grpo.core.processes import largest

    largest(0)


def wait_little():
    from torch.distributed import distributed_c10d

    distributed_c10d._set_pg_timeout(timedelta(seconds=LIMIT))
    wait()


def killed():
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)


def full():
    raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB")


DONE = {function.__name__: function for function in (sleep, wait, wait_little, killed, full)}


def main():
    from datasets import Dataset

    import train_grpo
    from grpo.config.configure import configure
    from grpo.core.processes import is_first_process, largest
    from grpo.results.record import RunRecord
    from grpo.runs.directory import Claim
    from grpo.runs.run import Run
    from grpo.runs.source import Source

    phase, *ways = sys.argv[1:]
    words = ["--use_cpu", "true", "--report_to", "none", "--output_dir", "run"]
    run = Run(configure(train_grpo.HYPERPARAMETERS, words), Claim("run"), Source({}, {}, {}))
    rows = Dataset.from_list([{"prompt": "2 + 2?", "answer": "4"}])
    with run.open(SimpleNamespace(rows=rows, held_out=rows, tokens="")):
        if is_first_process():
            run.record = RunRecord(status="running", sessions=[{"from_step": 0}])
            run.record.write(run.output)
        largest(0)
        run.stop.training = phase == "training"
        Path("ready").touch()
        DONE[ways[int(os.environ["RANK"])]]()
    return 0


if __name__ == "__main__":
    from grpo.core.errors import run_main

    sys.exit(run_main(main))
