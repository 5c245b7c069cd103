r"""Try the gold answers on what judges completions: given back, each must be right.

A gold answer is given back in the run's format, and bare. If it reads badly (`['6', '6 pens']`, `A. 1`, a sentence),
what a completion would say is given back, too: `6`, `A`, or what the lenient rule reads in it.
"""

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from exact_answers import grade
from exact_answers.marks import find_answer
from exact_answers.verdict import kind_of
from grpo.core.errors import USERS_ERRORS
from grpo.core.text import counted, shorten
from grpo.task.gold import alternatives
from grpo.task.task import Task
from grpo.task.wrong import rewritten_json
from rewards import is_gold

MOST, SECONDS = 1000, 5.0  # different gold answers, and seconds for them
# A letter or number with its choice: `A. 1`, `[A] 1`, `A - iron`, `1. iron`, `option A`
CHOICE = re.compile(
    r"(?:(?:option|choice)\s+)?[(\[]?([A-Za-z]|[0-9]{1,2}(?=.*[^\W\d_]))(?:[.):\]]+\s+|\s+[-\u2013\u2014]\s+)\S.*"
    r"|(?:option|choice)\s+[(\[]?([A-Za-z0-9])\b[.)\]]*",
    re.IGNORECASE | re.DOTALL,
)
INITIAL = re.compile(r"[A-Z]\. [^\W\d_]")  # E. coli; a choice if the question has choices
OFFERED = re.compile(r"(?:^|[\s(\[])([A-J])[.):\]]\s")  # a choice in a question
LIST = re.compile(r"[\[({]\s*(['\"]).*['\"],?\s*[\])}]", re.DOTALL)  # a list as text
ITEM = re.compile(r"'([^']*)'|\"([^\"]*)\"")  # of it
YES = re.compile(r"(yes|no|true|false)(?:[,;]|\.(?=\s+\D))\s+\S.*", re.IGNORECASE | re.DOTALL)
SENTENCE = re.compile(r"\S+ .*\b[a-z]{2,}\b.*(?:[^\W\d_]{3,}|[0-9\"')])[.!]", re.DOTALL)  # not `at 10 p.m.`
# Words in front of an answer
STATED = re.compile(
    r"(?:\b(?:is|are|was|were|has|have|had|equals?:?|[Aa]nswer:?|[Rr]esult:?)|=|\b(?:[Aa]bout|[Aa]round|[Rr]oughly"
    r"|[Aa]pproximately|[Aa]pprox\.|[Aa]lmost|[Nn]early))[\s\"'$]*\Z"
)
BARRED = re.compile(r"[(\[{][^)\]}]*\|")  # P(A|B)
LONG = 80  # characters from which a text is none that a completion repeats word for word
COMPLEMENT = re.compile(r".*\b(?:is|are|was|were)\s+(\S[^.!]*)[.!]?", re.DOTALL)  # what a sentence says of its subject
ANOTHER = "1234567.7654321"  # a gold answer that no text claims
WORD_FOR_WORD = ""  # instead of what is given back


class Refused(NamedTuple):
    """Gold answers that are wrong when they are given back.

    Attributes:
        rows: the number of rows with one, of those that were tried.
        tried: the number of rows that were tried.
        examples: up to three gold answers, each with what was given back.
    """

    rows: int
    tried: int
    examples: dict[str, str]

    @property
    def share(self) -> float:
        """Their share of the rows that were tried."""
        return self.rows / max(self.tried, 1)

    def __str__(self) -> str:
        """Say it in a sentence's words.

        >>> print(Refused(1, 80, {"x = 1\\ny = 2": ""}))
        1 of 80 gold answers is not accepted as completions give it: "x = 1 y = 2" (accepted only word for word)
        """
        shown = [
            f'"{shorten(gold, 40)}" (accepted only word for word)'
            if given == WORD_FOR_WORD
            else f'"{shorten(gold, 40)}" itself'
            if given == gold
            else f'"{shorten(given, 40)}" for "{shorten(gold, 40)}"'
            for gold, given in self.examples.items()
        ]
        verb = (
            "is not accepted as completions give it" if self.rows == 1 else "are not accepted as completions give them"
        )
        return f"{self.rows:,} of {counted(self.tried, 'gold answer')} {verb}: {', '.join(shown)}"


def try_golds(task: Task, rows: Sequence[Mapping[str, Any]], exact: bool = False) -> Refused:
    """Give back the gold answers of these rows to the run's judge.

    At most MOST different ones are tried, and at most for SECONDS: the user's judge may be slow. Where it raises,
    nothing is said here; nor where the user's judge accepts none, since it judges by something else.

    Args:
        rows: with the gold `answer`; a `question` shows whether it has choices.
        exact: True if a reward compares answers character by character.
    """
    outcomes, refused, tried, begun = dict[Any, str | None](), dict[str, str](), 0, time.monotonic()
    said, count = _said_by_column(rows), 0
    for row in rows:
        golds = alternatives(row.get("answer"))
        if not golds:
            continue
        key = tuple(golds) if task.judge is None else len(outcomes)
        if key not in outcomes:
            if len(outcomes) >= MOST or time.monotonic() - begun > SECONDS:
                continue
            outcomes[key] = _refused(task, row, golds, exact, said)
        tried += 1
        if (given := outcomes[key]) is not None:
            count += 1
            if len(refused) < 3:
                refused.setdefault(golds[0], given)
    if task.judge and count == tried > 1:
        return Refused(0, tried, {})
    return Refused(count, tried, refused)


def _refused(
    task: Task, row: Mapping[str, Any], golds: Sequence[str], exact: bool, said: Mapping[str, str]
) -> str | None:
    """Return what is wrong when it is given back for a row; None if one alternative is right in each way."""
    first = None
    for gold in golds:
        ways = [gold, *(_said(gold, said) if task.judge is None else ())]
        wrong = next((way for way in ways if way == WORD_FOR_WORD or not _is_right(task, way, row, gold, exact)), None)
        if wrong is None:
            return None
        first = wrong if first is None else first
    return first


def _is_right(task: Task, given: str, row: Mapping[str, Any], gold: str, exact: bool) -> bool:
    texts = [task.perfect("", given), given] if task.judge is None else [task.perfect("", given)]
    try:
        right = all(task.verdict(text, row).lenient for text in texts)
    except USERS_ERRORS:
        return True
    return right and not (exact and given == gold and not is_gold(task.answer(texts[0]), gold))


def _said(gold: str, by_column: Mapping[str, str]) -> Iterator[str]:
    """Yield what a completion would say for a gold answer that reads badly: a part, or what the rule reads in it."""
    if gold in by_column:
        yield by_column[gold]
    elif LIST.fullmatch(gold):
        items = ["".join(item) for item in ITEM.findall(gold)]
        # alternatives, one within another; else it may be JSON, or what a program prints; NumPy writes no commas
        if "' '" in gold or any(part != item and f" {part} " in f" {item} " for part in items for item in items):
            yield from items
    elif "|" in gold.strip("|") and kind_of(gold) == "text" and "\n" not in gold and not BARRED.search(gold):
        yield from filter(None, map(str.strip, gold.split("|")))
    elif "\n" in gold:
        if not (rewritten_json(gold) or any(find_answer(gold, mark) for mark in ("boxed", "final", "xml"))):
            yield WORD_FOR_WORD
    elif yes := YES.fullmatch(gold):
        yield yes[1]
    elif kind_of(gold) == "text":
        number = grade(gold, ANOTHER, "text").read
        number = number if number != gold else ""
        stated = COMPLEMENT.fullmatch(gold)
        text = stated[1] if stated else ""
        is_sentence = SENTENCE.fullmatch(gold)
        if not (number and (is_sentence or STATED.search(gold.rpartition(number)[0]))):
            number = ""
        if not is_sentence:
            text = ""
        if number or text:
            yield from (
                [] if any(grade(said, gold, "text").right for said in (number, text) if said) else [number or text]
            )
        elif len(gold) > LONG and not grade(f"The answer is {gold}.", gold).right:
            yield WORD_FOR_WORD


def _said_by_column(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return what completions would say for gold answers that most others are like.

    These are letters or numbers with their choices, if there are several, from A, 0 or 1 on; and objects as Python
    writes them, which may be what programs print where others differ.
    """
    golds, choices = set[str](), dict[str, str]()
    for row in rows[:MOST]:
        for gold in alternatives(row.get("answer"))[:1]:
            golds.add(gold)
            if (choice := CHOICE.fullmatch(gold)) and (
                not INITIAL.match(gold) or len(set(OFFERED.findall(str(row.get("question", ""))))) > 1
            ):
                choices[gold] = choice[1] or choice[2]
    signs = {sign.upper() for sign in choices.values()}
    series = ["ABCDEFGHIJ"[: len(signs)], *("0123456789"[first : first + len(signs)] for first in (0, 1))]
    if len(choices) > len(golds) / 2 and signs in map(set, series) and len(signs) > (2 if "1" in signs else 1):
        return choices
    objects = [gold for gold in golds if gold.startswith("{'") and "':" in gold]
    return dict.fromkeys(objects if len(objects) >= len(golds) / 2 else (), WORD_FOR_WORD)
