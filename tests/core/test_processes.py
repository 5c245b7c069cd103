"""grpo/core/processes.py: a lost process is told from other errors, and two machines train as one."""

import socket
from pathlib import Path

import pytest
from helpers_commands import start
from helpers_runs import LEARNS, ROOT

from grpo.core import processes


@pytest.mark.parametrize(
    ("words", "lost"),
    [
        ("NCCL error, ncclRemoteError: A call failed possibly due to a remote process exiting prematurely.", True),
        ("NCCL error, ncclInvalidUsage: Duplicate GPU detected", False),
    ],
)
def test_nccl_says_whether_another_process_has_ended(words, lost):
    """gloo's words: tests/test_killed.py."""
    assert processes.is_process_lost(RuntimeError(words)) is lost


def unused_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.mark.slow
def test_two_machines_make_one_run(tiny_run):
    flags = tiny_run(**{**LEARNS, "per_device_train_batch_size": "8", "save_steps": "2", "eval_samples": "2"})
    launcher = [
        "-m",
        "torch.distributed.run",
        "--nnodes=2",
        "--master_addr=127.0.0.1",
        f"--master_port={unused_port()}",
    ]
    machines = [start(ROOT / "train_grpo.py", flags, launcher=[*launcher, f"--node_rank={rank}"]) for rank in (0, 1)]
    (shown, errors), (nothing, _) = (machine.communicate(timeout=280) for machine in machines)
    assert [machine.returncode for machine in machines] == [0, 0], errors
    assert shown.count("Run: ") == shown.count("Saved in ") == shown.count("Training (a loss near 0") == 1
    assert not nothing.strip()
    assert (Path("run/checkpoint-2") / "rng_state_1.pth").exists()
