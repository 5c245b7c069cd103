"""The table of cases, the tables of words, and solutions of GSM8K: what is right is right, what is not is wrong."""

import itertools
import json
import re
from pathlib import Path

import pytest
from helpers_runs import LONG, ROOT, SHARED
from helpers_tables import each

import exact_answers
from exact_answers import extract_answer, is_right, units, words
from exact_answers.compare import read
from exact_answers.units import CURRENCIES, PARTS, PLAIN, PREFIXED, PREFIXES, SCALES
from exact_answers.writing import SIGNS, normalize, tokenize

XML = "<reasoning>\nr\n</reasoning>\n<answer>\n{}\n</answer>\n"
FORMS = ("{}", XML, "The boxes.\nAnswer: {}")


def table():
    """The pairs of the file: gold answers, texts, whether they are right, and the forms to try."""
    gold, forms = "", FORMS
    for line in (Path(exact_answers.__file__).parent / "cases.txt").read_text(encoding="utf-8").split("\n"):
        if line.startswith("# --- Whole texts"):
            forms = ("{}",)
        elif line.startswith("="):
            gold = line[2:]
            if forms == FORMS:
                yield from ((gold, gold, True, forms), (gold, "", False, forms))
        elif line.startswith(("+", "-")):
            yield gold, re.sub(" ?⏎ ?", "\n", line[2:]), line[0] == "+", forms


CASES = list(table())


@each(dict.fromkeys(gold for gold, *_ in CASES))
def test_the_cases(gold):
    wrong = [
        (text, form, right)
        for other, text, right, forms in CASES
        for form in forms
        if other == gold and is_right(form.replace("{}", text), gold) != right
    ]
    assert not wrong


def test_a_text_that_is_cut_anywhere_is_graded():
    """A model writes half of anything, and a limit cuts it; `is_right` raises nothing."""
    texts = [text for _, text, *_ in CASES]
    for text, other in itertools.pairwise(texts):
        middle = len(text) // 2
        for cut in (text[middle:], text[:middle], f"? {text} is {other[:middle]}", f"? {text}. {other[middle:]}="):
            assert is_right(cut, "no such answer") is False or cut in ("", "no such answer")


@each(["? 2 * 5 = 10 hours\n3 * 3 = <<3*3.", "r-d=\\delta", "a = \\pi"])
def test_what_raised_is_wrong(cut):
    assert not is_right(cut, "72")


# --- Each row of a table ------------------------------------------------------------------------------------------

UNITS = {**PLAIN, **PREFIXED}
NO_PREFIX = ("kelvin", "Wh", "ohm")
PREFIXED_UNITS = {prefix + base: base for prefix in PREFIXES for base in PREFIXED if base not in NO_PREFIX}
OTHERS = ("Pm", "min", "ft")  # a time of day, and units without a prefix
PREFIXED_UNITS = {name: base for name, base in PREFIXED_UNITS.items() if name not in (*OTHERS, *PLAIN)}
NAMES = [*UNITS, *(name for name in PREFIXED_UNITS if units.symbol_of(name) == name)]
NO_PLURAL = ("feet", "foot", "inches", "centuries", "pennies", "penny", "pence")


def spellings(name):
    """All spellings of a unit: symbols, words, words with a prefix."""
    base = PREFIXED_UNITS.get(name, name)
    names = {**units._PLAIN_NAMES, **units._PREFIXED_NAMES}
    known = [spelling for spelling, each_name in names.items() if each_name == base]
    if base == name:
        return known
    prefix = name.removesuffix(base)
    return [name, *(PREFIXES[prefix][0] + word for word in known if len(word) > 2 and word.islower())]


def written(spelling):
    """Amounts of 5 with a unit: with a space and without, in formulas, sentences and marks, singular and plural."""
    yield from (
        f"5 {spelling}",
        f"The answer is 5 {spelling}.",
        rf"\boxed{{5\text{{ {spelling}}}}}",
        f"Answer: 5 {spelling}",
    )
    if spelling != "B":  # 5B are billions
        yield f"5{spelling}"
    if len(spelling) > 3 and spelling.isascii() and spelling not in NO_PLURAL and not spelling.endswith("s"):
        yield from (f"5 {spelling}{'es' if spelling.endswith('ch') else 's'}", f"5 {spelling.capitalize()}")


def sizes(name):
    """The names of the same dimension, each with the factor to it; that of the first of each other one is 0."""
    size = units.size_of(((name, 1),))
    firsts = {}
    for other in NAMES:
        of = units.size_of(((other, 1),))
        if size and of and of[0] == size[0]:
            yield other, size[1] / of[1]
        elif of:
            firsts.setdefault(of[0], other)
    yield from ((other, 0) for other in firsts.values())


@each(NAMES)
def test_a_unit_has_its_value_and_no_other(name):
    for spelling in spellings(name):
        for text in written(spelling):
            assert is_right(text, f"5 {name}") and not is_right(text, f"6 {name}") and not is_right(text, "6"), text
        assert is_right(f"5 {spelling}", "5")
    for other, factor in sizes(name):
        if {name, other} & set(units.CURRENCIES_TOO):
            continue
        assert factor == 1 or not is_right(f"5 {name}", f"5 {other}"), other
        if factor and other in UNITS:
            assert is_right(f"5 {name}", f"{5 * factor} {other}"), other


LENGTHS = [name for name in NAMES if (size := units.size_of(((name, 1),))) and size[0] == "length"]


@each(LENGTHS)
def test_a_power_makes_another_unit(name):
    for word in filter(str.isascii, spellings(name)):
        squares = [f"{word}^2", f"{word}²", f"square {word}", f"sq {word}", f"sq. {word}", f"{word} squared"]
        cubes = [f"{word}^3", f"{word}³", f"cubic {word}", f"cu {word}", f"cu. {word}", f"{word}^{{3}}"]
        for power, unit in [*((2, unit) for unit in squares), *((3, unit) for unit in cubes)]:
            for text in (f"5 {unit}", f"The answer is 5 {unit}."):
                assert is_right(text, f"5 {name}^{power}"), text
                assert not is_right(text, f"5 {name}") and not is_right(text, f"5 {name}^{5 - power}"), text


@each([name for name in NAMES if units.size_of(((name, 1),)) and name not in ("s", "min", "h")])
def test_a_rate_is_no_amount(name):
    for word in filter(str.isascii, spellings(name)):
        for text in (f"5 {word}/h", f"5 {word} per hour", f"5 {word}/hour"):
            assert is_right(text, f"5 {name}/h"), text
            assert not is_right(text, f"5 {name}") and not is_right(text, f"5 {name}/min"), text


@each(CURRENCIES)
def test_a_currency_is_no_other(sign):
    other = "€" if sign != "€" else "$"
    assert (
        is_right(f"{sign}72", "72") and is_right(f"It costs {sign}72.", "72") and is_right(f"72 {sign}", f"{sign}72")
    )
    assert not is_right(f"{sign}72", f"{other}72") and not is_right(f"{sign}71", f"{sign}72")


@each([word for word in SCALES if word not in ("cent", "score", "grand", "k", "K")])
def test_a_scale_multiplies(word):
    assert not is_right(f"72 {word}", "72") and not is_right(f"The answer is 72 {word}.", "72")
    assert is_right(f"72 {word}", str(72 * SCALES[word]))


@each(["score", "grand", "cent mille", *sorted(units.UNKNOWN_SCALES)])
def test_a_word_that_may_be_a_scale_is_not_understood(word):
    assert not is_right(f"72 {word}", "72") and not is_right(f"The answer is 72 {word}.", "72")


@each([word for word in PARTS if word.endswith("s")])
def test_an_ordinal_divides(word):
    assert is_right(f"5 {word}", f"5/{PARTS[word]}") and is_right(f"The answer is five {word}.", f"5/{PARTS[word]}")
    assert not is_right(f"5 {word}", "5") and not is_right(f"The answer is five {word}.", "5")


@each(sorted(words.DENYING | words.FALSE | words.REFUSALS))
def test_a_denied_number_is_no_answer(word):
    spaced = "" if "\u3000" < word[0] < "\ue000" else " "
    assert not is_right(f"The answer is {word}{spaced}72.", "72") and not is_right(f"{word}{spaced}72", "72")
    assert not is_right(f"答案{word}是72。", "72") if not spaced else True


@each(sorted(words.BREAKING))
def test_a_word_that_makes_another_number(word):
    assert not is_right(f"The answer is 72 {word} 2.", "72") and not is_right(f"72 {word} 2", "72")


@each(sorted(words.ALTERING))
def test_a_multiple_of_the_answer_is_not_the_answer(word):
    assert not is_right(f"{word} the answer is 72.", "72")


@each(sorted(words.RETRACTIONS))
def test_what_is_retracted_is_no_answer(word):
    assert not is_right(f"The answer is 72. {word.capitalize()}, 73.", "72")
    assert not is_right(rf"\boxed{{72}}. {word.capitalize()}, it should be 73.", "72")


@each(sorted(word for word in words.VERBS if word.isascii()))
def test_a_verb_has_an_object(verb):
    assert is_right(f"In the end they {verb} 72 clips.", "72") and not is_right(f"They {verb} 71 clips.", "72")


@each(SIGNS)
def test_a_sign_is_written_in_one_way(sign):
    written = normalize(f"2{sign}3")
    assert sign not in written and normalize(written) == written
    if "-" in SIGNS[sign]:
        assert is_right(f"{sign}8", "-8") and not is_right(f"{sign}8", "8")
    if SIGNS[sign].strip() in ("<=", ">=", r"\ne"):
        assert not is_right(f"x {sign} 72", "72")


@pytest.mark.parametrize("table", [name for name, rows in vars(words).items() if isinstance(rows, set)])
def test_a_word_of_several_signs_is_one_token(table):
    """Text of Chinese, Japanese and Korean has no spaces: writing.py lists the words of more than one sign."""
    several = [word for word in getattr(words, table) if len(word) > 1 and "\u3040" <= word[0] <= "\ud7a3"]
    assert [word for word in several if [token.text for token in tokenize(word)] != [word]] == []


def test_no_spelling_of_a_unit_is_another_number():
    assert not [spelling for spelling in units.SPELLINGS if read(f"7 {spelling}") is None and len(spelling) > 2]


# --- GSM8K --------------------------------------------------------------------------------------------------------

FIVE_FORMS = (
    "{solution}",
    XML.replace("{}", "{gold}"),
    r"So it is $\boxed{{{gold}}}$.",
    "The answer is {gold}.",
    "{gold}",
)


@pytest.mark.skipif(not (SHARED / "gsm8k" / "train.jsonl").exists(), reason="GSM8K is not beside this checkout")
def test_solutions_of_gsm8k_have_their_own_answer_and_no_other():
    """Of every tenth; of all of them in the long profile."""
    lines = [(SHARED / "gsm8k" / name).read_text("utf-8").splitlines() for name in ("train.jsonl", "test_dev.jsonl")]
    solutions = [json.loads(line)["answer"] for file in lines for line in file[:: 1 if LONG else 10]]
    golds = [extract_answer(solution, "hash") for solution in solutions]
    for solution, gold, other in zip(solutions, golds, golds[1:] + golds[:1], strict=True):
        for form in FIVE_FORMS:
            text = form.format(solution=solution, gold=gold)
            assert is_right(text, gold), text
            assert is_right(text, other) == (float(gold) == float(other)), (text, other)


def test_the_table_is_the_one_of_the_package():
    assert (ROOT / "exact_answers" / "cases.txt").exists() and len(CASES) > 2650
