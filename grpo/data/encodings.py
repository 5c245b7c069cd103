"""Guess the encoding of text that is not UTF-8 by the script in which it reads best."""

import re

_SINGLE = {  # encodings of one byte a character: words of their letters, which others rarely make of the same bytes
    "cp1251": "[А-Яа-яЁёІіЇїЄєҐґ][а-яёіїєґ]{2,}",
    "koi8-r": "[А-Яа-яЁё][а-яё]{2,}",
    "cp1253": "[Α-Ωα-ωΆ-Ώά-ώ][α-ωά-ώ]{2,}",
    "cp1255": "[א-ת]{2,}",
    "cp1256": "[ء-ي]{2,}",
}
_JAPANESE = "[一-龥]{0,4}[ぁ-ゖァ-ヺー]+"
_FREQUENT = {  # of the signs of two bytes, those in the rows of frequent ones
    "cp949": ("euc_kr", range(0xB0, 0xC9)),
    "gb18030": ("gb2312", range(0xB0, 0xD8)),
    "big5": ("big5", range(0xA4, 0xC7)),
}
_PLAUSIBLE = 0.6  # least share of the characters beyond ASCII that read well


def _pattern(encoding: str) -> str:
    if encoding in _FREQUENT:
        table, rows = _FREQUENT[encoding]
        codes = (bytes([row, cell]) for row in rows for cell in range(0x40, 0xFF))
        signs = [code.decode(table, "ignore") for code in codes]
        return f"[{''.join(sign for sign in signs if not sign.isascii())}，。？！、；：]"
    return rf"(?<![A-Za-z]){_SINGLE[encoding]}(?![A-Za-z])" if encoding in _SINGLE else _JAPANESE


def readings(content: bytes) -> list[tuple[str, str]]:
    """Return the encodings in which a text that is not UTF-8 reads well, best first, each with a piece of the text.

    Windows-1252, which reads any bytes, is the last resort.

    >>> readings("小明有几个苹果".encode("gbk"))[0], readings("Größe 1".encode("latin-1"))
    (('gb18030', '小明有几个苹果'), [('cp1252', 'Größe')])
    """
    scores: dict[str, tuple[float, str]] = {}
    for encoding in ("cp932", "euc_jp", *_FREQUENT, *_SINGLE):
        try:
            text = content.decode(encoding)
        except UnicodeDecodeError:
            continue
        beyond = sum(not sign.isascii() for sign in text)
        well = sum(map(len, re.findall(_pattern(encoding), text)))
        if well >= _PLAUSIBLE * beyond:
            scores[encoding] = well / beyond, text
    best = sorted(scores, key=lambda encoding: -scores[encoding][0])
    return [(encoding, _piece(scores[encoding][1])) for encoding in best[:3]] or [
        ("cp1252", _piece(content.decode("cp1252", errors="replace")))
    ]


def _piece(text: str) -> str:
    """Return the first word that is not ASCII, cut to 12 characters."""
    word = re.search(r"\w*[^\W\x00-\x7f]\w*", text)
    return word[0][:12] if word else ""
