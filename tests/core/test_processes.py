"""grpo/core/processes.py: a lost process is told from other errors, and two machines train as one, or not at all."""

import json
import socket
from pathlib import Path

import pytest
from accelerate.utils import is_deepspeed_available
from helpers_commands import start
from helpers_runs import LEARNS, ROOT
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
