"""A reward for TRL's GRPOTrainer, and for what takes functions like it."""

from collections.abc import Sequence
from typing import Any

from exact_answers.verdict import is_right


def exact_reward(
    completions: Sequence[Any], answer: Sequence[Any], *, pattern: str = "xml", computed: bool = True, **kwargs: Any
) -> list[float | None]:
    r"""Return 1.0 for each completion whose answer is right, else 0.0; None without a gold answer.

    Args:
        completions: texts, or lists of messages, of which the last counts; without content, as a tool call has none,
            it earns 0.0.
        answer: the gold answer of each: a text, a number, a tuple, which is one answer, or a list of alternatives.
        pattern: where an answer is, as in `extract_answer`.
        computed: whether arithmetic that is left to the judge is wrong, as in `is_right`.

    Raises:
        TypeError: a completion is neither a text nor a list of messages.

    >>> exact_reward([r"\boxed{72}", [{"role": "assistant", "content": "It is 71."}]], answer=["72", ["70", "71"]])
    [1.0, 1.0]
    >>> exact_reward(["(1,2)", "1", "1"], answer=[(1, 2), (1, 2), [1, 2]])
    [1.0, 0.0, 1.0]
    """
    return [
        _score(text_of(completion), gold, pattern, computed)
        for completion, gold in zip(completions, answer, strict=True)
    ]


def text_of(completion: Any) -> str:
    """Return a completion's text: itself, or the content of its last message; "" if it has no content.

    >>> text_of("7"), text_of([{"role": "assistant", "content": [{"type": "text", "text": "7"}]}]), text_of([])
    ('7', '7', '')
    >>> text_of([{"role": "assistant", "tool_calls": [{}]}]), text_of([{"role": "assistant", "content": None}])
    ('', '')
    """
    if isinstance(completion, str):
        return completion
    if not isinstance(completion, list | tuple):
        raise TypeError(f"a completion is {_named(completion)}; it must be a text or a list of messages")
    if not completion:
        return ""
    message = completion[-1]
    if not (isinstance(message, dict) and ("role" in message or "content" in message)):
        raise TypeError(f"a completion's last message is {_named(message)}; it must have a role and a content")
    content = message.get("content")
    if content is None or message.get("role") == "tool":  # a tool's result is not the model's answer
        return ""
    return "".join(map(_part, content)) if isinstance(content, list | tuple) else _part(content)


def _part(part: Any) -> str:
    """Return the text of a message's content, or of a part of it; "" of an image."""
    text = part.get("text", "") if isinstance(part, dict) else part
    if not isinstance(text, str):
        raise TypeError(f"the content of a completion's last message is or has {_named(text)}; it must be text")
    return text


def _named(value: Any) -> str:
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _score(text: str, gold: Any, pattern: str, computed: bool) -> float | None:
    golds = [_written(each) for each in (gold if isinstance(gold, list) else [gold]) if each is not None]
    golds = [each for each in golds if each.strip()]
    return float(any(is_right(text, each, pattern, computed=computed) for each in golds)) if golds else None


def _written(gold: Any) -> str:
    """Write a gold answer as text; a tuple as one answer: (1, 2)."""
    return f"({', '.join(map(_written, gold))})" if isinstance(gold, tuple) else str(gold)
