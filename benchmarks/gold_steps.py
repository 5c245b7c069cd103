"""How many of GSM8K's own solutions the step-verified reward confirms, and rejects once a digit is changed.

    python benchmarks/gold_steps.py FILE.jsonl

A row is verified where all of its lines with annotations (`<<48/2=24>>`) are; it is caught where each of these lines
loses its credit once a digit of one of its results is another one: in the annotation, right after it, or in both.
"""

import json
import random
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from grpo.rewarding.arithmetic import is_verified

RESULT = re.compile(r"=([^=<>]*)>>( ?-?\$?[0-9][0-9,.]*[0-9]|[0-9])?")
DIGITS = "0123456789"


def annotated_lines(solution: str) -> list[str]:
    return [line for line in solution.splitlines() if "<<" in line]


def tampered(line: str, rng: random.Random) -> Iterator[str]:
    """The line with one digit of one of its results changed: in the annotation, in the number after it, in both."""
    found = rng.choice(list(RESULT.finditer(line)))

    def changed(*groups: int) -> str:
        text = line
        for group in sorted(groups, reverse=True):
            digits = [place for place in range(*found.span(group)) if line[place] in DIGITS]
            place = digits[position % len(digits)]
            text = text[:place] + digit(line[place]) + text[place + 1 :]
        return text

    position, step = rng.randrange(20), rng.randrange(1, 10)

    def digit(old: str) -> str:
        return str((int(old) + step) % 10)

    yield changed(1)
    if found[2]:
        yield changed(2)
        yield changed(1, 2)


def measure(solutions: list[str], seed: int = 0) -> dict[str, float]:
    """Of the solutions with annotations: shares of rows verified and caught, counts, and time per line."""
    rng = random.Random(seed)
    rows = [lines for solution in solutions if (lines := annotated_lines(solution))]
    start = time.process_time()
    verified = [all(list(map(is_verified, lines))) for lines in rows]
    seconds = time.process_time() - start
    caught = [not any(is_verified(other) for line in lines for other in tampered(line, rng)) for lines in rows]
    lines = sum(map(len, rows))
    return {
        "rows": len(rows),
        "lines": lines,
        "annotations": sum(line.count("<<") for lines in rows for line in lines),
        "verified": sum(verified) / len(rows),
        "caught": sum(caught) / len(rows),
        "microseconds": 1e6 * seconds / lines,
    }


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    with open(sys.argv[1], encoding="utf-8") as file:
        found = measure([json.loads(line)["answer"] for line in file])
    print(f"{found['rows']} rows with annotations, {found['lines']} such lines, {found['annotations']} annotations")
    print(f"all annotated lines verified: {found['verified']:.2%} of the rows")
    print(f"each line's credit lost when one digit of a result is changed: {found['caught']:.2%} of the rows")
    print(f"{found['microseconds']:.0f} microseconds a line, each for the first time")


if __name__ == "__main__":
    main()
