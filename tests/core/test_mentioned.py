"""What a reward or judge may read of a row is found in its code."""

import functools
import json

import pytest

from grpo.core.functions import mentioned, passes_on

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
    assert {"area"} <= mentioned(Callable().method)
    assert {"length", "depth"} <= mentioned(functools.partial(through_others, text=""))
    assert "story" in mentioned(functools.partial(through_others, text="story"))
    inner = "unit"
    assert {"unit", "kind"} <= mentioned(lambda completions, **kwargs: [kwargs[inner], [one["kind"] for one in ()]])
    assert "story" not in mentioned(through_others) and mentioned(len) == set()


class Attributes:
    key = "story"

    def __call__(self, text, row):
        return self.helped(row[self.key])

    def helped(self, cell):
        return NAMES["of"] in cell


NAMES = {"of": "passage"}


def test_attributes_of_classes_and_values_of_dictionaries_are_read():
    assert {"story", "passage"} <= mentioned(Attributes())
    assert {"story", "passage"} <= mentioned(lambda text, row: row[Attributes.key] + row[NAMES["of"]])
    assert "story" not in mentioned(lambda text, row: json.dumps(row["a"]))


JUDGES = {  # judges, and whether the row may go anywhere
    "values": (lambda text, row: any(str(cell) in text for cell in row.values()), True),
    "format": (lambda text, row: "{story}".format(**row) in text, True),
    "json": (lambda text, row: json.dumps(row) in text, True),
    "f-string": (lambda text, row: f"{row}" in text, True),
    "loop": (lambda text, row: [row[name] for name in row] == text, True),
    "joined": (lambda text, row: text in {**row}, True),
    "cells": (lambda text, row: row["a"] + row.get("b", "") + row[NAMES["of"]] in text and "c" in row, False),
    "inside": (lambda text, row: [one for one in text if one in row["a"]], False),
    "object": (Attributes(), False),
    "method": (Attributes().__call__, False),
    "nothing": (lambda text, row: bool(text), False),
}


@pytest.mark.parametrize("name", JUDGES)
def test_a_row_that_is_passed_on_may_be_read_anywhere(name):
    judge, whole = JUDGES[name]
    assert passes_on(judge, 1) is whole
    assert passes_on(functools.partial(judge), 1) is whole


def test_keywords_that_are_passed_on_may_be_read_anywhere():
    assert passes_on(lambda completions, **kwargs: [len(kwargs) for _ in kwargs.items()])
    assert passes_on(lambda completions, **kwargs: helper(kwargs))
    assert not passes_on(lambda completions, **kwargs: [kwargs["a"][at] for at, _ in enumerate(kwargs["b"])])
    assert not passes_on(lambda completions, story: list(story)) and not passes_on(Callable())
