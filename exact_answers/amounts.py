r"""Read numbers as people write them into exact Fractions: separators, fractions, words, percent signs, units.

Numbers are read from a clean text (writing.py). Units count if both sides have one of the list below. Other words
after a number name the things that are counted.
"""

import re
from fractions import Fraction
from typing import NamedTuple

MAX_LENGTH = 200  # most characters of a number or a formula

# --- Units --------------------------------------------------------------------------------------------------------

# Each unit by all its names; the first stands for the others
_UNITS = (
    "nm nanometer nanometre, mm millimeter millimetre, cm centimeter centimetre, dm decimeter decimetre, "
    "m meter metre, km kilometer kilometre, in inch inches, ft foot feet, yd yard, mi mile, hectare ha, acre, "
    "ml milliliter millilitre, cc, l liter litre, gal gallon, pint, quart, "
    "mg milligram, g gram, kg kilogram, ton tonne, lb pound, oz ounce, "
    "s sec second, min minute, h hr hour, day, week wk, month, year yr, mi/h mph, km/h kmh kph, hz hertz, "
    "cent, pence penny pennies, dollar usd, euro eur, yen, rupee, "
    "degree deg, rad radian, celsius, fahrenheit, kelvin, newton, joule, watt, kwh, volt, ampere amp, "
    "byte, bit, unit, increase, decrease"
)
_CANONICAL = {name + s: names.split()[0] for names in _UNITS.split(", ") for name in names.split() for s in ("", "s")}
_POWERS = {"square": 2, "sq": 2, "squared": 2, "cubic": 3, "cu": 3, "cubed": 3}
# Units after a number, also without a space; st and th make ordinals
SHORT_UNITS = "cm|mm|km|dm|kg|mg|ml|mL|ft|in|mi|lbs?|oz|hrs?|yd|min|mins|sec|mph|ha|st|nd|rd|th"
# Words that change the number before them
OTHER_WORDS = (
    r"(?:(?:percent|hundred|thousand|million|billion|trillion|quadrillion|quintillion|zillion|lakh|crore|dozen|gross"
    r"|score|grand|myriad|ppm|half|halve|third|quarter|fourth|fifth|sixth|seventh|eighth|ninth|tenth|hundredth"
    r"|thousandth|millionth|ten|pair)s?\b"
    r"|(?:bn|mn|bil|mil|plus|minus|times|point|squared|cubed|factorial|doubled|halved|tripled|below|less|fewer|mod)\b"
    r"|(?:modulo|choose|over|divided|multiplied|upwards|maximum|minimum|max|short)\b|per mille\b|more than\b"
    r"|at (?:the )?(?:most|least)\b|(?:or|and) (?:more|less|fewer|higher|lower|up|above|below)\b|degrees below\b)"
)
_NO_UNIT = (
    rf"{OTHER_WORDS}|(?:and|or|but|does|did|is|are|was|were|will|can|has|have|had|must|may|might)\b|fail|contradict"
    r"|(?:does|did|do|wo|is|are|was|were|ca|could|would|should)n|could|would|seems?\b"
)
# Words after a number, to the end, that are not more of it: no scale, no sum, no denial. A single letter is a unit
# after a number alone: 3\sqrt{2}h has a variable
_UNIT = re.compile(
    r"(?:(?<=[0-9)}\]%!])|(?<=[0-9)}*]\\pi)|(?<=[0-9)}] \\pi)|(?<=illion)|(?<=thousand)|(?<=[0-9]k))"
    rf"\s{{0,9}}(?:(?:{SHORT_UNITS})\b|\s(?!{_NO_UNIT})(?:[A-Za-z]{{3,}}|of|sq)\b)"
    r"[A-Za-z .,'/()-]*(?:\^\{?-?[0-9]\}?[A-Za-z /.]*)*$"
)
_LETTER = re.compile(r"([-+]{0,2}\$?[0-9][0-9.,/ ]*)\s([mgshlL](?:/[mgshlL]\b|\^\{?-?[1-9]\}?){0,2})$")


def split_unit(text: str) -> tuple[str, str]:
    r"""Split a clean text into its number or formula, and the unit among the words after it.

    >>> split_unit("10 square feet"), split_unit("64 km/h."), split_unit("72 apples"), split_unit(r"3\sqrt{2} cm")
    (('10', 'ft^2'), ('64', 'km/h'), ('72', ''), ('3\\sqrt{2}', 'cm'))
    """
    text = text.strip(" $").rstrip(" .$")
    words = _LETTER.fullmatch(text)
    if words:
        return words[1], unit_of(words[2])
    before = _UNIT.sub("", text)
    return before.rstrip(" .$"), unit_of(text[len(before) :])


def without_unit(text: str) -> str:
    """Strip the words after a number or formula, dollar signs and a full stop from a clean text."""
    return split_unit(text)[0]


def unit_of(words: str) -> str:
    """Return the unit in the words after a number, in one spelling; "" for other words, as in "72 apples".

    >>> unit_of(" miles per hour"), unit_of(r"cm ^2"), unit_of("square inches"), unit_of(" apples in a day")
    ('mi/h', 'cm^2', 'in^2', 'day')
    """
    unit, power, per = "", 1, ""
    for token in re.findall(r"\b(?!in\s+[A-Za-z])[A-Za-z]+|\^\{?-?[0-9]|/", words):  # "5 in a day" is no inches
        name = _CANONICAL.get(token.lower() if len(token) > 1 else token.replace("L", "l"), "")
        if token in ("/", "per"):
            per = "/"
        elif token.startswith("^") or (token in ("squared", "cubed") and unit):
            unit += f"^{_POWERS.get(token, token[-1])}" if unit else ""
        elif token in _POWERS:
            power = _POWERS[token]
        elif name:
            unit += (per or "*" * bool(unit)) + name + f"^{power}" * (power > 1)
            power, per = 1, ""
    return unit


_QUANTITY = r"(-?[0-9]+(?:\.[0-9]+)?)\s?([A-Za-z]+)\.?"


def quantities(text: str) -> tuple[tuple[Fraction, str], ...] | None:
    """Return the parts of an amount in several units, `5 feet 6 inches`; None for any other text.

    >>> quantities("3 hours and 20 minutes"), quantities("20 minutes")
    (((Fraction(3, 1), 'h'), (Fraction(20, 1), 'min')), None)
    """
    text = text.strip(" .")
    if len(text) > MAX_LENGTH or not re.fullmatch(rf"{_QUANTITY}(?:(?:\s|,|\band\b){{1,5}}{_QUANTITY}){{1,3}}", text):
        return None
    parts = tuple((Fraction(number), unit_of(word)) for number, word in re.findall(_QUANTITY, text))
    return parts if all(unit for _, unit in parts) and len({unit for _, unit in parts}) == len(parts) else None


# --- Numbers ------------------------------------------------------------------------------------------------------

_GROUPED = (  # 1,000 and 12,00,000, 1'000, 1.000.000 and 1.000,50
    r"[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]{1,2}(?:,[0-9]{2})+,[0-9]{3}(?![0-9])|[0-9]{1,3}(?:'[0-9]{3})+(?![0-9])"
    r"|[0-9]{1,3}(?:\.[0-9]{3}){2,}(?![.0-9])|[0-9]{1,3}(?:\.[0-9]{3})+(?=,[0-9]{1,2}(?![0-9]))"
)
_SCALES = {"hundred": 100, "thousand": 10**3, "lakh": 10**5, "million": 10**6, "crore": 10**7, "billion": 10**9}
_SCALES |= {"trillion": 10**12, "dozen": 12, "k": 10**3, "m": 10**6, "b": 10**9}
NUMBER = re.compile(  # a minus after a digit, a letter or a bracket is a subtraction: 18-5
    r"(?P<sign>(?<![0-9A-Za-z)\]}])(?<![0-9)] )-\s?)?(?:(?P<currency>\$)\s?(?P<minus>-)?)?"
    r"(?<![0-9],)(?:(?P<mixed>[0-9]+)\s(?=[0-9]+/[0-9]))?"
    rf"(?P<whole>{_GROUPED}|[0-9]+|(?<![A-Za-z0-9])(?=\.[0-9]))"
    r"(?P<decimals>\.[0-9]+|,(?:[0-9]{1,2}|[0-9]{4,})(?![0-9]))?(?!,[0-9])"
    r"(?:\s?/\s?(?P<below>[1-9][0-9]*)|[eE](?P<exponent>[-+]?[0-9]{1,3})\b"
    r"|\s?(?P<word>hundred|thousand|million|billion|trillion|lakh|crore|dozen)s?\b|(?P<k>[kK])\b|(?<=[0-9])(?P<m>[MB])\b)?"
    r"(?P<percent>\s?%|\spercent)?"
)
_THOUSANDS = re.compile(r"(?<![0-9.,(\[{])[0-9]{1,3}(?:,[0-9]{3})+(?!,?[0-9])")  # (1,200) is a tuple
_FRACTION = re.compile(r"\s*\\frac\s?(?:\{\s?(-?[0-9]+)\s?\}\s?\{\s?([0-9]+)\s?\}|([0-9])\s?([0-9]))")
_EXACT_DIGITS = 15  # decimal digits that a double always keeps


class Number(NamedTuple):
    value: Fraction
    percent: bool = False
    digits: int = 0  # significant ones of a number with a decimal point, else 0
    decimals: int = 0  # after the point
    unit: str = ""

    def is_rounded_to(self, value: Fraction) -> bool:
        """True if this is the printed double of `value`: 33.333333333333336 is 100/3."""
        if self.digits <= _EXACT_DIGITS or max(abs(self.value), abs(value)) > 2**1000:
            return False
        return float(value) == float(self.value) or value == Fraction(f"{float(self.value):.{_EXACT_DIGITS}g}")


def number_of(match: re.Match[str], unit: str = "") -> Number:
    """Return the value of a match of NUMBER."""
    whole, decimals = re.sub(r"[,'.]", "", match["whole"]), (match["decimals"] or "").replace(",", ".")
    value = Fraction((whole or "0") + decimals) / int(match["below"] or 1) + int(match["mixed"] or 0)
    scale = (match["word"] or match["k"] or match["m"] or "").lower()
    value *= Fraction(10) ** int(match["exponent"] or 0) * _SCALES.get(scale, 1)
    value = -value if match["sign"] or match["minus"] else value
    digits = len((whole + decimals[1:]).lstrip("0")) if decimals.strip(".0") else 0
    return Number(value, bool(match["percent"]), digits, len(decimals or ".") - 1, unit)


def joined(text: str) -> str:
    """Remove thousands separators from a clean text, except in brackets: (1,200) is a tuple."""
    return _THOUSANDS.sub(lambda thousands: thousands[0].replace(",", ""), text)


def with_slashes(text: str) -> str:
    r"""Replace \frac{1}{2} by 1/2 in a clean text, for NUMBER.

    >>> with_slashes(r"1\frac{1}{2} or -\frac34")
    '1 1/2 or -3/4'
    """
    text = _FRACTION.sub(lambda match: f" {match[1] or match[3]}/{match[2] or match[4]}", text)
    return re.sub(r"(?<=[-$({]) (?=[0-9]+/)", "", text).strip()


def read_number(text: str) -> Number | None:
    """Read a clean text that is a number, arithmetic of numbers or a number word; None for any other.

    >>> [str(read_number(text).value) for text in ("12,00,000", "1'234", "1.234,5", "70k dollars", "2 and 3/8")]
    ['1200000', '1234', '2469/2', '70000', '19/8']
    """
    if len(text) > MAX_LENGTH:
        return None
    dollars = re.match(r"-?\$", text) and not text.endswith("$")
    text, unit = split_unit(with_slashes(text))
    unit = unit or "dollar" * bool(dollars)
    text = text.removeprefix("+").strip()
    if re.fullmatch(r"-?[0-9]{1,3}(?: [0-9]{3})+(?:[.,][0-9]+)?", text):
        text = text.replace(" ", "")  # 1 000
    text = re.sub(r"^(-?[0-9]+) and (?=[0-9]+/[0-9]+$)", r"\1 ", text)
    if number := NUMBER.fullmatch(text):
        return number_of(number, unit)
    from grpo.task import arithmetic  # here: that folder imports this one

    value = arithmetic.value(joined(text.replace("$", "")))
    if value is None:
        return number_word(text)
    return Number(value, unit=unit)


_SMALL = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
_SMALL = f"{_SMALL} seventeen eighteen nineteen"
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
_WORD_VALUES = {word: value for value, word in enumerate(_SMALL.split())}
_WORD_VALUES |= {word: 10 * value for value, word in enumerate(_TENS.split(), start=2)}
_WORD_VALUES |= {
    f"{ten}{sign}{one}": _WORD_VALUES[ten] + _WORD_VALUES[one]
    for ten in _TENS.split()
    for one in _SMALL.split()[1:10]
    for sign in "- "
}
_WORD_VALUES |= {"a hundred": 100, "one hundred": 100, "a dozen": 12, "one dozen": 12}
_WORD_VALUES |= {"a thousand": 10**3, "a million": 10**6, "a billion": 10**9}
_BY_LENGTH = "|".join(sorted(_WORD_VALUES, key=len, reverse=True))
_WORD = re.compile(rf"(-?)({_BY_LENGTH})( hundred| thousand| million| billion)?((?:\s+[a-z]+){{0,3}})")
# What makes another number of a word before it: seven or eight, seven and a half, seven dozen
_MORE = re.compile(rf"\b(?:or|and|but|not|than|no|{_BY_LENGTH}|{OTHER_WORDS})\b")


def number_word(text: str) -> Number | None:
    """Read a number below a hundred in words, or such a number of hundreds, thousands, millions or billions.

    At most three words after it name the things that are counted.

    >>> number_word("Twenty-one apples").value, number_word("five million").value, number_word("seven or eight")
    (Fraction(21, 1), Fraction(5000000, 1), None)
    """
    word = _WORD.fullmatch(text.lower()) if len(text) < 60 else None
    if not word or _MORE.search(word[4]):
        return None
    value = _WORD_VALUES[word[2]] * _SCALES.get((word[3] or "").strip(), 1)
    return Number(Fraction(-value if word[1] else value), unit=unit_of(word[4]))
