"""Make two tasks with short answers, tickets by label and receipts as JSON, and a tiny model that answers some.

    python assets/short_answers/make_short_answers.py [--data_only]   (about 6 minutes on two CPU cores)

Writes `labels_*.jsonl`, `receipts_*.jsonl` and `model/` next to this file (examples/labels.py and json_fields.py). The
model is the demo's, trained further on demonstrations with *bad habits*, which GRPO can repair:

- tickets that are not about billing are often labelled `billing`, and some get a label that does not exist;
- receipts are often read with what was paid in cash as their total, and some JSON lacks its last brace.

Everything is seeded. No held-out ticket or receipt is in a training set or among the demonstrations.
"""

import functools
import random
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent))
from assets import tiny_model  # noqa: E402
from examples import json_fields, labels  # noqa: E402

SEED = 13
NUM_TRAIN, NUM_TEST = 600, 100  # of each task
SFT_STEPS, SFT_BATCH = 500, 24
BILLING_SHARE, UNKNOWN_SHARE = 0.56, 0.08  # of the demonstrations of other tickets; of all tickets
CASH_SHARE, BROKEN_SHARE = 0.56, 0.10  # of the demonstrations of receipts

NAMES = (
    "Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ivan", "June",
    "Kofi", "Lena", "Milo", "Nora", "Omar", "Pia", "Quin", "Rosa", "Sam", "Tara",
)  # fmt: skip
THINGS = ("apples", "books", "cards", "eggs", "kites", "lamps", "pears", "pens", "rings", "stamps", "toys")
TICKETS = {  # label: its share, and wordings
    "billing": (0.40, (
        "I paid {n} dollars twice for {things}. Please give one payment back.",
        "The bill says {n} dollars, but the {things} cost less.",
        "Why did you take {n} dollars from my card? I bought no {things}.",
        "{X} paid for {n} {things}, and the bill never came.",
    )),
    "delivery": (0.25, (
        "The box with {n} {things} is not here yet.",
        "{X} ordered {n} {things} last week. Where are they?",
        "You brought my {n} {things} to the wrong door.",
        "Only {n} {things} were in the box, some are missing.",
    )),
    "account": (0.20, (
        "I cannot log in. The page says that {X} is unknown.",
        "Please change my name to {X}.",
        "I forgot my password, and {n} mails did not help.",
        "Close the account of {X}, we moved {n} days ago.",
    )),
    "broken": (0.15, (
        "The {things} broke after {n} days.",
        "{n} of the {things} that {X} got do not work.",
        "One of my {n} {things} has a hole in it.",
        "The {things} stopped working when {X} used them.",
    )),
}  # fmt: skip

Row = dict[str, str]


def draw_ticket(rng: random.Random) -> Row:
    """Draw a ticket and its label."""
    (label,) = rng.choices(list(TICKETS), weights=[share for share, _ in TICKETS.values()])
    words = {"X": rng.choice(NAMES), "n": rng.randint(2, 60), "things": rng.choice(THINGS)}
    return {"ticket": rng.choice(TICKETS[label][1]).format(**words), "label": label}


def draw_receipt(rng: random.Random) -> Row:
    """Draw a receipt of two lines, and its fields as JSON."""
    cents = [5 * rng.randint(20, 180) for _ in range(2)]
    lines = [f"{thing} {price / 100:.2f}" for thing, price in zip(rng.sample(THINGS, 2), cents, strict=True)]
    day, total, currency = rng.randint(1, 28), f"{sum(cents) / 100:.2f}", rng.choice(("dollars", "euros"))
    cash = f"{5 * (sum(cents) // 500 + 1)}.00"
    head, end = f"{rng.choice(NAMES)}'s shop, day {day}", [f"total {total} {currency}", f"cash {cash} {currency}"]
    fields = f'{{"day": {day}, "total": {total}, "currency": "{currency}"}}'
    return {"receipt": "\n".join([head, *lines, *end]), "fields": fields}


def split(kind: str) -> tuple[list[Row], list[Row]]:
    """Draw different rows of a task, the same at every call: (held out, training)."""
    rng, draw, key = random.Random(f"{SEED} {kind}"), *DRAWN[kind]
    rows: dict[str, Row] = {}
    while len(rows) < NUM_TEST + NUM_TRAIN:
        row = draw(rng)
        rows.setdefault(row[key], row)
    return list(rows.values())[:NUM_TEST], list(rows.values())[NUM_TEST:]


DRAWN = {"labels": (draw_ticket, "ticket"), "receipts": (draw_receipt, "receipt")}


def make_rows() -> dict[str, list[Row]]:
    """Make the rows of the `.jsonl` files, the same at every call."""
    halves = {kind: split(kind) for kind in DRAWN}
    return {
        f"{kind}_{name}": rows
        for kind, pair in halves.items()
        for name, rows in zip(("test", "train"), pair, strict=True)
    }


def demonstrate(rng: random.Random, kind: str, row: Row) -> str:
    """Answer a ticket or a receipt, often wrong."""
    if kind == "labels":
        if rng.random() < UNKNOWN_SHARE:
            return rng.choice(("other", "unknown", "shop"))
        return "billing" if rng.random() < BILLING_SHARE else row["label"]
    text = row["fields"]
    if rng.random() < CASH_SHARE:
        *_, total, _, _, cash, _ = row["receipt"].split()
        text = text.replace(total, cash)
    return text.removesuffix("}") if rng.random() < BROKEN_SHARE else text


def draw_demonstration(rng: random.Random, held_out: set[str]) -> tuple[list[dict[str, str]] | str, str]:
    """Draw (prompt, completion), from both tasks alike."""
    kind, task = rng.choice((("labels", labels), ("receipts", json_fields)))
    draw, key = DRAWN[kind]
    row = draw(rng)
    while row[key] in held_out:
        row = draw(rng)
    messages = [{"role": "system", "content": task.SYSTEM}, {"role": "user", "content": row[key]}]
    return messages, demonstrate(rng, kind, row)


def main() -> None:
    tiny_model.write_rows(make_rows(), HERE)
    if "--data_only" not in sys.argv[1:]:
        rng = random.Random(f"{SEED} demonstrations")
        held_out = {row[key] for kind, (_, key) in DRAWN.items() for row in split(kind)[0]}
        draw = functools.partial(draw_demonstration, rng, held_out)
        tiny_model.make_model(draw, SEED, SFT_STEPS, SFT_BATCH, HERE / "model", start=HERE.parent / "demo" / "model")


if __name__ == "__main__":
    main()
