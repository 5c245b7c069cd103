"""grpo/core/processes.py: processes end with one line and its reason; two machines train as one, or not at all."""

import json
import socket
import time
from pathlib import Path

import pytest
from accelerate.utils import is_deepspeed_available
from helpers_commands import start
from helpers_runs import LEARNS, ROOT
from torch.distributed import HashStore
from transformers.integrations.deepspeed import unset_hf_deepspeed_config
from trl import GRPOConfig

from grpo.core import processes

ZERO = {"zero_optimization": {"stage": 1}, "train_micro_batch_size_per_gpu": "auto"}
BY_FSDP = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}  # as accelerate's launcher sets them
SHARDINGS = [  # a launcher's environment, settings, and the name
    ({}, {}, "no sharding"),
    ({"ACCELERATE_USE_FSDP": "false"}, {"fsdp": None}, "no sharding"),
    ({**BY_FSDP, "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT"}, {}, "FSDP (FULL_STATE_DICT)"),
    (BY_FSDP, {}, "FSDP (SHARDED_STATE_DICT)"),
    ({}, {"fsdp": True}, "FSDP (FULL_STATE_DICT)"),
    (BY_FSDP, {"fsdp": True, "fsdp_config": {"state_dict_type": "full_state_dict"}}, "FSDP (FULL_STATE_DICT)"),
    ({"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"}, {}, "DeepSpeed ZeRO-3"),
    ({"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_DEEPSPEED_CONFIG_FILE": "zero.json"}, {}, "DeepSpeed ZeRO-1"),
]


@pytest.mark.parametrize(("environment", "settings", "name"), SHARDINGS)
def test_sharding_is_known_before_an_accelerator_is(environment, settings, name, monkeypatch):
    if "DeepSpeed" in name and not is_deepspeed_available():
        pytest.skip("DeepSpeed is not installed")
    Path("zero.json").write_text(json.dumps(ZERO))
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    try:
        assert processes.sharding(GRPOConfig(use_cpu=True, bf16=False, **settings)) == name
    finally:
        unset_hf_deepspeed_config()


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
def test_a_process_that_has_ended_is_told_from_one_that_is_late(words, said, monkeypatch):
    """Both by gloo itself: tests/test_killed.py."""
    assert processes.explain_lost(RuntimeError(words)) == ""  # there is no other process
    for name, value in {"LOCAL_RANK": "0", "RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
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


def test_each_machine_prints_a_line_on_its_own_console(be, monkeypatch):
    assert processes.is_to_print("another line")
    be(1)
    assert not processes.is_to_print("another line")
    monkeypatch.setenv("GROUP_RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert processes.is_to_print("another line")


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


def on_two_machines(*lines):
    """[(exit status, stdout, stderr)] of the commands of two machines: scripts and flags."""
    launcher = ["-m", "torch.distributed.run", "--nnodes=2", "--master_addr=127.0.0.1"]
    launcher.append(f"--master_port={unused_port()}")
    machines = [
        start(script, flags, launcher=[*launcher, f"--node_rank={rank}"]) for rank, (script, flags) in enumerate(lines)
    ]
    outputs = [machine.communicate(timeout=280) for machine in machines]
    return [(machine.returncode, *output) for machine, output in zip(machines, outputs, strict=True)]


@pytest.mark.slow
def test_two_machines_make_one_run(tiny_run):
    flags = tiny_run(**{**LEARNS, "per_device_train_batch_size": "8", "save_steps": "2", "eval_samples": "2"})
    (done, shown, errors), (also_done, nothing, _) = on_two_machines(*[(ROOT / "train_grpo.py", flags)] * 2)
    assert [done, also_done] == [0, 0], errors
    assert shown.count("Run: ") == shown.count("Saved in ") == shown.count("Training (a loss near 0") == 1
    assert not nothing.strip()
    assert (Path("run/checkpoint-2") / "rng_state_1.pth").exists()


# What the second machine has instead of the first, with which a run is another one or waits forever
TYPOS = {
    "a run": (["--learning_rate", "1e-2", "--save_steps", "1"], "learning_rate (0.01 instead of 0.001), save_steps"),
    "an evaluation": (["--eval_only", "true", "--eval_samples", "3"], "eval_samples (3 instead of 2), the rows, the"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", TYPOS)
def test_machines_with_other_lines_end_before_they_load(case, tiny_run):
    other, named = TYPOS[case]
    flags = tiny_run(**{**LEARNS, "per_device_train_batch_size": "8", "eval_samples": "2", "save_steps": "2"})
    flags += other[:2] if case == "an evaluation" else []
    machines = on_two_machines((ROOT / "train_grpo.py", flags), (ROOT / "train_grpo.py", [*flags, *other]))
    for done, shown, errors in machines:
        lines = [line for line in errors.splitlines() if line.startswith("error: ")]
        assert done == 1 and len(lines) == 1 and "Training" not in shown and "[rank" not in errors, errors[-3000:]
        assert f"process 1 differs from the first in {named}" in lines[0]
    assert not Path("run").exists()
