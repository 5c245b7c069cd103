"""rewards.py against its definitions: golden values, and the reference expressions on any text."""

import json
import pickle
import re
import subprocess
import sys
import time

import pytest
from conftest import ROOT, SHARED
from hypothesis import example, given, settings
from hypothesis import strategies as st

import rewards
from rewards import REWARD_FUNCS, count_xml, extract_hash_answer, extract_xml_answer, is_numerically_correct

GOOD = "<reasoning>\n3 + 4 = 7\n</reasoning>\n<answer>\n7\n</answer>\n"


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

# Text from the pieces that matter, so that near misses are common
PIECES = [
    "<reasoning>",
    "</reasoning>",
    "<answer>",
    "</answer>",
    "\n",
    "\n",
    "\n",
    " ",
    "7",
    "x",
    "²",
    "\u2028",
    "\x1c",
    "<",
]
TEXTS = st.lists(
    st.one_of(st.sampled_from(PIECES), st.sampled_from([GOOD, GOOD[:-1], "\n</answer>\n"])), max_size=14
).map("".join)


@settings(max_examples=1500, deadline=None)
@given(TEXTS)
@example(GOOD)
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


@given(st.text(max_size=60), st.text(max_size=10))
def test_extraction_finds_an_answer_that_holds_no_tag(before, answer):
    if "<" not in answer:
        assert extract_xml_answer(f"{before}<answer>{answer}</answer>") == answer.strip()


def test_golden_values():
    path = SHARED / "golden" / "rewards.jsonl"
    if not path.exists():
        pytest.skip("the golden vectors are not beside this checkout")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert len(rows) >= 400
    for row in rows:
        for name, reward in REWARD_FUNCS.items():
            (value,) = reward([row["completion"]], answer=[row["answer"]])
            assert value == pytest.approx(row[name.removesuffix("_reward_func")], abs=1e-12), (name, row["completion"])
        assert extract_xml_answer(row["completion"]) == row["extracted"]


def test_the_registry_has_the_five_public_names_in_their_order():
    names = ["xmlcount", "soft_format", "strict_format", "int", "correctness"]
    assert list(REWARD_FUNCS) == [f"{name}_reward_func" for name in names]
    for name, reward in REWARD_FUNCS.items():
        assert reward.__name__ == name and getattr(rewards, name) is reward


def test_chat_completions_and_strings_score_alike_and_in_order():
    texts = [GOOD, "7", "", "<answer>7</answer>"]
    chats = [[{"role": "assistant", "content": text}] for text in texts]
    for reward in REWARD_FUNCS.values():
        values = reward(completions=texts, answer=["7"] * 4, prompts=["p"] * 4, trainer_state=None)
        assert values == reward(completions=chats, answer=["7"] * 4) and len(values) == 4
        assert all(type(value) is float for value in values)


def test_rewards_survive_pickling_and_leave_their_input_alone():
    chats = [[{"role": "assistant", "content": GOOD}]]
    for reward in REWARD_FUNCS.values():
        assert pickle.loads(pickle.dumps(reward)) is reward
        reward(completions=chats, answer=["7"])
    assert chats == [[{"role": "assistant", "content": GOOD}]]


def test_a_missing_gold_answer_is_an_error_and_not_a_wrong_answer():
    with pytest.raises(ValueError):
        REWARD_FUNCS["correctness_reward_func"](["7", "7"], answer=["7"])


def test_the_count_keeps_the_quirk_of_the_missing_final_newline():
    assert count_xml(GOOD) == pytest.approx(0.5)
    shorter = GOOD[:-1]
    assert count_xml(shorter) == pytest.approx(0.5 - 0.001 * len(shorter) + 0.001)


@pytest.mark.parametrize(
    ("solution", "answer"),
    [
        ("He pays 5.\n#### 5", "5"),
        ("#### $1,234", "1234"),
        ("#### -3 ", "-3"),
        ("a #### 1 #### 2", "1"),
        ("no mark", None),
        ("####", ""),
    ],
)
def test_hash_answers(solution, answer):
    assert extract_hash_answer(solution) == answer


@pytest.mark.parametrize(
    "text",
    [
        "72",
        "72.0",
        "$72",
        "72.",
        "72%",
        "x = 72 apples",
        "144/2",
        "$72.00",
        "+72",
        "(72)",
        "**72**",
        "72 cm^2",
        "72 m^{-2}",
    ],
)
def test_lenient_correctness_reads_the_same_number_in_other_clothes(text):
    assert is_numerically_correct(f"<answer>{text}</answer>", "72")
    assert is_numerically_correct(f"So the answer is {text}", "72")


@pytest.mark.parametrize(
    ("text", "gold", "right"),
    [
        ("<answer>1,000</answer>", "1000", True),
        ("<answer>-5</answer>", "-5", True),
        ("<answer>-$5</answer>", "-5", True),
        ("<answer>\u22125</answer>", "-5", True),
        ("<answer>5</answer>", "-5", False),
        ("<answer>3/4</answer>", "0.75", True),
        ("<answer>1/0</answer>", "1", True),  # no division by zero: the numerator stands
        ("<answer>.5</answer>", "1/2", True),
        ("<answer>18-5</answer>", "5", True),  # a minus after a digit subtracts
        ("<answer>I do not know</answer> maybe 7", "7", True),  # no number in the answer: the text's last
        ("<answer>8</answer> or 7", "7", False),  # the answer's number counts, not the text's
        ("no number at all", "7", False),
        ("", "7", False),
        ("<answer>" + "9" * 5000 + "</answer>", "9" * 5000, False),  # absurd numbers are no numbers
        ("<answer>72.5</answer>", "72", False),
        ("<answer>٣</answer>", "3", False),  # ASCII digits only
    ],
)
def test_lenient_correctness_rule(text, gold, right):
    assert is_numerically_correct(text, gold) is right


HOSTILE = [
    "<reasoning></reasoning> " * 40,
    "<reasoning>" + "</reasoning>\n<answer>\n" * 40,
    "\n</answer>\n" * 40,
    "1," * 400,
    "</reasoning>" + " " * 900,
]


@pytest.mark.parametrize("unit", HOSTILE)
def test_hostile_text_of_a_million_characters_costs_less_than_a_second(unit):
    text = ("<reasoning>\n" + unit * (1_000_000 // len(unit)))[:1_000_000]
    start = time.perf_counter()
    for reward in REWARD_FUNCS.values():
        reward([text], answer=["7"])
    is_numerically_correct(text, "7")
    assert time.perf_counter() - start < 2  # quadratic code takes minutes; generous, so that no busy machine fails it


def test_importing_rewards_loads_nothing_heavy():
    code = "import sys, rewards; print([m for m in ('torch', 'numpy', 'math_verify', 'sympy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
