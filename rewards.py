"""The five rewards of the recipe, with their helpers. examples/more_rewards.py has others to choose from.

A reward takes the completions of a rollout (lists of messages, or plain strings) and, by keyword, the data's columns
(such as `answer`) and TRL's `completion_ids`, `prompts`, `trainer_state`, …. It returns one float per completion, in
the same order. `reward_args` sets the parameters after the `*`; `template` and `extract` follow the run's prompt.
They are pure, silent, picklable, and take time linear in the length of the text. This file imports only the standard
library: copy it into any TRL script.

    >>> good = "<reasoning>\\n3 + 4 = 7\\n</reasoning>\\n<answer>\\n7\\n</answer>\\n"
    >>> [reward([good], answer=["7"]) for reward in REWARD_FUNCS.values()]
    [[0.5], [0.5], [0.5], [0.5], [2.0]]

Source of the five: W. Brown, "Granular Format Rewards for Eliciting Mathematical Reasoning Capabilities in Small
Language Models" (2025). A reward of your own is a function like these in train_grpo.py (docs/reward-design.md).
"""

import re
from collections.abc import Callable, Sequence
from typing import Any

Completion = str | list[dict[str, Any]]
Texts = Sequence[Completion]  # of a whole rollout; gold answers and token ids have the same order
Gold = str | Sequence[str]  # a text, or alternatives
Golds = Sequence[Gold]
Extract = Callable[[str], str]  # extracts the answer from a completion's text

# A completion template is a perfect completion with the placeholders {reasoning} (optional) and {answer}.
XML_COT_FORMAT = "<reasoning>\n{reasoning}\n</reasoning>\n<answer>\n{answer}\n</answer>\n"
THINK_FORMAT = "<think>\n{reasoning}\n</think>\n<answer>{answer}</answer>\n"

# --- The text of a completion, and the answer in it -----------------------------------------------------------------


def completion_text(completion: Completion) -> str:
    """Return the text of a completion: the string itself, or the content of a chat completion's first message."""
    return completion if isinstance(completion, str) else completion[0]["content"]


def extract_xml_answer(text: str) -> str:
    """Extract the text after the last `<answer>` (all text without one), up to the next `</answer>`, stripped.

    >>> extract_xml_answer("<answer>6</answer> no: <answer>\\n7\\n</answer>")
    '7'
    >>> extract_xml_answer("I think it is 7")
    'I think it is 7'
    """
    return text.rpartition("<answer>")[2].partition("</answer>")[0].strip()


def extract_hash_answer(text: str) -> str | None:
    """Extract GSM8K's gold answer: the text after `####`, up to the next one, without `,` and `$`; None without it.

    >>> extract_hash_answer("He pays 2 * 600 = $1,200.\\n#### $1,200")
    '1200'
    """
    _, mark, rest = text.partition("####")
    return rest.partition("####")[0].strip().replace(",", "").replace("$", "") if mark else None


# --- The five rewards ---------------------------------------------------------------------------------------------


def xmlcount_reward_func(completions: Texts, **kwargs: Any) -> list[float]:
    """-inf … 0.5: partial credit for each of the four tags, see `count_xml`."""
    return [count_xml(completion_text(completion)) for completion in completions]


def soft_format_reward_func(completions: Texts, *, template: str = XML_COT_FORMAT, **kwargs: Any) -> list[float]:
    """0.5 if the text starts with reasoning and answer in their tags, in this order, with any spaces; else 0."""
    # re.match(r"<reasoning>.*?</reasoning>\s*<answer>.*?</answer>", text, re.DOTALL)
    return [0.5 if has_soft_format(completion_text(completion), template) else 0.0 for completion in completions]


def strict_format_reward_func(completions: Texts, *, template: str = XML_COT_FORMAT, **kwargs: Any) -> list[float]:
    """0.5 if the text is the template, filled in, and nothing else; else 0."""
    # re.match(r"^<reasoning>\n.*?\n</reasoning>\n<answer>\n.*?\n</answer>\n$", text, re.DOTALL)
    return [0.5 if has_strict_format(completion_text(completion), template) else 0.0 for completion in completions]


def int_reward_func(completions: Texts, *, extract: Extract = extract_xml_answer, **kwargs: Any) -> list[float]:
    """0.5 if the extracted answer is all digits (`str.isdigit`, so `²` and `٣` count and `-5` does not); else 0."""
    return [0.5 if extract(completion_text(completion)).isdigit() else 0.0 for completion in completions]


def correctness_reward_func(
    completions: Texts, answer: Golds, *, extract: Extract = extract_xml_answer, **kwargs: Any
) -> list[float]:
    """2.0 if the extracted answer is the gold answer (or an alternative), character by character; else 0."""
    answers = [extract(completion_text(completion)) for completion in completions]
    return [2.0 if is_gold(read, gold) else 0.0 for read, gold in zip(answers, answer, strict=True)]


def is_gold(read: str, gold: Gold) -> bool:
    """True if an answer is the gold answer (or an alternative), character by character."""
    return read in gold if isinstance(gold, list | tuple) else read == gold


# --- The format -----------------------------------------------------------------------------------------------------


def count_xml(text: str) -> float:
    """Partial credit for the tags: 0.125 for each of four that occurs exactly once, less 0.001 per trailing character.

    The range is -inf (a long tail) … 0.5, or 0.501 if the text ends in `\\n</answer>`. A quirk of the original:
    without `\\n</answer>\\n` the *whole text* counts as trailing, so a perfect answer without its final newline pays
    for its length.
    """
    score = 0.0
    if text.count("<reasoning>\n") == 1:
        score += 0.125
    if text.count("\n</reasoning>\n") == 1:
        score += 0.125
    if text.count("\n<answer>\n") == 1:
        score += 0.125
        # split, not rpartition: it counts from the left, and occurrences can overlap by a newline
        score -= len(text.split("\n</answer>\n")[-1]) * 0.001
    if text.count("\n</answer>") == 1:
        score += 0.125
        score -= (len(text.partition("\n</answer>")[2]) - 1) * 0.001
    return score


def template_parts(template: str) -> list[str]:
    """Split a completion template at its placeholders: into two texts, or three with {reasoning}."""
    parts = re.split(r"\{(?:reasoning|answer)\}", template)
    order = re.findall(r"\{(reasoning|answer)\}", template)
    if order not in (["answer"], ["reasoning", "answer"]) or not all(map(str.strip, parts[1:-1])):
        raise ValueError(f"template {template!r} needs {{answer}} once, after at most one {{reasoning}} and a tag")
    return parts


def has_soft_format(text: str, template: str = XML_COT_FORMAT) -> bool:
    """True if the text starts with the template's tags in order, with any spaces. Takes linear time.

    >>> has_soft_format("<reasoning>r</reasoning><answer>7</answer> done"), has_soft_format("<think>r</think>7")
    (True, False)
    """
    head, *others = template_parts(template)
    text = text.removeprefix(head[: -len(head.lstrip()) or None])  # a template may begin with spaces
    if not text.strip() or not text.startswith(head.strip()):
        return False
    position = len(head.strip())
    for part in others:  # the first match of a tag leaves the most text for the others
        tag = re.compile(r"\s*".join(map(re.escape, part.split()))).search(text, position)
        if tag is None:
            return False
        position = tag.end()
    return True


def has_strict_format(text: str, template: str = XML_COT_FORMAT) -> bool:
    """True if the text is the filled template and nothing else. Takes linear time.

    One more newline may follow, since the `$` of the regular expression also matches before a final newline.

    >>> has_strict_format(THINK_FORMAT, THINK_FORMAT), has_strict_format(THINK_FORMAT)
    (True, False)
    """
    head, *middle, tail = template_parts(template)
    position = len(head)
    for tag in middle:
        found_at = text.find(tag, position)
        if found_at < 0:
            return False
        position = found_at + len(tag)
    ends = len(text), len(text) - text.endswith("\n")
    return bool(text.strip()) and text.startswith(head) and any(text.endswith(tail, position, end) for end in ends)


# --- All of them --------------------------------------------------------------------------------------------------


# By the names that `reward_funcs` may list, which TRL logs as `rewards/<name>/mean`
REWARD_FUNCS: dict[str, Callable[..., list[float]]] = {
    reward.__name__: reward
    for reward in (
        xmlcount_reward_func,
        soft_format_reward_func,
        strict_format_reward_func,
        int_reward_func,
        correctness_reward_func,
    )
}
