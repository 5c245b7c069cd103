"""notebooks/grpo.ipynb: its cells run in their order."""

import ast
import json
import linecache
import sys
from pathlib import Path
from types import ModuleType

import pytest
from helpers_runs import ROOT, flags

import train_grpo

CELLS = json.loads((ROOT / "notebooks" / "grpo.ipynb").read_text(encoding="utf-8"))["cells"]
CODE = [cell for cell in CELLS if cell["cell_type"] == "code"]
QUICK = flags(max_steps=1, eval_samples=4, per_device_train_batch_size=16, max_completion_length=40)


@pytest.fixture
def displayed(tmp_path, monkeypatch):
    """The texts that were displayed; IPython is replaced, and the folder has the files that runs need."""
    for name in ("assets", "recipes"):
        (tmp_path / name).symlink_to(ROOT / name)
    pages, display = [], ModuleType("IPython.display")
    display.HTML = lambda text: pages.append(text)
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.setattr(train_grpo, "HYPERPARAMETERS", dict(train_grpo.HYPERPARAMETERS))  # which a cell edits
    return pages


def execute(cells):
    """Run cells as a notebook does, quick; the values that it would show."""
    names, shown = {}, []
    for number, cell in enumerate(cells):
        tags, text = cell["metadata"].get("tags", []), "".join(cell["source"])
        if "install" in tags:
            continue
        tree = ast.parse(text)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        name = f"<ipython-input-{number}>"
        linecache.cache[name] = len(text), None, text.splitlines(keepends=True), name  # as IPython keeps its cells
        exec(compile(tree, name, "exec"), names)
        if "parameters" in tags:
            assert names["QUICK"] == []
            names["QUICK"] = QUICK
        if last:
            shown.append(eval(compile(ast.Expression(last.value), name, "eval"), names))
    return shown


def test_no_output_is_stored():
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in CODE)


@pytest.mark.slow
def test_every_cell_runs_on_a_cpu(displayed, capsys):
    train = next(number for number, cell in enumerate(CODE) if "train_grpo.main(" in "".join(cell["source"]))
    shown = execute([*CODE[:train], *CODE])  # the cells before it may run again
    statuses = [value for value in shown if isinstance(value, int)]
    assert statuses == [0, 0], capsys.readouterr().err  # a run and a question
    assert [0.5, 0.0, 0.0, 0.0] in shown  # the reward pays a short right answer, and no long, wrong or empty one
    record = json.loads(Path("outputs/notebook/run.json").read_text())
    assert record["status"] == "finished" and record["settings"]["reward_funcs"][-1] == "concise"
    assert record["settings"]["prepare"] == "prepare" and "def concise(" in record["code"]["concise"]
    assert len(displayed) == 1 and "srcdoc=" in displayed[0] and "GRPO run report" in displayed[0]
