"""Read the claims of one sentence by a small grammar:

    [subject] (is | verb | =) value [unit] [counted words] [adjuncts]

The words before a value say how it stands in its sentence (`_left`), those after it what they make of it (`_right`).
All words are looked up in the tables of words.py; a place that they do not explain leaves the sentence not understood.
"""

from collections.abc import Sequence, Set
from itertools import pairwise
from typing import NamedTuple

from exact_answers import nouns, units, words
from exact_answers.amounts import Number, read_amount
from exact_answers.beside import ADJUNCT, Beside, adds_up
from exact_answers.clauses import BROKEN, CUTS, DENIED, UNREAD, Claim
from exact_answers.compare import Expression, Meaning, Text, encloses, is_rounding, remembered, same
from exact_answers.formulas import SYMBOLS, TRIGONOMETRY
from exact_answers.spans import Span, is_amount
from exact_answers.writing import Token, get


class Sentence(NamedTuple):
    """The claims of a sentence, and what it does to those before it."""

    claims: list[Claim]
    understood: bool = True  # it has no number that is neither claimed nor beside the point
    retracts: bool = False  # it takes back what was said: wait, that is wrong
    denies: bool = False  # it denies a value: the answer is not 72
    unfinished: bool = False  # work goes on: then we multiply, how many are left?
    harmless: bool = False  # it claims nothing, and leaves the answer before it as it is
    checks: bool = False  # its equations show that the answer before it is right
    denied: tuple[Meaning | None, ...] = ()  # the values that it denies
    conditional: bool = False  # if she sold 3 more, it would be 75


def read_sentence(
    tokens: Sequence[Token],
    alone: bool = False,
    seen: Set[str] = frozenset(),
    options: bool = False,
    before: Claim | None = None,
) -> Sentence:
    """Read the claims of a sentence.

    Args:
        alone: it is all that is said, and may be a part of a sentence: at 60 miles per hour.
        seen: the words of the sentences before it, which may name what the question is about.
        options: it is read for the letters of options or a name alone.
        before: what was claimed before it.
    """
    if any(token.kind == UNREAD for token in tokens[:1]):
        return Sentence([], understood=False)
    return _Reader(tokens, alone, seen, options, before).read()


def takes_back(tokens: Sequence[Token]) -> bool:
    """True if a sentence takes back what was said before it: Wait, that is wrong."""
    return _Reader(tokens).retracts() >= 0


_OTHERS = {
    "some",
    "many",
    "most",
    "others",
    "people",
    "you",
    "they",
    "one",
    "i",
    "might",
    "may",
    "could",
    "at",
    "first",
}
_TOLD = words.VERBS - words.ASSERTING - words.ANSWERS
_CORRECTIONS = {"correction", "wait", "edit", "update"}
_REPLACING = words.REPLACING - {"so", "also"}
_UNREAD = {"close", "number", "power", "quote", "operator"}  # before a value whose left side was not read
_USED = {"use", "used", "check", "checked", "put", "give", "gave"}
_PLACES = {"in", "for", "at", "by", "with", "to", "on", "of", "after"}
MAX_SPANS = 40  # values of a sentence that is read
START, VERB, EQUALS, PREMISE, MENTION = "start", "verb", "equals", "premise", "mention"


class _Reader(Beside):
    def read(self) -> Sentence:
        retracted = self.retracts()
        retracts = retracted >= 0
        first = next((low for low in self.lows if low.isalpha() and low not in ("so", "and", "now")), "")
        if self.question:
            asks = any(low in ("how", "what") for low in self.lows)
            doubts = words.any_of(self.lows[:1], words.ASKING) and words.any_of(self.lows[-2:], words.JUDGING)
            return Sentence([], retracts=doubts, unfinished=asks, harmless=self.is_courtesy())
        found = self.values()
        if self.tokens[-1:] and self.tokens[-1].kind in ("operator", "equals") and not self.options:
            return Sentence([], understood=False)  # the text is cut: 2x e^x +
        if len(found) > MAX_SPANS or (found and words.any_of(self.lows, words.CODE)):
            return Sentence([], understood=False)
        last, last_kind = None, ""
        for index, span in enumerate(found):
            kind = self.claim(span, last, last_kind, found, index, retracts)
            if kind:
                last, last_kind = span, kind
        if any(claim.place < retracted for claim in self.claims):  # 72 clips, sorry, that is wrong
            self.claims = [claim for claim in self.claims if claim.place >= retracted]
            self.denied = not self.claims
        if self.whole is not None and adds_up(self.claims, self.whole):  # 24 in all, 12 red and 12 blue
            self.claims = [self.whole]
        if self.lows and words.denies(self.lows[-1]):  # 72, I guess not
            self.claims, self.denied = [], True
        if not self.claims and self.premise is not None and not self.denied:
            self.claims, self.understood = [self.premise], True
        rest = self.lows[last.after :] if last is not None else []
        if words.any_of(rest, {"and", "but", "then", "so"}) and self.is_left_over(rest):
            self.claims, self.understood = [], False
        if self.claims and last is not None:
            said = self.tail(last, found)
            self.denied = self.denied or said == DENIED
            if said:
                self.claims, self.understood = [], False
        unfinished = first in words.CONTINUES and "know" not in self.lows[:4]  # let me know if …
        if words.any_of(self.lows, words.WOULD) and words.any_of(self.lows, words.CONDITIONS):
            at = next(at for at, low in enumerate(self.lows) if low in words.CONDITIONS)
            unreal = words.any_of(self.lows[at:], words.UNREAL)
            if unreal and "but" not in self.lows[at:]:  # if she had sold 10 more, it would be 82
                own = words.any_of(self.lows, words.FIRST_PERSON | words.JUDGING) or any(map(words.denies, self.lows))
                return Sentence([], self.understood, retracts, harmless=not own)
        if self.lows[:1] == ["had"] and words.any_of(self.lows, words.WOULD):
            return Sentence([], self.understood, retracts)  # had she kept them, there would be 80
        own = words.any_of(self.lows, words.FIRST_PERSON | words.JUDGING) or any(map(words.denies, self.lows))
        conditional = words.any_of(self.lows, words.WOULD) and words.any_of(self.lows, words.CONDITIONS) and not own
        harmless = not self.claims and self.is_harmless(found)
        checks = self.is_check(found)
        return Sentence(
            self.claims,
            self.understood,
            retracts,
            self.denied,
            unfinished,
            harmless,
            checks,
            tuple(self.denials),
            conditional,
        )

    def earlier(self, span: Span) -> Span | None:
        """Return the value before one, of those that were looked at."""
        return max((each for each in self.roles if each.start < span.start), default=None)

    def claim(
        self, span: Span, last: Span | None, last_kind: str, found: Sequence[Span], index: int, retracts: bool
    ) -> str:
        """Collect the claim of a value, if it is one; return how it stands, "" without a claim."""
        kind, boundary = self.left(span, last)
        marked = self.tokens[span.start].kind == "mark"
        if marked and kind in (MENTION, PREMISE, ADJUNCT):
            reason = boundary > 0 and self.lows[boundary - 1] in words.REASONS
            boundary = self.subject(boundary)
            led = self.leads_to_mark(span.start, boundary) and (kind != PREMISE or reason)
            kind = VERB if led else MENTION
        if marked and kind in (VERB, START) and self.keeps_away(boundary, span.start):
            kind = MENTION
        if marked and self.shows_form():
            kind = MENTION
        if retracts:
            boundary = self.boundary(span.start)
        if kind == START and self.options and (before := self.earlier(span)) and self.roles[before] == MENTION:
            kind = MENTION if set(self.lows[before.after : span.start]) <= {",", "and", "or", "/", "&"} else kind
        if kind == VERB and last_kind == EQUALS and last is not None and boundary <= last.start:
            kind = ADJUNCT  # 20 / 2 = 10 customers bought two melons
        if kind == MENTION and not (last is not None and self.is_beside(last.after, span.start)):
            self.understood = False
        reason = boundary > 0 and self.lows[boundary - 1] in words.REASONS
        if kind == PREMISE and reason and any(token.kind == "equals" for token in self.tokens[span.start : span.end]):
            readings = self.value(span, boundary)
            self.premise = Claim(readings) if readings else self.premise
        self.roles[span] = kind
        clause = self.lows[boundary : span.start]
        if ":" in clause and not words.denies(self.lows[max(span.start - 2, 0)]):
            after = clause[len(clause) - clause[::-1].index(":") :]  # 71 is wrong: \\boxed{72}
            clause = after if marked or words.any_of(after, words.COPULAS | words.ANSWERS) else clause
        if self.named and words.any_of(self.lows, words.SAYING):
            return ""
        answered = words.any_of(clause[-1:], words.ANSWERING) and span.after == span.end
        if answered and not words.any_of(clause, words.OWN):
            self.understood = False  # the student answered 96
            return ""
        if "forget" in clause:
            self.understood = False  # don't forget the first day: 26
            return ""
        if kind in (VERB, MENTION, START) and is_attributed(clause):
            if not all(
                words.is_harmless(low) or low in _OTHERS | self.seen | words.SAYING | words.PAST for low in clause
            ):
                self.understood = False
                return ""
            self.denied = True  # some say 50
            self.denials.append(self.meaning(span))
            return ""
        if kind in (MENTION, PREMISE, ADJUNCT):
            return ""
        supposed = words.any_of(clause, words.WOULD) and words.any_of(self.lows[span.after :], words.UNDONE)
        if kind != EQUALS and supposed:
            return ""
        denied = _is_denied(clause, kind) and not (marked and not _denies_mark(clause))
        if denied or self.is_excepted(span):
            self.denied = True
            self.denials.append(self.meaning(span))
            return ""
        joined = boundary > 0 and self.lows[boundary - 1] in words.ADDING
        verbs = words.COPULAS | words.VERBS | words.AUXILIARIES
        whole = 0 if joined and not words.any_of(self.lows[:boundary], verbs) else boundary  # the sum of 5 and it is 7
        if not self.is_vouched_for(self.lows[whole : span.start] if whole < boundary else clause, span, marked):
            self.understood = False
            return ""
        computed = kind == EQUALS and self.tokens[span.start].kind != "equals"
        right = self.right(span, found[index + 1 :], kind)
        if right == DENIED:
            self.denied = True
            self.denials.append(self.meaning(span))
            return ""
        readings = self.value(span, boundary) if not right else None
        if readings is None and self.claims and self.is_restated(span):
            return ""
        if readings is None or (not computed and self.is_altered(whole, span, found[:index])):
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
        own = marked and words.any_of(clause[:2], words.ARTICLES) and words.any_of(clause, words.COPULAS)
        joined = joined and not (own and not words.any_of(between, words.OR))  # x is 2 or 3, and the larger is
        strong, doubted = marked or words.any_of(clause, words.ANSWERS), words.any_of(clause, words.HEDGES)
        pointing = words.any_of(clause, words.IT) and set(clause) <= words.IT | words.IS | words.HEDGES
        corrects = (strong and not words.any_of(clause, words.WOULD)) or words.any_of(self.lows, words.CORRECTING)
        conditional = kind == START and self.lows[0] in ("if", "when", "case")
        self.add(
            Claim(
                readings,
                strong=strong,
                doubted=not computed and (conditional or doubted),
                unsure=words.any_of(clause, words.UNSURE) or ((pointing or strong) and not marked and doubted),
                joined=joined,
                approximate=words.any_of(clause[-3:], words.ABOUT) or self.tokens[span.start].text == "\\approx",
                corrects=corrects or (pointing and not words.any_of(self.lows[span.end :], words.JUDGING)),
                mark=marked,
                place=span.start,
                told=kind == EQUALS or (kind == VERB and not marked and words.any_of(clause, _TOLD)),
                described=kind == START and words.any_of(self.lows[span.after : span.after + 1], words.PREDICATES),
            ),
            between,
            kind,
        )
        return kind

    def add(self, claim: Claim, between: Sequence[str], kind: str) -> None:
        """Put a claim beside the sentence's earlier ones, or in their place."""
        if not self.claims or claim.joined:
            self.claims.append(claim)
        elif (
            claim.doubted
            or self.claims[-1].doubted
            or (claim.mark and self.claims[-1].strong and not words.any_of(between, _REPLACING))
        ):
            claim.joined = True
            self.claims.append(claim)
        elif claim.strong or not self.claims[-1].strong or words.any_of(between, words.REPLACING):
            self.whole = self.claims[-1] if kind == START else None
            self.claims = [claim]
        else:
            claim.joined = True  # another value after the answer
            self.claims.append(claim)
        self.understood = self.understood or not claim.joined

    def uses(self, span: Span, last: Span | None) -> bool:
        """True if a sum has the result of the one before it: 20 / 2 = 10 and 62 + 10 = 72."""
        if last is None or not (is_amount(self.tokens, span.start) and is_amount(self.tokens, last.start)):
            return False
        results = [token.text for token in self.tokens[last.start : last.end] if token.kind == "number"]
        used = [token.text for token in self.tokens[span.start : span.end] if token.kind == "number"]
        return results[-1] in used[:-1]

    # --- Before a value ---

    def is_vouched_for(self, clause: Sequence[str], span: Span, marked: bool) -> bool:
        """True if those who speak in a clause stand by its value: I get, we conclude that; not: I dispute that."""
        label = self.lows[: span.start - 1]
        speaking = words.any_of(label, words.FIRST_PERSON - words.ARTICLES)
        if self.lows[span.start - 1 : span.start] == [":"] and speaking and not self.speaks_for_it(label):
            return False  # I'm guessing: 31
        if words.any_of(clause, words.NEAR) or (list(clause[:2]) == ["one", "of"] and clause[-1] in words.COPULAS):
            return False
        at = next((at for at, low in enumerate(clause) if low in words.ANSWERS - {"final"}), 0)
        before = [low for low in clause[:at] if low not in words.ARTICLES | words.APPROVING | {"final"}][-1:]
        if words.any_of(before, words.PREPOSITIONS - {"for", "as", "so", "that", "because", "since"}):
            return False  # the sum of the answer and 5
        if at >= 0 and words.any_of(clause, words.ANSWERS - {"final"}) and not marked:
            free = {low for before, low in pairwise(clause) if before in words.PREPOSITIONS | words.ARTICLES}
            free -= {low for low, after in pairwise(clause) if after in words.ANSWERS}  # the wrong answer
            free = {low for low in free if low not in words.OTHERS}
            beside = words.SAYING | words.ASSERTING if words.any_of(clause, words.OWN) else set()
            spoken = [low for low in clause if low.isalpha() and low < "\u0250" and low not in free | beside]
            fine = words.HEDGES | self.seen
            if not all(words.is_harmless(low) or low in fine or low.isdigit() for low in spoken):
                return False
        lead = self.lows[0] if len(self.lows) > 1 and self.tokens[1].kind == "comma" and span.start > 1 else ""
        adverbs = [lead, *(low for before, low in pairwise(clause) if before in words.COPULAS | words.AUXILIARIES)]
        if any(low.endswith("ly") and not words.is_harmless(low) and low not in self.seen for low in adverbs):
            return False
        answer = marked or self.options or words.any_of(clause, words.ANSWERS)
        for at, low in enumerate(clause):
            if low in ("i", "we", "i'd", "we'd", "i've", "we've") and (answer or "that" in clause[at:]):
                verb = next((each for each in clause[at + 1 :] if each not in words.FILLERS), "")
                known = words.ASSERTING | words.STATING | words.COPULAS
                if verb and verb not in known and not self.speaks_for_it(clause[at:]):
                    return False
        at = clause.index("that") if "that" in clause else 0
        speakers = words.FIRST_PERSON | words.PRONOUNS | words.OWN
        speaks = at == 1 or (at > 1 and clause[at - 2] in speakers) or (at > 0 and answer)
        if at and speaks and words.any_of(clause[at + 1 : at + 2], words.ARTICLES | words.PRONOUNS | words.OWN):
            own = words.SAYING | words.ASSERTING if words.any_of(clause[:at], words.OWN) else set()
            return all(words.is_harmless(low) or low in self.seen | own or not low.isalpha() for low in clause[:at])
        return True

    def left(self, span: Span, last: Span | None) -> tuple[str, int]:
        """Say how a value stands after the words before it, and where its clause starts."""
        tokens, lows = self.tokens, self.lows
        boundary = self.boundary(span.start)
        first = tokens[span.start]
        before = get(tokens, span.start - 1)
        if before is not None and first.glued and before.kind == "word" and first.kind in ("number", "open"):
            return MENTION, boundary  # a72, exec(5)
        if first.kind == "equals" and before is not None and before.kind in _UNREAD:
            return MENTION, boundary  # its left side was not read
        unread = get(tokens, span.start - 2)
        if before is not None and before.kind == "open" and unread is not None and unread.kind in _UNREAD | {"equals"}:
            return MENTION, boundary  # 1/(55
        if any(token.text == "==" for token in tokens[span.start : span.end]) or self.is_argument(span.start):
            return MENTION, boundary
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
        if (
            place - boundary < 5
            and self.is_order(lows[boundary:place])
            and not words.any_of(lows[boundary:place], words.ANSWERS | words.ALTERING)
        ):
            return MENTION, boundary  # increase it by 80
        low = lows[place - 1]
        if self.alone and place == 1 and low in words.PLACING and span.after == len(tokens):
            return START, boundary
        placed = low in ("on", "at", "in") or (low == "the" and self.lows[max(place - 2, 0)] in ("on", "at", "in"))
        if placed and isinstance(self.meaning(span), Text):
            return VERB, self.subject(boundary)  # born on 4 July 1976
        if low in words.COPULAS or (low.endswith("'s") and len(low) > 3 and last is None):
            return self.governed(boundary, place - 1, last), self.subject(boundary)
        if low in words.HAVING and words.any_of(lows[max(boundary - 1, 0) : place - 1], words.LABELS):
            return MENTION, boundary  # the answer has 58 digits
        if place - 1 == boundary == 0 and low in words.CONTINUES:
            return MENTION, boundary  # see 72
        if self.options and low in words.VERBS | words.OPTION_NOUNS:
            return (VERB if self.chooses(boundary, place - 1) else MENTION), self.subject(boundary)
        if low == "choose" and place > 1 and tokens[place - 2].kind == "number":
            return MENTION, boundary  # 9 choose 2
        if low in words.VERBS:
            return self.governed(boundary, place - 1, last), self.subject(boundary)
        if self.options and low not in words.LABELS:
            return (VERB if words.denies(low) else MENTION), boundary
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
        year = low == "in" and last is None and len(first.text) == 4 and span.after == span.start + 1
        if year and words.any_of(lows[boundary : place - 1], words.VERBS | words.COPULAS | words.AUXILIARIES):
            return VERB, self.subject(boundary)  # it began in 1969
        if low in words.NO and place - 1 == boundary > 0 and place == span.start:
            return VERB, boundary + 1  # 72, no 71
        if words.denies(low) or low in words.HEDGES or low in words.RETRACTIONS:
            return VERB, boundary
        return MENTION, boundary

    def chooses(self, boundary: int, verb: int) -> bool:
        """True if a verb or noun before an option or name makes it the answer: we choose, option; not: fools pick."""
        low = self.lows[verb]
        if low in words.STATING | words.GETTING | words.LINKING | {"leaves", "called", "named"} | words.HAVING:
            return True
        if low in words.OPTION_NOUNS - words.ASSERTING:
            return all(words.is_harmless(each) or not each.isascii() for each in self.lows[boundary:verb])
        if low not in words.OPTION_NOUNS | words.ASSERTING:
            return False
        subject = self.lows[boundary:verb]
        own = words.FIRST_PERSON | words.AUXILIARIES | words.FILLERS | words.RESULTS | words.ARTICLES | words.LABELS
        own |= words.APPROVING | words.OPTION_NOUNS | words.ADDING | words.COPULAS | words.ASSERTING
        return all(each in own for each in subject)

    def at_start(self, boundary: int, last: Span | None) -> tuple[str, int]:
        """Say how a value stands that begins a clause."""
        labelled = boundary > 0 and self.tokens[boundary - 1].kind == "colon" and boundary < 4
        if (
            self.named
            and not labelled
            and any(each.isalpha() and not words.is_harmless(each) for each in self.lows[:boundary])
        ):
            return MENTION, boundary  # Rome, Paris
        before = get(self.tokens, boundary - 1)
        if before is None:
            return START, boundary
        if before.kind == "colon":
            label = self.lows[self.boundary(boundary - 1) : boundary - 1]
            explains = words.any_of(label[:1], words.EXPLAINING - {"check"} | {"to"})
            explains = explains and not words.any_of(label[1:2], words.STATING)  # to conclude: 72
            explains = explains or words.any_of(label, words.OTHERS)
            return (MENTION if explains else VERB), self.subject(boundary)
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

    def governed(self, boundary: int, verb: int, last: Span | None) -> str:
        """Say whether a value is the object of its clause's verb, or of one beside it: to pack 180 books."""
        lows = self.lows
        if last is None:
            if boundary and self.lows[boundary - 1] in ("who", "whose", "which") and self.has_cut(0, boundary - 1):
                return MENTION  # more than Ben, who has 30
            infinitive = verb > boundary and lows[verb - 1] == "to" and lows[verb] in words.VERBS
            return (
                MENTION
                if infinitive and not words.any_of(lows[max(verb - 5, boundary) : verb], words.NEEDING)
                else VERB
            )
        between = lows[max(last.after, boundary) : verb]
        return ADJUNCT if last.start >= boundary and words.any_of(between, words.BESIDE) else VERB

    def is_beside(self, start: int, end: int) -> bool:
        """True if a number after these words is beside the point: to pack 180 books, in 3 weeks, if he works."""
        between = self.lows[start:end]
        beside = words.any_of(between, words.ASIDE)
        return beside and between[-1] not in words.TIED

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
        before = get(self.tokens, span.start - 1)
        first = before is None or before.low in words.RESULTS or (span.start == boundary and before.kind == "comma")
        whole = list(self.tokens[span.start : span.end])
        counted = list(self.tokens[span.end : span.after])
        named = self.tokens[boundary : span.start]
        if _has_variable([*named, *whole]) and words.any_of([token.low for token in named[-2:]], words.OPERATIONS):
            return None  # x squared = 72
        whole = whole[1:] if whole[0].kind == "equals" else whole
        if isinstance(remembered(whole), Text):
            return [whole]  # 05/13/1998 is no quotient
        signs = [place for place, token in enumerate(whole) if token.kind == "equals" or token.text == "\\approx"]
        if not signs:
            return None if _is_unfinished(whole) else [[*whole, *counted]]
        left, right = whole[: signs[-1]], whole[signs[-1] + 1 :]
        if whole[signs[-1]].text == "\\approx":
            left, right = left[: signs[0]], left[signs[-2] + 1 :] if len(signs) > 1 else left
        if _is_unfinished(right):
            return [whole] if isinstance(remembered(whole), Number) else None  # 72 = 48 + 24
        last = left[signs[-2] + 1 :] if len(signs) > 1 else left  # Perimeter = 2(l + w) = 2 * 36 = 72
        if _has_variable(last) and any(token.kind in ("operator", "power", "open") for token in last):
            return [[*whole, *counted], whole]  # x^2 = 5 is what it is
        if _is_false(last, right, len(signs) > 1) or (first and _are_unequal(last, right)):
            return None
        names = any(token.kind == "word" or token.text.lstrip("\\") in SYMBOLS for token in left)
        if (len(left) <= 4 and names) or any(
            token.kind in ("comma", "relation") or token.low in ("and", "or") for token in whole
        ):
            return [[*whole, *counted], whole, [*right, *counted]]
        return [[*right, *counted]]

    def is_restated(self, span: Span) -> bool:
        """True for a sum that has the value of the claim before it: 72, which is 48 + 24."""
        return same(remembered(self.tokens[span.start : span.end]), self.claims[-1].meaning)

    def right(self, span: Span, later: Sequence[Span], kind: str) -> str:
        """Say what the words after a value make of it: `denied`, `broken` (another value), or "" (nothing)."""
        tokens, lows = self.tokens, self.lows
        if span.after == len(tokens):
            return ""
        counted, token = span.after > span.end, tokens[span.after]
        end = next(
            (at for at in range(span.after + 1, len(tokens)) if tokens[at].kind in CUTS or lows[at] in words.ENDING),
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
            return self.remark(span)
        if rest[0] in words.REASONS - {"as", "for"}:
            return ""  # 48 sides because 8 times six equals 48
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
        if rest[0] in words.FALSE or (rest[0] in words.REFUSALS and not counted):
            return DENIED
        if token.kind == "han" and any(map(words.denies, rest)):
            return DENIED
        if any(nouns.is_kana_or_hangul(low) and low not in words.AFTER_VALUE for low in rest):
            return BROKEN
        if rest[0] in words.PREDICATES or words.denies(rest[0]):
            compared = [each for each in later if each.start < end]
            if compared and (words.denies(lows[compared[0].start - 1]) or lows[compared[0].start - 1] == "than"):
                meaning = remembered(tokens[compared[0].start : compared[0].end])
                return "" if not same(meaning, remembered(tokens[span.start : span.end])) else DENIED
            spoilt = words.any_of(rest, words.SPOILING) and not any(map(words.denies, rest))
            return BROKEN if spoilt else self.said_of_answer(rest, counted)
        if words.any_of(rest[:4], words.OPERATIONS) and any(each.start < end for each in later):
            return BROKEN
        return ""

    # --- Sentences that claim nothing ---

    def leads_to_mark(self, place: int, boundary: int) -> bool:
        """True if the words of a clause may lead to the mark at its end: a known verb, label or noun, all words known.

        After a preposition there must be a subject with its verb: he walks home in \\boxed{55} minutes.
        """
        if place == 0:
            return True
        token, low = self.tokens[place - 1], self.lows[place - 1]
        if token.kind not in ("word", "han", "abbreviation"):
            return token.kind != "relation"
        clause = self.lows[boundary:place]
        if any(" ".join(clause).endswith(phrase) for phrase in words.AFFIRMING):
            return True
        if not (words.is_harmless(low) or low in self.seen):
            return False
        if low in words.PREPOSITIONS - {"as", "so", "that"}:
            verbs = words.any_of(clause, words.VERBS | words.COPULAS)
            return verbs and not words.any_of(clause, words.ANSWERS) and low in _PLACES
        return True

    def keeps_away(self, boundary: int, place: int) -> bool:
        """True if a clause relates its mark to another value, bounds or labels it, or tells to do something to it."""
        text = " ".join(self.lows[boundary:place])
        for phrase in words.AFFIRMING:
            text = text.replace(phrase, " ")  # none other than
        clause = text.split()
        if any(boundary <= each.start < place for each in self.roles) and not words.any_of(clause, words.LABELS):
            led = words.any_of(clause[-2:], words.COPULAS | words.CONNECTING)
            return not (led or words.any_of(clause[-1:], words.STATING) or ":" in clause)
        if words.any_of(clause, {"than", "between", "versus", "instead", "rather", "opposed"}) or self.is_order(
            clause
        ):
            return True
        bounded = words.any_of(clause[-1:], words.BOUNDS) or clause[-2:] == ["up", "to"] or clause[-1:] == ["under"]
        if bounded and (words.any_of(clause, words.ANSWERS) or not words.any_of(clause, words.VERBS)):
            return True
        if words.any_of([low for low, after in pairwise(clause) if after in words.ANSWERS], words.DOUBTFUL):
            return True
        if words.any_of(clause[:1], _OTHERS - words.FIRST_PERSON) and words.any_of(clause[-1:], words.ASSERTING):
            return True  # some answer 55
        if words.any_of(clause, words.FIRST_PERSON) and words.any_of(clause[-1:], _USED):
            return True
        if words.any_of(clause, words.ANSWERS) and any(low[0].isdigit() for low in clause):
            return True  # the answer to part 1
        lead = self.lows[: self.lows.index(",")] if "," in self.lows[:place] else []
        step = words.any_of(lead, words.VERBS | words.COPULAS)  # expanding gives 5 = 5, so
        unknown = (
            lead[:1]
            and lead[0].endswith("ing")
            and not step
            and not (words.is_harmless(lead[0]) or lead[0] in self.seen)
        )
        if unknown or words.any_of(lead, words.REFUTING) or (clause[:1] == ["if"] and "were" in clause):
            return True
        if self.lows[place - 1 : place] == [":"]:
            start = max((at + 1 for at in range(place - 1) if self.tokens[at].kind in CUTS), default=0)
            return not self.is_label(self.lows[start : place - 1], place)
        if place and (self.lows[place - 1] in words.ALTERNATIVES or self.is_listed(place)):
            return True  # A or \\boxed{B}
        return words.any_of(clause, words.OTHERS) and words.any_of(clause, words.ANSWERS)

    def is_listed(self, place: int) -> bool:
        """True for a mark after a comma and a single letter: A, \\boxed{B}."""
        before = get(self.tokens, place - 2)
        return self.tokens[place - 1].kind == "comma" and before is not None and before.text in set("ABCDEFGHIJ")

    def is_label(self, label: Sequence[str], place: int) -> bool:
        """True for words before a colon that may lead to an answer: the total is, so we get; 71 is wrong."""
        if any(each.start < place - 1 for each in self.roles):
            return True
        if words.any_of(label[:1], (words.PREMISES | words.TRIALS | {"to"}) - {"let", "after"}) and not words.any_of(
            label[1:2], words.STATING
        ):
            return False
        if words.any_of(label, words.REFUSING_WORDS - _CORRECTIONS | words.OTHERS) or any(map(words.denies, label)):
            return False
        known = [
            words.is_harmless(low)
            or low in _CORRECTIONS
            or low in self.seen
            or words.is_plural(low)
            or self.is_name(low)
            for low in label
        ]
        return all(fine or not low.isalpha() or low > "\u0250" for fine, low in zip(known, label, strict=True))

    def is_bare(self, span: Span) -> bool:
        """True for a number alone, which is no year."""
        return span.after == span.start + 1 and len(self.tokens[span.start].text) != 4

    # --- Retractions ---


def _are_unequal(left: Sequence[Token], right: Sequence[Token]) -> bool:
    """True for two plain amounts that differ: 56 = 55, 5 miles = 5 km."""
    read = [read_amount(side) for side in (left, right)]
    plain = [amount is not None and amount[1] == len(side) for amount, side in zip(read, (left, right), strict=True)]
    plain.append(not any(token.kind == "operator" for token in (*left[1:], *right[1:])))
    return all(plain) and not same(remembered(left), remembered(right))


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
    said = remembered(right)
    meanings = [meaning for meaning in map(remembered, (left, degrees)) if isinstance(meaning, Number | Expression)]
    return not any(same(said, meaning) or is_rounding(said, meaning) for meaning in meanings)


# --- Words --------------------------------------------------------------------------------------------------------


def is_attributed(clause: Sequence[str]) -> bool:
    """True if a clause says what somebody thought, or may think."""
    if words.any_of(clause, words.PAST) or "at first" in " ".join(clause):
        return True
    said = next((place for place, low in enumerate(clause) if low in words.SAYING), 0)
    subject = [low for low in clause[:said] if low not in words.RESULTS]
    return bool(subject) and not words.any_of(subject, words.OWN | {"to", "can", "could", "may"})


def _is_denied(clause: Sequence[str], kind: str) -> bool:
    """True if a word denies what a clause states, and not a part of its subject: the pies that are not eaten."""
    text = " ".join(clause)
    for phrase in words.AFFIRMING:
        text = text.replace(phrase, " ")  # no doubt
    clause = text.split()
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


def _denies_mark(clause: Sequence[str]) -> bool:
    """True if a word denies the mark that comes after it, and not a part of its subject: the value x cannot be is."""
    for place, low in enumerate(clause):
        if words.denies(low) or low in words.FALSE or low in words.REFUSALS:
            rest = [each for each in clause[place + 1 :] if each not in words.FILLERS]
            verbs = sum(each in words.COPULAS for each in rest)
            relative = words.any_of(clause[:place], {"that", "who", "which"}) and clause[place - 1] in words.COPULAS
            if verbs < 2 and not (verbs and relative):
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
