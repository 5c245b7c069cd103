"""Texts that completions are made of: the pieces that matter, so that near misses are common."""

from hypothesis import strategies as st

GOOD = "<reasoning>\n3 + 4 = 7\n</reasoning>\n<answer>\n7\n</answer>\n"
TAGS = ["<reasoning>", "</reasoning>", "<answer>", "</answer>"]
PIECES = [*TAGS, "\n", "\n", "\n", " ", "7", "x", "²", "\u2028", "\x1c", "<"]
TEXTS = st.lists(st.sampled_from(PIECES) | st.sampled_from([GOOD, GOOD[:-1], "\n</answer>\n"]), max_size=14).map(
    "".join
)
ANY_TEXT = st.one_of(TEXTS, st.text(max_size=60))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
