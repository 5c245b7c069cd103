"""A run's life: finished, extended, interrupted, moved, resumed. What is said about it is true at each point.

Resumed bit by bit: tests/training/test_resumed.py; a signal's moments: tests/training/test_stopping.py.
"""

import contextlib
import io
import json
import math
import os
import re
import shlex
import shutil
import signal
from pathlib import Path

import pytest
from ended import sending
from helpers_commands import command
from helpers_programs import PATHS, PROGRAMS
from helpers_report import Page
from helpers_resume import assert_same, in_order, state_of
from helpers_runs import LEARNS, ROOT
from transformers import TrainerCallback

import train_grpo
from grpo import __main__ as tools
from grpo.core.jsonfiles import read_lines
from grpo.policy.evaluation import HeldOut
from grpo.report import contents
from grpo.report.files import read_run
from grpo.runs import checkpoints
from grpo.runs.facts import FIRST_RULE, JUDGE
from grpo.training import callbacks
from grpo.training.causes import Cause

MEASURED = ("eval_after.json", "completions_after.jsonl", "comparison.json")
RESULT = (*MEASURED, "README.md", "model.safetensors", "config.json", "tokenizer.json")
AUTO = ("--resume_from_checkpoint", "auto")
# A constant learning rate: with a longer schedule, the first steps of an extended run would not be those of the whole
LIFE = {**LEARNS, "lr_scheduler_type": "constant", "eval_samples": "4", "logging_steps": "1"}
# A rollout serves two optimizer steps (TWICE, SHARED) or four
TWICE = {"num_iterations": "2", "gradient_accumulation_steps": "2", "per_device_train_batch_size": "8"}
SHARED = {"gradient_accumulation_steps": "2", "steps_per_generation": "4", "per_device_train_batch_size": "8"}
FOUR = {"num_iterations": "2", "steps_per_generation": "2", "logging_steps": "3", "save_steps": "4"}
# What interrupts a run, its settings, and its steps: when it finishes first, when it is interrupted later, where that
# ends it, and when it finishes at last. The uninterrupted run has a checkpoint, and so a log, at the same steps
CASES = {
    "SIGTERM": ("SIGTERM", {"save_steps": "3"}, (3, 5, 6, 8)),  # before a rollout, which is finished
    "SIGTERM, rollouts twice": ("SIGTERM", {**TWICE, "logging_steps": "2", "save_steps": "2"}, (2, 3, 4, 6)),
    "SIGTERM, rollouts for four steps": ("SIGTERM", {**FOUR, "eval_every": "4"}, (4, 5, 8, 12)),
    "an alarm": ("alarm", {"save_steps": "2", "logging_steps": "3"}, (2, 3, 4, 7)),
    "an alarm, rollouts shared": ("alarm", {**SHARED, "save_steps": "2", "eval_every": "2"}, (2, 2, 4, 6)),
    "SIGKILL": ("SIGKILL", {**SHARED, "save_steps": "2"}, (2, 5, 5, 6)),
    "SIGKILL, rollouts for four steps": ("SIGKILL", FOUR, (4, 7, 6, 12)),  # step 7 waits for its log
    "SIGTERM, two processes": ("SIGTERM", {**TWICE, "save_steps": "2", "logging_steps": "3"}, (2, 3, 4, 6)),
    "SIGTERM before a rollout, two processes": ("SIGTERM", {"save_steps": "3"}, (2, 4, 5, 6)),
}
ENDS = {  # exit status and status
    "SIGTERM": (143, "interrupted by SIGTERM"),
    "alarm": (3, "stopped by an alarm: planted"),
    "SIGKILL": (-9, "killed"),
}


# --- What is true of a run -------------------------------------------------------------------------------------------


def assert_truthful(run, step, planned, status, other):
    """All that files, page and tools say of a run that has come to this optimizer step of those planned.

    Args:
        status: as the report has it; killed: nobody could record it.
        other: a finished run to compare with.
    """
    finished, killed, record = status == "finished", status == "killed", read(run / "run.json")
    assert (record["status"], record.get("step")) == (("running", None) if killed else (status, step))
    pages = [] if killed else [page_of(run / "report.html")]  # which is the live one of a killed run
    for page, headings in [*pages, page_of(contents.draw(run)[-1])]:
        assert f"{status} {step} of {planned} optimizer steps" in page.text
        assert {"Before", "After", "Change"} & headings == ({"Before", "After", "Change"} if finished else {"Before"})
    assert_logs(run, step, int(record["settings"]["logging_steps"]))
    files = read_run(run)
    assert files.status == status and bool(files.comparison) is finished
    assert [name for name in MEASURED if (run / name).exists()] == (list(MEASURED) if finished else [])
    assert read(run / "eval_before.json")["step"] == 0
    for name in ("eval_after.json", "comparison.json") if finished else ():
        assert read(run / name)["step"] == step
    newest, _ = checkpoints.newest(run)
    saved = checkpoints.step_of(newest)
    assert saved <= step if killed else saved == step
    if not killed or (run / "README.md").exists():  # each checkpoint writes a card
        card = (run / "README.md").read_text()
        assert re.findall(r"Optimizer steps: (\d+)", card) == [str(saved)] and ("| After |" in card) is finished
    assert_tools(run, newest, finished, other)


def assert_logs(run, step, every):
    """Each optimizer step is logged once, and each value of it is in the report's curves."""
    lines = [line for line in read_lines(run / "metrics.jsonl") if "train_runtime" not in line]
    trained = [line for line in lines if "loss" in line]
    steps = [line["step"] for line in trained]
    assert steps == sorted(set(steps)) and steps[-1] == step and {*range(every, step + 1, every)} <= {*steps}
    curves, logged = read_run(run).curves, {}
    for line in lines:
        for key, value in line.items():
            if isinstance(value, int | float) and math.isfinite(value):
                logged.setdefault(key, {})[line["step"]] = value
    assert {"loss", "reward", "grad_norm", "step_time"} <= logged.keys()
    for key in logged.keys() - {"step", "epoch"}:
        steps, values = zip(*sorted(logged[key].items()), strict=True)
        shares = pytest.approx([100 * value for value in values])
        assert curves[key].steps == list(steps) and curves[key].values in (pytest.approx(values), shares), key
    spans = zip([0, *(line["step"] for line in trained)], trained, strict=False)
    seconds = sum((line["step"] - before) * line["step_time"] for before, line in spans)
    assert sum(curves["seconds"].values) == pytest.approx(seconds)
    if every := read(run / "run.json")["settings"]["eval_every"]:  # a run that resumes measures where it had ended
        assert {*range(0, step, every)} <= {*curves["eval/n"].steps}


def assert_tools(run, newest, finished, other):
    """Compare counts only what the finished run has gained; X-ray and ask take no older step for this one."""
    status, shown = output_of(tools.main, "compare", run, other)
    row = shown.partition(f"  {run}")[2].partition(f"  {other}")[0]
    assert status == 0 and row and ("→" in row) is finished and (" to " in row) is finished
    status, shown = output_of(tools.main, "xray", run)
    assert status == 0 and f"completions_{'after' if finished else 'before'}.jsonl: " in shown
    status, shown = output_of(tools.main, "ask", run, "What is 2 + 3?")
    if (run / "model.safetensors").exists():
        assert (run / "model.safetensors").read_bytes() == (newest / "model.safetensors").read_bytes()
        assert status == 0 and f"{run} answers" in shown
    else:
        assert status == 2 and str(newest) in shown and len(shown.splitlines()) == 1


def assert_says(shown, run, status, script="train_grpo.py"):
    """The last lines are next steps with a finished run; with any other, the command that resumes it."""
    assert ("Next:" in shown, "publish it" in shown) == (status == "finished",) * 2
    resume = read_run(run).resume
    assert script in words_of(resume) and shlex.join(AUTO) in resume
    if status != "finished":
        last = shown.strip().splitlines()[-1]
        assert last.lower().endswith(f"{status}. To resume: {resume}".lower())


def assert_set_aside(run, step, result):
    """What was measured at this step, before the run went on, is complete and can be asked."""
    kept = run / f"_ended-at-step-{step}"
    assert {name: (kept / name).read_bytes() for name in result} == result
    status, shown = output_of(tools.main, "ask", kept, "What is 2 + 3?")
    assert status == 0 and f"{kept} answers" in shown


def words_of(command):
    """The command's words, with scripts by their names alone."""
    return [Path(word).name if word.endswith(".py") else word for word in shlex.split(command)]


def read(path):
    return json.loads(path.read_text())


def page_of(path):
    """The report, and the headings of its columns."""
    return Page(path), set(re.findall(r'<th scope="col">(.*?)</th>', path.read_text()))


def result_of(run, step):
    assert read(run / "eval_after.json")["step"] == step
    return {name: (run / name).read_bytes() for name in RESULT}


def sessions_of(run):
    return [session["from_step"] for session in read(run / "run.json")["sessions"]]


# --- How it comes about ----------------------------------------------------------------------------------------------


def output_of(main, *words):
    """The exit status of a command, and what it printed."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
        return main([str(word) for word in words]), shown.getvalue()


def train(*words):
    return output_of(train_grpo.main, *words)


def train_on_two(*words):
    """The same by torchrun, which has an exit status of its own for a process that fails."""
    done = command("my_grpo.py", words, processes=2, PYTHONPATH=PATHS)
    return done.returncode, done.stdout


def interrupt(how, step, words, processes):
    """(exit status, what was printed) of a run that is interrupted once so many optimizer steps are done."""
    if how == "SIGKILL" or processes > 1:
        script = "my_grpo.py" if processes > 1 else ROOT / "train_grpo.py"
        argv = [int(signal.Signals[how]), step, script, *words]
        done = command(PROGRAMS / "ended.py", argv, processes, PYTHONPATH=PATHS)
        return done.returncode, done.stdout
    if how == "alarm":
        return train(*words, "--stop_on_alarm", "true")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(callbacks, "MetricsFile", sending(signal.Signals[how], step))
        return train(*words)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_what_is_said_about_a_run_is_true(tiny_run, monkeypatch, case):
    how, settings, (first, asked, ended, planned) = CASES[case]
    processes = 2 if "processes" in case else 1
    run, other, launch, script = Path("run"), Path("other"), train, "train_grpo.py"
    if processes > 1:
        shutil.copy(ROOT / "train_grpo.py", script := "my_grpo.py")  # an experiment of one's own
        launch = train_on_two
    if how == "alarm":  # in the uninterrupted run, too, which it does not stop
        planted = Cause("planted", lambda seen: "it was planted" if seen.steps > asked else None, "none")
        monkeypatch.setattr(callbacks, "CAUSES", (planted,))
    argv, extended = tiny_run(**LIFE | settings), ["--max_steps", planned]

    exit_status, shown = launch(*argv, "--max_steps", first)
    assert exit_status == 0 and sessions_of(run) == [0]
    shutil.copytree(run, other)
    assert_truthful(run, first, first, "finished", other)
    assert_says(shown, run, "finished", script)
    result = result_of(run, first)

    exit_status, shown = interrupt(how, asked, [*argv, *extended, *AUTO], processes)
    wanted, status = ENDS[how]
    assert exit_status == (wanted if processes == 1 else 1) and sessions_of(run) == [0, first]
    assert_truthful(run, ended, planned, status, other)
    if how == "SIGKILL":
        assert "publish it" not in shown
    else:
        assert_says(shown, run, status, script)
    assert_set_aside(run, first, result)

    moved = run.rename("moved")
    assert_truthful(moved, ended, planned, status, other)
    saved = checkpoints.step_of(checkpoints.newest(moved)[0])
    resume = words_of(read_run(moved).resume)
    exit_status, shown = launch(*resume[resume.index(script) + 1 :])
    assert exit_status == 0 and sessions_of(moved) == [0, first, saved]
    assert_truthful(moved, planned, planned, "finished", other)
    assert_says(shown, moved, "finished", script)
    assert_set_aside(moved, first, result)

    if processes == 1:  # of two: tests/training/test_resumed.py
        assert train(*argv, *extended, "--output_dir", "whole")[0] == 0
        assert_same(in_order(state_of(moved)), in_order(state_of(Path("whole"))))


# --- Other lives -----------------------------------------------------------------------------------------------------


class Stop(TrainerCallback):
    """A user's callback that ends training once: in this method, at this step."""

    def __init__(self, method, step):
        setattr(self, method, self.stop)
        self.step, self.stopped = step, False

    def stop(self, args, state, control, **kwargs):
        if state.global_step == self.step and not self.stopped:
            control.should_training_stop = self.stopped = True


# Its method, and whether it is added before ours
STOPS = {
    "amid a rollout": ("on_step_end", True),
    "after ours": ("on_step_end", False),
    "EarlyStoppingCallback's way": ("on_evaluate", True),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", STOPS)
def test_a_callbacks_end_is_an_end(tiny_run, monkeypatch, case):
    """With a final model and the comparison of its step; to resume trains on."""
    method, before_ours = STOPS[case]
    ours, stop = train_grpo.callbacks_of, Stop(method, 3)

    def with_stop(*args):
        return [stop, *ours(*args)] if before_ours else [*ours(*args), stop]

    monkeypatch.setattr(train_grpo, "callbacks_of", with_stop)
    evaluated = {"eval_every": "3"} if method == "on_evaluate" else {}
    argv, run, whole = tiny_run(**LIFE | TWICE | evaluated, max_steps="6"), Path("run"), Path("whole")
    exit_status, shown = train(*argv)
    step = read(run / "run.json")["step"]
    assert exit_status == 0 and stop.stopped and step in (3, 4)  # or at the rollout's end
    assert_says(shown, run, "finished")
    assert f"A callback ended training at step {step} of 6. To resume: " in shown
    result = result_of(run, step)
    monkeypatch.setattr(train_grpo, "callbacks_of", ours)
    assert train(*argv, "--output_dir", whole)[0] == 0
    assert_truthful(run, step, 6, "finished", whole)
    assert train(*argv, *AUTO)[0] == 0
    assert_set_aside(run, step, result)
    assert_truthful(run, 6, 6, "finished", whole)
    assert (run / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


@pytest.fixture
def finished(tiny_run):
    """The command of a run, and its directory where it has finished two steps, in the midst of a rollout."""
    argv = tiny_run(**LIFE | SHARED | {"steps_per_generation": "6", "save_steps": "1"})
    assert train(*argv)[0] == 0
    shutil.copytree("run", "other")
    return argv, Path("run"), Path("other")


@pytest.mark.slow
def test_a_run_extended_twice_keeps_both_results(finished):
    argv, run, other = finished
    for planned in (4, 5):
        before = read(run / "run.json")["step"]
        result = result_of(run, before)
        assert train(*argv, "--max_steps", planned, *AUTO)[0] == 0
        assert_set_aside(run, before, result)
        assert_truthful(run, planned, planned, "finished", other)
    assert sessions_of(run) == [0, 2, 4] and len(list(run.glob("_ended-at-*"))) == 2


@pytest.mark.slow
def test_a_run_resumed_elsewhere_leaves_the_first_as_it_was(finished):
    argv, run, other = finished
    words = ["--resume_from_checkpoint", run / "checkpoint-2", "--output_dir", "elsewhere", "--max_steps", 4]
    exit_status, shown = interrupt("SIGTERM", 2, [*argv, *words], 1)
    assert exit_status == 143
    assert_truthful(run, 2, 2, "finished", other)
    elsewhere = Path("elsewhere")
    step = read(elsewhere / "run.json")["step"]
    assert_truthful(elsewhere, step, 4, "interrupted by SIGTERM", run)
    assert_says(shown, elsewhere, "interrupted by SIGTERM")
    assert train(*argv, *words, *AUTO)[0] == 0
    assert_truthful(elsewhere, 4, 4, "finished", run)
    assert sessions_of(elsewhere) == [0, 2, step] and not list(run.glob("_ended-at-*"))


def test_a_run_interrupted_in_its_last_evaluation_is_not_finished(finished, monkeypatch):
    def end_after_training(*args, **kwargs):
        if (run / "checkpoint-4").exists():
            os.kill(os.getpid(), signal.SIGTERM)
        return measure(*args, **kwargs)

    argv, run, other = finished
    measure, result, words = HeldOut.evaluate, result_of(run, 2), [*argv, "--max_steps", "4", *AUTO]
    with monkeypatch.context() as patched:
        patched.setattr(HeldOut, "evaluate", end_after_training)
        exit_status, shown = train(*words)
    assert exit_status == 143
    assert_truthful(run, 4, 4, "interrupted by SIGTERM", other)
    assert_says(shown, run, "interrupted by SIGTERM")
    assert_set_aside(run, 2, result)
    assert train(*words)[0] == 0
    assert_truthful(run, 4, 4, "finished", other)
    assert_set_aside(run, 2, result)


@pytest.mark.slow
@pytest.mark.parametrize("named", [True, False])
def test_a_run_extended_under_another_rule_of_the_judge_says_so_and_measures_again(tiny_run, monkeypatch, named):
    """Runs of 0.1.0 do not name the rule that graded their answers."""
    argv, run, other = tiny_run(**LIFE | {"save_steps": "2", "max_steps": "2"}), Path("run"), Path("other")
    with monkeypatch.context() as patched:
        patched.setattr("grpo.runs.run.RULE", FIRST_RULE)
        assert train(*argv)[0] == 0
    for path in [] if named else [*run.glob("checkpoint-*/complete.json"), run / "run.json"]:
        record = read(path)
        del record["sources"][JUDGE]
        path.write_text(json.dumps(record))
    shutil.copytree(run, other)
    exit_status, shown = train(*argv, "--max_steps", "4", *AUTO)
    shown = " ".join(shown.split())
    assert exit_status == 0 and f"→ 4, the {JUDGE} → the run will differ" in shown and "is measured again" in shown
    exit_status, shown = output_of(tools.main, "compare", other, run)
    shown = " ".join(shown.split())
    assert "have other judges: their gains cannot be compared" in shown
    assert f"run was resumed, from step 2 on: the {JUDGE}" in shown
