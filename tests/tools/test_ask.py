"""A saved model answers a question with the prompt that it was trained on, wherever it is copied to."""

import dataclasses
import json
import os
import shutil
from pathlib import Path

import pytest
from helpers_runs import DEMO

from grpo.__main__ import main
from grpo.task.prompts import XML
from grpo.tools import ask

QUESTION = "Ada has 12 pens. Ben gives Ada 7 more. How many pens does Ada have now?"


def save_run(name, status="finished", **changes):
    """The demo's model in outputs/NAME, as a run leaves it."""
    directory = Path("outputs", name)
    shutil.copytree(DEMO / "model", directory)
    style = dataclasses.replace(XML, **changes)
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


def test_a_copy_is_asked_with_the_prompt_it_was_trained_on(learned, learned_adapter, capfd):
    """Far from the run: a run, a checkpoint whose seal has the prompt, a merged model."""
    run, adapter = learned.copy("first"), learned_adapter.copy("second")
    records = []
    for place in (run / "run.json", adapter / "run.json"):
        record = json.loads(place.read_text())
        record["prompt"] |= {"pattern": "6 {answer}", "prefill": "6 of one"}
        place.write_text(json.dumps(record))
        records.append(record)
    seal = run / "checkpoint-1" / "complete.json"
    seal.write_text(json.dumps(json.loads(seal.read_text()) | {"prompt": records[0]["prompt"]}))
    assert main(["merge", "second", "--output", "away/merged"]) == 0
    for place in (run, run / "checkpoint-1", adapter):
        shutil.copytree(place, Path("away", place.name))
    shutil.rmtree(run)
    shutil.rmtree(adapter)
    capfd.readouterr()
    for name in ("first", "checkpoint-1", "second", "merged"):
        assert main(["ask", f"away/{name}", QUESTION]) == 0
        shown = capfd.readouterr().out
        assert shown.startswith(f"away/{name} answers:\n\n6 of one") and "Answer: of one" in shown


def test_what_is_inside_a_run_has_its_prompt(learned, capfd):
    run = learned.copy()
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(record | {"prompt": record["prompt"] | {"prefill": "6 of one"}}))
    shutil.copytree(DEMO / "model", run / "_ended-at-step-1")
    assert main(["ask", "run/_ended-at-step-1", QUESTION]) == 0
    assert capfd.readouterr().out.startswith("run/_ended-at-step-1 answers:\n\n6 of one")


def test_an_unfinished_run_names_the_checkpoint_to_ask(learned, capfd):
    run = learned.copy("unfinished")
    (run / "config.json").unlink()
    assert main(["ask", str(run), QUESTION]) == 2
    assert f"{run}/checkpoint-2" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["nowhere", "2 + 2?"], "'nowhere'"),
        (["2 + 2?"], "outputs/"),
        ([""], "question"),
        (["notes", "2 + 2?"], "'notes' contains no model"),
        (["broken", "2 + 2?"], "broken/run.json is not a JSON object"),
        (["newer", "2 + 2?"], "the record of 'newer' is of another version ("),
        (["alone", "2 + 2?"], "no file has the prompt of 'alone'"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(words, named, capfd):
    Path("notes").mkdir()
    for name in ("alone", "broken"):
        shutil.copytree(DEMO / "model", name)
    Path("broken/run.json").write_text("{")
    newer = save_run("newer").rename("newer") / "run.json"
    newer.write_text(newer.read_text().replace('"prompt": {', '"prompt": {"tone": "kind", '))
    assert main(["ask", *words]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("error: ") and named in line


def test_a_question_of_an_ascii_terminal_is_read_as_utf_8(monkeypatch):
    asked = []
    monkeypatch.setattr(ask, "answer", lambda run, question: asked.append(question) or "")
    assert main(["ask", "run", "2 + 2 für Ö?".encode().decode("ascii", "surrogateescape")]) == 0
    assert asked == ["2 + 2 für Ö?"]
