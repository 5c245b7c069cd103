"""Words around an answer: those that are known to leave it as it is may stand there, and no other."""

import json
from collections import Counter

import pytest
from helpers_runs import SHARED, examples
from helpers_tables import each
from hypothesis import given
from hypothesis import strategies as st

from exact_answers import grade, is_right, lexicon, words

UNKNOWN = st.from_regex(r"[bdfgklmnprtvz][aeiou][bdfgklmnprtvz]{1,2}[aeiou][dgklmnprtvz]", fullmatch=True).filter(
    lambda word: not words.any_of([word], set().union(*lexicon.WORDS.values()))
)
MARKS = [r"\boxed{72}", "<answer>72</answer>", "The answer is 72"]


# --- The lexicon --------------------------------------------------------------------------------------------------


def test_each_word_stands_once():
    rows = lexicon._ROWS.strip().replace("\n    ", " ").splitlines()
    counts = Counter(word for row in rows for word in row.partition(": ")[2].split())
    assert [word for word, count in counts.items() if count > 1] == []
    assert len(rows) == len({row.partition(": ")[0] for row in rows})


def test_each_kind_has_words_and_a_meaning():
    kinds = {
        kind
        for row in lexicon._ROWS.strip().replace("\n    ", " ").splitlines()
        for kind in row.split(": ")[0].split()
    }
    assert kinds == set(lexicon.KINDS) and all(lexicon.KINDS.values())


# --- What touches a mark ------------------------------------------------------------------------------------------


@each(
    [*("-{}", "2{}", r"\sqrt{{{}}}", r"\frac{{{}}}{{2}}", "x < {}", r"x \neq {}", r"\pm {}"), "5 + {}", r"2\cdot {}"]
)
def test_what_touches_a_box_from_before_makes_another_value(form):
    text = form.format(r"\boxed{72}")
    assert not is_right(text, "72") and not is_right(f"So it is ${text}$.", "72")


AFTER = ["+ 1", "^2", " million", "k", r"\%\text{ of } 50", " or 73", " / 2", " × 2", "{2}", ".5", "{,}000"]


@each(AFTER)
@pytest.mark.parametrize("mark", [r"\boxed{72}", r"\fbox{72}", "<answer>72</answer>", r"So it is $\boxed{72}$"])
def test_what_touches_a_mark_from_behind_makes_another_value(after, mark):
    assert not is_right(mark + after, "72")


@each(
    [
        (r"\boxed{11} million", "11000000"),
        (r"-\boxed{11}", "-11"),
        (r"\boxed{5} km", "5000 m"),
        (r"\boxed{25}\%", "25%"),
    ]
)
def test_what_touches_a_mark_is_read_with_it(text, gold):
    assert is_right(text, gold)


@each([(r"\boxed{44 \boxed{45}}", "45", False), (r"\boxed{x = \boxed{45}}", "45", True)])
def test_the_outermost_box_counts(text, gold, right):
    assert is_right(text, gold) is right


@each(
    [
        r"<answer>72</answer> \boxed{73}",
        "<answer>72</answer>\n#### 73",
        r"\boxed{72}. Answer: 73",
        "Answer: 72\n#### 73",
    ]
)
def test_the_last_mark_of_any_kind_counts(text):
    assert is_right(text, "73") and not is_right(text, "72")


# --- What is said of an answer ------------------------------------------------------------------------------------

OF_ANSWER = [
    *("{mark}, which is {word}.", "{mark}. This is {word}.", "{mark}. It was {word}.", "{mark}. {word}."),
    *(
        "{mark}, though it is {word}.",
        "{mark} ({word}).",
        "{mark}, {word}.",
        "{mark}. I {word} it.",
        "{mark}. That {word}.",
    ),
]
BEFORE = [
    "I {word} that {mark}.",
    "We {word} the answer 72.",
    r"They {word} \boxed{{72}}.",
    "The {word} answer is 72.",
]


@examples(60)
@given(UNKNOWN, st.sampled_from(MARKS), st.sampled_from([*OF_ANSWER, *BEFORE]))
def test_an_unknown_word_beside_an_answer_is_not_understood(word, mark, form):
    text = form.format(mark=mark, word=word)
    assert grade(text, "72").why in ("not understood", "denied"), text
    assert not is_right(f"72 {word}", "72") and not is_right(f"{word}ly, the answer is 72.", "72")


@examples(60)
@given(
    UNKNOWN,
    st.sampled_from(["{} is {}.", "The answer is {}. This is {}.", r"\boxed{{{}}} is {}.", "I {1} option {0}."]),
)
def test_so_it_is_for_letters_and_names(word, form):
    assert not is_right(form.format("B", word), "B") and not is_right(form.format("Paris", word), "Paris")


SUPPORTS = ["correct", "right", "the answer", "the total", "as required", "what we wanted", "even", "reasonable"]


@each(SUPPORTS)
@pytest.mark.parametrize("mark", MARKS)
def test_what_supports_an_answer_leaves_it_right(words_of_it, mark):
    assert is_right(f"{mark}. This is {words_of_it}.", "72")
    assert not is_right(f"{mark}. This is not {words_of_it}.", "72") or words_of_it == "even"


HARMLESS = [
    *("I hope this helps!", "Let me know if you have any questions.", "So the answer is 72.", "Not 71, as some say."),
    *(
        "Check: 72 - 24 = 48.",
        "To verify, 24 + 48 = 72.",
        "Note that 72 is even.",
        "Confidence: 95%",
        "It cannot be 71.",
    ),
    *("If she had sold 10 more, it would be 82.", "I am sure.", "(final answer)", "This makes sense.", "✓", "∎"),
]


@each(HARMLESS)
@pytest.mark.parametrize("mark", MARKS)
def test_a_harmless_sentence_leaves_an_answer_right(sentence, mark):
    assert is_right(f"{mark}. {sentence}", "72") and is_right(f"{mark}.\n\n{sentence}", "72")


RETRACTIONS = [
    "Psych!",
    "As if.",
    "I lied.",
    "Let me start over.",
    "Disregard that.",
    "Second attempt: 71.",
    "Make it 71.",
]
RETRACTIONS += [
    "Minus 1 gives 71.",
    "But one broke. 71 remain.",
    "This will be corrected below.",
    "Check: 72 - 24 = 40.",
]


@each(RETRACTIONS)
@pytest.mark.parametrize("mark", MARKS)
def test_a_sentence_that_is_not_understood_takes_an_answer_away(sentence, mark):
    assert not is_right(f"{mark}. {sentence}", "72")


@each(["72 squaed", "72 thouand", "35 tysięcy", "35 या 36", "72 goes in the bin.", "72 is off the table."])
def test_a_number_counts_what_may_be_many(text):
    assert not is_right(text, "72") and not is_right(text, "35")


@each(['{"answer": 25}', '{"reasoning": "5 * 5 = 25", "answer": 25}', "{'final_answer': '25', 'unit': 'apples'}"])
def test_an_object_says_its_answer(text):
    assert is_right(text, "25") and is_right(f"Here it is:\n```json\n{text}\n```", "25")
    assert not is_right(f"{text} Just kidding.", "25")


@each(['{"confidence": 25}', '{"answer": null, "guess": 25}', '{"answer": [25, 26]}', '{"x": 25}'])
def test_an_object_without_one_answer_says_none(text):
    assert not is_right(text, "25")


# --- Pairs whose verdict is known ---------------------------------------------------------------------------------

PAIRS = SHARED / "field" / "grading"


@pytest.mark.skipif(not PAIRS.exists(), reason="the pairs are not beside this checkout")
@pytest.mark.parametrize("name", ["pairs.jsonl", "pairs2.jsonl", "pairs3.jsonl"])
def test_no_pair_is_falsely_right_and_few_are_falsely_wrong(name):
    rows = [json.loads(line) for line in (PAIRS / name).read_text("utf-8").split("\n") if line]
    verdicts = [(row, is_right(row["text"], row["gold"])) for row in rows]
    assert [row for row, right in verdicts if right and not row["right"]] == []
    rejected = [row for row, right in verdicts if row["right"] and not right]
    assert len(rejected) <= 0.05 * sum(row["right"] for row in rows)
