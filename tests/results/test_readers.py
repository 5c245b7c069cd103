"""Each tool works or ends with one line, whatever value replaces one in a run's files."""

import copy
import json
import random
import shutil

import pytest

from grpo.__main__ import main as tool
from grpo.results.record import KindsOfSettings

FILES = (
    *("run.json", "metrics.jsonl", "alarms.jsonl", "comparison.json", "eval_before.json", "eval_after.json"),
    *("completions_before.jsonl", "completions_after.jsonl"),
)
TOOLS = (["report", "run"], ["compare", "other", "run"], ["xray", "run"])
ASKED = ("prompt", "shots", "dtype", "bf16", "max_completion_length", "chat_template_kwargs")  # what `ask` reads
ASK = ["ask", "run", "What is 2 + 2?"]
MISSING = object()
OTHERS = [
    *(MISSING, None, True, -1, 1.5, float("inf"), 10**400, "x", "0;background:red", "12", "long " * 20_000),
    *([], {}, [1], {"a": 1}),
]


@pytest.fixture
def runs(learned):
    """Two copies of a finished run, with an alarm."""
    for name in ("run", "other"):
        run = learned.copy(name)
        shutil.rmtree(run / "completions")
        alarm = {"step": 1, "name": "zero_variance", "message": "all alike", "remedy": "other questions"}
        (run / "alarms.jsonl").write_text(json.dumps(alarm) + "\n")
    return run.with_name("run")


def places(value, at=()):
    """Yield where a value has values: the first of a list, and of the many settings those with a kind and two more."""
    items = value.items() if isinstance(value, dict) else [(0, value[0])] if isinstance(value, list) and value else []
    if at == ("settings",):
        items = [item for item in items if item[0] in KindsOfSettings.__annotations__] + list(items)[:2]
    for key, item in items:
        yield (*at, key)
        yield from places(item, (*at, key))


def cases(run):
    """List each place of each file (the first line) with each value that may replace it."""
    found = []
    for name in FILES:
        first = (run / name).read_text()
        first = first.partition("\n")[0] if name.endswith("l") else first
        found += [(name, place, other) for place in places(json.loads(first)) for other in OTHERS]
    return found


def try_with(run, name, place, other, tools, capsys):
    """Run tools with a value replaced in a file, and restore it. Return what they print, for an error each a line."""
    text = (run / name).read_text()
    first, newline, others = text.partition("\n") if name.endswith("l") else (text, "", "")
    value = inner = copy.deepcopy(json.loads(first))
    for key in place[:-1]:
        inner = inner[key]
    if other is MISSING:
        del inner[place[-1]]
    else:
        inner[place[-1]] = other
    (run / name).write_text(json.dumps(value) + newline + others)
    shown = ""
    for words in tools:
        status = tool(words)
        out, err = capsys.readouterr()
        lines = [line for line in err.splitlines() if line.startswith("error: ")]
        assert (status, len(lines)) in ((0, 0), (2, 1)) and (status == 0 or not out), (name, place, other, words, err)
        shown += err + out
    (run / name).write_text(text)
    return shown


def test_other_values_are_one_line(runs, capsys):
    for case in random.Random(0).sample(cases(runs), 40):
        try_with(runs, *case, TOOLS, capsys)


@pytest.mark.slow
def test_any_other_value_anywhere_is_one_line(runs, capsys):
    """Every fourth of the 15 values at a place: each place, and each value at many places."""
    for case in cases(runs)[::4]:
        try_with(runs, *case, TOOLS, capsys)


def test_ask_refuses_a_limit_of_no_tokens(runs, capsys):
    place = ("settings", "max_completion_length")
    shown = try_with(runs, "run.json", place, -1, [ASK], capsys)
    assert "max_completion_length is -1" in shown


@pytest.mark.parametrize("other", [{"tokenize": False}, {"tools": 3}, {"chat_template": 3}, {"conversation": 1}])
def test_ask_refuses_arguments_that_are_not_the_templates(other, runs, capsys):
    place = ("settings", "chat_template_kwargs")
    assert "chat_template_kwargs in the record" in try_with(runs, "run.json", place, other, [ASK], capsys)


def asked(run):
    return [case for case in cases(run) if case[0] == "run.json" and {*case[1]} & {*ASKED}]


def test_ask_reads_other_values_as_one_line(runs, capsys):
    for case in random.Random(0).sample(asked(runs), 8):
        try_with(runs, *case, [ASK], capsys)


@pytest.mark.slow
def test_ask_reads_any_other_value_as_one_line(runs, capsys):
    for case in asked(runs)[::4]:
        try_with(runs, *case, [ASK], capsys)


@pytest.mark.parametrize(
    ("name", "place", "other", "words"),
    [
        ("run.json", ("process", "host"), 7, "run/run.json: process.host is 7 instead of text or null; correct it"),
        ("run.json", ("sessions", 0, "from_step"), MISSING, "run/run.json: sessions[0].from_step is missing"),
        ("run.json", ("prompt", "pattern"), "x", "run/run.json: prompt: answer pattern 'x': use xml"),
        ("metrics.jsonl", ("step",), "x", 'run/metrics.jsonl, line 1: step is "x" instead of a whole number'),
        ("eval_after.json", ("accuracy_lenient_low",), "0;x", 'accuracy_lenient_low is "0;x" instead of a number'),
        ("comparison.json", ("lenient", "fixed"), [1], "lenient.fixed is a list instead of a whole number"),
        ("completions_after.jsonl", ("rewards", "int_reward_func"), "x", 'line 1: rewards.int_reward_func is "x"'),
        ("run.json", ("settings", "max_steps"), "\x1b[31m" * 99, r'settings.max_steps is "\u001b[31m'),
    ],
)
def test_the_line_names_file_key_and_value(runs, name, place, other, words, capsys):
    shown = try_with(runs, name, place, other, TOOLS[:1], capsys)
    assert words in shown and len(shown) < 250


@pytest.mark.parametrize(
    ("name", "place", "other"),
    [("metrics.jsonl", ("entropy",), 10**400), ("run.json", ("settings", "reward_weights"), [1]),
     ("run.json", ("prompt",), {"a": 1}), ("eval_before.json", ("accuracy_lenient_low",), None),
     ("completions_after.jsonl", ("answer",), [])],
)  # fmt: skip
def test_what_is_odd_and_of_its_kind_is_read(runs, name, place, other, capsys):
    assert "error" not in try_with(runs, name, place, other, TOOLS[:2], capsys)


def test_what_no_tool_reads_may_be_anything(runs, capsys):
    for name in ("run.json", "metrics.jsonl", "comparison.json", "eval_after.json", "completions_after.jsonl"):
        text = (runs / name).read_text()
        (runs / name).write_text('{"of another version": [{}], ' + text.lstrip()[1:])
    for words in TOOLS:
        assert tool(words) == 0
