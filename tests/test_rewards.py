"""rewards.py against its definitions: golden values, and the reference expressions on any text; it stands alone."""

import ast
import copy
import json
import math
import operator
import pickle
import re
import shutil
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from helpers_runs import ROOT, SHARED, examples
from helpers_texts import ANY_TEXT, GOOD, TEXTS
from hypothesis import example, given
from hypothesis import strategies as st

from grpo.rewarding.registry import NAMED
from rewards import (
    REWARD_FUNCS,
    THINK_FORMAT,
    XML_COT_FORMAT,
    extract_hash_answer,
    extract_xml_answer,
    has_soft_format,
    has_strict_format,
)

# --- The reference definitions, as expressions and without regard to their cost


def reference_soft(text):
    return 0.5 if re.match(r"<reasoning>.*?</reasoning>\s*<answer>.*?</answer>", text, re.DOTALL) else 0.0


def reference_strict(text):
    pattern = r"^<reasoning>\n.*?\n</reasoning>\n<answer>\n.*?\n</answer>\n$"
    return 0.5 if re.match(pattern, text, re.DOTALL) else 0.0


def reference_extract(text):
    return text.split("<answer>")[-1].split("</answer>")[0].strip()


def reference_count(text):
    value = sum(
        0.125 for tag in ("<reasoning>\n", "\n</reasoning>\n", "\n<answer>\n", "\n</answer>") if text.count(tag) == 1
    )
    if text.count("\n<answer>\n") == 1:
        value -= 0.001 * len(text.split("\n</answer>\n")[-1])
    if text.count("\n</answer>") == 1:
        value -= 0.001 * (len(text.split("\n</answer>")[1]) - 1)
    return value


REFERENCE = {
    "xmlcount_reward_func": reference_count,
    "soft_format_reward_func": reference_soft,
    "strict_format_reward_func": reference_strict,
    "int_reward_func": lambda text: 0.5 if reference_extract(text).isdigit() else 0.0,
    "correctness_reward_func": lambda text: 2.0 if reference_extract(text) == "7" else 0.0,
}


@examples(200)
@given(TEXTS)
@example(GOOD)
@example(GOOD[:-1])  # no final newline: the count then takes the whole text for what follows the answer
@example(GOOD + "\n")
@example(GOOD + "\n\n")
@example("<reasoning>\n\n</reasoning>\n<answer>\n\n</answer>\n</answer>\n")
@example("<reasoning>\n</reasoning>\n<answer>\n7\n</answer>\n")
@example("<reasoning></reasoning></reasoning>\x1c<answer></answer>")
def test_every_reward_equals_its_definition_on_any_text(text):
    for name, definition in REFERENCE.items():
        (value,) = REWARD_FUNCS[name]([text], answer=["7"])
        assert value == pytest.approx(definition(text), abs=1e-12), name
    assert extract_xml_answer(text) == reference_extract(text)


@pytest.mark.parametrize("path", [ROOT / "tests/data/golden_rewards.jsonl", SHARED / "golden/rewards.jsonl"], ids=str)
def test_golden_values(path):
    if not path.exists():
        pytest.skip("the larger golden file is not beside this checkout")
    for row in [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]:
        for name in REFERENCE:
            (value,) = REWARD_FUNCS[name]([row["completion"]], answer=[row["answer"]])
            assert value == pytest.approx(row[name.removesuffix("_reward_func")], abs=1e-12), (name, row["completion"])
        assert extract_xml_answer(row["completion"]) == row["extracted"]


def test_a_missing_gold_answer_is_not_a_wrong_answer():
    with pytest.raises(ValueError):
        REWARD_FUNCS["correctness_reward_func"](["7", "7"], answer=["7"])


def test_the_answer_is_where_a_function_of_ones_own_reads_it():
    values = [value(name, "It is 7", extract=lambda text: text[-1]) for name in ("correctness", "int")]
    assert values == [2.0, 0.5] and value("signed_correctness", "It is 7", extract=str.strip) == -1.0


ALONE = """
import sys
sys.path.insert(0, "")
import pickle, rewards
good = rewards.XML_COT_FORMAT.format(reasoning="3 + 4 = 7", answer="7")
functions = pickle.loads(pickle.dumps(list(rewards.REWARD_FUNCS.values())))
print(sum(reward([good], answer=["7"], completion_ids=[[1]])[0] for reward in functions[:5]))
"""


def test_the_file_can_be_copied_into_any_script():
    """It imports Python's own modules alone, at its top and within functions, and its functions can be pickled."""
    imported = set()
    for node in ast.walk(ast.parse((ROOT / "rewards.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import | ast.ImportFrom):
            imported |= {getattr(node, "module", None) or alias.name for alias in node.names}
    assert {name.partition(".")[0] for name in imported} <= sys.stdlib_module_names
    shutil.copy(ROOT / "rewards.py", ".")
    alone = [sys.executable, "-S", "-I", "-c", ALONE]  # without packages, or a path to this repository
    done = subprocess.run(alone, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("4.0\n", "")


def test_gsm8ks_answers():
    solutions = ["He pays 5.\n#### $1,234 ", "a #### 1 #### 2", "no mark", "####"]
    assert [extract_hash_answer(solution) for solution in solutions] == ["1234", "1", None, ""]


HOSTILE = ["<reasoning></reasoning> ", "</reasoning>\n<answer>\n", "1,", "#### ", "\n"]


@pytest.mark.parametrize("unit", HOSTILE)
def test_hostile_text_of_half_a_million_characters_costs_linear_time(unit):
    text = "<reasoning>\n" + unit * (500_000 // len(unit))
    start = time.process_time()
    for reward in NAMED.values():
        reward([text], answer=["7"], completion_ids=[[1]])
    assert time.process_time() - start < 10  # quadratic code takes minutes


# --- Templates

THINK = THINK_FORMAT.format(reasoning="3 + 4 = 7", answer="7")
PLAIN = "Reasoning: {reasoning}\nAnswer: {answer}"


@pytest.mark.parametrize(
    ("text", "template", "soft", "strict"),
    [
        (THINK, THINK_FORMAT, True, True),
        ("x" + THINK, THINK_FORMAT, False, False),
        (THINK.replace("</think>\n", "</think> so "), THINK_FORMAT, False, False),
        ("<think>\n</think>\n<answer></answer>\n", THINK_FORMAT, True, False),  # one newline serves one tag
        ("\n" + THINK, "\n" + THINK_FORMAT, True, True),  # a template that begins with a newline
        (THINK, "\n" + THINK_FORMAT, True, False),
        ("r\nAnswer:\n", "{reasoning}\nAnswer:\n{answer}", True, True),  # nothing follows the answer, which is empty
        ("Reasoning: r Answer: 7", PLAIN, True, False),
        ("7", "{answer}", True, True),
    ],
)
def test_templates(text, template, soft, strict):
    assert (has_soft_format(text, template), has_strict_format(text, template)) == (soft, strict)
    assert value("soft_format", text, template=template) == soft / 2
    assert value("strict_format", text, template=template) == strict / 2


@pytest.mark.parametrize(
    "template", ["", "{reasoning}", "{answer} {reasoning}", "{reasoning}{answer}", XML_COT_FORMAT * 2]
)
def test_what_is_no_template_is_an_error(template):
    for has_format in (has_soft_format, has_strict_format):
        with pytest.raises(ValueError, match=r"at most one .reasoning. and a tag"):
            has_format("text", template)


# --- The other rewards: one input a line


def value(name, text="", answer="7", tokens=0, **parameters):
    reward = NAMED[f"{name}_reward_func"]
    return reward([text], answer=[answer], completion_ids=[[1] * tokens], **parameters)[0]


def test_signed_correctness():
    texts = {GOOD: 1, "<answer>$7</answer>": -1, "<answer>8</answer>": -1, "": -1}
    assert {text: value("signed_correctness", text) for text in texts} == texts


@pytest.mark.parametrize(
    ("text", "parameters", "expected"),
    [
        (GOOD, {}, 1.0),
        (GOOD[:-1], {}, 1.0),  # the newline is free, not due
        (GOOD + "x" * 10, {}, 0.989),  # what follows: the newline and ten
        (THINK, {}, 1.0),
        (GOOD, {"template": THINK_FORMAT}, 0.5),
        ("<answer>7", {}, 0.25),
        ("<answer>7</answer></answer>", {}, 0.25),  # twice is not once
        ("<answer>7</answer>" + "x" * 1000, {}, -0.5),
        ("", {}, 0.0),
    ],
)
def test_incremental_format(text, parameters, expected):
    assert value("incremental_format", text, **parameters) == pytest.approx(expected)
    with pytest.raises(ValueError, match="holds no tags"):
        value("incremental_format", text, template="{answer}")


def test_length_window():
    lengths = {0: 0.5, 25: 0.75, 50: 1, 400: 1, 450: 0.5, 500: 0, 9000: 0}
    assert {tokens: value("length", tokens=tokens) for tokens in lengths} == lengths
    assert [value("length", tokens=n, low=10, high=20, margin=0) for n in (9, 10, 20, 21)] == [0, 1, 1, 0]


def test_style():
    texts = {"It is 7.": 0, "CERTAINLY! It is 7.": -0.1, "certainly! " * 9: -0.5}
    assert {text: value("style", text) for text in texts} == texts
    assert value("style", "well well", phrases=["Well"]) == -0.2 and value("style", "certainly!", phrases=[""]) == 0


def test_debug_prints_samples_every_so_many_steps(capsys, monkeypatch):
    def printed(step, **parameters):
        chats = [[{"role": "user", "content": "3 + 4?"}]] * 3
        columns = {"answer": ["7"] * 3, "prompts": chats, "trainer_state": SimpleNamespace(global_step=step)}
        assert REWARD_FUNCS["debug_reward_func"]([GOOD] * 3, **columns, **parameters) == [1.0] * 3
        return capsys.readouterr().out

    assert printed(10) == f"--- step 10\nQuestion: 3 + 4?\nGold: 7\nResponse: {GOOD}\nExtracted: 7\n" * 2
    assert printed(11) == ""
    assert printed(12, every=4, count=1).count("--- step 12") == 1
    monkeypatch.setenv("RANK", "1")
    assert printed(20) == ""


# --- Any text

PARTS = st.sampled_from(["<a>", "</a>", "<b>", "</b>", "x", "\n", " ", "\n\n", "(", ".*"])
JOINED = st.lists(PARTS, max_size=4).map("".join)


@st.composite
def templates_and_texts(draw):
    """A template, and a text that is often it, filled in, with a few characters changed."""
    xml = ("<reasoning>\n", "\n</reasoning>\n<answer>\n", "\n</answer>\n")
    head, middle, tail = draw(st.one_of(st.just(xml), st.tuples(JOINED, JOINED.filter(str.strip), JOINED)))
    pieces = [head, draw(JOINED), middle, draw(JOINED), tail, draw(st.sampled_from(["", "\n", "\n\n", "x"]))]
    for _ in range(draw(st.integers(0, 2))):
        index = draw(st.integers(0, len(pieces) - 1))
        piece = pieces[index]
        pieces[index] = draw(st.sampled_from([piece.strip(), "", piece.replace("\n", " "), piece * 2]))
    return f"{head}{{reasoning}}{middle}{{answer}}{tail}", "".join(pieces)


@examples(150)
@given(templates_and_texts())
def test_formats_equal_regular_expressions_of_any_template(case):
    template, text = case
    head, rest = template.split("{reasoning}")
    middle, tail = rest.split("{answer}")
    strict = re.escape(head) + ".*?" + re.escape(middle) + ".*?" + re.escape(tail) + "$"
    loose = r"\s*".join(re.escape(word) for word in middle.split())
    lead = head[: len(head) - len(head.lstrip())] if head.strip() else ""
    soft = f"(?:{re.escape(lead)})?" + re.escape(head.strip()) + ".*?" + loose + ".*?" + re.escape(tail.strip())
    assert has_strict_format(text, template) == bool(re.match(strict, text, re.DOTALL))
    assert has_soft_format(text, template) == bool(re.match(soft, text, re.DOTALL))
    assert has_soft_format(text, template) or not has_strict_format(text, template)


RANGES = {  # lowest and highest value, and what is between them if not everything
    "xmlcount": (-math.inf, 0.5021),
    "soft_format": (0, 0.5, {0, 0.5}),
    "strict_format": (0, 0.5, {0, 0.5}),
    "int": (0, 0.5, {0, 0.5}),
    "correctness": (0, 2, {0, 2}),
    "signed_correctness": (-1, 1, {-1, 1}),
    "judge": (0, 2, {0, 2}),
    "step_verified": (0, 1, {0, 0.2, 0.4, 0.6, 0.8, 1}),
    "incremental_format": (-math.inf, 1),
    "length": (0, 1),
    "style": (-0.5, 0),
    "debug": (1, 1),
}
OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


@st.composite
def thoughts(draw):
    """One line of arithmetic, wrong every third time."""
    a, b, sign = draw(st.integers(0, 99)), draw(st.integers(0, 9)), draw(st.sampled_from("+-*"))
    return f"<think>\n{a} {sign} {b} = {OPERATORS[sign](a, b) + draw(st.sampled_from([0, 0, 1]))}\n</think>\n"


ROLLOUTS = st.lists(
    st.tuples(st.one_of(ANY_TEXT, thoughts()), st.sampled_from(["7", "", "-3", "x", "1200"]), st.integers(0, 900)),
    min_size=1,
    max_size=5,
)


def chat(text):
    return [{"role": "assistant", "content": text}]


@examples(60)
@given(ROLLOUTS, st.randoms(use_true_random=False))
def test_every_reward_judges_each_completion_by_itself(rollout, random):
    """In its range, alone as in a batch, in any order, as text or chat, again the same, and its input left alone."""
    texts, golds, lengths = map(list, zip(*rollout, strict=True))
    columns = {
        "answer": golds,
        "completion_ids": [[1] * length for length in lengths],
        "prompts": ["3 + 40?"] * len(texts),
    }
    before = copy.deepcopy((texts, columns))
    order = list(range(len(texts)))
    random.shuffle(order)
    shuffled = {key: [column[index] for index in order] for key, column in columns.items()}
    for name, reward in NAMED.items():
        values = reward(texts, **columns)
        low, high, *steps = RANGES[name.removesuffix("_reward_func")]
        assert len(values) == len(texts) and all(type(value) is float and math.isfinite(value) for value in values)
        assert all(low <= value <= high and value in (steps or [values])[0] for value in values), (name, values)
        assert reward([texts[index] for index in order], **shuffled) == [values[index] for index in order], name
        assert reward(list(map(chat, texts)), **columns) == values, name
        assert pickle.loads(pickle.dumps(reward))(texts, **columns) == values, name
        first = reward(texts[:1], **{key: column[:1] for key, column in columns.items()})
        assert first == values[:1], name
    assert (texts, columns) == before
    assert {f"{name}_reward_func" for name in RANGES} == set(NAMED)
