r"""Compare with gold answers that are no values: the letter of an option, yes or no, a name, a date.

Sentences are those of prose.py, and their words are looked up in the same tables: what is not understood is wrong.
"""

import re
from collections.abc import Sequence

from exact_answers import words
from exact_answers.claims import takes_back
from exact_answers.clauses import UNREAD
from exact_answers.compare import Text
from exact_answers.lexicon import vocabulary
from exact_answers.prose import DENIED, NOT_UNDERSTOOD, TWO, VALUE, decide, sentences, together
from exact_answers.writing import Token, get, normalize, tokenize

_OPTION = re.compile(r"[(\[]?([a-z])[).\]]?")
_LETTERS = re.compile(r"(?:both )?\(?[a-z]\)?(?:(?:[,&\s]|and)+\(?[a-z]\)?)+")
POLAR = ({"yes", "no"}, {"true", "false"}, {"ja", "nein"}, {"oui", "non"}, {"sí", "no"}, {"是", "否"})
_POLAR_WORDS = set().union(*POLAR)

Compared = tuple[bool, str, str]  # right, what was read, why


def plain(text: str) -> str:
    """Normalize a text for comparison: no case, redundant spaces, quotes or final full stop.

    Symbols are dropped, unless the text has nothing else.

    >>> plain(' "New  York". '), plain("( 1, 2 )"), plain("9 a.m."), plain("Mon day"), plain("Yes 🙂"), plain("🙂.")
    ('new york', '(1,2)', '9 am', 'mon day', 'yes', '🙂')
    """
    written = text
    if not any(map(str.isalnum, written)):
        return _symbols(written)
    text = re.sub(r"\\[][()]", " ", normalize(text)).casefold().replace("\\", "").replace("**", "")
    text = re.sub(r"\b([ap])\.\s?m\b\.?", r"\1m", text)
    text = re.sub(r"(?<=[0-9]):00\s?(?=[ap]m\b)|(?<=[0-9])(?=[ap]m\b)", " ", text)  # 4:00 pm is 4 pm
    text = " ".join(text.strip().rstrip(".").strip("*$`").rstrip(".").split())
    if text[:1] in ("'", '"'):
        text = text.strip("\"'").rstrip(".")
    return re.sub(r" (?=[^\w\s])|(?<=[^\w\s]) ", "", text).strip() or _symbols(written)


def _symbols(text: str) -> str:
    """Return a text of symbols without what is around them: spaces, quotes, bold type, a full stop."""
    text = "".join(text.replace("\ufe0f", "").split()).rstrip(".")
    return text.strip("\"'*`$.“”") or text


def is_word(gold: str) -> bool:
    """True for a gold answer that is a letter in capitals, such letters, yes or no: no formula."""
    said, text = plain(gold), normalize(gold).replace(" and ", " AND ")
    letters = _OPTION.fullmatch(said) or _LETTERS.fullmatch(said)
    element = re.fullmatch("[A-Z][a-z]", text.strip()) is not None  # Fe
    return said in _POLAR_WORDS or element or (letters is not None and text == text.upper())


def compare(answer: str, gold: str) -> Compared:
    """Compare an answer, or a text that ends with one, with a gold answer that is text."""
    wanted = plain(gold)
    said = plain(answer)
    if _LETTERS.fullmatch(wanted):  # A and C, in any order
        letters = re.findall(r"\b[a-z]\b", said) if _LETTERS.fullmatch(said) else read_letters(answer)
        return sorted(letters) == sorted(re.findall(r"\b[a-z]\b", wanted)), answer, VALUE
    if wanted in _POLAR_WORDS:
        word, why = read_polar(answer, wanted)
        return word == wanted, word, why
    option = _OPTION.fullmatch(wanted)
    said, why = read_letter(answer) if option else read_name(answer, wanted)
    return bool(said) and (said.lower() == option[1] if option else said == wanted), said, why


_LABELLED = re.compile(r"\(?([A-J])(?:\)|[.:](?= ))\s*(\S.*)", re.DOTALL)


def labelled(text: str) -> tuple[str, str] | None:
    """Split the letter of an option from its text: (B) 15; None for any other text."""
    found = _LABELLED.fullmatch(text.strip())
    return (found[1], found[2]) if found else None


# --- Letters ------------------------------------------------------------------------------------------------------


_NOUNS = words.OPTION_NOUNS | {"answer"}


def read_letters(text: str) -> list[str]:
    """Return all options that a text chooses together, in small letters: A and C are true."""
    if any(token.low in words.OR for token in tokenize(normalize(text))):
        return []
    claims, _ = decide([_with_letters(sentence) for sentence in sentences(tokenize(normalize(text)))])
    return [claim.meaning.text.lower() for claim in claims if isinstance(claim.meaning, Text)]


def read_letter(text: str) -> tuple[str, str]:
    """Return the option that a text chooses, and why; "" without one, or with two.

    >>> [read_letter(text)[0] for text in ("(B) 12 km", "The answer is B because A is wrong.", "B or C", "Not B")]
    ['B', 'B', '', '']
    """
    if any(token.kind == "command" for token in tokenize(normalize(text))):
        return "", NOT_UNDERSTOOD  # \\bar{B}
    said: list[list[Token]] = []
    labelled = False
    all_said = list(sentences(tokenize(normalize(text))))
    items = [_item(sentence) for sentence in all_said]
    for place, sentence in enumerate(all_said):
        beside = [items[each] for each in (place - 1, place + 1) if 0 <= each < len(items)]
        listed = items[place] and any(each and abs(ord(each) - ord(items[place])) == 1 for each in beside)
        if not labelled or _is_judged(sentence):
            unread = listed or _lists_options(sentence)
            said.append([sentence[0]._replace(kind=UNREAD)] if unread else _with_letters(sentence))
        labelled = len(sentence) == 2 and said[-1][0].kind == "option" and sentence[1].text == "."  # B. 15 km
    return _read(said)


def _read(said: Sequence[Sequence[Token]]) -> tuple[str, str]:
    """Return the option that sentences claim, and why; "" without one."""
    claims, why = decide(said)
    if not claims:
        return "", why
    meaning, _, why = together(claims)
    return (meaning.text if isinstance(meaning, Text) else ""), why


def _with_letters(sentence: Sequence[Token]) -> list[Token]:
    """Make one token of each option that a sentence names, with its brackets; drop the words of B) 15 km."""
    found: list[Token] = []
    for place, token in enumerate(sentence):
        if not _is_option(sentence, place):
            found.append(token)
            continue
        if found and found[-1].text in ("(", "["):
            found.pop()
        name = token.text[0].upper()
        found.append(Token("option", name, token.start, token.end, token.glued, f"({name.lower()})"))
    named = [place for place, token in enumerate(found) if token.kind == "option"]
    kept = []
    for place, token in enumerate(found):
        closed = place - 1 in named and (
            token.text == ":"
            or (token.text in (")", "]", ".") and token.glued)
            or (place == 1 and token.text in ("-", "–", "—"))
        )
        rest = found[place + 1 :]
        letter = len(rest) == 1 and len(rest[0].text) == 1 and rest[0].text.isalpha()  # a:b
        if closed and len(named) == 1 and not letter and not _is_judged(rest):
            kept += [last for last in found[-1:] if last.text[:1] == "?"]
            break
        if not closed:
            kept.append(token)
    return kept


def _lists_options(sentence: Sequence[Token]) -> bool:
    """True for a sentence that names the options and their texts, and chooses none: A) 4, B) 6, C) 8."""
    named = [
        token.text
        for place, token in enumerate(sentence)
        if _is_option(sentence, place) and [each.text for each in sentence[place + 1 : place + 2]] == [")"]
    ]
    judged = words.FALSE | words.ASSERTED | words.ANSWERS | words.DENYING
    return len(named) > 1 and named == list("ABCDEFGHIJ"[: len(named)]) and not any(t.low in judged for t in sentence)


def _item(sentence: Sequence[Token]) -> str:
    """Return the letter of a line of a list of options, B) copper, of which nothing else is said; "" without one."""
    tokens = sentence[1:] if sentence[0].text == "(" else sentence
    closed = len(tokens) > 2 and tokens[0].text in tuple("ABCDEFGHIJ") and tokens[1].text == ")"
    return tokens[0].text if closed and not _is_judged(tokens[2:]) else ""


def _is_judged(rest: Sequence[Token]) -> bool:
    """True if the words after B) say something of it: (B) is wrong; not if they are the text of the option."""
    lows = [token.low for token in rest if token.kind == "word"]
    judging = words.PREDICATES | words.FALSE | words.OR | words.POINTING | words.RETRACTIONS | words.FIRST_PERSON
    rejected = words.any_of(lows, words.FALSE | {"too"})
    return (
        rejected
        or words.any_of(lows[:1], judging - {"cannot"})
        or (any(map(words.denies, lows[:1])) and words.any_of(lows[:4], words.ASSERTED))
    )


def _is_option(sentence: Sequence[Token], place: int) -> bool:
    """True for a letter that names an option, and is no article, pronoun or variable."""
    token = sentence[place]
    if token.kind not in ("word", "abbreviation") or len(token.text.rstrip(".")) != 1:
        return False
    before, after = get(sentence, place - 1), get(sentence, place + 1)
    if before is not None and before.kind in ("number", "operator", "power", "percent", "equals"):
        return False
    if after is not None and after.kind in ("equals", "power", "operator", "relation") and after.text != "-":
        return False
    opened = before is None or before.text in "([" or before.low in _NOUNS
    if after is not None and after.text in (")", "]", ":") and (opened or (before is not None and before.text == ":")):
        return True
    if after is not None and after.kind == "word" and len(after.text) == 1 and after.text.isupper():
        return True  # A B
    if after is not None and after.kind == "word" and token.text in ("A", "I"):
        return after.low in words.PREDICATES | {"because", "since", "or", "and", "nor"} and token.text == "A"
    if token.text.islower():
        said = before is not None and before.low in words.COPULAS and sentence[place - 2].low in _NOUNS
        return len(sentence) <= 2 or said or (before is not None and before.low in _NOUNS)
    return True


# --- Yes and no ---------------------------------------------------------------------------------------------------

_LEADING = vocabulary(
    ", : - — statement it it's this that claim simply in clearly die das short brief summary conclusion"
)
_LEADING |= words.ARTICLES | words.ANSWERS | words.COPULAS | words.RESULTS
_OPPOSITES = {"true", "false"}  # what is not one is the other
_FOLLOWING = {"that", ",", "!", ".", "-", "—", "–", ";", ":", "?", "indeed"} | words.REASONS


def read_polar(text: str, wanted: str) -> tuple[str, str]:
    """Return yes, no, true or false, as a text says in the words of the gold answer, and why.

    >>> [read_polar(text, "true")[0] for text in ("True, since 1 = 1.", "The statement is not true.", "True or false")]
    ['true', 'false', '']
    """
    group = next(group for group in POLAR if wanted in group)
    said, why, asked = "", NOT_UNDERSTOOD, False
    for sentence in sentences(tokenize(normalize(text))):
        lows = _without_doubt(["sí" if token.low == "si" and "sí" in group else token.low for token in sentence])
        if not lows:
            continue
        if lows[-1].startswith("?"):
            asked = words.any_of(lows, words.REFUTING | {"exception", "counterexample", "exceptions"})
            continue
        if asked or (said and ((len(lows) < 3 and lows[0][0].isdigit()) or not _agrees(lows, said))):
            return "", NOT_UNDERSTOOD  # Is it wrong? No.; No. 5; Yes. It does not.
        if said and takes_back(sentence) and lows[0] not in group:
            said, why = "", DENIED
        for place in [place for place, low in enumerate(lows) if low in group]:
            word, reason = _polar(lows, place, group)
            if reason == TWO:
                return "", TWO
            if reason == DENIED:
                said, why = "", DENIED
                break
            if reason == VALUE:
                said, why = word, VALUE
                break
    return said, why


_POSITIVE = {"yes", "true", "ja", "oui", "sí", "是"}
_CLAIMS = words.POINTING | words.IT | {"claim", "statement", "opposite", "assertion"}


def _agrees(lows: Sequence[str], said: str, beside: bool = False) -> bool:
    """True unless words after yes or no deny it, doubt it or bind it to a condition; a reason may say anything.

    Args:
        beside: they stand in its sentence.
    """
    ends = (place for place, low in enumerate(lows) if low in words.REASONS or (low == "so" and place > 2))
    end = next(ends, len(lows))  # a penguin cannot fly, so it could not cross it
    concluded = lows[end + 1 :] if lows[end : end + 1] == ["so"] else []
    if said in _POSITIVE and words.denies_in(concluded) and not beside:
        return False  # it fails, so there is none
    head = [low for low in lows[:end] if low.isalnum() or "'" in low]
    judges = words.any_of(head, _CLAIMS) or len(head) < 4
    if not head or not (beside or judges or words.any_of(head, words.FIRST_PERSON)):
        return True
    if words.any_of(head, words.CONDITIONS | words.HEDGES | words.RETRACTIONS | words.OTHERS | _PARTLY):
        return False
    if words.any_of(head, words.FIRST_PERSON) and not words.any_of(head, words.ASSERTING | words.APPROVING):
        return False
    refused = words.any_of(head, words.FALSE) != words.denies_in(head)
    if said in _POSITIVE:
        return not (refused and judges)
    return not (judges and words.any_of(head, words.ASSERTED | {"does", "do", "holds", "hold"}) and not refused)


_PARTLY = {"sometimes", "partly", "part", "partially", "cases", "only", "almost", "opposite", "said", "guess"}


def _without_doubt(lows: list[str]) -> list[str]:
    """Drop "there is no doubt", which denies nothing."""
    at = next((place for place in range(1, len(lows)) if lows[place - 1 : place + 1] == ["no", "doubt"]), 0)
    end = at + 1 + (lows[at + 1 : at + 3] == ["about", "it"]) * 2
    said = at and words.any_of(lows[: at - 1], _POLAR_WORDS)
    return [*lows[: at - 1], *lows[end:]] if said else lows[end:] if at else lows


def _polar(lows: Sequence[str], place: int, group: set[str]) -> tuple[str, str]:
    """Say what a sentence makes of its word for yes or no."""
    before, after = list(lows[:place]), lows[place + 1 :]
    while before and before[-1] in _LEADING:
        before.pop()
    if before[-1:] == ["not"] and (opposite := _OPPOSITES & group):
        before.pop()
        while before and before[-1] in _LEADING:
            before.pop()
        return (next(iter(opposite - {lows[place]})), VALUE) if not before and after in ([], ["."]) else ("", DENIED)
    premise = bool(before) and before[0] in words.REASONS and "," in lows[:place]
    led = words.any_of(lows[len(before) : place], words.ANSWERS | {"so", "therefore", "thus", "hence"})
    concluded = led and not words.any_of(before, words.REFUTING | words.TYING | group) and not words.denies_in(before)
    if before and not (premise or concluded):
        if words.any_of(before, words.TYING):
            return "", TWO
        return "", DENIED if any(map(words.denies, before)) else NOT_UNDERSTOOD
    if after[:1] and after[0] not in _FOLLOWING:
        return "", TWO if after[0] in words.TYING else NOT_UNDERSTOOD
    reason = next((at for at, low in enumerate(after) if low in words.REASONS), len(after))
    if any(low in group or low in ("but", "however") for low in after[:reason]):
        return "", TWO
    if not _agrees(after, lows[place], beside=True):
        return "", NOT_UNDERSTOOD
    return lows[place], VALUE


# --- Names --------------------------------------------------------------------------------------------------------


def read_name(text: str, wanted: str) -> tuple[str, str]:
    """Return a name, a date or any other text if a text claims it, and why; "" if it does not.

    >>> read_name("The capital is Paris.", "paris"), read_name("It is London, not Paris.", "paris")[0]
    (('paris', 'value'), '')
    """
    name = tokenize(normalize(wanted) if any(map(str.isalnum, wanted)) else wanted)
    lows = [token.low for token in name]
    said = []
    written = normalize(text) if any(map(str.isalnum, wanted)) else text  # normalized, pictures are gone
    for sentence in sentences(tokenize(written)):
        found: list[Token] = []
        place = 0
        while place < len(sentence):
            if lows and [token.low for token in sentence[place : place + len(lows)]] == lows:
                if found and found[-1].low in ("the", "a", "an", "in", "on", "at"):
                    found.pop()
                found.append(sentence[place]._replace(kind="option", text=wanted, low="\\name"))
                place += len(lows)
            else:
                found.append(sentence[place])
                place += 1
        said.append(found)
    return _read(said)
