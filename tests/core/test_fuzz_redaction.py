"""Masking of keys and escaping for terminals, on any text."""

import re

from helpers_runs import examples
from helpers_texts import ANY_TEXT
from hypothesis import given
from hypothesis import strategies as st

from grpo.core import redaction

SECRET = st.from_regex(r"[A-Za-z0-9]{24,40}", fullmatch=True).filter(lambda text: re.search(r"[0-9]", text))


@examples(200)
@given(
    ANY_TEXT,
    SECRET,
    ANY_TEXT,
    st.sampled_from(["hf_{}", "sk-{}", "https://u:{}@h/", "ftp://{}@h", "http://h/?a=1&token={}", "h?x-sig={}"]),
)
def test_no_key_survives_masking_and_masking_is_idempotent(before, secret, after, form):
    text = f"{before} {form.format(secret)} {after}"
    masked = redaction.mask(text)
    assert (
        secret not in masked
        and redaction.holds_key(text)
        and not redaction.holds_key(masked.replace(redaction.MASK, ""))
    )
    assert redaction.mask(masked) == masked


@examples(200)
@given(st.text(max_size=60))
def test_printable_text_steers_no_terminal_and_loses_nothing(text):
    shown = redaction.printable(text)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]", shown)
    assert redaction.printable(shown) == shown and len(shown) >= len(text)
    if text.isprintable():
        assert shown == text
