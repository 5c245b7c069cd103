"""What a reward or judge may read of a row is found in its code."""

import functools

from grpo.core.functions import mentioned

COLUMN = "depth"
COLUMNS = ("width", "height")


def helper(row):
    return row[COLUMN] + row.get("length", 0)


def through_others(text, row):
    return helper(row) in (row[name] for name in COLUMNS)


class Callable:
    def __init__(self):
        self.column = "area"

    def __call__(self, completions, **kwargs):
        return [len(kwargs["volume"])]

    def method(self, completions, *, level, **kwargs):
        return [kwargs[self.column]]


def test_names_are_found_wherever_they_stand():
    assert {"depth", "length", "width", "height"} <= mentioned(through_others)
    assert {"volume", "area"} <= mentioned(Callable())
    assert {"level", "area"} <= mentioned(Callable().method)
    assert {"length", "depth"} <= mentioned(functools.partial(through_others, text=""))
    assert "story" in mentioned(functools.partial(through_others, text="story"))
    inner = "unit"
    assert {"unit", "kind"} <= mentioned(lambda completions, **kwargs: [kwargs[inner], [one["kind"] for one in ()]])
    assert "story" not in mentioned(through_others) and mentioned(len) == set()
