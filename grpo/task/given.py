"""Answers as a policy gives them: how each was read, how often each is given, and whether it is one for everything."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from exact_answers.marks import find_answer
from grpo.core.text import shorten
from grpo.task.gold import alternatives
from rewards import Gold

# Shares. One answer stands for everything if it is NEARLY_ALL of the answers, and less than MOSTLY of the gold answers
NEARLY_ALL, MOSTLY = 0.9, 0.75
REPEATS = 0.05  # least share of the most frequent gold answer where gold answers repeat, as labels do
QUESTIONS = 12  # the fewest that show one answer for everything
SHOWN = 8  # answers in a distribution
FREQUENT, CLIPPED = 3, 200  # answers that a tally keeps, and characters of each
WHOLE = "the whole completion"

Answers = Sequence[str]  # answers to questions, in their order


def how_read(text: str, read: str, pattern: str, judged: str | None = None) -> str:
    """Say which answer was read from a completion: the answer, which may be all of it, or that nothing marks one.

    Args:
        judged: what the lenient rule read, which is shown if nothing marks the answer.

    >>> how_read("So it is\\n<answer>7</answer>", "7", "xml"), how_read("billing", "billing", "text")
    ('7', 'billing')
    >>> how_read("It is 7", "It is 7", "xml"), how_read("<answer></answer>", "", "xml")
    ('the whole completion, as nothing marks the answer', 'nothing')
    >>> how_read("So it is 7 in all", "So it is 7 in all", "xml", "7")
    '7, as nothing marks the answer'
    """
    if not read:
        return "nothing"
    if read != text.strip() or (pattern != "text" and find_answer(text, pattern) is not None):
        return read
    if pattern == "text":
        return read
    return f"{judged if judged and len(judged) < len(text.strip()) else WHOLE}, as nothing marks the answer"


def same_text(answer: str) -> str:
    """Return what answers have in common that are counted as one: no case, redundant spaces or final full stop."""
    return " ".join(answer.split()).casefold().rstrip(".")


class Share(NamedTuple):
    """An answer, as it is first written, with its share of the gold answers and of each evaluation, in [0, 1].

    With `others` above 0 it is that of so many other answers together, which nobody can give.
    """

    answer: str
    gold: float
    given: dict[str, float]
    others: int = 0


def repeat(golds: Sequence[Gold | None]) -> bool:
    """True if few gold answers stand for many rows, as labels do.

    >>> repeat(["A", "B", "C", "A", "C", "A"]), repeat(["1", "2", "3", "4"]), repeat(["A", None])
    (True, False, False)
    """
    if None in golds or not golds:
        return False
    counts = Counter(same_text(alternatives(gold)[0]) for gold in golds)
    most = max(counts.values())
    return most > 2 and most >= REPEATS * len(golds) and 1 < len(counts) <= len(golds) / 2


def _first_alternatives(golds: Iterable[Gold | None]) -> dict[str, str]:
    """Return the first alternative of each gold answer by `same_text` of all its alternatives."""
    return {same_text(alternative): alternatives(gold)[0] for gold in golds for alternative in alternatives(gold)}


def distribution(golds: Sequence[Gold], given: Mapping[str, Answers] | None = None) -> list[Share]:
    """Return the shares of the most frequent answers, first those of the gold answers; the last is that of all others.

    Args:
        given: the answers of each evaluation to the same questions, by its name.

    >>> distribution(["A", "B", "A"], {"after": ["a.", "A", "C"]})[0]
    Share(answer='A', gold=0.6666666666666666, given={'after': 0.6666666666666666}, others=0)
    """
    written: dict[str, str] = {}
    first = _first_alternatives(golds)

    def counted(answers: Iterable[str]) -> Counter[str]:
        keys = Counter[str]()
        for answer in answers:
            answer = first.get(same_text(answer), answer)
            written.setdefault(same_text(answer), " ".join(answer.split()))
            keys[same_text(answer)] += 1
        return keys

    of_golds = counted(alternatives(gold)[0] for gold in golds)
    by_name = {name: counted(answers) for name, answers in (given or {}).items()}
    of_answers = sum(by_name.values(), Counter[str]())
    ranked = sorted(written, key=lambda key: (-of_golds[key], -of_answers[key]))
    if len(ranked) > SHOWN:  # frequent answers that are no gold answers are shown, too
        frequent = sorted(
            ranked, key=lambda key: -max(of_golds[key], *(counts[key] for counts in by_name.values()), 0)
        )
        frequent = [ranked[0], *(key for key in frequent if key != ranked[0])]  # the most frequent gold answer first
        ranked = [key for key in ranked if key in frequent[: SHOWN - 1]]
    size = len(golds)
    shares = [
        Share(written[key], of_golds[key] / size, {name: counts[key] / size for name, counts in by_name.items()})
        for key in ranked
    ]
    if others := len(written) - len(ranked):
        rest = {name: 1 - sum(share.given[name] for share in shares) for name in by_name}
        shares.append(Share(f"{others} others", 1 - sum(share.gold for share in shares), rest, others))
    return shares


def tally(given: Answers, golds: Sequence[Gold | None], group: int = 1) -> dict[str, Any] | None:
    """Count answers and gold answers, for `one_answer` and JSON; None if a question has no gold answer.

    Args:
        group: how often each question occurs.
    """
    if not given or None in golds:
        return None
    first = _first_alternatives(golds)
    answers = Counter(first.get(same_text(answer), " ".join(answer.split()))[:CLIPPED] for answer in given)
    frequent = dict(answers.most_common(FREQUENT))
    counted = Counter(alternatives(gold)[0][:CLIPPED] for gold in golds)
    return {"answers": frequent, "golds": dict(counted), "size": len(given), "questions": len(given) // group}


class OneAnswer(NamedTuple):
    """The most frequent answer, and its shares of the given answers and of the gold answers, in [0, 1]."""

    answer: str
    given: float
    gold: float
    most: float  # the share of the most frequent gold answer
    questions: int

    def __str__(self) -> str:
        """Say it in a sentence's words.

        >>> print(OneAnswer("billing", 0.97, 0.2, 0.2, 60))
        97 % of the answers are "billing", the gold answer of 20 % of the questions
        """
        given, gold = (f"{100 * share:.0f} %" for share in (self.given, self.gold))
        answer = f'"{shorten(self.answer, 60)}"' if self.answer else "empty"
        return f"{given} of the answers are {answer}, the gold answer of {gold} of the questions"

    @property
    def for_everything(self) -> bool:
        """True if a policy gives one answer to nearly everything, and the gold answers do not."""
        enough = self.questions >= QUESTIONS
        return enough and self.given >= NEARLY_ALL and self.gold < MOSTLY and self.most < NEARLY_ALL


def one_answer(tallies: Sequence[dict[str, Any] | None]) -> OneAnswer | None:
    """Return the most frequent of all answers that were counted; None if some could not be counted.

    >>> one_answer([tally(["A", "a", "B"], ["A", "B", "B"])])
    OneAnswer(answer='A', given=0.6666666666666666, gold=0.3333333333333333, most=0.6666666666666666, questions=3)
    """
    counted = [counts for counts in tallies if counts]
    if not counted or len(counted) < len(tallies):
        return None
    answers, golds, written = Counter[str](), Counter[str](), dict[str, str]()
    for sums, name in ((answers, "answers"), (golds, "golds")):
        for text, count in (item for counts in counted for item in counts[name].items()):
            sums[same_text(text)] += count
            written[same_text(text)] = text  # as the gold answer is written, if it is one
    size, ((key, count), *_) = sum(counts["size"] for counts in counted), answers.most_common(1)
    most, questions = max(golds.values()) / size, sum(counts["questions"] for counts in counted)
    return OneAnswer(written[key], count / size, golds[key] / size, most, questions)
