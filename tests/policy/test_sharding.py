"""grpo/sharding.py and accelerate/*.yaml: FSDP2 and ZeRO train as one process does on the same completions."""

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers_checkpoints import make_checkpoint
from helpers_resume import EPOCHS, assert_same, interrupted, state_of
from helpers_runs import ROOT
from helpers_trainer import no_group_lives, trained
from peft import LoraConfig
from trl import GRPOTrainer

from grpo.core.errors import UserError
from grpo.policy import sharding
from grpo.runs import checkpoints

TESTS = ROOT / "tests"
# DeepSpeed is no part of requirements-dev.txt: it prints as soon as it is imported, and on CPUs it compiles a file
zero = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None or shutil.which("g++") is None,
    reason="pip install deepspeed, and have a C++ compiler, to test ZeRO",
)
SETTINGS = ["fsdp2", pytest.param("zero2", marks=zero), pytest.param("zero3", marks=zero)]


def one_lives(completion_ids, prompts, **kwargs):
    """Only completions of the prompts of one process have an advantage."""
    lives = [prompt.startswith("What is 2 +") for prompt in prompts]
    return [float(sum(ids) % 7) if one else 1.0 for ids, one in zip(completion_ids, lives, strict=True)]


# One optimizer step of plain gradient descent moves the weights by the gradient, wherever a library keeps that
DISPLACED = {
    "dapo": {},
    "reference": {"loss_type": "grpo", "beta": 0.1, "gradient_checkpointing": True},
    "adapter": {"peft": LoraConfig(r=4, target_modules=["q_proj", "up_proj"], init_lora_weights=False)},
    "mostly dead": {"reward": one_lives},
}
RATE = 1e4  # so large that the digits of the weights themselves do not round the gradient away


def from_the_prompts(prompt_ids, *args, **kwargs):
    """In the place of sampling: the same completions for a prompt, whichever process samples them."""
    seen, completions = {}, []
    for ids in map(tuple, prompt_ids):
        number = seen[ids] = seen.get(ids, 0) + 1
        length = 1 + (sum(ids) * (3 * number + 1) + 5 * number) % 24
        completions.append([5 + (7 * place + sum(ids) * number) % 490 for place in range(length)])
        if length < 24:
            completions[-1][-1] = 2
    return completions, None


def displaced(trainer_class, model, tmp_path, batch, **settings):
    """The trained weights after a step, by name; on every process the whole of them."""
    torch.manual_seed(0)  # of the adapter
    settings |= {"learning_rate": RATE, "per_device_train_batch_size": batch}
    if trainer_class is not GRPOTrainer:
        settings["own"] = {"pack_tokens": 60}  # so that processes have unequal numbers of packs
    _, _, trainer = trained(trainer_class, model, tmp_path, lengths=from_the_prompts, **settings)
    with sharding.whole(trainer) as policy:
        named = {name: weight for name, weight in policy.named_parameters() if weight.requires_grad}
        weights = {name: getattr(weight, "data", weight).detach().clone() for name, weight in named.items()}
    return weights, trainer


def distance(found, expected):
    """Of all weights together, relative to how far they were to be moved: what rounding leaves of a gradient."""
    assert found.keys() == expected.keys()
    wrong = torch.stack([(found[key] - after).norm() for key, (_, after) in expected.items()]).norm()
    return (wrong / torch.stack([(after - before).norm() for before, after in expected.values()]).norm()).item()


SHARDED = """
import os
import sys
from pathlib import Path
from types import SimpleNamespace
sys.path[:0] = [{root!r}, {tests!r}, *__import__("glob").glob({tests!r} + "/*/")]
import torch
from accelerate import PartialState
from test_sharding import DISPLACED, displaced, distance
from trl import GRPOTrainer
from grpo.trainer import LeanGRPOTrainer

def say(line):
    os.write(1, f"{{line}}\\n".encode())  # at once: processes that print write into each other's lines

model, out = {model!r}, Path("out")
for name, settings in DISPLACED.items():
    expected = torch.load(f"{out}/{{name}}.pt")
    for trainer_class in (GRPOTrainer, LeanGRPOTrainer) if name == "dapo" else (LeanGRPOTrainer,):
        found, trainer = displaced(trainer_class, model, out, 8, **settings)
        wrong = distance(found, expected)
        say(f"{{trainer.accelerator.distributed_type.value}} {{trainer_class.__name__}} {{name}} {{wrong}}")
        assert wrong < 1e-5, (trainer_class, name, wrong)
# its mean is over a micro-batch's tokens, so that one process has another one
stock, lean = (displaced(kind, model, out, 8, loss_type="bnpo")[0] for kind in (GRPOTrainer, LeanGRPOTrainer))
assert distance(lean, {{key: (expected[key][0], weight) for key, weight in stock.items()}}) < 1e-5
# bfloat16 rounds, in shapes of its own; what the head gives stays float32, and gradients are added in float32. It
# comes last, as DeepSpeed keeps it for the process' next trainer
found, _ = displaced(LeanGRPOTrainer, model, out, 8, bf16=True)
wrong = distance(found, torch.load(f"{out}/dapo.pt"))
say(f"under bf16 {{wrong}}")
assert 1e-4 < wrong < 0.03
displaced(LeanGRPOTrainer, model, out, 8, beta=0.1, bf16=True)  # the reference model is divided, too
say("all equal")
PartialState().wait_for_everyone()
trainer.accelerator.end_training()
"""


def launch(settings, script, *argv, processes=2, environment=None):
    """Run a script as users do, by Accelerate's launcher and one of our files."""
    command = [sys.executable, "-m", "accelerate.commands.launch", "--main_process_port", "0"]
    command += ["--config_file", str(ROOT / "accelerate" / f"{settings}.yaml"), "--num_processes", str(processes)]
    command += [str(TESTS / "helpers" / "sharded_on_cpu.py"), str(script), *argv]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=600,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **(environment or {})},
    )


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    """Where one process' trained weights are, before and after a step on the whole batch."""
    directory = tmp_path_factory.mktemp("one")
    model = str(ROOT / "assets" / "demo" / "model")
    for name, settings in DISPLACED.items():
        before, _ = displaced(GRPOTrainer, model, directory, 16, **settings | {"reward": no_group_lives})
        after, _ = displaced(GRPOTrainer, model, directory, 16, **settings)
        torch.save({key: (before[key], after[key]) for key in after}, directory / f"{name}.pt")
    return directory, model


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS)
def test_two_processes_move_the_weights_as_one_does_on_the_same_completions(one_process, settings):
    directory, model = one_process
    script = Path("two.py")
    script.write_text(SHARDED.format(root=str(ROOT), tests=str(TESTS), model=model, out=str(directory)))
    done = launch(settings, script)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    kind = "FSDP" if settings == "fsdp2" else "DEEPSPEED"
    assert done.stdout.count("all equal") == 2 and f"{kind} LeanGRPOTrainer adapter" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("settings", [SETTINGS[0], SETTINGS[2]])  # ZeRO-2 writes what ZeRO-3 writes
def test_a_run_is_resumed_as_if_it_had_not_stopped_and_saves_all_its_weights(tiny_run, settings):
    how = {"generation": "hf" if settings == "fsdp2" else "lean"}  # both need all weights
    batch = {
        **how,
        "per_device_train_batch_size": "8",
        "optim": "adamw_torch",
        "num_train_epochs": None,
        "max_steps": "2",
    }
    argv = tiny_run(**{**EPOCHS, **batch, "save_steps": "1", "output_dir": "whole"})
    done = launch(settings, ROOT / "train_grpo.py", *argv)
    assert done.returncode == 0, done.stderr[-3000:]
    whole = Path("whole")
    last = checkpoints.newest(whole)[0]
    assert (whole / "model.safetensors").read_bytes() == (last / "model.safetensors").read_bytes()
    interrupted("whole", 1)
    again = [*argv, "--output_dir", "again", "--resume_from_checkpoint", "auto"]
    torchrun = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc_per_node=2",
        str(ROOT / "train_grpo.py"),
        *again,
    ]
    done = subprocess.run(torchrun, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    by = "FSDP" if settings == "fsdp2" else "DeepSpeed's ZeRO-3"
    assert done.returncode and f"checkpoint-1 is sharded by {by}, that of this run by nothing" in done.stderr
    done = launch(settings, ROOT / "train_grpo.py", *again)
    assert done.returncode == 0, done.stderr[-3000:]
    assert_same(state_of(Path("again")), state_of(whole))


def test_fsdp_that_accelerate_leaves_out_is_said(capsys, monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    sharding.check(SimpleNamespace(is_fsdp_enabled=False, is_deepspeed_enabled=False))
    assert capsys.readouterr().out.startswith("note: Accelerate shards weights by FSDP on GPUs only")
    monkeypatch.delenv("ACCELERATE_USE_FSDP")
    sharding.check(SimpleNamespace(is_fsdp_enabled=False, is_deepspeed_enabled=False))
    assert capsys.readouterr().out == ""


def test_what_was_divided_otherwise_is_refused_before_its_optimizer_would_be_lost(tmp_path):
    one, fsdp = SimpleNamespace(distributed_type="NO"), SimpleNamespace(distributed_type="FSDP")
    directory = make_checkpoint(tmp_path / "run", 4, sealed=False)
    checkpoints.seal(directory, 1)  # of a version that did not say
    sharding.check_checkpoint(directory, fsdp)
    checkpoints.seal(directory, 1, divided_by=sharding.kind(fsdp))
    sharding.check_checkpoint(directory, fsdp)
    with pytest.raises(UserError, match="is sharded by FSDP, that of this run by nothing; start it as it began"):
        sharding.check_checkpoint(directory, one)


def test_the_first_fsdp_is_refused_as_it_cannot_gather_weights_for_a_rollout():
    accelerator = SimpleNamespace(state=SimpleNamespace(fsdp_plugin=SimpleNamespace(fsdp_version=1)))
    trainer = SimpleNamespace(is_fsdp_enabled=True, is_deepspeed_enabled=False, accelerator=accelerator)
    with pytest.raises(UserError, match="fsdp_version: 1 cannot gather"):
        sharding.check(trainer)
    accelerator.state.fsdp_plugin.fsdp_version = 2
    sharding.check(trainer)


def under_zero(stage, optim="adamw_torch", **zero):
    plugin = SimpleNamespace(zero_stage=stage, deepspeed_config={"zero_optimization": {"stage": stage, **zero}})
    accelerator = SimpleNamespace(state=SimpleNamespace(deepspeed_plugin=plugin))
    args = SimpleNamespace(optim=optim)
    return SimpleNamespace(is_fsdp_enabled=False, is_deepspeed_enabled=True, accelerator=accelerator, args=args)


def test_zero_3_that_would_save_no_weights_is_refused(capsys):
    with pytest.raises(UserError, match="zero3_save_16bit_model: false would leave the run without a model"):
        sharding.check(under_zero(3))
    sharding.check(under_zero(3, stage3_gather_16bit_weights_on_model_save=True))
    sharding.check(under_zero(2))
    assert capsys.readouterr().out == ""


def test_an_optimizer_that_deepspeed_changes_is_said(capsys):
    sharding.check(under_zero(2, optim="stable_adamw"))
    assert "use --optim adamw_torch" in capsys.readouterr().out


def test_what_is_loaded_is_whole_whatever_a_launcher_says(monkeypatch):
    from transformers.integrations import deepspeed

    class Config:
        def is_zero3(self):
            return True

    zero = Config()
    deepspeed.set_hf_deepspeed_config(zero)
    monkeypatch.setenv("FSDP_CPU_RAM_EFFICIENT_LOADING", "true")
    try:
        with sharding.loaded_whole():
            assert not deepspeed.is_deepspeed_zero3_enabled()
            assert os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] == "false"
        assert deepspeed.is_deepspeed_zero3_enabled()
        assert os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] == "true"
    finally:
        deepspeed.unset_hf_deepspeed_config()


def test_a_launchers_files_are_ones_that_accelerate_can_read():
    """And leave the number format to the script, whose bf16 would otherwise have two owners."""
    from accelerate.commands.config import load_config_from_file

    for path in sorted((ROOT / "accelerate").iterdir()):
        found = load_config_from_file(str(path))
        assert found.mixed_precision == "no" and found.use_cpu is False, path
