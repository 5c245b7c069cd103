"""Facts that a run and its figures rest on: settings, rows, code, prompt and model, as in a seal and `run.json`."""

import hashlib
import json
from collections.abc import Sequence
from typing import Any, Protocol

from datasets import Dataset

from grpo.core.jsonfiles import without_nan
from grpo.core.settings import about
from grpo.core.versions import commit, versions
from grpo.runs.source import OF_SCRIPT, REST

# Parts that are not code, by their label for people
ROWS, HELD_OUT, COLUMNS = "rows", "held-out questions", "further columns of the training rows"
TOKENS = "tokens of the prompts"
JUDGE, FIRST_RULE = "rule of the judge", "1"  # exact_answers.verdict.RULE, and that of 0.1.0
WEIGHTS, CONFIGURATION = "weights to begin with", "configuration of the model"
# In records until 0.1: which evaluation chose the best checkpoint, the run's own or TRL's, which sampled
CHOOSER, TRLS = "evaluation that chooses the best checkpoint", "TRL's"
# Parts of every prompt: a change would change all remaining training rows
IN_PROMPTS = ("system prompt", "question template", "exemplars")


class Rows(Protocol):
    """A run's rows, as far as they are compared (data/dataset.py)."""

    @property
    def rows(self) -> Dataset:
        """The training rows, or without training the held-out ones."""

    @property
    def held_out(self) -> Dataset:
        """The held-out questions."""

    @property
    def tokens(self) -> str:
        """A hash of the tokens of the held-out prompts, else of those of `rows`."""


def facts_of(settings: dict[str, Any], sources: dict[str, str], data: Rows, sharding: str) -> dict[str, Any]:
    """Return what a run and its figures rest on: part of each checkpoint's seal, and compared by its processes.

    `run.json` has it, too; `Run.begin_with` adds the model, once it is loaded.

    Args:
        sources: hashes of code and prompt.
        sharding: the run's way, as `processes.sharding` names it.
    """
    of_rows = facts_of_rows(data)
    return {
        "settings": as_json(settings),
        "sources": sources | of_rows["sources"],
        "data": of_rows["data"],
        "sharding": sharding,
        "versions": versions(),
        "commit": (commit() or "").rstrip("+"),  # edited files are in `sources`
    }


def facts_of_rows(data: Rows) -> dict[str, Any]:
    """Return hashes of training prompts and gold answers, of rows as rewards and judge see them, and of tokens."""
    columns = [name for name in data.rows.column_names if name not in ("prompt", "question", "answer")]
    seen = [name for name in data.held_out.column_names if name != "prompt"]
    sources = {
        HELD_OUT: hash_of_rows(data.held_out, seen),
        COLUMNS: hash_of_rows(data.rows, columns),
        TOKENS: data.tokens,
    }
    return {"data": hash_of_rows(data.rows, ("prompt", "answer")), "sources": sources}


def with_rule(sources: dict[str, str]) -> dict[str, str]:
    """Return recorded parts with the judge's rule, which runs of 0.1.0 do not name."""
    return {JUDGE: FIRST_RULE, **sources} if sources else {}


def measure_of(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a seal or record that evaluations rest on.

    These are the questions and the columns that rewards and judge read, the code of rewards and judge, the prompt and
    its tokens, the model's configuration, and the settings of answering and grading.
    """
    sources = {
        key: text for key, text in (facts.get("sources") or {}).items() if not key.startswith((REST, OF_SCRIPT))
    }
    for apart in (COLUMNS, WEIGHTS, CHOOSER, "code of prepare"):  # held-out questions are as `prepare` made them
        sources.pop(apart, None)
    settings = facts.get("settings") or {}
    kinds = {"answers", "samples"} if (settings.get("eval_num_samples") or 1) > 1 else {"answers"}
    kept = {key: value for key, value in settings.items() if about(key).measures in kinds}
    return {"settings": kept, "sources": sources}


def hash_of_rows(rows: Dataset, columns: Sequence[str]) -> str:
    """Hash these columns of rows, in order."""
    digest = hashlib.sha256()
    for values in zip(*(rows[name] for name in columns), strict=True):
        digest.update(json.dumps(values, default=repr).encode())  # repr: dates, images and bytes
    return digest.hexdigest()


def as_json(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings as a JSON file would return them; the same in each process."""
    return json.loads(json.dumps(without_nan(settings), default=_as_text))


def _as_text(value: Any) -> Any:
    """Return a value without a JSON form as text that no order of a set and no address of an object changes."""
    if isinstance(value, set | frozenset):
        return sorted(map(str, value))
    text = str(value)
    return getattr(value, "__qualname__", type(value).__qualname__) if " at 0x" in text else text
