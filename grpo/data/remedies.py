"""Errors about unusable rows, each with a fix."""

import json
import re
import shlex
from collections.abc import Iterable, Sequence

from grpo.core.errors import UserError
from grpo.core.text import listed, shorten
from grpo.data.files import Row
from grpo.task.gold import gold_answer

PREPARE = "--prepare {} --allow_custom_rewards true (docs/your-own-task.md)"
READ_BY = {  # columns of well-known data sets → the function of examples/rows.py that reads them
    ("instruction", "output"): "from_alpaca",
    ("reward_model",): "from_verl",
    ("prompt", "completion"): "from_prompt_completion",
    ("conversations",): "from_sharegpt",
    ("messages",): "from_sharegpt",
    ("question", "choices", "answer"): "from_mmlu",
    ("question", "choices", "answerKey"): "from_mmlu",
    ("question", "options", "answer"): "from_mmlu",
    ("question", "A", "B", "answer"): "from_mmlu",
}
ADDED = ("system", "system_prompt", "history")  # by `with_history` of examples/rows.py
ADDS = {  # to the question
    "from_mmlu": ("choices", "options", *"ABCDEFGHIJ"),
    "from_alpaca": ("input", *ADDED),
    "from_sharegpt": ADDED,
    "from_prompt_completion": ADDED,
}
SIMILAR = {  # other names of these columns, in any letter case
    "question_column": ("question", "prompt", "problem", "query", "instruction", "messages", "input"),
    "answer_column": (
        *("answer", "answers", "solution", "target", "output", "response", "ground_truth", "final_answer", "label"),
        *("gold", "expected_answer", "reference_answer", "completion"),
    ),
}


def require_columns(
    rows: Sequence[Row],
    columns: Sequence[str],
    question_column: str,
    answer_column: str,
    label: str,
    needs_gold: Sequence[str],
) -> None:
    """Raise UserError if the column of questions or of gold answers is missing, or if both are the same."""
    needed = {"question_column": question_column}
    if needs_gold or answer_column != "answer":
        needed["answer_column"] = answer_column
    missing = [setting for setting, column in needed.items() if column not in columns]
    if missing:
        similar = {setting: _similar(setting, columns)[:1] for setting in missing}
        named = missing if all(similar.values()) else missing[:1]
        remedy = "name one with " + " ".join(" ".join([f"--{setting}", *similar[setting]]) for setting in named)
        reader = "" if similar.get("answer_column") and "messages" in columns else reader_of(columns)
        if reader and "answer_column" in missing:
            remedy = f"use {PREPARE.format(reader)}, which reads such rows"
        elif "question_column" in missing:
            remedy += ", or write a `prepare` (docs/your-own-task.md)"
        elif needs_gold:
            remedy += f", or do without {' and '.join(needs_gold)}"
        if title := _rows_above_the_names(rows, needed.values()):
            lines = f"lines 1 to {title}" if title > 1 else "line 1"
            remedy = f"delete {lines} of the file, above the names of the columns"
        elif re.search(r"\.[ct]sv\b", label) and any(len(name) > 40 or name.isdigit() for name in columns):
            remedy = "if that is a row, add a first line with the columns' names, such as question,answer"
        raise UserError(
            f"{missing[0]}: {label} has no column {needed[missing[0]]!r}; it has {listed(columns)}: {remedy}"
        )
    if question_column == answer_column:  # each prompt would contain its gold answer
        raise UserError(
            f"answer_column: {answer_column!r} is the question_column, too, and would be in the prompts; name another"
        )


def require_held_out_column(column: str, columns: Sequence[str], label: str, prepare: str | None) -> None:
    """Raise UserError if held-out rows lack the column of `eval_by`.

    Args:
        columns: those that the rows keep.
        prepare: the user's, if it makes the rows.
    """
    if column not in columns:
        kept = f"what {prepare} returns for {label}" if prepare else label
        remedy = f"let it return {column!r}, too, or name one of these" if prepare else "name one of these"
        raise UserError(f"eval_by: {kept} has no column {column!r}; it has {listed(columns)}: {remedy}")


def reader_of(columns: Sequence[str], hidden: Sequence[str] = ()) -> str:
    """Return the function of examples/rows.py that reads rows with these columns, or "".

    Args:
        hidden: columns that it must add to the question.
    """
    names = (name for needed, name in READ_BY.items() if set(needed) <= set(columns))
    return next((f"examples.rows.{name}" for name in names if set(hidden) <= set(ADDS.get(name, ()))), "")


def _rows_above_the_names(rows: Sequence[Row], names: Iterable[str]) -> int:
    """Return the number of lines above the row that holds these names, in a table that begins with a title; or 0."""
    wanted = {name.casefold() for name in names}
    for number, row in enumerate(rows[:5], 1):
        if wanted <= {str(cell).strip().casefold() for cell in row.values()}:
            return number
    return 0


def _similar(setting: str, columns: Sequence[str]) -> list[str]:
    """Return the columns that are called like a setting's usual ones, likeliest first, as words of a command."""
    folded = {re.sub(r"\s*[(\[].*", "", column.strip().casefold()): column for column in reversed(columns)}
    folded |= {column.strip().casefold(): column for column in columns}
    return [shlex.quote(folded[name]) for name in SIMILAR[setting] if name in folded]


def reason_without_rows(
    rows: Sequence[Row], question_column: str, answer_column: str, label: str, needs_gold: Sequence[str]
) -> str:
    """Describe why no row has a question and a gold answer, and how to fix it."""
    cells = [row.get(question_column) for row in rows]
    asks = any(isinstance(cell, list) or (isinstance(cell, str) and cell.strip()) for cell in cells)
    answers = not needs_gold or any(gold_answer(row.get(answer_column)) for row in rows)
    columns = [question_column, answer_column][: 2 if needs_gold else 1]
    first = {column: next(filter(None, (row.get(column) for row in rows)), None) for column in columns}
    objects = [
        column
        for column, cell in first.items()
        if isinstance(cell, dict)
        or (column == answer_column and isinstance(cell, list) and any(isinstance(item, dict) for item in cell))
    ]
    if objects:
        shown = json.dumps(first[objects[0]], ensure_ascii=False, default=str)
        return (
            f"{'answer' if answer_column in objects else 'question'}_column: the cells of {' and '.join(objects)} in "
            f"{label} are objects, not text, such as {shorten(shown, 80)}; write a `prepare` that returns the text in "
            "them (docs/your-own-task.md)"
        )
    marks = r"(`… #### 72`, `\boxed{72}`, `Answer: 72`, `<answer>72</answer>`, or 72 alone)"
    parts = {"question": f"a question in {question_column!r} (as text)"} if answers or not asks else {}
    if needs_gold and (asks or not answers):
        parts["answer"] = f"a gold answer in {answer_column!r} {marks}"
    return (
        f"{list(parts)[-1]}_column: none of the {len(rows)} rows of {label} has {' and '.join(parts.values())}; name "
        "other columns, fix the rows, or write a `prepare`"
    )
