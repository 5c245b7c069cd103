"""The rewards: the five of the recipe first, with their helpers, then a few more to choose from.

Every reward takes the completions of a rollout (lists of messages, or plain strings) and, by keyword, what TRL passes
besides: the dataset's columns such as `answer`, `completion_ids`, `prompts`, `trainer_state`. It returns one float per
completion, in the same order. Parameters after the `*` can be set with `reward_args`. Rewards are pure, silent (except
debug), picklable, and take time linear in the length of the text.

    >>> good = "<reasoning>\\n3 + 4 = 7\\n</reasoning>\\n<answer>\\n7\\n</answer>\\n"
    >>> [REWARD_FUNCS[name]([good], answer=["7"]) for name in GIST_REWARDS]
    [[0.5], [0.5], [0.5], [0.5], [2.0]]

Source of the five: W. Brown, "Granular Format Rewards for Eliciting Mathematical Reasoning Capabilities in Small
Language Models" (2025). To add a reward, write a function like these and list it in REWARD_FUNCS at the end.
"""

import itertools
import os
import re
from collections.abc import Callable, Sequence
from typing import Any

from grpo.core.text import printable
from grpo.rewarding.answers import ANSWER_PATTERNS, check_pattern, find_answer, last_number, same_answer  # noqa: F401
from grpo.rewarding.arithmetic import verified_lines

Completion = str | list[dict[str, Any]]
Texts = Sequence[Completion]  # of a whole rollout, flat; gold answers and token ids have the same order
Golds = Sequence[str]
Ids = Sequence[Sequence[int]]

# A completion template is a perfect completion with {reasoning} and {answer} as placeholders.
XML_COT_FORMAT = "<reasoning>\n{reasoning}\n</reasoning>\n<answer>\n{answer}\n</answer>\n"
THINK_FORMAT = "<think>\n{reasoning}\n</think>\n<answer>{answer}</answer>\n"

# --- The five rewards ---------------------------------------------------------------------------------------------


def xmlcount_reward_func(completions: Texts, **kwargs: Any) -> list[float]:
    """-inf … 0.5: partial credit for each of the four tags, see `count_xml`."""
    return [count_xml(completion_text(completion)) for completion in completions]


def soft_format_reward_func(completions: Texts, *, template: str = XML_COT_FORMAT, **kwargs: Any) -> list[float]:
    """0.5 if the text starts with reasoning and answer in their tags, in this order, however spaced; else 0."""
    # re.match(r"<reasoning>.*?</reasoning>\s*<answer>.*?</answer>", text, re.DOTALL)
    return [0.5 if has_soft_format(completion_text(completion), template) else 0.0 for completion in completions]


def strict_format_reward_func(completions: Texts, *, template: str = XML_COT_FORMAT, **kwargs: Any) -> list[float]:
    """0.5 if the text is the template, filled in, and nothing else; else 0."""
    # re.match(r"^<reasoning>\n.*?\n</reasoning>\n<answer>\n.*?\n</answer>\n$", text, re.DOTALL)
    return [0.5 if has_strict_format(completion_text(completion), template) else 0.0 for completion in completions]


def int_reward_func(completions: Texts, *, answer_pattern: str = "xml", **kwargs: Any) -> list[float]:
    """0.5 if the extracted answer is all digits (`str.isdigit`, so `²` and `٣` count and `-5` does not); else 0."""
    answers = [extract_answer(completion_text(completion), answer_pattern) for completion in completions]
    return [0.5 if answer.isdigit() else 0.0 for answer in answers]


def correctness_reward_func(
    completions: Texts, answer: Golds, *, answer_pattern: str = "xml", **kwargs: Any
) -> list[float]:
    """2.0 if the extracted answer is the gold answer, character by character; else 0."""
    answers = [extract_answer(completion_text(completion), answer_pattern) for completion in completions]
    return [2.0 if got == gold else 0.0 for got, gold in zip(answers, answer, strict=True)]


# --- Their helpers ------------------------------------------------------------------------------------------------


def completion_text(completion: Completion) -> str:
    """The text of one completion: a string itself, or the content of a chat completion's first message."""
    return completion if isinstance(completion, str) else completion[0]["content"]


def extract_xml_answer(text: str) -> str:
    """The text after the last `<answer>` (all of it without one), up to the next `</answer>`, stripped.

    >>> extract_xml_answer("<answer>6</answer> no: <answer>\\n7\\n</answer>")
    '7'
    >>> extract_xml_answer("I think it is 7")
    'I think it is 7'
    """
    return text.rpartition("<answer>")[2].partition("</answer>")[0].strip()


def extract_hash_answer(text: str) -> str | None:
    """GSM8K's gold answer: the text between the first and the second `####`, without `,` and `$`; None without `####`.

    >>> extract_hash_answer("He pays 2 * 600 = $1,200.\\n#### $1,200")
    '1200'
    """
    _, mark, rest = text.partition("####")
    return rest.partition("####")[0].strip().replace(",", "").replace("$", "") if mark else None


def count_xml(text: str) -> float:
    """Partial credit for the tags: 0.125 for each of four that occurs exactly once, less 0.001 per trailing character.

    Between -inf (a long tail) and 0.5 (or slightly above: `\\n</answer>` as the very end earns 0.001 more). A quirk
    that is part of the definition: the first tail is what follows the last `\\n</answer>\\n`, and *the whole text* if
    that does not occur, so a perfect answer without its final newline pays for its length.
    """
    score = 0.0
    if text.count("<reasoning>\n") == 1:
        score += 0.125
    if text.count("\n</reasoning>\n") == 1:
        score += 0.125
    if text.count("\n<answer>\n") == 1:
        score += 0.125
        # split, not rpartition: occurrences count from the left, and this one can overlap itself by its newline
        score -= len(text.split("\n</answer>\n")[-1]) * 0.001
    if text.count("\n</answer>") == 1:
        score += 0.125
        score -= (len(text.partition("\n</answer>")[2]) - 1) * 0.001
    return score


def template_parts(template: str) -> tuple[str, str, str]:
    """The text of a completion template before the reasoning, between reasoning and answer, and after the answer."""
    head, _, rest = template.partition("{reasoning}")
    middle, _, tail = rest.partition("{answer}")
    if template.count("{reasoning}") != 1 or template.count("{answer}") != 1 or not middle.strip():
        raise ValueError(f"template {template!r} needs {{reasoning}}, one or more tags, and {{answer}}, each once")
    return head, middle, tail


def has_soft_format(text: str, template: str = XML_COT_FORMAT) -> bool:
    """Whether the text starts with the template's tags in their order, however spaced, in linear time.

    >>> has_soft_format("<reasoning>r</reasoning><answer>7</answer> done"), has_soft_format("<think>r</think>7")
    (True, False)
    """
    head, middle, tail = template_parts(template)
    text = text.removeprefix(head[: -len(head.lstrip())])  # a template may begin with spaces
    # the first place where the reasoning can end leaves the most text for the rest, so no other need be tried
    end = re.compile(r"\s*".join(map(re.escape, middle.split()))).search(text, len(head.strip()))
    return text.startswith(head.strip()) and end is not None and text.find(tail.strip(), end.end()) >= 0


def has_strict_format(text: str, template: str = XML_COT_FORMAT) -> bool:
    """Whether the text is the template with something for its placeholders and nothing else, in linear time.

    The `$` of the regular expression also matches before a final newline, so one more may follow.

    >>> has_strict_format(THINK_FORMAT, THINK_FORMAT), has_strict_format(THINK_FORMAT)
    (True, False)
    """
    head, middle, tail = template_parts(template)
    start = text.find(middle, len(head)) if text.startswith(head) else -1
    ends = len(text), len(text) - text.endswith("\n")
    return start >= 0 and any(text.endswith(tail, start + len(middle), end) for end in ends)


# --- Any task: answers where they are marked, and the lenient rule ------------------------------------------------


def extract_answer(text: str, pattern: str = "xml") -> str:
    r"""The answer in a completion or a gold solution, stripped; the whole text, stripped, where the mark is missing.

    Patterns: `xml`, the last `<answer>…</answer>`; `boxed`, the last `\boxed{…}` or `\fbox{…}` that is closed; `hash`,
    the line after the last `####`, cleaned like GSM8K's; `final`, the line after the last `Answer:`, `Final:` or
    `Final answer is:`, without bold type, dollar delimiters and a final full stop; or a template, `Final: {answer}`,
    the last one, up to what follows `{answer}` in the template, or to the end of the line.

    >>> extract_answer(r"So $x = \boxed{\frac{1}{2}}$.", "boxed"), extract_answer("2 + 2 = 4\n#### $4,000", "hash")
    ('\\frac{1}{2}', '4000')
    >>> extract_answer("**Answer:** $72$.", "final"), extract_answer("So [[72]], of course", "[[{answer}]]")
    ('72', '72')
    """
    if pattern == "xml":
        return extract_xml_answer(text)
    found = find_answer(text, pattern)
    return text.strip() if found is None else found


def is_right(text: str, gold: str, pattern: str = "xml") -> bool:
    r"""The lenient rule of every judgement: the answer is the gold answer, however it is written. Never raises.

    The same text is right up to case, spaces and a final full stop; where the gold answer is a number or mathematics,
    so is what has its value. The answer is where the pattern has it, else in a box, after "Answer:" or ####, or what
    the text concludes. Two different answers are none.

    >>> is_right("So it is $1,000.", "1000"), is_right("<answer>Paris.</answer>", "paris"), is_right("no idea", "7")
    (True, True, False)
    >>> is_right(r"\boxed{\frac{1}{2}}", "0.5"), is_right("(7,2)", "(1,2)"), is_right("72 or 71", "72")
    (True, False, False)
    """
    answer = extract_answer(text, pattern)
    return gold in (text, answer) or same_answer(answer, gold, text)


# --- More rewards -------------------------------------------------------------------------------------------------

FILLERS = ("as an ai", "i hope this helps", "let me know if", "certainly!", "great question")  # case is ignored


def signed_correctness_reward_func(
    completions: Texts, answer: Golds, *, answer_pattern: str = "xml", **kwargs: Any
) -> list[float]:
    """1 if the extracted answer is the gold answer, character by character; else -1."""
    return [value - 1 for value in correctness_reward_func(completions, answer, answer_pattern=answer_pattern)]


def judge_reward_func(completions: Texts, *, judge: Any = None, **kwargs: Any) -> list[float]:
    """2.0 if the run's judge (`is_right`, or `--judge my_file.f`, of text and row) finds it right; else 0."""
    texts = list(map(completion_text, completions))
    if judge is None:
        return [2.0 if is_right(text, gold) else 0.0 for text, gold in zip(texts, kwargs["answer"], strict=True)]
    columns = {key: value for key, value in kwargs.items() if isinstance(value, Sequence) and len(value) == len(texts)}
    columns["prompt"] = columns.get("prompts", [None] * len(texts))
    rows = [{key: column[place] for key, column in columns.items()} for place in range(len(texts))]
    return [2.0 if judge.verdict(text, row) else 0.0 for text, row in zip(texts, rows, strict=True)]


def step_verified_reward_func(
    completions: Texts, answer: Golds, *, line_value: float = 0.2, answer_value: float = 0.4, max_lines: int = 3,
    template: str | None = None, answer_pattern: str = "xml", **kwargs: Any,
) -> list[float]:  # fmt: skip
    """0 … 1: 0.2 for each of up to three verified lines of arithmetic in the reasoning, 0.4 for the gold answer.

    A line is verified if it holds an equation, and all its equations are true (grpo/rewarding/arithmetic.py); it must
    use a number of the question. More lines earn nothing, so padding does not pay.
    """
    prompts = kwargs.get("prompts") or [None] * len(completions)
    right = correctness_reward_func(completions, answer, answer_pattern=answer_pattern)
    values = []
    for completion, prompt, paid in zip(completions, prompts, right, strict=True):
        question = None if prompt is None else _question(prompt)
        lines = verified_lines(extract_reasoning(completion_text(completion), template), question)
        steps = len(list(itertools.islice(lines, max_lines)))
        values.append(round(float(line_value * steps + answer_value * bool(paid)), 10))
    return values


def extract_reasoning(text: str, template: str | None = None) -> str:
    """The reasoning in a completion of this template; empty if it is not closed.

    Without a template, and with the two of this file, it is what the first `<think>` or `<reasoning>` holds.
    """
    if template in (None, XML_COT_FORMAT, THINK_FORMAT):
        first = re.search("<think>|<reasoning>", text)
        template = THINK_FORMAT if first and first[0] == "<think>" else XML_COT_FORMAT
    head, middle, _ = template_parts(template)
    # the tags next to it are enough: <answer> may be missing, or what else the template has before the reasoning
    opening = (re.findall(r"</?\w+>", head) or [head.strip()])[-1]
    closing = (re.findall(r"</?\w+>", middle) or [middle.strip()])[0]
    start = text.find(opening)
    stop = text.find(closing, start + len(opening)) if start >= 0 else -1
    return text[start + len(opening) : stop] if stop >= 0 else ""


def _question(prompt: Completion) -> str:
    return prompt if isinstance(prompt, str) else prompt[-1]["content"]


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
    completions: Texts, completion_ids: Ids, *, low: int = 50, high: int = 400, margin: int = 100, **kwargs: Any
) -> list[float]:
    """0 … 1: 1 for a completion of `low` to `high` tokens, falling to 0 over `margin` tokens on either side."""
    if not 0 <= low <= high or margin < 0:
        raise ValueError(f"low {low}, high {high}, margin {margin}: 0 <= low <= high and margin >= 0 are required")
    outside = [max(low - len(ids), len(ids) - high, 0) for ids in completion_ids]
    return [max(0.0, 1 - tokens / (margin or 0.5)) for tokens in outside]


def style_reward_func(completions: Texts, *, phrases: Sequence[str] = FILLERS, **kwargs: Any) -> list[float]:
    """-0.5 … 0: -0.1 for each occurrence of one of the phrases, whatever the case."""
    texts = [completion_text(completion).lower() for completion in completions]
    return [0.0 - min(5, sum(text.count(phrase.lower()) for phrase in phrases if phrase)) / 10 for text in texts]


def debug_reward_func(
    completions: Texts, answer: Golds, *, count: int = 2, every: int = 10, answer_pattern: str = "xml", **kwargs: Any
) -> list[float]:
    """1.0 for all, which moves no advantage; prints `count` samples every `every` optimizer steps, in one process."""
    state, prompts = kwargs.get("trainer_state"), kwargs.get("prompts", completions)
    if state and state.global_step % every == 0 and os.environ.get("RANK", "0") == "0":
        for text, gold, ask in list(zip(map(completion_text, completions), answer, prompts, strict=True))[:count]:
            read = extract_answer(text, answer_pattern)
            sample = f"Question: {_question(ask)}\nGold: {gold}\nResponse: {text}\nExtracted: {read}"
            print(f"--- step {state.global_step}\n{printable(sample)}")
    return [1.0] * len(completions)


# --- All of them --------------------------------------------------------------------------------------------------


def short_name(reward: str) -> str:
    """A reward's name as people read it: `correctness_reward_func` → `correctness`."""
    return reward.removesuffix("_func").removesuffix("_reward")


# The names that `reward_funcs` may list, and the keys TRL logs as `rewards/<name>/mean`.
REWARD_FUNCS: dict[str, Callable[..., list[float]]] = {
    reward.__name__: reward
    for reward in (
        xmlcount_reward_func,
        soft_format_reward_func,
        strict_format_reward_func,
        int_reward_func,
        correctness_reward_func,
        signed_correctness_reward_func,
        judge_reward_func,
        step_verified_reward_func,
        incremental_format_reward_func,
        length_reward_func,
        style_reward_func,
        debug_reward_func,
    )
}
# Never above 0; two of them are TRL's own
PENALTIES = {"style_reward_func", "soft_overlong_punishment_reward", "repetition_penalty_reward"}
GIST_REWARDS = list(REWARD_FUNCS)[:5]  # the five of the recipe, its default
