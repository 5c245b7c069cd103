"""examples/labels.py and json_fields.py with their data: fair rows, exact judges, and they train on a CPU."""

import json
import sys
from pathlib import Path

import pytest
from helpers_runs import ROOT, SHORT_ANSWERS

sys.path.insert(0, str(SHORT_ANSWERS))
import make_short_answers

import train_grpo
from examples import json_fields, labels

RECEIPT = {"answer": '{"day": 3, "total": 5.70, "currency": "euros"}'}


# --- The data


def test_the_committed_rows_are_what_the_script_makes():
    for name, rows in make_short_answers.make_rows().items():
        lines = (SHORT_ANSWERS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        assert [json.loads(line) for line in lines] == rows


def test_held_out_rows_are_in_no_training_set():
    for kind, (_, key) in make_short_answers.DRAWN.items():
        held_out, training = ({row[key] for row in rows} for rows in make_short_answers.split(kind))
        assert (len(held_out), len(training)) == (100, 600) and not held_out & training
    rows = make_short_answers.make_rows()
    assert {row["label"] for row in rows["labels_test"]} == set(labels.LABELS)
    assert all(
        json_fields.fields_of(row["fields"]).keys() == {"day", "total", "currency"} for row in rows["receipts_test"]
    )


# --- Judges and rewards


def chat(*texts):
    return [[{"role": "assistant", "content": text}] for text in texts]


@pytest.mark.parametrize(
    ("text", "right", "reward"),
    [
        ("billing", True, 1.0),
        (" Billing.\n", True, 1.0),
        ("delivery", False, 0.1),
        ("other", False, 0.0),
        ("billing or delivery", False, 0.0),
        ("not billing", False, 0.0),
        ("", False, 0.0),
    ],
)
def test_a_label_is_right_alone_and_earns_a_little_if_it_exists(text, right, reward):
    assert labels.is_right(text, {"answer": "billing"}) is right
    assert labels.label_reward(chat(text), answer=["billing"]) == [reward]


@pytest.mark.parametrize(
    ("text", "right", "reward"),
    [
        (RECEIPT["answer"], True, 1.0),
        ('{"total": 5.7,\n "currency": "euros", "day": 3}', True, 1.0),
        ('{"day": 3, "total": 10.00, "currency": "euros"}', False, 2 / 3),
        ('{"day": 3, "currency": "euros"}', False, 2 / 3),
        ('{"day": 3, "total": 5.70, "currency": "euros", "cash": 10}', False, 0.75),
        ('{"day": 3, "total": 5.7000000000000000001, "currency": "euros"}', False, 2 / 3),  # no float has it
        ('{"day": "3", "total": "5.70", "currency": "euros"}', False, 1 / 3),
        ('{"day": true, "total": NaN, "currency": "euros"}', False, 1 / 3),
        ('{"day": 3, "total": 5.70, "currency": "euros"', False, 0.0),
        ("[5.70]", False, 0.0),
        ("5.70", False, 0.0),
        ("[" * 100_000, False, 0.0),
        ("", False, 0.0),
    ],
)
def test_fields_are_compared_by_their_values(text, right, reward):
    assert json_fields.is_right(text, RECEIPT) is right
    assert json_fields.fields_reward(chat(text), answer=[RECEIPT["answer"]]) == [pytest.approx(reward)]


# --- The recipes


@pytest.mark.parametrize(("name", "task"), [("labels", labels), ("json_fields", json_fields)])
def test_an_example_trains_from_any_directory(name, task, capfd):
    """With its own words for the model, and the same words in every place for what is read."""
    few = {"max_steps": "1", "eval_samples": "8", "per_device_train_batch_size": "16", "logging_steps": "1"}
    flags = [word for key, value in few.items() for word in (f"--{key}", value)]
    recipe = str(ROOT / "examples" / f"{name}.yaml")
    assert train_grpo.main(["--config", recipe, *flags, "--output_dir", "run"]) == 0
    out = " ".join(capfd.readouterr().out.split())
    assert task.SYSTEM in out.replace(" │ │ ", " ") and "answer read: " in out and "the whole completion" not in out
    assert "Format" not in out and "characters of it" not in out
    records = [json.loads(line) for line in Path("run/completions_after.jsonl").read_text().splitlines()]
    assert len(records) == 8 and all(record["lenient"] == task.is_right(record["read"], record) for record in records)
    page = Path("run/report.html").read_text()
    assert ("Answers given" in page) is (name == "labels") and "Format, " not in page


@pytest.mark.slow
@pytest.mark.parametrize("name", ["labels", "json_fields"])
def test_an_example_gets_better(name):
    assert train_grpo.main(["--config", str(ROOT / "examples" / f"{name}.yaml"), "--output_dir", "run"]) == 0
    compared = json.loads(Path("run/comparison.json").read_text())
    assert compared["verdict"] == "got_better" and compared["lenient"]["difference"] > 0.2
