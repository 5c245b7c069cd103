r"""Write a text in one way, and split it into tokens once: prose and formulas are read from the same tokens.

Signs of Unicode become those of LaTeX, digits of every script ASCII's; type and spacing are dropped. Each step takes
time linear in the text.
"""

import html
import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

from exact_answers import units
from exact_answers.lexicon import WORDS, vocabulary

# One way to write each sign; a sign that is not here, and has no data of Unicode's, stays and is not understood
SIGNS = dict.fromkeys("−‐‑‒﹣", "-") | {"×": "*", "·": "*", "⋅": "*", "∙": "*", "÷": "/", "⁄": "/", "∕": "/", "∶": ":"}
SIGNS |= {"√": r"\sqrt ", "∛": r"\sqrt[3] ", "∜": r"\sqrt[4] ", "±": r"\pm ", "∓": r"\mp ", "∞": r"\infty "}
SIGNS |= dict.fromkeys("≤⩽≦", "<=") | dict.fromkeys("≥⩾≧", ">=") | dict.fromkeys("≠≢", r"\ne ")
SIGNS |= {"∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ", "ℝ": r"\mathbb{R}", "∠": r"\angle "}
SIGNS |= {"°": r"^\circ ", "º": r"^\circ ", "℃": " celsius ", "℉": " fahrenheit "}
SIGNS |= {"٫": ".", "٬": ",", "،": ",", "、": ", ", "。": ". ", "٪": "%", "؟": "?", "⟨": "(", "⟩": ")"}
SIGNS |= {"′": "'", "’": "'", "‘": "'", "“": '"', "”": '"', "«": '"', "»": '"', "…": "...", "⇒": "=>", "→": "=>"}
SIGNS |= {"∴": "=>", "≈": r"\approx ", "≃": r"\approx ", "≅": r"\approx ", "✓": " ", "✔": " ", "✅": " ", "\ufe0f": ""}
SIGNS |= dict.fromkeys("✗✘❌", " wrong ") | {"✖": "*", "∎": " "}
SIGNS |= {"≡": r"\equiv ", "≮": ">=", "≯": "<=", "≰": ">", "≱": "<"}
SIGNS |= dict.fromkeys("\u202b\u202e\u2067", " ↔ ")  # shown from right to left: not understood
SIGNS |= {"⌊": r"\lfloor ", "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil ", "，": ", ", "：": ": ", "；": "; "}
_GREEK = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma sigma tau"
SIGNS |= {chr(0x3B1 + place): rf"\{name} " for place, name in enumerate(f"{_GREEK} upsilon phi chi psi omega".split())}
SIGNS |= {"φ": r"\phi ", "ϕ": r"\phi ", "Γ": r"\Gamma ", "Δ": r"\Delta ", "Θ": r"\Theta ", "Λ": r"\Lambda "}
SIGNS |= {"Π": r"\Pi ", "Σ": r"\Sigma ", "Φ": r"\Phi ", "Ψ": r"\Psi ", "Ω": r"\Omega "}


_PICTURES = set(
    "✓✔✅☑🎉🎊👍👏🙌💪🤝👌🙂😀😃😄😁😊😎🤗🥳😉🤩⭐★☆♠♥♦♣🌟✨💯🧮📌📍👉➡▶🔹🔸🔢📝💡🏆🎯🟢🟩🔥🧠📊📈📚📦🏁🚀🧩🖊✏🖋"
)
_PICTURES |= set(map(chr, [*range(0x1F32D, 0x1F380), *range(0x1F400, 0x1F440), *range(0x1F4B0, 0x1F4B9)]))  # food


class _Characters(dict[int, str]):
    """Map non-ASCII characters, by code, to replacements: by the table above, then by Unicode's data."""

    def __missing__(self, code: int) -> str:
        sign = chr(code)
        kind, _, parts = unicodedata.decomposition(sign).partition(" ")
        letters = "".join(chr(int(part, 16)) for part in parts.split()) if kind.startswith("<") else ""
        fraction = re.fullmatch("([0-9])⁄([0-9]+)", letters)
        if sign.isdecimal():
            text = str(unicodedata.decimal(sign))
        elif unicodedata.category(sign) in ("Zs", "Cf"):
            text = " " * (unicodedata.category(sign) == "Zs")
        elif unicodedata.category(sign) == "So":
            text = " " if sign in _PICTURES else sign  # 72 and a smile; a thumb that points down is not understood
        elif kind == "<fraction>" and fraction:
            text = sign  # see _fraction
        else:
            text = "".join(SIGNS.get(letter, letter) for letter in letters) if kind in ("<wide>", "<font>") else sign
        self[code] = text
        return text


_CHARACTERS = _Characters({ord(sign): text for sign, text in SIGNS.items()})

_RAISED, _LOWERED = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+"), re.compile("[₀₁₂₃₄₅₆₇₈₉]+")
_THIN = re.compile("(?<=[0-9])[\u2009\u202f\u00a0](?=[0-9]{3}(?![0-9]))")
_WIDE_COMMA = re.compile("(?<=[０-９])，(?=[０-９]{3}(?![０-９]))")
_OVERLINED = re.compile("((?:[0-9][\u0304\u0305]){1,20})")
_DOTTED = re.compile("([0-9])\u0307")
_STRUCK_SIGNS = {"=\u0338": "\\ne ", "<\u0338": ">=", ">\u0338": "<="}
_VULGAR = re.compile("[¼½¾⅐-⅞]")
_MAX_EXPANDED = 100  # signs that take several tokens: a text of more of them is no answer
_REPEATING = re.compile(
    r"(?<![0-9.])([0-9]{0,20})\.([0-9]{0,20}?)"
    r"(?:\\(?:overline|bar|dot)\s?\{?([0-9]{1,20})\}?|\(([0-9]{1,20})\))"
)
_CONTINUED = re.compile(r"(?<![0-9.])([0-9]{0,20})\.([0-9]{3,40})\.\.\.")
_DOTS = re.compile(r"\\dot\s?\{?([0-9])\}?([0-9]{0,18})\\dot\s?\{?([0-9])\}?")  # over the first and the last digit
_GROUPS = re.compile(r"(?<=[0-9])(?:\{,\}|\\,|,\\! ?|\\!)(?=[0-9]{3}(?![0-9]))")
_SIZES = "tiny|small|normalsize|large|Large|LARGE|huge|Huge|bf|rm|it|sf|tt|bfseries|itshape"
_SIZES = rf"(?:(?:{_SIZES})(?![A-Za-z])|color\s?\{{[^{{}}]{{0,60}}\}})"
_SPACING = re.compile(
    r"\\left\s?\\\{\s*(?=\\begin\s?\{array\})|\\right\s?\."
    r"|\\(?:left|right|[Bb]igg?[lr]?|displaystyle|textstyle|limits|nolimits|quad|qquad)(?![A-Za-z])"
    r"|\\(?:blacksquare|qed|checkmark)(?![A-Za-z])"
    rf"|\\{_SIZES}|(?<!\\)\\[!,;: ]|~"
)
_COLOURED = re.compile(
    r"\\(?:textcolor|colorbox)\s?(?:\[[^\[\]]{0,20}\]\s?)?\{[^{}]{0,60}\}\s?(?=\{)"
    r"|\\fcolorbox\s?\{[^{}]{0,60}\}\s?\{[^{}]{0,60}\}\s?(?=\{)"
)
_ELLIPSIS = re.compile(r"(?<=[0-9])\s?\\[lc]?dots(?![A-Za-z])")
_NOT = re.compile(r"\\not\s?(=|<|>|\\(?:leq?|geq?)(?![A-Za-z]))")
_NEGATED = {"=": r"\ne ", "<": ">=", ">": "<=", "\\le": ">", "\\leq": ">", "\\ge": "<", "\\geq": "<"}
_SQUARE = re.compile(r"(?<=[0-9] )(sq|cu)\.(?= [A-Za-z])")
_SHORTENED = re.compile(  # 5 ft. 6 in., 5 lbs. of flour
    r"(?<=[0-9qu] )(ft|in|yd|mi|lbs?|oz|hrs?|mins?|secs?|gal|qt|pt)\.(?= (?:[0-9]{1,3} [a-z]|of |per |and [0-9]))"
)
_BARS = re.compile(r"\\(?:[lr]?vert|mid)(?![A-Za-z])")
_ARROWS = re.compile(r"\\(?:[Rr]ightarrow|implies|therefore|to|Longrightarrow|because|iff)(?![A-Za-z])")
_FRACTIONS = re.compile(r"\\[dtc](frac|binom)(?![A-Za-z])")
_ITALIC = re.compile(r"(?<![\w}\\$)\]|])_(?=[^\s_{])([^_\n]{1,100})(?<=\S)_(?![\w{])")
_MINUS = re.compile(r"(^|[\s(=:$])[–—](?=[0-9])")
_TAGS = re.compile(  # GSM8K's calculator, HTML
    r"""<<[^<>\n]{0,200}>>|</?(?:[biuap]|em|strong|br|hr|span|div|su[bp]|small|big|font|center|code|pre|[uo]l|li|h[1-6]|mark|tt|t[rdh]|table|thead"""
    r"""|tbody|pad|s|eos|bos|unk|answer|think(?:ing)?|reasoning|solution|result|response|output|math|final)(?:\s[A-Za-z-]{1,20}=(?:"[^"<>\n]{0,200}"|'[^'<>\n]{0,200}'))?\s?/?>"""
)
_SCRIPTS = re.compile(r"<(sup|sub)>([^<>\n{}]{1,40})</\1>")
_ENTITY = re.compile("&(?:[A-Za-z][A-Za-z0-9]{1,30}|#[0-9]{1,7}|#[xX][0-9A-Fa-f]{1,6});")
_DEGREES = re.compile(
    r"(?<=[0-9])(?: ?\^ ?\{? ?\\circ(?: ?\})?| ?\\degree| degrees?) ?\{? ?(C|F|[Cc]elsius|[Ff]ahrenheit)\b(?: ?\})?"
)
_DEGREE_SIGN = re.compile(r"° ?([CF])(?![A-Za-z])")
_SCALES_OF_DEGREES = {"c": " celsius ", "f": " fahrenheit "}


def normalize(text: str) -> str:
    r"""Write each sign in one way, LaTeX's for those of Unicode; drop type, spacing, `\text{}` and struck-out text.

    >>> normalize("3√2 ≤ ٧"), normalize("3.2×10⁻⁵"), normalize("0.1\\overline{6}"), normalize("10{,}000\\text{ cm}")
    ('3\\sqrt 2 <= 7', '3.2*10^{-5}', '\\frac{15}{90}', '10000  cm ')
    >>> normalize(r"\textcolor{red}{\mathbf{6}}").split(), normalize("~~5~~ &ne; 6").split()
    (['6'], ['\\ne', '6'])
    """
    if "&" in text:
        text = _ENTITY.sub(lambda entity: html.unescape(entity[0]), text)
    text = without_struck(text)
    if not text.isascii():
        text = _RAISED.sub(lambda raised: f"^{{{_ascii(raised[0])}}}", text)
        text = _LOWERED.sub(lambda lowered: f"_{{{_ascii(lowered[0])}}}", text)
        text = _OVERLINED.sub(lambda digits: rf"\overline{{{digits[0][::2]}}}", text)
        text = _DEGREE_SIGN.sub(lambda degree: _SCALES_OF_DEGREES[degree[1].lower()], text)
        for sign, written in _STRUCK_SIGNS.items():
            text = text.replace(sign, written)
        text = _VULGAR.sub(_vulgar, _DOTTED.sub(r"\\dot{\1}", text, count=_MAX_EXPANDED), count=_MAX_EXPANDED)
        text = _WIDE_COMMA.sub(",", _THIN.sub("", text)).translate(_CHARACTERS)
    text = text.replace("$$", " \\[ ")
    if "\\" in text or "{" in text:
        text = _without_type(_GROUPS.sub("", _COLOURED.sub(r"\\text", text)))
        text = _SPACING.sub(" ", text).replace("{,}", ",").replace("{:}", ":")
        text = _without_environments(text)
        text = _BARS.sub("|", text)
        text = _ARROWS.sub(" => ", text)
        text = _FRACTIONS.sub(r"\\\1", text)
        text = _NOT.sub(lambda negated: f" {_NEGATED[negated[1]]}", _ELLIPSIS.sub("...", text))
    elif text[:1] == "~" and text[-1:] == "~":  # LaTeX's space
        text = text.strip("~")
    if "_" in text:
        text = _ITALIC.sub(r"\1", text)
    text = _MINUS.sub(r"\1-", text)
    if "egree" in text or "\\circ" in text:
        text = _DEGREES.sub(lambda degree: _SCALES_OF_DEGREES[degree[1][0].lower()], text)
    if "." in text:
        text = _SHORTENED.sub(r"\1", _SQUARE.sub(r"\1", text))
        text = _DOTS.sub(r"\\overline{\1\2\3}", text) if "\\dot" in text else text
        text = _CONTINUED.sub(_continued, _REPEATING.sub(_repeating, text))
    if "<" not in text:
        return text
    text = _SCRIPTS.sub(lambda script: f"{'^' if script[1] == 'sup' else '_'}{{{script[2]}}}", text)
    return _TAGS.sub(" ", text)


def unwrapped(text: str) -> str:
    r"""Drop `\text{}` with what it wraps: \text{Answer: } 11.

    >>> unwrapped(r"\text{Answer: } 11")
    'Answer:  11'
    """
    return re.sub(r"\\text\s?\{([^{}]*)\}", r"\1", text)


def _vulgar(sign: re.Match[str]) -> str:
    """Write ½ as a fraction of LaTeX's."""
    above, _, below = unicodedata.normalize("NFKC", sign[0]).partition("⁄")
    return rf"\frac{{{above}}}{{{below}}}"


_STRUCK = re.compile(
    r"(?<![\w}~])~~(?=[^\s~])[^~\n]{1,200}(?<=\S)~~(?![\w\\{~])|<(del|s|strike)>[^<>\n]{0,200}</\1>"
    r"|(\\(?:[bx]?cancel|sout|st|h?phantom|vphantom|tag\*?|label|hspace\*?|vspace\*?))\s?(?=\{)"
)
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


def without_struck(text: str) -> str:
    r"""Drop what is struck out, or is not shown: ~~65~~, \cancel{65}, <del>65</del>, \phantom{65}, \tag{3}.

    >>> without_struck(r"~~65~~ 64"), without_struck(r"\cancel{\frac{1}{2}} 64"), without_struck(r"\cancel{6")
    (' 64', '  64', '\\cancel{6')
    """
    if "~~" not in text and "\\" not in text and "</" not in text:
        return text
    kept, place, first = [], 0, len(text) - len(text.lstrip())
    closings: dict[int, int] | None = None
    for struck in _STRUCK.finditer(text):
        if struck.start() < place or (struck[1] == "s" and struck.start() == first):
            continue  # within another one; <s> starts a text of some models
        end = struck.end()
        if struck[2]:
            closings = _closings(text) if closings is None else closings
            if end not in closings:
                continue
            end = closings[end] + 1
        kept += [text[place : struck.start()], " " if struck[2] else ""]
        place = end
    return "".join(kept) + text[place:] if kept else text


def _closings(text: str) -> dict[int, int]:
    """Return the place of the closing brace of each opening one."""
    found: dict[int, int] = {}
    opened: list[int] = []
    for brace in _BRACE.finditer(text):
        if brace[0] == "{":
            opened.append(brace.start())
        elif brace[0] == "}" and opened:
            found[opened.pop()] = brace.start()
    return found


_TYPE = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt|sc|normal|up)?|math(?:rm|bf|it|sf|tt|normal|ord)|mbox|hbox|emph|boxed|fbox"
    rf"|operatorname\*?|underline|uline|boldsymbol|bm|pmb)\s?(?=\{{)|(?<![A-Za-z}}\]^_\\])(?=\{{\s?\\{_SIZES})"
)


def _without_type(text: str) -> str:
    r"""Replace \text{…}, \mathbf{…}, \underline{…} and the like by what is in them."""
    commands = list(_TYPE.finditer(text))
    closings = _closings(text) if commands else {}
    edits = []
    for command in commands:
        if command.end() in closings:
            closing = closings[command.end()]
            edits += [(command.start(), command.end() + 1, " "), (closing, closing + 1, " ")]
    return _edited(text, sorted(edits))


def _edited(text: str, edits: list[tuple[int, int, str]]) -> str:
    """Replace parts of a text: starts, ends and what is put there, in order."""
    kept, place = [], 0
    for start, end, written in edits:
        kept += [text[place:start], written]
        place = end
    return "".join(kept) + text[place:]


_DISPLAYS = vocabulary("align aligned alignat alignedat flalign equation gather gathered split multline eqnarray")
_DISPLAYS |= {"displaymath", "math", "center"}
_ENVIRONMENT = re.compile(
    r"\\(begin|end)\s?\{([A-Za-z]{1,20})\*?\}(?:\s?\{[lcr|0-9]{1,20}\})?"
    r"|\\\\(?:\[[0-9.a-z]{1,10}\])?(\s*&?\s*(?:=|\\(?:approx|leq?|geq?|implies)(?![A-Za-z])))?"
    r"|=\s*&|[=&\n]"
)
_BEFORE_RELATION = re.compile(r"\s*(?:[=<>]|\\(?:approx|[lg]eq?)(?![A-Za-z]))")


class _Environment(NamedTuple):
    name: str
    edits: list[tuple[int, int, str]]  # that make lines of a display
    signs: set[str]  # what is in it: = of equations, & of cells


def _without_environments(text: str) -> str:
    r"""Write displays of several lines as lines: \begin{align} 2x &= 6 \\ x &= 3 \end{align}, and arrays of equations.

    A line that starts with a relation continues the one before it.
    """
    if "\\begin" not in text:
        return text
    opened: list[_Environment] = []
    edits: list[tuple[int, int, str]] = []
    for sign in _ENVIRONMENT.finditer(text):
        start, end = sign.span()
        if sign[1] == "begin":
            opened.append(_Environment(sign[2], [(start, end, " \\[ ")], set()))
        elif not opened:
            continue
        elif sign[1] and opened[-1].name == sign[2]:
            environment = opened.pop()
            if sign[2] in _DISPLAYS or (sign[2] == "array" and environment.signs == {"="}):
                edits += [*environment.edits, (start, end, " \\] ")]
        elif sign[0].startswith("="):
            opened[-1].signs.add("=")
            if sign[0] != "=":
                opened[-1].edits.append((start + 1, end, " "))
        elif not sign[1]:
            continues = sign[3] or ""
            written = " " if sign[0] in ("&", "\n") or continues else "\n"
            opened[-1].edits.append((start, end - len(continues.lstrip("& \t\n")), written))
            cell = sign[0] == "&" and not _BEFORE_RELATION.match(text, end)
            opened[-1].signs.update("&" * cell, "=" * ("=" in continues))
    return _edited(text, sorted(edits))


_BEGIN_OR_END = re.compile(r"\\(begin|end)\s?\{([A-Za-z]{1,20})(\*?)\}")


def without_split_displays(before: str, after: str) -> tuple[str, str]:
    r"""Write as lines the displays that begin in one text and end in the other.

    >>> without_split_displays(r"\begin{align*} a &= ", r"1 \end{align*} So.")
    (' \\[  a  = ', '1  \\]  So.')
    """
    opened: list[re.Match[str]] = []
    for sign in _BEGIN_OR_END.finditer(before):
        if sign[1] == "begin":
            opened.append(sign)
        elif opened and opened[-1][2] == sign[2]:
            opened.pop()
    opened = [sign for sign in opened if sign[2] in _DISPLAYS]
    if not opened:
        return before, after
    ends = "".join(f"\\end{{{sign[2]}}}" for sign in reversed(opened))
    begins = "".join(f"\\begin{{{sign[2]}}}" for sign in opened)
    return (
        _without_environments(before + ends).removesuffix(" \\] " * len(opened)),
        _without_environments(begins + after).removeprefix(" \\[ " * len(opened)),
    )


def _repeating(match: re.Match[str]) -> str:
    r"""Convert a repeating decimal to a fraction: 0.1\overline{6} and 0.1(6) are 1/6."""
    return _as_fraction(match[1], match[2], match[3] or match[4])


def _continued(match: re.Match[str]) -> str:
    """Convert 0.1666... and 0.454545...; 2.718281828... does not repeat."""
    for start in range(len(match[2])):
        repeated = match[2][start:]
        for size in range(1, 7):
            times = len(repeated) // size
            if times >= (3 if size < 5 else 2) and repeated == repeated[:size] * times:
                return _as_fraction(match[1], match[2][:start], repeated[:size])
    return match[0]


def _as_fraction(whole: str, once: str, again: str) -> str:
    below = (10 ** len(again) - 1) * 10 ** len(once)
    return rf"\frac{{{int(whole + once + again) - int(whole + once or 0)}}}{{{below}}}"


def _ascii(raised: str) -> str:
    return unicodedata.normalize("NFKC", raised).replace("−", "-")


# --- Tokens -------------------------------------------------------------------------------------------------------

NUMERAL = (  # bounded groups, since each may be tried again at the next one
    r"[0-9]{1,3}(?:\.[0-9]{3}){1,100},[0-9]{1,2}(?![0-9])"  # 1.234,5
    r"|[0-9]{1,3}(?:\.[0-9]{3}){2,100}(?![.0-9])"  # 1.200.000
    r"|(?<![(\[{,])[0-9]{1,3}(?:,[0-9]{3}){1,100}(?![0-9]|,[0-9])(?:\.[0-9]+)?"  # 1,200.5, but (1,200) is a tuple
    r"|(?<![(\[{,])[0-9]{1,2}(?:,[0-9]{2}){1,100},[0-9]{3}(?![0-9])(?:\.[0-9]+)?"  # 12,00,000
    r"|[0-9]{1,3}(?:'[0-9]{3}){1,100}(?![0-9])(?:\.[0-9]+)?"  # 1'200
    r"|[0-9]{1,3}(?: [0-9]{3}){1,100}(?![0-9])(?:[.,][0-9]+)?"  # 1 200
    r"|[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]{1,3}(?![0-9A-Za-z]))?"
    r"|(?<![0-9])\.[0-9]+"
)
_SPACELESS = {*set().union(*WORDS.values()), *units.SPELLINGS, *units.SCALES}  # no spaces stand between them
HAN_WORDS = "|".join(
    sorted((word for word in _SPACELESS if len(word) > 1 and "\u3040" <= word[0] <= "\ud7a3"), key=len, reverse=True)
)
MARKS = "\u0300-\u036f\u064b-\u065f\u0900-\u0903\u093a-\u0963\u0981-\u0983\u09bc-\u09d7\u0b82-\u0bd7\u0e31-\u0e4e"
_TOKEN = re.compile(
    "|".join(
        f"(?P<{kind}>{pattern})"
        for kind, pattern in {
            "number": NUMERAL,
            "abbreviation": r"(?<![^\W\d_])(?:[A-Za-z]\.){2,4}",  # a.m.
            "han": rf"{HAN_WORDS}|[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]",
            "word": rf"[^\W\d_](?:[^\W\d_{MARKS}]|[{MARKS}])*(?:'[^\W\d_]+)*",
            "command": r"\\[A-Za-z]+|\\[^A-Za-z]",
            "arrow": r"[=-]{1,3}>",
            "relation": r"==|<=|>=|=<|!=|=/=|[<>]",
            "equals": r"={1,2}",
            "dots": r"\.{2,}",
            "stop": r"[.;](?=\s|$|[\"')\]*$\\])|(?<!(?<!\\)[?!])[?!]+(?=\s|$|[\"')\]*])|[。？！]",  # \!! is \! and !
            "newline": r"\n\s*",
            "power": r"\*\*(?=[0-9({-])(?<=[0-9)}A-Za-z]..)|\^",
            "bold": r"\*{2,}|\*(?=\S)(?<!\S.)|(?<=\S)\*(?=\s|$|[.,;:!?)])|`+|_{2,}",
            "operator": r"[-+*/!_|]",
            "open": r"[(\[{]",
            "close": r"[)\]}]",
            "currency": r"[$€£¥₹¢₩₽₿]",
            "percent": "%",
            "comma": ",",
            "colon": ":",
            "amp": "&",
            "dash": "[–—]",
            "quote": "[\"']+",
            "space": r"[^\S\n]+",
            "unknown": r".",
        }.items()
    )
)


class Token(NamedTuple):
    """A piece of a normalized text."""

    kind: str
    text: str
    start: int
    end: int
    glued: bool  # no space before it
    low: str  # in small letters


def tokenize(text: str) -> list[Token]:
    """Split a normalized text into tokens.

    >>> [token.text for token in tokenize("So it's $1,200.50 (4 a.m.).")]
    ['So', "it's", '$', '1,200.50', '(', '4', 'a.m.', ')', '.']
    """
    tokens, end = [], -1
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or ""
        if kind != "space":
            text_ = match[0]
            start, stop = match.span()
            tokens.append(Token(kind, text_, start, stop, start == end, text_.lower()))
            end = stop
    return tokens


OPENING = {"(", "[", "{", "\\{", "\\langle", "\\lfloor", "\\lceil"}
CLOSING = {")", "]", "}", "\\}", "\\rangle", "\\rfloor", "\\rceil"}


def get(tokens: Sequence[Token], place: int) -> Token | None:
    """Return the token at a place; None before the first and after the last."""
    return tokens[place] if 0 <= place < len(tokens) else None
