"""Make the countdown task: reach a number with given numbers, and a tiny model that mostly adds.

    python assets/countdown/make_countdown.py [--data_only]   (about 6 minutes on two CPU cores; --data_only: seconds)

Writes `train.jsonl`, `test.jsonl` and `model/` next to this file. No row has a gold answer: a program checks the
expression (examples/countdown.py). Problems are as small as the model: two numbers, and one operation that is right.
The model is the demo's, trained further on demonstrations with *bad habits*:

- where it must subtract, multiply or divide, it mostly adds;
- a few demonstrations use a number twice, and one in ten ignores the format.

So GRPO can teach it to look at the target. Everything is seeded. Held-out problems (`test.jsonl`) are in no training
set: neither in `train.jsonl` nor among the demonstrations.
"""

import functools
import itertools
import random
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent))
from assets import tiny_model  # noqa: E402
from grpo.task.prompts import FORMATS  # noqa: E402

SEED = 11
LARGEST_NUMBER, LARGEST_TARGET = 25, 50
NUM_TEST = 200
SFT_STEPS, SFT_BATCH = 350, 24
ADDS_SHARE = 0.58  # of demonstrations of problems that need another operation
TWICE_SHARE, PLAIN_SHARE = 0.03, 0.10

Problem = tuple[tuple[int, int], int]  # two numbers, and the target


def operations(a: int, b: int) -> list[tuple[int, str, int, int]]:
    """What two numbers make: (left, operator, right, value), the sum first; values are positive whole numbers."""
    results = [(a, "+", b, a + b), (a, "*", b, a * b)]
    for left, right in ((a, b), (b, a)):
        if left > right:
            results.append((left, "-", right, left - right))
        if right > 1 and left % right == 0:
            results.append((left, "/", right, left // right))
    return results


def split() -> tuple[list[Problem], list[Problem]]:
    """Every problem that can be solved, in random order: (held out, the others), the same at every call."""
    problems = [
        (numbers, target)
        for numbers in itertools.combinations_with_replacement(range(1, LARGEST_NUMBER + 1), 2)
        for target in sorted({value for *_, value in operations(*numbers) if value <= LARGEST_TARGET})
    ]
    random.Random(f"{SEED} split").shuffle(problems)
    return problems[:NUM_TEST], problems[NUM_TEST:]


def make_row(rng: random.Random, numbers: tuple[int, int], target: int) -> dict[str, Any]:
    """A problem as a row: its question and what the judge needs, the numbers in random order."""
    shown = rng.sample(numbers, 2)
    question = f"Use each of {shown[0]} and {shown[1]} exactly once, with + - * / and ( ), to make {target}."
    return {"question": question, "numbers": shown, "target": target}


def demonstrate(rng: random.Random, numbers: tuple[int, int], target: int) -> tuple[str, str]:
    """What is tried, worked out, and the answer: its expression."""
    if rng.random() < TWICE_SHARE:
        numbers = (numbers[1], numbers[1])
    known = operations(*numbers)
    right = [way for way in known if way[3] == target]
    left, sign, second, value = known[0] if not right or rng.random() < ADDS_SHARE else rng.choice(right)
    return f"{left} {sign} {second} = {value}", f"{left} {sign} {second}"


def draw_demonstration(rng: random.Random, problems: list[Problem]) -> tuple[list[dict[str, str]], str]:
    """(prompt, completion) in the prompt format `xml`."""
    style = FORMATS["xml"]
    row = make_row(rng, *rng.choice(problems))
    reasoning, answer = demonstrate(rng, (row["numbers"][0], row["numbers"][1]), row["target"])
    plain = rng.random() < PLAIN_SHARE
    completion = f"{reasoning}\nThe answer is {answer}.\n" if plain else style.answered(reasoning, answer)
    prompt = style.prompt(row["question"])
    assert not isinstance(prompt, str)
    return prompt, completion


def make_rows() -> dict[str, list[dict[str, Any]]]:
    """The rows of `train.jsonl` and `test.jsonl`, the same at every call."""
    rng = random.Random(f"{SEED} rows")
    held_out, others = split()
    return {
        "train": [make_row(rng, *problem) for problem in others],
        "test": [make_row(rng, *problem) for problem in held_out],
    }


def main() -> None:
    tiny_model.write_rows(make_rows(), HERE)
    if "--data_only" not in sys.argv[1:]:
        rng = random.Random(f"{SEED} demonstrations")
        draw = functools.partial(draw_demonstration, rng, split()[1])
        tiny_model.make_model(draw, SEED, SFT_STEPS, SFT_BATCH, HERE / "model", start=HERE.parent / "demo" / "model")


if __name__ == "__main__":
    main()
