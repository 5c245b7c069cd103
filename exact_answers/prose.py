"""Read the answer of a text without a mark: what is not understood has no value.

A text is split into tokens once, and its sentences are read one by one (claims.py). `decide` takes the claims that
stand at the end: a later claim replaces an earlier one; two unequal ones that are joined are no answer; a denied or
retracted one is none; and a sentence with a number that the grammar does not accept leaves no answer, unless "the
answer is" came before it. Each step takes time linear in the text.
"""

from collections.abc import Iterator, Sequence, Set
from typing import NamedTuple

from exact_answers import words
from exact_answers.claims import read_sentence
from exact_answers.clauses import UNREAD, Claim, is_another
from exact_answers.compare import Either, Meaning, Several, is_rounding, same
from exact_answers.spans import is_amount
from exact_answers.writing import Token, get, normalize, tokenize

DELIMITERS = {"\\[", "\\]", "\\(", "\\)"}
MAX_WORDS = 8  # of a value, with its unit and what it counts
MAX_SENTENCE = 300  # tokens of a sentence that is read
VALUE, TWO, DENIED, NOT_UNDERSTOOD = "value", "two answers", "denied", "not understood"


class Reading(NamedTuple):
    """What a text claims at its end.

    Attributes:
        meaning: the value, a list of joined ones that differ, or None.
        text: the claim as it is written.
        why: `value`, `two answers`, `denied` or `not understood`.
    """

    meaning: Meaning | None
    text: str
    why: str


def read_prose(text: str) -> Reading:
    """Read the value that a text claims at its end.

    >>> read_prose("She sold 48. Then 24 more, so 48 + 24 = 72 clips.").text, read_prose("It is 71 or 72.").text
    ('72 clips', '71 or 72')
    >>> read_prose("The answer is not 72.").why, read_prose("Now we divide 144 by 2.").why
    ('denied', 'not understood')
    """
    return read_tokens(tokenize(normalize(text)))


def are_sentences(tokens: Sequence[Token]) -> bool:
    """True for tokens that are no single value, as their words and lines show without reading them."""
    if any(token.kind == "newline" for token in tokens[1:-1]):
        return True
    equals = [place for place, token in enumerate(tokens) if token.kind == "equals"]
    if len(equals) > 1 and is_amount(tokens, 0):  # 20 / 2 = 10 and 62 + 10 = 72
        return any(token.low in (",", "and", ";") for token in tokens[equals[0] : equals[-1]])
    names = [token.low for token in tokens if token.kind == "word" and len(token.text) > 2]
    loose = {token.low for token in tokens if token.kind == "word" and not token.glued}
    return len(names) > MAX_WORDS or words.any_of(names, words.COPULAS) or "is" in loose


def read_tokens(tokens: Sequence[Token]) -> Reading:
    """Read the value that tokens claim at their end."""
    claims, why = decide(list(sentences(tokens)))
    return together(claims) if claims else Reading(None, "", why)


def together(claims: Sequence[Claim]) -> Reading:
    """Read claims that stand side by side: one value if they are equal."""
    shown = ", ".join(map(str, claims))
    meanings = [claim.meaning for claim in claims]
    if any(meaning is None for meaning in meanings) or (len(claims) > 1 and any(claim.unsure for claim in claims)):
        return Reading(None, shown, NOT_UNDERSTOOD)
    first, differing = meanings[0], [meanings[0]]
    for claim, meaning in zip(claims[1:], meanings[1:], strict=True):
        if not same(meaning, first) and not (claim.approximate and is_rounding(meaning, first)):
            differing.append(meaning)
    if len(differing) == 1:  # 125 minutes, i.e. 2 hours and 5 minutes
        either = len({getattr(meaning, "unit", ()) for meaning in meanings}) > 1
        return Reading(Either(tuple(meanings)) if either else first, str(claims[0]), VALUE)
    return Reading(Several("{}", tuple(differing)), shown, TWO)


def decide(said: Sequence[Sequence[Token]], before: Set[str] = frozenset()) -> tuple[list[Claim], str]:
    """Return the claims that stand at the end of a text, and why there are none.

    Args:
        said: its sentences.
        before: words that came before them.
    """
    current: list[Claim] = []
    why, was_bare = NOT_UNDERSTOOD, False
    seen = set(before)
    options = any(token.kind == "option" for sentence in said for token in sentence)
    for number, tokens_of in enumerate(said):
        sentence = read_sentence(tokens_of, len(said) == 1, seen, options, current[-1] if current else None)
        seen.update(token.low for token in tokens_of)
        claims = sentence.claims
        if sentence.retracts and current:
            current, why = [], DENIED
        if current and sentence.checks:
            continue
        if current and current[-1].strong and tokens_of[0].low in words.WORKING:  # Explanation: 48 in April, …
            shown, _ = decide(said[number:], seen)
            agrees = shown and all(same(claim.meaning, current[-1].meaning) for claim in shown)
            return (current, VALUE) if agrees or _only_explains(said[number:]) else ([], NOT_UNDERSTOOD)
        if not claims:
            if sentence.denies and not (current and is_another(sentence.denied, current[-1])):
                current, why = [], DENIED
            elif (
                current and sentence.denies and not sentence.understood and any(t.kind == "equals" for t in tokens_of)
            ):
                current, why = [], NOT_UNDERSTOOD  # 2 + 3 = 5, but 2 - 3 = -1 is wrong
            elif current and not sentence.denies and (not sentence.harmless or sentence.unfinished):
                current, why = [], NOT_UNDERSTOOD
            continue
        strong = any(claim.strong for claim in claims)
        explains = tokens_of[0].low in words.EXPLAINING and any(token.kind == "colon" for token in tokens_of[1:2])
        if current and all(same(claim.meaning, current[-1].meaning) for claim in claims):
            units_differ = getattr(claims[0].meaning, "unit", ()) != getattr(current[-1].meaning, "unit", ())
            current = [*current, *claims] if units_differ else current if current[-1].strong else claims
            continue
        if current and current[-1].strong and sentence.conditional:
            continue
        if current and not strong and (current[-1].strong or claims[0].described or explains):
            current, why = [], NOT_UNDERSTOOD
            continue
        computed = any(token.kind == "equals" for token in tokens_of)
        bare = not computed and len(tokens_of) - (tokens_of[-1].kind == "stop") == len(claims[0].readings[0])
        doubted = claims[0].doubted and current and (current[-1].doubted or not strong)
        beside = bool(current) and (claims[0].joined or (bare and was_bare) or bool(doubted))
        current, why, was_bare = [*current, *claims] if beside else claims, VALUE, bare
        if not sentence.understood and not strong:
            current, why = [], NOT_UNDERSTOOD
    if len(current) == 1 and current[0].unsure:
        return [], NOT_UNDERSTOOD
    return current, why if current or why == DENIED else NOT_UNDERSTOOD


def _only_explains(said: Sequence[Sequence[Token]]) -> bool:
    """True for an explanation without a value, a denial, or a word that points at the answer: plants need light."""
    tokens = [token for sentence in said for token in sentence][1:]
    lows = [token.low for token in tokens]
    valued = any(
        token.kind in ("number", "mark", "option", "equals", UNREAD) or len(token.text) == 1
        for token in tokens
        if token.kind not in ("stop", "comma", "colon") and token.low not in ("a", "i")
    )
    speaks = words.REFUSING_WORDS | words.POINTING | words.ANSWERS | words.ALTERING | words.OPERATIONS
    return not valued and not words.any_of(lows, speaks) and not words.denies_in(lows)


# --- Sentences ----------------------------------------------------------------------------------------------------


def sentences(tokens: Sequence[Token]) -> Iterator[list[Token]]:
    """Yield sentences with their final sign; a line that ends amid a sentence goes on in the next."""
    sentence: list[Token] = []
    length = 0  # also of the tokens that were dropped
    loose = False  # a space came before what was dropped
    valued = False  # the sentence has a number or a mark
    for place, token in enumerate(tokens):
        if loose and token.glued:
            token = token._replace(glued=False)
        loose = False
        length += 1
        if length > MAX_SENTENCE:
            sentence = [token._replace(kind=UNREAD)]
        if token.kind == "newline":
            loose = True
            if sentence and not _goes_on(sentence[-1]):
                yield sentence
                sentence, length, valued = [], 0, False
        elif sentence and valued and _begins_sentence(sentence[-1], token):
            yield sentence
            sentence, length, valued = [token], 1, False
        elif token.kind == "stop" and not (_is_after_letter(sentence, tokens, place) or _is_factorial(tokens, place)):
            yield [*sentence, token]
            sentence, length, valued = [], 0, False
        elif _is_decoration(sentence, tokens, place):
            loose = not token.glued
        else:
            sentence.append(token)
            valued = valued or token.kind in ("number", "mark")
    if sentence:
        yield sentence


def _begins_sentence(before: Token, token: Token) -> bool:
    """True for a word with a capital that begins a sentence although no sign ended the one before: 72 This is so."""
    capital = token.kind == "word" and token.text[0].isupper() and before.kind in ("number", "mark", "word", "close")
    again = token.low == "i" and before.kind == "word"
    return capital and token.low in words.BEGINNING and not again and not _goes_on(before)


def _goes_on(token: Token) -> bool:
    """True for a token that ends no sentence: is, not, =, a comma."""
    if token.kind == "word":
        return token.low in words.GOING_ON
    opens = token.text in ("\\[", "\\(") or (token.text == "$" and not token.glued)  # a $ at a word closes a formula
    return (token.kind in ("equals", "operator", "colon", "comma", "open") and token.text != "|") or opens


def _is_after_letter(sentence: Sequence[Token], tokens: Sequence[Token], place: int) -> bool:
    """True for the stop in `C. is wrong`, which ends no sentence."""
    after = get(tokens, place + 1)
    letter = len(sentence) == 1 and len(sentence[0].text) == 1 and sentence[0].kind == "word"
    return letter and after is not None and after.kind == "word" and after.text.islower()


def _is_factorial(tokens: Sequence[Token], place: int) -> bool:
    """True for the sign of 5! = 120."""
    before, after = get(tokens, place - 1), get(tokens, place + 1)
    number = before is not None and before.kind in ("number", "close") and tokens[place].glued
    return tokens[place].text == "!" and number and after is not None and after.kind in ("equals", "operator")


def _is_decoration(sentence: Sequence[Token], tokens: Sequence[Token], place: int) -> bool:
    """True for bold type, a formula's delimiter, a quote that is no prime, and a list's bullet."""
    token = tokens[place]
    if token.kind == "quote":
        before = get(tokens, place - 1)
        opened = any(each.text == token.text for each in tokens[max(place - 8, 0) : place])
        prime = before is not None and (
            before.kind in ("number", "close") or (before.kind == "word" and len(before.text) == 1)
        )
        return not (token.glued and prime and not opened)
    bullet = not sentence and token.kind == "operator" and token.text in "-*+"
    return (
        token.kind == "bold"
        or token.text in DELIMITERS
        or (bullet and place + 1 < len(tokens) and not tokens[place + 1].glued)
    )
