"""grpo/config/compare.py: the command, its mistakes, and one command trained with several seeds."""

import json
import os
import re
import signal
import threading
import time
from pathlib import Path

import pytest
from helpers_commands import command
from helpers_report import Page, write_run
from helpers_runs import DEMO, LEARNS, TINY, flags

from grpo.__main__ import main as tool
from grpo.config import compare

SETTINGS = {"output_dir": "outputs/x", "run_name": "x", "learning_rate": 1e-5, "seed": 42}


def run(name, status="finished", **settings):
    """A run's directory, as an earlier start of the command could have left it."""
    made = write_run(Path(name))
    record = json.loads((made / "run.json").read_text())
    record["settings"] |= settings
    (made / "run.json").write_text(json.dumps(record | {"status": status}))
    return made


@pytest.fixture
def started(monkeypatch):
    """The command lines that are trained, each of which ends at once as a finished run, and leaves its directory."""
    lines = []

    def start(argv):
        lines.append(argv)
        settings = dict(zip(argv[::2], argv[1::2], strict=True))
        run(settings["--output_dir"], seed=int(settings["--seed"]), learning_rate=1e-5)
        return 0

    Path("outputs").mkdir()
    monkeypatch.setattr(compare, "start", start)
    monkeypatch.setattr(compare, "resolve", lambda flags: SETTINGS)
    return lines


def test_two_runs_make_a_table_and_a_page(capsys):
    run("a"), run("b")
    assert tool(["compare", "a", "b"]) == 0
    assert "Accuracy in per cent" in (out := capsys.readouterr().out) and out.endswith("\ncompare.html\n")
    assert "2 runs a, b" in Page(Path("compare.html")).text
    assert tool(["compare", "--output", "other.html", "a", "b"]) == 0 and Path("other.html").exists()


MISTAKES = {
    "": "name at least two runs",
    "a": "name at least two runs",
    "a a": "a run is named twice",
    "a ./a": "a run is named twice",
    "a nothing": "'nothing' holds no run",
    "a run.json": "holds no run",
    "a b --fast": "--fast: no such flag",
    "a b -- --config demo": "--config: no such flag",
    "a b --output page.txt": "is not a .html file in a directory that exists",
    "a b --output nowhere/page.html": "is not a .html file in a directory that exists",
    "--seeds 1 2": "the flags of train_grpo.py follow after --",
    "--seeds 1 2 --config demo": "the flags of train_grpo.py follow after --",
    "--seeds one two -- --config demo": "is not a whole number",
    "--seeds 1 -- --config demo": "at least two different ones",
    "--seeds 1 1 -- --config demo": "at least two different ones",
    "a --seeds 1 2 -- --config demo": "no RUN beside them",
    "--seeds 1 2 -- --config demo --seed 3": "seed: --seeds trains and chooses",
    "--seeds 1 2 -- --config demo --eval-only=true": "drop --eval_only",
}


@pytest.mark.parametrize(("words", "reason"), MISTAKES.items())
def test_a_mistake_is_one_line_and_status_2(words, reason, capsys, started):
    run("a"), run("b")
    assert tool(["compare", *words.split()]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ") and captured.err.count("\n") == 1 and reason in captured.err
    assert captured.out == "" and not Path("compare.html").exists() and not started


def test_a_page_that_cannot_be_written_is_one_line(capsys):
    run("a"), run("b")
    Path("page.html").mkdir()
    assert tool(["compare", "a", "b", "--output", "page.html"]) == 2
    assert (
        capsys.readouterr().err == "error: output: 'page.html' cannot be written (Is a directory); use another name\n"
    )


def test_help_shows_both_forms(capsys):
    with pytest.raises(SystemExit) as end:
        tool(["compare", "--help"])
    shown = capsys.readouterr().out
    assert end.value.code == 0 and "RUN RUN ..." in shown and "--seeds 1 2 3 -- --config recipes/demo.yaml" in shown


def test_each_seed_is_trained_in_a_directory_of_its_own(started, capsys):
    assert tool(["compare", "--seeds", "1", "2", "--", "--config", "demo", "--output_dir", "elsewhere"]) == 0
    own = [["--seed", seed, "--output_dir", f"outputs/x-seed{seed}", "--run_name", f"x-seed{seed}"] for seed in "12"]
    assert started == [["--config", "demo", "--output_dir", "elsewhere", *words] for words in own]
    assert "Seed 2 (2 of 2): outputs/x-seed2, trained" in capsys.readouterr().out
    assert "2 runs x-seed1, x-seed2" in Page(Path("compare.html")).text


def test_finished_runs_are_reused_and_others_resumed(started, capsys):
    run("outputs/x-seed1", learning_rate=1e-5, seed=1)
    run("outputs/x-seed2", status="interrupted", learning_rate=3e-5)  # which the run itself refuses
    assert tool(["compare", "--seeds", "1", "2", "--", "--config", "demo"]) == 0
    assert [line[-2:] for line in started] == [["--resume_from_checkpoint", "auto"]]
    out = capsys.readouterr().out
    assert "outputs/x-seed1, finished, reused" in out and "outputs/x-seed2, resumed" in out
    assert tool(["compare", "--seeds", "1", "2", "--", "--config", "demo"]) == 0 and len(started) == 1


def test_a_finished_run_with_other_settings_is_not_reused(started, capsys):
    run("outputs/x-seed2", learning_rate=3e-5, seed=2, report_to=["wandb"])
    assert tool(["compare", "--seeds", "1", "2", "--", "--config", "demo"]) == 2
    wanted = "'outputs/x-seed2' is finished, with other settings (learning_rate 3e-05, now 1e-05); use another"
    assert wanted in capsys.readouterr().err and not started  # nothing is trained before


def test_the_first_failure_ends_it_with_its_status(started, monkeypatch, capsys):
    statuses = iter([0, 3])
    begin = compare.start
    monkeypatch.setattr(compare, "start", lambda argv: begin(argv) or next(statuses))
    assert tool(["compare", "--seeds", "1", "2", "3", "--", "--config", "demo"]) == 3
    assert len(started) == 2 and not Path("compare.html").exists()
    then = "the same command continues there (delete outputs/x-seed2 to train this seed from the start)"
    assert capsys.readouterr().err == f"Seed 2 ended with status 3: {then}\n"


SAYS_HOW_IT_ENDED = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
open("ready", "w").close()
time.sleep(20)
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, 137)])
def test_signals_reach_the_run_and_its_status_is_the_shells(number, status, monkeypatch):
    """Ctrl-C, which a terminal sends to both, reaches this process alone here: the run ends as if nothing had come."""
    Path("script.py").write_text(SAYS_HOW_IT_ENDED.replace("20", "20" if number == signal.SIGTERM else "0.5"))
    if number == signal.SIGKILL:
        Path("script.py").write_text("import os\nos.kill(os.getpid(), 9)")
    monkeypatch.setattr(compare, "SCRIPT", Path("script.py"))

    def interrupt():
        while not Path("ready").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    if number != signal.SIGKILL:
        threading.Thread(target=interrupt).start()
    before = signal.getsignal(signal.SIGTERM)
    assert compare.start([]) == status
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.slow
def test_two_seeds_are_trained_reused_and_compared(capfd, monkeypatch):
    """Real settings, runs, table and page; a second start trains nothing."""
    monkeypatch.setattr(compare, "start", lambda argv: command(compare.SCRIPT, argv).returncode)
    questions = (DEMO / "test.jsonl").read_text().splitlines(keepends=True)[:8]
    Path("held_out.jsonl").write_text("".join(questions))
    held_out = {"eval_dataset_name": "held_out.jsonl", "eval_every": "1"}
    words = flags(**{**TINY, **LEARNS, **held_out, "max_completion_length": "8", "output_dir": "out/tiny"})
    seeds = ["compare", "--seeds", "1", "2", "--", *words]
    assert tool(seeds) == 0
    first = capfd.readouterr().out
    assert "out/tiny-seed1, trained" in first and "out/tiny-seed2, trained" in first
    assert re.search(r"Settings that differ, run by run:\n  seed: 1 \| 2\ncompare.html\n$", first)
    page = Page(Path("compare.html"))
    assert "2 runs tiny-seed1, tiny-seed2" in page.text and "Lenient accuracy per cent of the held-out" in page.text
    assert {path.name for path in Path("out").iterdir()} == {"tiny-seed1", "tiny-seed2"}
    monkeypatch.setattr(compare, "resolve", compare._resolve)  # in this process, which has the libraries by now
    assert tool(seeds) == 0
    again = capfd.readouterr().out
    table = "Accuracy in per cent, before"
    assert again.count("finished, reused") == 2 and again.partition(table)[2] == first.partition(table)[2]
    assert tool([*seeds, "--learning_rate", "1e-4"]) == 2
    assert "other settings (learning_rate 0.001, now 0.0001)" in capfd.readouterr().err
