"""Refuse or list what a resumed run has changed since its checkpoint, or its end."""

from pathlib import Path
from typing import Any

from grpo.core.checklist import Check
from grpo.core.errors import UserError
from grpo.core.settings import CHECKPOINT, MEASURE, NOTHING, about
from grpo.core.versions import versions
from grpo.results.record import RunRecord
from grpo.runs import checkpoints
from grpo.runs.differences import Difference, compare
from grpo.runs.facts import CHOOSER, IN_PROMPTS, ROWS, TRLS, WEIGHTS, Rows, facts_of_rows, measure_of

FOLLOW_A_METRIC = "reduce_lr_on_plateau", "greedy"  # schedules; a checkpoint has their rate and arguments
CHOOSERS = "metric_for_best_model", "greater_is_better"


def of_experiment(run: Path, now: dict[str, Any]) -> list[Difference]:
    """List what makes an earlier run another experiment than one with these settings and sources.

    Names of data count, since rows are not compared.
    """
    newest, _ = checkpoints.newest(run)
    then = checkpoints.read_seal(newest) if newest else _facts(RunRecord.known(run))
    return [change for change in _of_training(compare(then, now)) if not change.is_rest]


def since_checkpoint(checkpoint: Path, now: dict[str, Any]) -> list[Difference]:
    """List the settings and sources that make a resumed run another one; its rows are compared once they are read."""
    differences = compare(checkpoints.read_seal(checkpoint), now)
    return [change for change in _of_training(differences) if not change.names_rows]


def since_end(checkpoint: Path, output: Path, now: dict[str, Any]) -> list[Difference] | None:
    """List all settings and sources that differ from those of a finished run; None if the run has not finished.

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
    differences = compare(_facts(record), now)
    return [change for change in differences if not (change.is_setting and about(change.label).of_command)]


def _of_training(differences: list[Difference]) -> list[Difference]:
    return [change for change in differences if change.means not in (NOTHING, MEASURE) and not change.is_moved]


def _facts(record: RunRecord) -> dict[str, Any]:
    return {"settings": record.settings, "sources": record.sources}


def note_changes(checkpoint: Path, now: dict[str, Any], world_size: int) -> list[Check]:
    """Return a note for each difference from the checkpoint's run that affects the rest of the run.

    Args:
        now: settings, sources, and this run's way of `sharding`, as `processes.sharding` names it.

    Raises:
        UserError: a changed setting makes this checkpoint unusable.
    """
    sealed, sharding, notes = checkpoints.read_seal(checkpoint), now["sharding"], list[Check]()
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
    differences = since_checkpoint(checkpoint, now)
    _refuse_unusable(checkpoint, differences, [sealed.get("settings") or {}, now["settings"]])
    differing = list(map(str, differences))
    if now["settings"].get("sync_ref_model"):
        differing.append("the reference model (no checkpoint contains it, so sync_ref_model restarts from the first)")
    if differing:
        effect = "the run will differ from an uninterrupted one"
        notes.append(Check("warning", "changed", f"since the checkpoint: {', '.join(differing)}", effect))
    then, here = sealed.get("versions") or {}, versions()
    if other := [f"{name} {then[name]} → {here.get(name)}" for name in then if then[name] != here.get(name)]:
        effect = "results may differ in their last digits"
        notes.append(Check("warning", "versions", f"since the checkpoint: {', '.join(other)}", effect))
    return notes


def _refuse_unusable(checkpoint: Path, differences: list[Difference], settings: list[dict[str, Any]]) -> None:
    """Raise UserError for a difference that makes the checkpoint unusable.

    Args:
        settings: those of its run, and of this one.
    """
    if prompt := [change.label for change in differences if change.label in IN_PROMPTS]:
        raise UserError(
            f"resume_from_checkpoint: this command has another {' and another '.join(prompt)} than {checkpoint}, so "
            f"that other prompts would follow; restore what was edited{_or_new_run(checkpoint)}"
        )
    follows = {str(values.get("lr_scheduler_type")) for values in settings} & {*FOLLOW_A_METRIC}
    overruled = ("learning_rate", "lr_scheduler_") if follows else ()
    for change in differences:
        if change.is_setting and (change.means is CHECKPOINT or change.label.startswith(overruled)):
            words = " ".join(map(str, change.then)) if isinstance(change.then, list) else change.then
            remedy = f"drop --{change.label}" if words is None else f"use --{change.label} {words}"
            raise UserError(
                f"{change.label}: {change.now} instead of the {change.then} of {checkpoint}, which makes it unusable; "
                f"{remedy}{_or_new_run(checkpoint)}"
            )


def changed_data(checkpoint: Path, data: Rows) -> list[str]:
    """Return the labels of data that differ from the checkpoint's.

    Raises:
        UserError: the checkpoint was trained on other prompts or gold answers, so that its place in them has no
            meaning.
    """
    labels = [change.label for change in compare(checkpoints.read_seal(checkpoint), facts_of_rows(data))]
    if ROWS in labels:
        raise UserError(
            f"resume_from_checkpoint: the training prompts are not those of {checkpoint}, so resuming would repeat or "
            f"skip some; use the run's own data, prompt and eval_* settings{_or_new_run(checkpoint)}"
        )
    return labels


def check_weights(checkpoint: Path, weights: str, name: str) -> None:
    """Raise UserError if a checkpoint's run began from other weights: those of an adapter's base are not in it."""
    if compare(checkpoints.read_seal(checkpoint), {"sources": {WEIGHTS: weights}}):
        raise UserError(
            f"model_name_or_path: the weights of {name!r} are not those that the run of {checkpoint} began with, so "
            "that its adapter, its reference model and its evaluation before training belong to other weights; "
            f"restore them (of the Hub: --model_revision with the commit of that time){_or_new_run(checkpoint)}"
        )


def changed_parts(checkpoint: Path, facts: dict[str, Any]) -> list[str]:
    """Return, in words, the other code, rows, prompt and model of a run that is open."""
    differences = compare(checkpoints.read_seal(checkpoint), facts)
    return [str(change) for change in differences if not change.is_setting and not change.is_rest]


def changed_measure(checkpoint: Path, facts: dict[str, Any]) -> list[str]:
    """Return, in words, why evaluations of the checkpoint's run and of this one are not comparable."""
    differences = compare(measure_of(checkpoints.read_seal(checkpoint)), measure_of(facts))
    return [str(change) for change in differences if not change.is_moved]


def changed_chooser(checkpoint: Path, facts: dict[str, Any]) -> list[str]:
    """Return, in words, what makes another metric, its other end or another evaluation choose the best checkpoint."""
    sealed = checkpoints.read_seal(checkpoint)
    by_trl = [f"the {CHOOSER}"] if (sealed.get("sources") or {}).get(CHOOSER) == TRLS else []
    return [str(change) for change in compare(sealed, facts) if change.label in CHOOSERS] + by_trl


def _or_new_run(checkpoint: Path) -> str:
    whole = any(checkpoint.glob("*.safetensors"))  # not FSDP's sharded ones
    return f", or start a new run from its weights (--model_name_or_path {checkpoint})" if whole else ""
