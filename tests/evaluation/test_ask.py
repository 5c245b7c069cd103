"""A saved run, its checkpoints and its adapter answer a question with the prompt that they were trained on."""

import dataclasses
import json
import os
import shutil
from pathlib import Path

import pytest
from helpers_runs import DEMO

import train_grpo
from grpo.__main__ import main

QUESTION = "Ada has 12 pens. Ben gives Ada 7 more. How many pens does Ada have now?"


def save_run(name, status="finished", **changes):
    """The demo's model in outputs/NAME, as a run leaves it."""
    directory = Path("outputs", name)
    shutil.copytree(DEMO / "model", directory)
    style = dataclasses.replace(train_grpo.PROMPT_FORMATS["xml"], **changes)
    settings = {"dtype": "bfloat16", "bf16": True, "max_completion_length": 48, "chat_template_kwargs": None}
    record = {"status": status, "prompt": dataclasses.asdict(style), "shots": [], "settings": settings}
    (directory / "run.json").write_text(json.dumps(record))
    return directory


def test_a_run_is_asked_and_its_answer_read(capfd):
    run = save_run("demo")
    before = sorted(run.rglob("*"))
    assert main(["ask", str(run), QUESTION]) == 0
    shown = capfd.readouterr().out
    assert shown.startswith(f"{run} answers:\n\n<reasoning>") and shown.endswith("Answer: 19\n")
    assert sorted(run.rglob("*")) == before


def test_the_newest_finished_run_is_the_default(capfd):
    for name, status in (("old", "finished"), ("new", "finished"), ("evaluation", "evaluated"), ("killed", "running")):
        save_run(name, status)
    os.utime("outputs/old/run.json", (1, 1))
    assert main(["ask", QUESTION]) == 0
    assert capfd.readouterr().out.startswith("outputs/new answers:")


def test_a_run_is_asked_in_its_own_format(capfd):
    """The pattern reads the answer, the opening begins the completion, and the limit cuts it off."""
    run = save_run("other", pattern="= {answer}", prefill="<reasoning>\n12")
    record = json.loads((run / "run.json").read_text())
    record["settings"]["max_completion_length"] = 3
    (run / "run.json").write_text(json.dumps(record))
    assert main(["ask", str(run), QUESTION]) == 0
    shown = capfd.readouterr().out
    assert "answers:\n\n<reasoning>\n12" in shown and "(cut off at 3 tokens)" in shown


def test_checkpoints_and_adapters_of_a_run_are_asked(learned, learned_adapter, capfd):
    checkpoint = learned.copy("whole") / "checkpoint-2"
    assert main(["ask", str(checkpoint), QUESTION]) == 0
    assert main(["ask", str(learned_adapter.copy("adapter")), QUESTION]) == 0
    assert capfd.readouterr().out.count("Answer: ") == 2


def test_an_unfinished_run_names_the_checkpoint_to_ask(learned, capfd):
    run = learned.copy("unfinished")
    (run / "config.json").unlink()
    assert main(["ask", str(run), QUESTION]) == 2
    assert f"{run}/checkpoint-2" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "named"), [(["nowhere", "2 + 2?"], "'nowhere'"), (["2 + 2?"], "outputs/"), ([""], "question")]
)
def test_a_mistake_is_one_line_and_status_2(words, named, capfd):
    assert main(["ask", *words]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("error: ") and named in line
