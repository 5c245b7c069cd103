"""An evaluation alone is a road of its own: it asks nothing of training, and training asks nothing of it."""

import json
import re
from pathlib import Path

import pytest
from helpers_runs import LEARNS, ROOT

import train_grpo
from grpo.data import dataset

# Where settings are read and the road is chosen; default names of its directory
KNOW = {"train_grpo.py", "grpo/evaluate_only.py", "grpo/core/settings.py", "grpo/runs/directory.py"}


def test_nothing_below_the_road_asks_for_eval_only():
    found = {
        str(path.relative_to(ROOT))
        for path in [ROOT / "train_grpo.py", *(ROOT / "grpo").rglob("*.py")]
        if re.search(r"""\beval_only\b(?!\.json)""", path.read_text(encoding="utf-8"))
    }
    assert {path for path in found - KNOW if not path.startswith("grpo/config/")} == set()


def test_it_loads_questions_and_trains_nothing(tiny_run, write_jsonl, monkeypatch, capsys):
    for name in ("load_data", "load_model", "RunTrainer"):
        monkeypatch.setattr(train_grpo, name, lambda *_, **__: pytest.fail("this is training"))
    monkeypatch.setattr(dataset, "load_data", lambda *_: pytest.fail("training rows are read"))
    rows = [{"question": f"What is {n} + 2?", "answer": str(n + 2), "odd": n == 5} for n in range(6)]
    flags = {**LEARNS, "dataset_name": "not/there", "eval_dataset_name": write_jsonl(rows), "eval_only": "true"}
    flags |= {"eval_by": "odd"}
    assert train_grpo.main(tiny_run(**flags, dry_run="true")) == 0 and not Path("run").exists()
    assert train_grpo.main(tiny_run(**flags)) == 0
    record, summary = (json.loads(Path("run", name).read_text()) for name in ("run.json", "eval_only.json"))
    assert record["status"] == "evaluated" and "step" not in record and summary["n"] == 6
    assert record["data"] == {"held_out": 6, "unusable": 0}
    shown = " ".join(capsys.readouterr().out.split())
    assert re.search(r"│ false \(5\) │ [\d.]+ \([\d.]+-[\d.]+\) │ │ true \(1\) │ [\d.]+ \(", shown)
    assert "true (1)" in Path("run/report.html").read_text()
    assert {"held-out questions", "weights to begin with"} <= {*record["sources"]} and summary["measure"]
