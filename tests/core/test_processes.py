"""grpo/core/processes.py: how processes are started, and that two launchers' processes train and resume as one."""

import json
import signal
from pathlib import Path

import helpers_trainer
import pytest
import torch
from helpers_commands import on_two_machines
from helpers_gradients import CASES, gradients
from helpers_resume import assert_same, state_of
from helpers_runs import LEARNS, ROOT
from trl import GRPOTrainer

from grpo.core import processes
from grpo.training.trainer import LeanGRPOTrainer


def test_one_process_ends_without_a_group():
    processes.end_process_group()


# --- What is said


LAUNCHED = {"TORCHELASTIC_RUN_ID": "none"}


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({}, "python"),
        ({"LOCAL_WORLD_SIZE": "2", **LAUNCHED}, "torchrun --nproc_per_node=2"),
        ({"LOCAL_WORLD_SIZE": "1"}, "python"),  # vLLM sets it, too
        ({"LOCAL_WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "2", **LAUNCHED}, "torchrun [its options as before]"),
        # without its options, what FSDP or DeepSpeed has divided would be read as if it were not
        (
            {"LOCAL_WORLD_SIZE": "2", "ACCELERATE_DYNAMO_USE_FULLGRAPH": "False"},
            "accelerate launch [its options as before]",
        ),
    ],
)
def test_the_command_starts_as_many_processes(variables, words, monkeypatch):
    for name in ("LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert processes.launch() == words


# --- Two launchers

DIES = """
import os, signal, sys
sys.path.insert(0, {root!r})
from grpo.training import callbacks
class Dies(callbacks.MetricsFile):
    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 2 and os.environ["RANK"] == "1" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), signal.{signal})
callbacks.MetricsFile = Dies
import train_grpo
sys.exit(train_grpo.main())
"""


def dies(signal):
    Path("dies.py").write_text(DIES.format(root=str(ROOT), signal=signal))
    return Path("dies.py").resolve()


STEPS = {**LEARNS, "per_device_train_batch_size": "8", "max_steps": "4", "save_steps": "1", "save_total_limit": "9"}
STEPS |= {"logging_steps": "1", "max_completion_length": "24", "eval_samples": "2"}


@pytest.mark.slow
def test_two_machines_train_and_resume(tiny_run):
    whole, killed = (tiny_run(**STEPS, output_dir=name) for name in ("whole", "killed"))
    first, other = on_two_machines(ROOT / "train_grpo.py", whole)
    assert first.returncode == other.returncode == 0, first.stderr + other.stderr
    shown = first.stdout
    assert shown.count("Run: ") == shown.count("Saved in ") == shown.count("Training (a loss near 0") == 1
    assert not other.stdout.strip()
    assert (Path("whole/checkpoint-4") / "rng_state_1.pth").exists()

    first, other = on_two_machines(dies("SIGKILL"), killed)
    assert first.returncode > 0 and other.returncode == -signal.SIGKILL
    assert json.loads(Path("killed/run.json").read_text())["status"].startswith("failed: ")

    first, other = on_two_machines(ROOT / "train_grpo.py", [*killed, "--resume_from_checkpoint", "auto"])
    assert first.returncode == other.returncode == 0, first.stderr + other.stderr
    assert [each["from_step"] for each in json.loads(Path("killed/run.json").read_text())["sessions"]] == [0, 2]
    assert_same(state_of(Path("killed")), state_of(Path("whole")))


# --- Gradients

GRADIENTS = """
import os, sys
sys.path[:0] = [{root!r}, {tests!r} + "/helpers"]
from pathlib import Path
import torch
from grpo.core import processes
from helpers_gradients import CASES, gradients
from helpers_trainer import GRPOTrainer, LeanGRPOTrainer
found = {{}}
for name in CASES:
    for trainer_class in (GRPOTrainer, LeanGRPOTrainer):
        found[name, trainer_class.__name__], trainer = gradients(trainer_class, name, {model!r}, 8, Path("out"))
if os.environ["RANK"] == "0":
    torch.save(found, "gradients.pt")
del trainer
processes.end_process_group()
"""


@pytest.mark.slow
def test_two_machines_have_the_gradients_of_one_process(tiny_model, tmp_path):
    tests = str(ROOT / "tests")
    script = Path("gradients.py").resolve()
    script.write_text(GRADIENTS.format(root=str(ROOT), tests=tests, model=tiny_model))
    for machine in on_two_machines(script):
        assert machine.returncode == 0, machine.stderr[-4000:]
    found = torch.load("gradients.pt", weights_only=False)
    for case in CASES:
        whole, _ = gradients(GRPOTrainer, case, tiny_model, 16, tmp_path)
        assert any(gradient.any() for gradient in whole[0].values())
        for trainer_class in (GRPOTrainer, LeanGRPOTrainer):
            two = found[case, trainer_class.__name__]
            assert helpers_trainer.largest_difference(whole, two) < 1e-5, (case, trainer_class)
