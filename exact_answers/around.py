"""Read a mark with what stands around it: what touches it makes another value, what is said beside it may deny it."""

import re
from collections.abc import Sequence

from exact_answers import marks, units, words
from exact_answers.claims import read_sentence
from exact_answers.clauses import Claim
from exact_answers.compare import Expression, Meaning, Number, read, same
from exact_answers.marks import Mark
from exact_answers.prose import DENIED, NOT_UNDERSTOOD, TWO, VALUE, Reading, decide, sentences, together
from exact_answers.spans import LONGEST, begins, spans
from exact_answers.writing import Token, get, normalize, tokenize, without_split_displays

MAX_BEFORE, MAX_AFTER = 400, 6_000  # characters before and after a mark that are read with it
_INSIDE = {
    "$",
    "\\(",
    "\\[",
    "\\)",
    "\\]",
    "\\text",
    "\\mathrm",
    "\\mathbf",
    "{",
    "}",
    ")",
}  # between a mark and its words
_VALUED = {"operator", "power", "relation", "command", "number", "open", "currency", "unknown"}
_FORMULA = {"equals", "close", "percent", "quote"}


def read_around(text: str, mark: Mark) -> Reading:
    r"""Read a mark with what stands around it.

    What touches it (a sign, a factor, a scale, a relation) makes another value of it, which is returned. The words of
    its sentence and of those after it may deny it, claim another value, or not be understood.

    Returns:
        Without a meaning: `value`, the mark's content stands; else why it does not, with text where words before the
        mark deny it. With a meaning: the value that it is a part of.
    """
    earlier = marks.last(text[: mark.start])
    if earlier and text.startswith("<answer>", earlier.start) and "</answer>" not in text[earlier.start : mark.start]:
        earlier = None  # the tag around it
    start = max(mark.start - MAX_BEFORE, earlier.end if earlier else 0)
    if earlier and marks.joins(text[earlier.end : mark.start]) and not _alike(earlier, mark):
        return Reading(None, "", TWO)
    rest = text[mark.end :]
    if len(rest) > MAX_AFTER:
        return Reading(None, "", NOT_UNDERSTOOD)
    before, after = (tokenize(normalize(half)) for half in without_split_displays(text[start : mark.start], rest))
    spaced = text[mark.start - 1 : mark.start].isspace()
    while before and (before[-1].text in _INSIDE - {"{", "}", ")"} or before[-1].kind == "bold"):
        spaced = spaced or not before[-1].glued or before[-1].text in ("\\[", "\\(")
        before.pop()
    opened = len(before)
    while opened and before[opened - 1].text in ("{", "\\text", "\\mathrm", "\\mathbf"):
        opened -= 1
    command = get(before, opened - 1) if opened < len(before) else None
    if command is None or command.kind != "command":
        before = before[:opened]
    closing = 0
    if not (command and command.kind == "command"):
        while closing < len(after) and (after[closing].text in _INSIDE - {"{"} or after[closing].kind == "bold"):
            closing += 1
    glued = closing < len(after) and after[closing].start == (after[closing - 1].end if closing else 0)
    after = after[closing:]
    *_, sentence = sentences([*before, Token("mark", "", 0, 0, not spaced, "")])
    whole, sentence = sentence[:-1], _without_left_side(sentence[:-1])
    spaced = spaced or len(sentence) < len(whole)
    line = text[max(mark.start - MAX_BEFORE, 0) : mark.start].rpartition("\n")[2]
    if text.startswith("####", mark.start) and not line.strip() and [token.text for token in sentence[-1:]] != [":"]:
        sentence = []
    if text[mark.start : mark.start + 1].isalpha():  # Upper bound for the answer: 72
        label = [token.low for token in sentence if token.kind == "word"]
        if not all(words.is_harmless(low) for low in label) or words.any_of(label[-1:], words.DOUBTFUL):
            return Reading(None, "", DENIED if words.denies_in(label) else NOT_UNDERSTOOD)
    value: Meaning | None = None
    said = mark.text
    if _is_enclosed(text, mark) or _is_doubted(before[: max(len(before) - len(sentence), 0)]):
        return Reading(None, "", NOT_UNDERSTOOD)
    begins_line = spaced and "\n" in text[: mark.start] and not re.search(r"[\w=]", line)
    block = text.startswith("<", mark.start)
    if (_touches_before(sentence, spaced, block) and not begins_line) or (after and _touches_after(after, glued)):
        value, said, sentence, after = _widened(sentence, mark.text, after, spaced)
        if value is None:
            return Reading(None, "", NOT_UNDERSTOOD)
    place = Token("mark", said or " ", 0, 0, False, "\\mark")
    seen = {token.low for token in before[: max(len(before) - len(sentence), 0)]}
    claims, why = decide(list(sentences([*sentence, place, *after])), seen)
    if claims and any(claim.mark for claim in claims):
        why = together(claims).why if len(claims) > 1 else VALUE
        return Reading(value, said, VALUE) if value and why == VALUE else Reading(None, "", why)
    first = read_sentence([*sentence, place], seen=seen)
    return Reading(None, "denied" if first.denies else "", DENIED if claims or first.denies else why)


def _widened(
    sentence: Sequence[Token], text: str, after: Sequence[Token], spaced: bool
) -> tuple[Meaning | None, str, list[Token], list[Token]]:
    """Read a mark's content with the signs that touch it; return the value, its text, and the tokens around it."""
    start = len(sentence)
    while start and (
        sentence[start - 1].kind in _VALUED
        or (start == len(sentence) and not spaced)
        or (start < len(sentence) and len(sentence[start - 1].text) < 3 and sentence[start - 1].kind == "word")
    ):
        start -= 1
    content = tokenize(normalize(text))
    if not isinstance(read(text), Number | Expression):
        return None, "", [], []
    if len(content) > 1:
        content = [Token("open", "(", 0, 0, False, "("), *content, Token("close", ")", 0, 0, True, ")")]
    content[0] = content[0]._replace(glued=not spaced)
    tokens = [*sentence[start:], *content, *after]
    found = spans(tokens[: len(sentence) - start + len(content) + LONGEST])
    end = found[0].end if found and found[0].start == 0 else 0
    if end < len(sentence) - start + len(content):
        return None, "", [], []
    said, rest = Claim([tokens[:end]]), tokens[end:]
    while rest and rest[0].text in ("$", "\\)", "\\]"):
        rest = rest[1:]
    return said.meaning, str(said), list(sentence[:start]), rest


def _alike(one: Mark, other: Mark) -> bool:
    return one.text == other.text or same(read(one.text), read(other.text))


def _is_enclosed(text: str, mark: Mark) -> bool:
    """True for a mark in brackets with something else: (50, \\boxed{55}); or behind a point: 0.\\boxed{55}."""
    before, after = text[max(mark.start - 60, 0) : mark.start], text[mark.end : mark.end + 60]
    opened = re.search(r"(?<!\\\\)[(\[]([^()\[\]\n]*)\Z", before)
    closed = re.match(r"([^()\[\]\n]*)(?<!\\\\)[)\]]", after)
    shared = opened and closed and re.search(r"[0-9,]", opened[1] + closed[1])
    return bool(shared) or re.search(r"[0-9.]\.\Z|(?:^|\s)\.\Z|[¬!]\Z", before) is not None


def _is_doubted(before: Sequence[Token]) -> bool:
    """True if the last sentence before that of a mark refuses what follows, or is a doubt: I have no idea."""
    *_, last = [], *sentences(before)
    lows = [token.low for token in last if token.kind == "word"]
    forward = words.any_of(lows, {"following", "follows", "below", "next"})
    refused = words.any_of(lows, words.REFUTING) or any(map(words.denies, lows))
    if any(token.kind == "number" for token in last):
        return False
    short = 0 < len(lows) < 7
    doubt = words.any_of(lows, words.FIRST_PERSON) and any(map(words.denies, lows))
    unknown = forward and not all(words.is_harmless(low) for low in lows)
    short = short or (doubt and len(lows) < 12)
    return (forward and (refused or unknown)) or (short and (doubt or words.any_of(lows, words.HEDGES)))


def _without_left_side(sentence: list[Token]) -> list[Token]:
    """Drop the formula before a last equals sign: So 48 + 24 = is so."""
    end = len(sentence)
    if not sentence or not (sentence[-1].kind == "equals" or sentence[-1].text == "\\in"):
        return sentence
    depth = 0
    while end and (sentence[end - 1].kind in _VALUED | _FORMULA or _is_name(sentence[end - 1])):
        depth += (sentence[end - 1].kind == "close") - (sentence[end - 1].kind == "open")
        if depth == 0 and sentence[end - 1].kind == "comma":
            break
        end -= 1
    return sentence[:end]


def _is_name(token: Token) -> bool:
    """True for what may be a name in a formula: x, AB, ABC; not is, of."""
    short = len(token.text) == 1 or (len(token.text) == 2 and not words.is_harmless(token.low))
    return short or (token.text.isupper() and len(token.text) < 5) or token.kind not in ("word", "abbreviation", "han")


def _touches_before(sentence: Sequence[Token], spaced: bool, block: bool) -> bool:
    """True if the token before a mark makes another value of it: -, <, 2, \\sqrt{."""
    if not sentence:
        return False
    token, before = sentence[-1], get(sentence, len(sentence) - 2)
    if block:
        return token.kind in ("operator", "relation", "command") and not spaced
    if token.kind == "operator":
        return not (spaced and before is None and token.text in "-*+")  # a bullet
    if token.kind == "unknown":
        return True
    if token.kind == "colon":
        return not spaced and before is not None and before.kind == "number" and token.glued
    if token.kind in ("number", "word", "close"):
        return token.kind == "number" or not spaced
    if token.text in ("(", "["):
        return before is not None and token.glued and before.kind in ("word", "number", "command")
    formula = token.kind == "command" and token.text not in ("\\approx", "\\in", "\\$")
    return formula or token.kind in ("power", "relation") or token.text == "{"


def _touches_after(after: Sequence[Token], glued: bool) -> bool:
    """True if the token after a mark makes another value of it: + 1, ^2, million, % of 50, km."""
    token, following = after[0], get(after, 1)
    if token.kind in ("power", "percent", "relation", "equals") or token.text in ("{", "_", "\\%"):
        return True
    if token.kind in ("colon", "quote"):
        return glued and following is not None and following.kind == "number" and following.glued
    if token.kind == "operator":
        return token.text != "|" and (glued or (following is not None and begins(after, 1)))
    if token.kind == "command":
        return token.text not in ("\\\\", "\\,", "\\quad", "\\end", "\\blacksquare", "\\square")
    if token.kind in ("number", "comma") and glued:
        return token.kind == "number" or (following is not None and following.kind == "number" and following.glued)
    if token.kind == "word":
        scale = token.low in units.SCALES or token.low.removesuffix("s") in units.SCALES
        return glued or scale or bool(units.symbol_of(token.text)) or token.low in ("percent", *words.OPERATIONS)
    return False
