"""Print answers, and the summaries of evaluations with their comparison."""

from collections.abc import Sequence
from typing import Any

from rich.panel import Panel
from rich.table import Table

from grpo.core.processes import show
from grpo.core.text import for_rich, shorten
from grpo.results.by_kind import Kinds
from grpo.results.measures import of_summaries
from grpo.results.samples import watched
from grpo.results.summary import HEADINGS, Cell, table_rows
from grpo.scoring.sample import Sample
from grpo.task.gold import readable
from rewards import Gold

CHARACTERS = 1200  # most characters of a question or a completion


def show_answer(
    title: str,
    question: str,
    text: str,
    read: str,
    gold: Gold | None,
    notes: Sequence[str],
    reader: str = "answer read",
) -> None:
    """Show a completion with its question, `how_read` of its answer, the gold answer and notes.

    Args:
        reader: by whom: by the lenient rule, or in training samples by the correctness reward.
    """
    text = text.strip()
    question, text = (part if len(part) <= CHARACTERS else part[:CHARACTERS] + " …" for part in (question, text))
    parts = [f"{reader}: {for_rich(shorten(read, 80))}"]
    if gold is not None:
        parts.append(f"[green]gold: {for_rich(shorten(readable(gold), 80))}[/green]")
    notes = [f"[cyan]{for_rich(note)}[/cyan]" for note in notes]
    body = f"[bold]{for_rich(question)}[/bold]\n\n{for_rich(text)}\n\n{'  '.join([*parts, *notes])}"
    show(Panel(body, title=title, title_align="left"))


def print_answers(when: str, samples: Sequence[Sample], pattern: str = "xml") -> None:
    """Print two of the watched questions with their greedy completions."""
    for sample in watched(samples)[:2]:
        title, notes = f"a held-out question, {when}", list(filter(None, [str(sample.verdict)]))
        show_answer(title, sample.question, sample.text, sample.how_read(pattern), sample.gold, notes)


def _with_range(cell: Cell) -> str:
    value, interval = cell
    return f"{value} ({interval.replace(' to ', '-')})" if interval else value


def print_summaries(
    summaries: dict[str, dict[str, Any]], comparison: dict[str, Any] | None = None, kinds: Kinds | None = None
) -> None:
    """Print the summary `only`, or `before` and `after` with their comparison, and a row for each kind of question."""
    last = list(summaries.values())[-1]
    meant = [f"{measure.words}: {text}" for measure in of_summaries([last]) if (text := measure.meaning(last))]
    caption = "; ".join(meant) or "no accuracy"
    title = f"{last['n']} held-out questions, greedy, in per cent (95 % interval)"
    table = Table(title=title, caption=for_rich(caption), title_justify="left", caption_justify="left", min_width=64)
    for heading in ["", *(HEADINGS[when] for when in summaries), *(["Change"] if comparison else [])]:
        table.add_column(heading, justify="right" if heading else "left")
    for name, cells in table_rows(summaries, comparison or {}).values():
        table.add_row(for_rich(name), *map(_with_range, cells[:2]), *(change for change, _ in cells[2:]))
    if kinds:
        table.add_section()
        table.add_row(for_rich(kinds.title), style="bold")
        for kind in kinds.kinds:
            # the interval needs the width, and says nothing where they are too few
            changes = [f"{value} {kind.note or (ends and f'({ends})')}" for value, ends in kind.cells[2:]]
            table.add_row(for_rich(kind.label), *map(_with_range, kind.cells[:2]), *changes)
    show(table)
    if comparison:
        verdict, _, figures = comparison["sentence"].partition(": ")
        show(for_rich(f"{verdict}."), style="bold")
        show(for_rich(figures[:1].upper() + figures[1:]))
        for cause in comparison.get("diagnosis", ()):
            show(for_rich(f"Likely cause: {cause}."))
