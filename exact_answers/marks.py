r"""Find where a text marks its answer: tags, a box, ####, "Answer:" or a template."""

import ast
import json
import re
from collections.abc import Iterator
from typing import NamedTuple

from exact_answers import units, words

# Named answer patterns; a template such as "Final: {answer}" works, too
ANSWER_PATTERNS = ("xml", "boxed", "hash", "final", "text")

# Everything that opens or closes a brace in LaTeX, and the rest of a line after "Answer:", also "**Final answer**:"
_BRACES = re.compile(r"\\[\\{}](?!boxed|fbox)|(?:\\(?:boxed|fbox)\s{0,9})?\{|\}")
_BARE_BOX = re.compile(r"\\(?:boxed|fbox)\s{1,9}(-?[\w./]{0,40}\w)")  # `\boxed 5`, as in some rows of MATH
_LABELS = "|".join(sorted((word for word in words.ANSWERS - words.WORKING if word.isalpha()), key=len, reverse=True))
_FINAL = re.compile(rf"(?i)(?<![^\W\d_])(?:final )?(?:{_LABELS})(?: finale?)?(?: is)?[*_]{{0,3}} ?[:：][*_]{{0,3}}")


class Mark(NamedTuple):
    """An answer in its mark.

    Attributes:
        start: where the mark begins.
        end: where it ends, behind its closing sign.
        text: what it holds.
    """

    start: int
    end: int
    text: str


def extract_answer(text: str, pattern: str = "xml") -> str:
    r"""Extract the answer from a completion or gold solution, stripped; the whole text if the mark is missing.

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
        return text.rpartition("<answer>")[2].partition("</answer>")[0].strip()
    answer = find_answer(text, pattern)
    return text.strip() if answer is None else answer


def find_answer(text: str, pattern: str) -> str | None:
    """Extract the answer like `extract_answer`; None if the mark is missing."""
    check_pattern(pattern)
    if pattern == "text":
        return text.strip()
    mark = find_mark(text, pattern)
    return mark.text if mark else None


def find_mark(text: str, pattern: str) -> Mark | None:
    """Find the last mark of a pattern."""
    if pattern == "text":
        return None
    if pattern == "boxed":
        return _last_box(text)
    if pattern == "json":
        return _last_object(text)
    if pattern == "hash":
        start = text.rfind("####")
        if start < 0:
            return None
        answer, end = _first_statement(text, start + 4)
        # keep the comma of (1, 200) and the dollars of a formula
        if not re.search(r"[\\({[]", answer):
            answer = re.sub(r"\$|(?<=[0-9]),(?=[0-9]{3})", "", answer)
        return Mark(start, end, answer)
    if pattern == "final":
        *_, found = None, *_FINAL.finditer(text)
        if found is None:
            return None
        said, end = _first_statement(text, found.end())
        if "\n" in text[found.end() : end] and said.startswith("> "):
            said = said[2:]  # a quotation of markdown
        return Mark(found.start(), end, without_marks(said))
    before, _, after = ("<answer>{answer}</answer>" if pattern == "xml" else pattern).partition("{answer}")
    before, after = before.strip(), after.strip()
    start = text.rfind(before)
    if start < 0:
        return None
    start_of_answer = start + len(before)
    if not after:
        line, end = _first_line(text, start_of_answer)
        return Mark(start, end, line)
    closing = re.compile(re.escape(after) + r"(?!(?<=[.,])[0-9])")  # the first stop of 3.5. is part of the number
    closed = closing.search(text, start_of_answer)
    end = closed.start() if closed else len(text)
    return Mark(start, closed.end() if closed else len(text), text[start_of_answer:end].strip())


def last(text: str, pattern: str = "xml", objects: bool = True) -> Mark | None:
    r"""Find the last mark, of a pattern or of any kind, with those that "or" or a comma joins to it; None without one.

    Of marks in one another it is the outermost. The answer of an object counts, too, if `objects`.

    >>> last("So <answer>42</answer>. No. Answer: 41").text, last("#### 41\nNo. <answer>42</answer>").text
    ('41', '42')
    """
    patterns = dict.fromkeys((pattern, "xml", "boxed", "final", "hash", *(["json"] if objects else [])))
    found = [mark for mark in (find_mark(text, each) for each in patterns) if mark is not None]
    if not found:
        return None
    mark = max(found, key=lambda each: (each.end, -each.start))
    while around := [each for each in found if each.start < mark.start and each.end >= mark.end]:
        mark = around[0]
    return mark


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
    """Strip spaces, bold type, dollar delimiters and a full stop from an answer.

    >>> [without_marks(answer) for answer in ("**72**.", "$x + 1$.", "$5", "9 a.m.")]
    ['72', 'x + 1', '$5', '9 a.m.']
    """
    answer = answer.strip().strip("*").strip()
    if answer.endswith(".") and not re.search(r"(?:[.\s]|(?<![A-Za-z])[A-Za-z]\.[A-Za-z])$", answer[-4:-1]):
        answer = answer[:-1].strip("*").strip()
    in_dollars = len(answer) > 2 and answer[0] == answer[-1] == "$" and answer.count("$") == 2
    return answer[1:-1].strip() if in_dollars else answer


def _first_line(text: str, start: int) -> tuple[str, int]:
    """Return the first line that is not empty from a place on, stripped, and where it ends."""
    line = re.compile(r"\s*(?:(?:\$\$|\\\[|```[a-z]{0,10})\s*\n\s*)?([^\n\r\v\f\x1c-\x1e\x85\u2028\u2029]*)").match(
        text, start
    )
    return (line[1].strip(), line.end()) if line else ("", start)


def _first_statement(text: str, start: int) -> tuple[str, int]:
    """Return the first line without a remark after a number, and where it ends: 72. She sold more in May."""
    line, end = _first_line(text, start)
    said = re.split(r"(?<=[0-9])\.\s+(?=[A-Z(])", line)[0]
    return said, end if said == line else text.find(said, start) + len(said)


def _boxes(text: str) -> list[Mark]:
    """Return each closed box, in the order of their starts."""
    opened: list[re.Match[str]] = []
    boxes = []
    for brace in _BRACES.finditer(text):
        if brace[0] == "}" and opened:
            opening = opened.pop()
            if opening[0] != "{":
                boxes.append((opening.start(), brace.end(), opening.end(), brace.start()))
        elif brace[0].startswith(("{", "\\boxed", "\\fbox")):
            opened.append(brace)
    boxes += [(box.start(), box.end(), box.start(1), box.end(1)) for box in _BARE_BOX.finditer(text)]
    last = sorted(boxes)[-8:]  # deeper ones would copy their text again and again
    return [Mark(start, end, text[inner:outer].strip()) for start, end, inner, outer in last]


_JOINTS = "|".join(sorted(filter(str.isalpha, words.JOINING), key=len, reverse=True))
_BETWEEN = re.compile(rf"(?:[\s$,;&]|\\(?:quad|qquad|text|mathrm|,|;)|[{{}}]|\b(?:{_JOINTS}|again|also)\b)*")
_JOINED = re.compile(rf"[,;&]|\b(?:{_JOINTS})\b")


def joins(between: str, beside: bool = False) -> bool:
    """True if the words between two marks put them side by side."""
    if len(between) > 60 or _BETWEEN.fullmatch(between) is None:
        return False
    return _JOINED.search(between) is not None or (beside and "\n" not in between)


def _last_box(text: str) -> Mark | None:
    r"""The last box, or all that a comma, "and" or "or" joins: `\boxed{6} or \boxed{9}` is `6, 9`."""
    found: Mark | None = None
    for box in reversed(_boxes(text)):
        if found is None:
            found = box
        elif box.end <= found.start and joins(text[box.end : found.start], beside=True):
            found = Mark(box.start, found.end, box.text if box.text == found.text else f"{box.text}, {found.text}")
        else:
            break
    return found


_OBJECT = re.compile(r"\{\s*[\"'][^{}]{0,4000}\}")
_KEYS = {"answer", "final_answer", "final answer", "result", "solution", "final"}
_BESIDE = {"reasoning", "explanation", "steps", "thought", "thoughts", "rationale", "work", "working", "confidence"}
_BESIDE |= {"unit", "units", "question", "problem", "id", "type"}


def _last_object(text: str) -> Mark | None:
    """Find the answer in the last JSON object or Python dictionary: one of a few keys, beside known others."""
    *_, found = None, *_OBJECT.finditer(text)
    if found is None:
        return None
    try:
        pairs = json.loads(found[0], object_pairs_hook=list)
    except (ValueError, RecursionError):
        try:
            value = ast.literal_eval(found[0])
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            return None
        pairs = list(value.items()) if isinstance(value, dict) else None
    if pairs is None:
        return None
    named = {str(key).lower(): each for key, each in pairs}
    answers = {json.dumps(named[key], default=str) for key in _KEYS & named.keys()}
    known = len(named) == len(pairs) and named.keys() <= _KEYS | _BESIDE
    inside = text[: found.start()].rstrip().endswith(":") and "{" in text[: found.start()]
    unit = str(named.get("unit", named.get("units", "")))
    scaled = any(word.removesuffix("s") in units.SCALES for word in unit.lower().split())
    answer = next((named[key] for key in _KEYS & named.keys()), None)
    if len(answers) != 1 or not known or inside or scaled or answer is None:
        answer = ""
    return Mark(found.start(), found.end(), answer if isinstance(answer, str) else json.dumps(answer, default=str))


def joined_tags(text: str) -> Iterator[str]:
    """Yield the answers in the last tags, with those that "or" or a comma joins to them, last first."""
    place = len(text)
    for _ in range(8):
        start = text.rfind("<answer>", 0, place)
        if start < 0:
            return
        end = text.find("</answer>", start, place)
        if place != len(text) and (end < 0 or not joins(text[end + len("</answer>") : place])):
            return
        yield text[start + len("<answer>") : end if end >= 0 else len(text)].strip()
        place = start
