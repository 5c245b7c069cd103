"""grpo/core/text.py: what a model wrote steers no terminal."""

import re

from helpers_runs import examples
from hypothesis import given
from hypothesis import strategies as st

from grpo.core.text import printable


@examples(200)
@given(st.text(max_size=60))
def test_printable_text_steers_no_terminal_and_loses_nothing(text):
    shown = printable(text)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]", shown)
    assert printable(shown) == shown and len(shown) >= len(text)
    if text.isprintable():
        assert shown == text
