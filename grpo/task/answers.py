"""Find the answer in a text, and the lenient rule: whether it is the gold answer, however it is written.

Numbers are compared exactly and without their units, formulas by their values (formulas.py), all else as text. Two
different answers ("72 or 71") are none. A judgement depends on the texts alone: no clock, no signal, any thread.
"""

import functools
import re
from collections.abc import Iterator
from fractions import Fraction

from grpo.task.formulas import (
    NO_FORMULA,
    NUMBER,
    Number,
    clean,
    is_formula,
    number_of,
    read,
    read_number,
    same,
    with_slashes,
)
from rewards import extract_xml_answer

# Where an answer is; or a template such as "Final: {answer}"
ANSWER_PATTERNS = ("xml", "boxed", "hash", "final", "text")

# --- Extraction ---------------------------------------------------------------------------------------------------

# Everything that opens or closes a brace in LaTeX, and the rest of a line after "Answer:", also "**Final answer**:"
_BRACES = re.compile(r"\\[\\{}]|(?:\\(?:boxed|fbox)\s{0,9})?\{|\}")
_FINAL = re.compile(r"(?i)(?<![a-z])(?:(?:final )?answer|final)(?: is)?[*_]{0,3} ?[:：][*_]{0,3}")


def extract_answer(text: str, pattern: str = "xml") -> str:
    r"""The answer in a completion or a gold solution, stripped; the whole text, stripped, where the mark is missing.

    Patterns: `xml`, the last `<answer>…</answer>`; `boxed`, the last `\boxed{…}` or `\fbox{…}` that is closed; `hash`,
    the line after the last `####`, cleaned like GSM8K's; `final`, the line after the last `Answer:`, `Final:` or
    `Final answer is:`, without bold type, dollar delimiters and a final full stop; `text`, the whole text; or a
    template, `Final: {answer}`, the last one, up to what follows `{answer}` in it, or to the end of the line.

    >>> extract_answer(r"So $x = \boxed{\frac{1}{2}}$.", "boxed"), extract_answer("2 + 2 = 4\n#### $4,000", "hash")
    ('\\frac{1}{2}', '4000')
    >>> extract_answer("**Answer:** $72$.", "final"), extract_answer("So [[72]], of course", "[[{answer}]]")
    ('72', '72')
    """
    if pattern == "xml":
        return extract_xml_answer(text)
    answer = find_answer(text, pattern)
    return text.strip() if answer is None else answer


def find_answer(text: str, pattern: str) -> str | None:
    """The answer as `extract_answer` has it; None where the mark is missing."""
    check_pattern(pattern)
    if pattern == "text":
        return text.strip()
    if pattern == "boxed":
        return _last_box(text)
    if pattern == "hash":
        _, mark, rest = text.rpartition("####")
        answer = _first_line(rest)
        # the comma of (1, 200) and the dollars of a formula have a meaning
        if not re.search(r"[\\({[]", answer):
            answer = re.sub(r"\$|(?<=[0-9]),(?=[0-9]{3})", "", answer)
        return answer if mark else None
    if pattern == "final":
        *_, end = 0, *(mark.end() for mark in _FINAL.finditer(text))
        return without_marks(_first_line(text[end:])) if end else None
    before, _, after = ("<answer>{answer}</answer>" if pattern == "xml" else pattern).partition("{answer}")
    _, mark, rest = text.rpartition(before.strip())
    closing = re.escape(after.strip()) + r"(?!(?<=[.,])[0-9])"  # the first stop in 3.5. closes nothing
    answer = re.split(closing, rest, maxsplit=1)[0].strip() if after.strip() else _first_line(rest)
    return answer if mark else None


def check_pattern(pattern: str) -> None:
    """Raise ValueError unless `find_answer` knows this pattern.

    >>> check_pattern("latex")
    Traceback (most recent call last):
    ValueError: answer pattern 'latex': use xml, boxed, hash, final or text, or a template such as 'Final: {answer}'
    """
    before, mark, _ = pattern.partition("{answer}")
    if pattern not in ANSWER_PATTERNS and not (mark and before.strip() and pattern.count("{answer}") == 1):
        known = "use xml, boxed, hash, final or text, or a template such as 'Final: {answer}'"
        raise ValueError(f"answer pattern {pattern!r}: {known}")


def without_marks(answer: str) -> str:
    """An answer without spaces, bold type, dollar delimiters and a full stop around it.

    >>> [without_marks(answer) for answer in ("**72**.", "$x + 1$.", "$5", "9 a.m.")]
    ['72', 'x + 1', '$5', '9 a.m.']
    """
    answer = re.sub(r"(?<![.\s])(?<![A-Za-z]\.[A-Za-z])\.$", "", answer.strip().strip("*").strip()).strip("*").strip()
    in_dollars = len(answer) > 2 and answer[0] == answer[-1] == "$" and answer.count("$") == 2
    return answer[1:-1].strip() if in_dollars else answer


def _first_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[0].strip()


def _last_box(text: str) -> str | None:
    opened: list[re.Match[str]] = []
    start, answer = -1, None
    for brace in _BRACES.finditer(text):
        if brace[0] == "}" and opened:
            opening = opened.pop()
            if opening[0] != "{" and opening.start() > start:
                start, answer = opening.start(), text[opening.end() : brace.start()].strip()
        elif brace[0].startswith(("{", "\\boxed", "\\fbox")):
            opened.append(brace)
    *_, bare = None, *re.finditer(r"\\(?:boxed|fbox)\s+(-?[\w./]*\w)", text)  # `\boxed 5`, as some of MATH's rows
    return bare[1] if bare and bare.start() > start else answer


# --- The lenient rule ---------------------------------------------------------------------------------------------

MAX_TEXT = 10_000  # characters at the end of a text that are searched

# What comes before a conclusion, and what ends it
_SAID = re.compile(r"(?i)\b(?:is|are|at|equals|answer|option|choice)\b:?\s|:\s")
_CLAUSE = re.compile(r"[.;!?](?=\s|$)|,\s(?=[a-z]{2})|\s(?=(?:because|since|so|which|where|when|as|if|for)\b)")
_DELIMITED = re.compile(r"\$\$?([^$]+)\$\$?|\\\[(.+?)\\\]|\\\((.+?)\\\)", re.DOTALL)
_MATHEMATICS = re.compile(r"[0-9=<>^]|\\[a-zA-Z{]|[-+*/]\s?[A-Za-z]")
_MORE_THAN_NUMBERS = re.compile(r"\\[a-z]|\^|[0-9]!(?=[-+*/]|$)|^\||^[(\[{\\].*,")  # roots, powers, tuples
_VARIABLES = re.compile(  # n(n + 1), 3x = 6 and x = 1, y = 2, but not 5 m + 3 m = 8 m
    r"(?<![A-Za-z])(?![mgshlL])[A-Za-z]\s?[-+*/(]|[0-9](?![mgshlL])[A-Za-z](?![A-Za-z])[^=]*=|=.*,.*="
)

# Where a number is a part of something else, or no answer: before it, and after it
_BEFORE = re.compile(
    r"(?i)(?:\b(?:not|cannot|never|minus|negative|(?:rather|less|more|greater) than|instead of)(?: be)?"
    r"|n['’]t(?: be)?|\\pm|\\sqrt|[\^<>_]|\\ne|[<>]=|[0-9]:"
    r"|(?<![a-z])[a-z]\s?[-+*/])\s*[{$(]*$"
)
_AFTER = re.compile(  # a variable, but not 72cm; a power; 72:00; a relation; 72/x, 72 + x; 72 is wrong
    r"(?!(?:cm|mm|km|kg|mg|ml|ft|in|mi|lb|oz|hr|st|nd|rd|th|am|pm|[mgshlL])\b)[A-Za-z]{1,2}(?![A-Za-z])"
    r"|\}?\s?(?:\^|\\(?:sqrt|pi|pm))|:[0-9]|\s?[<>]|/?[0-9]|\s?/\s?(?![mgshlL]\b)[A-Za-z](?![A-Za-z])"
    r"|\s?[-+*]\s?[A-Za-z]{1,2}(?![A-Za-z]|\s[A-Za-z]{2})|\([A-Za-z]|\s(?:is|was)(?:n['’]t| not| wrong)"
)
# Two numbers that are two answers: `72 or 71`, `72, no 71`, `71, 72`
_OR = r"\b(?:or|no|nope|maybe|perhaps|possibly|wait|actually|vs)\b"
_HEDGE = re.compile(rf"(?:\s+[a-z]+){{0,3}}[\s,;:?($-]*{_OR}(?:[\s,;:?($]|{_OR}|\b(?:it|is|I|mean)\b)*")
_ONLY_NUMBERS = re.compile(rf"(?:[\s,;|&?!().:$\[\]/-]|{_OR}|\b(?:and|either|both|between|from|to|not)\b)*")


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


def same_answer(answer: str, gold: str, text: str = "") -> bool:
    r"""The lenient rule for an extracted answer. Never raises.

    Args:
        answer: a number or formula, or a sentence that ends with it; if it marks its own answer, that counts.
        gold: the gold answer.
        text: the whole completion, whose last number counts where the answer has none.

    >>> same_answer("so it is $1,000.", "1000"), same_answer("72 or 71", "72"), same_answer("Paris.", "paris")
    (True, False, True)
    >>> same_answer(r"x = \frac{1}{2}", "0.5"), same_answer("(7,2)", "(1,2)"), same_answer(r"\sqrt{18}", r"3\sqrt{2}")
    (True, False, True)
    """
    if len(gold) > MAX_TEXT:
        return False
    answer = answer[-MAX_TEXT:]
    marked = (find_answer(answer, mark) for mark in ("xml", "boxed", "final", "hash"))
    answer, wanted = clean(next((said for said in marked if said is not None), answer)), clean(gold)
    if plain(answer) == plain(wanted):
        return True
    kind = kind_of(gold)
    if kind == "text":
        return _same_text(answer, wanted)
    if kind == "number" and is_formula(answer) and _VARIABLES.search(answer):
        return same(read(answer), read(wanted))
    if kind == "number" and is_formula(answer) and "=" in answer and same(read(answer), read(wanted)):
        return True  # 72 = 70 + 2
    for candidate in (answer, *_concluded(answer)):
        if is_formula(candidate) and (kind == "mathematics" or _MORE_THAN_NUMBERS.search(candidate)):
            meaning = read(candidate)
            if meaning is not None or (candidate is answer and "\\" in answer):
                return same(meaning, read(wanted))
    if kind == "mathematics":
        return False
    number = read_number(answer) or _last_number(answer)
    if number is None and not NUMBER.search(answer):
        number = _last_number(clean(text[-MAX_TEXT:]))
    return same(number, read(wanted))


@functools.lru_cache(maxsize=2**14)
def kind_of(gold: str) -> str:
    r"""The kind of comparison that a gold answer takes: number, mathematics or text.

    >>> [kind_of(gold) for gold in ("1,000", "5 cm", r"\frac{1}{2}", r"3\sqrt{2}", "(1,2)", "12:30", "Paris")]
    ['number', 'number', 'number', 'mathematics', 'mathematics', 'text', 'text']
    """
    text = clean(gold) if len(gold) <= MAX_TEXT else ""
    if NO_FORMULA.search(text):
        return "text"
    if read_number(text):
        return "number"
    return "mathematics" if is_formula(text) and _MATHEMATICS.search(text) else "text"


def plain(text: str) -> str:
    """A clean text for comparison: without case, spaces that mean nothing, quotes and a final full stop.

    >>> plain(' "New  York". '), plain("( 1, 2 )"), plain("9 a.m."), plain("Mon day")
    ('new york', '(1,2)', '9 am', 'mon day')
    """
    text = re.sub(r"\b([ap])\.\s?m\b\.?", r"\1m", text.casefold().replace("\\", ""))
    text = " ".join(text.strip().rstrip(".").strip("*$_`\"'“”‘’").rstrip(".").split())
    return re.sub(r" (?=[^\w\s])|(?<=[^\w\s]) ", "", text)


def _same_text(answer: str, gold: str) -> bool:
    """True if an answer is the gold text, concludes with it, or chooses its letter: `(B)`, `B) 5`, `Option B`."""
    letter = re.fullmatch(r"\(?([a-z])[).]?", plain(gold))
    for said in (answer, _SAID.split(answer)[-1].split(". ")[0]):
        if plain(said) == plain(gold):
            return True
        chosen = re.match(r"\(?([a-z])(?:[).:]|$)(.*)", plain(said), re.DOTALL)
        if letter and chosen and letter[1] == chosen[1]:
            return not re.search(r"\b[a-j](?:[).:]|$)|\b(?:or|and|not)\b", chosen[2])  # not: B) or C)
    return False


def _concluded(answer: str) -> Iterator[str]:
    """The possible conclusions of a text: after its last "is" or colon, then its last formula in dollar signs."""
    end = answer[-500:]
    yield _CLAUSE.split(_SAID.split(end)[-1], maxsplit=1)[0].strip(" .$")
    formulas = [part for part in _DELIMITED.finditer(end) if not _BEFORE.search(end[: part.start()])][-2:]
    hedged = len(formulas) == 2 and _HEDGE.fullmatch(end[formulas[0].end() : formulas[1].start()])
    if formulas and not hedged:
        yield next(filter(None, formulas[-1].groups())).strip()


def _last_number(text: str) -> Number | None:
    """The number that a clean text ends with; None if it ends with two, `72 or 71`, or in a formula."""
    text = re.sub(r"(?<=[A-Za-z])\s?\^\{?-?[0-9]\}?", "", with_slashes(text[-2000:]))  # 72 cm^2 is 72
    text = re.sub(r"([0-9][A-Za-z ]{0,30})\([^()]*[-+*/=][^()]*\)[\s.]*$", r"\1", text)  # 72 (48 + 24) is 72
    numbers = [match for match in NUMBER.finditer(text) if not _BEFORE.search(text[: match.start()][-25:])][-2:]
    if not numbers or max(len(match[0]) for match in numbers) > 100 or _AFTER.match(text, numbers[-1].end()):
        return None
    one, two = numbers[0], numbers[-1]
    between, rest = text[one.end() : two.start()], NUMBER.sub("", text).lower()
    hedged = _HEDGE.fullmatch(between) or _ONLY_NUMBERS.fullmatch(rest)
    return None if hedged and not same(number_of(one), number_of(two)) else number_of(two)


def last_number(text: str) -> Fraction | None:
    """The value of the number that a text ends with; None without one, and where it ends with two.

    >>> last_number("He has $1,000.50 left."), last_number("18-5"), last_number("= -5"), last_number("72 or 71")
    (Fraction(2001, 2), None, Fraction(-5, 1), None)
    """
    number = _last_number(clean(text[-MAX_TEXT:]))
    return number.value if number else None
