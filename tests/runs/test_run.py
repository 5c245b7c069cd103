"""grpo/runs/run.py: what is said at a run's end. (Signals: tests/training/test_stopping.py.)"""

import json
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

import train_grpo
from grpo.runs.run import Run


def test_a_finished_run_names_what_to_do_next():
    training = SimpleNamespace(push_to_hub=False, resume_from_checkpoint=None)
    run = Run(SimpleNamespace(output=Path("out/a run"), training=training))
    text = run.next_steps(Path("out/a run/report.html"))
    _, report, ask, publish = text.splitlines()
    assert report.endswith("out/a run/report.html")
    assert shlex.split(ask)[3:] == ["python", "-m", "grpo", "ask", "out/a run", "your question"]
    left_out = ["--exclude", "checkpoint-*/*", "--exclude", "_ended-*/*"]
    assert shlex.split(publish)[2:] == ["hf", "upload", "your-name/a run", "out/a run", *left_out]


BREAKS = """
from pathlib import Path
def breaks(completions, trainer_state, **kwargs):
    if trainer_state.global_step == 1:
        with Path("run/metrics.jsonl").open("a") as file:
            file.write("half a line\\n")
    return [0.0] * len(completions)
"""


@pytest.mark.slow
def test_a_file_that_is_broken_meanwhile_costs_no_result(tiny_run, capfd):
    Path("mine.py").write_text(BREAKS)
    own = {"reward_funcs": "mine.breaks", "allow_custom_rewards": "true"}
    assert train_grpo.main(tiny_run(**own, max_steps="2", save_steps="2", eval_samples="2")) == 0
    record, shown = json.loads(Path("run/run.json").read_text()), capfd.readouterr().out
    assert (record["status"], record["step"]) == ("finished", 2) and Path("run/comparison.json").exists()
    assert "note: no new report (run/metrics.jsonl, line 2 is not a JSON object" in " ".join(shown.split())
    assert Path("run/checkpoint-2/complete.json").exists() and "note: the model card is TRL's alone" in shown
