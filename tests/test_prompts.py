"""grpo/prompts.py: rows of any source become the same prompts; nothing is cut, everything dropped is counted."""

import json

import pandas as pd
import pytest
from conftest import DEMO, ROWS
from datasets import Dataset, DatasetDict
from transformers import AutoTokenizer

from grpo import UserError, prompts
from train_grpo import EXEMPLARS, SYSTEM_PROMPT, XML_COT_FORMAT, make_prompt


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(DEMO / "model", padding_side="left")


def test_the_prompt_is_the_gists():
    assert SYSTEM_PROMPT == (
        "\nRespond in the following format:\n<reasoning>\n...\n</reasoning>\n<answer>\n...\n</answer>\n"
    )
    assert XML_COT_FORMAT == "<reasoning>\n{reasoning}\n</reasoning>\n<answer>\n{answer}\n</answer>\n"
    assert make_prompt("2 + 2?") == [
        {"role": "system", "content": SYSTEM_PROMPT},
        {"role": "user", "content": "2 + 2?"},
    ]


def test_shots_are_turns_in_the_format_and_the_first_asks_for_the_largest_single_digit_prime():
    one = make_prompt("2 + 2?", num_shots=1)
    assert [message["role"] for message in one] == ["system", "user", "assistant", "user"]
    assert "largest single-digit prime" in one[1]["content"] and one[2]["content"].endswith("<answer>\n7\n</answer>\n")
    assert len(make_prompt("2 + 2?", num_shots=3)) == 8 and len(EXEMPLARS) >= 3


def test_exemplars_earn_every_reward():
    from rewards import REWARD_FUNCS

    for _, reasoning, answer in EXEMPLARS:
        text = XML_COT_FORMAT.format(reasoning=reasoning, answer=answer)
        assert sum(reward([text], answer=[answer])[0] for reward in REWARD_FUNCS.values()) == pytest.approx(4.0)


def write_everywhere(directory, rows):
    """The same rows in every format that is read; yields names for `load_source`."""
    directory.mkdir(exist_ok=True)
    (directory / "r.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pd.DataFrame(rows).to_csv(directory / "r.csv", index=False)
    pd.DataFrame(rows).to_parquet(directory / "r.parquet")
    Dataset.from_list(rows).save_to_disk(directory / "saved")
    DatasetDict(train=Dataset.from_list(rows), test=Dataset.from_list(rows[:3])).save_to_disk(directory / "splits")
    return [str(directory / name) for name in ("r.jsonl", "r.csv", "r.parquet", "saved", "splits")]


def test_every_source_gives_the_same_rows(tmp_path):
    for name in write_everywhere(tmp_path, ROWS):
        rows = prompts.take_split(prompts.load_source(name), "train")
        made, dropped = prompts.make_prompts(rows, make_prompt)
        assert dropped == 0 and made["question"] == [row["question"] for row in ROWS], name
        assert made["answer"][:3] == ["4", "5", "6"] and made["prompt"][0][1]["content"] == "What is 2 + 2?"


def test_files_with_bom_crlf_and_blank_lines_read_as_others(tmp_path):
    lines = "\r\n".join(json.dumps(row) for row in ROWS[:2])
    (tmp_path / "r.jsonl").write_bytes(b"\xef\xbb\xbf" + lines.encode() + b"\r\n\r\n")
    assert prompts.load_source(str(tmp_path / "r.jsonl"))["train"].to_list() == ROWS[:2]


def test_a_line_separator_inside_a_string_does_not_end_the_line(tmp_path):
    (tmp_path / "r.jsonl").write_text('{"question": "a\u2028b", "answer": "#### 1"}\n', encoding="utf-8")
    assert prompts.load_source(str(tmp_path / "r.jsonl"))["train"]["question"] == ["a\u2028b"]


@pytest.mark.parametrize(
    ("spec", "count"),
    [
        ("train", 40),
        ("train[:7]", 7),
        ("train[-5:]", 5),
        ("train[10%:20%]", 4),
        ("train[:1]+train[5:7]", 3),
        ("train[30:99]", 10),
    ],
)
def test_slices(spec, count):
    assert len(prompts.take_split({"train": Dataset.from_list(ROWS)}, spec)) == count


@pytest.mark.parametrize("spec", ["nope", "train[", "train[a:b]", "nope[:3]", "train[5000:]", "train[3:3]"])
def test_bad_slices_name_what_there_is(spec):
    with pytest.raises(UserError, match="train"):
        prompts.take_split({"train": Dataset.from_list(ROWS)}, spec)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("empty.jsonl", b"", "holds no rows"),
        ("broken.jsonl", b'{"a": 1}\n{"a": 2}\n{"a": \n', "line 3"),
        ("list.jsonl", b"[1, 2]\n", "line 1"),
        ("binary.jsonl", b"\xff\xfe\x00", "not UTF-8"),
        ("mixed.jsonl", b'{"a": 1}\n{"a": "x"}\n{"a": {"b": 1}}\n', "mixes types"),
        ("huge.jsonl", b'{"a": 1' + b"0" * 30 + b"}", "mixes types"),
        ("empty.csv", b"", "no valid CSV"),
        ("ragged.csv", b"a,b\n1,2\n1,2,3\n", "no valid CSV"),
        ("head.csv", b"question,answer\n", "holds no rows"),
        ("bad.parquet", b"not parquet", "no valid Parquet"),
        ("rows.txt", b"hello", "is no .jsonl, .csv, .parquet file"),
    ],
)
def test_bad_files_are_named_with_the_place(tmp_path, name, content, expected):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError) as caught:
        prompts.load_source(str(tmp_path / name))
    assert name in str(caught.value) and expected in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["missing.jsonl", "./missing", "/missing/dir", "a/b/c"])
def test_missing_paths_are_not_looked_for_on_the_hub(name):
    with pytest.raises(UserError) as caught:
        prompts.load_source(name)
    assert name in str(caught.value)


def test_an_unreachable_hub_is_one_line_with_the_way_around_it():
    with pytest.raises(UserError) as caught:
        prompts.load_source("nobody/nothing", "main")
    assert "--dataset_name" in str(caught.value) and "\n" not in str(caught.value)


def test_rows_without_a_usable_answer_are_dropped_and_counted():
    rows = Dataset.from_dict(
        {
            "question": ["a", "b", "c", " ", None, "d"],
            "answer": ["x #### 1,000", "no mark", "####", "#### 4", "#### 5", None],
            "level": [1, 2, 3, 4, 5, 6],
        }
    )
    made, dropped = prompts.make_prompts(rows, make_prompt)
    assert dropped == 5 and made["answer"] == ["1000"] and made["level"] == [1]


def test_other_column_names_and_other_columns_stay():
    rows = Dataset.from_dict({"q": ["a"], "gold": ["#### 1"], "answer": ["something else"], "prompt": ["old"]})
    made, _ = prompts.make_prompts(rows, make_prompt, "q", "gold")
    assert made["answer"] == ["1"] and made["gold"] == ["#### 1"] and made["prompt"][0][1]["content"] == "a"


def test_the_question_may_stand_in_a_column_named_prompt():
    rows = Dataset.from_dict({"prompt": ["2 + 2?"], "answer": ["#### 4"]})
    made, _ = prompts.make_prompts(rows, make_prompt, "prompt")
    assert made.column_names == ["prompt", "answer"] and prompts.questions(made) == ["2 + 2?"] and len(made) == 1


def test_a_column_that_would_collide_with_a_rewards_arguments_is_refused():
    rows = Dataset.from_dict({"question": ["a"], "answer": ["#### 4"], "completions": ["x"]})
    with pytest.raises(UserError, match=r"'completions'.*rename it"):
        prompts.make_prompts(rows, make_prompt)


def test_missing_columns_and_no_usable_row_are_errors_that_say_what_there_is():
    with pytest.raises(UserError, match=r"question_column.*'question'.*it has text"):
        prompts.make_prompts(Dataset.from_dict({"text": ["a"]}), make_prompt)
    with pytest.raises(UserError, match="none of the 2 rows"):
        prompts.make_prompts(Dataset.from_dict({"question": ["a", "b"], "answer": ["1", "2"]}), make_prompt)


def test_long_prompts_are_dropped_whole_and_counted(tokenizer):
    rows = Dataset.from_dict({"question": ["short", "long " * 50, "short"], "answer": ["#### 1"] * 3})
    made, _ = prompts.make_prompts(rows, make_prompt)
    lengths = [len(ids) for ids in prompts.tokenize(made["prompt"], tokenizer)]
    kept, dropped = prompts.drop_long(made, lengths, lengths[0])
    assert dropped == 1 and kept["question"] == ["short", "short"] and kept["prompt"] == [made["prompt"][0]] * 2
    assert prompts.drop_long(made, lengths, None) == (made, 0)
    with pytest.raises(UserError, match="the shortest has"):
        prompts.drop_long(made, lengths, 5)


def test_tokenized_prompts_end_where_the_assistant_begins(tokenizer):
    (ids,) = prompts.tokenize([make_prompt("What is 2 + 2?")], tokenizer)
    text = tokenizer.decode(ids)
    assert text.startswith("<|im_start|>system\n\nRespond") and text.endswith("<|im_end|>\n<|im_start|>assistant\n")


def test_a_held_out_slice_is_seeded_at_most_a_tenth_and_removed_from_training():
    rows = Dataset.from_list(ROWS)
    training, held_out = prompts.split_held_out(rows, 200, seed=1)
    assert (len(training), len(held_out)) == (36, 4)
    assert not set(training["question"]) & set(held_out["question"])
    assert prompts.split_held_out(rows, 200, seed=1)[1].to_list() == held_out.to_list()
    assert prompts.split_held_out(rows, 200, seed=2)[1].to_list() != held_out.to_list()
    assert len(prompts.split_held_out(rows, 2, seed=1)[1]) == 2
    with pytest.raises(UserError, match="cannot be split"):
        prompts.split_held_out(rows.select([0]), 1, seed=1)


def test_training_never_sees_a_held_out_question():
    def ask(*asked):
        rows = Dataset.from_dict({"question": asked, "answer": ["#### 1"] * len(asked)})
        return prompts.make_prompts(rows, lambda question: make_prompt(question, num_shots=1))[0]

    kept, dropped = prompts.drop_overlap(ask("a b", "c", "d"), ask("a  b ", "x"))
    assert kept["question"] == ["c", "d"] and dropped == 1
    with pytest.raises(UserError, match="held-out"):
        prompts.drop_overlap(ask("a"), ask("a"))


def test_a_sample_is_seeded_and_in_order():
    rows = Dataset.from_list(ROWS)
    sample = prompts.sample(rows, 5, seed=3)
    places = [ROWS.index(row) for row in sample.to_list()]
    assert len(places) == 5 and places == sorted(places)
    assert sample.to_list() == prompts.sample(rows, 5, seed=3).to_list()
    assert prompts.sample(rows, None, seed=3) is rows and prompts.sample(rows, 99, seed=3) is rows
