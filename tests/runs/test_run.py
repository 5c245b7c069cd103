"""grpo/runs/run.py: what is said at a run's end. (Signals: tests/training/test_stopping.py.)"""

import re
import shlex
from pathlib import Path
from types import SimpleNamespace

from grpo.runs.run import Run


def test_a_finished_run_names_what_to_do_next():
    Path("out/a run").mkdir(parents=True)
    Path("out/a run/eval_after.json").write_text('{"accuracy_lenient": 0.5}')
    push = SimpleNamespace(push_to_hub=False)
    run = Run(SimpleNamespace(output=Path("out/a run"), argv=["--config", "demo"], training=push))
    text = re.sub(r" \\\n|(?<=[a-z])\n(?=    )", "", run.next_steps(Path("out/a run/report.html")))
    ask, measure, publish = (shlex.split(line) for line in text.splitlines()[2:])
    assert ask[3:-1] == ["python", "train_grpo.py", "--model_name_or_path", "out/a run", "--ask"]
    assert measure[2:6] == ["python", "train_grpo.py", "--config", "demo"] and "--eval_only" in measure
    assert publish[2:] == ["hf", "upload", "your-name/a run", "out/a run", "--exclude", "checkpoint-*/*"]
