"""Find the words that a number counts: 72 red apples, 5 bolts of fiber, $6 per day."""

from collections.abc import Sequence

from exact_answers import units, words
from exact_answers.lexicon import vocabulary
from exact_answers.writing import Token, get

_MAX_COUNTED = 12  # tokens after a number that name what it counts
_CLOSED = words.LINKS - {"of", "per", "each", "every", "de", "des", "d'"}  # they link only to total and all
_NOT_COUNTED = words.REFUTING | words.DENYING | words.HEDGES | words.COMPARING | words.PREPOSITIONS
_NOT_COUNTED |= words.CONJUNCTIONS | words.AUXILIARIES | words.BREAKING | words.COPULAS | words.ARTICLES
_NOT_COUNTED -= {"each", "per", "every", "of", "mistake", "error"}
_NOT_COUNTED |= words.STAYING | vocabulary("goes gets comes gives makes becomes takes seems")  # verbs, no nouns


def is_kana_or_hangul(low: str) -> bool:
    """True for Japanese and Korean, of which few words are known: beside a number each must be in a table."""
    return "\u3040" <= low[0] <= "\u309f" or "\uac00" <= low[0] <= "\ud7a3"


def is_counted(token: Token) -> bool:
    """True if a word may name what a number counts: apples, but not dozen, than, wrong or x."""
    low = token.low
    if is_kana_or_hangul(low):
        return low in words.COUNTERS
    if token.kind == "han":
        return (
            low not in words.BREAKING
            and low not in words.DENYING
            and low not in words.FALSE
            and low not in units.SCALES
        )
    if token.kind != "word" or low in _NOT_COUNTED or low in units.CARDINALS or low.endswith("n't"):
        return False
    if not low.isascii():
        return True
    return not token.glued and (len(low) > 2 or low == "us" or (len(low) > 1 and bool(units.symbol_of(token.text))))


def counted(tokens: Sequence[Token], place: int = 0) -> int:
    """Return the place after the words that a number counts: `red apples`, `bolts of fiber`, `dollars per day`."""
    end, nouns, start = min(len(tokens), place + _MAX_COUNTED), 0, place
    named = may_be_single(tokens, place)
    while place < end:
        token, after = tokens[place], get(tokens, place + 1)
        if token.text in ("/", "-"):
            taken = 2 if nouns and _is_compound(token, after) else 0
        elif token.kind == "word" and token.low in words.LINKS:
            taken = _linked(tokens, place)
        else:
            begins = token.text[0].isupper() and token.low in words.BEGINNING
            scale = token.low.removesuffix("s") in units.SCALES and len(token.low) > 4
            acts = token.low in words.VERBS and after is not None and after.low in words.ARTICLES | words.PRONOUNS
            taken = int(nouns < 5 and not (begins or scale or acts) and is_counted(token))
        if not taken:
            break
        place, nouns = place + taken, nouns + 1
        named = named or is_noun(tokens[place - 1])
    return place if named else start


def may_be_single(tokens: Sequence[Token], place: int) -> bool:
    """True if what is counted at a place may be a single thing or a mass: 1 apple, $72 profit, 5 kg rice, 3/4 cup."""
    before, sign = get(tokens, place - 1), get(tokens, place - 2)
    if before is None or before.kind not in ("number", "mark"):
        return before is not None
    return before.text == "1" or "." in before.text or (sign is not None and sign.text in ("$", "/", "€", "£"))


def is_noun(token: Token) -> bool:
    """True for what may name many things: a plural, a name with a capital, a unit, a word of another script."""
    other = not token.low.isascii() and token.low[0] > "\u036f"
    name = token.text[0].isupper() and not (
        words.is_harmless(token.low) or token.low in words.REFUSING_WORDS | words.BEGINNING
    )
    return (
        words.is_plural(token.low)
        or other
        or name
        or bool(units.symbol_of(token.text))
        or (token.low in words.LINKS | words.WHOLE | words.PRONOUNS)
    )


def _is_compound(sign: Token, after: Token | None) -> bool:
    """True for the sign of words/section and of half-brothers."""
    word = after is not None and after.kind == "word" and after.low not in _NOT_COUNTED
    return word and (sign.text == "/" or (sign.glued and after is not None and after.glued))


def _linked(tokens: Sequence[Token], place: int) -> int:
    """Return how many tokens link a counted word to the next: of the cake, per day, in total, of them, each."""
    end, low = place, tokens[place].low
    while end < len(tokens) and tokens[end].low in words.LINKS | words.WHOLE:
        end += 1
    if tokens[end - 1].low in words.WHOLE:
        return end - place
    if low not in _CLOSED and end < len(tokens):
        if low == "of" and _is_answer(tokens, end):
            return 0  # 80 percent of the answer
        if is_counted(tokens[end]):
            return end - place
        if low == "of" and tokens[end].low in words.PRONOUNS:
            return end + 1 - place
    return int(low in ("each", "every"))


def _is_answer(tokens: Sequence[Token], place: int) -> bool:
    """True for what stands for the whole answer, of which a value would be a part: the result."""
    while place < len(tokens) and tokens[place].low in words.ARTICLES:
        place += 1
    return place < len(tokens) and tokens[place].low in words.ANSWERS | (words.POINTING & words.LABELS)


def are_counted(tokens: Sequence[Token], number: Sequence[Token] = ()) -> bool:
    """True if tokens are nothing but the words that a number before them counts."""
    return bool(tokens) and counted([*number, *tokens], len(number)) == len(number) + len(tokens)
