r"""Grade a text: where its answer is (marks.py, prose.py), what it is (compare.py), and whether it is the gold answer.

One function decides, `grade`, and says why in one word. It never raises for any text, and depends on the texts alone.
"""

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from exact_answers import around, choices, compare, marks, prose, words
from exact_answers.amounts import Number
from exact_answers.choices import plain
from exact_answers.compare import Either, Equation, Expression, Meaning, Several, Text, read, read_tokens, same
from exact_answers.computed import accepts_arithmetic, leaves_arithmetic
from exact_answers.marks import Mark
from exact_answers.prose import DENIED, NOT_UNDERSTOOD, TWO, VALUE
from exact_answers.writing import normalize, tokenize, unwrapped, without_struck

RULE = "2"  # counted up with each change that makes other texts right
UNIT, NOT_COMPUTED = "unit", "not computed"
MAX_SAME = 60  # characters that a text may be longer than twice the gold answer which it is
MAX_TEXT = 6_000  # characters at the end of a text that are read as prose
MAX_GOLD, MAX_MARKS = 10_000, 8  # characters of a gold answer; marks that are denied, one after the other


class Verdict(NamedTuple):
    """The grade of a text.

    Attributes:
        right: whether its answer is the gold answer.
        read: the answer that was read, "" if none was.
        why: `value` (it was compared as a value or a text), `unit` (the value is right, the unit is not),
            `not computed` (the value is right, but its arithmetic is left to the judge), `two answers`, `denied` (the
            text takes it back), or `not understood`.
    """

    right: bool
    read: str
    why: str


def is_right(text: str, gold: str, pattern: str = "xml", *, computed: bool = True) -> bool:
    r"""The lenient rule: True if the answer equals the gold answer, however it is written. Never raises.

    The same text is right up to case, spaces and a final full stop. If the gold answer is a number or mathematics, any
    text with the same value is right. The answer is taken from the pattern's mark, else from the last mark of any kind
    (a box, "Answer:", ####, tags), else from the claims of the text. What is not understood is wrong.

    Args:
        computed: an answer that leaves its arithmetic to the judge is wrong, unless the gold answer does, too.

    >>> is_right("So it is $1,000.", "1000"), is_right("<answer>Paris.</answer>", "paris"), is_right("no idea", "7")
    (True, True, False)
    >>> is_right(r"\boxed{\frac{1}{2}}", "0.5"), is_right("(7,2)", "(1,2)"), is_right("72 or 71", "72")
    (True, False, False)
    >>> is_right("48 + 24", "72"), is_right("48 + 24", "72", computed=False), is_right("144/2", "72")
    (False, True, True)
    """
    return grade(text, gold, pattern, computed=computed).right


def grade_any(text: str, golds: Sequence[str], pattern: str = "xml", *, computed: bool = True) -> Verdict:
    """Grade a text by any of one or more gold answers: the first right verdict, else the first that was understood.

    A right value that was not computed comes before a wrong one.

    >>> grade_any("<answer>75002</answer>", ["Paris", "75001"]).why
    'value'
    """
    verdicts = [grade(text, gold, pattern, computed=computed) for gold in golds]
    return max(
        verdicts, key=lambda verdict: (verdict.right, verdict.why == NOT_COMPUTED, verdict.why != NOT_UNDERSTOOD)
    )


def same_answer(answer: str, gold: str, *, computed: bool = True) -> bool:
    r"""Apply the lenient rule to an extracted answer. Never raises.

    >>> same_answer("so it is $1,000.", "1000"), same_answer("72 or 71", "72"), same_answer("Paris.", "paris")
    (True, False, True)
    >>> same_answer(r"x = \frac{1}{2}", "0.5"), same_answer("(7,2)", "(1,2)"), same_answer(r"\sqrt{18}", r"3\sqrt{2}")
    (True, False, True)
    """
    return grade(answer, gold, "text", computed=computed).right


def grade(text: str, gold: str, pattern: str = "xml", *, computed: bool = True) -> Verdict:
    """Grade a text, and say what was read and why it is right or wrong. Never raises, except for an unknown pattern.

    A gold answer may be a solution that marks its answer, as GSM8K's: its last mark counts.

    >>> grade("<answer>5 cm</answer>", "5 km"), grade("It is 71 or 72.", "72").why, grade("Take 3 from 7.", "4").why
    (Verdict(right=False, read='5 cm', why='unit'), 'two answers', 'not understood')
    >>> grade("48 + 24", "72"), grade("48 + 24", "72", computed=False).right
    (Verdict(right=False, read='48 + 24', why='not computed'), True)
    """
    marks.check_pattern(pattern)
    verdict = _grade(text, gold, pattern)
    accepted = verdict.why == NOT_COMPUTED and not computed
    return verdict._replace(right=True, why=VALUE) if accepted else verdict


def _grade(text: str, gold: str, pattern: str) -> Verdict:
    if text.strip() == gold.strip():
        return Verdict(True, text.strip(), VALUE)
    solution = marks.last(gold, pattern, objects=False)
    gold = solution.text if solution else gold
    if len(gold) > MAX_GOLD or not gold.strip():
        return Verdict(False, "", NOT_UNDERSTOOD)
    if option := choices.labelled(gold):  # (B) 15: the letter or the text will do, but not another letter
        return _grade_option(text, option, pattern)
    text = own_words(without_struck(text), pattern)
    objects = not gold.lstrip().startswith("{")  # an object as the gold answer is compared as a text
    mark = marks.last(text, pattern, objects)
    why = NOT_UNDERSTOOD
    for _ in range(MAX_MARKS):
        if mark is None:
            break
        beside = around.read_around(text, mark)
        if beside.meaning is not None:
            return _verdict(beside.meaning, read(gold), beside.text)
        if beside.why == VALUE:
            return _in_mark(text, mark, gold)
        why = beside.why
        if not beside.text:
            return Verdict(False, mark.text, why)
        mark = marks.last(text[: mark.start], pattern, objects)  # \boxed{72}, and not \boxed{71}
    else:
        return Verdict(False, "", DENIED)
    return _compare(text.strip(), gold) if why != DENIED else Verdict(False, "", DENIED)


def _grade_option(text: str, option: tuple[str, str], pattern: str) -> Verdict:
    """Grade by the letter or the text of an option; where a text says both, both must be right."""
    letter, said = (_grade(text, each, pattern) for each in option)
    mark = marks.last(own_words(text, pattern), pattern)
    answer = mark.text if mark else text.strip()
    both = choices.labelled(answer) or choices.labelled(unwrapped(answer).replace("\\", ""))
    if both is not None:
        right = both[0] == option[0] and _compare(both[1], option[1]).right
        return (letter if letter.right else said)._replace(right=right)
    other = re.search(r"(?<![\w\\])[A-J](?![\w'])", answer if said.right else "")
    if said.right and not (other and other[0] != option[0]):
        return said
    number = re.search(r"[0-9]", answer) and read(option[1]) is not None
    return letter._replace(right=letter.right and not number)


# --- Where --------------------------------------------------------------------------------------------------------

_NEXT = re.compile(
    r"(?m)(?<=\n)[ \t]*(?:\*\*)?(?:(?:Next |New )?[Qq]uestion|Problem|Exercise|User|Human|Q|Input|Frage|问题)"
    r" ?\d{0,3}(?:\*\*)? ?[:：]"
)
_TURN = re.compile(r"\s*<\|[a-z_]{1,30}\|>(?:\s|assistant\b|<\|[a-z_]{1,30}\|>)*")  # special tokens before a text
_END = re.compile(r"<\|[a-z_]{1,30}\|>|</s>|<eos>|<end_of_turn>")  # and after it


_ATTRIBUTES = re.compile(r"<answer [^<>\n]{1,200}>")
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_SPACES = re.compile(r"\s{4,}")
_WRITTEN = (  # other ways to write a mark, and what markdown adds
    (
        re.compile(r"<(/?) ?(?:final_?)?answer(?: (?:type|format|lang|id)=[\w\"']{0,30})? ?>", re.IGNORECASE),
        r"<\1answer>",
    ),
    (re.compile(r"</a?n?s?w?e?r?\Z"), "</answer>"),
    (re.compile(r"\$?\\(?:black)?square\$?\s*\Z"), ""),  # the end of a proof
    (re.compile(r"(?i)\bfinal_(?=answer\b)"), "final "),
    (re.compile(r"\\(?:begin|end)\{(?:center|displaymath|flushleft)\}"), " "),
    (re.compile(r"(?<!\\)\\{2,}(?=(?:boxed|fbox)(?![A-Za-z]))"), r"\\"),
    (re.compile(r"(?<![\\A-Za-z])boxed(?=\{)"), r"\\boxed"),
    (
        re.compile(
            r"(?im)^[ \t]*(?:#{1,3} |#{5,6} |\*\*)[ \t]*((?:the )?(?:final )?(?:answer|result))(?:\*\*)?[ \t]*$"
        ),
        r"\1:",
    ),
    (re.compile(r"(?m)^[ \t]*(?:#{1,3}|#{5,6})[ \t]+(\S[^\n]{0,100}[A-Za-z])[ \t]*$"), r"\1:"),
    (re.compile(r"(?m)^[ \t]*(?:#{1,3}|#{5,6})[ \t]+(?=\S)"), ""),
    (re.compile(r"(?m)^[ \t]*>[ \t]+(?=\*\*|[A-Za-z])"), ""),
    (re.compile(r"(?m)^[ \t]*\|([^|\n]{1,200})\|([^|\n]{1,200})\|[ \t]*$"), r"\1: \2."),
    (re.compile(r"(?<![\w\\$}])_([^_\s$][^_\n$]{0,80})_(?!\w)"), r"\1"),
)


_ASKS = re.compile(r"\?|(?i:\b(?:find|compute|calculate|determine|solve|evaluate|simplify|what|how|which)\b)")


def own_words(text: str, pattern: str = "xml") -> str:
    r"""Return a text after its last `</think>`, and before the next question that a run-on text asks itself.

    >>> own_words("<think>5?</think>It is 6."), own_words("It is 6.\n\nQuestion: And 2 + 2?\nAnswer: 4")
    ('It is 6.', 'It is 6.')
    """
    closed = text.rfind("-->") + 1 and text.rfind("-->") + 3  # behind it no comment ends
    text = _COMMENT.sub(" ", text[:closed]) + text[closed:]
    text = _SPACES.sub(lambda spaces: "\n\n" if "\n" in spaces[0] else " ", text)
    for pattern_, written in _WRITTEN:
        text = pattern_.sub(written, text)
    turn = _TURN.match(text := text.rpartition("</think>")[2])
    text = _END.split(text[turn.end() if turn else 0 :], maxsplit=1)[0]
    before, thinks, _ = text.partition("<think>")
    if thinks and marks.find_mark(text, pattern) is None and "<answer>" not in text:
        text = before  # it has not come to an end
    text = _ATTRIBUTES.sub(" ↔ ", text)  # <answer status="wrong">
    found = _NEXT.search(text)
    if found is None or not (
        (_ASKS.search(text, found.end()) and len(text[found.end() :].partition("?")[0].split()) > 3)
        or marks.last(text[found.end() :])
    ):
        return text
    before = text[: found.start()]
    answered = marks.last(before) is not None or bool(prose.read_prose(before[-MAX_TEXT:]).text)
    answered = (
        answered
        or before.lstrip().startswith("A:")
        or words.denies_in(token.low for token in tokenize(normalize(before[-MAX_TEXT:])))
    )
    return before.strip() if answered else text


# --- What ---------------------------------------------------------------------------------------------------------


def _in_mark(text: str, mark: Mark, gold: str) -> Verdict:
    """Grade the answer in a mark: as a value; only if it is none, as a sentence."""
    answer = unwrapped(mark.text[-MAX_TEXT:])
    if text.startswith("<answer>", mark.start):
        joined = [each[-MAX_TEXT:] for each in marks.joined_tags(text[: mark.end])][::-1]
        values = [read(each) for each in joined]
        if any(not (plain(each) == plain(answer) or same(read(each), read(answer))) for each in joined):
            together = _verdict(Several("", tuple(values)), read(gold), ", ".join(joined))
            return together if together.why == NOT_COMPUTED else together._replace(why=TWO)
    if not answer:
        return Verdict(False, "", NOT_UNDERSTOOD)
    if plain(answer) != plain(gold) and (inner := marks.last(answer)) and inner.text and inner.text != answer:
        beside = read(answer[: inner.start].strip())
        if beside is not None and not same(beside, read(inner.text)):
            return Verdict(False, answer, TWO)
        return _grade(answer, gold, "text")
    return _compare(answer, gold)


def _compare(answer: str, gold: str) -> Verdict:
    """Compare an answer, or a text that ends with one, with the gold answer."""
    answer = answer[-MAX_TEXT:]
    kind, wanted = kind_of(gold), read(gold)
    if kind != "text" and (option := choices.labelled(answer)):
        answer = option[1]  # (C) 24
    short = len(answer) <= 2 * len(gold) + MAX_SAME
    if short and plain(answer) == plain(gold) and not _differs_in_case(answer, gold, kind):
        return Verdict(not _has_other_letter(answer, gold), answer, VALUE)
    if kind == "text" and not isinstance(wanted, Text):
        return Verdict(*choices.compare(answer, gold))
    tokens = tokenize(normalize(answer))
    meaning = compare.read_display(tokens) or (None if prose.are_sentences(tokens) else read_tokens(tokens))
    if meaning is not None:
        return _verdict(meaning, wanted, answer)
    if compare.is_formula(tokens):
        return Verdict(False, "", NOT_UNDERSTOOD)
    reading = prose.read_tokens(tokens)
    verdict = Verdict(False, reading.text, reading.why)
    if reading.meaning is not None:
        verdict = _verdict(reading.meaning, wanted, reading.text)
    two = reading.why == TWO and not verdict.right and verdict.why != NOT_COMPUTED
    return verdict._replace(why=TWO) if two else verdict


def _verdict(meaning: Meaning, wanted: Meaning | None, answer: str) -> Verdict:
    if same(meaning, wanted):
        uncomputed = leaves_arithmetic(meaning, wanted)
        return Verdict(not uncomputed, answer, NOT_COMPUTED if uncomputed else VALUE)
    if isinstance(meaning, Several) and meaning.kind in ("", "{}") and isinstance(wanted, Number | Expression):
        return Verdict(False, answer, TWO)
    return Verdict(False, answer, UNIT if compare.same_but_for_unit(meaning, wanted) else VALUE)


def _differs_in_case(answer: str, gold: str, kind: str) -> bool:
    """True if case may make another variable or unit: A + a is not a + a, 5 mW are not 5 MW."""
    if kind == "number":
        return read(answer) is not None
    if kind == "text":
        return False
    letters = set(re.findall(r"(?<![\\A-Za-z])[A-Za-z](?![A-Za-z])", f"{answer} {gold}"))
    return any(letter.upper() in letters for letter in letters if letter.islower())


def _has_other_letter(answer: str, gold: str) -> bool:
    r"""True for \Delta and \delta, which are the same text but for case."""
    return re.findall(r"\\[A-Z][a-z]+", answer) != re.findall(r"\\[A-Z][a-z]+", gold)


def kind_of(gold: str) -> str:
    r"""Return how a gold answer is compared: as number, mathematics or text.

    >>> [kind_of(gold) for gold in ("1,000", "5 cm", r"\frac{1}{2}", r"3\sqrt{2}", "(1,2)", "12:30", "Paris")]
    ['number', 'number', 'number', 'mathematics', 'mathematics', 'text', 'text']
    """
    meaning = read(gold)
    if isinstance(meaning, Number) or (isinstance(meaning, Either) and isinstance(meaning.readings[0], Number)):
        return "number"
    if meaning is None or isinstance(meaning, Text) or choices.is_word(gold):
        return "text"
    return "mathematics"


def is_ambiguous(gold: str) -> bool:
    """True for a gold answer with two meanings, such as 1,5: a decimal comma, or a list."""
    return isinstance(read(gold), Either)


def is_formula(gold: str) -> bool:
    """True for a gold answer that leaves arithmetic itself, such as 3 + 4, so that an answer may."""
    return accepts_arithmetic(read(gold))


def last_number(text: str) -> Fraction | None:
    """Return the value of the number that a text claims at its end; None without one, or if it ends with two.

    >>> last_number("He has $1,000.50 left."), last_number("18-5"), last_number("= -5"), last_number("72 or 71")
    (Fraction(2001, 2), None, Fraction(-5, 1), None)
    """
    text = text[-MAX_TEXT:].strip()
    meaning = read(text) or prose.read_prose(text).meaning
    while isinstance(meaning, Equation | Either):
        meaning = meaning.value if isinstance(meaning, Equation) else meaning.readings[0]
    return meaning.value if isinstance(meaning, Number) else None
