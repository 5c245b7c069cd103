"""grpo/runs/run.py: what is said at a run's end. (Signals: tests/training/test_stopping.py.)"""

import shlex
from pathlib import Path
from types import SimpleNamespace

from grpo.runs.run import Run


def test_a_finished_run_names_what_to_do_next(write_jsonl):
    Path("out/a run").mkdir(parents=True)
    asked = ["word " * 30, "two\nlines", "What's $2 in cents?", "2 + 2?"]
    write_jsonl([{"question": question} for question in asked], "out/a run/completions_after.jsonl")
    training = SimpleNamespace(push_to_hub=False, resume_from_checkpoint=None)
    run = Run(SimpleNamespace(output=Path("out/a run"), training=training))
    text = run.next_steps(Path("out/a run/report.html"))
    _, report, ask, publish = text.splitlines()
    assert report.endswith("out/a run/report.html")
    assert shlex.split(ask)[3:] == ["python", "-m", "grpo", "ask", "out/a run", "What's $2 in cents?"]
    assert shlex.split(publish)[2:] == ["hf", "upload", "your-name/a run", "out/a run", "--exclude", "checkpoint-*/*"]
