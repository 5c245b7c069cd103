"""Rewards that need the run's task: its judge, or the values that a completion computes."""

import itertools
import re
from typing import Any

from grpo.rewarding.rollout import Rollout
from grpo.task.arithmetic import verified_lines
from grpo.task.prompts import PromptFormat, last_text
from grpo.task.task import Task
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


def judge_reward_func(completions: Texts, *, task: Task | None = None, **kwargs: Any) -> list[float]:
    """2.0 if the run's judge (the lenient rule, or the function that `judge` names) accepts the completion; else 0."""
    rollout = Rollout.of_arguments(completions, **kwargs)
    pairs = zip(rollout.texts, rollout.rows, strict=True)
    task = task or Task(PromptFormat(""))
    return [2.0 if task.verdict(text, row) else 0.0 for text, row in pairs]


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


MORE = {reward.__name__: reward for reward in (judge_reward_func, step_verified_reward_func)}
