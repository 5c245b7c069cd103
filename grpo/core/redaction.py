"""What nobody is to see raw: secrets, and the characters of a text that steer a terminal."""

import os
import re
import unicodedata
from typing import Any

MASK = "***"
# Names of what holds a secret: environment variables, settings, keys of mappings. Not eos_token, not pack_tokens
_SECRET_NAME = re.compile(
    r"(?i)secret|passw(?:or)?d|credential|api_?key|access_?key|(?:^|[_.-])(?:key|pat|pwd|auth)(?:_?[0-9]+)?$"
    r"|(?<!bos_)(?<!eos_)(?<!pad_)(?<!unk_)(?<!sep_)(?<!cls_)(?<!mask_)(?<!image_)token(?:_?[0-9]+)?$"
)
# Keys that say of themselves that they are: Hugging Face, OpenAI and its like, GitHub, GitLab, AWS, Slack, Google, W&B
_KEY = re.compile(
    r"(?<![A-Za-z0-9])(?:hf_[A-Za-z0-9]{20,}|sk-(?=[\w-]{0,99}[0-9])[\w-]{20,}|gh[opsur]_[A-Za-z0-9]{30,}|github_pat_\w{20,}"
    r"|glpat-[\w-]{20,}|(?:AKIA|ASIA)[0-9A-Z]{16}|xox[abeprs]-[\w-]{10,}|AIza[\w-]{35}|wandb_v[0-9]_\w{30,})"
)
_IN_A_URL = re.compile(  # https://user:token@host, ?token=…, &X-Amz-Signature=…, #access_token=…
    r"(?i)(?<=://)[^\s/?#\"'<>]+(?=@)|(?<=[?&#;])(?P<name>[\w.-]*(?:token|secret|key|key_?id|passw(?:or)?d|pwd|signature"
    r"|sig|credentials?|auth)=)[^\s&#;\"'<>]+"
)
_FLAG = re.compile(r"(?<!\S)(?P<flag>--?(?P<name>[A-Za-z][\w-]*))(?P<equals>=)\S+")


def is_secret_name(name: str) -> bool:
    """Whether a variable or a setting of this name holds a secret.

    >>> is_secret_name("WANDB_API_KEY"), is_secret_name("hub_token"), is_secret_name("pack_tokens")
    (True, True, False)
    """
    return _SECRET_NAME.search(name) is not None


def holds_key(text: str) -> bool:
    """Whether a text holds what looks like a key, or a URL with one.

    >>> holds_key("https://me:t0ken@example.org/x"), holds_key("https://example.org/x?page=2")
    (True, False)
    """
    return _KEY.search(text) is not None or _IN_A_URL.search(text) is not None


def mask(value: Any) -> Any:
    """The value, at any depth, without keys, tokens in URLs and the environment's secrets, wherever they came from."""
    # A short one is no secret, and would blot out words; SSH_KEY names a file; a long one may hold a shorter one
    planted = {
        secret
        for name, secret in os.environ.items()
        if len(secret) >= 8 and is_secret_name(name) and not os.path.exists(secret)
    }
    return _mask(value, sorted(planted, key=len, reverse=True))


def _mask(value: Any, secrets: list[str]) -> Any:
    if isinstance(value, dict):
        return {_mask(key, secrets): _mask(item, secrets) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mask(item, secrets) for item in value]
    if not isinstance(value, str):
        return value
    for secret in secrets:
        value = value.replace(secret, MASK)
    value = _FLAG.sub(lambda found: found["flag"] + "=" + MASK if is_secret_name(found["name"]) else found[0], value)
    return _KEY.sub(MASK, _IN_A_URL.sub(lambda found: (found["name"] or "") + MASK, value))


def printable(text: str) -> str:
    r"""The text with an escape for each character that steers a terminal or turns what follows around.

    Newlines and tabs stay, and so do spaces of any width.

    >>> print(printable("\x1b[31mred\u202e"))
    \x1b[31mred\u202e
    """

    def stays(character: str) -> bool:
        return character.isprintable() or character in "\n\t" or unicodedata.category(character) == "Zs"

    return text if text.isprintable() else "".join(c if stays(c) else repr(c)[1:-1] for c in text)


def for_rich(text: str) -> str:
    """What a model, a user or a file wrote, as text: rich takes it for no markup, and the terminal for no command."""
    from rich.markup import escape

    return escape(printable(text))
