"""CONTRIBUTING's six patches apply, touch one place each, and appear everywhere they should."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from helpers_commands import command
from helpers_runs import DEMO, LEARNS, ROOT, TINY, flags
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PATCHES = dict(re.findall(r"^### ([^\n]+)\n[^#]*?^```diff\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL))
COPIED = ("assets", "docs", "exact_answers", "examples", "grpo", "lean_grpo", "recipes", "tests")


def files_of(patch):
    return re.findall(r"^\+\+\+ b/(\S+)", patch, re.MULTILINE)


def test_each_patch_is_one_place_in_code_tests_and_docs():
    assert len(PATCHES) == 6
    for title, patch in PATCHES.items():
        code, *others = files_of(patch)
        used = ["grpo"] if "setting" in title else []  # the line that uses a setting is where it is used
        assert code.startswith("grpo/") and [file.split("/")[0] for file in others] == [*used, "tests", "docs"]
        added = re.findall(r"^\+(?!\+\+ ).*", patch, re.MULTILINE)
        assert len(added) <= 15 and not re.search(r"^-(?!-- a/).*grpo", patch, re.MULTILINE)


@pytest.fixture(scope="module")
def patched(tmp_path_factory):
    """A copy of the tree with all six patches."""
    tree = tmp_path_factory.mktemp("tree")
    for name in COPIED:
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (*ROOT.glob("*.py"), *ROOT.glob("*.toml"), *ROOT.glob("*.md")):
        shutil.copy(path, tree)
    for title, patch in PATCHES.items():
        done = subprocess.run(["git", "apply", "-"], input=patch, text=True, capture_output=True, cwd=tree)
        assert done.returncode == 0, f"{title}: {done.stderr}"
    return tree


def test_they_apply(patched):
    for file in {file for patch in PATCHES.values() for file in files_of(patch)}:
        assert (patched / file).read_text(encoding="utf-8") != (ROOT / file).read_text(encoding="utf-8")


@pytest.mark.slow
def test_their_own_tests_pass(patched):
    added = re.findall(r'^\+def (test_\w+)|^\+    "(\w+)": \(', "".join(PATCHES.values()), re.MULTILINE)
    named = " or ".join([*map("".join, added), "value_and_a_line", "one_fault"])
    tests = sorted({file for patch in PATCHES.values() for file in files_of(patch) if file.startswith("tests/")})
    done = command("-m", ["pytest", "-n", "0", "-q", "-p", "no:cacheprovider", "-k", named, *tests], directory=patched)
    passed = re.search(r"(\d+) passed", done.stdout)
    assert done.returncode == 0 and passed and int(passed[1]) >= 5, done.stdout[-3000:]


REWARDS = """
def stands_in(completions, trainer_state, **kwargs):
    return [-1e9 if trainer_state.global_step == 1 and not at else 0.5 for at, _ in enumerate(completions)]
def never_works(completions, **kwargs):
    return [-1e9 for _ in completions]
"""


@pytest.mark.slow
def test_each_appears_everywhere(patched, tmp_path):
    rows = (DEMO / "train.jsonl").read_text(encoding="utf-8").splitlines()[:40]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    (patched / "mine.py").write_text(REWARDS)
    settings = TINY | LEARNS | {"dataset_name": str(tmp_path / "rows.jsonl"), "eval_samples": "6", "eval_every": "1"}
    settings |= {"allow_custom_rewards": "true", "logging_steps": "1", "max_samples": None, "save_steps": "1"}
    settings |= {"eval_dataset_name": str(DEMO / "test.jsonl"), "report_to": "tensorboard", "output_dir": None}
    argv = ["train_grpo.py", *flags(**settings)]
    names = ["--reward_funcs", "correctness_reward_func", "xmlcount_reward_func"]
    run, other = str(tmp_path / "run"), str(tmp_path / "other")
    trained = [*argv, *names, "mine.stands_in", "--max_answer_length", "2", "--output_dir", run]
    commands = {
        "help": ["train_grpo.py", "--help_all"],
        "range": [*argv, "--max_answer_length", "0"],
        "faulty": [*argv, "--reward_funcs", "mine.never_works", "--output_dir", other],
        "run": trained,
        "other": [*argv, *names, "mine.stands_in", "--output_dir", other],
        "dry": [*trained, "--dry_run", "true", "--output_dir", str(tmp_path / "dry")],
        "compare": ["compare", run, other],
        "report": ["report", run],
        "longer": [*trained, "--max_steps", "3", "--resume_from_checkpoint", "auto"],
    }
    program = ROOT / "tests/programs/commands_in_one_process.py"
    done = command(program, [json.dumps(list(commands.values()))], directory=patched, PYTHONPATH=str(patched))
    assert done.returncode == 0, done.stderr[-3000:]
    found = dict(zip(commands, json.loads(done.stdout.splitlines()[-1]), strict=True))
    shown = {name: " ".join(out.split()) for name, (_, out, _) in found.items()}
    statuses = {name: status for name, (status, _, _) in found.items()}
    assert statuses == dict.fromkeys(commands, 0) | {"range": 2, "faulty": 2}, [found[name][2] for name in commands]
    end = next(Path(run).glob("_ended-at-step-2"))
    files = {path.name: path.read_text(encoding="utf-8", errors="replace") for path in end.iterdir() if path.is_file()}
    page, record = Path(run, "report.html").read_text(encoding="utf-8"), json.loads(Path(run, "run.json").read_text())

    # The measure
    assert {"one_line", "one_line_low"} < json.loads(files["eval_after.json"]).keys()
    assert "one_line" in json.loads(files["comparison.json"])
    assert re.search(r"held-out questions: .*one line [\d.]+ % \(", shown["run"]) and "│ On one line │" in shown["run"]
    assert '<th scope="row">On one line</th>' in page and 'alt="On one line: from ' in page
    assert "| On one line |" in files["README.md"] and " one line " in shown["compare"].partition("──")[0]
    events = EventAccumulator(str(next(Path(other).rglob("events.out.tfevents.*")).parent)).Reload()
    assert [each.step for each in events.Scalars("train/eval/one_line")] == [0, 1, 2]

    # The setting
    assert "--max_answer_length" in shown["help"] and "longer gold answers are dropped." in shown["help"]
    assert "max_answer_length: 0 is out of range; use a number at least 1" in found["range"][2]
    assert record["settings"]["max_answer_length"] == 2 and '<th scope="row">max_answer_length</th>' in page
    assert "max_answer_length: 2 | None" in shown["compare"]

    # The check
    assert "0 training rows with more than 2,000 characters in the question" in shown["dry"]

    # The caller of scoring
    assert "gold answers as they stand earn" in shown["dry"]

    # The fault
    said = "it returned -1e+09; return None where there is no value"
    assert said in found["faulty"][2] and f"fault: {said}" in shown["run"]
    assert said in Path(run, "faults.jsonl").read_text()

    # The file
    sentence = json.loads(files["comparison.json"])["sentence"]
    assert files["verdict.txt"] == sentence and f"{run}/verdict.txt" in shown["report"].split()
    assert Path(run, "verdict.txt").read_text() != "" and (Path(run) / "comparison.json").exists()
