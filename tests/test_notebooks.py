"""notebooks/grpo.ipynb: its cells run in their order, and what they train on a T4 fits one."""

import ast
import json
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
import transformers.utils
from helpers_runs import ROOT, flags
from transformers import Qwen2Config

import train_grpo
from grpo.config import hardware, plan
from grpo.config.resolve import merge

CELLS = json.loads((ROOT / "notebooks" / "grpo.ipynb").read_text(encoding="utf-8"))["cells"]
CODE = [cell for cell in CELLS if cell["cell_type"] == "code"]
QUICK = flags(max_steps=1, eval_samples=4, per_device_train_batch_size=16, max_completion_length=40)


@pytest.fixture
def displayed(tmp_path, monkeypatch):
    """What was displayed; IPython is replaced, and the reader's folder has what runs need of the repository."""
    for name in ("assets", "recipes"):
        (tmp_path / name).symlink_to(ROOT / name)
    pages, display = [], ModuleType("IPython.display")
    display.HTML = lambda text: pages.append(text)
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield pages
    sys.modules.pop("my_reward", None)


def execute(cells):
    """Run cells as a notebook does, quick; the names they define, and the values that it would show."""
    names, shown = {}, []
    for cell in cells:
        tags, text = cell["metadata"].get("tags", []), "".join(cell["source"])
        if "install" in tags:
            continue
        if text.startswith("%%writefile "):
            line, _, text = text.partition("\n")
            Path(line.split()[1]).write_text(text, encoding="utf-8")
            continue
        tree = ast.parse(text)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, "a cell", "exec"), names)
        if "parameters" in tags:
            assert names["QUICK"] == []
            names["QUICK"] = QUICK
        if last:
            shown.append(eval(compile(ast.Expression(last.value), "a cell", "eval"), names))
    return names, shown


def test_no_output_is_stored():
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in CODE)


@pytest.mark.slow
def test_every_cell_runs_on_a_cpu(displayed, capsys):
    names, shown = execute(CODE)
    statuses = [value for value in shown if isinstance(value, int)]
    assert statuses == [0, 0, 0], capsys.readouterr().err  # a run, a question, a run on other data
    assert names["my_reward"].concise(["short"], limit=4) == [0.0] and [0.5, 0.0] in shown
    records = [json.loads(Path(f"outputs/{name}/run.json").read_text()) for name in ("notebook", "notebook-own")]
    assert [record["status"] for record in records] == ["finished", "finished"]
    assert records[1]["settings"]["reward_funcs"][-1] == "my_reward.concise"
    assert len(displayed) == 2 and all("srcdoc=" in page and "GRPO run report" in page for page in displayed)


@pytest.fixture
def on_a_t4(displayed, monkeypatch):
    """What the cells define where there is a GPU, and the command lines that they would run there."""
    lines = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "Tesla T4")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (7, 5))
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    monkeypatch.setattr(train_grpo, "main", lambda argv, dataset=None: lines.append(argv))
    for name in ("notebook", "notebook-own"):
        Path("outputs", name).mkdir(parents=True)
        Path("outputs", name, "report.html").touch()
    names, _ = execute(CODE)
    assert names["SETTINGS"] is names["T4"]
    return names["T4"], lines


def test_the_run_on_a_t4_fits_its_memory(on_a_t4, monkeypatch):
    sizes = {"num_hidden_layers": 24, "hidden_size": 896, "intermediate_size": 4864, "tie_word_embeddings": True}
    sizes |= {"num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936}
    monkeypatch.setattr(plan, "model_config", lambda name: Qwen2Config(**sizes))  # Qwen2.5-0.5B's
    _, planned = plan.read(["--gpu", "T4", *on_a_t4[0]])
    text = "".join("".join(cell["source"]) for cell in CELLS)
    size, minutes = map(int, re.search(r"about (\d+) GB of 16, and (\d+) minutes", text).groups())
    assert round(planned.peak) == size < 12
    assert planned.dense and not plan.read(["--gpu", "H100", *on_a_t4[0]])[1].dense  # also planned on a T4
    assert sum(planned.seconds(0).values()) < 60 * minutes < 1.2 * sum(planned.seconds(1).values())


def test_commands_on_a_t4_get_its_number_formats(on_a_t4, monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(transformers.utils, "is_torch_tf32_available", lambda: False)  # Turing has none
    for argv in on_a_t4[1]:
        merged = merge(train_grpo.HYPERPARAMETERS, argv, 1)
        notes = hardware.fit_to_machine(merged.settings, merged.typed, merged.chosen)
        assert [note for note in notes if "report_to" not in note] == [
            "note: Tesla T4 has no bfloat16, so weights are float32 and computed in fp16"
        ]
        found = [merged.settings[key] for key in ("dtype", "fp16", "bf16", "attn_implementation")]
        assert found == ["float32", True, False, "sdpa"]  # a T4 only emulates bfloat16, and has no FlashAttention
    assert len(on_a_t4[1]) == 3
