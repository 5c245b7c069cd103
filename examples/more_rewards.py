"""Rewards of the write-ups beyond the five of rewards.py, found by their names.

    python train_grpo.py --reward_funcs correctness_reward_func length_reward_func --reward_args \
        '{"length_reward_func": {"low": 50, "high": 200}}'

They are written like those of rewards.py. To add one, write a function like these and list it in REWARD_FUNCS at the
end; one that never pays more than 0 says so by `is_penalty`.
"""

import itertools
import os
import re
from collections.abc import Callable, Sequence
from typing import Any

from grpo.task.arithmetic import verified_lines
from grpo.task.prompts import last_text
from rewards import (
    THINK_FORMAT,
    XML_COT_FORMAT,
    Extract,
    Golds,
    Texts,
    completion_text,
    correctness_reward_func,
    extract_xml_answer,
    template_parts,
)

FILLERS = ("as an ai", "i hope this helps", "let me know if", "certainly!", "great question")  # case is ignored


def signed_correctness_reward_func(
    completions: Texts, answer: Golds, *, extract: Extract = extract_xml_answer, **kwargs: Any
) -> list[float]:
    """1 if the extracted answer is the gold answer, character by character; else -1."""
    return [value - 1 for value in correctness_reward_func(completions, answer, extract=extract)]


def incremental_format_reward_func(completions: Texts, *, template: str | None = None, **kwargs: Any) -> list[float]:
    """-inf … 1: 0.25 for each of the template's four tags that occurs once, less 0.001 per character after the last.

    Without a template the tags are those of the format that the text uses, `<think>` or `<reasoning>`.
    """
    values = []
    for text in map(completion_text, completions):
        tags = re.findall(r"</?\w+>", template or (THINK_FORMAT if "think>" in text else XML_COT_FORMAT))
        if not tags:
            raise ValueError(f"template {template!r} holds no tags such as <answer> and </answer>")
        _, end, tail = text.rpartition(tags[-1])
        trailing = len(tail.removesuffix("\n")) if end else 0  # one final newline is free
        values.append(sum(text.count(tag) == 1 for tag in tags) / len(tags) - 0.001 * trailing)
    return values


def length_reward_func(
    completions: Texts,
    completion_ids: Sequence[Sequence[int]],
    *,
    low: int = 50,
    high: int = 400,
    margin: int = 100,
    **kwargs: Any,
) -> list[float]:
    """0 … 1: 1 for a completion of `low` to `high` tokens, falling to 0 over `margin` tokens on either side."""
    if not 0 <= low <= high or margin < 0:
        raise ValueError(f"low {low}, high {high}, margin {margin}: 0 <= low <= high and margin >= 0 are required")
    outside = [max(low - len(ids), len(ids) - high, 0) for ids in completion_ids]
    return [max(0.0, 1 - tokens / (margin or 0.5)) for tokens in outside]


def style_reward_func(completions: Texts, *, phrases: Sequence[str] = FILLERS, **kwargs: Any) -> list[float]:
    """-0.5 … 0: -0.1 for each occurrence of one of the phrases, in any letter case."""
    texts = [completion_text(completion).lower() for completion in completions]
    return [0.0 - min(5, sum(text.count(phrase.lower()) for phrase in phrases if phrase)) / 10 for text in texts]


def debug_reward_func(
    completions: Texts, answer: Golds, *, count: int = 2, every: int = 10, extract: Extract = extract_xml_answer,
    **kwargs: Any,
) -> list[float]:  # fmt: skip
    """1.0 for all, which changes no advantage. Prints `count` samples every `every` optimizer steps, once."""
    state, prompts = kwargs.get("trainer_state"), kwargs.get("prompts", completions)
    if state and state.global_step % every == 0 and os.environ.get("RANK", "0") == "0":
        for completion, gold, prompt in list(zip(completions, answer, prompts, strict=True))[:count]:
            text, question = completion_text(completion), prompt if isinstance(prompt, str) else prompt[-1]["content"]
            sample = f"Question: {question}\nGold: {gold}\nResponse: {text}\nExtracted: {extract(text)}"
            # escape control characters
            shown = "".join(sign if sign.isprintable() or sign == "\n" else repr(sign)[1:-1] for sign in sample)
            print(f"--- step {state.global_step}\n{shown}")
    return [1.0] * len(completions)


# --- Steps


def step_verified_reward_func(
    completions: Texts, answer: Golds, *, line_value: float = 0.2, answer_value: float = 0.4, max_lines: int = 3,
    template: str | None = None, extract: Extract = extract_xml_answer, **kwargs: Any,
) -> list[float]:  # fmt: skip
    """0 … 1: 0.2 for each of up to three verified lines of arithmetic in the reasoning, 0.4 for the gold answer.

    A line is verified if it has an equation, and all its equations are true (grpo/task/arithmetic.py). It must use a
    number of the question. Further lines earn nothing, so padding does not pay.
    """
    prompts = kwargs.get("prompts") or [None] * len(completions)
    right = correctness_reward_func(completions, answer, extract=extract)
    values = []
    for completion, prompt, paid in zip(completions, prompts, right, strict=True):
        question = prompt and last_text(prompt)
        lines = verified_lines(extract_reasoning(completion_text(completion), template), question)
        steps = len(list(itertools.islice(lines, max_lines)))
        values.append(round(float(line_value * steps + answer_value * bool(paid)), 10))
    return values


def extract_reasoning(text: str, template: str | None = None) -> str:
    """Extract the reasoning from a completion of this template; "" if it is not closed.

    Without a template, and with those of rewards.py, this is the content of the first `<think>` or `<reasoning>`.
    """
    if template in (None, XML_COT_FORMAT, THINK_FORMAT):
        first = re.search("<think>|<reasoning>", text)
        template = THINK_FORMAT if first and first[0] == "<think>" else XML_COT_FORMAT
    head, *middle, tail = template_parts(template)
    closing_part = middle[0] if middle else tail
    # the tags next to it are enough: <answer> may be missing, or text that the template has before the reasoning
    opening = (re.findall(r"</?\w+>", head) or [head.strip()])[-1]
    closing = (re.findall(r"</?\w+>", closing_part) or [closing_part.strip()])[0]
    start = text.find(opening)
    stop = text.find(closing, start + len(opening)) if start >= 0 else -1
    return text[start + len(opening) : stop] if stop >= 0 else ""


# --- All of them


style_reward_func.is_penalty = True  # type: ignore[attr-defined]  # at 0 it had nothing to punish

REWARD_FUNCS: dict[str, Callable[..., list[float]]] = {
    reward.__name__: reward
    for reward in (
        signed_correctness_reward_func,
        incremental_format_reward_func,
        length_reward_func,
        style_reward_func,
        debug_reward_func,
        step_verified_reward_func,
    )
}
