"""Prompts are the recipe's, as chat messages and as plain text, hold no gold answer, and a recipe may change them."""

import dataclasses
import json

import pytest
from datasets import Dataset

from grpo.core.errors import UserError
from grpo.data import dataset
from grpo.task import Task, extract_answer, prompts
from rewards import REWARD_FUNCS, THINK_FORMAT, XML_COT_FORMAT, has_soft_format, has_strict_format
from train_grpo import EXEMPLARS, PROMPT_FORMATS, SYSTEM_PROMPT

XML, THINK = PROMPT_FORMATS["xml"], PROMPT_FORMATS["think"]


def choose(prompt_format="xml", **settings):
    """The format and the worked examples that these settings choose."""
    return prompts.choose(PROMPT_FORMATS, EXEMPLARS, prompt_format, **settings)


def test_the_default_prompt_is_the_gists():
    assert SYSTEM_PROMPT == (
        "\nRespond in the following format:\n<reasoning>\n...\n</reasoning>\n<answer>\n...\n</answer>\n"
    )
    assert XML_COT_FORMAT == "<reasoning>\n{reasoning}\n</reasoning>\n<answer>\n{answer}\n</answer>\n"
    system = {"role": "system", "content": SYSTEM_PROMPT}
    assert XML.prompt("{x} + 2?") == [system, {"role": "user", "content": "{x} + 2?"}]  # with braces as they are
    assert choose() == (XML, []) and prompts.XML == XML  # that of `ask` and the X-ray is the script's


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


@pytest.mark.parametrize("name", PROMPT_FORMATS)
@pytest.mark.parametrize("chat", [True, False])
def test_gold_reasoning_and_gold_answers_are_never_in_a_prompt(name, chat):
    rows = [{"question": f"Sum {n}?", "answer": f"SECRET{n} steps\n#### {1234567 + n}"} for n in range(9)]
    task = Task(dataclasses.replace(PROMPT_FORMATS[name], chat=chat), EXEMPLARS[:2])
    made, _ = dataset.make_prompts(Dataset.from_list(rows), task, ())
    text = json.dumps(made["prompt"][:])
    assert "Sum" in text and "SECRET" not in text and "12345" not in text


def test_exemplars_earn_every_reward():
    for _, reasoning, answer in EXEMPLARS:
        text = XML.answered(reasoning, answer)
        five = list(REWARD_FUNCS.values())[:5]
        assert sum(reward([text], answer=[answer])[0] for reward in five) == pytest.approx(4.0)


def test_tokenized_prompts_end_where_the_assistant_begins(tokenizer):
    (ids,) = prompts.tokenize([XML.prompt("What is 2 + 2?")], tokenizer)
    text = tokenizer.decode(ids)
    assert text.startswith("<|im_start|>system\n\nRespond") and text.endswith("<|im_end|>\n<|im_start|>assistant\n")


def test_examples_go_between_a_conversations_system_message_and_the_rest():
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}]
    assert [message["role"] for message in XML.prompt(talk, EXEMPLARS[:1])] == ["system", "user", "assistant", "user"]
    plain = dataclasses.replace(XML, chat=False)
    assert plain.prompt(talk) == "Be brief.\n2 + 2?\n" and plain.prompt(talk[1:]) == f"{SYSTEM_PROMPT}2 + 2?\n"


# --- Settings


def test_a_recipe_can_write_out_a_format_with_its_exemplars():
    fields = {"system": "Think.", "question": "Q: {question}", "completion": "{reasoning}\n<answer>{answer}</answer>"}
    shot = {"question": "1 + 1?", "reasoning": "1 + 1 = 2", "answer": 2}
    chosen, shots = choose({**fields, "exemplars": [shot]}, num_shots=1)
    assert [message["content"] for message in chosen.prompt("2 + 2?")] == ["Think.", "Q: 2 + 2?"]
    assert dataclasses.replace(chosen, chat=False).prompt("2 + 2?") == "Think.\nQ: 2 + 2?\n"
    assert chosen.answered("sum", "4") == "sum\n<answer>4</answer>" and shots == [("1 + 1?", "1 + 1 = 2", "2")]
    assert choose(fields, num_shots=1)[1] == EXEMPLARS[:1]  # the script's
    assert not choose({**fields, "chat": False, "opening": "Well: "})[0].prompt("2?").startswith("Think")


def test_a_system_prompt_replaces_that_of_the_format():
    chosen, _ = choose("think", system_prompt="Think hard.")
    assert chosen == dataclasses.replace(THINK, system="Think hard.", opening="Think hard.\n")
    assert [message["role"] for message in choose(system_prompt="")[0].prompt("2 + 2?")] == ["user"]


@pytest.mark.parametrize("pattern", ["xml", "boxed", "hash", "final", "text", "Result: {answer}"])
def test_another_pattern_asks_for_the_answer_in_its_form(pattern):
    other = {"completion": "{reasoning}\nSo: {answer}", "pattern": "So: {answer}"}
    chosen, _ = choose(other, answer_pattern=pattern)
    assert extract_answer(chosen.answered("3 * 4 = 12", "12"), pattern) == "12" and chosen.pattern == pattern
    assert ("..." in chosen.system) is (pattern != "text")
    mine, _ = choose(other, answer_pattern=pattern, system_prompt="Mine.")
    assert mine == dataclasses.replace(chosen, system="Mine.", opening="Mine.\n")
    assert choose("think", answer_pattern="xml")[0] == THINK  # which has it


def test_a_plain_answer_is_the_whole_completion():
    chosen, _ = choose({"system": "Reply with the date only.", "completion": "{answer}", "pattern": "text"})
    task = Task(chosen)
    assert task.perfect("Some thoughts.", "1 May") == "1 May" and task.answer(" 1 May\n") == "1 May"
    assert task.grade("1 May", {"answer": "1 May"}, True)[1:] == (True, True, True, True)
    assert choose(answer_pattern="text")[0].answered("thoughts", "7") == "7"


def test_a_completion_without_answer_tags_needs_its_pattern():
    completion = "<think>{reasoning}</think>\n<result>\n{answer}\n</result>"
    chosen, _ = choose({"completion": completion, "pattern": "<result> {answer}</result>"})
    assert extract_answer(chosen.answered("3 * 4 = 12", "-1/2"), chosen.pattern) == "-1/2"
    with pytest.raises(UserError, match="use another answer_pattern"):
        choose({"completion": completion})


SHOT = {"question": "1 + 1?", "answer": "2"}  # without its reasoning
REFUSED = [  # what an error names, and the settings
    ("prompt_format: 'xlm' is unknown; use xml or think", "xlm", {}),
    ("prompt_format: 'complation' .* did you mean completion", {"complation": "{answer}"}, {}),
    ("prompt_format: question", {"question": "Answer this."}, {}),
    ("prompt_format: completion", {"completion": "{answer} {reasoning}"}, {}),
    ("prompt_format: chat: 'no'", {"chat": "no"}, {}),
    ("prompt_format: the pattern xml reads '1 so 2'", {"completion": "{reasoning} so {answer}"}, {}),
    ("prompt_format: exemplars: .*write a list of texts", {"exemplars": [SHOT]}, {}),
    ("answer_pattern: 'latex': use xml", "xml", {"answer_pattern": "latex"}),
    ("num_shots: 2 is more than the exemplars; use 0 to 0", {"exemplars": []}, {"num_shots": 2}),
    ("num_shots: 9 .*use 0 to 3", "xml", {"num_shots": 9}),
]


@pytest.mark.parametrize(("named", "prompt_format", "settings"), REFUSED)
def test_a_format_that_cannot_work_is_refused_by_its_setting(named, prompt_format, settings):
    with pytest.raises(UserError, match=f"^{named}"):
        choose(prompt_format, **settings)


@pytest.mark.parametrize("completion", [XML_COT_FORMAT, THINK_FORMAT])
def test_what_a_prompt_ends_in_is_no_part_of_the_completion(completion):
    first, *_ = completion.partition("\n")
    assert prompts.prefilled(f"<|assistant|>\n{first}\n", completion) == f"{first}\n"
    assert prompts.prefilled("<|assistant|>\n", completion) == "" == prompts.prefilled("2?\n<b>", completion)


@pytest.mark.parametrize("text, shaped", [("", False), (" \n", False), ("72", True)])
def test_a_format_of_the_answer_alone_needs_an_answer(text, shaped):
    assert has_soft_format(text, "{answer}") is has_strict_format(text, "{answer}") is shaped
