"""Prompts are the recipe's, as chat messages and as plain text, hold no gold answer, and a recipe may change them."""

import dataclasses
import itertools
import json
import re
from pathlib import Path

import pytest
from datasets import Dataset

from grpo.core.errors import UserError
from grpo.data import dataset
from grpo.task import Task, extract_answer, prompts
from grpo.task.prompts import FORMATS, THINK, XML
from rewards import REWARD_FUNCS, THINK_FORMAT, XML_COT_FORMAT, has_soft_format, has_strict_format
from train_grpo import EXEMPLARS, HYPERPARAMETERS, SYSTEM_PROMPT


def choose(prompt_format="xml", **settings):
    """The format that these settings describe."""
    return prompts.resolve(prompt_format, **settings)[0]


def test_the_default_prompt_is_the_gists():
    assert SYSTEM_PROMPT == (
        "\nRespond in the following format:\n<reasoning>\n...\n</reasoning>\n<answer>\n...\n</answer>\n"
    )
    assert XML_COT_FORMAT == "<reasoning>\n{reasoning}\n</reasoning>\n<answer>\n{answer}\n</answer>\n"
    system = {"role": "system", "content": SYSTEM_PROMPT}
    assert XML.prompt("{x} + 2?") == [system, {"role": "user", "content": "{x} + 2?"}]  # with braces as they are
    assert choose() == XML == HYPERPARAMETERS["prompt_format"]  # that of `ask` and the X-ray is the script's


def test_shots_are_turns_and_the_first_asks_for_the_prime():
    one = XML.prompt("2 + 2?", EXEMPLARS[:1])
    assert [message["role"] for message in one] == ["system", "user", "assistant", "user"]
    assert "largest single-digit prime" in one[1]["content"] and one[2]["content"].endswith("<answer>\n7\n</answer>\n")
    assert len(XML.prompt("2 + 2?", EXEMPLARS)) == 8 and len(EXEMPLARS) >= 3


def test_the_other_format_thinks():
    system, user = THINK.prompt("2 + 2?")
    assert "<think>" in system["content"] and user["content"] == "<problem>\n2 + 2?\n</problem>\n"
    assert THINK.answered("{answer}", "4") == "<think>\n{answer}\n</think>\n<answer>4</answer>\n"


def test_without_a_chat_template_the_same_prompt_is_one_text():
    plain = dataclasses.replace(THINK, chat=False)
    assert plain.prompt("2 + 2?", [("1 + 1?", "1 + 1 = 2", "2")]) == (
        "<problem>\n1 + 1?\n</problem>\n<think>\n1 + 1 = 2\n</think>\n<answer>2</answer>\n"
        "<problem>\n2 + 2?\n</problem>\n"
    )
    assert dataclasses.replace(XML, chat=False).prompt("2 + 2?") == SYSTEM_PROMPT + "2 + 2?\n"


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("chat", [True, False])
def test_gold_reasoning_and_gold_answers_are_never_in_a_prompt(name, chat):
    rows = [{"question": f"Sum {n}?", "answer": f"SECRET{n} steps\n#### {1234567 + n}"} for n in range(9)]
    task = Task(dataclasses.replace(FORMATS[name], chat=chat), EXEMPLARS[:2])
    made, _ = dataset.make_prompts(Dataset.from_list(rows), task, ())
    text = json.dumps(made["prompt"][:])
    assert "Sum" in text and "SECRET" not in text and "12345" not in text


def test_exemplars_earn_every_reward():
    for _, reasoning, answer in EXEMPLARS:
        text = XML.answered(reasoning, answer)
        five = list(REWARD_FUNCS.values())
        assert sum(reward([text], answer=[answer])[0] for reward in five) == pytest.approx(4.0)


def test_tokenized_prompts_end_where_the_assistant_begins(tokenizer):
    (ids,) = prompts.tokenized([XML.prompt("What is 2 + 2?")], tokenizer)
    text = tokenizer.decode(ids)
    assert text.startswith("<|im_start|>system\n\nRespond") and text.endswith("<|im_end|>\n<|im_start|>assistant\n")


def test_examples_go_between_a_conversations_system_message_and_the_rest():
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}]
    assert [message["role"] for message in XML.prompt(talk, EXEMPLARS[:1])] == ["system", "user", "assistant", "user"]
    plain = dataclasses.replace(XML, chat=False)
    assert plain.prompt(talk) == "Be brief.\n2 + 2?\n" and plain.prompt(talk[1:]) == f"{SYSTEM_PROMPT}2 + 2?\n"


# --- Settings


def test_a_recipe_can_write_out_a_format():
    fields = {"system": "Think.", "question": "Q: {question}", "completion": "{reasoning}\n<answer>{answer}</answer>"}
    chosen = choose(fields)
    assert [message["content"] for message in chosen.prompt("2 + 2?")] == ["Think.", "Q: 2 + 2?"]
    assert dataclasses.replace(chosen, chat=False).prompt("2 + 2?") == "Think.\nQ: 2 + 2?\n"
    assert chosen.answered("sum", "4") == "sum\n<answer>4</answer>"
    assert not choose({**fields, "chat": False, "opening": "Well: "}).prompt("2?").startswith("Think")


def test_worked_examples_are_tuples_or_mappings():
    shot = {"question": "1 + 1?", "reasoning": "1 + 1 = 2", "answer": 2}
    assert prompts.shots_of([shot, ("2?", "2.", "2")], 2) == [("1 + 1?", "1 + 1 = 2", "2"), ("2?", "2.", "2")]
    assert prompts.shots_of(EXEMPLARS, 1) == EXEMPLARS[:1]
    for exemplars, shots in (([], 2), (EXEMPLARS, 9)):
        with pytest.raises(
            UserError, match=f"^num_shots: {shots} is more than the exemplars; use 0 to {len(exemplars)}"
        ):
            prompts.shots_of(exemplars, shots)
    for wrong in ([{"question": "1 + 1?", "answer": "2"}], [("1?", "1")], [7], ["abc"], 7):
        with pytest.raises(UserError, match=r"^exemplars: .* is not a worked example; write texts such as"):
            prompts.shots_of(wrong, 0)


def test_a_system_prompt_replaces_that_of_the_format():
    chosen = choose("think", system_prompt="Think hard.")
    assert chosen == dataclasses.replace(THINK, system="Think hard.", opening="Think hard.\n")
    assert [message["role"] for message in choose(system_prompt="").prompt("2 + 2?")] == ["user"]


@pytest.mark.parametrize("name", ["sp.txt", "my prompt.md", "./sp.txt"])
def test_a_files_name_is_no_system_prompt(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert choose(system_prompt=name).system == name  # words, as long as there is no file
    Path(name).write_text("Be brief.")
    with pytest.raises(UserError, match=r'system_prompt: .* is a file; for its text, use --system_prompt "\$\(cat '):
        choose(system_prompt=name)


@pytest.mark.parametrize("pattern", ["xml", "boxed", "hash", "final", "text", "Result: {answer}"])
def test_another_pattern_asks_for_the_answer_in_its_form(pattern):
    other = {"completion": THINK_FORMAT, "pattern": "</think> <answer>{answer}</answer>"}
    chosen = choose(other, answer_pattern=pattern)
    assert extract_answer(chosen.answered("3 * 4 = 12", "12"), pattern) == "12" and chosen.pattern == pattern
    assert ("..." in chosen.system) is (pattern != "text")
    mine = choose(other, answer_pattern=pattern, system_prompt="Mine.")
    assert mine == dataclasses.replace(chosen, system="Mine.", opening="Mine.\n")
    assert choose("think", answer_pattern="xml") == THINK  # which has it


def test_a_plain_answer_is_the_whole_completion():
    chosen = choose({"system": "Reply with the date only.", "completion": "{answer}", "pattern": "text"})
    task = Task(chosen)
    assert task.perfect("Some thoughts.", "1 May") == "1 May" and task.answer(" 1 May\n") == "1 May"
    assert task.form("1 May") == (None, None) and task.verdict("1 May", {"answer": "1 May"}).strict
    assert choose(answer_pattern="text").answered("thoughts", "7") == "7"


def test_a_completion_without_answer_tags_needs_its_pattern():
    completion = "<think>{reasoning}</think>\n<result>\n{answer}\n</result>"
    chosen = choose({"completion": completion, "pattern": "<result> {answer}</result>"})
    assert extract_answer(chosen.answered("3 * 4 = 12", "-1/2"), chosen.pattern) == "-1/2"
    with pytest.raises(UserError, match="use another answer_pattern"):
        choose({"completion": completion})


REFUSED = [  # what an error names, and the settings
    ("prompt_format: 'xlm' is unknown; use xml or think", "xlm", {}),
    ("prompt_format: 'complation' .* did you mean completion", {"complation": "{answer}"}, {}),
    ("prompt_format: question", {"question": "Answer this."}, {}),
    ("prompt_format: completion", {"completion": "{answer} {reasoning}"}, {}),
    ("prompt_format: chat: 'no'", {"chat": "no"}, {}),
    ("prompt_format: the pattern xml reads '1 so 2'", {"completion": "{reasoning} so {answer}"}, {}),
    ("answer_pattern: 'latex': use xml", "xml", {"answer_pattern": "latex"}),
    (
        "answer_pattern: boxed does not .* of prompt_format ",
        {"completion": "So: {answer}", "pattern": "So: {answer}"},
        {"answer_pattern": "boxed"},
    ),
]


@pytest.mark.parametrize(("named", "prompt_format", "settings"), REFUSED)
def test_a_format_that_cannot_work_is_refused_by_its_setting(named, prompt_format, settings):
    with pytest.raises(UserError, match=f"^{named}"):
        choose(prompt_format, **settings)


# --- The words that somebody wrote stay, or a line says what replaces them

WORDS = "Reply with one label, in <answer> tags."
BOXED = "Reply with one label in \\boxed{}."
EDITED = dataclasses.replace(XML, system=WORDS, opening=WORDS)  # as an edit of SYSTEM_PROMPT leaves it
ASKS_FOR_BOXED = dataclasses.replace(XML, system=BOXED, opening=BOXED)
MINE = prompts.PromptFormat(
    "My words.", "Ticket: {question}", "{reasoning}\nLabel: {answer}", pattern="Label: {answer}"
)
OWN = {"system": "Other."}

# prompt_format, other settings; the prompt's words, and what is said
WINS = [
    (EDITED, {}, WORDS, None),
    (EDITED, {"answer_pattern": "boxed"}, WORDS, "prompt_format stays .* boxed .* never shows .box"),
    (ASKS_FOR_BOXED, {"answer_pattern": "boxed"}, BOXED,
     "prompt_format stays as it is written; answer_pattern boxed only says where the answer is$"),
    (EDITED, {"answer_pattern": "text"}, WORDS, "prompt_format stays"),
    (EDITED, {"answer_pattern": "hash"}, WORDS, "prompt_format stays .* never shows ####"),
    (EDITED, {"answer_pattern": "hash", "shots": EXEMPLARS[:1]}, WORDS, "only says where the answer is$"),
    (EDITED, {"answer_pattern": "xml"}, WORDS, None),
    (EDITED, {"system_prompt": "Set."}, "Set.", f"^system_prompt replaces that of prompt_format: {re.escape(WORDS)}$"),
    (dataclasses.replace(EDITED, chat=False), {"answer_pattern": "boxed"}, WORDS, "prompt_format stays"),
    (dataclasses.replace(XML, question="Q: {question}"), {"answer_pattern": "boxed"}, "Think step", "its own words"),
    (MINE, {"answer_pattern": "Label: {answer}"}, "My words.", None),
    (MINE, {"system_prompt": "Set."}, "Set.", "that of prompt_format: My words.$"),
    ("xml", {"answer_pattern": "boxed"}, "Think step by step", "answer_pattern boxed asks for answers in its own"),
    ("think", {"answer_pattern": "hash"}, "Think step by step", "hash asks for"),
    ("xml", {"system_prompt": "It.", "answer_pattern": "hash"}, "It.", "^system_prompt stays .* ####"),
    ("think", {"system_prompt": "It."}, "It.", None),
    (OWN, {"answer_pattern": "hash"}, "Other.", "prompt_format stays"),
    (OWN, {"system_prompt": "It."}, "It.", "^system_prompt replaces that of prompt_format: Other.$"),
    ({"chat": False}, {"answer_pattern": "boxed"}, "Think step", "in its own words"),
    ({"chat": False, "system": ""}, {"answer_pattern": "boxed"}, "", "prompt_format stays"),
]  # fmt: skip


@pytest.mark.parametrize(("prompt_format", "settings", "words", "said"), WINS)
def test_the_table_says_which_prompt_wins_and_what_is_said(prompt_format, settings, words, said):
    chosen, notes = prompts.resolve(prompt_format, **settings)
    assert chosen.system.startswith(words) and (words or not chosen.system)
    assert chosen.opening.strip() in (chosen.system.strip(), "")
    told = "\n".join(f"{note.finding} → {note.remedy}" if note.remedy else note.finding for note in notes)
    assert re.search(said, told, re.MULTILINE) if said else told == ""


def test_no_prompt_that_somebody_wrote_vanishes_unsaid():
    """All combinations of formats, system prompts and patterns."""
    refused = 0
    for style, system, pattern in itertools.product(
        ("xml", "think", EDITED, MINE, OWN), (None, "Set."), (None, "boxed", "text", "Label: {answer}")
    ):
        try:
            chosen, notes = prompts.resolve(style, system, pattern)
        except UserError as error:
            refused += 1
            assert str(error).startswith("answer_pattern: ") and "of prompt_format" in str(error)
            continue
        written = "" if isinstance(style, str) else style["system"] if style is OWN else style.system
        told = "\n".join(note.finding for note in notes)
        assert system in (None, chosen.system)
        assert written in ("", chosen.system) or f"replaces that of prompt_format: {written}" in told
    assert refused


@pytest.mark.parametrize("completion", [XML_COT_FORMAT, THINK_FORMAT])
def test_what_a_prompt_ends_in_is_no_part_of_the_completion(completion):
    first, *_ = completion.partition("\n")
    assert prompts.prefilled(f"<|assistant|>\n{first}\n", completion) == f"{first}\n"
    assert prompts.prefilled("<|assistant|>\n", completion) == "" == prompts.prefilled("2?\n<b>", completion)


@pytest.mark.parametrize("text, shaped", [("", False), (" \n", False), ("72", True)])
def test_a_format_of_the_answer_alone_needs_an_answer(text, shaped):
    assert has_soft_format(text, "{answer}") is has_strict_format(text, "{answer}") is shaped
