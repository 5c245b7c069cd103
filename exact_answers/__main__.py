"""Grade a file: python -m exact_answers FILE.jsonl

Each line is an object with a text (`text` or `completion`) and its gold answer (`gold` or `answer`: a text, a number
or a list of alternatives). Prints the shares of right and wrong answers with the reasons and, where math-verify is
installed, the rows on which it differs.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from exact_answers.marks import check_pattern
from exact_answers.reward import text_of
from exact_answers.verdict import Verdict, grade_any

SHOWN = 20  # rows on which math-verify differs


class Row(NamedTuple):
    text: str
    golds: list[str]


class Parser(argparse.ArgumentParser):
    """Prints errors, which quote arguments, like everything else."""

    def error(self, message: str) -> NoReturn:
        super().error(printable(message))


def main(argv: list[str] | None = None) -> int:
    """Print the table; return 2 for a file that cannot be graded."""
    parser = Parser(
        "python -m exact_answers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, metavar="FILE.jsonl")
    parser.add_argument(
        "--pattern", default="xml", help="where an answer is: xml, boxed, hash, final, text, a template"
    )
    parser.add_argument("--accept-uncomputed", action="store_true", help="accept 48 + 24 for 72, as math-verify does")
    parser.add_argument("--wrong", action="store_true", help="print each row that is not right")
    options = parser.parse_args(argv)
    try:
        check_pattern(options.pattern)
        rows = list(read(options.file))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        print(printable(f"error: {options.file}: {error}"), file=sys.stderr)
        return 2
    computed = not options.accept_uncomputed
    verdicts = [grade_any(row.text, row.golds, options.pattern, computed=computed) for row in rows]
    for line in summary(verdicts):
        print(line)
    if options.wrong:
        for row, verdict in zip(rows, verdicts, strict=True):
            if not verdict.right:
                print(f"{verdict.why}: read {shorten(verdict.read)}, gold {printable(' or '.join(row.golds))}")
    compare(rows, verdicts)
    return 0


def read(path: Path) -> Iterator[Row]:
    """Read the rows of a file.

    Raises:
        ValueError: a line is no object, or has no text or gold answer.
    """
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):  # a text may contain U+2028
        if not line.strip():
            continue
        try:
            row = json.loads(line, strict=False)  # with control characters, too
        except (ValueError, RecursionError) as error:
            raise ValueError(f"line {number} is not JSON: {error}") from None
        text, gold = (_field(row, names) for names in (("text", "completion"), ("gold", "answer")))
        if isinstance(text, list):  # messages
            try:
                text = text_of(text)
            except TypeError:
                text = None
        golds = gold if isinstance(gold, list) else [gold]
        if not golds or not all(isinstance(each, str | int | float) for each in [text, *golds]):
            needed = "text or completion (a text or messages), and gold or answer (a text, a number or a list of them)"
            raise ValueError(f"line {number} needs {needed}")
        yield Row(str(text), list(map(str, golds)))


def _field(row: Any, names: tuple[str, ...]) -> Any:
    return next((row[name] for name in names if name in row), None) if isinstance(row, dict) else None


def summary(verdicts: list[Verdict]) -> Iterator[str]:
    """Yield the lines of the table."""
    size = len(verdicts)
    if not size:
        yield "no rows"
        return
    right = sum(verdict.right for verdict in verdicts)
    yield f"right: {right} of {size} ({right / size:.1%})"
    for why, count in Counter(verdict.why for verdict in verdicts if not verdict.right).most_common():
        yield f"wrong, {why}: {count} ({count / size:.1%})"


def compare(rows: list[Row], verdicts: list[Verdict]) -> None:
    """Print the rows on which math-verify differs, where it is installed."""
    judge = math_verify()
    if judge is None:
        print("math-verify is not installed: no comparison")
        return
    others = [any(judge(row.text, gold) for gold in row.golds) for row in rows]
    differing = [place for place, other in enumerate(others) if other != verdicts[place].right]
    print(f"math-verify: {sum(others)} right, differs on {len(differing)}")
    for place in differing[:SHOWN]:
        row, verdict = rows[place], verdicts[place]
        here, there = ("right", "wrong") if verdict.right else ("wrong", "right")
        gold = printable(row.golds[0])
        print(f"  row {place + 1}: {here} here ({verdict.why}), {there} there: {shorten(row.text)} | {gold}")
    if len(differing) > SHOWN:
        print(f"  … and {len(differing) - SHOWN} more")


def math_verify() -> Callable[[str, str], bool] | None:
    """Return math-verify's verdict with its defaults, also with added dollar signs; None if it is not installed."""
    try:
        from math_verify import parse, verify
    except ImportError:
        return None
    import logging

    logging.disable(logging.ERROR)

    def judge(text: str, gold: str) -> bool:
        answer, wanted = (side if "$" in side or "\\boxed" in side else f"${side}$" for side in (text, gold))
        return bool(verify(parse(wanted), parse(answer)) or verify(parse(wanted), parse(text)))

    return judge


def printable(text: str) -> str:
    r"""Escape the characters of a text that are not printable, so that they do not reach the terminal.

    >>> print(printable("\x1b[31mred\u202e"))
    \x1b[31mred\u202e
    """
    return "".join(sign if sign.isprintable() else repr(sign)[1:-1] for sign in text)


def shorten(text: str, width: int = 70) -> str:
    """Return a text on one line, its end if it is long."""
    line = " ".join(text.split())
    return repr(line if len(line) <= width else f"…{line[-width:]}")


if __name__ == "__main__":
    sys.exit(main())
