"""What a run rests on is hashed and recorded alike in every process and session."""

import datetime
import os
import subprocess
import sys

from datasets import Dataset
from helpers_runs import ROOT

from grpo.runs import facts


def test_data_is_identified_by_prompts_and_answers_in_order():
    rows = [{"prompt": [{"role": "user", "content": "1 + 1?"}], "answer": "2"}, {"prompt": [], "answer": "3"}]

    def of(rows):
        return facts.hash_of_rows(Dataset.from_list(rows), ("prompt", "answer"))

    assert of(rows) == of(rows) != of(rows[::-1])
    assert of(rows) != of([{**rows[0], "answer": "3"}, rows[1]])
    assert of(rows) == of([{**row, "question": "not looked at"} for row in rows])
    dated = Dataset.from_list([{"answer": "2", "day": datetime.date(2026, 11, 28), "raw": b"\xff"}])
    assert len(facts.hash_of_rows(dated, dated.column_names)) == 64  # values without a JSON form


SEED_OF_HASHES = """
from grpo.runs.facts import as_json

class Client:
    pass

print(as_json({"words": {"alpha", "beta", "gamma", "delta"}, "client": Client(), "call": lambda: 0}))
"""


def test_settings_are_the_same_in_every_process():
    """Whatever order Python gives a set, and wherever it puts an object."""
    shown = set()
    for seed in ("1", "2"):
        own = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", SEED_OF_HASHES], env=own, capture_output=True, text=True, check=True
        )
        shown.add(done.stdout)
    (line,) = shown
    assert "['alpha', 'beta', 'delta', 'gamma']" in line and " at 0x" not in line
