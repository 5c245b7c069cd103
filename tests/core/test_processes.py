"""grpo/core/processes.py: processes end with one line and its reason, and two machines train as one."""

import socket
import time
from pathlib import Path

import pytest
from helpers_commands import start
from helpers_runs import LEARNS, ROOT
from torch.distributed import HashStore

from grpo.core import processes


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("NCCL error, ncclRemoteError: A call failed possibly due to a remote process exiting prematurely.", "ended"),
        ("NCCL error, ncclInvalidUsage: Duplicate GPU detected", ""),
        ("[/x/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:12981", "ended"),
        ("[/x/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 1800000ms for recv operation", "30 minutes"),
        ("[/x/gloo/transport/tcp/unbound_buffer.cc:129] Timed out waiting 10000ms for send operation", "10 seconds"),
        (
            "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4, OpType=BROADCAST, "
            "Timeout(ms)=1800000) ran for 1800011 milliseconds before timing out.",
            "30 minutes",
        ),
        ("[1] is setting up NCCL communicator, but store->get('0') got error: wait timeout after 600000ms", "10 minu"),
        ("a judge's server: Read timed out", ""),
    ],
)
def test_a_process_that_has_ended_is_told_from_one_that_is_late(words, said):
    """Both by gloo itself: tests/test_killed.py."""
    line = processes.explain_lost(RuntimeError(words))
    assert said in line and bool(said) == bool(line)
    assert ("--ddp_timeout" in line) == ("has ended" not in line and bool(said))


# --- A store of several processes, here those of one


@pytest.fixture
def be(monkeypatch):
    """A function that makes this process the first or the second of two, which have a store."""
    store = HashStore()
    monkeypatch.setattr(processes, "_store", lambda: store)
    monkeypatch.setattr(processes, "HEAD_START", 0.3)

    def be(rank):
        for name, value in {"LOCAL_RANK": rank, "RANK": rank, "WORLD_SIZE": 2}.items():
            monkeypatch.setenv(name, str(value))

    be(0)
    return be


def test_several_processes_print_a_line_once(be):
    assert processes.is_to_print("Interrupted") and processes.is_to_print("Interrupted")  # twice by one process
    be(1)
    started = time.monotonic()
    assert not processes.is_to_print("Interrupted")
    assert time.monotonic() - started < 0.3
    assert processes.is_to_print("out of memory")  # which the first does not say
    assert time.monotonic() - started > 0.3
    be(0)
    assert not processes.is_to_print("out of memory") and processes.is_to_print("another line")


@pytest.mark.parametrize("breaks", [None, RuntimeError("Connection reset by peer")])
def test_a_line_is_printed_where_the_store_has_ended(be, monkeypatch, breaks):
    class Broken:
        def check(self, *_):
            raise breaks

        compare_set = check

    monkeypatch.setattr(processes, "_store", Broken if breaks else lambda: None)
    assert processes.is_to_print("a line") and processes.failure_left() is None
    processes.leave_failure("a line")
    be(1)
    assert processes.is_to_print("a line")


def test_the_first_failure_is_left_until_the_next_run(be):
    assert processes.failure_left() is None
    be(1)
    processes.leave_failure("out of memory")
    be(0)
    processes.leave_failure("a later one")
    assert processes.failure_left() == (1, "out of memory")
    processes.forget_failure()
    assert processes.failure_left() is None


def test_a_store_out_of_reach_is_none(monkeypatch, capfd):
    for name, value in {"LOCAL_RANK": 1, "RANK": 1, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, str(value))
    assert processes._store() is None
    monkeypatch.setenv("MASTER_PORT", str(unused_port()))
    assert processes._store() is None and capfd.readouterr().err == ""


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
