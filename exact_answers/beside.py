"""Read what is said beside a claim: only what is known to leave an answer as it is may stand there.

The words after a claim are cut into phrases, and each must begin as one that is known (`tail`): an adjunct (in total,
to pack 180 books), a comparison, a reason, a predicate that supports the answer. A sentence that claims nothing is
harmless if its words are known, or were said before, and if what it says of the answer supports it (`is_harmless`).
Everything else is not understood.
"""

from collections.abc import Sequence

from exact_answers import nouns, units, words
from exact_answers.amounts import Number
from exact_answers.clauses import BROKEN, CUTS, DENIED, REASON, Claim, Clauses, is_another
from exact_answers.compare import Meaning, Text, is_rounding, remembered, same, undecorated
from exact_answers.spans import Span

ADJUNCT = "adjunct"  # how a value stands that is beside the point


_SIGNED = {"base", "negative", "minus", "sign", "signs", "binary", "octal", "hexadecimal"}


def _relates(lows: Sequence[str]) -> bool:
    """True for words with a relation, which is a condition: when x = 3."""
    return any(low in ("=", "<", ">", "<=", ">=", "\\le", "\\ge", "\\ne") for low in lows)


class Beside(Clauses):
    """A sentence, asked for what it says beside its claims, or beside those before it."""

    claims: list[Claim]
    understood: bool

    def tail(self, last: Span, found: Sequence[Span]) -> str:
        """Say what the words after the last claim make of it: `denied`, `broken` (not understood), or "" (nothing).

        They are cut into phrases, and each must begin as one that is known to leave an answer as it is: an adjunct
        (in total, to pack 180 books), a comparison, a reason, a predicate that approves. What is not known is broken.
        """
        counted = self.counted = last.after > last.end
        place, end, adjunct = last.after, len(self.tokens), False
        marked = self.tokens[last.start]
        if place < end and self.tokens[place].text == ":" and marked.kind == "mark" and len(marked.text) == 1:
            words_after = self.lows[place + 1 :]
            refused = words.any_of(
                words_after, words.REFUSING_WORDS | words.ANSWERS | words.APPROVING
            ) or words.denies_in(words_after)
            fine = (
                marked.text.isalpha()
                and not refused
                and not any(len(low) == 1 and low.isalpha() for low in words_after)
            )
            return "" if fine else BROKEN  # \\boxed{C}: Mitosis
        while place < end:
            if self.tokens[place].kind == "open":
                closed = self.closing(place)
                inside = [each for each in found if place <= each.start < closed]
                inner = [token._replace(glued=False) for token in self.tokens[place + 1 : closed]]  # 72 [clips]
                if (inside and self.is_beside_claim(inside, "(")) or nouns.are_counted(inner):
                    place = closed + 1
                    continue
            cut = self.phrase_end(place, end)
            lows = [
                low
                for low, token in zip(self.lows[place:cut], self.tokens[place:cut], strict=True)
                if token.kind not in ("close", "quote", "bold", "stop", "open")
            ]
            values = [each for each in found if place <= each.start < cut]
            before = self.lows[place - 1] if place > last.after else ""
            if values and values[0].start <= place + 1 and self.is_beside_claim(values, before):
                lows = self.lows[values[-1].after : cut]
                lows = [low for low in lows if low.isalnum()]
            if values and words.denies_in(self.lows[place : values[0].start]):
                other = [self.meaning(each) for each in values]
                if is_another(other, self.claims[-1]):
                    place = cut + 1  # 72, not 71
                    continue
            if not words.any_of([before, *lows[:1]], words.REASONS) and self.is_another_value(values, lows):
                return BROKEN
            listed = adjunct and before in words.ADDING and not words.any_of(lows, words.POINTING)
            said = (
                "" if listed and not words.any_of(lows, words.REFUSING_WORDS) else self.phrase(lows, counted, before)
            )
            if said == REASON:
                return ""
            if said:
                return said
            rate = words.any_of(self.lows[last.end : last.after], {"each", "per", "every"})
            if rate and lows[:1] == ["for"] and values:
                return BROKEN  # 3 miles each day for 5 days
            adjunct = bool(lows) and lows[0] in words.PREPOSITIONS | words.COMPARING
            place, counted = cut + 1, counted and place == last.after and cut == place
        return ""

    def is_another_value(self, values: Sequence[Span], lows: Sequence[str]) -> bool:
        """True if a bare number in a phrase may be another answer: 55 but 56; or if a scale is in it: in thousands."""
        if any(low.removesuffix("s") in units.SCALES and len(low) > 4 for low in lows):
            return True
        if words.any_of(lows[:1], words.RESTRICTING - {"unless"}) and values:
            return True  # {1, 2, 3} without 2
        for each in values:
            number = self.tokens[each.start].kind == "number" or self.lows[each.start] in units.CARDINALS
            bare = each.after == each.start + 1 and number
            year = len(self.tokens[each.start].text) == 4 and self.lows[each.start - 1] == "in"
            joined = self.lows[each.start - 1] in words.PREPOSITIONS - {"than"} | words.CONJUNCTIONS | {"->", "=>"}
            if bare and joined and not year and not same(self.meaning(each), self.claims[-1].meaning):
                return True
        return False

    def is_left_over(self, after: Sequence[str]) -> bool:
        """True if the words after a value say what is still to be done: and then we need to add the others."""
        text = " ".join(low for low in after if low not in words.FILLERS)
        return any(f" {phrase}" in f" {text}" for phrase in words.LEFT_OVER)

    def is_beside_claim(self, values: Sequence[Span], before: str) -> bool:
        """True if the values of a phrase say the claim again, are its parts, or are beside the point."""
        whole = self.claims[-1]
        parts = [undecorated(self.tokens[each.start : each.end]) for each in values]
        meanings = [remembered(part) for part in parts]
        if all(same(meaning, whole.meaning) for meaning in meanings):
            return True
        if before == "(" and len(meanings) == 1 and _is_of_another_kind(meanings[0], whole.meaning):
            return True
        if before == "(":
            return adds_up([Claim([part]) for part in parts], whole)
        after = self.lows[values[-1].after : values[-1].after + 1]
        return all(self.roles.get(each) == ADJUNCT for each in values) or after in (["from"], ["ago"], ["later"])

    def phrase_end(self, place: int, end: int) -> int:
        """Return the end of the phrase at a place: the next comma, dash, colon, bracket or conjunction."""
        return next(
            (
                at
                for at in range(place, end)
                if self.tokens[at].kind in CUTS | {"close"}
                or (at > place and (self.tokens[at].kind == "open" or self.lows[at] in words.PHRASING))
            ),
            end,
        )

    def phrase(self, lows: Sequence[str], counted: bool, before: str) -> str:
        """Say what one phrase after a claim makes of it: also `reason`, whose words do not matter.

        Args:
            counted: the claim has counted words: 72 clips.
            before: the comma or conjunction before the phrase.
        """
        lows = _without_affirming(lows)
        if not before and lows and lows[0] in words.ADDING:
            before = lows[0]
        if not before and lows and lows[0] in words.ALTERNATIVES:
            before = lows.pop(0)
        if words.any_of(lows[:2], words.OCCURRING) and not words.any_of(lows, words.FALSE):
            return REASON  # -3, attained when x = 1
        if lows[:1] == ["among"] and words.any_of(lows, words.OTHERS):
            return BROKEN
        if words.any_of(lows[:1], {"at"}) and words.any_of(
            lows[1:2], words.BOUNDS | {"best", "worst", "earliest", "latest"}
        ):
            return BROKEN
        if lows and lows[0] in words.CONCEDING | words.REASONS:
            before = lows.pop(0)
        if before in words.REASONS:
            guess = before == "as" and words.any_of(lows, words.FALSE)  # 6 as a wrong guess
            return BROKEN if lows[:1] == ["well"] or guess else REASON
        if self.options and lows and lows[0] in words.PREPOSITIONS:
            return BROKEN
        if isinstance(self.claims[-1].meaning, Text) and words.any_of(lows[:1], {"to", "last", "from", "at"}):
            return BROKEN  # 3rd to last
        if not (self.counted or self.claims[-1].told) and (
            before in words.CONDITIONS or (lows and lows[0] in words.CONDITIONS)
        ):
            return BROKEN  # 72 if x > 0
        if before in words.ALTERNATIVES and lows:
            return BROKEN  # 72 or another
        if (lows and lows[0] in ("you", "your")) or (
            not self.counted and words.any_of(lows, _SIGNED) and not words.any_of(lows[:1], words.PREDICATES)
        ):
            return BROKEN
        known = all(words.is_harmless(low) or low in self.seen or not low.isalpha() for low in lows)
        if before in words.CONCEDING and not known:
            return BROKEN
        if before in words.PREMISES and not words.any_of(lows, words.POINTING) and not _relates(lows):
            return BROKEN if words.any_of(lows, words.FALSE) else ""
        if before in words.RELATIVE:
            strict = not (self.counted or known or words.any_of(lows[:1], words.PERIODS))
            return BROKEN if strict or words.any_of(lows, words.FALSE) or self.is_left_over(lows) else ""
        parts = lows if before == "of" else lows[1:] if lows[:1] == ["of"] else []
        if words.any_of(
            [low for low in parts if low not in words.ARTICLES][:1], words.ANSWERS | words.POINTING | {"what"}
        ):
            return BROKEN  # 80 percent of the answer
        if self.named and lows and lows[0] in words.TYING | words.COMPARING | words.PREPOSITIONS:
            return BROKEN
        if not before and lows and lows[0] in words.CONNECTING:
            before = lows[0]
        while (
            lows and (lows[0] in words.RESULTS | words.ADDING | words.CONJUNCTIONS) and lows[0] not in words.POINTING
        ):
            lows.pop(0)
        if not lows:
            return ""
        lows = _without_affirming(lows)
        if not lows:
            return ""
        text = f"{' '.join(lows)} "
        if (self.claims[-1].corrects or self.claims[-1].mark) and any(
            f"{phrase} " in text for phrase in words.PASSING
        ):
            return BROKEN
        low = lows[0]
        if low == "to" and "be" in lows[1:2]:
            return BROKEN
        if low in words.REASONS:
            return REASON
        if low in ("before", "after") and words.any_of(lows[1:2], {"noon", "midnight"}):
            return BROKEN  # 90 minutes before noon
        if self.counted and before in words.ADDING and words.is_plural(low):
            return ""  # 72 apples and pears
        if low == "no" and self.counted and before in words.ADDING and not words.any_of(lows, words.POINTING):
            return ""  # 2 apples and no pears
        if before in words.CONNECTING and not words.any_of(lows, words.POINTING | words.FIRST_PERSON | words.IT):
            return "" if known and not words.any_of(lows, words.AUXILIARIES) else BROKEN
        if low in words.FIRST_PERSON:
            return "" if self.speaks_for_it(lows) else BROKEN
        if self.named and (words.denies(low) or before in words.TYING):
            return "" if words.denies(low) and len(lows) > 1 and before in (",", "and") else BROKEN
        if low == "cannot" or low.endswith("n't"):
            return self.said_of_answer(lows, counted)
        if low in words.REFUSALS and counted:
            return ""  # 72 bulbs fail
        if words.denies(low) or low in words.FALSE | words.REFUSALS:
            return DENIED
        if low in words.HEDGES | words.RETRACTIONS:
            return BROKEN
        if low in words.RELATIVE and counted:
            return BROKEN if words.any_of(lows, words.FALSE) else ""
        period = len(lows) > 1 and (lows[1] in words.PERIODS or bool(units.symbol_of(lows[1])))
        if period and low in ("this", "that", "these", "those"):
            return ""  # this week
        if low == "which" and self.is_left_over(lows):
            return BROKEN
        if low in words.POINTING - words.PREPOSITIONS | words.IT | {"which"}:
            return self.said_of_answer(lows[1:], False)
        if low in words.PREDICATES or low.endswith("n't"):
            return self.said_of_answer(lows, counted)
        if words.any_of(lows, words.FALSE | words.HEDGES | {"remainder", "your"}) or words.denies_in(lows):
            return BROKEN
        noun = next((each for each in lows if each not in words.ARTICLES), "")
        if low in words.ARTICLES and before and not (words.is_harmless(noun) or noun in self.seen):
            text_of_option = self.options and not self.named and self.claims[-1].strong
            fine = text_of_option and not words.any_of(lows, words.OTHERS | words.REFUSING_WORDS | words.RELATIVE)
            return "" if fine else BROKEN  # B, the Pacific Ocean; 100, my foot
        if (low in words.VERBS and self.options) or lows[:2] == ["used", "to"]:
            return BROKEN
        if low in words.VERBS and not counted and not before and low not in words.STAYING | words.PREPOSITIONS:
            return "" if low.endswith("ed") or low.endswith("ing") or low in words.FILLERS | {"left"} else BROKEN
        known = words.is_harmless(low) or low in self.seen or (low[0].isdigit() and self.options and not self.named)
        return "" if known else BROKEN

    def said_of_answer(self, lows: Sequence[str], counted: bool) -> str:
        """Say what a predicate makes of an answer: is correct, is the number of clips; not: is bogus."""
        if words.any_of(lows, {"too", "you", "your"} | words.WOULD) and not counted:
            return BROKEN
        denied = any(map(words.denies, lows)) and "only" not in lows
        beside = words.COPULAS | words.AUXILIARIES | words.ARTICLES | words.FILLERS - words.PROPERTIES - words.LABELS
        if lows and not lows[-1].isascii() and words.any_of(lows, words.COPULAS) and not denied:
            return ""  # the verb of other languages comes last
        lows = [low for low in lows if low not in beside and not words.denies(low)]
        if lows and lows[0] in words.REASONS and not denied:
            return ""
        if words.any_of(lows, words.FALSE) != denied or (denied and not lows):
            if counted and not words.any_of(lows, words.ASSERTED):
                return ""
            return "" if denied and lows and lows[0] in words.PROPERTIES else DENIED
        if words.any_of(lows, words.HEDGES | words.RETRACTIONS | words.OTHERS):
            return BROKEN
        if not counted and lows and not self.holds(lows[0]):
            return BROKEN
        if counted or (lows and words.is_plural(lows[0]) and len(lows) < 3 and not self.named):
            return "" if "too" not in lows else BROKEN
        compared = words.any_of(lows[:1], words.COMPARING) and any(low[0].isdigit() for low in lows)
        if compared:
            return ""
        if not lows or lows[0] in words.PREPOSITIONS | words.COMPARING | words.ALTERING - words.PROPERTIES:
            return BROKEN
        if self.options and lows[0] in words.VERBS | words.PROPERTIES - words.ASSERTED - words.ASSERTING:
            return BROKEN
        return "" if words.is_harmless(lows[0]) or lows[0] in self.seen else BROKEN

    def holds(self, low: str) -> bool:
        """True unless a word names a property that the answer does not have: 55 is even, 55 is negative."""
        claim = self.claims[-1] if self.claims else self.before
        value = claim.meaning if claim is not None else None
        if not isinstance(value, Number) or low not in ("negative", "positive", "even", "odd", "integer", "whole"):
            return True
        whole = value.value.denominator == 1
        held = {
            "negative": value.value < 0,
            "positive": value.value > 0,
            "even": whole and value.value % 2 == 0,
            "odd": whole and value.value % 2 == 1,
        }
        return held.get(low, whole)

    def is_courtesy(self) -> bool:
        """True for a phrase that closes an answer, and nothing else: let me know if you have questions."""
        text = f" {' '.join(self.lows)} "
        altering = (
            words.OPERATIONS | words.ALTERING | words.REFUTING | words.RETRACTIONS | words.STEPS | {"but", "first"}
        )
        if words.any_of(self.lows, altering) or any(token.kind == "number" for token in self.tokens):
            return False
        doubled = any(low.endswith("d") and low.removesuffix("d") in words.ALTERING for low in self.lows)
        return not doubled and any(f" {phrase} " in text for phrase in words.COURTESIES)

    def is_harmless(self, found: Sequence[Span]) -> bool:
        """True for a sentence without a claim whose words are all known to leave an answer as it is."""
        lows = [
            low for low, token in zip(self.lows, self.tokens, strict=True) if low and (low.isalnum() or "'" in low)
        ]
        said = " ".join(lows)
        sure = any(phrase in said for phrase in ("no doubt", "no question", "without doubt"))
        if self.is_courtesy() or (sure and not found and not words.any_of(lows, words.REFUTING - {"doubt"} | {"but"})):
            return True
        if not lows or (
            words.any_of(lows[:1], words.CERTAINTY) and [low for low in lows if low.isdigit()] == lows[1:]
        ):
            return True
        if (
            words.any_of(lows, words.OTHERS | {"any", "both"})
            or self.is_another_value([], lows)
            or self.is_order(lows)
        ):
            return False
        pointing = words.any_of(lows, words.POINTING - {"which"})
        unfinished = words.any_of(lows, words.WANTED) and not words.any_of(lows, words.DENYING)
        if not pointing and (unfinished or self.is_left_over(lows)):
            return False  # we need the average
        if not pointing and words.any_of(lows, words.ASSERTED) and words.any_of(lows, words.COPULAS):
            return False  # Rome is right
        if not self.understood and not pointing:
            return False
        if words.any_of(lows, words.REFUSING_WORDS - words.DENYING) or (words.denies_in(lows) and not pointing):
            return False
        known = [words.is_harmless(low) or low in self.seen or low.isdigit() or self.is_name(low) for low in lows]
        if words.any_of(lows, words.FIRST_PERSON):
            own = words.FIRST_PERSON | words.ASSERTING | {"am"}
            return self.speaks_for_it(lows) and all(fine or low in own for fine, low in zip(known, lows, strict=True))
        if all(low in words.ANSWERS | words.APPROVING for low in lows):
            return True
        if words.any_of(lows, words.OPERATIONS) and not words.any_of(lows, words.RECKONED):
            return False
        if words.any_of(lows[:1], words.CERTAINTY):
            return False
        if pointing:
            at = next(place for place, low in enumerate(lows) if low in words.POINTING)
            rest = lows[at:]
            while rest and rest[0] in words.POINTING | words.RESULTS:
                rest = rest[1:]
            if words.any_of(lows[max(at - 1, 0) : at], words.EXPLAINING):
                return all(known)  # you can check this
            if not rest or rest[0] not in words.COPULAS | words.LINKING | words.STATING | words.APPROVING:
                return False
            if rest[0] in words.COPULAS and words.any_of(rest[1:2], words.ASSERTING):
                return True  # was obtained
            if rest[0] in words.COPULAS and words.any_of(rest[1:2], words.COMPARING | words.VERBS):
                return False
            return not self.said_of_answer(rest if rest[0] in words.APPROVING else rest[1:], False)
        if words.any_of(lows, words.ALTERING | words.COMPARING):
            return False
        doing = words.VERBS | words.COPULAS | words.APPROVING | words.EXPLAINING | self.seen
        return all(known) and words.any_of(lows, doing)

    def is_order(self, lows: Sequence[str]) -> bool:
        """True for a sentence that tells to do something: double it, add one."""
        first = next((low for low in lows if low not in words.RESULTS | words.ADDING), "")
        bare = (
            first in words.VERBS | words.OPERATIONS | words.ALTERING and f"{first}s" in words.VERBS | words.OPERATIONS
        )
        return (bare or first in words.ALTERING | {"let"}) and first not in words.EXPLAINING | {"see"}

    def is_name(self, low: str) -> bool:
        """True for a word with a capital amid the sentence, or before its verb."""
        places = [
            place for place, each in enumerate(self.lows) if each == low and self.tokens[place].text[0].isupper()
        ]
        verbs = words.VERBS | words.COPULAS | words.AUXILIARIES
        return any(place or words.any_of(self.lows[1:2], verbs) for place in places)

    def speaks_for_it(self, lows: Sequence[str]) -> bool:
        """True if what "I" or "we" do or are in a phrase leaves an answer as it is: I checked it, I am sure."""
        at = next(place for place, low in enumerate(lows) if low in words.FIRST_PERSON)
        beside = words.FILLERS | words.AUXILIARIES | words.COPULAS | words.FIRST_PERSON | {"am"}
        verb = next((low for low in lows[at + 1 :] if low not in beside), "")
        known = words.STATING | words.GETTING | words.APPROVING | words.ASSERTING | words.EXPLAINING
        known = known - words.OPERATIONS
        return verb in known and not words.denies_in(lows) and not words.any_of(lows, words.REFUSING_WORDS)

    def is_check(self, found: Sequence[Span]) -> bool:
        """True for equations that hold, after a word such as check."""
        lead = {"double", "-", "to", "let's", "let", "me", "us", "we", "can", "as", "a", "quick"}
        first = next((low for low in self.lows if low not in lead), "")
        refused = words.any_of(self.lows, words.REFUTING) or any(map(words.denies, self.lows))
        if first not in words.EXPLAINING or not found or refused:
            return False
        values = [self.tokens[span.start : span.end] for span in found]
        numbers = [remembered([token]) for tokens in values for token in tokens if token.kind == "number"]
        if self.before is None or not any(same(number, self.before.meaning) for number in numbers):
            return False
        equations = [tokens for tokens in values if any(token.kind == "equals" for token in tokens)]
        return bool(equations) and all(isinstance(remembered(tokens), Number) for tokens in equations)

    def shows_form(self) -> bool:
        """True if the sentence shows how an answer is written: for example, your answer should look like."""
        text = f" {' '.join(self.lows)} "
        return any(f" {phrase} " in text for phrase in words.EXAMPLES)

    def retracts(self) -> int:
        """Return where the sentence takes back what was said before it, -1 if it does not."""
        lows = self.lows
        if words.any_of(lows, words.NOT_RETRACTING) or " at first" in f" {' '.join(lows)}":
            return -1
        text = f" {' '.join(lows)} "
        for phrase in words.RETRACTING_PHRASES:
            if f" {phrase} " in text:
                return text[: text.index(f" {phrase} ")].count(" ")
        for place, low in enumerate(lows):
            before, after = lows[max(place - 5, 0) : place], lows[place + 1 : place + 2]
            if low in words.RETRACTIONS and not (low in words.FALSE and before[-1:] in (["no"], ["any"])):
                return place
            if low in words.WRONG and _points_back(before) and after not in (["to"], ["that"]):
                return place
            if low in ("right", "correct") and any(map(words.denies, before[-3:])) and _points_back(before):
                return place
        no = bool(lows) and lows[0] in words.NO
        return 0 if no and (len(lows) == 1 or self.tokens[1].kind in ("comma", "dash", "dots")) else -1

    def remark(self, span: Span) -> str:
        """Say what a remark in brackets makes of the value before it."""
        place = span.after
        within = remembered(self.tokens[place + 1 : self.closing(place)])
        value = self.meaning(span)
        if _is_unequal(within, value):
            return BROKEN  # 2 hours (130 minutes)
        inside = self.lows[place + 1 : place + 8]
        if words.any_of(inside, words.FALSE) or (
            inside and words.denies(inside[0]) and words.any_of(inside[1:2], words.JUDGING | {")"})
        ):
            return DENIED
        return BROKEN if words.any_of(inside[:1], words.HEDGES | words.ALTERNATIVES | {"and"}) else ""


def _without_affirming(lows: Sequence[str]) -> list[str]:
    """Drop what affirms from the start of a phrase: of course, there is no doubt."""
    said = " ".join(lows)
    affirming = next((phrase for phrase in words.AFFIRMING if f"{said} ".startswith(f"{phrase} ")), "")
    return said.removeprefix(affirming).split() if affirming else list(lows)


def _is_of_another_kind(one: Meaning | None, other: Meaning | None) -> bool:
    """True for amounts of other dimensions: 24 minutes (3 minutes per page)."""
    if not (isinstance(one, Number) and isinstance(other, Number) and one.unit and other.unit):
        return False
    return units.measure_of(one.unit)[0] != units.measure_of(other.unit)[0]


def _is_unequal(one: Meaning | None, other: Meaning | None) -> bool:
    """True for two amounts of one kind that differ: 2 hours and 130 minutes."""
    if not (isinstance(one, Number) and isinstance(other, Number)) or one.percent or other.percent:
        return False
    alike = bool(one.unit) == bool(other.unit) and not _is_of_another_kind(one, other)
    return alike and not (same(one, other) or is_rounding(one, other))


def adds_up(parts: Sequence[Claim], whole: Claim) -> bool:
    """True if the sum of two claims or more is another one."""
    amounts = [claim.meaning for claim in parts]
    numbers = [amount.value for amount in amounts if isinstance(amount, Number)]
    total = whole.meaning if len(parts) > 1 else None
    return isinstance(total, Number) and sum(numbers) == total.value


def _points_back(before: Sequence[str]) -> bool:
    """True if the words before one say that what was said is …: that is, this was clearly, it's."""
    return words.any_of(before[-5:], words.POINTING) and all(low in words.POINTING_BACK for low in before[-5:])
