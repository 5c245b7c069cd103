"""rewards.py against its definitions: golden values, and the reference expressions on any text; it stands alone."""

import ast
import json
import re
import shutil
import subprocess
import sys

import pytest
from helpers_runs import ROOT, SHARED, examples
from helpers_texts import GOOD, TEXTS
from hypothesis import example, given
from hypothesis import strategies as st

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
@example("½")  # a number, but no digit
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
    assert values == [2.0, 0.5]


ALONE = """
import sys
sys.path.insert(0, "")
import pickle, rewards
good = rewards.XML_COT_FORMAT.format(reasoning="3 + 4 = 7", answer="7")
functions = pickle.loads(pickle.dumps(list(rewards.REWARD_FUNCS.values())))
print(sum(reward([good], answer=["7"])[0] for reward in functions))
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


def value(name, text, answer="7", **parameters):
    return REWARD_FUNCS[f"{name}_reward_func"]([text], answer=[answer], **parameters)[0]


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
