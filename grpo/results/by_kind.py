"""Held-out accuracy by kind of question: the values of a column of the data (`eval_by`).

`by_kind` is the one way from samples to it, for the console, the report, comparison.json and `compare`.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo.core.jsonfiles import without_nan
from grpo.core.text import counted, shorten
from grpo.results.comparison import change_of, compare, is_decided
from grpo.results.measures import LENIENT, REWARD, Measure, Summary
from grpo.results.summary import Cell, summarize, table_cells
from grpo.scoring.sample import Sample

MOST = 20  # rows of a table; of more kinds the largest have a row each, the others one together
WITHOUT = "(none)"  # questions whose cell is empty
TOO_FEW = "too few to tell"


@dataclass(frozen=True)
class Kind:
    """The held-out questions with one value in the column.

    Attributes:
        name: the value as text.
        n: how many questions.
        cells: of a table: the measure in each evaluation, and its change if there are two.
        change: that of the measure, as in comparison.json; {} without two evaluations of the same questions.
        note: TOO_FEW if nothing follows from the change, else "".
    """

    name: str
    n: int
    cells: Sequence[Cell]
    change: Summary
    note: str

    @property
    def label(self) -> str:
        """Its name in a table."""
        return f"{shorten(self.name, 40)} ({self.n:,})"


@dataclass(frozen=True)
class Kinds:
    """Kinds of held-out questions.

    Attributes:
        column: the column of the data.
        measure: lenient accuracy, or without verdicts the reward.
        evaluations: names of those that the cells are of.
    """

    column: str
    measure: Measure
    evaluations: Sequence[str]
    kinds: Sequence[Kind]

    @property
    def title(self) -> str:
        """What its table shows."""
        return f"{self.measure.label}, by {shorten(self.column, 40)}"

    def to_json(self) -> dict[str, Any]:
        """Return the entry `by` of comparison.json."""
        kinds = [{"kind": kind.name, "n": kind.n, self.measure.name: kind.change} for kind in self.kinds]
        return {"column": self.column, "kinds": kinds}


def value_of(cell: Any) -> str:
    """Return a cell of the data as the text of its kind.

    >>> [value_of(cell) for cell in ("algebra ", 3, True, None, ["a", "b"])]
    ['algebra', '3', 'true', '(none)', '["a", "b"]']
    """
    cell = without_nan(cell)  # as its line of a file has it
    if cell is None:
        return WITHOUT
    is_json = isinstance(cell, bool | int | float | list | tuple | dict)
    text = json.dumps(cell, ensure_ascii=False, default=str, sort_keys=True) if is_json else str(cell)
    return " ".join(text.split()) or WITHOUT


def counts_of(values: Iterable[str]) -> dict[str, int]:
    """Count kinds, in the order of a table. Those beyond the MOST largest are one: `others (23 kinds)`."""
    counts = Counter(values)
    largest = sorted(counts, key=lambda value: (-counts[value], _place(value)))
    shown = largest if len(largest) <= MOST else largest[: MOST - 1]
    table = {value: counts[value] for value in sorted(shown, key=_place)}
    if rest := largest[len(shown) :]:
        others = f"others ({counted(len(rest), 'kind')})"
        table[others] = table.get(others, 0) + sum(counts[value] for value in rest)
    return table


def _place(value: str) -> list[tuple[int, str]]:
    """Return what sorts values as people do: level 2 before level 10, those without a value last."""
    parts = [part.lstrip("0") if part.isdecimal() else part.casefold() for part in re.split(r"(\d+)", value)]
    return [(int(value == WITHOUT), ""), *((len(part) * (at % 2), part) for at, part in enumerate(parts))]


def by_kind(column: str | None, evaluations: Mapping[str, Sequence[Sample]]) -> Kinds | None:
    """Return the kinds of the held-out questions, with their accuracy in each evaluation and its paired change.

    Args:
        column: `eval_by`.
        evaluations: the samples of one, or of two that are compared, by name; those without samples are skipped.

    Returns:
        None without a column, or if no row has it.
    """
    given = {when: samples for when, samples in evaluations.items() if samples}
    if column is None or not any(column in sample.row for samples in given.values() for sample in samples):
        return None
    values = {when: [value_of(sample.row.get(column)) for sample in samples] for when, samples in given.items()}
    counts = counts_of(value for of_evaluation in values.values() for value in of_evaluation)
    others = [*counts][-1]
    of_kind: dict[str, dict[str, list[Sample]]] = {name: {when: [] for when in given} for name in counts}
    for when, samples in given.items():
        for sample, value in zip(samples, values[when], strict=True):
            of_kind[value if value in counts else others][when].append(sample)
    judged = all(sample.verdict.lenient is not None for samples in given.values() for sample in samples)
    measure = LENIENT if judged else REWARD
    kinds = [_kind(name, measure, [*samples.values()]) for name, samples in of_kind.items()]
    return Kinds(column, measure, [*given], kinds)


def _kind(name: str, measure: Measure, evaluations: Sequence[Sequence[Sample]]) -> Kind:
    asked = [[sample.question for sample in samples] for samples in evaluations]
    is_paired = len(asked) == 2 and asked[0] == asked[1]
    change = change_of(measure, compare(evaluations[0], evaluations[1])) if is_paired else {}
    cells = table_cells(measure, [summarize(samples) if samples else {} for samples in evaluations], change)
    note = TOO_FEW if change and not is_decided(measure, change) else ""
    return Kind(name, max(map(len, evaluations)), cells, change, note)
