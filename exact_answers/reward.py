"""A reward for TRL's GRPOTrainer, and for what takes functions like it."""

from collections.abc import Sequence
from typing import Any

from exact_answers.verdict import is_right


def exact_reward(
    completions: Sequence[Any], answer: Sequence[Any], *, pattern: str = "xml", **kwargs: Any
) -> list[float | None]:
    r"""Return 1.0 for each completion whose answer is right, else 0.0; None without a gold answer.

    Args:
        completions: texts, or lists of messages, of which the last counts.
        answer: the gold answer of each: a text, a number, or a list of alternatives.
        pattern: where an answer is, as in `extract_answer`.

    >>> exact_reward([r"\boxed{72}", [{"role": "assistant", "content": "It is 71."}]], answer=["72", ["70", "71"]])
    [1.0, 1.0]
    """
    return [_score(_text(completion), gold, pattern) for completion, gold in zip(completions, answer, strict=True)]


def _text(completion: Any) -> str:
    if isinstance(completion, list | tuple):
        completion = completion[-1]["content"] if completion else ""
    if isinstance(completion, list):  # parts of a message
        completion = "".join(str(part.get("text", "")) for part in completion)
    return completion or ""


def _score(text: str, gold: Any, pattern: str) -> float | None:
    golds = [str(each) for each in (gold if isinstance(gold, list | tuple) else [gold]) if each is not None]
    golds = [each for each in golds if each.strip()]
    return float(any(is_right(text, each, pattern) for each in golds)) if golds else None
