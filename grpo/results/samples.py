"""The samples of an evaluation in a run's directory, and the answer that they give most."""

from collections.abc import Sequence
from pathlib import Path

from grpo.core.jsonfiles import read_lines
from grpo.scoring.sample import Line, Sample
from grpo.task import given


def file_of(directory: Path, when: str) -> Path:
    """Return the file of an evaluation's samples: `before`, `after` or `only` (without training)."""
    return directory / f"completions_{when}.jsonl"


def read_samples(file: Path) -> list[Sample]:
    """Read the file of an evaluation's samples; [] without it. Raise UserError for a broken line."""
    return list(map(Sample.from_json, read_lines(file, Line)))


def most_given(samples: Sequence[Sample]) -> given.OneAnswer | None:
    """Return the most frequent answer to different questions; None if one has no gold answer."""
    return given.one_answer(
        [given.tally([sample.verdict.read for sample in samples], [sample.gold for sample in samples])]
    )
