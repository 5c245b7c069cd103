"""Every row is trained on, held out or counted; no prompt is cut, and no held-out question is trained on."""

import dataclasses
import json
import random
import re
from types import SimpleNamespace

import pandas as pd
import pytest
from datasets import Dataset, DatasetDict
from helpers_runs import ROWS, examples
from hypothesis import given
from hypothesis import strategies as st

from grpo.core.errors import UserError
from grpo.core.settings import ScriptArguments
from grpo.data import dataset
from grpo.data.findings import ASKED, canonical
from grpo.data.sources import load_source, take_split
from grpo.task import Task, prompts
from grpo.task.prompts import THINK, XML
from train_grpo import EXEMPLARS

PLAIN = Task(dataclasses.replace(THINK, chat=False))
NEEDS = ("correctness_reward_func",)
AT_ONCE: list[int] = []  # prompts that `load` tokenized


def load(rows=None, needs_gold=NEEDS, task=PLAIN, flags=(), loader=dataset.load_data, **settings):
    """The data of a run on rows in memory, or on the files that the settings name; a token is a character."""
    given = dict.fromkeys(("dataset_name", "dataset_config", "eval_samples", "max_prompt_length"))
    table = Dataset.from_list(rows) if isinstance(rows, list) else rows
    script, origin = ScriptArguments(**{**given, **settings}), dict.fromkeys(flags, "flag")
    config = SimpleNamespace(script=script, origin=origin, template_kwargs={}, rows=table)

    class Characters:
        eos_token_id = 0

        def __call__(self, text, verbose):
            AT_ONCE.append(len(text))
            return {"input_ids": [list(prompt) for prompt in text]}

        def apply_chat_template(self, chats, **kwargs):
            return {"input_ids": [json.dumps(chat) for chat in chats]}

    return loader(config, task, Characters(), needs_gold)


def sums(count, answer="#### {}", **columns):
    return [{"question": f"{n} + 1?", "answer": answer.format(n + 1), **columns} for n in range(count)]


def asked(rows):
    return Dataset.from_list([{**row, ASKED: row["question"]} for row in rows])


def make(*cells, **columns):
    rows = Dataset.from_dict({"prompt": list(cells), "answer": ["4"] * len(cells), **columns})
    return dataset.make_prompts(rows, Task(XML), NEEDS, label="training data 'm.jsonl'")


def test_memory_holds_the_tokens_of_few_prompts(monkeypatch):
    whole = load(sums(60))
    AT_ONCE.clear()
    monkeypatch.setattr(prompts, "TOKENIZED_AT_ONCE", 7)
    data = load(sums(60))
    assert max(AT_ONCE) == 7 and sum(AT_ONCE) == len(data.train) + len(data.held_out) == 60
    assert (data.lengths, data.tokens) == (whole.lengths, whole.tokens) and len(data.lengths) == len(data.train)
    other = load([{**row, "question": row["question"].replace("59", "58 ")} for row in sums(60)])
    assert other.tokens != whole.tokens


# --- Rows and what is dropped


def test_rows_without_a_question_or_a_gold_answer_are_dropped_and_counted():
    odd = [("a", "no mark"), ("b", "####"), (" ", "#### 4"), (None, "#### 5"), ("c", None)]
    data = load([*sums(20, level=1), *[{"question": asked, "answer": gold, "level": 2} for asked, gold in odd]])
    assert data.dropped["unusable"] == 5 and len(data.train) + len(data.held_out) == 20
    (schema,) = (check.finding for check in data.findings if check.name == "schema")
    assert "dropped 1 row without the mark" in schema
    assert set(data.train["level"]) == {1} and data.train[0]["answer"] == str(int(data.train[0]["question"][0]) + 1)
    assert data.counts() == {"train": 15, "held_out": 5, "unusable": 5, "overlap": 0, "too_long": 0}


def test_rows_may_lack_gold_answers_where_nothing_needs_them():
    data = load([*sums(9), {"question": "say hi", "answer": None}, {"question": " "}], needs_gold=())
    assert data.dropped["unusable"] == 1 and {*data.train["answer"], *data.held_out["answer"]} > {None, "2"}
    assert load([{"question": str(n)} for n in range(20)], needs_gold=()).has_golds is False
    with pytest.raises(UserError, match=r"'answer'.*a_reward and eval_num_samples"):
        load([{"question": "a"}], needs_gold=("a_reward", "eval_num_samples"))
    with pytest.raises(UserError, match=r"answer_column: .*'gold'"):
        load(sums(9), needs_gold=(), answer_column="gold")


TALK = [{"role": "system", "content": "Be 'short\"."}, {"role": "user", "content": "1 + 2?"}]


@pytest.mark.parametrize("write", [json.dumps, str, lambda cell: json.dumps(cell, indent=1)])
def test_messages_as_text_are_messages(write):
    pd.DataFrame([{"prompt": write(TALK), "answer": "3"}]).to_csv("rows.csv", index=False)
    made, _ = dataset.make_prompts(take_split(load_source("rows.csv"), "train"), Task(XML), NEEDS)
    assert made[0]["prompt"] == TALK and made[0]["question"] == "1 + 2?"


@pytest.mark.parametrize(
    "cell",
    [
        """[{"role": "user", "content": "1 + 2?}]""",
        """[{'role': 'user', 'content': '1'} {'role': 'user', 'content': '2'}]""",  # as NumPy writes an array
        """[{'content': 'a' 'b', 'role': 'user'}]""",
    ],
)
def test_broken_messages_as_text_are_refused(cell):
    with pytest.raises(
        UserError, match=r"row 1 of .* is not a list or an object in JSON; write the messages as a list"
    ):
        make(cell)


def test_turns_of_another_shape_as_text_are_refused_as_a_list_is():
    for write in (json.dumps, str, list):
        with pytest.raises(UserError, match=r"is not a message; write .role: user, content: text., or a `prepare`"):
            make(write([{"from": "human", "value": "1 + 2?"}]))


@pytest.mark.parametrize("cell", ['[{"from": "me", "subject": "1 + 2?"}]', '{"role": "user"} 1 + 2?', "[1, 2]"])
def test_questions_about_json_stay_text(cell):
    assert make(cell)[0][0]["question"] == cell


def test_other_columns_stay_and_trls_names_are_dropped_and_noted():
    reserved = {"prompt": "old", "images": "x", "completion": "x", "completion_ids": [1]}
    rows = [{"q": f"{n}?", "gold": n, "answer": "old", "level": n, **reserved} for n in range(20)]
    data = load(rows, question_column="q", answer_column="gold")
    assert set(data.train.column_names) == {"q", "gold", "level", "question", "prompt", "answer"}
    assert data.train["answer"][:] == [str(n) for n in data.train["gold"]]
    line = next(check.finding for check in data.findings if check.name == "columns")
    assert line == "dropped completion_ids, completion: TRL uses these names"
    assert data.train[0]["prompt"] == PLAIN.ask(data.train[0]["q"])


@pytest.mark.parametrize(
    "columns", [{"question_column": "no"}, {"answer_column": "no"}, {"question_column": "answer"}]
)
def test_errors_about_columns_name_them(columns):
    with pytest.raises(UserError, match=r"_column: .*(no|answer)"):
        load(sums(9), **columns)


def test_a_question_that_differs_in_invisible_characters_is_held_out():
    rows = {"train": sums(20), "test": [{"question": "7\u00a0+\u200b 1?", "answer": "#### 8"}]}
    data = load(DatasetDict({name: Dataset.from_list(some) for name, some in rows.items()}))
    assert data.dropped["overlap"] == 1 and "7 + 1?" not in data.train["question"][:]


def test_long_prompts_are_dropped_whole_and_counted():
    rows = [*sums(20), *[{"question": f"long {n} " * 50, "answer": "#### 1"} for n in range(20)]]
    data = load(rows, max_prompt_length=len(PLAIN.ask("10 + 1?")), eval_samples=0)
    assert data.dropped["too_long"] == 20 and len(data.lengths) == len(data.train) + 20 == 40
    assert data.train["prompt"][:] == list(map(PLAIN.ask, data.train["question"]))
    lines = {check.name: check for check in data.findings}
    assert lines["prompt length"].status == "warning" and "dropped 20 training rows" in lines["prompt length"].finding
    assert lines["overlap"].status == "ok" and lines["held out"].finding.startswith("eval_samples 0")
    with pytest.raises(UserError, match="max_prompt_length"):
        load(rows, max_prompt_length=5)


def test_reasoning_is_that_of_the_training_rows():
    data = load(sums(20, answer="why {0}\n#### {0}"))
    assert data.reasoning == [f"why {gold}" for gold in data.train["answer"]]
    assert set(load(sums(20, answer="{}")).reasoning) == {""}


WRITTEN = st.sampled_from(["a #### 77", "#### $1,234 ", "####", "x", " 72.0 ", "$1,000", "", "  ", "-$5", "Paris, F"])
CELLS = st.one_of(st.none(), st.text(max_size=8), WRITTEN)
GIVEN = st.fixed_dictionaries(
    {
        "question": st.builds("{} {}".format, st.sampled_from(["What is", "what  IS", "Q {x}"]), st.integers(0, 9))
        | CELLS
    },
    optional={"answer": CELLS},
)


@examples(20)
@given(st.lists(GIVEN, min_size=1, max_size=20), st.sampled_from([None, 36]), st.sampled_from([None, 1, 3]))
def test_every_row_is_trained_on_held_out_or_counted(rows, limit, samples):
    """And whole: no prompt is cut, none contains its gold answer, and the same rows are drawn again."""
    rows = [{"question": None, "answer": None, **row, "id": number} for number, row in enumerate([*sums(4), *rows])]
    try:
        data = load(rows, max_prompt_length=limit, eval_samples=samples)
    except UserError as error:
        assert "\n" not in str(error)
        return
    train, held_out = data.train.to_list(), data.held_out.to_list()
    assert len(train) + len(held_out) + sum(data.dropped.values()) == len(rows)
    different = len({canonical(row["question"]) for row in [*train, *held_out]})
    assert train and (limit or len(held_out) == max(1, min(samples or len(rows), different // 4)))
    for row in [*train, *held_out]:
        assert row["question"] == rows[row["id"]]["question"] and row["prompt"] == PLAIN.ask(row["question"])
        assert row["answer"] and (limit is None or row in held_out or len(row["prompt"]) <= limit)
    texts = [{canonical(row["question"]) for row in some} for some in (train, held_out)]
    assert (
        not texts[0] & texts[1]
        and len(texts[1]) == len(held_out)
        and len({row["id"] for row in [*train, *held_out]}) == len(train) + len(held_out)
    )
    again = load(rows, max_prompt_length=limit, eval_samples=samples)
    assert again.train.to_list() == train and again.held_out.to_list() == held_out


# --- Held-out questions

USER, REPLY = {"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "Well."}


def kinds_line(*subjects, **settings):
    """What is said of held-out questions of these subjects, if they are evaluated by it."""
    rows = [row | {"subject": subjects[at % len(subjects)]} for at, row in enumerate(sums(400, "#### {}"))]
    (line,) = [line for line in load(rows, eval_by="subject", **settings).findings if line.name == "eval_by"]
    return line


def test_kinds_of_questions_are_counted_where_they_are_held_out():
    line = kinds_line("sets", "algebra", None)
    counts = dict(re.findall(r"(\S+) (\d+)(?:,|$)", line.finding))
    assert line.finding.startswith("3 kinds by subject: algebra ") and [*counts] == ["algebra", "sets", "(none)"]
    assert sum(map(int, counts.values())) == 100 and line.status == "ok"
    many = kinds_line(*range(30))
    assert many.status == "warning" and many.finding.startswith("30 kinds by subject: ")
    assert "others (11 kinds) " in many.finding and many.remedy.startswith("the 19 largest have a row each; ")
    each = kinds_line(*range(400))
    assert each.status == "error" and "each of the 100 held-out questions has another subject" in each.finding


@pytest.mark.parametrize("loader", [dataset.load_data, dataset.load_questions])
def test_a_column_that_the_held_out_rows_lack_is_named(loader):
    rows, settings = sums(30, "#### {}"), {"loader": loader, "eval_by": "subject"}
    with pytest.raises(
        UserError, match=r"^eval_by: training data .* has no column 'subject'; it has question, answer"
    ):
        load(rows, **settings)
    settings |= {"prepare": "mine.prepare"}
    task = dataclasses.replace(PLAIN, prepare=lambda row: {"question": row["question"], "answer": row["answer"]})
    with pytest.raises(UserError, match=r"what mine.prepare returns for .*: let it return 'subject', too, or name"):
        load([row | {"subject": "a"} for row in rows], task=task, **settings)
    load(rows, eval_by="subject", eval_samples=0)  # nothing is held out


def test_a_held_out_slice_is_small_and_not_trained_on():
    rows = asked(ROWS)
    training, held_out = dataset.split_held_out(rows, 200)
    assert len(training) == 30 and not set(training["question"]) & set(held_out["question"])
    assert [len(some) for some in dataset.split_held_out(rows, 0)] == [40, 0]
    with pytest.raises(UserError):
        dataset.split_held_out(rows.select([0]), 1)


def test_held_out_questions_depend_on_the_questions_alone(write_jsonl):
    """Not on the seed, the prompt, the order of rows or other columns; a test split's sample is drawn alike."""
    shuffled = random.Random(0).sample(sums(60), 60)
    for change in ({}, {"task": Task(XML, EXEMPLARS[:2])}, {"rows": sums(60, level=3)}, {"rows": shuffled}):
        data = load(**{"rows": sums(60), "eval_samples": 10, **change})
        assert set(data.held_out["question"]) == set(load(sums(60), eval_samples=10).held_out["question"])
        assert len(data.train) == 50
    files = {"dataset_name": write_jsonl(sums(5), "a.jsonl"), "eval_dataset_name": write_jsonl(sums(60), "b.jsonl")}
    sampled, more = (load(**files, eval_samples=count, max_samples=3) for count in (10, 20))
    assert len(sampled.held_out) == 10 and set(sampled.held_out["question"]) < set(more.held_out["question"])
    assert len(sampled.train) + sampled.dropped["overlap"] == 3


@pytest.mark.parametrize(("rows", "held_out"), [(2, 1), (30, 7), (300, 75), (1000, 100), (3000, 300)])
def test_a_tenth_is_held_out_or_a_quarter_of_few_rows(rows, held_out):
    table = asked(sums(rows))
    assert len(dataset.split_held_out(table, None)[1]) == held_out
    assert len(dataset.split_held_out(table, 40)[1]) == min(40, held_out)


def test_training_never_sees_a_held_out_question(write_jsonl):
    held_out = write_jsonl([{"question": " 3  + 1? ", "answer": "#### 4"}, {"question": "x", "answer": "#### 4"}])
    data = load(sums(9), eval_dataset_name=held_out)
    assert data.dropped["overlap"] == 1 and "3 + 1?" not in data.train["question"][:] and len(data.train) == 8
    with pytest.raises(UserError, match="eval_dataset_name"):
        load(sums(4)[3:], eval_dataset_name=held_out)


def test_conversations_are_the_same_as_a_whole_not_by_their_last_message():
    talks = [[{"role": "user", "content": f"topic {number}"}, REPLY, USER] for number in range(12)]
    data = load([{"prompt": talk, "answer": "7"} for talk in talks])
    assert data.dropped["overlap"] == 0 and len(data.train) == 9


def told(system, question):
    return [{"role": "system", "content": system}, {"role": "user", "content": question}]


@pytest.mark.parametrize("task", [Task(XML), Task(THINK), Task(dataclasses.replace(XML, system_apart=False))])
def test_a_system_message_is_part_of_the_question_unless_all_rows_share_it(task, write_jsonl):
    documents = [{"prompt": told(f"Lea has {n} pens.", "How many?"), "answer": n} for n in range(40)]
    data = load(documents, task=task)
    assert (len(data.train), len(data.held_out), data.dropped["overlap"]) == (30, 10, 0)
    assert "repeats" not in {check.name for check in data.findings}
    answers = data.held_out["answer"][:]
    assert answers != list(map(str, range(10))) and answers == load(documents).held_out["answer"][:]
    rows = [{"prompt": told("Be brief.", f"{n} + 1?"), "answer": n + 1} for n in range(9)]
    for ask in (lambda question: told("Be exact.", question), str):
        held_out = write_jsonl([{"prompt": ask("3 + 1?"), "answer": 4}, {"prompt": ask("8 + 8?"), "answer": 16}])
        assert load(rows, task=task, eval_dataset_name=held_out).dropped["overlap"] == 1


def test_a_source_with_the_split_holds_out_a_sample_of_it():
    DatasetDict(train=Dataset.from_list(sums(20)), test=Dataset.from_list(ROWS)).save_to_disk("saved")
    data = load(dataset_name="saved", eval_samples=5)
    places = [[row["question"] for row in ROWS].index(question) for question in data.held_out["question"]]
    assert len(data.train) == 20 and len(places) == 5 and places == sorted(places) != [0, 1, 2, 3, 4]
    assert len(load(dataset_name="saved", eval_split="test[:7]").held_out) == 7
    assert len(load(dataset_name="saved", eval_split="validation").held_out) == 5  # a slice of the training rows
    with pytest.raises(UserError, match="eval_split: 'validation'"):
        load(dataset_name="saved", eval_split="validation", flags=["eval_split"])


def test_an_evaluation_alone_has_the_held_out_questions_of_a_run(write_jsonl):
    rows, held_out = write_jsonl(sums(40)), write_jsonl(sums(3), "test.jsonl")
    alone = load(dataset_name=rows, loader=dataset.load_questions, max_prompt_length=500)
    assert alone.held_out.to_list() == load(dataset_name=rows, max_prompt_length=500).held_out.to_list()
    assert alone.rows is alone.held_out and len(alone.lengths) == len(alone.held_out) and alone.cut_off
    flags = {"eval_dataset_name": held_out, "max_prompt_length": 1}  # it drops none for its length
    for name in ("not/there", held_out):  # training rows are not read
        assert len(load(dataset_name=name, loader=dataset.load_questions, **flags).held_out) == 3


# --- Lists of messages

SYSTEM = {"role": "system", "content": "Be brief."}


def test_messages_are_prompts_and_the_last_one_the_question():
    talk = [SYSTEM, {"role": "user", "content": "hi"}, REPLY, USER]
    made, reading = make(talk, [USER], [], None, [{"role": "user", "content": " "}])
    ours = {"role": "system", "content": XML.system}
    assert made["prompt"][:] == [talk, [ours, USER]] and made["question"][:] == ["2 + 2?"] * 2 and reading.dropped == 3
    data = load([{"prompt": [{"role": "user", "content": str(n)}], "answer": n} for n in range(20)])
    assert data.train[0]["prompt"] == f"{data.train[0]['question']}\n"  # without a chat template


@pytest.mark.parametrize("cell", [[USER, REPLY], [{"role": "user"}], ["2 + 2?"]])
def test_a_list_that_is_no_conversation_is_one_line_with_its_place(cell):
    with pytest.raises(UserError, match=r"question_column: row 1 of training data 'm.jsonl' .*(message|the user's)"):
        make(cell)
