r"""Grade a text: where its answer is (marks.py, prose.py), what it is (compare.py), and whether it is the gold answer.

One function decides, `grade`, and says why in one word. It never raises for any text, and depends on the texts alone.
"""

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from exact_answers import choices, claims, compare, marks, prose, words
from exact_answers.amounts import Number
from exact_answers.choices import plain
from exact_answers.compare import Either, Equation, Expression, Meaning, Several, Text, read, read_tokens, same
from exact_answers.marks import Mark
from exact_answers.prose import DENIED, NOT_UNDERSTOOD, TWO, VALUE
from exact_answers.writing import Token, normalize, tokenize

UNIT = "unit"
MAX_SAME = 60  # characters that a text may be longer than twice the gold answer which it is
MAX_TEXT = 6_000  # characters at the end of a text that are read as prose
MAX_AFTER = 400  # characters after a mark that may take it back
MAX_GOLD, MAX_MARKS = 10_000, 8  # characters of a gold answer; marks that are denied, one after the other


class Verdict(NamedTuple):
    """The grade of a text.

    Attributes:
        right: whether its answer is the gold answer.
        read: the answer that was read, "" if none was.
        why: `value` (it was compared as a value or a text), `unit` (the value is right, the unit is not),
            `two answers`, `denied` (the text takes it back), or `not understood`.
    """

    right: bool
    read: str
    why: str


def is_right(text: str, gold: str, pattern: str = "xml") -> bool:
    r"""The lenient rule: True if the answer equals the gold answer, however it is written. Never raises.

    The same text is right up to case, spaces and a final full stop. If the gold answer is a number or mathematics, any
    text with the same value is right. The answer is taken from the pattern's mark, else from the last mark of any kind
    (a box, "Answer:", ####, tags), else from the claims of the text. What is not understood is wrong.

    >>> is_right("So it is $1,000.", "1000"), is_right("<answer>Paris.</answer>", "paris"), is_right("no idea", "7")
    (True, True, False)
    >>> is_right(r"\boxed{\frac{1}{2}}", "0.5"), is_right("(7,2)", "(1,2)"), is_right("72 or 71", "72")
    (True, False, False)
    """
    return grade(text, gold, pattern).right


def grade_any(text: str, golds: Sequence[str], pattern: str = "xml") -> Verdict:
    """Grade a text by any of one or more gold answers: the first right verdict, else the first that was understood.

    >>> grade_any("<answer>75002</answer>", ["Paris", "75001"]).why
    'value'
    """
    verdicts = [grade(text, gold, pattern) for gold in golds]
    return max(verdicts, key=lambda verdict: (verdict.right, verdict.why != NOT_UNDERSTOOD))


def same_answer(answer: str, gold: str) -> bool:
    r"""Apply the lenient rule to an extracted answer. Never raises.

    >>> same_answer("so it is $1,000.", "1000"), same_answer("72 or 71", "72"), same_answer("Paris.", "paris")
    (True, False, True)
    >>> same_answer(r"x = \frac{1}{2}", "0.5"), same_answer("(7,2)", "(1,2)"), same_answer(r"\sqrt{18}", r"3\sqrt{2}")
    (True, False, True)
    """
    return grade(answer, gold, "text").right


def grade(text: str, gold: str, pattern: str = "xml") -> Verdict:
    """Grade a text, and say what was read and why it is right or wrong. Never raises, except for an unknown pattern.

    A gold answer may be a solution that marks its answer, as GSM8K's: its last mark counts.

    >>> grade("<answer>5 cm</answer>", "5 km"), grade("It is 71 or 72.", "72").why, grade("Take 3 from 7.", "4").why
    (Verdict(right=False, read='5 cm', why='unit'), 'two answers', 'not understood')
    """
    marks.check_pattern(pattern)
    if text.strip() == gold.strip():
        return Verdict(True, text.strip(), VALUE)
    solution = marks.find_mark(gold, pattern) or marks.last_mark(gold)
    gold = solution.text if solution else gold
    if len(gold) > MAX_GOLD:
        return Verdict(False, "", NOT_UNDERSTOOD)
    text = own_words(text, pattern)
    mark = marks.find_mark(text, pattern) or marks.last_mark(text)
    denied = False
    for _ in range(MAX_MARKS):
        if mark is None:
            return Verdict(False, "", DENIED) if denied else _compare(text.strip(), gold, "")
        if choices.is_option(gold) or not (denied := is_denied(text, mark)):
            return _in_mark(text, mark, gold)
        later = marks.last_mark(text[mark.end :])
        if later is not None:  # not \boxed{71} but \boxed{72}
            later = Mark(later.start + mark.end, later.end + mark.end, later.text)
        elif _denied_before(text, mark):
            later = marks.last_mark(text[: mark.start])
            if later is not None and later.end >= mark.start:
                later = None  # the one around it
        if later is None:
            return Verdict(False, mark.text, DENIED)
        mark = later
    return Verdict(False, "", DENIED)


# --- Where --------------------------------------------------------------------------------------------------------

_NEXT = re.compile(
    r"(?m)(?<=\n)[ \t]*(?:\*\*)?(?:Question|Problem|Exercise|User|Human|Q|Input|Frage|问题) ?\d{0,3}(?:\*\*)? ?[:：]"
)
_TURN = re.compile(r"\s*<\|[a-z_]{1,30}\|>(?:\s|assistant\b|<\|[a-z_]{1,30}\|>)*")  # special tokens before a text
_END = re.compile(r"<\|[a-z_]{1,30}\|>|</s>|<eos>|<end_of_turn>")  # and after it
_GLUE = re.compile(r"(?:</answer>|\\[)\]]|[}*$\s)\]])*")
_OPENED = re.compile(r"(?:\\[\[(]|\$\$?|\*\*|\n[ \t]*(?:\\\[|\$\$))[\s*$]*\Z")  # before a box
_WRONG_LABEL = re.compile(r"(?i)\b(?:wrong|incorrect|false) (?:answer|result|value|option)\W{0,3}\Z")
_LABELS = ("cannot be the ", "can't be the ", "not the ", "wrong ", "incorrect ", "false ", "isn't the ")


def own_words(text: str, pattern: str = "xml") -> str:
    r"""Return a text after its last `</think>`, and before the next question that a run-on text asks itself.

    >>> own_words("<think>5?</think>It is 6."), own_words("It is 6.\n\nQuestion: And 2 + 2?\nAnswer: 4")
    ('It is 6.', 'It is 6.')
    """
    turn = _TURN.match(text := text.rpartition("</think>")[2])
    text = _END.split(text[turn.end() if turn else 0 :], maxsplit=1)[0]
    before, thinks, _ = text.partition("<think>")
    if thinks and marks.find_mark(text, pattern) is None and "<answer>" not in text:
        text = before  # it has not come to an end
    found = _NEXT.search(text)
    if found is None:
        return text
    before = text[: found.start()]
    answered = marks.last_mark(before) is not None or prose.decide(tokenize(normalize(before[-MAX_TEXT:])))[0]
    return before.strip() if answered else text


def is_denied(text: str, mark: Mark) -> bool:
    r"""True if the words beside a mark deny it or take it back: not \boxed{72}; \boxed{72}. Wait, that is wrong."""
    return _denied_before(text, mark) or _denied_after(text, mark)


def _denied_before(text: str, mark: Mark) -> bool:
    """True if the words before a mark, of its sentence, end with a denial, or show a form: it is not, for example."""
    before = text[max(mark.start - 120, 0) : mark.start].rstrip(" \t")
    opened = _OPENED.search(before)
    before = before[: opened.start()].rstrip(" \t\n") if opened else before.rstrip(" *\t")
    if _WRONG_LABEL.search(before):
        return True
    if text[mark.start : mark.start + 6].lower() in ("answer", "final ") and f"{before} ".lower().endswith(_LABELS):
        return True
    tokens = tokenize(normalize(before))
    *_, sentence = [], *prose.sentences(tokens)
    shown = f" {' '.join(token.low for token in sentence)} "
    if sentence and sentence[-1].kind != "stop" and any(f" {phrase} " in shown for phrase in words.EXAMPLES):
        return True
    ends = [place for place, token in enumerate(tokens) if token.kind in ("stop", "newline", "comma", "colon")]
    lows = [token.low for token in tokens[ends[-1] + 1 if ends else 0 :]]
    while lows and lows[-1] in ("be", "the", "answer", "correct", "right", "a"):
        lows.pop()
    if not lows or not (lows[-1] in ("not", "cannot", "never") or lows[-1].endswith("n't")):
        return False
    return lows[-2:-1] not in (["than"], ["or"], ["did"])


def _denied_after(text: str, mark: Mark) -> bool:
    """True if the words after a mark refuse it, or one of the next sentences takes it back or says another answer."""
    glue = _GLUE.match(text, mark.end)
    rest = text[glue.end() if glue else mark.end :]
    rest = rest if len(rest) <= MAX_AFTER else rest[:MAX_AFTER].rstrip("0123456789.,")  # no part of a number
    conditional = False  # \boxed{72} if she works alone: what comes after it may be the answer
    for number, sentence in enumerate(prose.sentences(tokenize(normalize(rest)))):
        lows = [token.low for token in sentence]
        if (
            (number == 0 and _refuses(lows))
            or claims.takes_back(sentence)
            or _contradicts(sentence, mark, conditional)
        ):
            return True
        conditional = conditional or (number == 0 and words.any_of(lows, words.CONDITIONS))
        if number == 3:
            break
    return False


def _contradicts(sentence: Sequence[Token], mark: Mark, conditional: bool) -> bool:
    """True if a sentence claims that the answer is another one than the mark's: actually it is 93."""
    stated = claims.read_sentence(sentence).claims
    later = [claim for claim in stated if (claim.corrects or conditional) and not claim.approximate]
    if not later:
        return False
    marked = read(mark.text) or prose.read_prose(mark.text[-MAX_TEXT:]).meaning
    said = prose.together(later).meaning
    if marked is None or said is None or same(said, marked) or compare.is_rounding(said, marked):
        return False
    return any(claim.strong for claim in later) or (len(stated) == 1 and not compare.is_converted(said, marked))


def _refuses(lows: list[str]) -> bool:
    """True for is wrong; is definitely not right; , which is wrong; can't be right; (incorrect)."""
    lows = [low for low in lows if low not in words.REFUSED_BY]
    head = next((place for place, low in enumerate(lows) if low not in words.REFUSING), len(lows))
    after, following = [*lows[head:], "", ""][:2]
    if any(low in words.WRONG for low in lows[:1]):
        return len(lows) < 4
    if not head or following in ("to", "only", "if", "unless"):
        return False
    denied = any(map(words.denies, lows[:head]))
    if denied:
        return any(low in ("right", "correct", "answer") for low in lows[:head]) and after not in (
            "only",
            "if",
            "unless",
        )
    return after in words.WRONG | {"mistake"}


# --- What ---------------------------------------------------------------------------------------------------------


def _in_mark(text: str, mark: Mark, gold: str) -> Verdict:
    """Grade the answer in a mark: as a value; only if it is none, as a sentence."""
    answer = mark.text[-MAX_TEXT:]
    if text.startswith("<answer>", mark.start):
        joined = [each[-MAX_TEXT:] for each in marks.joined_tags(text[: mark.end])][::-1]
        values = [read(each) for each in joined]
        if any(not (plain(each) == plain(answer) or same(read(each), read(answer))) for each in joined):
            return Verdict(same(Several("", tuple(values)), read(gold)), ", ".join(joined), TWO)
    if not answer:
        return Verdict(False, "", NOT_UNDERSTOOD)
    if plain(answer) != plain(gold) and (inner := marks.last_mark(answer)) and inner.text and inner.text != answer:
        return grade(answer, gold, "text")
    return _compare(answer, gold, text)


def _compare(answer: str, gold: str, text: str) -> Verdict:
    """Compare an answer, or a text that ends with one, with the gold answer.

    Args:
        text: the whole text around a mark; its claims count if the mark has no number.
    """
    answer = answer[-MAX_TEXT:]
    kind, wanted = kind_of(gold), read(gold)
    short = len(answer) <= 2 * len(gold) + MAX_SAME
    if short and plain(answer) == plain(gold) and not _differs_in_case(answer, gold, kind):
        return Verdict(not _has_other_letter(answer, gold), answer, VALUE)
    if kind == "text" and not isinstance(wanted, Text):
        return Verdict(*choices.compare(answer, gold))
    tokens = tokenize(normalize(answer))
    meaning = None if prose.are_sentences(tokens) else read_tokens(tokens)
    if meaning is not None:
        return _verdict(meaning, wanted, answer)
    reading = prose.read_tokens(tokens)
    if reading.meaning is None and text and reading.why == NOT_UNDERSTOOD and not re.search(r"\d", answer):
        reading = prose.read_prose(text[-MAX_TEXT:].replace(answer, " ", 1))
    verdict = Verdict(False, reading.text, reading.why)
    if reading.meaning is not None:
        verdict = _verdict(reading.meaning, wanted, reading.text)
    if kind == "text" and not verdict.right:
        right, said, why = choices.compare(answer, gold)
        return Verdict(right, said, why) if right else verdict
    return verdict._replace(why=TWO) if reading.why == TWO and not verdict.right else verdict


def _verdict(meaning: Meaning, wanted: Meaning | None, answer: str) -> Verdict:
    if same(meaning, wanted):
        return Verdict(True, answer, VALUE)
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
