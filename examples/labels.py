"""A task of one's own with labels: what is a ticket about?

    python train_grpo.py --config examples/labels.yaml

Rows have the columns `ticket` and `label`. The whole completion is the answer (`answer_pattern: text`). A tiny model
that calls most tickets `billing` learns to tell them apart, on a CPU in under a minute
(assets/short_answers/make_short_answers.py).
"""

from collections.abc import Mapping, Sequence
from typing import Any

LABELS = ("billing", "delivery", "account", "broken")
SYSTEM = f"Reply with one label: {', '.join(LABELS)}."  # the recipe's system_prompt


def read_ticket(row: Mapping[str, Any]) -> dict[str, str]:
    """Return the question and the gold answer of a row: `prepare`."""
    return {"question": row["ticket"], "answer": row["label"]}


def label_of(text: str) -> str:
    """Extract the label from a completion: all of it, without spaces, a full stop and capitals.

    >>> label_of(" Billing.\\n")
    'billing'
    """
    return text.strip().rstrip(".").lower()


def is_right(text: str, row: Mapping[str, Any]) -> bool:
    """Whether a completion is the row's label: `judge`."""
    return label_of(text) == row["answer"]


def label_reward(completions: Sequence[Any], answer: Sequence[str], **kwargs: Any) -> list[float]:
    """1.0 for the right label, 0.1 for another one of LABELS, else 0."""
    said = [label_of(completion[0]["content"]) for completion in completions]
    return [1.0 if label == gold else 0.1 * (label in LABELS) for label, gold in zip(said, answer, strict=True)]
