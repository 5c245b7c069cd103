r"""Try the gold answers on what judges completions: given back, each must be right.

A gold answer is given back in the run's format, and bare. If it reads badly (`['6', '6 pens']`, `A. 1`, a sentence),
so is what the lenient rule reads in it, as a completion would say it: `6`, `A`.
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
CHOICE = re.compile(r"\(?([A-J])[.):]\s+\S.*", re.DOTALL)  # a letter with its choice
LIST = re.compile(r"[\[({]\s*(['\"]).*['\"],?\s*[\])}]", re.DOTALL)  # a list as text
ITEM = re.compile(r"'([^']*)'|\"([^\"]*)\"")  # of it
LONG = 80  # characters from which a text is none that a completion repeats word for word
ANOTHER = "1234567.7654321", "\N{REPLACEMENT CHARACTER}"  # gold answers that no text claims: a number, a text
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

        >>> print(Refused(2, 80, {"A. 1": "A", "x = 1\\ny = 2": ""}))
        2 of 80 gold answers are not accepted as completions give them: "A" for "A. 1", "x = 1 y = 2" but word for word
        """
        shown = [
            f'"{shorten(gold, 40)}" but word for word'
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
    nothing is said here.

    Args:
        exact: True if a reward compares answers character by character.
    """
    known, refused, tried, begun = dict[Any, str | None](), dict[str, str](), 0, time.monotonic()
    wrong = _count_choices(rows)
    count = 0
    for row in rows:
        golds = alternatives(row.get("answer"))
        if not golds:
            continue
        key = tuple(golds) if task.judge is None else len(known)
        if key not in known:
            if len(known) >= MOST or time.monotonic() - begun > SECONDS:
                continue
            known[key] = _refused(task, row, golds, exact, wrong)
        tried += 1
        if (given := known[key]) is not None:
            count += 1
            if len(refused) < 3:
                refused.setdefault(golds[0], given)
    return Refused(count, tried, refused)


def _refused(task: Task, row: Mapping[str, Any], golds: Sequence[str], exact: bool, choices: bool) -> str | None:
    """Return what is wrong when it is given back for a row; None if one alternative is right in each way."""
    first = None
    for gold in golds:
        ways = [gold, *(_said(gold, choices) if task.judge is None else ())]
        wrong = next((way for way in ways if way == WORD_FOR_WORD or not _is_right(task, way, row, gold, exact)), None)
        if wrong is None:
            return None
        first = wrong if first is None else first
    return first


def _is_right(task: Task, given: str, row: Mapping[str, Any], gold: str, exact: bool) -> bool:
    texts = [task.perfect("", given), given] if task.judge is None else [task.perfect("", given)]
    try:
        right = all(task.verdict(text, row) for text in texts)
    except USERS_ERRORS:
        return True
    return right and not (exact and given == gold and not is_gold(task.answer(texts[0]), gold))


def _said(gold: str, choices: bool) -> Iterator[str]:
    """Yield what a completion would say for a gold answer that reads badly: a part, or what the rule reads in it."""
    if choices and (choice := CHOICE.fullmatch(gold)):
        yield choice[1]
    elif gold.startswith("{'") and "':" in gold:  # an object as Python writes it
        yield WORD_FOR_WORD
    elif LIST.fullmatch(gold):
        items = ["".join(item) for item in ITEM.findall(gold)]
        if "'" in gold or any(one != two and one in two for one in items for two in items):  # else it may be JSON
            yield from items
    elif "|" in gold.strip("|") and kind_of(gold) == "text" and "\n" not in gold:
        yield from filter(None, map(str.strip, gold.split("|")))
    elif "\n" in gold:
        if not (rewritten_json(gold) or any(find_answer(gold, mark) for mark in ("boxed", "final", "xml"))):
            yield WORD_FOR_WORD
    elif kind_of(gold) == "text" and not grade(f"The answer is {gold}.", gold).right:
        said = [text for other in ANOTHER if (text := grade(gold, other, "text").read) and text != gold]
        said = [text for text in said if kind_of(text) != "text" or len(text) == 1 or gold.endswith(".")]
        if said and not any(grade(text, gold, "text").right for text in said):
            yield said[0]
        elif len(gold) > LONG and not said:
            yield WORD_FOR_WORD


def _count_choices(rows: Sequence[Mapping[str, Any]]) -> bool:
    """True if most gold answers are a letter with its choice, such as `A. 1`, and the letters differ."""
    golds = [gold for row in rows[:MOST] for gold in alternatives(row.get("answer"))[:1]]
    letters = [choice[1] for gold in golds if (choice := CHOICE.fullmatch(gold))]
    return len(letters) > len(golds) / 2 and len(set(letters)) > 1
