"""What a completion is worth: the five rewards of the recipe, and how an answer is read out of a text.

Every reward takes the completions of a rollout (chat completions, that is lists of messages, or plain strings) and the
dataset's columns as keyword arguments, and returns one float per completion, in order. Rewards are pure, quiet and
picklable, and take linear time on any input: the two format rules are defined by regular expressions which are
quadratic on hostile text, so they are decided here without them (tests/test_rewards.py holds both against each other).

    >>> good = "<reasoning>\\n3 + 4 = 7\\n</reasoning>\\n<answer>\\n7\\n</answer>\\n"
    >>> [reward([good], answer=["7"]) for reward in REWARD_FUNCS.values()]
    [[0.5], [0.5], [0.5], [0.5], [2.0]]

Source of the definitions: W. Brown, "Granular Format Rewards for Eliciting Mathematical Reasoning Capabilities in
Small Language Models" (2025). To add a reward, write a function like these and name it in REWARD_FUNCS below.
"""

import re
from collections import deque
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

Completion = str | list[dict[str, Any]]

# --- Reading a text -----------------------------------------------------------------------------------------------


def completion_text(completion: Completion) -> str:
    """The text of one completion: a string itself, or the content of a chat completion's first message."""
    return completion if isinstance(completion, str) else completion[0]["content"]


def extract_xml_answer(text: str) -> str:
    """What follows the last `<answer>` (the whole text where there is none), up to the next `</answer>`, stripped.

    >>> extract_xml_answer("<answer>6</answer> no: <answer>\\n7\\n</answer>")
    '7'
    >>> extract_xml_answer("I think it is 7")
    'I think it is 7'
    """
    return text.rpartition("<answer>")[2].partition("</answer>")[0].strip()


def extract_hash_answer(text: str) -> str | None:
    """GSM8K's gold answer: what stands between the first and the second `####`, without `,` and `$`.

    None where there is no `####`.

    >>> extract_hash_answer("He pays 2 * 600 = $1,200.\\n#### $1,200")
    '1200'
    """
    _, mark, rest = text.partition("####")
    return rest.partition("####")[0].strip().replace(",", "").replace("$", "") if mark else None


# Sign, dollar sign, digits with or without thousands separators, decimals, and a denominator. A minus after a digit, a
# letter or a bracket is a subtraction ("18-5"), not a sign.
_NUMBER = re.compile(
    r"(?P<sign>(?<![0-9A-Za-z)\]])[-\u2212])?\$?(?P<minus>(?<=\$)-)?"
    r"(?P<whole>[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+|(?=\.[0-9]))(?P<decimals>\.[0-9]+)?(?:/(?P<below>[0-9]+))?"
)


_POWER = re.compile(r"\^\{?[-\u2212]?[0-9]+")  # 72 cm^2 is 72


def last_number(text: str) -> Fraction | None:
    """The last number in a text, exactly; None where there is none or it has over 200 digits.

    `$`, `,` between thousands, `%` and units are ignored, a fraction is divided, so these all mean 72: `72.0`, `$72`,
    `72.`, `72%`, `144/2`, `x = 72 apples`.

    >>> last_number("He has $1,000.50 left."), last_number("18-5"), last_number("= -5"), last_number("3/4")
    (Fraction(2001, 2), Fraction(5, 1), Fraction(-5, 1), Fraction(3, 4))
    """
    last = next(iter(deque(_NUMBER.finditer(_POWER.sub(" ", text)), maxlen=1)), None)
    if last is None or len(last[0]) > 200:
        return None
    value = Fraction((last["whole"].replace(",", "") or "0") + (last["decimals"] or ""))
    if last["below"] is not None and int(last["below"]):
        value /= int(last["below"])
    return -value if last["sign"] or last["minus"] else value


def is_numerically_correct(text: str, gold: str) -> bool:
    """Lenient correctness: the answer's last number equals the gold's; the text's where the answer holds no number."""
    number = last_number(extract_xml_answer(text))
    if number is None:
        number = last_number(text)
    return number is not None and number == last_number(gold)


# --- Format -------------------------------------------------------------------------------------------------------


def count_xml(text: str) -> float:
    """Partial credit for the tags: 0.125 for each of four that occurs exactly once, less 0.001 a trailing character.

    Between -inf (a long tail) and 0.5 (or a hair above: `\\n</answer>` as the very end earns 0.001). A quirk that is
    part of the definition: the first tail is what follows the last `\\n</answer>\\n`, and *the whole text* where that
    does not occur, so a perfect answer without its final newline pays for its length.
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


def has_soft_format(text: str) -> bool:
    r"""Whether `re.match(r"<reasoning>.*?</reasoning>\s*<answer>.*?</answer>", text, re.DOTALL)`, in linear time."""
    if not text.startswith("<reasoning>"):
        return False
    # the first place where the reasoning can end leaves the most text for the rest, so no other need be tried
    middle = re.compile(r"</reasoning>\s*<answer>").search(text, len("<reasoning>"))
    return middle is not None and text.find("</answer>", middle.end()) >= 0


def has_strict_format(text: str) -> bool:
    r"""Whether the text is exactly the format, each tag on a line of its own, in linear time.

    The definition is `re.match(r"^<reasoning>\n.*?\n</reasoning>\n<answer>\n.*?\n</answer>\n$", text, re.DOTALL)`;
    its `$` also matches before a final newline, so one empty line may follow.
    """
    head, middle, tail = "<reasoning>\n", "\n</reasoning>\n<answer>\n", "\n</answer>\n"
    if not text.startswith(head):
        return False
    middle_start = text.find(middle, len(head))
    if middle_start < 0:
        return False
    end = len(text) - 1 if text.endswith(tail + "\n") else len(text)
    return text.endswith(tail, middle_start + len(middle), end)


# --- The five rewards ---------------------------------------------------------------------------------------------


def xmlcount_reward_func(completions: Sequence[Completion], **kwargs: Any) -> list[float]:
    """-inf … 0.5: partial credit tag by tag, see `count_xml`."""
    return [count_xml(completion_text(completion)) for completion in completions]


def soft_format_reward_func(completions: Sequence[Completion], **kwargs: Any) -> list[float]:
    """0.5 where reasoning and answer stand in their tags, in this order, from the very start of the text; else 0."""
    return [0.5 if has_soft_format(completion_text(completion)) else 0.0 for completion in completions]


def strict_format_reward_func(completions: Sequence[Completion], **kwargs: Any) -> list[float]:
    """0.5 where the text is the format and nothing else, each tag on a line of its own; else 0."""
    return [0.5 if has_strict_format(completion_text(completion)) else 0.0 for completion in completions]


def int_reward_func(completions: Sequence[Completion], **kwargs: Any) -> list[float]:
    """0.5 where the extracted answer is all digits (`str.isdigit`, so `²` and `٣` count and `-5` does not); else 0."""
    return [0.5 if extract_xml_answer(completion_text(completion)).isdigit() else 0.0 for completion in completions]


def correctness_reward_func(completions: Sequence[Completion], answer: Sequence[str], **kwargs: Any) -> list[float]:
    """2.0 where the extracted answer is the gold answer, character by character; else 0.

    Args:
        answer: the gold answers, one per completion.
    """
    pairs = zip(completions, answer, strict=True)
    return [2.0 if extract_xml_answer(completion_text(completion)) == gold else 0.0 for completion, gold in pairs]


def short_name(reward: str) -> str:
    """A reward's name as people read it: `correctness_reward_func` → `correctness`."""
    return reward.removesuffix("_func").removesuffix("_reward")


# The names that `reward_funcs` may list, and the keys TRL logs as `rewards/<name>/mean`.
REWARD_FUNCS: dict[str, Callable[..., list[float]]] = {
    "xmlcount_reward_func": xmlcount_reward_func,
    "soft_format_reward_func": soft_format_reward_func,
    "strict_format_reward_func": strict_format_reward_func,
    "int_reward_func": int_reward_func,
    "correctness_reward_func": correctness_reward_func,
}
