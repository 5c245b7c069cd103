"""Units, prefixes, currencies, scales and ordinals in tables, and the unit in the words after a number.

A unit is written in one way whatever its spelling: its symbols with their powers. 5 kW and 5 kilowatts have the same
unit, 5 W has another one. A word that no table has is a unit of its own kind, "?apple", so that 5 florins are not 5
ducats.
"""

import functools
import re
from fractions import Fraction
from typing import NamedTuple

from exact_answers.lexicon import vocabulary

# --- Tables -------------------------------------------------------------------------------------------------------


class Base(NamedTuple):
    dimension: str
    size: Fraction | None  # in the dimension's first unit; None for an affine scale


def _table(rows: str) -> tuple[dict[str, Base], dict[str, str]]:
    """Read rows of `dimension: name size spelling …`: the units by name, and the name of each spelling."""
    bases: dict[str, Base] = {}
    names: dict[str, str] = {}
    for row in filter(None, map(str.strip, rows.splitlines())):
        dimension, _, rest = row.partition(": ")
        name, size, *spellings = rest.split()
        bases[name] = Base(dimension, None if size == "-" else Fraction(size))
        names |= dict.fromkeys((name, *spellings), name)
    return bases, names


# With a prefix each is a unit, too: km, kilometer
PREFIXED, _PREFIXED_NAMES = _table("""
    length: m 1 meter metre Meter mètre metro 米
    mass: g 1/1000 gram gramme Gramm gramo 克
    time: s 1 second sec seconde Sekunde segundo 秒
    volume: l 1/1000 L liter litre Liter litro 升
    power: W 1 watt
    energy: J 1 joule
    force: N 1 newton
    pressure: Pa 1 pascal
    frequency: Hz 1 hertz
    voltage: V 1 volt
    current: A 1 ampere amp
    resistance: ohm 1
    amount: mol 1 mole
    data: B 1 byte
    bits: bit 1
    calories: cal 1 calorie
    energy: Wh 3600
    charge: C 1 coulomb
    temperature: kelvin -
""")
PLAIN, _PLAIN_NAMES = _table("""
    length: in 127/5000 inch inches
    length: ft 381/1250 foot feet
    length: yd 1143/1250 yard
    length: mi 201168/125 mile
    mass: tonne 1000 ton
    mass: lb 45359237/100000000
    mass: pound 45359237/100000000
    mass: oz 45359237/1600000000 ounce
    mass: kilo 1
    mass: stone 635029318/100000000
    time: min 60 minute Minute minuto 分钟
    time: h 3600 hr hour heure Stunde hora 小时
    time: day 86400 Tag jour día 天
    time: week 604800 wk Woche semaine semana
    months: month 1 Monat mois mes
    months: year 12 yr Jahr an année año 年
    months: decade 120
    months: century 1200 centuries
    area: ha 10000 hectare
    area: acre 316160658/78125
    volume: gal 473176473/125000000000 gallon
    volume: qt 473176473/500000000000 quart
    volume: pt 473176473/1000000000000 pint
    volume: cup 473176473/2000000000000
    volume: tbsp 473176473/32000000000000 tablespoon
    volume: tsp 473176473/96000000000000 teaspoon
    volume: cc 1/1000000
    barrels: barrel 1
    speed: knot 463/900
    angle: degree 1 deg degrees Grad degré grado 度
    angle: rad - radian
    temperature: celsius - Celsius
    temperature: fahrenheit - Fahrenheit
    dollar: dollar 1 usd USD buck 美元
    dollar: cent 1/100 ¢ penny pennies
    dollar: nickel 1/20
    dollar: dime 1/10
    euro: euro 1 eur EUR € Euro 欧元
    pound sterling: £ 1 gbp GBP
    pound sterling: pence 1/100
    yen: yen 1 jpy JPY ¥
    yuan: yuan 1 cny rmb 元 块
    rupee: rupee 1 inr INR ₹ Rs rs
    won: won 1 ₩
    peso: peso 1
    franc: franc 1 chf CHF
    ruble: ruble 1 rub ₽ rouble
    bitcoin: ₿ 1 bitcoin
""")
PREFIXES = {
    "n": ("nano", -9), "µ": ("micro", -6), "m": ("milli", -3), "c": ("centi", -2), "d": ("deci", -1),
    "h": ("hecto", 2), "k": ("kilo", 3), "M": ("mega", 6), "G": ("giga", 9), "T": ("tera", 12), "P": ("peta", 15),
}  # fmt: skip
DIMENSIONS: dict[str, tuple[tuple[str, int], ...]] = {  # that others make up
    "area": (("length", 2),), "volume": (("length", 3),), "speed": (("length", 1), ("time", -1)),
}  # fmt: skip
CURRENCIES_TOO = {"pound": "£"}  # names of units that are also names of currencies
LETTER_UNITS = {"K": "kelvin", "F": "fahrenheit"}  # only beside a gold answer with that unit: 72 K may be thousands
DEGREES_TOO = {"C": "celsius"}  # 20 C are 20 °C, if the gold answer has °C
RATES = {"mph": "mi/h", "kph": "km/h", "kmh": "km/h", "kmph": "km/h", "fps": "ft/s", "rpm": "?revolution/min"}
POWERS = {"square": 2, "sq": 2, "squared": 2, "cubic": 3, "cu": 3, "cubed": 3}
CURRENCIES = {"$": "dollar", "€": "euro", "£": "£", "¥": "yen", "₹": "rupee", "¢": "cent", "₩": "won", "₽": "ruble"}
CURRENCIES |= {"₿": "₿"}
COUNTRIES = vocabulary("us usd a c au ca eur")  # before a sign of currency: US$5

# Words after a number that multiply it
SCALES: dict[str, Fraction] = {
    word: Fraction(value)
    for value, words in {
        12: "dozen",
        20: "score",
        144: "gross",
        100: "hundred hundert cent百 百",
        10**3: "thousand grand k K mil mille tausend тысяча тысячи тысяч 千 हज़ार हजार ألف",
        10**4: "myriad 万 萬",
        10**5: "lakh lac लाख",
        10**6: "million mn mio Mio millionen millón millones milione миллион миллиона миллионов मिलियन مليون",
        10**7: "crore करोड़ करोड",
        10**8: "亿 億",
        10**9: "billion bn milliard milliarde milliarden миллиард mrd Mrd",
        10**12: "trillion tn 兆 billionen",
        10**15: "quadrillion",
        10**18: "quintillion",
    }.items()
    for word in words.split()
}
LETTER_SCALES = {"k": 10**3, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}  # glued to a number
UNKNOWN_SCALES = vocabulary("zillion gazillion bazillion jillion umpteen")

_ONES = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
_ONES = f"{_ONES} seventeen eighteen nineteen"
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
CARDINALS = {word: value for value, word in enumerate(_ONES.split())}
CARDINALS |= {word: 10 * value for value, word in enumerate(_TENS.split(), start=2)}
MULTIPLES = vocabulary("thousand million billion trillion quadrillion")
LARGE = MULTIPLES | {"hundred", "dozen"}  # after "a": a hundred
HAN = {sign: value for value, sign in enumerate("零一二三四五六七八九")} | {"两": 2, "兩": 2, "〇": 0}
HAN |= {"十": 10, "百": 100, "千": 1000, "万": 10**4, "萬": 10**4, "亿": 10**8, "億": 10**8}
OVER = {"over": ["over"], "in": ["in"], "out": ["out", "of"]}  # between two numbers: 4 out of 9
# Words after a number that divide it: 5 twelfths
PARTS = {"half": 2, "halves": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "eighth": 8, "ninth": 9}
PARTS |= {"twelfth": 12, "hundredth": 100, "thousandth": 1000, "millionth": 10**6}
PARTS |= {f"{word}th": value for word, value in CARDINALS.items() if value in (6, 7, *range(10, 20)) and value != 12}
PARTS |= {f"{word[:-1]}ieth": value for word, value in CARDINALS.items() if value >= 20}
ORDINALS = {"first": 1, "second": 2} | {word: value for word, value in PARTS.items() if word.endswith(("rd", "th"))}
PARTS |= {f"{word}s": value for word, value in PARTS.items() if word not in ("half", "halves")}

# --- Reading ------------------------------------------------------------------------------------------------------

Unit = tuple[tuple[str, int], ...]  # symbols with their powers, in order; "?word" for a word of no table
Size = tuple[str, Fraction]  # a dimension, and the factor to its first unit

_ANY_CASE = {"kb": "kB", "mb": "MB", "gb": "GB", "tb": "TB", "kw": "kW", "kwh": "kWh", "hz": "Hz", "ghz": "GHz"}
_ANY_CASE |= {"mhz": "MHz", "khz": "kHz", "km": "km", "kg": "kg", "cm": "cm", "mm": "mm", "ml": "ml", "mg": "mg"}
_ANY_CASE |= {"ft": "ft", "lb": "lb", "oz": "oz", "yd": "yd", "hr": "h", "min": "min", "sec": "s"}
_TWO = {"yd", "lb", "oz", "hr", "yr", "wk", "pt", "qt", "rs"}  # short, with a plural
_SPLIT = re.compile(r"[^\W\d_]+|[°¢€£¥₹₩₽₿$]|\^\{?-?[0-9]\}?|[/*]")
SHORT = {"m", "g", "s", "h", "l", "L", "W", "V", "A", "N", "J", "C", "B", "F"}  # also names of variables


def _spellings() -> dict[str, str]:
    """Return the symbol of each spelling, with all prefixes; words of three letters and more in small letters, too."""
    symbols = {**_PLAIN_NAMES, **_PREFIXED_NAMES}
    for spelling, name in _PREFIXED_NAMES.items():
        for prefix, (word, _) in PREFIXES.items():
            if len(spelling) > 2:
                symbols[word + spelling.lower()] = prefix + name
            else:
                symbols |= {prefix + spelling: prefix + name}
    symbols |= {f"μ{spelling[1:]}": name for spelling, name in symbols.items() if spelling[0] == "µ"}
    symbols |= {"kWh": "kWh", "kcal": "kcal", "kmol": "kmol", "Kbit": "kbit", "kbit": "kbit", "Mbit": "Mbit"}
    return symbols | {
        word.lower(): name for word, name in symbols.items() if len(word) > 2 and word.lower() not in symbols
    }


SPELLINGS = _spellings()


@functools.lru_cache(maxsize=2**12)
def symbol_of(word: str) -> str:
    """Return a unit's one symbol; "" for a word that is no unit.

    >>> [symbol_of(word) for word in ("kilometres", "KB", "mL", "Minuten", "apples")]
    ['km', 'kB', 'ml', 'min', '']
    """
    word = word.rstrip(".")
    if word in SPELLINGS:
        return SPELLINGS[word]
    small = word.lower()
    if len(word) < 4:
        return _ANY_CASE.get(small, "") or (
            SPELLINGS.get(small[:-1], "") if small[:-1] in _TWO and small[-1] == "s" else ""
        )
    if small in SPELLINGS:
        return SPELLINGS[small]
    singulars = (small.removesuffix(ending) for ending in ("s", "es", "n", "e") if small.endswith(ending))
    return next((SPELLINGS[each] for each in singulars if each in SPELLINGS and len(each) > 2), "")


def size_of(unit: Unit) -> Size | None:
    """Return the dimension and size of a single unit, to add 2 hours and 30 minutes; None for any other."""
    if len(unit) != 1 or unit[0][1] != 1:
        return None
    symbol = unit[0][0]
    if base := PREFIXED.get(symbol) or PLAIN.get(symbol):
        return (base.dimension, base.size) if base.size else None
    if (base := PREFIXED.get(symbol[1:])) and base.size and symbol[0] in PREFIXES:
        return base.dimension, base.size * Fraction(10) ** PREFIXES[symbol[0]][1]
    return None


def measure_of(unit: Unit) -> tuple[Unit, Fraction]:
    """Return the dimensions of a unit with their powers, and the factor to their first units.

    What has no exact conversion, such as a word of no table, is a dimension of its own.

    >>> measure_of((("h", -1), ("km", 1))), measure_of((("?apple", 1),))
    (((('length', 1), ('time', -1)), Fraction(5, 18)), ((('?apple', 1),), Fraction(1, 1)))
    """
    found: dict[str, int] = {}
    factor = Fraction(1)
    for symbol, power in unit:
        dimension, size = size_of(((symbol, 1),)) or (symbol, Fraction(1))
        for base, exponent in DIMENSIONS.get(dimension, ((dimension, 1),)):
            found[base] = found.get(base, 0) + exponent * power
        factor *= size**power
    return tuple(sorted((base, power) for base, power in found.items() if power)), factor


def read_unit(words: str) -> Unit:
    """Return the unit in the words after a number: known ones, else the words themselves.

    >>> read_unit("miles per hour"), read_unit("cm^2"), read_unit("square inches"), read_unit("red apples")
    ((('h', -1), ('mi', 1)), (('cm', 2),), (('in', 2),), (('?apple', 1), ('?red', 1)))
    """
    found: dict[str, int] = {}
    unknown: set[str] = set()
    power, sign, last = 1, 1, ""
    tokens = _SPLIT.findall(words)
    for place, token in enumerate(tokens):
        rest = tokens[place + 1 :]
        if token in RATES or token.lower() in RATES:
            known = read_unit(RATES[token.lower()])
            for symbol, exponent in known:
                found[symbol] = found.get(symbol, 0) + sign * exponent
            last = ""
            continue
        if token in _DIVIDING or (token in ("a", "an") and found):
            sign = -1 if found or unknown else 1
        elif token.startswith("^") and last:
            found[last] *= int(token.strip("^{}"))
        elif token in POWERS and last:
            found[last] *= POWERS[token]
        elif token in POWERS:
            power = POWERS[token]
        elif (symbol := CURRENCIES.get(token) or symbol_of(token)) and not (token == "in" and _is_noun(rest[:1])):
            found[symbol], last = found.get(symbol, 0) + sign * power, symbol
            power, sign = 1, 1
        elif token.isalpha() and token.lower() not in _NO_NOUN:
            if not found:
                unknown.add("?" + singular(token.lower()))
            elif sign == -1:
                found["?" + singular(token.lower())] = -1
                sign = 1
            last = ""
    return tuple(sorted(found.items())) if found else tuple((word, 1) for word in sorted(unknown))


def _is_noun(words: list[str]) -> bool:
    """True for what comes after "in" where it is no inch: 5 in total, but not 5 in/h."""
    return bool(words) and words[0].isalpha() and words[0] not in POWERS and words[0] not in _DIVIDING


_DIVIDING = {"/", "per", "each", "every", "pro", "par", "por"}
_NO_NOUN = vocabulary("of in the a an and at on for to per each every unit units left long tall wide old more")
_NO_NOUN |= vocabulary("total altogether now remaining increase decrease away high deep apart ago later")


def singular(word: str) -> str:
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def agree(one: Unit, other: Unit) -> bool:
    """True unless an answer and a gold answer have units, and others: unknown words agree if they share a word."""
    letters = [LETTER_UNITS.get(unit[0][0], "") if len(unit) == 1 else "" for unit in (one, other)]
    if any(letters):
        same = [((letter, 1),) if letter else unit for letter, unit in zip(letters, (one, other), strict=True)]
        return not one or same[0] == same[1]
    if not one or not other or one == other:
        return True
    if len(one) == 1 and ((DEGREES_TOO.get(one[0][0], ""), 1),) == other:
        return True
    for side, money in ((one, other), (other, one)):  # 20 pounds are £20
        named = tuple(sorted((CURRENCIES_TOO.get(symbol, symbol), power) for symbol, power in side))
        if named == money:
            return True
    unknown = [unit for unit in (one, other) if all(symbol.startswith("?") for symbol, _ in unit)]
    return len(unknown) == 2 and bool(set(one) & set(other))
