"""docs/which-settings.md: each row's flags are a run that fits, and the dry run prints the row's figures."""

import json
import re
import shlex
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import speed
import torch
from accelerate import PartialState
from helpers_runs import DEMO, ROOT
from test_docs import code, tables
from transformers import TrainingArguments

import train_grpo
from grpo.config import hardware

ROWS = tables("GPU | Qwen2.5, trained")
LONG = f"How {'very ' * 50}many?"  # 256 tokens in the recipe's prompt
DECIDED = re.compile(r"gradient checkpointing (on|off): .*, (\S+) GB if completions reach 1?,?[0-9]{3} tokens")


@pytest.fixture
def gpu(monkeypatch):
    """Let this machine have a GPU with so many GB, an empty disk, and all packages."""

    def devices(training):
        training.distributed_state, training._n_gpu = PartialState(cpu=True), 1
        return torch.device("cuda")

    def has(total):
        found = {
            "is_available": True, "device_count": 1, "get_device_name": "a GPU of tests", "is_bf16_supported": True,
            "get_device_capability": (8, 9), "get_arch_list": [], "mem_get_info": (total * 10**9, total * 10**9),
        }  # fmt: skip
        for name, value in found.items():
            monkeypatch.setattr(torch.cuda, name, lambda *_, value=value, **__: value)
        monkeypatch.setattr(TrainingArguments, "_setup_devices", property(devices))
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10**13))
        monkeypatch.setattr(hardware, "importlib", SimpleNamespace(util=SimpleNamespace(find_spec=lambda name: True)))

    return has


@pytest.mark.parametrize("row", ROWS, ids=[f"{row[0]} {row[1]}" for row in ROWS])
def test_the_dry_run_prints_the_rows_figures(row, gpu, monkeypatch, write_jsonl, capsys):
    total, (size, *_), (flags, *_), estimate, checkpointing = (
        int(row[0].removesuffix(" GB")), row[1].split(","), code(row[2]), row[3], row[4]
    )  # fmt: skip
    gpu(total)
    monkeypatch.setattr(hardware, "is_vllm_available", lambda: "vLLM" in row[1])
    words = shlex.split(flags)
    named = words[words.index("--model_name_or_path") + 1] if "--model_name_or_path" in words else ""
    assert f"Qwen2.5-{size}-" in (named or train_grpo.HYPERPARAMETERS["model_name_or_path"])
    model = shutil.copytree(DEMO / "model", size, ignore=shutil.ignore_patterns("*.safetensors"))
    speed.random_config(size).save_pretrained(model)
    Path("recipes").symlink_to(ROOT / "recipes")
    rows = [json.loads(line) for line in (DEMO / "train.jsonl").read_text().splitlines()[:100]]
    data = write_jsonl([*rows, {"question": LONG, "answer": "#### 4"}])
    place = [
        "--model_name_or_path",
        f"./{size}",
        "--dataset_name",
        data,
        "--eval_dataset_name",
        str(DEMO / "test.jsonl"),
    ]
    assert train_grpo.main([*words, *place, "--report_to", "none", "--dry_run", "true"]) == 0, capsys.readouterr().err
    shown = " ".join(capsys.readouterr().out.split())
    assert (
        "Dry run: no warnings, no error" in shown
        and "longest 256 tokens" in shown
        and "200 held-out questions" in shown
    )
    (decided,) = DECIDED.findall(shown) or [shown]
    assert decided == (checkpointing, estimate)
    assert float(estimate) <= 0.9 * total


def test_every_size_of_gpu_has_rows_and_the_measured_are_near_their_estimates():
    assert {row[0] for row in ROWS} == {"24 GB", "48 GB", "80 GB"}
    measured = [(float(row[3]), float(row[5])) for row in ROWS if row[5]]
    assert len(measured) >= 3 and all(estimate == pytest.approx(found, rel=1 / 8) for estimate, found in measured)


def test_the_shares_of_mixed_groups_are_those_of_their_chances():
    table = tables("right | groups of 4 | 8 | 16 | 32")
    assert table
    for right, *shares in table:
        chance = int(right.removesuffix(" %")) / 100
        expected = [1 - chance**size - (1 - chance) ** size for size in (4, 8, 16, 32)]
        assert shares == [f"{share:.0%}".replace("%", " %") for share in expected]
