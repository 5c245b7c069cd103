"""Is grading fair: exact_answers beside math-verify's `verify` on pairs whose verdict is known.

    python benchmarks/grading.py [FILE.jsonl …] [--solutions FILE.jsonl …]

The pairs are exact_answers/cases.txt and files with lines of `text`, `gold` and `right`. A false right pays a wrong
answer in training; a false wrong leaves a right one unpaid. Solutions are lines of `answer` that end in `#### n`: each
is graded in five forms against its own answer and the next one's, and once without its mark, as a model reasons.
"""

import argparse
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import common

from exact_answers import extract_answer, grade, is_right
from exact_answers.__main__ import math_verify
from grpo.core.errors import one_line
from grpo.core.text import listed

CASES = common.ROOT / "exact_answers" / "cases.txt"

FORMS = (
    "{solution}",
    "<reasoning>\nr\n</reasoning>\n<answer>\n{gold}\n</answer>\n",
    r"So it is $\boxed{{{gold}}}$.",
    "The answer is {gold}.",
    "{gold}",
)


class Pair(NamedTuple):
    text: str
    gold: str
    right: bool


def grading(options: argparse.Namespace) -> None:
    """Print one line for each source of pairs and each rule, then what solutions say."""
    sources = {"exact_answers/cases.txt": list(cases(CASES))}
    sources |= {path.name: [Pair(*row) for row in read(path, "text", "gold", "right")] for path in options.files}
    solutions = [answer for path in options.solutions for (answer,) in read(path, "answer")]
    judges: dict[str, Callable[[str, str], bool] | None] = {"ours": is_right, "math-verify": math_verify()}
    print("| pairs | | rule | false rights | false wrongs | seconds | longest |\n|---|---|---|---|---|---|---|")
    for source, pairs in sources.items():
        for rule, judge in judges.items():
            if judge is None:
                continue
            judge(r"\sqrt{2}", r"\frac{1}{2}")  # imports
            verdicts = [(each, *timed(judge, each)) for each in pairs]
            false = [each for each, verdict, _ in verdicts if verdict != each.right]
            rights = sum(not each.right for each in false)
            seconds = [spent for *_, spent in verdicts]
            figures = f"{rights} | {len(false) - rights} | {sum(seconds):.2f} | {max(seconds):.2f}"
            print(f"| {source} | {len(pairs)} | {rule} | {figures} |")
            if options.show and judge is is_right:
                print(*(f"{'false wrong' if each.right else 'FALSE RIGHT'}: {each}" for each in false), sep="\n")
    if solutions:
        of_solutions(solutions)


def of_solutions(solutions: list[str]) -> None:
    """Print how many solutions are right in each form, and how many have their neighbour's answer."""
    golds = [extract_answer(solution, "hash") for solution in solutions]
    own, others = Counter[str](), Counter[str]()
    reasons, start, size = Counter[str](), time.process_time(), 0
    for solution, gold, other in zip(solutions, golds, golds[1:] + golds[:1], strict=True):
        for form in FORMS:
            text = form.format(solution=solution, gold=gold)
            own[form] += is_right(text, gold)
            others[form] += float(gold) != float(other) and is_right(text, other)
        unmarked = re.sub(r"<<[^<>]*>>", "", solution.partition("####")[0]).strip()
        verdict = grade(unmarked, gold)
        reasons["right" if verdict.right else verdict.why] += 1
        size += len(unmarked)
    spent = time.process_time() - start
    print(f"\n{len(solutions)} solutions in {len(FORMS)} forms: {[own[form] for form in FORMS]} right,", end=" ")
    print(f"{sum(others.values())} with the next one's answer; {spent:.0f} s of a processor")
    shares = ", ".join(f"{reason} {count / len(solutions):.1%}" for reason, count in reasons.most_common())
    print(f"as reasoning without a mark ({size / len(solutions):.0f} characters): {shares}")


def timed(judge: Callable[[str, str], bool], pair: Pair) -> tuple[bool, float]:
    """The verdict on a pair, and the seconds of a processor that it took."""
    start = time.process_time()
    return judge(pair.text, pair.gold), time.process_time() - start


def read(path: Path, *fields: str) -> list[list[Any]]:
    """The values of these fields in each line of a file."""
    with one_line(f"{path}: ", f" (each line needs {listed(fields)})", (OSError, ValueError, LookupError, TypeError)):
        lines = path.read_bytes().split(b"\n")  # not splitlines: a text may contain U+2028
        rows = [json.loads(line, strict=False) for line in lines if line.strip()]
        return [[row[field] for field in fields] for row in rows]


def cases(path: Path) -> Iterator[Pair]:
    """The pairs of our own table: a gold answer after =, right texts after + and wrong ones after -."""
    gold = ""
    for line in path.read_text("utf-8").split("\n"):
        if line.startswith("="):
            gold = line[2:]
        elif line.startswith(("+", "-")):
            yield Pair(re.sub(" ?⏎ ?", "\n", line[2:]), gold, line[0] == "+")


def main(argv: list[str] | None = None) -> int:
    parser = common.parser(__doc__)
    parser.add_argument("files", nargs="*", type=Path, help="lines of text, gold, right")
    parser.add_argument("--solutions", nargs="*", type=Path, default=[], help="lines of answer, such as GSM8K's")
    parser.add_argument("--show", action="store_true", help="print each false verdict of ours")
    return common.main(grading, parser, argv)


if __name__ == "__main__":
    sys.exit(main())
