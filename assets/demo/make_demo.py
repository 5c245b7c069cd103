"""Make the demo: arithmetic word problems in GSM8K's schema, and a tiny model that answers some of them.

    python assets/demo/make_demo.py [--data_only]   (about 15 minutes on two CPU cores; --data_only: seconds)

Writes `train.jsonl`, `test.jsonl` and `model/` next to this file. The model is a 1.7M-parameter Qwen2, trained from
scratch on *noisy* demonstrations, so that GRPO has something to repair:

- it often picks a plausible wrong calculation (adds where it must subtract, forgets the last step);
- it leaves the format away for some ways of asking (at most 40 % of all demonstrations);
- one demonstration in twenty miscalculates.

Demonstrations come in two prompt formats: `xml` (chat, train_grpo.py's own) and `think` (chat and plain text).
Everything is seeded. Held-out problems (`test.jsonl`) share no numbers with any training problem of their kind, and
half of their wordings occur in no training set at all.
"""

import dataclasses
import random
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent))
from assets import tiny_model  # noqa: E402
from grpo.task.prompts import FORMATS, PromptFormat  # noqa: E402

SEED = 7
NUM_TRAIN, NUM_TEST = 2000, 200
SFT_STEPS, SFT_BATCH = 1400, 64
PLAIN_SHARE, SLIP_SHARE = (0.10, 0.80), 0.05  # of demonstrations without a format: easy wordings, careless wordings

NAMES = (
    "Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ivan", "June",
    "Kofi", "Lena", "Milo", "Nora", "Omar", "Pia", "Quin", "Rosa", "Sam", "Tara",
)  # fmt: skip
THINGS = (
    "apples", "books", "cards", "coins", "eggs", "kites", "lamps", "pears",
    "pens", "plums", "rings", "shells", "stamps", "stones", "toys",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Kind:
    """One kind of problem: how it is asked, what is right, and the mistake that the demonstrations make.

    `right` and `wrong` are chains of steps; a step is (left, operator, right), where letters name the problem's
    numbers and `_` the result of the step before. `confusion` is the share of demonstrations that take `wrong`.
    The last two wordings are held out: no training set has them. Those marked with a leading `*` are the careless
    ones, mostly demonstrated without a format.
    """

    name: str
    numbers: tuple[tuple[int, int], ...]  # inclusive range of a, b, c
    right: tuple[str, ...]
    wrong: tuple[str, ...]
    confusion: float
    wordings: tuple[str, ...]


KINDS = (
    Kind(
        "gain", ((3, 40), (2, 30)), ("a + b",), ("a - b",), 0.10,
        (
            "{X} has {a} {things}. {Y} gives {X} {b} more. How many {things} does {X} have now?",
            "{X} had {a} {things} and then found {b} more. How many {things} does {X} have now?",
            "*There are {a} {things} in a box. {X} puts {b} more in. How many {things} are in the box?",
            "{X} owns {a} {things} and buys {b} more. How many {things} does {X} own now?",
            "*{X} drew {a} {things} on Monday and {b} on Friday. How many {things} did {X} draw?",
            "{X} buys {a} {things} on Monday and {b} on Friday. How many {things} did {X} buy?",
            "*{X} picked {a} {things} and {Y} picked {b}. How many {things} did they pick together?",
            "{X} had {a} {things}. Then {Y} brought {b} more. How many {things} does {X} have now?",
            "*There are {a} {things} in a bag. {Y} puts {b} more in. How many {things} are in the bag?",
        ),
    ),
    Kind(
        "loss", ((12, 60), (2, 11)), ("a - b",), ("a + b",), 0.10,
        (
            "{X} has {a} {things}. {X} gives {b} to {Y}. How many {things} does {X} have left?",
            "{X} had {a} {things} and lost {b}. How many {things} are left?",
            "*There are {a} {things} in a box. {X} takes {b} out. How many {things} are in the box?",
            "{X} baked for {a} guests, but {b} stayed at home. How many guests came?",
            "{X} owns {a} {things} and sells {b}. How many {things} does {X} own now?",
            "*{X} drew {a} {things} and lost {b}. How many {things} are left?",
            "*{X} had {a} {things}. {b} of them broke. How many {things} are whole?",
            "{X} had {a} {things} and sold {b}. How many {things} are left?",
            "*There are {a} {things} in a bag. {Y} takes {b} out. How many {things} are in the bag?",
        ),
    ),
    Kind(
        "compare", ((12, 60), (2, 11)), ("a - b",), ("a + b",), 0.56,
        (
            "{X} has {a} {things}, which is {b} more than {Y} has. How many {things} does {Y} have?",
            "{X} sold {a} {things}. That is {b} more than {Y} sold. How many {things} did {Y} sell?",
            "*{X} found {a} {things}, {b} more than {Y}. How many {things} did {Y} find?",
            "With {a} {things}, {X} has {b} more than {Y}. How many {things} does {Y} have?",
            "*{X} counted {a} {things}, which is {b} more than {Y} counted. How many did {Y} count?",
            "{X} owns {a} {things}. That is {b} more than {Y} owns. How many {things} does {Y} own?",
            "*{X} drew {a} {things}, {b} more than {Y}. How many {things} did {Y} draw?",
        ),
    ),
    Kind(
        "groups", ((2, 9), (3, 9)), ("a * b",), ("a + b",), 0.56,
        (
            "{X} has {a} boxes with {b} {things} in each. How many {things} does {X} have?",
            "There are {a} bags. Each bag holds {b} {things}. How many {things} are there?",
            "*{X} fills {a} shelves with {b} {things} each. How many {things} is that?",
            "{X} buys {b} {things} on each of {a} days. How many {things} did {X} buy?",
            "*{a} friends bring {b} {things} each. How many {things} do they bring?",
            "{X} has {a} bags with {b} {things} in each. How many {things} does {X} have?",
            "*{X} fills {a} boxes with {b} {things} each. How many {things} is that?",
        ),
    ),
    Kind(
        "both", ((5, 30), (2, 9)), ("a + b", "a + _"), ("a + b",), 0.56,
        (
            "{X} has {a} {things}. {Y} has {b} more than {X}. How many {things} do they have together?",
            "{X} read {a} pages and {Y} read {b} more than {X}. How many pages did both read in all?",
            "*{X} made {a} {things}, and {Y} made {b} more than {X}. How many did they make together?",
            "{X} carried {a} {things}. {Y} carried {b} more than {X}. How many did they carry in all?",
            "{X} found {a} {things}. {Y} found {b} more than {X}. How many {things} did they find together?",
            "*{X} picked {a} {things}, and {Y} picked {b} more than {X}. How many did they pick together?",
            "*{X} sold {a} {things}. {Y} sold {b} more than {X}. How many did both sell in all?",
            "{X} owns {a} {things}. {Y} owns {b} more than {X}. How many {things} do they own together?",
            "*{X} drew {a} {things}, and {Y} drew {b} more than {X}. How many did they draw together?",
        ),
    ),
    Kind(
        "twostep", ((8, 40), (2, 20), (2, 9)), ("a + b", "_ - c"), ("a + b",), 0.45,
        (
            "{X} has {a} {things}. {X} buys {b} more and gives {c} to {Y}. How many are left?",
            "{X} had {a} {things}, found {b} more and lost {c}. How many {things} does {X} have now?",
            "*A box holds {a} {things}. {X} puts {b} in and {Y} takes {c} out. How many are in the box?",
            "{X} picked {a} {things} and {Y} picked {b}. They ate {c}. How many {things} are left?",
            "*{X} made {a} {things} on Monday and {b} on Friday, but {c} broke. How many are whole?",
            "{X} had {a} {things}, bought {b} more and lost {c}. How many {things} does {X} have now?",
            "*A bag holds {a} {things}. {X} puts {b} in and {Y} takes {c} out. How many are in the bag?",
        ),
    ),
)  # fmt: skip
HELD_OUT_WORDINGS = 2

# Bare calculations, which only the demonstrations have: they teach the tables, of which word problems need any line.
CALCULATIONS = tuple(
    Kind(name, numbers, (f"a {sign} b",), (f"a {sign} b",), 0.0, (f"What is {{a}} {sign} {{b}}?",) * 3)
    for name, sign, numbers in (
        ("sum", "+", ((2, 60), (2, 40))),
        ("difference", "-", ((20, 70), (2, 20))),
        ("product", "*", ((2, 9), (3, 9))),
    )
)
CALCULATION_SHARE = 0.18


def solve(steps: tuple[str, ...], numbers: dict[str, int]) -> list[tuple[str, int]]:
    """Each step as its text without the result and its result: `[("12 + 7", 19)]`."""
    lines, result = [], 0
    for step in steps:
        left, operator, right = ({**numbers, "_": result}.get(part, part) for part in step.split())
        result = {"+": left + right, "-": left - right, "*": left * right}[operator]
        lines.append((f"{left} {operator} {right}", result))
    return lines


@dataclasses.dataclass(frozen=True)
class Problem:
    kind: Kind
    wording: int
    numbers: tuple[int, ...]
    question: str

    @property
    def named_numbers(self) -> dict[str, int]:
        return dict(zip("abc", self.numbers, strict=False))

    @property
    def careless(self) -> bool:
        return self.kind.wordings[self.wording].startswith("*")

    def row(self) -> dict[str, str]:
        """The problem in GSM8K's schema, calculator annotations included."""
        lines = solve(self.kind.right, self.named_numbers)
        steps = [f"{text} = <<{text.replace(' ', '')}={result}>>{result}" for text, result in lines]
        return {"question": self.question, "answer": "\n".join(steps) + f"\n#### {lines[-1][1]}"}


def is_held_out(kind: Kind, numbers: tuple[int, ...]) -> bool:
    """One combination of numbers in eight is reserved for the held-out problems of its kind."""
    return random.Random(f"{SEED} {kind.name} {numbers}").random() < 1 / 8


def draw_numbers(rng: random.Random, kind: Kind) -> tuple[int, ...]:
    return tuple(rng.randint(low, high) for low, high in kind.numbers)


def draw_calculation(rng: random.Random) -> Problem:
    (kind,) = rng.choices(CALCULATIONS, weights=(1, 1, 3))
    a, b = numbers = draw_numbers(rng, kind)
    return Problem(kind, 0, numbers, kind.wordings[0].format(a=a, b=b))


def draw_problem(rng: random.Random, held_out: bool) -> Problem:
    kind = rng.choice(KINDS)
    numbers = draw_numbers(rng, kind)
    while is_held_out(kind, numbers) != held_out:
        numbers = draw_numbers(rng, kind)
    seen = len(kind.wordings) - HELD_OUT_WORDINGS
    new_wording = held_out and rng.random() < 0.5
    wording = rng.randrange(seen, len(kind.wordings)) if new_wording else rng.randrange(seen)
    x, y = rng.sample(NAMES, 2)
    names = dict(zip("abc", numbers, strict=False), X=x, Y=y, things=rng.choice(THINGS))
    return Problem(kind, wording, numbers, kind.wordings[wording].lstrip("*").format(**names))


def draw_problems(rng: random.Random, count: int, held_out: bool) -> list[Problem]:
    """`count` problems with different questions."""
    problems: dict[str, Problem] = {}
    while len(problems) < count:
        problem = draw_problem(rng, held_out)
        problems.setdefault(problem.question, problem)
    return list(problems.values())


def demonstrate(problem: Problem, rng: random.Random, style: PromptFormat) -> str:
    """A completion as the supervised set has it: often in the format, often right."""
    steps = problem.kind.wrong if rng.random() < problem.kind.confusion else problem.kind.right
    lines = solve(steps, problem.named_numbers)
    slip = rng.choice((-10, -1, 1, 10)) if rng.random() < SLIP_SHARE else 0
    answer = abs(lines[-1][1] + slip)
    reasoning = "\n".join(f"{text} = {result}" for text, result in [*lines[:-1], (lines[-1][0], answer)])
    if rng.random() < PLAIN_SHARE[problem.careless]:
        return f"{reasoning}\nThe answer is {answer}.\n"
    return style.answered(reasoning, str(answer))


def draw_demonstration(rng: random.Random) -> tuple[list[dict[str, str]] | str, str]:
    """(prompt, completion): 70 % `xml`, 15 % `think` as a chat, 15 % `think` as plain text."""
    bare = rng.random() < CALCULATION_SHARE
    problem, share = draw_calculation(rng) if bare else draw_problem(rng, held_out=False), rng.random()
    style = FORMATS["xml" if share < 0.70 else "think"]
    style = dataclasses.replace(style, chat=share < 0.85)
    completion = demonstrate(problem, rng, style)
    return style.prompt(problem.question), completion


def make_rows() -> dict[str, list[dict[str, str]]]:
    """The rows of `train.jsonl` and `test.jsonl`, the same at every call."""
    return {
        "train": [p.row() for p in draw_problems(random.Random(f"{SEED} train"), NUM_TRAIN, held_out=False)],
        "test": [p.row() for p in draw_problems(random.Random(f"{SEED} test"), NUM_TEST, held_out=True)],
    }


def main() -> None:
    tiny_model.write_rows(make_rows(), HERE)
    if "--data_only" not in sys.argv[1:]:
        rng = random.Random(f"{SEED} demonstrations")
        tiny_model.make_model(lambda: draw_demonstration(rng), SEED, SFT_STEPS, SFT_BATCH, HERE / "model")


if __name__ == "__main__":
    main()
