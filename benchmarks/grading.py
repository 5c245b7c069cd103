"""Is grading fair: our lenient rule beside math-verify's `verify` on pairs whose verdict is known.

    python benchmarks/grading.py [FILE.jsonl …]

The pairs are exact_answers/cases.txt and files with lines of `text`, `gold` and `right`. A false right pays a wrong
answer in training; a false wrong leaves a right one unpaid.
"""

import argparse
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from grpo.task import is_right  # noqa: E402


class Pair(NamedTuple):
    text: str
    gold: str
    right: bool


def main() -> None:
    """Print one line for each source of pairs and each rule."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, help="lines of text, gold, right")
    parser.add_argument("--show", action="store_true", help="print each false verdict of ours")
    options = parser.parse_args()
    sources = {"exact_answers/cases.txt": list(table(ROOT / "tests/data/answers.txt"))}
    sources |= {path.name: [pair(line) for line in path.read_text("utf-8").splitlines()] for path in options.files}
    print("| pairs | | rule | false rights | false wrongs | seconds | longest |\n|---|---|---|---|---|---|---|")
    for source, pairs in sources.items():
        for rule, judge in (("ours", is_right), ("math-verify", math_verify)):
            judge(r"\sqrt{2}", r"\frac{1}{2}")  # imports
            verdicts = [(each, *timed(judge, each)) for each in pairs]
            false = [each for each, verdict, _ in verdicts if verdict != each.right]
            rights = sum(not each.right for each in false)
            seconds = [spent for *_, spent in verdicts]
            figures = f"{rights} | {len(false) - rights} | {sum(seconds):.2f} | {max(seconds):.2f}"
            print(f"| {source} | {len(pairs)} | {rule} | {figures} |")
            if options.show and judge is is_right:
                print(*(f"{'false wrong' if each.right else 'FALSE RIGHT'}: {each}" for each in false), sep="\n")


def timed(judge: Callable[[str, str], bool], pair: Pair) -> tuple[bool, float]:
    """The verdict on a pair, and the seconds that it took."""
    start = time.perf_counter()
    return judge(pair.text, pair.gold), time.perf_counter() - start


def math_verify(text: str, gold: str) -> bool:
    """The verdict of math-verify with its defaults, also with added dollar signs, between which it looks for LaTeX."""
    from math_verify import parse, verify

    logging.disable(logging.ERROR)
    answer, wanted = (side if "$" in side or "\\boxed" in side else f"${side}$" for side in (text, gold))
    return verify(parse(wanted), parse(answer)) or verify(parse(wanted), parse(text))


def pair(line: str) -> Pair:
    """A pair of a line of JSON."""
    row = json.loads(line)
    return Pair(row["text"], row["gold"], row["right"])


def table(path: Path) -> Iterator[Pair]:
    """The pairs of our own table: a gold answer after =, right texts after + and wrong ones after -."""
    gold = ""
    for line in path.read_text("utf-8").splitlines():
        if line.startswith("="):
            gold = line[2:]
        elif line.startswith(("+", "-")):
            yield Pair(line[2:], gold, line[0] == "+")


if __name__ == "__main__":
    main()
