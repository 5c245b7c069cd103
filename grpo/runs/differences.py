"""List what differs between two runs, or two sessions or processes of one: `compare`."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from grpo.core.settings import CHECKPOINT, LEARNING, MEASURE, Change, about, meaning, must_agree
from grpo.core.text import shorten
from grpo.runs.facts import COLUMNS, HELD_OUT, IN_PROMPTS, ROWS, TOKENS, WEIGHTS, as_json, with_rule
from grpo.runs.source import REST

# What another part means, where it is not LEARNING
MEANS = {HELD_OUT: MEASURE} | dict.fromkeys((ROWS, WEIGHTS, *IN_PROMPTS), CHECKPOINT)
# Parts that other differences change anyway, and are none of their own then
OF_MODEL = {"model_name_or_path", "model_revision"}
FOLLOWS = {
    COLUMNS: {ROWS},
    TOKENS: {HELD_OUT, *IN_PROMPTS, *OF_MODEL},
    WEIGHTS: {*OF_MODEL, "dtype", "load_in_4bit", "load_in_8bit"},
}
FACTS = ("sharding", "checkpoint", "commit")  # that the processes of one run compare, besides all others


@dataclass(frozen=True)
class Difference:
    """A setting with another value, or another part of a run: code, prompt, rows, weights.

    Attributes:
        label: the setting, or the part in words.
        means: what it means for a run that is resumed, and for two that are compared.
        then, now: the values of a setting; None of a part.
    """

    label: str
    means: Change
    is_setting: bool = False
    then: Any = None
    now: Any = None

    def __str__(self) -> str:
        return f"{self.name} {self.then} → {self.now}" if self.is_setting else self.name

    @property
    def name(self) -> str:
        """The setting, or the part with its article."""
        return self.label if self.is_setting else f"the {self.label}"

    @property
    def names_rows(self) -> bool:
        """True for another name of data, perhaps of the same rows, which are compared themselves."""
        return self.is_setting and about(self.label).names == "rows"

    @property
    def is_rest(self) -> bool:
        """True for what a file has besides functions that are compared one by one."""
        return self.label.startswith(REST)

    @property
    def is_moved(self) -> bool:
        """True if two settings name the same file or directory by different paths, or if it was moved."""
        if not (isinstance(self.then, str) and isinstance(self.now, str) and os.path.exists(self.now)):
            return False
        if os.path.exists(self.then):
            return os.path.samefile(self.then, self.now)
        return os.path.basename(os.path.normpath(self.then)) == os.path.basename(os.path.normpath(self.now))


def compare(then: Mapping[str, Any], now: Mapping[str, Any]) -> list[Difference]:
    """List what differs between what two runs rest on: seals, records, or facts (`facts.facts_of`), or parts of them.

    What one of them lacks is no difference, since other versions have others. Nor is a part that another difference
    changes anyway.
    """
    before, after = (as_json(facts.get("settings") or {}) for facts in (then, now))
    settings = [
        Difference(key, about(key).change, True, value, after[key])
        for key, value in before.items()
        if key in after
        and not _is_written_out(key, value, after[key])
        and meaning(key, value) != meaning(key, after[key])
    ]
    old, new = with_rule(_parts(then)), _parts(now)
    labels = [label for label in new if old.get(label, new[label]) != new[label]]
    causes = {*labels, *(change.label for change in settings if not change.is_moved)}
    own = without_rest(label for label in labels if causes.isdisjoint(FOLLOWS.get(label, ())))
    return settings + [Difference(label, MEANS.get(label, LEARNING)) for label in own]


def _is_written_out(key: str, then: Any, now: Any) -> bool:
    """True for formats and exemplars that are no names: the prompt's hashes compare them."""
    return about(key).names == "prompt" and not (isinstance(then, str | None) and isinstance(now, str | None))


def _parts(facts: Mapping[str, Any]) -> dict[str, str]:
    """Return the hashes of all parts, by label."""
    return ({ROWS: facts["data"]} if facts.get("data") else {}) | (facts.get("sources") or {})


def without_rest(labels: Iterable[str]) -> list[str]:
    """Drop the rest of files from labels of parts, unless there is no other: functions are a part of it."""
    kept = list(labels)
    return [label for label in kept if not label.startswith(REST)] or kept


def between_processes(first: dict[str, Any], own: dict[str, Any]) -> str:
    """Say in what another process' facts of a run differ from the first process' ones; "" if in nothing."""
    differences = compare(first, own)
    parts = [change.name for change in differences if not change.is_setting]
    other_rows = f"the {ROWS}" in parts
    values = {
        change.label: (change.then, change.now)
        for change in differences
        if change.is_setting
        and not change.is_moved
        and (must_agree(change.label) or (other_rows and change.names_rows))
    }
    facts = [{**{key: facts[key] for key in FACTS}, **_releases(facts["versions"])} for facts in (first, own)]
    values |= {key: (facts[0].get(key), facts[1].get(key)) for key in facts[0] | facts[1]}
    if not (first["commit"] and own["commit"]):  # without git
        del values["commit"]
    pairs = {key: [shorten(str(value), 60) for value in pair] for key, pair in values.items() if pair[0] != pair[1]}
    return ", ".join([*(f"{key} ({now} instead of {then})" for key, (then, now) in pairs.items()), *parts])


def _releases(versions: dict[str, Any]) -> dict[str, str]:
    """Return versions without what differs between machines that train alike: CUDA's suffix, Python's last number."""
    releases = {name: str(version).partition("+")[0] for name, version in versions.items()}
    return releases | {"python": ".".join(releases["python"].split(".")[:2])} if "python" in releases else releases
