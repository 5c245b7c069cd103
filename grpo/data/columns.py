"""Columns with text: what they hold, and where their text goes."""

import re
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from grpo.data.files import Row, parsed
from grpo.task.gold import alternatives, has_mark, read_column

SAMPLE = 200  # rows that are looked at
NEARLY = 0.9  # share of the rows in which a text is shown, or an answer is in the text
FEW, FEW_ITEMS = 0.25, 0.1  # share of different cells, or items of lists, up to which they are classes, not texts
SENTENCE = 5  # words from which a text says something, even if many rows have the same
CLOSING = " .!)]}$*`\\"  # signs behind the answer at the end of a solution
UNSPACED = re.compile("[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]{2}")  # scripts without spaces
CODE = re.compile(r"(?!.*://).*[()=+*;{}<>\[\]]", re.DOTALL)  # a single word that is code
# Why questions hardly need what a column holds
LOOKS, FACTS = "looks like a solution or classes", "single words or numbers"
ALIKE, READ = "the same in all rows", "`prepare` reads it, prompts do not show it"
LABEL = re.compile(r"[A-Ja-j0-9]")  # the gold answers of multiple choice
OPTION = re.compile(r"(.*?)[ _-]?([A-Ja-j]|[0-9])")  # A, B, C, D; option1, option2; answerA, answerB


@dataclass(frozen=True)
class TextColumn:
    """A column with text, or a key of a column with objects, of the rows as they are read.

    Attributes:
        path: the column, and the key.
        goes_to: the columns of the prepared rows that contain its text; `question` stands for the prompt.
        quiet: why questions hardly need it, in words; "" if they may.
    """

    path: tuple[str, ...]
    goes_to: frozenset[str]
    quiet: str

    @property
    def name(self) -> str:
        """The column and the key, for people."""
        return ".".join(self.path)

    @property
    def code(self) -> str:
        """The Python of the cell in a row, "" if it is empty."""
        column, *keys = self.path
        return f"(row[{column!r}] or {{}}).get({keys[0]!r}) or ''" if keys else f"row[{column!r}] or ''"


def text_columns(
    rows: Sequence[Row], made: Sequence[Row | None], question: str, answer: str, looked_at: Collection[str] = ()
) -> list[TextColumn]:
    """Return the columns with text, except those of questions and answers.

    Args:
        made: what `prepare` made of each row (None: dropped), or the same rows.
        question: the column of the questions in `made`; `answer` that of the gold answers.
        looked_at: the columns that `prepare` has read one by one.
    """
    pairs = [(row, new) for row, new in zip(rows, made, strict=True) if new is not None]
    pairs = pairs[:: max(1, len(pairs) // SAMPLE)][:SAMPLE]
    golds = [alternatives(gold) for gold in read_column([new.get(answer) for _, new in pairs])[1]]
    as_read = all(row is new for row, new in pairs)
    values = _by_path([row for row, _ in pairs])
    if as_read:
        values = {path: cells for path, cells in values.items() if path[0] not in (question, answer)}
    cells = {path: list(map(_texts, column)) for path, column in values.items()}
    options = _options(cells, golds)
    columns = []
    for path in values:
        kind = "choices" if path in options else _kind(cells[path], golds, values[path])
        if not kind or (kind == FACTS and path[0] in looked_at):
            continue
        targets = dict.fromkeys([question] if as_read else (key for _, new in pairs for key in new))
        shown = {key for key in targets if _shown(cells[path], [_texts(new.get(key)) for _, new in pairs])}
        answers = [_texts(new.get(answer)) for _, new in pairs]
        whole = [[*_texts(new.get(question)), *gold] for (_, new), gold in zip(pairs, answers, strict=True)]
        if kind != "choices" and _shown(cells[path], whole) and not _shown(cells[path], answers):
            shown.add(question)  # a conversation with its answer
        names = {question: "question", answer: "answer"}
        goes_to = {names.get(key, key) for key in shown} | ({path[0]} if as_read else set())
        why = READ if path[0] in looked_at else "" if kind in ("choices", "text") else kind
        columns.append(TextColumn(path, frozenset(goes_to), why))
    return columns


def _by_path(rows: Sequence[Row]) -> dict[tuple[str, ...], list[Any]]:
    """Return the cells of each column, and of each key of a column whose cells are objects."""
    values: dict[tuple[str, ...], list[Any]] = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        cells = [row.get(name) for row in rows]
        objects = [cell for cell in cells if isinstance(cell, Mapping)]
        if len(objects) > len(cells) / 2:
            for key in dict.fromkeys(key for item in objects for key in item):
                values[name, key] = [cell.get(key) if isinstance(cell, Mapping) else None for cell in cells]
        else:
            values[name,] = cells
    return values


def _texts(cell: Any) -> list[str]:
    """Return all texts and numbers in a cell, whatever it is made of; of messages those without their roles."""
    cell = _value(cell)
    if isinstance(cell, Mapping):
        said = [cell[key] for key in ("content", "value") if _is_message(cell) and key in cell]
        cell = said or list(cell.values())
    if isinstance(cell, list):
        return [text for item in cell for text in _texts(item)]
    is_text = isinstance(cell, str | int | float) and not isinstance(cell, bool)
    return [" ".join(str(cell).split())] if is_text and str(cell).strip() else []


def _is_message(cell: Any) -> bool:
    return isinstance(cell, Mapping) and not cell.keys().isdisjoint(("role", "from"))


def _value(cell: Any) -> Any:
    """Return a cell; of a list or an object as text, as CSV files have them, what it means."""
    if isinstance(cell, str) and re.fullmatch(r"\s*(?:\[.*\]|\{.*\})\s*", cell, re.DOTALL):
        try:
            return parsed(cell)
        except ValueError:
            pass
    return cell


def _shown(cells: Sequence[list[str]], places: Sequence[list[str]]) -> bool:
    """True if nearly all rows have the texts, or nearly all their words, in another place."""
    agree = []
    for texts, place in zip(cells, places, strict=True):
        if texts:
            whole, words = " ".join(place), set(re.findall(r"\w+", " ".join(place).casefold()))
            own = re.findall(r"\w+", " ".join(texts).casefold())
            agree.append(
                all(re.search(rf"(?<!\d){re.escape(text)}(?!\d)", whole) for text in texts)
                or (bool(own) and sum(word in words for word in own) >= NEARLY * len(own))
            )
    return bool(agree) and sum(agree) >= NEARLY * len(agree)


def _kind(cells: Sequence[list[str]], golds: Sequence[list[str]], values: Sequence[Any]) -> str:
    """Say what a column holds: `choices`, `text`, why questions hardly need it, or "" for nothing."""
    held = [(texts, gold) for texts, gold in zip(cells, golds, strict=True) if texts]
    if not held:
        return ""
    read = list(map(_value, values))
    has_lists = sum(isinstance(value, list | dict) for value in read) > len(held) / 2
    is_talk = any(isinstance(value, list) and any(map(_is_message, value)) for value in read)
    has_text = any(isinstance(value, str | list | dict) for value in values)
    if has_lists and not is_talk and _are_choices([(texts, gold) for texts, gold in held if len(texts) > 1], golds):
        return "choices"
    words = median(_words(" ".join(texts)) for texts, _ in held)
    if words < 2 or not has_text or not any(map(str.isalpha, "".join(text for texts, _ in held for text in texts))):
        return FACTS
    different = {" ".join(texts) for texts, _ in held}
    if len(different) == 1 < len(held):
        return ALIKE
    if sum(_is_solution(texts[-1], gold) for texts, gold in held) >= NEARLY * len(held):
        return LOOKS
    if has_lists:
        items = [text for texts, _ in held for text in texts]
        is_long = median(max(map(_words, texts)) for texts, _ in held) >= SENTENCE
        return "text" if is_long or len(set(items)) > FEW_ITEMS * len(items) else LOOKS
    few = len(different) <= max(1, FEW * len(held)) and len(held) > 1
    is_said = words >= SENTENCE or sum(texts[-1][-1] in ".?!:。？！" for texts, _ in held) >= NEARLY * len(held)
    return "text" if is_said or not few else LOOKS


def _words(text: str) -> int:
    words = len(text.split()) + len(UNSPACED.findall(text))
    return 3 if words == 1 and CODE.match(text) else words


def _is_solution(text: str, gold: Sequence[str]) -> bool:
    """True if a text ends with the gold answer, or marks an answer."""
    end = text.rstrip(CLOSING).casefold()
    ends = [answer.rstrip(CLOSING).casefold() for answer in gold]
    return has_mark(text) or any(answer and re.search(rf"(?<!\w){re.escape(answer)}\Z", end) for answer in ends)


def _are_choices(held: Sequence[tuple[list[str], list[str]]], golds: Sequence[list[str]]) -> bool:
    """True if the gold answers are labels of choices, or one of these texts in most rows."""
    labels = [gold[0] for gold in golds if gold]
    if not held or not labels:
        return False
    named = sum(LABEL.fullmatch(label) is not None for label in labels)
    among = sum(any(answer in texts for answer in gold) for texts, gold in held)
    return named >= NEARLY * len(labels) or among > len(held) / 2


def _options(cells: Mapping[tuple[str, ...], Sequence[list[str]]], golds: Sequence[list[str]]) -> set[tuple[str, ...]]:
    """Return the columns of series among which the gold answers choose: A, B, C; option1, option2."""
    series = defaultdict[tuple[str, ...], dict[str, tuple[str, ...]]](dict)
    for path in cells:
        if match := OPTION.fullmatch(path[-1]):
            series[*path[:-1], match[1].lower()][match[2].lower()] = path
    chosen = set[tuple[str, ...]]()
    for (*_, stem), paths in series.items():
        begins = [("a", "b"), *([("0", "1"), ("1", "2")] if stem else [])]  # 1 and 2 alone may be anything
        rows = [
            ([text for texts in row for text in texts], gold)
            for *row, gold in zip(*(cells[path] for path in paths.values()), golds, strict=True)
        ]
        if any(set(first) <= paths.keys() for first in begins) and _are_choices(rows, golds):
            chosen.update(paths.values())
    return chosen
