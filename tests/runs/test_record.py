"""A run's record: its settings, how it was started, and how it ended; a resumed one keeps what came before."""

import json
import os
from pathlib import Path

import pytest
from helpers_checkpoints import make_checkpoint

import train_grpo
from grpo.config.configure import configure
from grpo.core.errors import UserError
from grpo.core.jsonfiles import append_line
from grpo.results.record import RunRecord
from grpo.runs import record as records
from grpo.runs.run import choose_run
from grpo.scoring.registry import load_rewards, make_task


def run(*argv):
    output = () if "--output_dir" in argv else ("--output_dir", "r")
    given = ["--use_cpu", "true", "--report_to", "none", *output, *argv]
    found = configure(train_grpo.HYPERPARAMETERS, given, script_file=train_grpo.__file__)
    task = make_task(found)
    return choose_run(found, task, load_rewards(found, task))


def read():
    return json.loads(Path("r/run.json").read_text(), parse_constant=pytest.fail)


def test_run_json_has_settings_versions_hardware_and_the_end():
    begun = run()
    begun.begin(prompt={"system": "Be brief."})
    record = read()
    assert record["settings"]["learning_rate"] == 5e-6 and record["settings"]["num_generations"] == 16
    assert {"python", "torch", "trl", "transformers"} <= set(record["versions"])
    assert record["geometry"]["num_generations"] == 16 and record["hardware"]["cpus"] >= 1
    assert record["commit"] is None or len(record["commit"].rstrip("+")) == 40
    assert record["launcher"] == "python" and record["argv"][:4] == ["--use_cpu", "true", "--report_to", "none"]
    assert record["status"] == "running" and record["prompt"] == {"system": "Be brief."}
    RunRecord.read(Path("r")).ended("finished", 12.345, 7, 0, None).write(Path("r"))
    session = {**record["sessions"][0], "status": "finished", "seconds": 12.3}
    assert read() == record | {"status": "finished", "seconds": 12.3, "step": 7, "sessions": [session]}


def test_resuming_keeps_lines_up_to_its_checkpoint():
    make_checkpoint("r", 4)
    for step in (2, 4):
        append_line(Path("r/metrics.jsonl"), {"step": step, "loss": step})
    append_line(Path("r/metrics.jsonl"), {"step": 4, "train_runtime": 9.0})
    for name in ("metrics.jsonl", "alarms.jsonl", "faults.jsonl", "completions_during.jsonl"):
        append_line(Path("r") / name, {"step": 6, "name": "later"})
    with Path("r/metrics.jsonl").open("a") as file:
        file.write('{"step": 7, "hal')
    earlier = {
        "status": "running",
        "settings": {},
        "started": "then",
        "sessions": [{"started": "then", "from_step": 0, "seconds": 10.0}],
    }
    Path("r/run.json").write_text(json.dumps(earlier))
    Path("r/eval_before.json").write_text("kept")
    run("--resume_from_checkpoint", "auto").begin()
    lines = [json.loads(line) for line in Path("r/metrics.jsonl").read_text().splitlines()]
    assert lines == [{"step": 2, "loss": 2}, {"step": 4, "loss": 4}]
    assert not [name for name in ("alarms", "faults", "completions_during") if Path(f"r/{name}.jsonl").exists()]
    assert Path("r/eval_before.json").read_text() == "kept"
    RunRecord.read(Path("r")).ended("finished", 5.04, 6, 6, None).write(Path("r"))
    record = read()
    assert record["started"] == "then" and record["seconds"] == 15.0
    assert [session["from_step"] for session in record["sessions"]] == [0, 4]


def test_a_run_that_begins_anew_keeps_no_lines():
    """As `auto` does where a run was killed before its first checkpoint."""
    Path("r").mkdir()
    Path("r/run.json").write_text('{"status": "running", "settings": {}}')
    for name in ("metrics.jsonl", "alarms.jsonl"):
        append_line(Path("r") / name, {"step": 1})
    run("--resume_from_checkpoint", "auto").begin()
    assert {path.name for path in Path("r").iterdir()} == {"run.json", "source"}


@pytest.mark.parametrize("step", ["/../../victim", "../victim", "9", 1.5, True, [2], None, -1])
def test_no_value_of_a_record_becomes_a_path(step):
    """Its step is in the name of the folder for the results of its end."""
    make_checkpoint("r", 4)
    Path("victim").mkdir()
    Path("r/_ended-at-step-").mkdir()
    Path("r/run.json").write_text(json.dumps({"status": "finished", "settings": {}, "step": step, "planned": 99}))
    for path in ("r/model.safetensors", "r/comparison.json", "r/checkpoint-4/mine", "r/mine"):
        Path(path).write_text("{}")
    argv = ["--resume_from_checkpoint", "auto", "--max_steps", "9"]
    if step is None or step == -1:
        run(*argv).begin()
        aside = Path("r", f"_ended-at-step-{4 if step is None else -1}")
        assert {path.name for path in aside.iterdir()} == {"run.json", "mine", "model.safetensors", "comparison.json"}
    else:
        with pytest.raises(UserError, match=r"^r/run\.json: step is .* instead of a whole number or null"):
            run(*argv)
    assert not list(Path("victim").iterdir()) and not list(Path("r/_ended-at-step-").iterdir())


OTHER_KINDS = {"sessions": "text", "sources": "x", "versions": 7, "started": {}, "status": "finished"}


@pytest.mark.parametrize("key", OTHER_KINDS)
def test_a_record_of_other_kinds_is_one_line_at_a_resume(key):
    make_checkpoint("r", 4)
    Path("r/metrics.jsonl").write_text('{"step": "x"}\n{"step": 3}\n{}\n')
    Path("r/run.json").write_text(json.dumps({"status": "running", "settings": {}, key: OTHER_KINDS[key]}))
    resumed = run("--resume_from_checkpoint", "auto")
    if key == "status":
        resumed.begin()
        assert Path("r/metrics.jsonl").read_text() == '{"step": 3}\n'
    else:
        before = Path("r/run.json").read_bytes()
        with pytest.raises(UserError, match=rf"^r/run\.json: {key}.* is "):
            resumed.begin()
        assert Path("r/run.json").read_bytes() == before


def test_the_record_comes_before_all_other_files(monkeypatch):
    """So a run that is killed at its start is known to be one."""
    monkeypatch.setattr(records.source, "write", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run().begin()
    assert os.listdir("r") == ["run.json"] and read()["settings"]["learning_rate"] == 5e-6
