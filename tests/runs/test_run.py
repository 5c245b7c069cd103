"""grpo/runs/run.py: a broken file costs no result. (Its end: tests/test_life_of_a_run.py.)"""

import json
from pathlib import Path

from transformers import TrainerCallback

import train_grpo

BREAKS = """
from pathlib import Path
def breaks(completions, trainer_state, **kwargs):
    if trainer_state.global_step == 1:
        with Path("run/metrics.jsonl").open("a") as file:
            file.write("half a line\\n")
    return [0.0] * len(completions)
"""


def test_a_file_that_is_broken_meanwhile_costs_no_result(tiny_run, capfd):
    Path("mine.py").write_text(BREAKS)
    own = {"reward_funcs": "mine.breaks", "allow_custom_rewards": "true"}
    assert train_grpo.main(tiny_run(**own, max_steps="2", save_steps="2", eval_samples="2")) == 0
    record, shown = json.loads(Path("run/run.json").read_text()), capfd.readouterr().out
    assert (record["status"], record["step"]) == ("finished", 2) and Path("run/comparison.json").exists()
    assert "note: no new report (run/metrics.jsonl, line 2 is not a JSON object" in " ".join(shown.split())
    assert Path("run/checkpoint-2/complete.json").exists() and "note: the model card is TRL's alone" in shown


def test_a_mistake_in_a_callback_of_ones_own_names_its_line(tiny_run, monkeypatch, capfd):
    class Mine(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            return undefined  # noqa: F821

    ours = train_grpo.callbacks_of
    monkeypatch.setattr(train_grpo, "callbacks_of", lambda *args: [*ours(*args), Mine()])
    assert train_grpo.main(tiny_run(max_steps="1", eval_samples="0")) == 2
    line = Mine.on_step_end.__code__.co_firstlineno + 1
    (said,) = [said for said in capfd.readouterr().err.splitlines() if said.startswith("error: ")]
    assert said.startswith(
        f"error: NameError: name 'undefined' is not defined (test_run.py:{line}). There is no check"
    )
    assert json.loads(Path("run/run.json").read_text())["status"].startswith("failed: NameError")
