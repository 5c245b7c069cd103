"""Compare a resumed run with the run that wrote its checkpoint: settings, data, processes, versions."""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from datasets import Dataset

from grpo.core.checklist import Check
from grpo.core.errors import UserError
from grpo.core.jsonfiles import without_nan
from grpo.core.settings import CHECKPOINT, COMMAND, DATA, LENGTH, about, changes_learning, meaning, must_agree
from grpo.core.text import shorten
from grpo.core.versions import commit, versions
from grpo.results.record import RunRecord
from grpo.runs import checkpoints
from grpo.runs.source import OF_SCRIPT, REST, without_rest

# What the processes of one run compare, besides settings, sources and versions
FACTS, HASHES = ("sharding", "checkpoint", "commit"), {"data": "rows"}
# Sources that are not code, by their label for people
HELD_OUT, COLUMNS, TOKENS = "held-out questions", "further columns of the training rows", "tokens of the prompts"
WEIGHTS, CONFIGURATION = "weights to begin with", "configuration of the model"
OWN, TRLS = "the run's", "TRL's"
CHOOSER = "evaluation that chooses the best checkpoint"
FOLLOW_A_METRIC = "reduce_lr_on_plateau", "greedy"  # schedules; a checkpoint has their rate and arguments
CHOOSERS = "metric_for_best_model", "greater_is_better"
# Parts of every prompt: a change would change all remaining training rows
IN_PROMPTS = ("system prompt", "question template", "exemplars")


class Rows(Protocol):
    """What is known of a run's rows (data/dataset.py)."""

    @property
    def rows(self) -> Dataset:
        """The training rows, or without training the held-out ones."""

    @property
    def held_out(self) -> Dataset:
        """The held-out questions."""

    @property
    def tokens(self) -> str:
        """A hash of the tokens of the held-out prompts, else of those of `rows`."""


def seal_record(settings: dict[str, Any], sources: dict[str, str], data: Rows, sharding: str) -> dict[str, Any]:
    """Return what a run and its figures rest on: part of each checkpoint's seal, and compared by its processes.

    `run.json` has it, too; `Run.begin_with` adds the model, once it is loaded.

    Args:
        sharding: the run's way, as `processes.sharding` names it.
    """
    # otherwise transformers warns of a tied head, stored once
    logging.getLogger("transformers.trainer").addFilter(
        lambda record: "missing keys in the checkpoint model loaded: ['lm_head.weight']" not in record.getMessage()
    )
    return {
        "settings": as_json(settings),
        "sources": sources | _hashes_of(data),
        "data": hash_of_rows(data.rows, ("prompt", "answer")),
        "sharding": sharding,
        "versions": versions(),
        "commit": (commit() or "").rstrip("+"),  # edited files are in `sources`
    }


def _hashes_of(data: Rows) -> dict[str, str]:
    """Return hashes of the rows as rewards and judge see them, and of the prompts as the model does, by label."""
    columns = [name for name in data.rows.column_names if name not in ("prompt", "question", "answer")]
    seen = [name for name in data.held_out.column_names if name != "prompt"]
    return {
        HELD_OUT: hash_of_rows(data.held_out, seen),
        COLUMNS: hash_of_rows(data.rows, columns),
        TOKENS: data.tokens,
    }


def changed_data(checkpoint: Path, data: Rows) -> list[str]:
    """Return the labels of data that differ from the checkpoint's.

    Raises:
        UserError: the checkpoint was trained on other prompts or gold answers, so that its place in them has no
            meaning.
    """
    check_rows(checkpoint, data.rows)
    return other_sources(checkpoints.read_seal(checkpoint), _hashes_of(data))


def check_rows(checkpoint: Path, rows: Dataset) -> None:
    """Raise UserError if the checkpoint was trained on other rows."""
    data = hash_of_rows(rows, ("prompt", "answer"))
    if checkpoints.read_seal(checkpoint).get("data", data) != data:
        raise UserError(
            f"resume_from_checkpoint: the training prompts are not those of {checkpoint}, so resuming would repeat or "
            f"skip some; use the run's own data, prompt and eval_* settings{_or_new_run(checkpoint)}"
        )


def check_weights(checkpoint: Path, weights: str, name: str) -> None:
    """Raise UserError if a checkpoint's run began from other weights: those of an adapter's base are not in it."""
    if WEIGHTS in other_sources(checkpoints.read_seal(checkpoint), {WEIGHTS: weights}):
        raise UserError(
            f"model_name_or_path: the weights of {name!r} are not those that the run of {checkpoint} began with, so "
            "that its adapter, its reference model and its evaluation before training belong to other weights; "
            f"restore them (of the Hub: --model_revision with the commit of that time){_or_new_run(checkpoint)}"
        )


def measure_of(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a seal or record that evaluations rest on.

    These are the questions and the columns that rewards and judge read, the code of rewards and judge, the prompt and
    its tokens, the model's configuration, and the settings of answering and grading.
    """
    sources = {
        key: text for key, text in (facts.get("sources") or {}).items() if not key.startswith((REST, OF_SCRIPT))
    }
    trls = sources.pop(CHOOSER, OWN) != OWN
    for apart in (COLUMNS, WEIGHTS, "code of prepare"):  # held-out questions are as `prepare` made them
        sources.pop(apart, None)
    settings = facts.get("settings") or {}
    kinds = {"answers", "samples"} if trls or (settings.get("eval_num_samples") or 1) > 1 else {"answers"}
    kept = {key: value for key, value in settings.items() if about(key).measures in kinds}
    return {"settings": kept, "sources": sources}


def changed_measure(checkpoint: Path, facts: dict[str, Any]) -> list[str]:
    """Return, in words, why evaluations of the checkpoint's run and of this one are not comparable."""
    then, now = measure_of(checkpoints.read_seal(checkpoint)), measure_of(facts)
    settings = changes(then, now["settings"], lambda key: True)
    return list(_in_words(settings, other_sources(then, now["sources"])).values())


def changed_chooser(checkpoint: Path, facts: dict[str, Any]) -> list[str]:
    """Return, in words, what makes another metric, its other end or another evaluation choose the best checkpoint."""
    sealed = checkpoints.read_seal(checkpoint)
    changed = changes(sealed, facts["settings"], CHOOSERS.__contains__)
    others = [label for label in other_sources(sealed, facts["sources"]) if label == CHOOSER]
    return list(_in_words(changed, others).values())


def differences(run: Path, settings: dict[str, Any], sources: dict[str, str]) -> dict[str, str]:
    """Return the settings and sources that make a run another experiment, each with a text for people."""
    newest, _ = checkpoints.newest(run)
    then = checkpoints.read_seal(newest) if newest else RunRecord.known(run).to_json()
    # names of data count, since rows are not compared
    changed = changes(then, settings, lambda key: changes_learning(key) or _names_data(key))
    found = _in_words(changed, other_sources(then, sources))
    return {label: text for label, text in found.items() if not label.startswith(REST)}


def changed_since(checkpoint: Path, settings: dict[str, Any], sources: dict[str, str]) -> list[str]:
    """Return, in words, the changes that make a resumed run another experiment; its length is not one."""
    sealed = checkpoints.read_seal(checkpoint)
    found = _in_words(changes(sealed, settings), other_sources(sealed, sources))
    return [text for label, text in found.items() if about(label).change is not LENGTH]


def changed_since_the_end(
    checkpoint: Path, output: Path, settings: dict[str, Any], sources: dict[str, str]
) -> list[str] | None:
    """Return all settings and sources that differ from those of a finished run; None if the run has not finished.

    Args:
        checkpoint: the run's newest, to resume from.
        output: where the resumed run would write.
    """
    run = checkpoint.parent
    if run.resolve() != output.resolve() or not any(run.glob("*.safetensors")):
        return None
    record = RunRecord.read(run)
    if not record.is_complete:
        return None
    then, now = record.settings, as_json(settings)
    kept = [key for key in then if key in now and about(key).change is not COMMAND]  # other versions have others
    differing = [key for key in kept if _differ(key, then[key], now[key])]
    return differing + [f"the {label}" for label in other_sources(record.to_json(), sources)]


def _in_words(changed: dict[str, tuple[Any, Any]], sources: Sequence[str]) -> dict[str, str]:
    settings = {key: f"{key} {then} → {now}" for key, (then, now) in changed.items()}
    return settings | {label: f"the {label}" for label in sources}


def other_sources(then: dict[str, Any], now: dict[str, str]) -> list[str]:
    """Return the sources that differ from those of a seal or record. Sources missing in either are not compared."""
    before = then.get("sources") or {}
    return independent(label for label in now if before.get(label, now[label]) != now[label])


def independent(labels: Iterable[str], of_other_models: bool = False) -> list[str]:
    """Drop sources that another difference changes anyway, such as the tokens of other prompts."""
    found = list(labels)
    caused = {TOKENS: of_other_models or not {HELD_OUT, *IN_PROMPTS}.isdisjoint(found), WEIGHTS: of_other_models}
    return without_rest(label for label in found if not caused.get(label))


def note_changes(
    checkpoint: Path, settings: dict[str, Any], sources: dict[str, str], world_size: int, sharding: str
) -> list[Check]:
    """Return a note for each difference from the checkpoint's run that affects the rest of the run.

    Args:
        sharding: this run's way, as `processes.sharding` names it.

    Raises:
        UserError: a changed setting makes this checkpoint unusable.
    """
    sealed = checkpoints.read_seal(checkpoint)
    ways = checkpoints.shardings(checkpoint)
    if ways and sharding not in ways:
        raise UserError(
            f"resume_from_checkpoint: {checkpoint} was written with {' or '.join(ways)}, and this run has {sharding}: "
            f"a run resumes in the way that wrote its checkpoint; use that one's launcher and file"
            f"{_or_new_run(checkpoint)}"
        )
    if (before := sealed.get("world_size", world_size)) != world_size:
        raise UserError(
            f"resume_from_checkpoint: {checkpoint} was written by {before} processes, and this run has {world_size}: "
            f"each has its own random numbers and its own part of a rollout; use --nproc_per_node={before} "
            f"(accelerate: --num_processes {before})"
            f"{_or_new_run(checkpoint)}"
        )
    others = other_sources(sealed, sources)
    if prompt := [label for label in others if label in IN_PROMPTS]:
        raise UserError(
            f"resume_from_checkpoint: this command has another {' and another '.join(prompt)} than {checkpoint}, so "
            f"that other prompts would follow; restore what was edited{_or_new_run(checkpoint)}"
        )
    changed, notes = changes(sealed, settings), list[Check]()
    schedules = {str((sealed.get("settings") or {}).get("lr_scheduler_type")), str(settings.get("lr_scheduler_type"))}
    overruled = ("learning_rate", "lr_scheduler_") if schedules & {*FOLLOW_A_METRIC} else ()
    for key, (then, now) in changed.items():
        if about(key).change is CHECKPOINT or key.startswith(overruled):
            words = " ".join(map(str, then)) if isinstance(then, list) else then
            remedy = f"drop --{key}" if words is None else f"use --{key} {words}"
            raise UserError(
                f"{key}: {now} instead of the {then} of {checkpoint}, which makes it unusable; {remedy}"
                f"{_or_new_run(checkpoint)}"
            )
    differing = list(_in_words(changed, others).values())
    if settings.get("sync_ref_model"):
        differing.append("the reference model (no checkpoint contains it, so sync_ref_model restarts from the first)")
    if differing:
        effect = "the run will differ from an uninterrupted one"
        notes.append(Check("warning", "changed", f"since the checkpoint: {', '.join(differing)}", effect))
    before, here = sealed.get("versions") or {}, versions()
    if other := [f"{name} {before[name]} → {here.get(name)}" for name in before if before[name] != here.get(name)]:
        effect = "results may differ in their last digits"
        notes.append(Check("warning", "versions", f"since the checkpoint: {', '.join(other)}", effect))
    return notes


def disagreement(first: dict[str, Any], own: dict[str, Any]) -> str:
    """Say in what another process' record of a run differs from the first process' one; "" if in nothing."""
    others = [label for key, label in HASHES.items() if first[key] != own[key]]
    facts = [{**{key: facts[key] for key in FACTS}, **_releases(facts["versions"])} for facts in (first, own)]
    values = changes(first, own["settings"], lambda key: must_agree(key) or (bool(others) and _names_data(key)))
    values |= {key: (facts[0].get(key), facts[1].get(key)) for key in facts[0] | facts[1]}
    if not (first["commit"] and own["commit"]):  # without git
        del values["commit"]
    pairs = {key: [shorten(str(value), 60) for value in pair] for key, pair in values.items() if pair[0] != pair[1]}
    found = [f"{key} ({now} instead of {then})" for key, (then, now) in pairs.items()]
    return ", ".join(found + [f"the {label}" for label in (*others, *other_sources(first, own["sources"]))])


def _releases(versions: dict[str, Any]) -> dict[str, str]:
    """Return versions without what differs between machines that train alike: CUDA's suffix, Python's last number."""
    releases = {name: str(version).partition("+")[0] for name, version in versions.items()}
    return releases | {"python": ".".join(releases["python"].split(".")[:2])} if "python" in releases else releases


def changes(
    sealed: dict[str, Any], settings: dict[str, Any], counts: Callable[[str], bool] = changes_learning
) -> dict[str, tuple[Any, Any]]:
    """Return changed settings that count, by name: the value in a seal or record, and the current one."""
    then, now = sealed.get("settings") or {}, as_json(settings)
    return {
        key: (then[key], now[key])
        for key in then
        if key in now and _differ(key, then[key], now[key]) and not _is_moved(then[key], now[key])
        if counts(key)
    }


def _differ(key: str, then: Any, now: Any) -> bool:
    return meaning(key, then) != meaning(key, now)


def _names_data(key: str) -> bool:
    return about(key).change is DATA


def _is_moved(then: Any, now: Any) -> bool:
    """True if two settings name the same file or directory by different paths, or if it was moved."""
    if not (isinstance(then, str) and isinstance(now, str) and os.path.exists(now)):
        return False
    if os.path.exists(then):
        return os.path.samefile(then, now)
    return os.path.basename(os.path.normpath(then)) == os.path.basename(os.path.normpath(now))


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


def _or_new_run(checkpoint: Path) -> str:
    whole = any(checkpoint.glob("*.safetensors"))  # not FSDP's sharded ones
    return f", or start a new run from its weights (--model_name_or_path {checkpoint})" if whole else ""
