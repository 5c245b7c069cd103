"""Text for people: counts and sizes in words, and text of models and files without control characters."""

import hashlib
import re
import unicodedata
from collections.abc import Mapping, Sequence


def counted(count: float, noun: str) -> str:
    """Format a count with its noun.

    >>> counted(1, "row"), counted(0, "row"), counted(1234, "optimizer step")
    ('1 row', '0 rows', '1,234 optimizer steps')
    """
    return f"{count:,.10g} {noun}{'s' * (count != 1)}"


def shorten(text: str, length: int = 20) -> str:
    """Put a text on one line and cut it to `length` characters.

    >>> shorten("So  it is"), shorten("The answer is 72, since it is half", 18)
    ('So it is', 'The answer is 72,…')
    """
    text = " ".join(text.split())
    return text if len(text) <= length else f"{text[: length - 1]}…"


def digest(*texts: str) -> str:
    """Return a short hash of texts, in this order."""
    return hashlib.sha256("\0".join(texts).encode("utf-8", errors="replace")).hexdigest()[:16]


def listed(names: Sequence[str], most: int = 20) -> str:
    """List names, such as those of columns: at most so many, each cut to 40 characters.

    >>> listed(["question", "answer"]), listed(["a", "b", "c"], 2)
    ('question, answer', 'a, b and 1 more')
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(shorten(name, 40) for name in names[:most]) + more


def short_name(reward: str) -> str:
    """Return a reward's name without its suffix.

    >>> short_name("correctness_reward_func"), short_name("close")
    ('correctness', 'close')
    """
    return reward.removesuffix("_func").removesuffix("_reward")


def reward_key(reward: str, figure: str = "mean") -> str:
    """Return the key of TRL's logs for a reward's mean or standard deviation (`std`).

    >>> reward_key("int_reward_func"), rewarded("rewards/int_reward_func/mean"), rewarded("rewards/left_out")
    ('rewards/int_reward_func/mean', 'int_reward_func', None)
    """
    return f"rewards/{reward}/{figure}"


def rewarded(key: str) -> str | None:
    """Return the reward whose mean has this key in TRL's logs; None for another key."""
    match = re.fullmatch("rewards/(.+)/mean", key, re.DOTALL)  # a name may hold anything
    return match and match[1]


def decimals(value: float, places: int, sign: str = "") -> str:
    """Format a number with these decimals and a minus sign, and 0 without a sign; `+` as `sign` shows that of others.

    >>> decimals(-4, 1), decimals(-0.001, 2), decimals(0.5, 1, "+"), decimals(0, 1, "+")
    ('−4.0', '0.00', '+0.5', '+0.0')
    """
    return with_minus(value, f"{sign}z.{places}f")


def with_minus(value: float, form: str) -> str:
    """Format a number below 0 with a minus sign instead of a hyphen.

    >>> with_minus(-4, "g"), with_minus(-1e-7, "g"), with_minus(1e-7, "g")
    ('−4', '−1e-07', '1e-07')
    """
    return format(value, form).replace("-", "−", value < 0)


def human_bytes(size: float) -> str:
    """Format a number of bytes in kB, MB or GB.

    >>> human_bytes(193), human_bytes(6701960), human_bytes(3e9)
    ('0.2 kB', '6.7 MB', '3.0 GB')
    """
    for factor, unit in ((1e9, "GB"), (1e6, "MB")):
        if size >= factor / 10:
            return f"{size / factor:,.1f} {unit}"
    return f"{size / 1e3:,.1f} kB"


def printable(text: str) -> str:
    r"""Escape the characters of a text that control a terminal or reverse the direction of text.

    Newlines, tabs and spaces of any width are kept.

    >>> print(printable("\x1b[31mred\u202e"))
    \x1b[31mred\u202e
    """

    def stays(character: str) -> bool:
        return character.isprintable() or character in "\n\t" or unicodedata.category(character) == "Zs"

    return text if text.isprintable() else "".join(c if stays(c) else repr(c)[1:-1] for c in text)


# Characters that no font shows. Joiners and variation selectors belong to words and emoji, after signs beyond ASCII
_HIDDEN = re.compile(
    "[\0-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b\u200e\u200f"
    "\u202a-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff9-\ufffb]"
    "|(?<![^\0-\x7f])[\u200c\u200d\U000e0001-\U000e01ef]|[\u200c\u200d](?![^\0-\x7f])"
    "|(?<![^\0-\x7f])[\ufe00-\ufe0f](?!\u20e3)"
)
_SPACES = re.compile("[\xa0\u1680\u2000-\u200a\u202f\u205f\u3000]")


def visible(text: str) -> str:
    r"""Return a text without characters that nobody sees, and with plain spaces, as a model would write it.

    >>> visible("\ufeff72\u200b"), visible("San\xa0Francisco"), visible("می\u200cخواهم")
    ('72', 'San Francisco', 'می\u200cخواهم')
    """
    return text if text.isascii() and text.isprintable() else _SPACES.sub(" ", _HIDDEN.sub("", text))


def for_rich(text: str) -> str:
    """Escape rich's markup and control characters in a text of a model, a user or a file."""
    from rich.markup import escape  # imported late, so that commands start fast

    return escape(printable(text))


# --- Texts that leave this machine ----------------------------------------------------------------------------------

# Logins and hosts that are nobody's, or words of ordinary texts
COMMON_NAMES = {
    "root", "user", "users", "guest", "nobody", "admin", "administrator", "ubuntu", "debian", "fedora", "centos",
    "docker", "container", "jovyan", "jupyter", "colab", "kaggle", "sagemaker-user", "ec2-user", "azureuser",
    "vscode", "codespace", "runner", "work", "workspace", "data", "home", "shared", "public", "train", "test",
    "tester", "model", "python", "student", "localhost", "localdomain", "linux", "desktop", "laptop", "macbook",
}  # fmt: skip
SHORTEST_NAME = 4  # characters

_SEP = r"(?:\\\\?|/)"  # Windows has both, also as an escape
# `</b>`, `1/2`, `f(x)/2/y` and `{a}/b/c` hold no path, `\n/a/b` in code does
_START = r"(?:(?<=\\[nrt])|(?<![\w.+})\]*~$%/\\-]))/{0,2}"
_END = r"""(?=[\s"'`:;,|)\]}<>&*…]|[.!?](?:\s|$)|\\[nrt"']|$)"""
_FOLDERS = r"""(?:(?:[\w.@+%#&!~-]|\([^()\s/\\"']*\)|\[[^\[\]\s/\\"']*\])+/+)"""
_LAST = r"(?=[\w.@+(\[~-])"
_HOME = re.compile(
    rf"{_START}/(?:home|Users)/+[\w.@+-]*\w/*{_END}"
    rf"|\b[A-Za-z]:{_SEP}(?:Users|Documents and Settings){_SEP}[\w.@+-]*\w(?![^/:*?\"'<>|\n\\]*\\){_END}"
)
_PATH = re.compile(
    rf"""(?<=["'`])/[\w.@+-]+/+(?:[^"'`/\\\n]+/+)*(?=[^\s"'`/\\])"""  # quoted, it may have blanks
    rf"|{_START}/[\w.@+-]+/+{_FOLDERS}*{_LAST}"
    rf"|{_START}(?:~|\$HOME|\$\{{HOME\}})/+{_FOLDERS}*(?=[A-Za-z_.])"
    rf"|{_START}~[A-Za-z_][\w.-]*/+{_FOLDERS}+{_LAST}"
    rf"""|\b[A-Za-z]:{_SEP}(?=Users\b|[^abfnrtuvxNU0-7\\/\s"'])(?:[^\\/:*?"'`<>|\n]+{_SEP})+"""  # "Q:\n" is an escape
)
_URL = re.compile(r"""(?<![\w+.-])([A-Za-z][\w+.-]*://)(?:[^\s/@"'`<>]*@)*([^\s"'`<>]*)""")
_OWNER = re.compile(rf"{_SEP}(?:home|Users|Documents and Settings){_SEP}+([\w.@+-]*\w)")


def owners(text: str) -> set[str]:
    r"""Return the users whose home directories a text names.

    >>> sorted(owners(r"/home/alice/x, /Users/bob and C:\Users\eve\y"))
    ['alice', 'bob', 'eve']
    """
    return set(_OWNER.findall(text))


def anonymous(text: str, names: Mapping[str, str] | None = None) -> str:
    """Remove the folders of paths, the credentials of URLs, and names from a text.

    The last part of an absolute path remains, or of one from a home directory; a home directory becomes `~`. Folders
    with blanks are recognised in quotes only. Other URLs keep their paths.

    Args:
        names: users and hosts, with the words that replace them. Names shorter than SHORTEST_NAME and COMMON_NAMES
            are kept, since ordinary texts contain them.

    >>> anonymous("train.py --data=/home/me/rows.csv --to '/srv/my runs/1' https://me:pw@hub/a/b, 1/2/3, /think")
    "train.py --data=rows.csv --to '1' https://hub/a/b, 1/2/3, /think"
    >>> anonymous("alice@gpu07: ~/runs, /home/alice", {"alice": "user", "gpu07": "host"})
    'user@host: runs, ~'
    """
    parts, end = [], 0
    for url in _URL.finditer(text := re.sub(r"\b[A-Za-z]+://(?:localhost)?(?=/)", "", text)):  # file:///x is a path
        parts += [_without_folders(text[end : url.start()]), url[1] + url[2]]
        end = url.end()
    text = "".join([*parts, _without_folders(text[end:])])
    for name in sorted(names or {}, key=len, reverse=True):
        if len(name) >= SHORTEST_NAME and name.lower() not in COMMON_NAMES:
            text = re.sub(rf"(?<![^\W_]){re.escape(name)}(?![^\W_])", (names or {})[name], text)
    return text


def _without_folders(text: str) -> str:
    return _PATH.sub("", _HOME.sub("~", text))
