"""Read the claims of one sentence by a small grammar:

    [subject] (is | verb | =) value [unit] [counted words] [adjuncts]

The words before a value say how it stands in its sentence (`_left`), those after it what they make of it (`_right`).
All words are looked up in the tables of words.py; a place that they do not explain leaves the sentence not understood.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from exact_answers import units, words
from exact_answers.amounts import Number, read_amount
from exact_answers.compare import Expression, Meaning, encloses, is_rounding, read_tokens, same
from exact_answers.formulas import SYMBOLS, TRIGONOMETRY
from exact_answers.spans import Span, is_amount, spans
from exact_answers.writing import Token, get


@dataclass
class Claim:
    """A value that a text states.

    Attributes:
        readings: the tokens of the value, in the ways to read them, the fullest first.
        strong: "the answer is …": it stands although later sentences are not understood.
        doubted: could be, maybe, either: it does not replace another claim.
        unsure: perhaps, maybe: alone it is no answer.
        joined: and, or: it stands beside the claim before it.
        approximate: about 0.4167.
        corrects: actually, it is: it says another answer where it differs from one in a mark.
    """

    readings: Sequence[Sequence[Token]]
    strong: bool = False
    doubted: bool = False
    unsure: bool = False
    joined: bool = False
    approximate: bool = False
    corrects: bool = False

    @cached_property
    def meaning(self) -> Meaning | None:
        """What is claimed; None if it is no value."""
        for tokens in self.readings:
            meaning = read_tokens(tokens)
            if meaning is not None:
                return meaning
        return None

    def __str__(self) -> str:
        tokens = self.readings[-1]
        return "".join((" " if place and not token.glued else "") + token.text for place, token in enumerate(tokens))


class Sentence(NamedTuple):
    """The claims of a sentence, and what it does to those before it."""

    claims: list[Claim]
    understood: bool = True  # it has no number that is neither claimed nor beside the point
    retracts: bool = False  # it takes back what was said: wait, that is wrong
    denies: bool = False  # it denies a value: the answer is not 72
    unfinished: bool = False  # work goes on: then we multiply, how many are left?


def read_sentence(tokens: Sequence[Token], alone: bool = False) -> Sentence:
    """Read the claims of a sentence.

    Args:
        alone: it is all that is said, and may be a part of a sentence: at 60 miles per hour.
    """
    if any(token.kind == UNREAD for token in tokens[:1]):
        return Sentence([], understood=False)
    return _Reader(tokens, alone).read()


def takes_back(tokens: Sequence[Token]) -> bool:
    """True if a sentence takes back what was said before it: Wait, that is wrong."""
    return _Reader(tokens).retracts()


_CUTS = {"comma", "colon", "dash", "arrow", "dots"}
UNREAD = "unread"  # the one token of a sentence that is too long
MAX_SPANS = 40  # values of a sentence that is read
START, VERB, EQUALS, PREMISE, ADJUNCT, MENTION = "start", "verb", "equals", "premise", "adjunct", "mention"
DENIED, BROKEN = "denied", "broken"


class _Reader:
    def __init__(self, tokens: Sequence[Token], alone: bool = False) -> None:
        self.alone = alone
        asked = [token.low for token in tokens[:1]] == ["how"]  # also where a limit cut the question
        self.question = asked or (bool(tokens) and tokens[-1].text[:1] == "?")
        tokens = tokens[:-1] if tokens and tokens[-1].kind == "stop" else tokens
        self.tokens = tokens[_label(tokens) :]
        self.lows = [token.low for token in self.tokens]
        self.claims: list[Claim] = []
        self.understood, self.denied = True, False
        self.premise: Claim | None = None
        self.whole: Claim | None = None  # before values that may be its parts

    def read(self) -> Sentence:
        retracts = self.retracts()
        first = next((low for low in self.lows if low.isalpha() and low not in ("so", "and", "now")), "")
        if self.question:
            asks = any(low in ("how", "what") for low in self.lows)
            doubts = words.any_of(self.lows[:1], words.ASKING) and words.any_of(self.lows[-2:], words.JUDGING)
            return Sentence([], retracts=doubts, unfinished=asks)
        found = spans(self.tokens)
        if len(found) > MAX_SPANS or (found and words.any_of(self.lows, words.CODE)):
            return Sentence([], understood=False)
        last, last_kind = None, ""
        for index, span in enumerate(found):
            kind = self.claim(span, last, last_kind, found, index, retracts)
            if kind:
                last, last_kind = span, kind
        if self.whole is not None and _adds_up(self.claims, self.whole):  # 24 in all, 12 red and 12 blue
            self.claims = [self.whole]
        if self.lows and words.denies(self.lows[-1]):  # 72, I guess not
            self.claims, self.denied = [], True
        if not self.claims and self.premise is not None and not self.denied:
            self.claims, self.understood = [self.premise], True
        if last is not None and _is_left_over(self.lows[last.after :]):
            self.claims, self.understood = [], False
        unfinished = first in words.CONTINUES and "know" not in self.lows[:4]  # let me know if …
        return Sentence(self.claims, self.understood, retracts, self.denied, unfinished)

    def claim(
        self, span: Span, last: Span | None, last_kind: str, found: Sequence[Span], index: int, retracts: bool
    ) -> str:
        """Collect the claim of a value, if it is one; return how it stands, "" without a claim."""
        kind, boundary = self.left(span, last)
        if retracts:
            boundary = self.boundary(span.start)
        if kind == VERB and last_kind == EQUALS and last is not None and boundary <= last.start:
            kind = ADJUNCT  # 20 / 2 = 10 customers bought two melons
        if kind == MENTION and not (last is not None and self.is_beside(last.after, span.start)):
            self.understood = False
        reason = boundary > 0 and self.lows[boundary - 1] in words.REASONS
        if kind == PREMISE and reason and any(token.kind == "equals" for token in self.tokens[span.start : span.end]):
            readings = self.value(span, boundary)
            self.premise = Claim(readings) if readings else self.premise
        if kind in (MENTION, PREMISE, ADJUNCT):
            return ""
        clause = self.lows[boundary : span.start]
        supposed = words.any_of(clause, words.WOULD) and words.any_of(self.lows[span.after :], words.UNDONE)
        if kind != EQUALS and (supposed or is_attributed(clause)):
            return ""
        if _is_denied(clause, kind) or self.is_excepted(span):
            self.denied = True
            return ""
        computed = kind == EQUALS and self.tokens[span.start].kind != "equals"
        right = self.right(span, found[index + 1 :], kind)
        if right == DENIED:
            self.denied = True
            return ""
        readings = self.value(span, boundary) if not right else None
        if readings is None and self.claims and self.is_restated(span):
            return ""
        if readings is None or (not computed and self.is_altered(boundary, span, found[:index])):
            self.understood = False
            if kind != START:
                self.claims.clear()
            return ""
        between = self.lows[last.after : span.start] if last else []
        amid = kind == START and last is not None and not self.has_cut(last.end, span.start)
        if self.claims and amid and not _joins(between):
            self.understood = False
            return ""
        joined = _joins(between) if last else self.lows[0] in words.ALTERNATIVES
        joined = joined and not (kind == last_kind == EQUALS and self.uses(span, last))
        joined = joined or (kind == last_kind == START and set(between) <= words.BARE_JOINTS)
        strong, doubted = words.any_of(clause, words.ANSWERS), words.any_of(clause, words.HEDGES)
        pointing = words.any_of(clause, words.IT) and set(clause) <= words.IT | words.IS
        corrects = (strong and not words.any_of(clause, words.WOULD)) or words.any_of(self.lows, words.CORRECTING)
        conditional = kind == START and self.lows[0] in ("if", "when", "case")
        self.add(
            Claim(
                readings,
                strong=strong,
                doubted=not computed and (conditional or doubted),
                unsure=words.any_of(clause, words.UNSURE),
                joined=joined,
                approximate=words.any_of(clause[-3:], words.ABOUT) or self.tokens[span.start].text == "\\approx",
                corrects=corrects or (pointing and not words.any_of(self.lows[span.end :], words.JUDGING)),
            ),
            between,
            kind,
        )
        return kind

    def add(self, claim: Claim, between: Sequence[str], kind: str) -> None:
        """Put a claim beside the sentence's earlier ones, or in their place."""
        if not self.claims or claim.joined:
            self.claims.append(claim)
        elif claim.doubted or self.claims[-1].doubted:
            claim.joined = True
            self.claims.append(claim)
        elif claim.strong or not self.claims[-1].strong or words.any_of(between, words.REPLACING):
            self.whole = self.claims[-1] if kind == START else None
            self.claims = [claim]
        else:
            return
        self.understood = self.understood or not claim.joined

    def uses(self, span: Span, last: Span | None) -> bool:
        """True if a sum has the result of the one before it: 20 / 2 = 10 and 62 + 10 = 72."""
        if last is None or not (is_amount(self.tokens, span.start) and is_amount(self.tokens, last.start)):
            return False
        results = [token.text for token in self.tokens[last.start : last.end] if token.kind == "number"]
        used = [token.text for token in self.tokens[span.start : span.end] if token.kind == "number"]
        return results[-1] in used[:-1]

    # --- Before a value ---

    def left(self, span: Span, last: Span | None) -> tuple[str, int]:
        """Say how a value stands after the words before it, and where its clause starts."""
        tokens, lows = self.tokens, self.lows
        boundary = self.boundary(span.start)
        first = tokens[span.start]
        before = get(tokens, span.start - 1)
        if before is not None and first.glued and before.kind == "word" and first.kind in ("number", "open"):
            return MENTION, boundary  # a72, exec(5)
        if first.text == "(" and last is not None and last.after == span.start:
            return ADJUNCT, boundary
        if self.in_premise(boundary, span.start):
            return PREMISE, boundary
        if any(token.kind == "equals" for token in tokens[span.start : span.end]):
            tried = max((at for at in range(boundary, span.start) if lows[at] in words.TRIALS), default=span.start)
            got = (
                tried == span.start
                or first.kind != "word"
                or words.any_of(lows[tried : span.start], words.GETTING | words.COPULAS)
            )
            return (EQUALS, self.subject(boundary)) if got else (PREMISE, boundary)
        place = self.back(span.start, boundary)
        if place <= boundary:
            return self.at_start(boundary, last)
        low = lows[place - 1]
        if self.alone and place == 1 and low in words.PLACING and span.after == len(tokens):
            return START, boundary
        if low in words.COPULAS or (low.endswith("'s") and len(low) > 3 and last is None):
            return self.governed(boundary, place - 1, last), self.subject(boundary)
        if low in words.HAVING and words.any_of(lows[max(boundary - 1, 0) : place - 1], words.LABELS):
            return MENTION, boundary  # the answer has 58 digits
        if low in words.VERBS:
            return self.governed(boundary, place - 1, last), self.subject(boundary)
        receiver = low in words.PRONOUNS or (tokens[place - 1].text[0].isupper() and place - 1 > boundary)
        if receiver and place - 2 >= boundary and (lows[place - 2] in words.VERBS or lows[place - 2] in words.COPULAS):
            return self.governed(boundary, place - 2, last), self.subject(boundary)
        if place - 3 >= boundary and lows[place - 3] in words.VERBS and lows[place - 2] in words.ARTICLES:
            return self.governed(boundary, place - 3, last), self.subject(boundary)  # gives her chickens 20 cups
        if low in words.VERB_LEADS:
            verbs = lows[max(boundary, place - 5) : place - 1]
            if any(verb in words.VERB_LEADS[low] for verb in verbs) and (
                low not in ("for", "in", "at") or first.kind == "currency" or verbs[-1] in words.VERB_LEADS[low]
            ):
                return self.governed(boundary, place - 1, last), self.subject(boundary)
        if low in words.LABELS or (low in words.FOREIGN_SUBJECTS and lows[place] == "a"):
            return VERB, self.subject(boundary)
        if low in words.NO and place - 1 == boundary > 0 and place == span.start:
            return VERB, boundary + 1  # 72, no 71
        if words.denies(low) or low in words.HEDGES or low in words.RETRACTIONS:
            return VERB, boundary
        return MENTION, boundary

    def at_start(self, boundary: int, last: Span | None) -> tuple[str, int]:
        """Say how a value stands that begins a clause."""
        before = get(self.tokens, boundary - 1)
        if before is None:
            return START, boundary
        if before.kind == "colon":
            return VERB, self.subject(boundary)
        if last is not None and self.in_remark(boundary):
            return ADJUNCT, boundary
        if before.low == "that" and words.any_of(self.lows[max(boundary - 2, 0) : boundary - 1], words.STATING):
            return START, boundary
        if before.low in ("that", "which", "who") or (
            before.low in words.ALTERNATIVES and last is None and boundary > 1
        ):
            return MENTION, boundary
        return (VERB if before.low in words.RESULTS and last is not None else START), boundary

    def back(self, place: int, boundary: int) -> int:
        """Go back over words that leave a value as it is: exactly, about, a total of, for a total of."""
        lows = self.lows
        while place > boundary:
            low = lows[place - 1]
            if low == "of" and place - 2 >= boundary and lows[place - 2] in words.TOTALS:
                place -= 2
                while place > boundary and lows[place - 1] in words.TRANSPARENT:
                    place -= 1
                if place > boundary and lows[place - 1] in ("for", "with", "to"):
                    return boundary
            elif low == "to" and place - 2 >= boundary and lows[place - 2] == "equal":
                place -= 2
            elif low in words.FILLERS:
                place -= 1
            else:
                break
        return place

    def boundary(self, place: int) -> int:
        """Return the start of the clause in which a place is."""
        depth = 0
        while place > 0:
            before = self.tokens[place - 1]
            if before.kind == "close":
                depth += 1
            elif before.kind == "open" and depth == 0:
                return place
            elif before.kind == "open":
                depth -= 1
            elif depth == 0 and (before.kind in _CUTS or before.low in words.SPLITTING):
                return place
            place -= 1
        return 0

    def in_remark(self, place: int) -> bool:
        """True if a place is in a remark that corrects nothing: 3 bolts (2 blue and 1 white)."""
        kinds = [token.kind for token in self.tokens[:place]]
        if kinds.count("open") <= kinds.count("close"):
            return False
        return not words.any_of(self.lows[len(kinds) - kinds[::-1].index("open") :][:1], words.REPLACING)

    def subject(self, boundary: int) -> int:
        """Return the start of a clause with its subject, which a relative clause or a colon cuts off."""
        while boundary > 0:
            before = self.tokens[boundary - 1]
            phrase = before.low in ("or", "and") and not words.any_of(
                self.lows[boundary : boundary + 6], words.PREDICATES
            )
            if not (phrase or before.kind == "colon" or before.low in ("that", "which", "who", "whose")):
                break
            boundary = self.boundary(boundary - 1)
        return boundary

    def governed(self, boundary: int, verb: int, last: Span | None) -> str:
        """Say whether a value is the object of its clause's verb, or of one beside it: to pack 180 books."""
        lows = self.lows
        if last is None:
            infinitive = verb > boundary and lows[verb - 1] == "to" and lows[verb] in words.VERBS
            return (
                MENTION
                if infinitive and not words.any_of(lows[max(verb - 5, boundary) : verb], words.NEEDING)
                else VERB
            )
        between = lows[max(last.after, boundary) : verb]
        return ADJUNCT if last.start >= boundary and words.any_of(between, words.BESIDE) else VERB

    def in_premise(self, boundary: int, place: int) -> bool:
        """True if the clause began with because, since, if, … and no comma ended it."""
        for at in range(boundary - 1, -1, -1):
            low = self.lows[at]
            if self.tokens[at].kind in _CUTS or low in words.RESULTS:
                return False
            if low in words.PREMISES:
                return low not in words.ALSO_PREPOSITIONS or not words.any_of(self.lows[at:place], words.COPULAS)
        return False

    def is_beside(self, start: int, end: int) -> bool:
        """True if a number after these words is beside the point: to pack 180 books, in 3 weeks, if he works."""
        between = self.lows[start:end]
        beside = words.any_of(between, words.ASIDE)
        return beside and between[-1] not in words.TIED

    def has_cut(self, start: int, end: int) -> bool:
        return any(
            self.tokens[place].kind in _CUTS or self.lows[place] in words.SPLITTING for place in range(start, end)
        )

    def is_excepted(self, span: Span) -> bool:
        """True for anything but 72."""
        before = self.lows[: span.start]
        if "but" not in before[-3:]:
            return False
        return words.any_of(before[: len(before) - 1 - before[::-1].index("but")], words.EVERYTHING)

    def is_altered(self, boundary: int, span: Span, earlier: Sequence[Span]) -> bool:
        """True if the subject is a multiple or a part of the answer: twice the answer, one third of the total."""
        lows = self.lows[: span.start]
        for place in range(boundary, span.start):
            of = lows[place] in words.ALTERING_OF and lows[place + 1 : place + 2] == ["of"]
            of_another = any(place < other.start < span.start for other in earlier)
            if (lows[place] in words.ALTERING or of) and (
                not of_another or words.any_of(lows[boundary:], words.LABELS)
            ):
                return True
        for other in earlier:
            if (
                other.start >= boundary
                and lows[other.end : other.end + 1] == ["of"]
                and words.any_of(lows[other.end :], words.LABELS)
            ):
                return True
        return False

    # --- The value, and after it ---

    def value(self, span: Span, boundary: int) -> list[list[Token]] | None:
        """Return the tokens of a value in the ways to read them; None if it is unfinished, such as 48 + 24."""
        whole = list(self.tokens[span.start : span.end])
        counted = list(self.tokens[span.end : span.after])
        named = self.tokens[boundary : span.start]
        if _has_variable([*named, *whole]) and words.any_of([token.low for token in named[-2:]], words.OPERATIONS):
            return None  # x squared = 72
        whole = whole[1:] if whole[0].kind == "equals" else whole
        signs = [place for place, token in enumerate(whole) if token.kind == "equals" or token.text == "\\approx"]
        if not signs:
            return None if _is_unfinished(whole) else [[*whole, *counted]]
        left, right = whole[: signs[-1]], whole[signs[-1] + 1 :]
        if whole[signs[-1]].text == "\\approx":
            left, right = left[: signs[0]], left[signs[-2] + 1 :] if len(signs) > 1 else left
        if _is_unfinished(right):
            return [whole] if isinstance(read_tokens(whole), Number) else None  # 72 = 48 + 24
        last = left[signs[-2] + 1 :] if len(signs) > 1 else left  # Perimeter = 2(l + w) = 2 * 36 = 72
        if _has_variable(last) and any(token.kind in ("operator", "power", "open") for token in last):
            return [[*whole, *counted], whole]  # x^2 = 5 is what it is
        if _is_false(last, right, len(signs) > 1):
            return None
        names = any(token.kind == "word" or token.text.lstrip("\\") in SYMBOLS for token in left)
        if (len(left) <= 4 and names) or any(
            token.kind in ("comma", "relation") or token.low in ("and", "or") for token in whole
        ):
            return [[*whole, *counted], whole, [*right, *counted]]
        return [[*right, *counted]]

    def is_restated(self, span: Span) -> bool:
        """True for a sum that has the value of the claim before it: 72, which is 48 + 24."""
        return same(read_tokens(self.tokens[span.start : span.end]), self.claims[-1].meaning)

    def right(self, span: Span, later: Sequence[Span], kind: str) -> str:
        """Say what the words after a value make of it: `denied`, `broken` (another value), or "" (nothing)."""
        tokens, lows = self.tokens, self.lows
        if span.after == len(tokens):
            return ""
        counted, token = span.after > span.end, tokens[span.after]
        end = next(
            (at for at in range(span.after + 1, len(tokens)) if tokens[at].kind in _CUTS or lows[at] in words.ENDING),
            len(lows),
        )
        rest = lows[span.after : end]
        if token.kind in ("unknown", "operator", "power", "percent", "quote") or (
            token.kind == "word" and token.glued
        ):
            return BROKEN
        if (
            token.kind == "word"
            and len(token.text) == 1
            and token.text.isascii()
            and token.low not in ("a", "i", "y", "o")
        ):
            return BROKEN
        if token.text == "(":
            return self.remark(span.after)
        if rest[0] in words.COMPARING:  # 4 more scoops than Oli, 12 pins more than Ann, but not 72 more than 5
            than = rest.index("than") if "than" in rest else len(rest)
            number = any(span.after + than < each.start <= span.after + than + 2 for each in later)
            alone = rest[0] in ("more", "less", "fewer") and not counted and than == 1 and kind != EQUALS
            return BROKEN if alone or number else ""
        if rest[0] == "times" and (len(rest) == 1 or rest[1] in words.PREPOSITIONS - {"as"}):
            return ""  # 30 times in a week
        if rest[0] in words.BREAKING:
            return BROKEN
        if rest[0] in ("and", "or", "at") and _changes(lows[span.after + 1 : span.after + 5]):
            return BROKEN
        if rest[0] == "or" and words.any_of(rest[1:3], words.ALTERING):
            return BROKEN  # 72 or its double
        if lows[span.start - 1 : span.start] == ["either"]:
            return BROKEN  # either 72 or another number
        if (
            rest[0] == "in"
            and kind != EQUALS
            and any(each.start == span.after + 1 and self.is_bare(each) for each in later)
        ):
            return BROKEN  # 6 in 11
        if rest[0] in ("of", "to") and any(each.start <= span.after + 1 + (rest[0] == "of") for each in later):
            return BROKEN
        if rest[0] in words.REFUTING:
            return DENIED
        if token.kind == "han" and any(map(words.denies, rest)):
            return DENIED
        if any(words.is_kana_or_hangul(low) and low not in words.AFTER_VALUE for low in rest):
            return BROKEN
        if rest[0] in words.PREDICATES or words.denies(rest[0]):
            return _predicate(rest, counted)
        if words.any_of(rest[:4], words.OPERATIONS) and any(each.start < end for each in later):
            return BROKEN
        return ""

    def is_bare(self, span: Span) -> bool:
        """True for a number alone, which is no year."""
        return span.after == span.start + 1 and len(self.tokens[span.start].text) != 4

    def remark(self, place: int) -> str:
        """Say what a remark in brackets makes of the value before it."""
        inside = self.lows[place + 1 : place + 8]
        if words.any_of(inside, words.FALSE) or (
            inside and words.denies(inside[0]) and words.any_of(inside[1:2], words.JUDGING | {")"})
        ):
            return DENIED
        return BROKEN if words.any_of(inside[:1], words.HEDGES | words.ALTERNATIVES | {"and"}) else ""

    # --- Retractions ---

    def retracts(self) -> bool:
        """True if the sentence takes back what was said before it."""
        lows = self.lows
        if words.any_of(lows, words.NOT_RETRACTING) or " at first" in f" {' '.join(lows)}":
            return False
        text = f" {' '.join(lows)} "
        if any(f" {phrase} " in text for phrase in words.RETRACTING_PHRASES):
            return True
        for place, low in enumerate(lows):
            before, after = lows[max(place - 5, 0) : place], lows[place + 1 : place + 2]
            if low in words.RETRACTIONS and not (low in words.FALSE and before[-1:] in (["no"], ["any"])):
                return True
            if low in words.WRONG and _points_back(before) and after not in (["to"], ["that"]):
                return True
            if low in ("right", "correct") and any(map(words.denies, before[-3:])) and _points_back(before):
                return True
        return (
            bool(lows) and lows[0] in words.NO and (len(lows) == 1 or self.tokens[1].kind in ("comma", "dash", "dots"))
        )


def _is_false(left: Sequence[Token], right: Sequence[Token], chained: bool) -> bool:
    """True for an equation that differs by more than a slip in a sum: 3 \\sin 30 = 72; at a chain's end, 73 = 72."""
    texts = [token.text.lstrip("\\") for token in left]
    if not (TRIGONOMETRY & set(texts) or (chained and len(left) == len(right) == 1)):
        return False
    degrees: list[Token] = []  # \\sin 30 may be meant so
    for place, token in enumerate(left):
        degrees.append(token)
        if place and token.kind == "number" and texts[place - 1] in TRIGONOMETRY:
            degrees += [token._replace(kind="power", text="^"), token._replace(kind="command", text="\\circ")]
    said = read_tokens(right)
    meanings = [meaning for meaning in map(read_tokens, (left, degrees)) if isinstance(meaning, Number | Expression)]
    return not any(same(said, meaning) or is_rounding(said, meaning) for meaning in meanings)


# --- Words --------------------------------------------------------------------------------------------------------


def _label(tokens: Sequence[Token]) -> int:
    """Return the place behind `1.` or `Step 2:`."""
    if len(tokens) > 1 and tokens[0].low in words.STEPS and tokens[1].kind == "number":
        return 2 + (len(tokens) > 2 and tokens[2].text in (":", ".", ")", "-", "–", "—"))
    numbered = len(tokens) > 2 and tokens[0].kind == "number" and len(tokens[0].text) < 3
    return 2 if numbered and tokens[1].text in (")", ".") and tokens[1].glued else 0


def is_attributed(clause: Sequence[str]) -> bool:
    """True if a clause says what somebody thought, or may think."""
    if words.any_of(clause, words.PAST) or "at first" in " ".join(clause):
        return True
    said = next((place for place, low in enumerate(clause) if low in words.SAYING), 0)
    subject = [low for low in clause[:said] if low not in words.RESULTS]
    return bool(subject) and not words.any_of(subject, words.OWN | {"to", "can", "could", "may"})


def _is_left_over(after: Sequence[str]) -> bool:
    """True if the words after the last value say what is still to be done: and then we need to add the others."""
    text = " ".join(after)
    return words.any_of(after, {"and", "but", "then"}) and any(f" {phrase}" in text for phrase in words.LEFT_OVER)


def _is_denied(clause: Sequence[str], kind: str) -> bool:
    """True if a word denies what a clause states, and not a part of its subject: the pies that are not eaten."""
    text = " ".join(clause)
    if any(phrase in text for phrase in words.AFFIRMING):
        return False
    for place, low in enumerate(clause):
        if words.denies(low) or low in words.FALSE or low in words.REFUSALS:
            rest = clause[place + 1 :]
            main = kind == EQUALS or words.any_of(rest, words.COPULAS)
            relative = any(each in ("that", "who", "which") for each in clause[1:place])
            number_of = any(pair in f" {' '.join(clause[:place])} " for pair in words.NUMBER_OF)
            own = words.any_of(rest, words.ASSERTED) or (relative and not number_of and rest[:1] == ["is"])
            if not (main and (relative or number_of)) or own:
                return True
    return False


def _joins(between: Sequence[str]) -> bool:
    """True if the words between two claims put them side by side."""
    if words.any_of(between, words.RESULTS | words.RETRACTIONS):
        return False
    return words.any_of(between, words.TYING)


def _changes(after: Sequence[str]) -> bool:
    """True for the words of 72 and a half, 72 or more, 72 at most."""
    part = after[:1] and after[0] in {*units.CARDINALS, "a", "the"} and any(low in units.PARTS for low in after[1:3])
    return bool(part) or words.any_of(after[:1], words.CHANGING) or words.any_of(after[:3], words.BOUNDS)


def _predicate(rest: Sequence[str], counted: bool) -> str:
    """Say what is said of a value: 72 is wrong, 72 cannot be right, 36 cookies are divided."""
    denied = any(map(words.denies, rest))
    if "too" in rest or (words.any_of(rest, words.FALSE) and not (counted and rest[0] in ("were", "are"))):
        return DENIED
    if denied and (not counted or words.any_of(rest, words.ASSERTED)):
        return DENIED
    return BROKEN if words.any_of(rest, words.SPOILING) else ""


def _points_back(before: Sequence[str]) -> bool:
    """True if the words before one say that what was said is …: that is, this was clearly, it's."""
    return words.any_of(before[-5:], words.POINTING) and all(low in words.POINTING_BACK for low in before[-5:])


def _adds_up(parts: Sequence[Claim], whole: Claim) -> bool:
    """True if the sum of two claims or more is another one."""
    amounts = [claim.meaning for claim in parts]
    numbers = [amount.value for amount in amounts if isinstance(amount, Number)]
    total = whole.meaning if len(parts) > 1 else None
    return isinstance(total, Number) and sum(numbers) == total.value


def _has_variable(tokens: Sequence[Token]) -> bool:
    """True if a letter stands for a number, as in 2(x + 3), and is no unit, scale or sign: 3 x 4."""
    for place, token in enumerate(tokens):
        if token.text.lstrip("\\") in SYMBOLS:
            return True
        after = get(tokens, place + 1)
        sign = token.low == "x" and after is not None and after.kind in ("number", "currency", "open")
        scale = token.glued and token.text in units.LETTER_SCALES
        letter = token.kind == "word" and len(token.text) == 1 and token.text.isascii() and token.low != "a"
        if letter and not sign and not scale:
            return True
    return False


_ARITHMETIC = {"+", "*", "-", "/", "x", "X", "\\times", "\\cdot", "\\div"}


def _is_unfinished(tokens: Sequence[Token]) -> bool:
    """True for a sum of plain numbers, which states no value: 48 + 24, 6 × 12, 36 / 4."""
    if not tokens:
        return True
    if encloses(tokens) and any(token.kind == "comma" for token in tokens):
        return False  # (1, 4/2)
    signs = [
        place
        for place, token in enumerate(tokens)
        if place and token.text in _ARITHMETIC and tokens[place - 1].kind not in ("open", "comma", "operator", "power")
    ]
    times = tokens[-1].low == "x" and not tokens[-1].glued  # 2 x, before a bracket
    if not signs or (_has_variable(tokens) and not times) or any(map(_is_formula, tokens)):
        return False
    amount = read_amount(tokens)
    return amount is None or (amount[1] < len(tokens) and tokens[amount[1]].text in _ARITHMETIC)


def _is_formula(token: Token) -> bool:
    """True for what no plain sum has: powers, roots, variables."""
    if token.kind == "word":
        return (
            len(token.text) <= 2 and token.low not in ("x", "in", "to", "or", "of") and not units.symbol_of(token.text)
        )
    return token.kind == "power" or (token.kind == "command" and token.text not in _ARITHMETIC | {"\\frac", "\\$"})
