"""grpo/data/dataset.py: rows of any source become the same prompts; nothing is cut, everything dropped is counted."""

import dataclasses
import functools
from collections import Counter
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
        ([72.0, 0.5, 1e21, float("nan"), None], ["72", "0.5", "1000000000000000000000", None, None]),
        (["18.0", "18.00", "$18.00", "7."], ["18", "18", "18", "7"]),
        (["1.50", "0", "-", ".", "1,00", "5 apples"], ["1.50", "0", "-", ".", "1,00", "5 apples"]),
    ],
)  # fmt: skip
def test_gold_answers_may_follow_a_mark_or_be_plain_or_numbers(values, golds):
    assert dataset.gold_answers(values) == golds


@pytest.mark.parametrize(
    ("pattern", "golds"),
    [
        ("xml", ["red", "blue"]),  # the pattern of completions is the default
        ("final", ["It is <answer>red</answer>", None]),
    ],
)
def test_gold_answers_may_have_the_pattern_of_completions(pattern, golds):
    values = ["It is <answer>red</answer>", "<answer> blue </answer>"]
    if pattern == "final":
        values = [f"Hm. Answer: {values[0]}", "blue"]
    assert dataset.gold_answers(values, pattern) == golds
    assert dataset.gold_answers(["So it is: [[7]].", "[[8]]"], "[[{answer}]]") == ["7", "8"]


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


# --- Lists of messages ---------------------------------------------------------------------------------------------

USER = {"role": "user", "content": "2 + 2?"}
SYSTEM = {"role": "system", "content": "Be brief."}


def asked(*cells, column="prompt", make_prompt=make_prompt):
    rows = Dataset.from_dict({column: list(cells), "answer": ["4"] * len(cells)})
    return dataset.make_prompts(rows, make_prompt, label="training data 'm.jsonl'")


def test_messages_are_prompts_and_the_last_one_the_question():
    talk = [SYSTEM, {"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}, USER]
    made, dropped = asked(talk, column="question")
    assert made["prompt"][:] == [talk] and made["question"][:] == ["2 + 2?"] and dropped == 0


def test_messages_without_a_system_message_get_the_runs():
    shows = {"role": "user", "content": "2 + 2? Use <reasoning></reasoning><answer></answer>."}
    made, _ = asked([USER], [SYSTEM, USER], [shows])
    ours = {"role": "system", "content": PROMPT_FORMATS["xml"].system}
    assert made["prompt"][:] == [[ours, USER], [SYSTEM, USER], [shows]]


def test_a_model_without_a_chat_template_gets_messages_as_text():
    plain = dataclasses.replace(PROMPT_FORMATS["xml"], chat=False)
    made, _ = asked([SYSTEM, USER], [USER], make_prompt=plain.prompt)
    assert made["prompt"][:] == ["Be brief.\n2 + 2?\n", plain.opening + "2 + 2?\n"]


@pytest.mark.parametrize("cell", [[], None, [{"role": "user", "content": " "}]])
def test_messages_that_ask_nothing_are_dropped_and_counted(cell):
    made, dropped = asked([USER], cell)
    assert made["question"][:] == ["2 + 2?"] and dropped == 1


@pytest.mark.parametrize(
    ("cell", "reason"),
    [
        (
            [USER, {"role": "assistant", "content": "4"}],
            "row 1 .*'m.jsonl'.* of the role 'assistant'.*end with the user",
        ),
    ],
)
def test_messages_that_are_no_prompt_are_one_line(cell, reason):
    with pytest.raises(UserError, match=reason):
        asked(cell)


def test_rows_may_lack_gold_answers_where_nothing_needs_them():
    rows = Dataset.from_dict({"question": ["a", "b", " "], "answer": ["7", None, "8"]})
    made, dropped = dataset.make_prompts(rows, make_prompt, needs_gold=())
    assert made["answer"][:] == ["7", None] and dropped == 1
    made, dropped = dataset.make_prompts(rows.remove_columns("answer"), make_prompt, needs_gold=())
    assert made["answer"][:] == [None, None] and dropped == 1
    with pytest.raises(
        UserError, match=r"no column 'answer'.*or do without correctness_reward_func and eval_num_samples"
    ):
        needs = ("correctness_reward_func", "eval_num_samples")
        dataset.make_prompts(rows.remove_columns("answer"), make_prompt, needs_gold=needs)
    with pytest.raises(UserError, match="answer_column: dataset has no column 'gold'"):
        dataset.make_prompts(rows, make_prompt, answer_column="gold", needs_gold=())


# --- Several data sets ---------------------------------------------------------------------------------------------


def prepare(source, eval_source=(), style=PROMPT_FORMATS["xml"], **settings):
    given = dict(
        question_column="question", answer_column="answer", dataset_split="train", eval_split="test",
        eval_samples=None, max_samples=None, eval_only=False, max_prompt_length=None, dataset_name=["a", "b"],
        eval_dataset_name=None,
    )  # fmt: skip
    tokenize = lambda prompts: [[0]] * len(prompts)  # noqa: E731
    return dataset.prepare(source, dict(eval_source), SimpleNamespace(**{**given, **settings}), style, [], tokenize, 7)


def table(name, count, **columns):
    asked = [f"{name} {number}?" for number in range(count)]
    return Dataset.from_dict({"question": asked, "answer": ["7"] * count, **columns})


def test_each_data_set_holds_out_what_it_would_alone():
    sets = {"a": {"train": table("a", 60)}, "b": {"train": table("b", 30), "test": table("b test", 9)}}
    data = prepare(sets)
    alone = [prepare({label: sets[label]}, dataset_name=label) for label in sets]
    for rows, whole in (("train", data.train), ("held_out", data.held_out)):
        assert whole["question"][:] == [text for each in alone for text in getattr(each, rows)["question"]]
    assert Counter(data.train["source"]) == {"a": 54, "b": 30} and data.available == 6 + 9
    assert "source" not in alone[0].train.column_names


def test_a_question_held_out_by_one_set_is_trained_on_in_none():
    data = prepare({"a": {"train": table("x", 40)}, "b": {"train": table("x", 70)}})
    assert not set(data.held_out["question"]) & set(data.train["question"]) and data.overlap > 0


def test_several_sets_of_held_out_questions():
    tests = {"x": {"train": table("x", 5)}, "y": {"test": table("y", 6), "train": table("no", 3)}}
    data = prepare({"a": {"train": table("a", 20)}}, tests, dataset_name="a", eval_dataset_name=["x", "y"])
    assert Counter(data.held_out["source"]) == {"x": 5, "y": 6} and len(data.train) == 20
    alone = prepare({}, tests, eval_dataset_name=["x", "y"], eval_only=True)
    assert alone.held_out["question"][:] == data.held_out["question"][:]
