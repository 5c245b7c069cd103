"""grpo/prompts.py: rows of any source become the same prompts; nothing is cut, everything dropped is counted."""

import pytest
from conftest import DEMO, ROWS
from datasets import Dataset
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
    from rewards import GIST_REWARDS, REWARD_FUNCS

    for _, reasoning, answer in EXEMPLARS:
        text = XML_COT_FORMAT.format(reasoning=reasoning, answer=answer)
        assert sum(REWARD_FUNCS[name]([text], answer=[answer])[0] for name in GIST_REWARDS) == pytest.approx(4.0)


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
