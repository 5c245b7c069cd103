"""Values are compared exactly, however they are written: numbers, formulas, amounts with units."""

import datetime
import sys
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import pytest
from helpers_runs import examples
from helpers_tables import each
from helpers_texts import ANY_TEXT
from hypothesis import given
from hypothesis import strategies as st

from exact_answers import compare, grade, is_right, last_number, spelled
from exact_answers.verdict import NOT_COMPUTED, grade_any
from exact_answers.writing import normalize, tokenize


def test_different_formulas_are_never_the_same():
    formulas = ["(1,2)", "(2,1)", r"\{1,2\}", "[1,2]", "1", "2", "x", r"\sqrt{2}", r"\pi", "x+1", "x+2", "(1,2,3)"]
    for gold in formulas:
        assert [text for text in formulas if is_right(text, gold)] == [gold]


WAYS = [  # to write a fraction n/d, and its decimals where it has any
    r"\frac{{{n}}}{{{d}}}",
    "{n}/{d}",
    "({n})/({d})",
    "x = {n}/{d}",
    r"\boxed{{\dfrac{{{n}}}{{{d}}}}}",
    "$\\frac{{{n}}}{{{d}}}$",
    "The answer is {n}/{d}.",
    r"{n} \div {d}",
    "{n}*{k}/({d}*{k})",
    r"\frac{{{n}}}{{{d}}} \text{{ apples}}",
]
WHOLE = [
    "{n}",
    "{n:,}",
    "{n}.0",
    "${n}",
    "{n} apples",
    "**{n}**",
    "1*{n}",
    "{n} + {k} - {k}",
    "So it is {n}.",
    "n = {n}",
]
UNCOMPUTED = {"{n}*{k}/({d}*{k})", "1*{n}", "{n} + {k} - {k}"}  # of the ways
SCRIPTS = ["0123456789", "٠١٢٣٤٥٦٧٨٩", "०१२३४५६७८९", "０１２３４５６７８９"]


@st.composite
def rewrites(draw):
    """A fraction's value, two of the ways to write it, one as a gold answer, and whether the first is computed."""
    n = draw(st.integers(1, 2000) | st.integers(1, 10**18))
    d = draw(st.just(1) | st.integers(1, 999))
    k = draw(st.integers(2, 9))
    value = Fraction(n, d)
    ways = WHOLE if value.denominator == 1 else WAYS
    n, d = (value.numerator, 1) if value.denominator == 1 else (n, d)
    way = draw(st.sampled_from(ways))
    text = way.format(n=n, d=d, k=k)
    digits = draw(st.sampled_from(SCRIPTS))
    gold = draw(st.sampled_from([str(value), rf"\frac{{{n}}}{{{d}}}"]))
    return value, text.translate(str.maketrans(SCRIPTS[0], digits)), gold, way not in UNCOMPUTED


@examples(150)
@given(rewrites(), rewrites(), st.integers(-2, 2))
def test_numbers_are_right_if_and_only_if_their_values_are_equal(one, other, shift):
    (value, text, gold, computed), (second, _, second_gold, _) = one, other
    neighbours = (value + shift, value * (1 + Fraction(shift, 10**12)))  # however large
    golds = [(gold, value), (second_gold, second), *((str(neighbour), neighbour) for neighbour in neighbours)]
    for wanted, wanted_value in golds:
        assert is_right(text, wanted, computed=False) == (value == wanted_value)
        assert is_right(text, wanted) == (value == wanted_value and computed)
        assert (grade(text, wanted).why == NOT_COMPUTED) == (value == wanted_value and not computed)


ATOMS = ["x", "y", "2", "3", r"\pi", r"\sqrt{2}", r"\sqrt{x}", "10^{12}", r"\frac{1}{3}", "ab", "h", "0.1", r"\sin(x)"]
SUMS = ["{a}+{b}", "{b}+{a}", "{a}*({b})", "({b})*{a}", "{a}-({b})", r"\frac{{{a}}}{{{b}}}", "({a})^2+{b}"]
SAME = {0: [1], 1: [0], 2: [3], 3: [2]}  # of SUMS: the same written the other way round


@examples(60)
@given(st.sampled_from(ATOMS), st.sampled_from(ATOMS), st.integers(0, len(SUMS) - 1), st.data())
def test_formulas_are_right_if_their_values_are_equal_and_wrong_if_one_part_differs(a, b, which, data):
    gold = SUMS[which].format(a=a, b=b)
    assert all(is_right(SUMS[way].format(a=a, b=b), gold) for way in [which, *SAME.get(which, [])])
    changed = data.draw(st.sampled_from(["z", "5", r"\pi^2", "10^{12}+1", "0.1000001", "bc", "t"]))
    assert not is_right(SUMS[which].format(a=changed, b=b), gold)
    assert not is_right(f"{gold}+10^{{-30}}", gold) and not is_right(f"{gold}t", gold)
    assert not is_right(f"not equal to ${gold}$", gold)


def test_no_tolerance_hides_a_difference():
    for one, other in (
        ("1000000008", "10^9+7"),
        (r"9.1\times10^{-31}", r"1.6\times10^{-19}"),
        (r"\sqrt{2}\cdot 10^{-40}", r"\sqrt{3}\cdot 10^{-40}"),
        (r"\sqrt{2}+10^{-50}", r"\sqrt{2}"),
        ("e^{-200}", "0"),
        ("1.9999999", "2.000000"),
        ("0.3000000001", "0.30000000000000004"),
    ):
        assert not is_right(one, other) and not is_right(other, one)


def test_formulas_are_read_in_any_thread():
    """mpmath's precision belongs to a thread."""
    pairs = [(r"\sqrt{8}", r"2\sqrt{2}", True), (r"\sqrt{8}", r"2\sqrt{3}", False), ("x+x", "2x", True)] * 8
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda pair: is_right(*pair[:2]), pairs)) == [right for *_, right in pairs]


@st.composite
def numbers(draw):
    """A number's value, and one of the ways to write it."""
    whole = draw(st.one_of(st.integers(0, 2000), st.integers(0, 10**15)))
    sign = draw(st.sampled_from(["", "", "-", "\u2212"]))
    decimals = draw(st.just("") | st.from_regex(r"\.[0-9]{1,6}", fullmatch=True))
    below = draw(st.integers(1, 999)) if not decimals and draw(st.booleans()) else 1
    digits = draw(st.sampled_from(["{}", "{:,}"])).format(whole) + decimals + (f"/{below}" if below > 1 else "")
    before = draw(st.sampled_from(["", "+", "x = ", "about ", "**", "(", "so: ", "7-3 is "]))
    after = draw(st.sampled_from(["", ".", " apples", " km^2", "**", ")", ", I think", " m^{-3}"]))
    value = Fraction(f"{whole}{decimals}") / below
    before = before if before != "+" or not sign else ""
    return (-value if sign else value), before + sign + draw(st.sampled_from(["", "$"])) + digits + after


@examples(60)
@given(numbers(), numbers(), ANY_TEXT)
def test_numbers_are_right_if_they_are_equal(one, other, reasoning):
    (value, text), (second, _) = one, other
    answer = f"{reasoning}.\n<answer>{text}</answer>"
    assert is_right(answer, str(second)) == (value == second) and is_right(answer, str(value))


def test_numbers_need_no_algebra(monkeypatch):
    """mpmath is imported for roots and functions alone."""
    monkeypatch.setitem(sys.modules, "mpmath", None)  # its import fails
    assert is_right("9 * 8 = $72.00", "72") and not is_right("<answer>71</answer>", "72")


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ("|x|+|y|", "|x+y|", False),  # three points of one sign and size are no proof
        ("100-x", "|x-100|", False),
        ("|100-x|", "|x-100|", True),
        (r"\sqrt{(x-100)^2}", "|x-100|", True),
        (r"\sqrt{4x^2}", "2|x|", True),
        ("|t-1|+|t-2|", "|2t-3|", False),
        (r"\lceil x\rceil", r"\lfloor x\rfloor+1", False),
        (r"\lfloor x+1\rfloor", r"\lfloor x\rfloor+1", True),
        (r"\lfloor (n+0.01)/3\rfloor", r"\lfloor n/3\rfloor", False),
        ("F(2n-3)", "F(n-1)+F(n-2)", False),  # a function's name is no factor
        ("f(x+x)", "f(2x)", True),
        (r"\gcd(10!,12!)", "1", False),
        (r"\gcd(8,9)", "1", True),
        (r"\gcd(x,y)", "1", False),
        (r"\gcd(x,y)", r"\gcd(y,x)", True),
        (r"\sqrt{x}\sqrt{y}", r"\sqrt{xy}", True),
        ("(-1)^{n+1}", "(-1)^n", False),
        ("n!", "n(n-1)!", True),
        (r"\log_2 8", "3", True),
        (r"\sin 30^\circ", r"\sin 30", False),
        ("x^2+1", "X^2+1", True),
        ("A+a", "2a", False),
        ("52_8", "52_9", False),
        ("05/13/1998", "05/12/1998", False),
        ("3:4", "3/4", False),
        ("2 hours and 30 minutes", "150 minutes", True),  # an amount of two units is one value
        ("12 dollars and 50 cents", "$12.50", True),
        ("5 florins", "5 ducats", False),  # unknown units that differ
        ("5 kW", "5 kilowatts", True),
        ("5 W", "5 kilowatts", False),
        ("-2,1", "1,-2", True),
    ],
)
def test_values_are_equal_or_not(one, other, equal):
    assert is_right(one, other) is equal


def test_a_verdict_says_what_was_read_and_why():
    for text, gold, read, why in [
        ("<answer>72 clips</answer>", "72", "72 clips", "value"),
        ("So she has 71 clips.", "72", "71 clips", "value"),
        ("It is 5 m.", "5 km", "5 m", "unit"),
        ("It is 71 or 72.", "72", "71 or 72", "two answers"),
        (r"\boxed{72}. Wait, that is wrong.", "72", "72", "denied"),
        ("The answer is not 72.", "72", "", "denied"),
        ("Now we divide 144 by 2.", "72", "", "not understood"),
    ]:
        verdict = grade(text, gold)
        assert (verdict.read, verdict.why) == (read, why) and verdict.right == (text == "<answer>72 clips</answer>")


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        ("I don't know", "Paris"),
        ("maybe", "Paris"),
        ("not London", "Paris"),
        ("USA", "United States"),
        ("London", "Paris"),
        ("London or Rome", "Paris"),
        ("London, Rome", "Paris"),
        ("Delivery issue", "Delivery"),  # a person may take it
        ("delivery billing", "Delivery"),
        ("a long story about a parcel", "Delivery"),
        ("", "Delivery"),
        ("spam", "6"),
        ("banana", "B"),
    ],
)
def test_what_may_mean_the_same_is_not_understood(text, gold):
    verdict = grade(text, gold, "text")
    assert not verdict.right and verdict.why == "not understood"


@pytest.mark.parametrize(
    ("text", "golds", "right", "why"),
    [
        ("75002", ["75001", "Paris"], False, "value"),
        ("75002", ["Paris", "75001"], False, "value"),
        ("London", ["Paris", "75001"], False, "not understood"),
        ("Now we divide.", ["72", "71"], False, "not understood"),
        ("Paris", ["London", "75001", "Paris"], True, "value"),
    ],
)
def test_of_several_gold_answers_the_one_that_tells_most_counts(text, golds, right, why):
    verdict = grade_any(text, golds)
    assert (verdict.right, verdict.why) == (right, why)


SYMBOLS = ("😢", "😀", "★", "★★", "♠", "♥", "☐", "☑", "👍🏽", "🇩🇪", "♻", "★☆", "😀😢")


@pytest.mark.parametrize(
    "form", ["{}", " {}. ", '"{}"', "**{}**", "<answer>{}</answer>", "The answer is {}.", "{}\ufe0f"]
)
def test_a_gold_answer_of_symbols_is_met_by_itself_alone(form):
    """Symbols beside words are decoration, but for those that deny: alone they are the answer."""
    for gold in SYMBOLS:
        assert [said for said in SYMBOLS if grade(form.format(said), gold).right] == [gold], gold
    assert all(grade(f"{gold} {symbol}", gold).right for gold in ("72", "yes", "Paris") for symbol in "😀★♠☑")
    assert not any(grade(f"{gold} {symbol}", gold).right for gold in ("72", "Paris") for symbol in "😢👎🚫🤷")


def test_the_last_number_is_the_one_that_is_claimed():
    assert last_number("48 + 24 = 72 clips, because 24 is half of 48.") == 72
    assert last_number("Now add 48 and 24.") is None


# --- Values of other types ----------------------------------------------------------------------------------------

DAYS = st.dates(datetime.date(1600, 1, 1), datetime.date(2400, 12, 31))
DATE_FORMS = ["{0:%B} {0.day}, {1}", "{0.day} {0:%B} {1}", "{1}-{0:%m}-{0:%d}", "{0:%d}.{0:%m}.{1}"]
DATE_FORMS += ["{0:%A}, {0:%b}. {0.day}, {1}", "the {0.day}th of {0:%B} {1}", "{1}年{0.month}月{0.day}日"]


def written_date(form, day):
    return form.format(day, f"{day.year:04}")


@examples(60)
@given(DAYS, DAYS, st.sampled_from(DATE_FORMS), st.sampled_from(DATE_FORMS))
def test_dates_are_right_if_they_are_the_same_day(day, other, form, gold_form):
    gold = written_date(gold_form, day)
    assert is_right(written_date(form, day), gold)
    next_day = day + datetime.timedelta(days=1)
    for another in (other, next_day, day.replace(year=day.year + 400)):
        assert is_right(written_date(form, another), gold) == (another == day)


@examples(60)
@given(DAYS, st.integers(1, 6))
def test_a_wrong_weekday_makes_no_date(day, shift):
    weekday = day + datetime.timedelta(days=shift)
    assert not is_right(f"{weekday:%A}, {written_date(DATE_FORMS[0], day)}", written_date(DATE_FORMS[1], day))


@examples(60)
@given(st.integers(1, 9999), st.integers(1, 9999))
def test_ordinals_are_neither_numbers_nor_parts(one, other):
    first, second = (spelled._ordinal_of(value) for value in (one, other))
    assert is_right(f"the {first}", first) and is_right(first, second) == (one == other)
    assert not is_right(str(one), first) and not is_right(first, str(one)) and not is_right(f"1/{one}", first)


@examples(60)
@given(st.integers(2, 10**6), st.sampled_from([2, 8, 16]), st.integers(2, 10**6), st.sampled_from([2, 8, 16]))
def test_a_number_in_a_base_is_that_of_the_same_base_and_digits(value, base, other, other_base):
    def written(value, base):
        digits = format(value, {2: "b", 8: "o", 16: "X"}[base])
        name, prefix = {2: ("binary", "b"), 8: ("octal", "o"), 16: ("hexadecimal", "x")}[base]
        return [f"0{prefix}{digits}", f"({digits})_{{{base}}}", f"{digits} in base {base}", f"{digits} ({name})"]

    gold = written(value, base)[1]
    assert all(is_right(text, gold) for text in written(value, base))
    same = (value, base) == (other, other_base)
    assert all(is_right(text, gold) == same for text in written(other, other_base))
    assert not is_right(str(value), gold)


MATRIX = r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}"
AFTER = ["^{-1}", "^2", "^T", "_2", "_{11}", " + 1", " - N", r" \cdot 2", rf", {MATRIX.replace('4', '5')}", " x"]


@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize("value", [MATRIX, r"\{2, 3\}", "(1, 2)", r"3\sqrt{2}", r"\frac{1}{2}", "x^2"])
def test_what_follows_a_value_makes_another_one(value, after):
    assert is_right(value, value) and not is_right(f"{value}{after}", value)


@pytest.mark.parametrize("value", ["72", r"\pi", r"\sqrt{2}", r"\frac{5}{12}"])
@pytest.mark.parametrize("other", ["7", "100", "-72", r"\pi^2", "3.5", "1.5", "0.5"])
def test_an_approximation_that_is_none_is_not_understood(value, other):
    assert grade(rf"{value} \approx {other}", value).why == "not understood"


TOO_LARGE = [
    r"\frac{(10^6)!}{(10^6)! - 1}",
    "10^{10^{10}}",
    r"\sum_{k=1}^{9} f(k)^{k!} - 1",
    r"(((2^{99})^{99})^{99})!",
]


@pytest.mark.parametrize("formula", [*TOO_LARGE, "+".join(["x^{2}"] * 100)])
def test_a_formula_that_is_too_large_is_no_prose(formula):
    assert compare.is_formula(tokenize(normalize(formula)))
    for number in ("1", "2", "6", "9", "10", "99", "100"):
        assert grade(formula, number).why in ("not understood", "value") and not is_right(formula, number)


@pytest.mark.parametrize(
    "text", ["She has 5 apples.", "48 + 24 = 72", "x = 5, y = 6", "5! Yes.", "72", "a = b => 5", ""]
)
def test_prose_is_no_formula(text):
    assert not compare.is_formula(tokenize(normalize(text)))


@pytest.mark.parametrize("wrap", [r"\textcolor{{red}}{{{}}}", r"\mathbf{{{}}}", r"{{\large {}}}", r"\underline{{{}}}"])
@pytest.mark.parametrize("value", ["64", r"\frac{5}{6}", r"\{1, 2\}", "x = 5", r"3\sqrt{2}", "5 km", "July 4, 1976"])
def test_type_and_colour_change_no_value(wrap, value):
    assert is_right(wrap.format(value), value) and is_right(rf"\boxed{{{wrap.format(value)}}}", value)


@pytest.mark.parametrize("struck", ["~~{}~~", r"\cancel{{{}}}", r"\sout{{{}}}", "<del>{}</del>", r"\phantom{{{}}}"])
@pytest.mark.parametrize("value", ["64", r"\frac{5}{6}", "5 km"])
def test_what_is_struck_out_is_no_answer(struck, value):
    assert not is_right(struck.format(value), value)
    assert is_right(f"{struck.format(value)} 7", "7") and not is_right(f"{struck.format(value)} 7", value)


@st.composite
def arithmetic(draw, depth=3):
    """A formula of plain numbers, and its value."""
    if depth == 0 or draw(st.booleans()):
        number = draw(st.integers(1, 60))
        return str(number), Fraction(number)
    (one, left), (other, right) = (draw(arithmetic(depth=depth - 1)) for _ in range(2))
    return draw(
        st.sampled_from(
            [
                (f"({one} + {other})", left + right),
                (f"({one} - {other})", left - right),
                (f"({one}) * ({other})", left * right),
                (rf"{{{one}}} \cdot {{{other}}}", left * right),
            ]
        )
    )


@examples(60)
@given(arithmetic(), arithmetic(), st.sampled_from(["{}", r"\boxed{{{}}}", "#### {}", "<answer>{}</answer>"]))
def test_arithmetic_is_no_answer_but_for_gold_arithmetic(one, other, mark):
    (text, value), (gold, wanted) = one, other
    marked = mark.format(text)
    assert is_right(marked, str(value)) == text.isdigit() and is_right(marked, str(value), computed=False)
    assert is_right(f"<answer>{text} = {value}</answer>", str(value))
    assert is_right(marked, f"{gold} - ({gold}) + {value}") and is_right(marked, gold, computed=False) == (
        value == wanted
    )


@each([("(1+1, 2)", "(2, 2)"), ("x = 1 + 1", "x = 2"), ("1+1 and 3", "2, 3"), ("[0, 2*2]", "[0, 4]")])
def test_a_part_that_is_not_computed(text, gold):
    assert grade(text, gold) == (False, text, NOT_COMPUTED) and is_right(text, gold, computed=False)
    assert not is_right(text.replace("1", "7").replace("2*", "9*"), gold, computed=False)


def test_of_several_gold_answers_one_may_be_arithmetic():
    assert grade_any("48 + 24", ["Paris", "72"]).why == grade_any("48 + 24", ["72", "71"]).why == NOT_COMPUTED
    assert grade_any("48 + 24", ["72", "36 + 36"]).right and grade_any("48 + 24", ["72"], computed=False).right
