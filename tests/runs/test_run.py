"""grpo/runs/run.py: what is said at a run's end. (Signals: tests/training/test_stopping.py.)"""

import json
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

from grpo.runs.run import Run


def test_a_finished_run_names_what_to_do_next():
    push = SimpleNamespace(push_to_hub=False)
    run = Run(SimpleNamespace(output=Path("out/a run"), argv=["--config", "demo"], training=push))
    text = run.next_steps(Path("out/a run/report.html"))
    assert max(map(len, text.splitlines())) <= 80
    first, *lines = re.sub(r" \\\n|(?<=[a-z])\n(?=    )", "", text).splitlines()
    ask, measure, publish = (shlex.split(line) for line in lines[1:])
    assert first == "Next:" and lines[0].endswith("  out/a run/report.html")
    push.push_to_hub = True
    assert "publish" not in run.next_steps(Path("report.html"))
    assert ask[3:-1] == ["python", "train_grpo.py", "--model_name_or_path", "out/a run", "--ask"]
    assert measure[2:6] == ["python", "train_grpo.py", "--config", "demo"] and "--eval_only" in measure
    assert publish[2:] == ["hf", "upload", "your-name/a run", "out/a run", "--exclude", "checkpoint-*/*"]


def test_samples_are_offered_where_answers_are_right_or_wrong():
    push = SimpleNamespace(push_to_hub=True)
    run = Run(SimpleNamespace(output=Path("mine"), argv=[], training=push))
    run.output.mkdir()
    for summary, offered in (
        ({"accuracy_lenient": 0.5}, True),
        ({"reward": 1.0}, False),
    ):
        (run.output / "eval_after.json").write_text(json.dumps(summary))
        assert ("evaluate more" in run.next_steps(Path("report.html"))) == offered
