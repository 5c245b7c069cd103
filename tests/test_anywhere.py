"""The script lives anywhere: an empty directory, and an environment with libraries and both wheels, nothing else."""

import json
import os
import re
import signal
import subprocess

import pytest
from helpers_runs import ROOT
from helpers_wheels import install
from test_docs import PASTED, blocks, pasted

pytestmark = pytest.mark.slow
QUICK = "--max_steps 2 --eval_samples 8 --max_samples 60 --per_device_train_batch_size 16"
GUIDE = [block for block in blocks("bash") if block.id.startswith("your-own-task")]
OTHERS = f"""
import train_grpo

few = ["--dry_run", "true", "--max_samples", "40", "--eval_samples", "8"]
for recipe in ("countdown", "examples/labels.yaml", "examples/json_fields.yaml", "demo_think"):
    assert train_grpo.main(["--config", recipe, *few]) == 0
by_name = ["--reward_funcs", "examples.adaptive_reward.correctness", "--allow_custom_rewards", "true"]
data = ["--prepare", "examples.rows.from_alpaca", "--dataset_name", "alpaca.json"]
assert train_grpo.main(["--config", "demo", *by_name, *data, "--dry_run", "true"]) == 0
from examples import warm_up
assert warm_up.main(["--config", "demo", *few]) == 0
assert train_grpo.main(["--config", "examples/labels.yaml", *"{QUICK}".split(), "--output_dir", "labels"]) == 0
"""


@pytest.fixture(scope="module")
def shell(wheels, tmp_path_factory):
    """Start a line of the guide there, or run it to its end and return what it printed."""
    python, _ = install(tmp_path_factory.mktemp("environment") / "venv", *wheels.values(), with_libraries=True)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"PATH": f"{python.parent}:{os.environ['PATH']}", "PYTHONUNBUFFERED": "1"}

    def run(command, directory, status=0, wait=True):
        pipe = subprocess.PIPE
        started = subprocess.Popen(
            f"exec {command}", shell=True, cwd=directory, env=environment, text=True, stdout=pipe, stderr=pipe
        )
        if not wait:
            return started
        out, err = started.communicate()
        assert started.returncode == status, f"{command}: {out[-2000:]}{err[-3000:]}"
        return " ".join((out + err).split())

    return run


@pytest.fixture(scope="module")
def mine(shell, tmp_path_factory):
    """A directory that `python -m grpo new` wrote."""
    place = tmp_path_factory.mktemp("empty")
    assert "cd mine python train_grpo.py --config demo" in shell("python -m grpo new mine", place)
    return place / "mine"


def edit(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def record(run):
    return json.loads((run / "run.json").read_text(encoding="utf-8"))


def test_the_guide_from_its_first_line_to_the_comparison(shell, mine):
    (make_data,), copy, way = (block.values[0].replace("\\\n", " ").splitlines() for block in GUIDE[:3])
    shell(make_data, mine)
    trained = 0
    for line in [*copy, *way]:
        command = line.partition("  #")[0]
        if command.startswith("python my_task.py"):
            trained += "dry_run" not in command
            if trained == 2:  # the guide's edit, and one in the rewards
                edit(mine / "my_task.py", "Respond in", "Reply in")
                edit(mine / "rewards.py", "0.5 if has_soft_format", "0.25 if has_soft_format")
            command += f" {QUICK}"
        shown = shell(command, mine)
        if command.startswith("cp"):
            (mine / "my_task.py").write_text(pasted(*PASTED["my_task"]), encoding="utf-8")
        if "xray" in command:
            assert "close" in shown
        if "compare" in command:
            assert "Other system prompt, other code in soft_format_reward_func" in shown
    runs = [mine / "outputs" / f"demo-GRPO-my_problems{number}" for number in ("", "-2")]
    assert [b"0.25 if" in (run / "source" / "rewards.py").read_bytes() for run in runs] == [False, True]
    assert {path.name for path in (runs[1] / "source").iterdir()} == {"my_task.py", "rewards.py"}
    assert record(runs[1])["commit"] is None
    assert "answers:" in shell(f"python -m grpo ask {runs[0]} 'What is 2 + 3?'", "/")  # without a rewards.py


def test_a_stopped_run_is_resumed_by_the_printed_command(shell, mine):
    """From another directory; the recipe is the one beside the script."""
    with (mine / "recipes" / "demo.yaml").open("a") as recipe:
        recipe.write("seed: 7\n")
    elsewhere = mine.parent / "elsewhere"
    elsewhere.mkdir()
    flags = f"--config demo {QUICK} --max_steps 6 --logging_steps 1 --save_strategy steps --save_steps 2"
    started = shell(f"python ../mine/train_grpo.py {flags}", elsewhere, wait=False)
    for line in started.stdout:
        if re.match(r" +1 ", line):  # the first step has been made
            started.send_signal(signal.SIGTERM)
            break
    printed = " ".join((started.stdout.read() + started.stderr.read()).split())
    assert started.wait() == 128 + signal.SIGTERM, printed
    command = re.search(r"python \.\./mine/train_grpo\.py .*? auto", printed)[0]
    report = shell("python -m grpo report outputs/demo-GRPO", elsewhere)
    assert "report.html" in report and command in (elsewhere / "outputs/demo-GRPO/report.html").read_text()
    shown = shell(command, elsewhere)
    run = record(elsewhere / "outputs" / "demo-GRPO")
    assert (run["status"], run["settings"]["seed"], len(run["sessions"])) == ("finished", 7, 2)
    assert b"seed: 7" in (elsewhere / "outputs/demo-GRPO/source/demo.yaml").read_bytes()
    ask = re.search(r"ask the model (python -m grpo ask \S+) ", shown)[1]
    assert "answers:" in shell(f"{ask} 'What is 2 + 3?'", elsewhere)


def test_shipped_recipes_examples_and_their_code_are_found(shell, mine):
    rows = [{"instruction": f"What is {n} + 1?", "input": "", "output": str(n + 1)} for n in range(40)]
    (mine / "alpaca.json").write_text(json.dumps(rows))
    (mine / "others.py").write_text(OTHERS)
    shell("python others.py", mine)
    labels = mine / "labels"
    files = {path.name for path in (labels / "source").iterdir()}
    assert files == {"train_grpo.py", "rewards.py", "labels.py", "labels.yaml"}
    assert "def label_reward" in record(labels)["code"]["label_reward"]


def test_the_clone_comes_before_the_wheel(shell, tmp_path):
    shown = "python -c 'import grpo; print(grpo.__file__)'"
    assert shell(shown, ROOT) == str(ROOT / "grpo" / "__init__.py") != shell(shown, tmp_path)
