r"""Write a text in one way, and split it into tokens once: prose and formulas are read from the same tokens.

Signs of Unicode become those of LaTeX, digits of every script ASCII's; type and spacing are dropped. Each step takes
time linear in the text.
"""

import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple


def vocabulary(*rows: str) -> set[str]:
    """Return the words of a table, which spaces separate."""
    return {word for row in rows for word in row.split()}


# One way to write each sign; a sign that is not here, and has no data of Unicode's, stays and is not understood
SIGNS = dict.fromkeys("−‐‑‒﹣", "-") | {"×": "*", "·": "*", "⋅": "*", "∙": "*", "÷": "/", "⁄": "/", "∕": "/", "∶": ":"}
SIGNS |= {"√": r"\sqrt ", "∛": r"\sqrt[3] ", "∜": r"\sqrt[4] ", "±": r"\pm ", "∓": r"\mp ", "∞": r"\infty "}
SIGNS |= dict.fromkeys("≤⩽≦", "<=") | dict.fromkeys("≥⩾≧", ">=") | dict.fromkeys("≠≢", r"\ne ")
SIGNS |= {"∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∅": r"\emptyset ", "ℝ": r"\mathbb{R}", "∠": r"\angle "}
SIGNS |= {"°": r"^\circ ", "º": r"^\circ ", "℃": " celsius ", "℉": " fahrenheit "}
SIGNS |= {"٫": ".", "٬": ",", "،": ",", "、": ", ", "。": ". ", "٪": "%", "؟": "?", "⟨": "(", "⟩": ")"}
SIGNS |= {"′": "'", "’": "'", "‘": "'", "“": '"', "”": '"', "«": '"', "»": '"', "…": "...", "⇒": "=>", "→": "=>"}
SIGNS |= {"∴": "=>", "≈": r"\approx ", "≃": r"\approx ", "≅": r"\approx ", "✓": " ", "✔": " ", "✅": " ", "\ufe0f": ""}
SIGNS |= dict.fromkeys("✗✘❌", " wrong ") | {"✖": "*"}
SIGNS |= {"⌊": r"\lfloor ", "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil ", "，": ", ", "：": ": ", "；": "; "}
_GREEK = "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma sigma tau"
SIGNS |= {chr(0x3B1 + place): rf"\{name} " for place, name in enumerate(f"{_GREEK} upsilon phi chi psi omega".split())}
SIGNS |= {"φ": r"\phi ", "ϕ": r"\phi ", "Γ": r"\Gamma ", "Δ": r"\Delta ", "Θ": r"\Theta ", "Λ": r"\Lambda "}
SIGNS |= {"Π": r"\Pi ", "Σ": r"\Sigma ", "Φ": r"\Phi ", "Ψ": r"\Psi ", "Ω": r"\Omega "}


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
            text = " "  # 72 and a smile
        elif kind == "<fraction>" and fraction:
            text = rf"\frac{{{fraction[1]}}}{{{fraction[2]}}}"
        else:
            text = "".join(SIGNS.get(letter, letter) for letter in letters) if kind in ("<wide>", "<font>") else sign
        self[code] = text
        return text


_CHARACTERS = _Characters({ord(sign): text for sign, text in SIGNS.items()})

_RAISED, _LOWERED = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ]+"), re.compile("[₀₁₂₃₄₅₆₇₈₉]+")
_THIN = re.compile("(?<=[0-9])[\u2009\u202f\u00a0](?=[0-9]{3}(?![0-9]))")
_OVERLINED = re.compile("((?:[0-9][\u0304\u0305]){1,20})")
_REPEATING = re.compile(
    r"(?<![0-9.])([0-9]{0,20})\.([0-9]{0,20}?)"
    r"(?:\\(?:overline|bar|dot)\s?\{?([0-9]{1,20})\}?|\(([0-9]{1,20})\)|([0-9])\5\5+\.\.\.)"
)
_TEXT = re.compile(
    r"\\(?:text(?:bf|it|rm|sf|tt)?|math(?:rm|bf|it|sf|tt)|mbox|hbox|emph|boxed|fbox|operatorname)\s?\{([^{}]*)\}"
)
_GROUPS = re.compile(r"(?<=[0-9])(?:\{,\}|\\,|,\\! ?|\\!)(?=[0-9]{3}(?![0-9]))")
_SPACING = re.compile(
    r"\\(?:left|right|[Bb]igg?[lr]?|displaystyle|limits|nolimits|quad|qquad)(?![A-Za-z])|(?<!\\)\\[!,;: ]|~"
)
_SQUARE = re.compile(r"(?<=[0-9] )(sq|cu)\.(?= [A-Za-z])")
_SHORTENED = re.compile(  # 5 ft. 6 in., 5 lbs. of flour
    r"(?<=[0-9qu] )(ft|in|yd|mi|lbs?|oz|hrs?|mins?|secs?|gal|qt|pt)\.(?= (?:[0-9]{1,3} [a-z]|of |per |and [0-9]))"
)
_BARS = re.compile(r"\\(?:[lr]?vert|mid)(?![A-Za-z])")
_ARROWS = re.compile(r"\\(?:[Rr]ightarrow|implies|therefore|to|Longrightarrow|because|iff)(?![A-Za-z])")
_FRACTIONS = re.compile(r"\\[dtc](frac|binom)(?![A-Za-z])")
_MINUS = re.compile(r"(^|[\s(=:$])[–—](?=[0-9])")
_TAGS = re.compile(r"<<[^<>\n]{0,200}>>|</?[A-Za-z]{1,20}/?>")  # GSM8K's calculator, HTML


def normalize(text: str) -> str:
    r"""Write each sign in one way, LaTeX's for those of Unicode; drop type, spacing and `\text{}`.

    >>> normalize("3√2 ≤ ٧"), normalize("3.2×10⁻⁵"), normalize("0.1\\overline{6}"), normalize("10{,}000\\text{ cm}")
    ('3\\sqrt 2 <= 7', '3.2*10^{-5}', '\\frac{15}{90}', '10000  cm ')
    """
    if not text.isascii():
        text = _RAISED.sub(lambda raised: f"^{{{_ascii(raised[0])}}}", text)
        text = _LOWERED.sub(lambda lowered: f"_{{{_ascii(lowered[0])}}}", text)
        text = _OVERLINED.sub(lambda digits: rf"\overline{{{digits[0][::2]}}}", text)
        text = text.replace("°C", " celsius ").replace("°F", " fahrenheit ")
        text = _THIN.sub("", text).translate(_CHARACTERS)
    text = text.replace("$$", " \\[ ")
    if "\\" in text or "{" in text:
        text = _SPACING.sub(" ", _GROUPS.sub("", text)).replace("{,}", ",").replace("{:}", ":")
        for _ in range(3):  # one in another
            text, changed = _TEXT.subn(r" \1 ", text)
            if not changed:
                break
        text = _BARS.sub("|", text)
        text = _ARROWS.sub(" => ", text)
        text = _FRACTIONS.sub(r"\\\1", text)
    text = _MINUS.sub(r"\1-", text)
    if "." in text:
        text = _SHORTENED.sub(r"\1", _SQUARE.sub(r"\1", text))
        text = _REPEATING.sub(_repeating, text)
    return _TAGS.sub(" ", text) if "<" in text else text


def _repeating(match: re.Match[str]) -> str:
    r"""Convert a repeating decimal to a fraction: 0.1\overline{6}, 0.1(6) and 0.1666... are 1/6."""
    whole, once, again = match[1], match[2], match[3] or match[4] or match[5]
    below = (10 ** len(again) - 1) * 10 ** len(once)
    return rf"\frac{{{int(whole + once + again) - int(whole + once or 0)}}}{{{below}}}"


def _ascii(raised: str) -> str:
    return unicodedata.normalize("NFKC", raised).replace("−", "-")


# --- Tokens -------------------------------------------------------------------------------------------------------

NUMERAL = (
    r"[0-9]{1,3}(?:\.[0-9]{3})+,[0-9]{1,2}(?![0-9])"  # 1.234,5
    r"|[0-9]{1,3}(?:\.[0-9]{3}){2,}(?![.0-9])"  # 1.200.000
    r"|(?<![(\[{,])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9]|,[0-9])(?:\.[0-9]+)?"  # 1,200.5, but (1,200) is a tuple
    r"|(?<![(\[{,])[0-9]{1,2}(?:,[0-9]{2})+,[0-9]{3}(?![0-9])(?:\.[0-9]+)?"  # 12,00,000
    r"|[0-9]{1,3}(?:'[0-9]{3})+(?![0-9])(?:\.[0-9]+)?"  # 1'200
    r"|[0-9]{1,3}(?: [0-9]{3})+(?![0-9])(?:[.,][0-9]+)?"  # 1 200
    r"|[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]{1,3}(?![0-9A-Za-z]))?"
    r"|(?<![0-9])\.[0-9]+"
)
HAN_WORDS = "或者|所以|因此|因为|如果|可能|也许|或许|一共|总共|等于|大约|答案|结果|需要|还剩下|还剩|剩下"
HAN_WORDS += "|分钟|小时|美元|欧元|选项|正确|以上|以下|以内"
HAN_WORDS += "|全部で|合計|総計|答え|です|である|になります|ではない|ではありません|じゃない"
HAN_WORDS += "|정답|입니다|이다|이에요|예요|아닙니다|시간|달러|마리"
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
            "relation": r"<=|>=|=<|!=|=/=|[<>]",
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
            "space": r"\s+",
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
