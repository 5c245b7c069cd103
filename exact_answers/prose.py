"""Read the answer of a text without a mark: what is not understood has no value.

A text is split into tokens once, and its sentences are read one by one (claims.py). `decide` takes the claims that
stand at the end: a later claim replaces an earlier one; two unequal ones that are joined are no answer; a denied or
retracted one is none; and a sentence with a number that the grammar does not accept leaves no answer, unless "the
answer is" came before it. Each step takes time linear in the text.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from exact_answers import words
from exact_answers.claims import UNREAD, Claim, read_sentence
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
    return len(names) > MAX_WORDS or words.any_of(names, words.COPULAS)


def read_tokens(tokens: Sequence[Token]) -> Reading:
    """Read the value that tokens claim at their end."""
    claims, why = decide(tokens)
    return together(claims) if claims else Reading(None, "", why)


def together(claims: Sequence[Claim]) -> Reading:
    """Read claims that stand side by side: one value if they are equal."""
    shown = ", ".join(map(str, claims))
    meanings = [claim.meaning for claim in claims]
    if any(meaning is None for meaning in meanings):
        return Reading(None, shown, NOT_UNDERSTOOD)
    first, differing = meanings[0], [meanings[0]]
    for claim, meaning in zip(claims[1:], meanings[1:], strict=True):
        if not same(meaning, first) and not (claim.approximate and is_rounding(meaning, first)):
            differing.append(meaning)
    if len(differing) == 1:  # 125 minutes, i.e. 2 hours and 5 minutes
        either = len({getattr(meaning, "unit", ()) for meaning in meanings}) > 1
        return Reading(Either(tuple(meanings)) if either else first, str(claims[0]), VALUE)
    return Reading(Several("{}", tuple(differing)), shown, TWO)


def decide(tokens: Sequence[Token]) -> tuple[list[Claim], str]:
    """Return the claims that stand at the end of a text, and why there are none."""
    current: list[Claim] = []
    why, was_bare = NOT_UNDERSTOOD, False
    said = list(sentences(tokens))
    for tokens_of in said:
        sentence = read_sentence(tokens_of, alone=len(said) == 1)
        claims = sentence.claims
        if sentence.retracts and current:
            current, why = [], DENIED
        if not claims:
            if sentence.denies:
                current, why = [], DENIED
            elif (not sentence.understood or sentence.unfinished) and current and not current[-1].strong:
                current, why = [], NOT_UNDERSTOOD
            continue
        strong = any(claim.strong for claim in claims)
        result = any(token.low in words.RESULTS for token in tokens_of[:2])
        if current and current[-1].strong and not (strong or result):
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


# --- Sentences ----------------------------------------------------------------------------------------------------


def sentences(tokens: Sequence[Token]) -> Iterator[list[Token]]:
    """Yield sentences with their final sign; a line that ends amid a sentence goes on in the next."""
    sentence: list[Token] = []
    length = 0  # also of the tokens that were dropped
    loose = False  # a space came before what was dropped
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
                sentence, length = [], 0
        elif token.kind == "stop" and not _is_after_letter(sentence, tokens, place):
            yield [*sentence, token]
            sentence, length = [], 0
        elif _is_decoration(sentence, tokens, place):
            loose = not token.glued
        else:
            sentence.append(token)
    if sentence:
        yield sentence


def _goes_on(token: Token) -> bool:
    """True for a token that ends no sentence: is, not, =, a comma."""
    if token.kind == "word":
        return token.low in words.GOING_ON
    return token.kind in ("equals", "operator", "colon", "comma", "open") or token.text in ("\\[", "\\(", "$")


def _is_after_letter(sentence: Sequence[Token], tokens: Sequence[Token], place: int) -> bool:
    """True for the stop in `C. is wrong`, which ends no sentence."""
    after = get(tokens, place + 1)
    letter = len(sentence) == 1 and len(sentence[0].text) == 1 and sentence[0].kind == "word"
    return letter and after is not None and after.kind == "word" and after.text.islower()


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
