"""Prompts are the recipe's, as chat messages and as plain text, hold no gold answer, and a recipe may change them."""

import dataclasses
import json
from types import SimpleNamespace

import pytest
from datasets import Dataset

import train_grpo
from grpo.config.configure import configure
from grpo.core.errors import UserError
from grpo.data import dataset, prompts
from rewards import GIST_REWARDS, REWARD_FUNCS, extract_answer
from train_grpo import EXEMPLARS, PROMPT_FORMATS, SYSTEM_PROMPT, XML_COT_FORMAT

XML, THINK = PROMPT_FORMATS["xml"], PROMPT_FORMATS["think"]


def script(**settings):
    unset = dict.fromkeys(("system_prompt", "question_template", "completion_template", "use_chat_template"))
    return SimpleNamespace(**{"prompt_format": "xml", "answer_pattern": "xml", **unset, **settings})


def test_the_default_prompt_is_the_gists():
    assert SYSTEM_PROMPT == (
        "\nRespond in the following format:\n<reasoning>\n...\n</reasoning>\n<answer>\n...\n</answer>\n"
    )
    assert XML_COT_FORMAT == "<reasoning>\n{reasoning}\n</reasoning>\n<answer>\n{answer}\n</answer>\n"
    system = {"role": "system", "content": SYSTEM_PROMPT}
    assert XML.prompt("{x} + 2?") == [system, {"role": "user", "content": "{x} + 2?"}]  # with braces as they are


def test_shots_are_turns_and_the_first_asks_for_the_prime():
    one = XML.prompt("2 + 2?", EXEMPLARS[:1])
    assert [message["role"] for message in one] == ["system", "user", "assistant", "user"]
    assert "largest single-digit prime" in one[1]["content"] and one[2]["content"].endswith("<answer>\n7\n</answer>\n")
    assert len(XML.prompt("2 + 2?", EXEMPLARS)) == 8 and len(EXEMPLARS) >= 3


def test_think_asks_in_problem_tags_and_answers_in_one_line():
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
    ask = dataclasses.replace(PROMPT_FORMATS[name], chat=chat).prompt
    made, _ = dataset.make_prompts(Dataset.from_list(rows), lambda question: ask(question, EXEMPLARS[:2]))
    text = json.dumps(made["prompt"][:])
    assert "Sum" in text and "SECRET" not in text and "12345" not in text


def test_a_recipe_can_change_each_field_of_a_format():
    completion = "{reasoning}\n<answer>{answer}</answer>"
    fields = {"system_prompt": "Think.", "question_template": "Q: {question}", "completion_template": completion}
    chosen = prompts.choose(PROMPT_FORMATS, script(**fields))
    assert [message["content"] for message in chosen.prompt("2 + 2?")] == ["Think.", "Q: 2 + 2?"]
    assert dataclasses.replace(chosen, chat=False).prompt("2 + 2?") == "Think.\nQ: 2 + 2?\n"
    assert chosen.answered("sum", "4") == "sum\n<answer>4</answer>"
    assert prompts.choose(PROMPT_FORMATS, script()) == XML
    assert not prompts.choose(PROMPT_FORMATS, script(use_chat_template=False)).chat
    without = prompts.choose(PROMPT_FORMATS, script(system_prompt=""))
    assert [message["role"] for message in without.prompt("2 + 2?")] == ["user"]


@pytest.mark.parametrize(
    "settings",
    [
        {"question_template": "Answer this."},
        {"completion_template": "<answer>{answer}</answer>"},
        {"completion_template": "{reasoning} so {answer}"},  # the answer pattern finds no answer in it
    ],
)
def test_a_format_that_cannot_work_is_refused_by_its_setting(settings):
    with pytest.raises(UserError, match=next(iter(settings))):
        prompts.choose(PROMPT_FORMATS, script(**settings))


def test_exemplars_earn_every_reward():
    for _, reasoning, answer in EXEMPLARS:
        text = XML_COT_FORMAT.format(reasoning=reasoning, answer=answer)
        assert sum(REWARD_FUNCS[name]([text], answer=[answer])[0] for name in GIST_REWARDS) == pytest.approx(4.0)


def test_tokenized_prompts_end_where_the_assistant_begins(tokenizer):
    (ids,) = prompts.tokenize([XML.prompt("What is 2 + 2?")], tokenizer)
    text = tokenizer.decode(ids)
    assert text.startswith("<|im_start|>system\n\nRespond") and text.endswith("<|im_end|>\n<|im_start|>assistant\n")


def test_exemplars_of_a_recipe_replace_ours():
    listed = [{"question": "1 + 1?", "reasoning": "1 + 1 = 2", "answer": 2}]
    argv = ["--use_cpu", "true", "--num_shots", "1", "--exemplars", json.dumps(listed[0])]
    given = configure(train_grpo.HYPERPARAMETERS, argv).script
    assert prompts.exemplars(given, EXEMPLARS) == [("1 + 1?", "1 + 1 = 2", "2")]
    assert prompts.exemplars(SimpleNamespace(exemplars=None), EXEMPLARS) is EXEMPLARS
    for broken in ([{"question": "1 + 1?"}], ["1 + 1?"]):
        with pytest.raises(UserError, match="exemplars: "):
            prompts.exemplars(SimpleNamespace(exemplars=broken), EXEMPLARS)


@pytest.mark.parametrize(
    ("template", "pattern"),
    [
        ("{reasoning} \\boxed{{answer}}", "boxed"),
        ("{reasoning}\nFinal: {answer}\n", "final"),
        ("<think>{reasoning}</think>\n<result>\n{answer}\n</result>", "<result> {answer}</result>"),
    ],
)
def test_a_template_without_answer_tags_needs_its_pattern(template, pattern):
    chosen = prompts.choose(PROMPT_FORMATS, script(completion_template=template, answer_pattern=pattern))
    assert extract_answer(chosen.answered("3 * 4 = 12", "-1/2"), chosen.pattern) == "-1/2"
    with pytest.raises(UserError, match="answer_pattern"):
        prompts.choose(PROMPT_FORMATS, script(completion_template=template))


@pytest.mark.parametrize("pattern", ["boxed", "hash", "final", "Result: {answer}"])
def test_another_pattern_asks_for_the_answer_in_its_form(pattern):
    chosen = prompts.choose(PROMPT_FORMATS, script(answer_pattern=pattern))
    assert extract_answer(chosen.answered("3 * 4 = 12", "12"), pattern) == "12" and "..." in chosen.system


def test_examples_go_between_a_conversations_system_message_and_the_rest():
    talk = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}]
    assert [message["role"] for message in XML.prompt(talk, EXEMPLARS[:1])] == ["system", "user", "assistant", "user"]
    plain = dataclasses.replace(XML, chat=False)
    assert plain.prompt(talk) == "Be brief.\n2 + 2?\n" and plain.prompt(talk[1:]) == f"{SYSTEM_PROMPT}2 + 2?\n"
