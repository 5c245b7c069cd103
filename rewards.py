"""What a completion is worth: the five rewards of the recipe, more to choose from, and how answers and steps are read.

Every reward takes a rollout's completions (lists of messages, or plain strings) and what TRL passes besides (`answer`
and other columns, `completion_ids`, `trainer_state`) as keywords, and returns one float per completion, in order. What
`reward_args` can set stands after the `*`. Rewards are pure, quiet (but for debug), picklable, and linear in time.

    >>> good = "<reasoning>\\n3 + 4 = 7\\n</reasoning>\\n<answer>\\n7\\n</answer>\\n"
    >>> [REWARD_FUNCS[name]([good], answer=["7"]) for name in GIST_REWARDS]
    [[0.5], [0.5], [0.5], [0.5], [2.0]]

Source of the five: W. Brown, "Granular Format Rewards for Eliciting Mathematical Reasoning Capabilities in Small
Language Models" (2025). To add a reward, write a function like these and name it in REWARD_FUNCS below.
"""

import functools
import itertools
import logging
import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any

Completion = str | list[dict[str, Any]]
Texts = Sequence[Completion]  # of a whole rollout, flat, as its gold answers and token ids are
Golds = Sequence[str]
Ids = Sequence[Sequence[int]]

# A completion template is a perfect completion with {reasoning} and {answer} where these go.
XML_COT_FORMAT = "<reasoning>\n{reasoning}\n</reasoning>\n<answer>\n{answer}\n</answer>\n"
THINK_FORMAT = "<think>\n{reasoning}\n</think>\n<answer>{answer}</answer>\n"

# --- Reading a text -----------------------------------------------------------------------------------------------


def completion_text(completion: Completion) -> str:
    """The text of one completion: a string itself, or the content of a chat completion's first message."""
    return completion if isinstance(completion, str) else completion[0]["content"]


def _question(prompt: Completion) -> str:
    return prompt if isinstance(prompt, str) else prompt[-1]["content"]


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


# A minus after a digit, a letter or a bracket is a subtraction ("18-5"), not a sign.
_NUMBER = re.compile(
    r"(?P<sign>(?<![0-9A-Za-z)\]])[-\u2212])?\$?(?P<minus>(?<=\$)-)?"
    r"(?P<whole>[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+|(?=\.[0-9]))(?P<decimals>\.[0-9]+)?(?:/(?P<below>[0-9]+))?"
)
_POWER = re.compile(r"\^\{?[-\u2212]?[0-9]+")  # 72 cm^2 is 72


def last_number(text: str) -> Fraction | None:
    """The last number in a text (its last 10,000 characters), exactly; None: none there, or one of over 200 digits.

    `$`, `,` between thousands, `%` and units are ignored, a fraction is divided, so these all mean 72: `72.0`, `$72`,
    `72.`, `72%`, `144/2`, `x = 72 apples`.

    >>> last_number("He has $1,000.50 left."), last_number("18-5"), last_number("= -5"), last_number("3/4")
    (Fraction(2001, 2), Fraction(5, 1), Fraction(-5, 1), Fraction(3, 4))
    """
    last = next(iter(deque(_NUMBER.finditer(_POWER.sub(" ", text[-10_000:])), maxlen=1)), None)
    if last is None or len(last[0]) > 200:
        return None
    value = Fraction((last["whole"].replace(",", "") or "0") + (last["decimals"] or ""))
    if last["below"] is not None and int(last["below"]):
        value /= int(last["below"])
    return -value if last["sign"] or last["minus"] else value


def is_numerically_correct(text: str, gold: str) -> bool:
    """Lenient correctness: the answer's last number equals the gold's; the text's where the answer holds no number."""
    number = last_number(extract_xml_answer(text))
    number = last_number(text) if number is None else number
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


def template_parts(template: str) -> tuple[str, str, str]:
    """What a completion template has before the reasoning, between reasoning and answer, and after the answer."""
    head, _, rest = template.partition("{reasoning}")
    middle, _, tail = rest.partition("{answer}")
    if template.count("{reasoning}") != 1 or template.count("{answer}") != 1 or not middle.strip():
        raise ValueError(f"template {template!r}: give it {{reasoning}}, a tag or more, and {{answer}}, each once")
    return head, middle, tail


def has_soft_format(text: str, template: str = XML_COT_FORMAT) -> bool:
    r"""Whether the text starts with a template's tags in their order, however they are spaced, in linear time.

    For the default: `re.match(r"<reasoning>.*?</reasoning>\s*<answer>.*?</answer>", text, re.DOTALL)`.

    >>> has_soft_format("<reasoning>r</reasoning><answer>7</answer> done"), has_soft_format("<think>r</think>7")
    (True, False)
    """
    head, middle, tail = template_parts(template)
    text = text.removeprefix(head[: -len(head.lstrip())])  # a template may begin with spaces
    # the first place where the reasoning can end leaves the most text for the rest, so no other need be tried
    end = re.compile(r"\s*".join(map(re.escape, middle.split()))).search(text, len(head.strip()))
    return text.startswith(head.strip()) and end is not None and text.find(tail.strip(), end.end()) >= 0


def has_strict_format(text: str, template: str = XML_COT_FORMAT) -> bool:
    r"""Whether the text is a template with something in its two places and nothing else, in linear time.

    For the default: `re.match(r"^<reasoning>\n.*?\n</reasoning>\n<answer>\n.*?\n</answer>\n$", text, re.DOTALL)`;
    that `$` also matches before a final newline, so one more may follow.

    >>> has_strict_format(THINK_FORMAT, THINK_FORMAT), has_strict_format(THINK_FORMAT)
    (True, False)
    """
    head, middle, tail = template_parts(template)
    start = text.find(middle, len(head)) if text.startswith(head) else -1
    ends = len(text), len(text) - text.endswith("\n")
    return start >= 0 and any(text.endswith(tail, start + len(middle), end) for end in ends)


# --- The five rewards ---------------------------------------------------------------------------------------------


def xmlcount_reward_func(completions: Texts, **kwargs: Any) -> list[float]:
    """-inf … 0.5: partial credit tag by tag, see `count_xml`."""
    return [count_xml(completion_text(completion)) for completion in completions]


def soft_format_reward_func(completions: Texts, *, template: str = XML_COT_FORMAT, **kwargs: Any) -> list[float]:
    """0.5 where reasoning and answer stand in their tags, in this order, from the very start of the text; else 0."""
    return [0.5 if has_soft_format(completion_text(completion), template) else 0.0 for completion in completions]


def strict_format_reward_func(completions: Texts, *, template: str = XML_COT_FORMAT, **kwargs: Any) -> list[float]:
    """0.5 where the text is the template, filled in, and nothing else; else 0."""
    return [0.5 if has_strict_format(completion_text(completion), template) else 0.0 for completion in completions]


def int_reward_func(completions: Texts, **kwargs: Any) -> list[float]:
    """0.5 where the extracted answer is all digits (`str.isdigit`, so `²` and `٣` count and `-5` does not); else 0."""
    return [0.5 if extract_xml_answer(completion_text(completion)).isdigit() else 0.0 for completion in completions]


def correctness_reward_func(completions: Texts, answer: Golds, **kwargs: Any) -> list[float]:
    """2.0 where the extracted answer is the gold answer, character by character; else 0."""
    pairs = zip(completions, answer, strict=True)
    return [2.0 if extract_xml_answer(completion_text(completion)) == gold else 0.0 for completion, gold in pairs]


# --- Steps: arithmetic in the reasoning, confirmed by math-verify -------------------------------------------------

_ANNOTATION = re.compile(r"<<([^<>]*)>>(?: ?[$€£]?(-?[$€£]?(?:[0-9][0-9,]*(?:\.[0-9]+)?|\.[0-9]+)))?")  # GSM8K's
_UNREAD = (  # functions, operators in words, powers, 4 thousand: no number beside them is read
    r"\s*(?:\\[A-Za-z]+|[^\W\d_]{2,}(?=\()|[√∛^_]|(?i:\b(?:sqrt|root|log|ln|mod|plus|minus|times|negative|twice|double"
    r"|triple|half +of|(?:divided|multiplied) +by)(?: +of)?(?=\s*[0-9(.])))\s*|(?<=[0-9)])\s*(?i:\b"
    r"(?:hundred|thousand|million|billion|trillion|dozen|squared|cubed|factorial|pi)s?\b)\s*"
)
_CLEANING = (  # in this order; _ is a word, | the end of a clause, ~ about, ? a variable or what else is not read
    (r"^\s*(?:[-*+•]|[0-9]+[.)])\s+|\*\*|[$€£¥¢`\"“”‘✓✅&]|\\(?:[()\[\]!]|(?=[$%])|(?:left|right)\b)", ""),
    (r"\\(?:[,;: ]|q?quad\b)", " "), (r"\\(?:text|mathrm|mathbf)\{([^{}]*)\}", r"\1"),
    (r"\\[dt]?frac\{([^{}]*)\}\{([^{}]*)\}", r"((\1)/(\2))"), (r"\\boxed\{([^{}]*)\}", r"\1"),
    # 1,200; 48 (clips); ml/g; $9/day
    (r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))|\((?:e?s|[^-+*/=()0-9]{2,})?\)|(?<=[a-z])/[a-z]+|/\s*[A-Za-z]{2,}", ""),
    (r"[-=]+>|→|\\(?:\\|implies\b|Rightarrow\b)|\.(?![0-9])|[,;:!?](?=\s|$)", "|"),
    (r"≈\s*|\\approx\b\s*", "=~"), (r"[\u2212\u2013]", "-"), (r"÷|\\div\b", "/"), (r"(?<=[0-9])\s*percent\b", "%"),
    (r"[×·⋅∗]|\\times\b|\\cdot\b|(?<![A-Za-z])[xX]\s*(?=[0-9(.])", "*"),  # 15x2, 3 boxes x 4
    (r"(?<![0-9./])([0-9]+/[0-9]+)\s+of\s+(?=[0-9(])", r"(\1)*"),  # 1/2 of 50
    (r"(?<=[0-9)])(?=\([0-9.])|(?<=[%)])\s*of\s+(?=[0-9(])", "*"),  # 200(.60), 20% of 50
    (_UNREAD, "?"), (r"[^\W\d_]{2,}(?:['’-][^\W\d_]+)*|\b[aAI]\b(?= +[a-z])|(?<=[0-9])-(?=[A-Za-z])", "_"),
    (r"[^-+*/()0-9.%=_|~\s]", "?"),
)  # fmt: skip
_OPERAND = re.compile(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+)(%?)")
_OPERATOR = re.compile(r"[0-9%)][-+*/]")
_SPLIT = re.compile(r"[^\s_|]*[0-9]\s+(?:[0-9]{3}(?![-0-9_])|[0-9]+/[0-9])")  # 4 000, 3 1/2
_PERCENTS = re.compile(r"(?:[-+(]*[0-9.]+%\)*)+")  # each operand, none times or divided
_AROUND = r"[\s_]*([-+*/])[\s_]*|[\s_]+(?=\))|(?<=\()[\s_]+"  # units and spaces within an expression
_EXPRESSION = re.compile(rf"~?-?\(*-?{_OPERAND.pattern}\)*(?:[-+*/]\(*-?{_OPERAND.pattern}\)*)*")


def _expression(text: str) -> str:
    """The text where it is a short expression of numbers, percent signs, brackets and + - * /; else nothing."""
    text = text if text.count("(") == text.count(")") else text.strip("()")  # of `(since 3 + 4 = 7)`
    return text if len(text) <= 100 and _EXPRESSION.fullmatch(text) and text.count("(") == text.count(")") else ""


def equations(line: str) -> list[tuple[str, str]]:
    """Both sides of every equation of numbers in a line; words, units and currencies are skipped, variables are not.

    An annotation `<<a=b>>c` is two, a = b and b = c. A side of it that is no arithmetic is empty.

    >>> equations("In May she sold 48 clips / 2 = <<48/2=24>>24 clips."), equations("x + 3 = 10")
    ([('48/2', '24'), ('24', '24'), ('48/2', '24')], [])
    """
    found = []
    for annotation, result in _ANNOTATION.findall(line):
        left, _, right = annotation.replace(" ", "").removeprefix("+").partition("=")
        found.append((_expression(left), _expression(right)))
        found += [(_expression(right), re.sub("[$€£,]", "", result))] if result else []
    for pattern, replacement in ((_ANNOTATION, r"\2"), *_CLEANING):
        line = re.sub(pattern, replacement, line)
    read, last = [], None
    for text, after in itertools.pairwise(line.split("=")):
        before, after = re.sub(_AROUND, r"\1", text.strip(" _")), re.sub(r"\s*([-+*/])\s*", r"\1", after.strip())
        left, right = re.split(r"[\s_|]", before)[-1].lstrip("~"), re.split(r"[\s_|]", after)[0]
        sides = _expression(left), _expression(right.rstrip("+-*/"))
        if (left == sides[0] and re.search(r"[0-9)%]\s+[^\s_|]+$", before)) or _SPLIT.match(after):
            read.append(("", ""))  # 12 000 / 2 is no 0 / 2
        elif all(sides) and (left in (text.strip(), before if before == last else None) or _OPERATOR.search(left)):
            read.append(sides)  # a bare number has no words beside it, or is the side of the chain before
        last = right
    return found + read if found or any(map(_OPERATOR.search, map("=".join, read))) else []


@functools.lru_cache(maxsize=2**15)  # the same steps come again and again in a group
def _value(expression: str, percent: int) -> Any:
    """An expression's exact value as a sympy Rational, as math-verify parses it; None where it has none (1/0)."""
    from math_verify import ExprExtractionConfig, parse
    from sympy import Rational

    exact = _OPERAND.sub(lambda found: f"({Fraction(found[1]) / (percent if found[2] else 1)})", expression)
    if not expression or _OPERAND.fullmatch(expression):
        return Rational(exact[1:-1]) if expression else None
    # 50 numbers take no time: no timeout, which would need SIGALRM and the main thread. A digit is to come first.
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it would warn of that
    parsed = parse(f"0+{exact}", [ExprExtractionConfig()], fallback_mode="no_fallback", parsing_timeout=None)
    return next((value for value in (side.doit() for side in parsed[:1]) if value.is_Rational), None)


def is_true(left: str, right: str) -> bool:
    """Whether math-verify finds two expressions equal, or the right one to be the left one, rounded.

    Rounding needs two decimals or more (or ≈, a ~ here), leaves something, and a half goes up, so that one number is
    right. A percent sign divides by 100, or is a unit where one side has it throughout, without * or /, and one never.

    >>> is_true("10/3", "3.33"), is_true("10/3", "3.34"), is_true("7/2", "4"), is_true("100-30", "70%")
    (True, False, False, True)
    """
    from math_verify import verify

    about, right = "~" in right, right.lstrip("~")
    decimals = len(right.rstrip("%").partition(".")[2]) if _OPERAND.fullmatch(right.removeprefix("-")) else 0
    unit = any("%" not in one and _PERCENTS.fullmatch(other) for one, other in ((left, right), (right, left)))
    for percent in (100, 1)[: 1 + unit]:
        value, result = (_value(side, percent) for side in (left, right))
        if value is None or result is None:
            return False
        scale = 10**decimals * (percent if "%" in right else 1)
        rounded = (value * scale * 2 + 1) // 2 / scale if decimals >= 2 or about else value
        if verify([value, rounded or value], result, timeout_seconds=None):
            return True
    return False


def is_verified(line: str) -> bool:
    """Whether a line (of at most 500 characters and 24 equations) holds an equation, and no wrong one."""
    found = equations(line) if len(line) <= 500 else []
    return 0 < len(found) <= 24 and all(is_true(left, right) for left, right in found)


def _numbers(text: str) -> set[Fraction]:
    return {Fraction(found.replace(",", "")) for found in re.findall(r"[0-9][0-9,]{0,30}(?:\.[0-9]{1,30})?", text)}


def verified_lines(text: str, question: str | None = None, template: str | None = None) -> Iterator[str]:
    """The verified lines in the template's reasoning, if that is closed, that bring a new equation.

    None, or a template of this file, is the first `<think>` or `<reasoning>`. Where the question is known, a line must
    also take up one of its numbers, or of the verified lines before it.

    >>> list(verified_lines("<think>\\n1 + 1 = 2\\n3 * 4 = 12\\n3*4 = 12.0\\n12 - 7 = 5\\n</think>", "4 a day?"))
    ['3 * 4 = 12', '12 - 7 = 5']
    """
    if template in (None, XML_COT_FORMAT, THINK_FORMAT):
        template = THINK_FORMAT if re.search("<think>|<reasoning>|$", text)[0] == "<think>" else XML_COT_FORMAT
    head, end = ([part.strip(), *re.findall(r"</?\w+>", part)] for part in template_parts(template)[:2])
    start = text.find(head[-1]) + len(head[-1])
    stop = text.find(end[1 % len(end)], start) if head[-1] in text else -1
    lines = text[start:stop].splitlines() if stop >= 0 else []
    seen, known = set(), _numbers((question or "")[:10_000])
    for line in itertools.islice((line for line in lines if re.search(r"[=≈]|\\approx", line)), 64):  # more cost time
        if is_verified(line):
            sums = filter(_OPERATOR.search, pairs := list(map("=".join, equations(line))))  # 7 = 7 is nothing new
            new = {_OPERAND.sub(lambda found: f"{Fraction(found[1])}{found[2]}", pair) for pair in sums} - seen
            if new and (question is None or known & _numbers(" ".join(left for left, _ in equations(line)))):
                seen, known = seen | new, known | _numbers(" ".join(pairs))
                yield line


# --- More rewards -------------------------------------------------------------------------------------------------

FILLERS = ("as an ai", "i hope this helps", "let me know if", "certainly!", "great question")  # in any case
_SHOWN: list[tuple[int, int]] = []  # the step of which debug printed last


def signed_correctness_reward_func(completions: Texts, answer: Golds, **kwargs: Any) -> list[float]:
    """1 where the extracted answer is the gold answer, character by character; else -1."""
    return [value - 1 for value in correctness_reward_func(completions, answer)]


def numeric_correctness_reward_func(completions: Texts, answer: Golds, **kwargs: Any) -> list[float]:
    """2.0 where the answer is the gold answer or the same number in other clothes (`$72.00`, `72 apples`); else 0."""
    pairs = zip(map(completion_text, completions), answer, strict=True)
    return [2.0 * (extract_xml_answer(text) == gold or is_numerically_correct(text, gold)) for text, gold in pairs]


def step_verified_reward_func(
    completions: Texts, answer: Golds, *, line_value: float = 0.2, answer_value: float = 0.4, max_lines: int = 3,
    template: str | None = None, **kwargs: Any,
) -> list[float]:  # fmt: skip
    """0 … 1: 0.2 for each of up to three `verified_lines` (more pay nothing: no padding), 0.4 for the gold answer."""
    if max_lines < 0:
        raise ValueError(f"max_lines {max_lines}: give at least 0")
    questions = map(_question, kwargs["prompts"]) if "prompts" in kwargs else itertools.repeat(None)
    found = map(verified_lines, map(completion_text, completions), questions, itertools.repeat(template))
    steps = [len(list(itertools.islice(lines, max_lines))) for lines in found]
    right = correctness_reward_func(completions, answer)
    return [round(float(line_value * n + answer_value * bool(paid)), 10) for n, paid in zip(steps, right, strict=True)]


def incremental_format_reward_func(completions: Texts, *, template: str | None = None, **kwargs: Any) -> list[float]:
    """-inf … 1: 0.25 for each of the template's four tags that occurs once, less 0.001 a character after the last."""
    values = []
    for text in map(completion_text, completions):  # without a template, <think> or <reasoning>: what the text uses
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
        raise ValueError(f"low {low}, high {high}, margin {margin}: give 0 <= low <= high and margin >= 0")
    outside = [max(low - len(ids), len(ids) - high, 0) for ids in completion_ids]
    return [max(0.0, 1 - tokens / (margin or 0.5)) for tokens in outside]


def overlong_reward_func(
    completions: Texts, completion_ids: Ids, *, max_completion_length: int = 786, cache: int | None = None,
    **kwargs: Any,
) -> list[float]:  # fmt: skip
    """-1 … 0: 0 up to `cache` tokens (None: a fifth) below the limit, from there falling to -1 at the limit.

    Source: soft overlong punishment, Q. Yu et al., "DAPO" (2025), equation 13. A run passes its own limit.
    """
    cache = max(1, max_completion_length // 5) if cache is None else cache
    if not 1 <= cache <= max_completion_length:
        raise ValueError(f"cache {cache}: give 1 to max_completion_length ({max_completion_length})")
    return [max(-1.0, 0.0 - max(0, len(ids) - max_completion_length + cache) / cache) for ids in completion_ids]


def repetition_reward_func(completions: Texts, *, ngram_size: int = 3, **kwargs: Any) -> list[float]:
    """-1 … 0: the share of a text's n-grams of words that are repetitions, negative.

    Source: E. Yeo et al., "Demystifying Long Chain-of-Thought Reasoning in LLMs" (2025), appendix C.2, as in open-r1.
    """
    if ngram_size < 1:
        raise ValueError(f"ngram_size {ngram_size}: give at least 1")
    texts = (completion_text(completion).lower().split() for completion in completions)
    ngrams = [list(zip(*(words[start:] for start in range(ngram_size)), strict=False)) for words in texts]
    return [len(set(found)) / len(found) - 1 if found else 0.0 for found in ngrams]


def style_reward_func(completions: Texts, *, phrases: Sequence[str] = FILLERS, **kwargs: Any) -> list[float]:
    """-0.5 … 0: -0.1 for each time that one of the phrases occurs, in whatever case."""
    texts = [completion_text(completion).lower() for completion in completions]
    return [0.0 - min(5, sum(text.count(phrase.lower()) for phrase in phrases if phrase)) / 10 for text in texts]


def debug_reward_func(
    completions: Texts, answer: Golds, *, count: int = 2, every: int = 10, **kwargs: Any
) -> list[float]:
    """1.0 for all, which moves no advantage; prints `count` samples every `every` optimizer steps, in one process."""
    if every < 1 or count < 0:
        raise ValueError(f"every {every}, count {count}: give every >= 1 and count >= 0")
    state, prompts = kwargs.get("trainer_state"), kwargs.get("prompts", completions)
    now = state and (id(state), state.global_step)
    if now and now[1] % every == 0 and now not in _SHOWN and os.environ.get("RANK", "0") == "0":
        _SHOWN[:] = [now]  # once a step, which may have several rollouts
        for text, gold, ask in list(zip(map(completion_text, completions), answer, prompts, strict=True))[:count]:
            row = f"Question: {_question(ask)}\nGold: {gold}\nResponse: {text}\nExtracted: {extract_xml_answer(text)}"
            print(f"--- step {now[1]}\n" + "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in row))
    return [1.0] * len(completions)


def short_name(reward: str) -> str:
    """A reward's name as people read it: `correctness_reward_func` → `correctness`."""
    return reward.removesuffix("_func").removesuffix("_reward")


# The names that `reward_funcs` may list, and the keys TRL logs as `rewards/<name>/mean`.
REWARD_FUNCS: dict[str, Callable[..., list[float]]] = {
    reward.__name__: reward for reward in (
        xmlcount_reward_func, soft_format_reward_func, strict_format_reward_func, int_reward_func,
        correctness_reward_func, signed_correctness_reward_func, numeric_correctness_reward_func,
        step_verified_reward_func, incremental_format_reward_func, length_reward_func, overlong_reward_func,
        repetition_reward_func, style_reward_func, debug_reward_func,
    )
}  # fmt: skip
GIST_REWARDS = list(REWARD_FUNCS)[:5]  # the five of the recipe, its default
