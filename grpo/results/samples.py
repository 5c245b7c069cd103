"""The samples of an evaluation in a run's directory, a few of each while it trains, and the answer given most."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Required

from grpo.core.jsonfiles import append_line, read_lines
from grpo.scoring.sample import Line, Sample
from grpo.task import given

WATCHED = 4  # questions whose answers are kept at each evaluation while a run trains


class Watched(Line, total=False):
    """A line of completions_during.jsonl: an answer to a watched question at an evaluation while training."""

    step: Required[int]
    measure: str  # of that evaluation, as in its line of metrics.jsonl


def file_of(directory: Path, when: str) -> Path:
    """Return the file of an evaluation's samples: `before`, `during`, `after` or `only` (without training)."""
    return directory / f"completions_{when}.jsonl"


def read_samples(file: Path) -> list[Sample]:
    """Read the file of an evaluation's samples; [] without it. Raise UserError for a broken line."""
    return list(map(Sample.from_json, read_lines(file, Line)))


def watched(samples: Sequence[Sample]) -> list[Sample]:
    """Return the answers to a few questions, always the same: evenly spaced, whatever was answered.

    Rows are often sorted by kind or difficulty, so the first ones would be alike.
    """
    return [samples[at * len(samples) // WATCHED] for at in range(WATCHED)] if len(samples) > WATCHED else [*samples]


def save_watched(directory: Path, samples: Sequence[Sample], step: int, measure: str) -> None:
    """Append the answers to the watched questions at this optimizer step to completions_during.jsonl."""
    for sample in watched(samples):
        append_line(file_of(directory, "during"), {"step": step, "measure": measure, **sample.to_json()})


def read_watched(
    directory: Path, evaluations: Mapping[int, Sequence[Sample]], measure: str | None
) -> list[dict[int, Sample]]:
    """Return for each watched question its answers by optimizer step, in order.

    Of several answers at a step the last one counts: a run that is resumed there may evaluate once more.

    Args:
        evaluations: the whole evaluations before and after training, by their step.
        measure: theirs, as in eval_*.json; answers of another one are skipped.
    """
    answers: dict[str, dict[int, Sample]] = {_question(sample): {} for sample in watched(evaluations.get(0, ()))}
    lines = read_lines(file_of(directory, "during"), Watched)
    during = [(line["step"], Sample.from_json(line)) for line in lines if line.get("measure") == measure]
    whole = [(step, sample) for step, samples in evaluations.items() for sample in watched(samples)]
    for step, sample in [*whole, *during]:
        if (key := _question(sample)) in answers:
            answers[key][step] = sample
    return [dict(sorted(of_question.items())) for of_question in answers.values()]


def _question(sample: Sample) -> str:
    """Return what tells a question from all others: conversations may end in the same words."""
    return json.dumps([sample.question, sample.gold, sample.columns], sort_keys=True, default=str)


def most_given(samples: Sequence[Sample]) -> given.OneAnswer | None:
    """Return the most frequent answer to different questions; None if one has no gold answer."""
    return given.one_answer(
        [given.tally([sample.verdict.read for sample in samples], [sample.gold for sample in samples])]
    )
