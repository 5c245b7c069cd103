"""A sentence with its values, and the clauses that they stand in."""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import cached_property

from exact_answers import words
from exact_answers.compare import Meaning, Text, read, remembered, same
from exact_answers.spans import Span, spans
from exact_answers.writing import Token

CUTS = {"comma", "colon", "dash", "arrow", "dots"}
UNREAD = "unread"  # the one token of a sentence that is too long
DENIED, BROKEN, REASON = "denied", "broken", "reason"


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
        mark: it stands in a mark.
        place: where it begins in its sentence.
        described: the sentence says what the value is: 24 is the number of eggs.
        told: it is the object of what somebody does: she earns $60.
    """

    readings: Sequence[Sequence[Token]]
    strong: bool = False
    doubted: bool = False
    unsure: bool = False
    joined: bool = False
    approximate: bool = False
    corrects: bool = False
    mark: bool = False
    place: int = 0
    described: bool = False
    told: bool = False

    @cached_property
    def meaning(self) -> Meaning | None:
        """What is claimed; None if it is no value."""
        for tokens in self.readings:
            if len(tokens) == 1 and tokens[0].kind == "mark":
                return read(tokens[0].text)
            if len(tokens) == 1 and tokens[0].kind == "option":
                return Text(tokens[0].text)
            meaning = remembered(tokens)
            if meaning is not None:
                return meaning
        return None

    def __str__(self) -> str:
        tokens = self.readings[-1]
        return "".join((" " if place and not token.glued else "") + token.text for place, token in enumerate(tokens))


class Clauses:
    """The tokens of a sentence without its label and final sign.

    Attributes:
        alone: it is all that is said, and may be a part of a sentence: at 60 miles per hour.
        seen: the words of the sentences before it, which may name what the question is about.
        options: it is read for the letters of options, or for a name, alone.
        named: it is read for a name.
        roles: how each value stands that was looked at.
        before: what was claimed before it.
        claims: what it claims so far.
        denials: the values that it denies.
    """

    def __init__(
        self,
        tokens: Sequence[Token],
        alone: bool = False,
        seen: Set[str] = frozenset(),
        options: bool = False,
        before: Claim | None = None,
    ) -> None:
        self.alone, self.seen = alone, seen
        asked = [token.low for token in tokens[:1]] == ["how"]  # also where a limit cut the question
        self.question = asked or (bool(tokens) and tokens[-1].text[:1] == "?")
        tokens = tokens[:-1] if tokens and tokens[-1].kind == "stop" else tokens
        self.tokens = tokens[_label(tokens) :]
        self.lows = [
            token.text if place and token.text == "May" else token.low for place, token in enumerate(self.tokens)
        ]
        self.roles: dict[Span, str] = {}
        self.denials: list[Meaning | None] = []
        self.named = any(token.low == "\\name" for token in self.tokens)
        self.options, self.counted = options, False
        self.before = before
        self.claims: list[Claim] = []
        self.understood, self.denied = True, False
        self.premise: Claim | None = None
        self.whole: Claim | None = None  # before values that may be its parts

    def values(self) -> list[Span]:
        """Find the values of the sentence; of a text that is read for options or a name, these alone."""
        if self.options:
            return [Span(at, at + 1, at + 1) for at, token in enumerate(self.tokens) if token.kind == "option"]
        return spans(self.tokens)

    def meaning(self, span: Span) -> Meaning | None:
        return Claim([self.tokens[span.start : span.end]]).meaning

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
            elif depth == 0 and (before.kind in CUTS or before.low in words.SPLITTING):
                return place
            place -= 1
        return 0

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

    def has_cut(self, start: int, end: int) -> bool:
        return any(
            self.tokens[place].kind in CUTS or self.lows[place] in words.SPLITTING for place in range(start, end)
        )

    def in_premise(self, boundary: int, place: int) -> bool:
        """True if the clause began with because, since, if, … and no comma ended it."""
        for at in range(boundary - 1, -1, -1):
            low = self.lows[at]
            if self.tokens[at].kind in CUTS or low in words.RESULTS:
                return False
            if low == "when" and self.is_subject(at, place):
                return False
            if low in words.PREMISES:
                return low not in words.ALSO_PREPOSITIONS or not words.any_of(self.lows[at:place], words.COPULAS)
        return False

    def is_subject(self, when: int, place: int) -> bool:
        """True if "when" stands within the subject of a value: the remainder when 10 is divided by 7 is 3."""
        subject, said = self.lows[:when], self.lows[when + 1 : place]
        verbs = words.VERBS | words.COPULAS | words.AUXILIARIES
        copulas = [low for low in said if low in words.COPULAS]
        ends = [low for low in said if low != "$"][-1:]
        return bool(subject) and not words.any_of(subject, verbs) and len(copulas) > 1 and ends == copulas[-1:]

    def in_remark(self, place: int) -> bool:
        """True if a place is in a remark that corrects nothing: 3 bolts (2 blue and 1 white)."""
        kinds = [token.kind for token in self.tokens[:place]]
        if kinds.count("open") <= kinds.count("close"):
            return False
        return not words.any_of(self.lows[len(kinds) - kinds[::-1].index("open") :][:1], words.REPLACING)

    def closing(self, place: int) -> int:
        """Return the place of the bracket that closes the one at a place; the end without one."""
        depth = 0
        for at in range(place, len(self.tokens)):
            depth += (self.tokens[at].kind == "open") - (self.tokens[at].kind == "close")
            if depth == 0:
                return at
        return len(self.tokens)

    def is_argument(self, place: int) -> bool:
        """True for a value in the brackets of a call: len("fifteen"); and for the second of two: between 1 and 5."""
        if self.lows[place - 1 : place] == ["and"] and "between" in self.lows[max(place - 5, 0) : place]:
            return True
        at = place
        while at and self.tokens[at - 1].kind in ("open", "quote") and self.tokens[at].glued:
            at -= 1
        return 0 < at < place and self.tokens[at - 1].kind == "word" and self.tokens[at].glued


def _label(tokens: Sequence[Token]) -> int:
    """Return the place behind `1.` or `Step 2:`."""
    if len(tokens) > 1 and tokens[0].low in words.STEPS and tokens[1].kind == "number":
        return 2 + (len(tokens) > 2 and tokens[2].text in (":", ".", ")", "-", "–", "—"))
    numbered = len(tokens) > 2 and tokens[0].kind == "number" and len(tokens[0].text) < 3
    return 2 if numbered and tokens[1].text in (")", ".") and tokens[1].glued else 0


def is_another(denied: Sequence[Meaning | None], claim: Claim) -> bool:
    """True if what a sentence denies is other values than a claim: not 71."""
    return bool(denied) and not any(meaning is None or same(meaning, claim.meaning) for meaning in denied)
