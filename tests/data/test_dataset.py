"""grpo/data/dataset.py: rows of any source become the same prompts; nothing is cut, everything dropped is counted."""

import functools
from decimal import Decimal
from types import SimpleNamespace

import pytest
from datasets import Dataset
from helpers_runs import ROWS

from grpo.core.errors import UserError
from grpo.data import dataset
from grpo.data.prompts import tokenize
from train_grpo import EXEMPLARS, PROMPT_FORMATS

make_prompt = PROMPT_FORMATS["xml"].prompt


def test_rows_without_a_usable_answer_are_dropped_and_counted():
    rows = Dataset.from_dict(
        {
            "question": ["a", "b", "c", " ", None, "d"],
            "answer": ["x #### 1,000", "no mark", "####", "#### 4", "#### 5", None],
            "level": [1, 2, 3, 4, 5, 6],
        }
    )
    made, dropped = dataset.make_prompts(rows, make_prompt)
    assert dropped == 5 and made["answer"] == ["1000"] and made["level"] == [1]


@pytest.mark.parametrize(
    ("values", "golds"),
    [
        (["6 * 7 = 42\n#### 42", "#### $1,000 ", "no mark", "####", None], ["42", "1000", None, None, None]),
        (["42", " $1,000 ", "1,234.5", "-$5", "-3", "$-3"], ["42", "1000", "1234.5", "-5", "-3", "-3"]),
        (["Paris, France", " #1 hit", "3/4", "$", "  ", ""], ["Paris, France", "#1 hit", "3/4", "$", None, None]),
        ([72, -3, 10**18], ["72", "-3", "1000000000000000000"]),
        ([72.0, 0.5, 1e21, float("nan"), None], ["72", "0.5", "1000000000000000000000", None, None]),
        ([Decimal("72"), Decimal("1.50"), Decimal("NaN")], ["72", "1.50", None]),
        (["18.0", "18.00", "$18.00", "7."], ["18", "18", "18", "7"]),
        (["+5", "\u22125", "-1,200.0", ".5"], ["5", "-5", "-1200", "0.5"]),
        (["1.50", "0", "-", ".", "1,00", "5 apples"], ["1.50", "0", "-", ".", "1,00", "5 apples"]),
        ([True, ["7"], {"a": 7}], [None, None, None]),
    ],
)  # fmt: skip
def test_gold_answers_may_follow_a_mark_or_be_plain_or_numbers(values, golds):
    assert dataset.gold_answers(values) == golds


def test_other_column_names_and_other_columns_stay():
    rows = Dataset.from_dict({"q": ["a"], "gold": ["#### 1"], "answer": ["something else"], "prompt": ["old"]})
    made, _ = dataset.make_prompts(rows, make_prompt, "q", "gold")
    assert made["answer"] == ["1"] and made["gold"] == ["#### 1"] and made["prompt"][0][1]["content"] == "a"


@pytest.mark.parametrize("columns", [("no", "answer"), ("question", "no"), ("answer", "question")])
def test_errors_about_columns_and_rows_name_the_data(columns):
    rows = Dataset.from_dict({"question": ["a"], "answer": [4]})
    with pytest.raises(UserError, match=r"evaluation data 'mine\.csv'"):
        dataset.make_prompts(rows, make_prompt, *columns, label="evaluation data 'mine.csv'")


def test_the_question_may_stand_in_a_column_named_prompt():
    rows = Dataset.from_dict({"prompt": ["2 + 2?"], "answer": ["#### 4"]})
    made, _ = dataset.make_prompts(rows, make_prompt, "prompt")
    assert made.column_names == ["question", "prompt", "answer"] and made["question"] == ["2 + 2?"]
    assert made["prompt"][0][-1]["content"] == "2 + 2?" and len(made) == 1


def test_no_column_is_both_question_and_gold_answer():
    rows = Dataset.from_dict({"text": ["2 + 2? #### 4"]})
    with pytest.raises(UserError, match="answer_column: 'text' is the question_column, too"):
        dataset.make_prompts(rows, make_prompt, "text", "text")


@pytest.mark.parametrize("name", ["completions", "image", "trainer_state"])
def test_columns_that_trl_has_another_use_for_are_refused(name):
    rows = Dataset.from_dict({"question": ["a"], "answer": ["#### 4"], name: ["x"]})
    with pytest.raises(UserError, match=f"names: {name}; rename the columns"):
        dataset.make_prompts(rows, make_prompt)


def test_long_prompts_are_dropped_whole_and_counted(tokenizer):
    rows = Dataset.from_dict({"question": ["short", "long " * 50, "short"], "answer": ["#### 1"] * 3})
    made, _ = dataset.make_prompts(rows, make_prompt)
    lengths = [len(ids) for ids in tokenize(made["prompt"], tokenizer)]
    kept, dropped = dataset.drop_long(made, lengths, lengths[0])
    assert dropped == 1 and kept["question"] == ["short", "short"] and kept["prompt"] == [made["prompt"][0]] * 2
    assert dataset.drop_long(made, lengths, None) == (made, 0)
    with pytest.raises(UserError, match="the shortest has"):
        dataset.drop_long(made, lengths, 5)


def test_a_held_out_slice_is_seeded_small_and_not_trained_on():
    rows = Dataset.from_list(ROWS)
    training, held_out = dataset.split_held_out(rows, 200, seed=1)
    assert (len(training), len(held_out)) == (36, 4)
    assert not set(training["question"]) & set(held_out["question"])
    assert dataset.split_held_out(rows, 200, seed=1)[1].to_list() == held_out.to_list()
    assert dataset.split_held_out(rows, 200, seed=2)[1].to_list() != held_out.to_list()
    assert len(dataset.split_held_out(rows, 2, seed=1)[1]) == 2
    with pytest.raises(UserError, match="cannot be split"):
        dataset.split_held_out(rows.select([0]), 1, seed=1)


def test_training_never_sees_a_held_out_question():
    def ask(*asked):
        rows = Dataset.from_dict({"question": asked, "answer": ["#### 1"] * len(asked)})
        return dataset.make_prompts(rows, functools.partial(make_prompt, shots=EXEMPLARS[:1]))[0]

    kept, dropped = dataset.drop_overlap(ask("a b", "c", "d"), ask("a  b ", "x"))
    assert kept["question"] == ["c", "d"] and dropped == 1
    with pytest.raises(UserError, match="held-out"):
        dataset.drop_overlap(ask("a"), ask("a"))


def test_a_sample_is_seeded_and_in_order():
    rows = Dataset.from_list(ROWS)
    sample = dataset.sample(rows, 5, seed=3)
    places = [ROWS.index(row) for row in sample.to_list()]
    assert len(places) == 5 and places == sorted(places)
    assert sample.to_list() == dataset.sample(rows, 5, seed=3).to_list()
    assert dataset.sample(rows, None, seed=3) is rows and dataset.sample(rows, 99, seed=3) is rows


def test_others_are_as_many_and_share_no_question():
    rows = Dataset.from_list([{"question": text} for text in ["A", "b", "c", "d", "a"]])
    taken = rows.select([0, 1])
    others = dataset.sample_others(rows, taken, seed=3)
    assert others["question"] == ["c", "d"]  # in their order, without what differs in its case only
    assert dataset.sample_others(rows, rows.select([0, 1, 2]), seed=3) is None


@pytest.mark.parametrize("split", [True, False], ids=["a split", "cut from the training rows"])
@pytest.mark.parametrize(("count", "apart"), [(2, True), (3, False)])
def test_other_questions_pick_where_there_are_enough(split, count, apart):
    sums = [{"question": f"{number} + 1?", "answer": f"{number + 1}"} for number in range(50)]
    test = Dataset.from_list(sums[:5])  # as many as a tenth of the others
    source = {"train": Dataset.from_list(sums)} | ({"test": test} if split else {})
    script = SimpleNamespace(
        question_column="question", answer_column="answer", eval_split="test", dataset_split="train",
        eval_samples=count, max_samples=None, max_prompt_length=None, eval_only=False, keep_best=True,
        dataset_name="sums", eval_dataset_name=None,
    )  # fmt: skip
    tokenize = lambda prompts: [[1]] * len(prompts)  # noqa: E731
    data = dataset.prepare(source, None, script, PROMPT_FORMATS["xml"], [], tokenize, seed=1)
    held_out, train = set(data.held_out["question"]), set(data.train["question"])
    picking = set(data.picking["question"]) if data.picking else set()
    assert len(held_out) == count and len(picking) == (count if apart else 0)
    assert not held_out & picking and not train & (held_out | picking)
    assert len(train) == 50 - len(held_out | picking) and data.facts()["data"]["picking"] == len(picking)
    assert data.overlap == (len(held_out | picking) if split else 0)


def test_all_reserved_columns_are_named_at_once():
    rows = Dataset.from_dict({"question": ["1 + 1?"], "answer": ["2"], "image": ["x"], "completions": ["y"]})
    with pytest.raises(UserError, match="reserves these column names: image, completions; rename the columns"):
        dataset.make_prompts(rows, make_prompt)
