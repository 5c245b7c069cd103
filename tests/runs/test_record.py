"""A run's record: its settings and how it ended, its lines without half a one, and the command that resumes it."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers_checkpoints import make_checkpoint

import train_grpo
from grpo.config.configure import configure
from grpo.config.settle import settle
from grpo.core.jsonfiles import append_line
from grpo.core.settings import IN_MEMORY
from grpo.rewarding.registry import load_rewards, make_task
from grpo.runs import record as records


def config(*argv):
    output = () if "--output_dir" in argv else ("--output_dir", "r")
    given = ["--use_cpu", "true", "--report_to", "none", *output, *argv]
    found = configure(train_grpo.HYPERPARAMETERS, given, script_file=train_grpo.__file__)
    task = make_task(found, train_grpo.PROMPT_FORMATS, train_grpo.EXEMPLARS)
    settle(found, task, load_rewards(found, task))
    return found


def read():
    return json.loads(Path("r/run.json").read_text(), parse_constant=pytest.fail)


def test_run_json_has_settings_versions_hardware_and_the_end():
    records.start_record(Path("r"), config(), prompt={"system": "Be brief."})
    record = read()
    assert record["settings"]["learning_rate"] == 5e-6 and record["settings"]["num_generations"] == 16
    assert {"python", "torch", "trl", "transformers"} <= set(record["versions"])
    assert record["geometry"]["num_generations"] == 16 and record["hardware"]["cpus"] >= 1
    assert record["commit"] is None or len(record["commit"].rstrip("+")) == 40
    assert record["status"] == "running" and record["prompt"] == {"system": "Be brief."}
    records.finish(Path("r"), "finished", 12.345, 7)
    session = {**record["sessions"][0], "status": "finished", "seconds": 12.3}
    assert read() == record | {"status": "finished", "seconds": 12.3, "step": 7, "sessions": [session]}


def test_resuming_keeps_lines_up_to_its_checkpoint():
    make_checkpoint("r", 4)
    for step in (2, 4):
        append_line(Path("r/metrics.jsonl"), {"step": step, "loss": step})
    append_line(Path("r/metrics.jsonl"), {"step": 4, "train_runtime": 9.0})
    for name in ("metrics.jsonl", "alarms.jsonl", "faults.jsonl"):
        append_line(Path("r") / name, {"step": 6, "name": "later"})
    with Path("r/metrics.jsonl").open("a") as file:
        file.write('{"step": 7, "hal')
    earlier = {"status": "running", "started": "then", "sessions": [{"started": "then", "seconds": 10.0}]}
    Path("r/run.json").write_text(json.dumps(earlier))
    Path("r/eval_before.json").write_text("kept")
    records.start_record(Path("r"), config("--resume_from_checkpoint", "auto"))
    lines = [json.loads(line) for line in Path("r/metrics.jsonl").read_text().splitlines()]
    assert lines == [{"step": 2, "loss": 2}, {"step": 4, "loss": 4}]
    assert not Path("r/alarms.jsonl").exists() and not Path("r/faults.jsonl").exists()
    assert Path("r/eval_before.json").read_text() == "kept"
    records.finish(Path("r"), "finished", 5.04, 6)
    record = read()
    assert record["started"] == "then" and record["seconds"] == 15.0
    assert [session.get("from_step") for session in record["sessions"]] == [None, 4]


def test_a_run_that_begins_anew_keeps_no_lines():
    """As `auto` does where a run was killed before its first checkpoint."""
    Path("r").mkdir()
    for name in ("metrics.jsonl", "alarms.jsonl"):
        append_line(Path("r") / name, {"step": 1})
    records.start_record(Path("r"), config())
    assert {path.name for path in Path("r").iterdir()} == {"run.json", "source"}


def resumes(output, *argv, dataset_name="a.csv"):
    script = SimpleNamespace(dataset_name=dataset_name)
    config = SimpleNamespace(argv=list(argv), script=script, program="my_dates.py", script_file="my_dates.py")
    return records.resume_command(Path(output), config)


def test_the_resume_command_names_run_and_launcher(monkeypatch):
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    command = resumes("outputs/X", "--config", "recipes/demo.yaml")
    assert command == (
        "python my_dates.py --config recipes/demo.yaml --output_dir outputs/X --resume_from_checkpoint auto"
    )
    assert resumes("outputs/X", *command.split()[2:]) == command  # it does not grow
    again = "--resume_from_checkpoint=auto --config recipes/demo.yaml --resume-from-checkpoint x/checkpoint-3"
    assert resumes("outputs/X", *again.split()) == command
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    command = resumes("mine", "--output_dir", "mine")
    assert command == ("torchrun --nproc_per_node=4 my_dates.py --output_dir mine --resume_from_checkpoint auto")
    assert resumes("mine", "--output_dir", "mine", dataset_name=IN_MEMORY) == (
        "my_dates.main(['--output_dir', 'mine', '--resume_from_checkpoint', 'auto'], dataset=...)"
    )
