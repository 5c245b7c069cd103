r"""Compare with gold answers that are no values: the letter of an option, yes or no, a name, a date.

Sentences are those of prose.py, and their words are looked up in the same tables: what is not understood is wrong.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from exact_answers import words
from exact_answers.claims import is_attributed, takes_back
from exact_answers.prose import DENIED, NOT_UNDERSTOOD, TWO, VALUE, sentences
from exact_answers.writing import Token, get, normalize, tokenize, vocabulary

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


def is_option(gold: str) -> bool:
    r"""True for a letter, yes or no, whose mark no word denies: \boxed{B} is incorrect."""
    return _OPTION.fullmatch(plain(gold)) is not None or plain(gold) in _POLAR_WORDS


def is_word(gold: str) -> bool:
    """True for a gold answer that is a letter in capitals, such letters, yes or no: no formula."""
    said, text = plain(gold), normalize(gold).replace(" and ", " AND ")
    letters = _OPTION.fullmatch(said) or _LETTERS.fullmatch(said)
    return said in _POLAR_WORDS or (letters is not None and text == text.upper())


def compare(answer: str, gold: str) -> Compared:
    """Compare an answer, or a text that ends with one, with a gold answer that is text."""
    wanted = plain(gold)
    if option := _OPTION.fullmatch(wanted):
        letter, why = read_letter(answer)
        return letter == option[1].upper(), letter, why
    said = plain(answer)
    if _LETTERS.fullmatch(wanted) and _LETTERS.fullmatch(said):  # A and C, in any order
        return sorted(re.findall(r"\b[a-z]\b", said)) == sorted(re.findall(r"\b[a-z]\b", wanted)), answer, VALUE
    if wanted in _POLAR_WORDS:
        word, why = read_polar(answer, wanted)
        return word == wanted, word, why
    return read_text(answer, wanted)


# --- Letters ------------------------------------------------------------------------------------------------------


class Letter(NamedTuple):
    """An option in a sentence."""

    name: str
    chosen: bool = False  # it is the answer, as far as the sentence says
    refused: bool = False
    strong: bool = False  # the sentence says "answer", "option" or "correct"
    doubted: bool = False


_CUTS = {",", ";", ":", "but", "=>", "if", "when"} | words.CONNECTING | words.REASONS
_CHOOSING = {"choose", "pick", "select", "go", "with", "chose", "picked", "selected", "选", "选项"}
_NOUNS = {"option", "choice", "answer", "letter", "alternative", "response"}
_CORRECT = {"correct", "right", "best", "answer", "true", "better", "one", "choice"}
_NEARLY = {"second", "next", "almost", "nearly", "close", "partly"}
_LIST = words.OR | words.ADDING | words.UNSURE | {",", "/", "nor", "(", ")", "both"}
_CORRECTED = words.REPLACING | {"i", "or"}
_AROUND = vocabulary("( ) [ ] . : $ - final well ok no wait")


def read_letter(text: str) -> tuple[str, str]:
    """Return the option that a text chooses, and why; "" without one, or with two.

    >>> [read_letter(text)[0] for text in ("(B) 12 km", "The answer is B because A is wrong.", "B or C", "Not B")]
    ['B', 'B', '', '']
    """
    current: Letter | None = None
    why, was_bare = NOT_UNDERSTOOD, False
    for sentence in sentences(tokenize(normalize(text))):
        if sentence[-1].text.startswith("?") or sentence[0].low in ("let", "let's"):
            continue
        lows = [token.low for token in sentence]
        letters = _letters(sentence)
        retracts = takes_back(sentence) or (len(letters) == 1 and _corrects(lows))
        if retracts and current:
            current, why = None, DENIED
        chosen = [letter for letter in letters if letter.chosen]
        if current and any(letter.refused and letter.name == current.name for letter in letters) and not chosen:
            current, why = None, DENIED
        if not chosen:
            why = DENIED if any(letter.refused for letter in letters) and not current else why
            continue
        last = chosen[-1]
        strong = [letter for letter in chosen if letter.strong]
        among = chosen[-1:] if retracts else [letter for letter in chosen if letter.strong or not strong]
        bare = len(sentence) <= 2
        if current and current.strong and not strong:
            continue
        if len({letter.name for letter in among}) > 1:
            current, why = None, TWO
        elif current and last.name != current.name and ((last.doubted and current.doubted) or (bare and was_bare)):
            return "", TWO
        else:
            current, why, was_bare = among[-1], VALUE, bare
    return (current.name if current else ""), why


def _letters(sentence: Sequence[Token]) -> list[Letter]:
    """Return the options that a sentence names, in order."""
    lows = [token.low for token in sentence]
    places = [place for place in range(len(sentence)) if _is_option(sentence, place)]
    found: list[Letter] = []
    for number, place in enumerate(places):
        name = sentence[place].text[0].upper()
        between = lows[places[number - 1] + 1 : place] if number else []
        if number and between and all(low in _LIST for low in between):
            joined = found[-1]._replace(name=name)
            if not joined.refused:
                found[-1], joined = found[-1]._replace(chosen=True), joined._replace(chosen=True)
            found.append(joined)
            continue
        cut = max((at for at in range(place) if lows[at] in _CUTS), default=-1)
        start = max(cut + 1, places[number - 1] + 1 if number else 0)
        end = next((at for at in range(place + 1, len(lows)) if lows[at] in _CUTS - {":"} or at in places), len(lows))
        found.append(_letter(name, lows[:start], lows[start:place], lows[place + 1 : end], lows[end:]))
    listed = len(places) > 1 and all(lows[place + 1 : place + 2] in ([")"], [":"]) for place in places)
    return [letter._replace(chosen=True, strong=False) for letter in found] if listed else found


def _letter(
    name: str, earlier: Sequence[str], before: Sequence[str], after: Sequence[str], later: Sequence[str]
) -> Letter:
    """Say what the words of its clause make of an option."""
    excepted = words.any_of(earlier, words.EVERYTHING) and earlier[-1:] == ["but"]
    said = [low for low in after if low not in _AROUND]
    labelled = not before and after[:1] in ([")"], ["."], [":"]) and not words.any_of(said, _CORRECT)
    judged = said and (
        said[0] in words.PREDICATES or said[0] in words.FALSE or (words.denies(said[0]) and not labelled)
    )
    predicate = said if judged else []
    refused = excepted or any(words.denies(low) or low in words.REFUTING for low in before)
    negated = any(map(words.denies, predicate))
    supposed = words.any_of(before, words.WOULD) and words.any_of([*after, *later], words.UNDONE)
    refused = refused or supposed or words.any_of(predicate, words.FALSE) != negated
    refused = refused or is_attributed(before) or words.any_of(said, {"mistake", "mistakenly"})
    judged_right = words.any_of(predicate, _CORRECT) and not words.any_of(predicate, _NEARLY)
    strong = judged_right or any(low in words.LABELS | _CHOOSING | _NOUNS for low in before)
    alone = all(low in _AROUND | _NOUNS | _CORRECTED for low in before)
    asserted = before[-1:] and any(low in words.COPULAS | {"be", "is", "("} for low in before[-3:])
    premise = earlier[-1:] and earlier[-1] in words.PREMISES
    chosen = not refused and not premise and bool(alone or strong or asserted)
    doubted = words.any_of(before, words.HEDGES)
    return Letter(name, chosen, refused, strong and chosen, doubted)


def _corrects(lows: Sequence[str]) -> bool:
    """True for actually, B."""
    return words.any_of(lows, words.CORRECTING) and all(low in _AROUND | _CORRECTED for low in lows if len(low) > 1)


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
    if after is not None and after.kind == "word" and token.text in ("A", "I"):
        return after.low in words.PREDICATES | {"because", "since", "or", "and", "nor"} and token.text == "A"
    if token.text.islower():
        return len(sentence) <= 2 or (before is not None and before.low in _NOUNS)
    return True


# --- Yes and no ---------------------------------------------------------------------------------------------------

_LEADING = vocabulary(", : - — statement it it's this that claim simply in clearly die das")
_LEADING |= words.ARTICLES | words.ANSWERS | words.COPULAS | words.RESULTS
_OPPOSITES = {"true", "false"}  # what is not one is the other
_FOLLOWING = {"that", ",", "!", ".", "-", "—", "–", ";", ":", "?"} | words.REASONS


def read_polar(text: str, wanted: str) -> tuple[str, str]:
    """Return yes, no, true or false, as a text says in the words of the gold answer, and why.

    >>> [read_polar(text, "true")[0] for text in ("True, since 1 = 1.", "The statement is not true.", "True or false")]
    ['true', 'false', '']
    """
    group = next(group for group in POLAR if wanted in group)
    said, why = "", NOT_UNDERSTOOD
    for sentence in sentences(tokenize(normalize(text))):
        lows = _without_doubt(["sí" if token.low == "si" and "sí" in group else token.low for token in sentence])
        if not lows:
            continue
        if lows[-1].startswith("?"):
            continue
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


def _without_doubt(lows: list[str]) -> list[str]:
    """Drop "there is no doubt", which denies nothing."""
    at = next((place for place in range(1, len(lows)) if lows[place - 1 : place + 1] == ["no", "doubt"]), 0)
    return lows[at + 1 + (lows[at + 1 : at + 3] == ["about", "it"]) * 2 :] if at else lows


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
    premise = bool(before) and before[0] in words.PREMISES and "," in lows[:place]
    if before and not premise:
        if words.any_of(before, words.TYING):
            return "", TWO
        return "", DENIED if any(map(words.denies, before)) else NOT_UNDERSTOOD
    if after[:1] and after[0] not in _FOLLOWING:
        return "", TWO if after[0] in words.TYING else NOT_UNDERSTOOD
    if any(low in group or low in ("but", "however") for low in after):
        return "", TWO
    return lows[place], VALUE


# --- Names and dates ----------------------------------------------------------------------------------------------

_IS = re.compile(r"(?i)\b(?:is|are|was|were|be|am|named|called|equals|ist|est|es|on|at)\s+|(?<=[a-z]):\s+|=\s*|[是为]")
_SENTENCE = re.compile(r"(?<=[a-z0-9\"')*])[.!](?=\s|$)|\n")
_CLAUSE = re.compile(r",?\s(?:because|since|so|which|where|when|as|if)\b|\s\(")
_ARTICLE = re.compile(r"^(?:the|a|an|on|in|at)\s")


def read_text(text: str, wanted: str) -> Compared:
    """Compare what the last sentence says after "is" with a name, a date, or any other text."""
    said, why = "", NOT_UNDERSTOOD
    text_of_words = normalize(text) if normalize(wanted).strip() else text  # normalized, symbols are gone
    for sentence in _SENTENCE.split(text_of_words.replace("**", "")):
        *subject, complement = _IS.split(sentence.strip(), maxsplit=8)
        if not subject or sentence.rstrip().endswith("?"):
            continue
        said, why = _CLAUSE.split(complement, maxsplit=1)[0].strip(), VALUE
        before, first = " ".join(subject).lower().split(), said.lower().split()[:1]
        denied = any(map(words.denies, [*before, *first])) or any(
            low in words.FALSE | words.HEDGES for low in [*before, *first]
        )
        if denied or words.any_of(before, words.PAST):
            said, why = "", DENIED
    return (why == VALUE and wanted in (plain(said), plain(_ARTICLE.sub("", said)))), said, why
