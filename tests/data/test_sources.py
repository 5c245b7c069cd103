"""grpo/data/sources.py: every source gives the same rows, and what cannot be read is named with its place."""

import json

import pandas as pd
import pytest
from datasets import Dataset, DatasetDict
from helpers_runs import ROWS

from grpo.core.errors import UserError
from grpo.data import dataset, sources
from train_grpo import PROMPT_FORMATS


def write_everywhere(directory, rows):
    """The same rows in every format that is read; yields names for `load_source`."""
    directory.mkdir(exist_ok=True)
    (directory / "r.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (directory / "r.json").write_text(json.dumps(rows, indent=2))
    pd.DataFrame(rows).to_csv(directory / "r.csv", index=False)
    pd.DataFrame(rows).to_parquet(directory / "r.parquet")
    Dataset.from_list(rows).save_to_disk(directory / "saved")
    DatasetDict(train=Dataset.from_list(rows), test=Dataset.from_list(rows[:3])).save_to_disk(directory / "splits")
    return [str(directory / name) for name in ("r.jsonl", "r.json", "r.csv", "r.parquet", "saved", "splits")]


def test_every_source_gives_the_same_rows(tmp_path):
    for name in write_everywhere(tmp_path, ROWS):
        rows = sources.take_split(sources.load_source(name), "train")
        made, dropped = dataset.make_prompts(rows, PROMPT_FORMATS["xml"].prompt)
        assert dropped == 0 and made["question"] == [row["question"] for row in ROWS], name
        assert made["answer"][:3] == ["4", "5", "6"] and made["prompt"][0][1]["content"] == "What is 2 + 2?"


def test_files_with_bom_crlf_and_blank_lines_read_as_others(tmp_path):
    lines = "\r\n".join(json.dumps(row) for row in ROWS[:2])
    (tmp_path / "r.jsonl").write_bytes(b"\xef\xbb\xbf" + lines.encode() + b"\r\n\r\n")
    assert sources.load_source(str(tmp_path / "r.jsonl"))["train"].to_list() == ROWS[:2]


def test_a_line_separator_inside_a_string_does_not_end_the_line(tmp_path):
    (tmp_path / "r.jsonl").write_text('{"question": "a\u2028b", "answer": "#### 1"}\n', encoding="utf-8")
    assert sources.load_source(str(tmp_path / "r.jsonl"))["train"]["question"] == ["a\u2028b"]


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
    assert len(sources.take_split({"train": Dataset.from_list(ROWS)}, spec)) == count


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("broken.jsonl", b'{"question": "a"}\n{"question', "line 2: broken JSON"),
        ("lines.json", b'{"question": "a"}\n{"question": "b"}\n', "one object a line; rename it to .jsonl"),
        ("ragged.csv", b"question,answer\na,1\nb,2,3\n", "Expected 2 fields in line 3, saw 3"),
        ("latin.csv", "question,answer\ncaf\xe9,1\n".encode("latin-1"), "save it as UTF-8"),
        ("semicolons.csv", b"question;answer\na;1\n", "separate columns by commas"),
        ("no.parquet", b"PAR1", "arquet"),
        ("empty.csv", b"", "holds no rows"),
    ],
)
def test_bad_files_are_named_with_the_place(tmp_path, name, content, expected):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError) as caught:
        sources.load_source(str(tmp_path / name))
    assert name in str(caught.value) and expected in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["missing.jsonl", "./missing", "/missing/dir", "a/b/c"])
def test_missing_paths_are_not_looked_for_on_the_hub(name):
    with pytest.raises(UserError) as caught:
        sources.load_source(name)
    assert name in str(caught.value)


def test_rows_in_memory_may_mix_answers_and_lack_some():
    frame = pd.DataFrame({"question": ["a", "b", "c"], "answer": [1, "2", None]})
    rows = sources.load_source(frame)["train"]
    assert rows["answer"][:] == ["1", "2", None] and sources.load_source(rows)["train"] is rows


def test_a_file_may_mix_numbers_and_texts(tmp_path):
    (tmp_path / "r.jsonl").write_text('{"question": "a", "answer": 1}\n{"question": "b", "answer": "2 apples"}\n')
    assert sources.load_source(str(tmp_path / "r.jsonl"))["train"]["answer"][:] == ["1", "2 apples"]


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        (pd.DataFrame({"question": []}), "are empty"),
        ([{"question": "a"}], "list is not a table"),
    ],
)
def test_what_is_no_table_is_one_line(table, reason):
    with pytest.raises(UserError, match=reason):
        sources.load_source(table)


# --- The Hub, imitated ---------------------------------------------------------------------------------------------


@pytest.fixture
def hub(monkeypatch):
    """datasets.load_dataset as it answers for a set with two configurations; records what was asked for."""
    asked = []

    def load(name, config=None):
        asked.append((name, config))
        known = ["main", "socratic"]
        if config is None:
            raise ValueError(f"Config name is missing.\nPlease pick one among the available configs: {known}\nExample")
        if config not in known:
            raise ValueError(f"BuilderConfig '{config}' not found. Available: {known}")
        return DatasetDict(train=Dataset.from_list(ROWS))

    monkeypatch.setattr(sources.datasets, "load_dataset", load)
    return asked


@pytest.mark.parametrize("config", [None, "mian"])
def test_a_hub_set_lists_the_configurations_it_has(hub, config):
    with pytest.raises(
        UserError, match=r"eval_dataset_name: 'openai/gsm8k' .*\['main', 'socratic'\].*gsm8k:NAME"
    ) as caught:
        sources.load_source("openai/gsm8k", config, "eval_dataset_name")
    assert "\n" not in str(caught.value)


def test_a_configuration_after_the_id_goes_before_the_others(hub):
    found = sources.load_sources(["openai/gsm8k:socratic", "openai/other"], "main")
    assert hub == [("openai/gsm8k", "socratic"), ("openai/other", "main")] and list(found) == ["gsm8k", "other"]


# --- Several data sets ---------------------------------------------------------------------------------------------


def test_joined_rows_have_all_columns_and_text_if_types_differ():
    one = Dataset.from_dict({"question": ["a"], "level": [3], "only": [True], "empty": [None]})
    other = Dataset.from_dict({"level": ["hard"], "question": ["b"], "empty": [["x"]]})
    assert sources.join({"one": one, "other": other}).to_list() == [
        {"question": "a", "level": "3", "only": True, "empty": None},
        {"question": "b", "level": "hard", "only": None, "empty": ["x"]},
    ]
    assert sources.join({"one": one})["level"][:] == [3]


def test_columns_that_cannot_be_joined_are_named():
    parts = {"one": Dataset.from_dict({"tags": ["x"]}), "other": Dataset.from_dict({"tags": [["x"]]})}
    with pytest.raises(UserError, match=r"the column 'tags' differs \(Value in one, List in other\); make them alike"):
        sources.join(parts)
