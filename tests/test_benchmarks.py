"""benchmarks/: a mistake is one line and status 2, and runs of train_grpo.py are started and resumed in one way."""

import json
import subprocess
import sys
from pathlib import Path

import common
import counted
import exactness
import grading
import kill_loop
import pytest
import speed
import sweep
from helpers_runs import ROOT

BENCHMARKS = {module.__name__: module for module in (counted, exactness, grading, kill_loop, speed, sweep)}
MISTAKES = {  # command: what the line names
    "counted step --draw 3": "--draw",
    "counted step --draws 0": "0 is not a whole number",
    "counted step --model 9X": "9X",
    "counted preflight --models 0.5B 8B": "8B",
    "counted fits --optim adamw_8bit": "--optim",
    "counted fits -- --optim nope": "nope",
    "exactness settings --counts 3": "--counts",
    "exactness settings --count -1": "-1",
    "exactness settings one": "one",
    "exactness architectures llama nope": "nope is not one of the architectures",
    "grading --shows": "--shows",
    "grading nope.jsonl": "nope.jsonl",
    "grading broken.jsonl": "broken.jsonl",
    "grading --solutions pairs.jsonl": "pairs.jsonl",
    "kill_loop --round 3": "--round",
    "kill_loop --rounds some": "some",
    "kill_loop -- --max_steps 3": "--max_steps",
    "speed": "what",
    "speed step --stepz 3": "--stepz",
    "speed step --steps 1": "1 is not a whole number",
    "speed step --live 2": "2 is not a share",
    "speed step --prompt_tokens 120 20": "--prompt_tokens",
    "speed step --median_length 0": "0 is not a number above 0",
    "speed step --completions 30": "30",
    "speed step -- --max_steps 3": "--max_steps",
    "speed loop --completions 20": "20",
    "speed loop --mean_length 1": "1 is not a number above 1",
    "speed sampling --questions nope.jsonl": "nope.jsonl",
    "speed sampling --model nope": "nope",
    "speed run --config demo": "--config",
    "sweep nope": "nope",
    "sweep controls --seed 3": "--seed",
    "sweep controls --seeds 1 x": "x",
    "sweep controls --output broken.jsonl": "--output",
    "sweep controls --arms real nope": "nope is not an arm",
}


def test_a_line_of_pairs_ends_where_json_has_it():
    rows = [[f"It is{sign}7.", "7", True] for sign in "\u2028\u2029\x85\x1c\r"]
    lines = [json.dumps(dict(zip(("text", "gold", "right"), row, strict=True)), ensure_ascii=False) for row in rows]
    Path("pairs.jsonl").write_text("\r\n".join([*lines, ""]), encoding="utf-8", newline="")
    assert grading.read(Path("pairs.jsonl"), "text", "gold", "right") == rows


@pytest.mark.parametrize("command", MISTAKES)
def test_a_mistake_is_one_line_and_status_2(command, capfd):
    Path("broken.jsonl").write_text('{"text": "5", "gold": "5"}\n')
    Path("pairs.jsonl").write_text('{"text": "5", "gold": "5", "right": true}\n')
    name, *words = command.split()
    assert BENCHMARKS[name].main(words) == 2
    out, error = capfd.readouterr()
    assert out == "" and error.startswith("error: ") and error.count("\n") == 1, error
    assert MISTAKES[command] in error
    assert not {path.name for path in Path().iterdir()} - {"broken.jsonl", "pairs.jsonl"}


def test_a_fault_of_a_benchmark_itself_is_a_traceback(monkeypatch):
    monkeypatch.setattr(sweep, "SWEEPS", {"controls": None})
    with pytest.raises(TypeError):
        sweep.main(["controls"])


def test_every_benchmark_is_in_the_table_of_mistakes():
    files = {path.stem for path in (ROOT / "benchmarks").glob("*.py")}
    assert files - {"common", "chance"} == set(BENCHMARKS) == {command.split()[0] for command in MISTAKES}


@pytest.fixture
def started(monkeypatch):
    """The commands that are started, without the programs."""
    found = []
    monkeypatch.setattr(subprocess, "Popen", lambda command, **_: found.append(command))
    return found


def test_a_run_is_started_and_resumed_by_one_command(started):
    common.start(["--seed", 3], Path("run"))
    Path("run/checkpoint-2").mkdir(parents=True)
    common.start([], Path("run"), processes=2)
    first, resumed = started
    assert first == [sys.executable, str(ROOT / "train_grpo.py"), "--seed", "3", "--output_dir", "run"]
    assert resumed[1:3] == ["-m", "torch.distributed.run"] and "--nproc_per_node=2" in resumed
    assert resumed[-4:] == ["--output_dir", "run", "--resume_from_checkpoint", "auto"]


@pytest.mark.slow
def test_a_run_that_fails_ends_the_benchmark_with_its_status():
    with pytest.raises(SystemExit) as ended:
        common.train(["--config", "nope"], Path("run"))
    assert ended.value.code == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", BENCHMARKS)
def test_each_benchmark_starts_in_any_directory(name):
    script = str(ROOT / "benchmarks" / f"{name}.py")
    done = subprocess.run([sys.executable, script, "--help"], capture_output=True, text=True)
    assert done.returncode == 0 and f"benchmarks/{name}.py" in done.stdout
