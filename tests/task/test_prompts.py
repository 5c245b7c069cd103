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
from rewards import REWARD_FUNCS, THINK_FORMAT, XML_COT_FORMAT, has_soft_format, has_strict_format
from train_grpo import EXEMPLARS, PROMPT_FORMATS, SYSTEM_PROMPT

XML, THINK = PROMPT_FORMATS["xml"], PROMPT_FORMATS["think"]


def choose(prompt_format="xml", **settings):
    """The format and the worked examples that these settings choose."""
    return prompts.choose_prompt(PROMPT_FORMATS, EXEMPLARS, prompt_format, **settings)[:2]


def test_the_default_prompt_is_the_gists():
    assert SYSTEM_PROMPT == (
        "\nRespond in the following format:\n<reasoning>\n...\n</reasoning>\n<answer>\n...\n</answer>\n"
    )
    assert XML_COT_FORMAT == "<reasoning>\n{reasoning}\n</reasoning>\n<answer>\n{answer}\n</answer>\n"
    system = {"role": "system", "content": SYSTEM_PROMPT}
    assert XML.prompt("{x} + 2?") == [system, {"role": "user", "content": "{x} + 2?"}]  # with braces as they are
    assert choose() == (XML, []) and prompts.SHIPPED == PROMPT_FORMATS  # that of `ask` and the X-ray is the script's
    assert prompts.EXEMPLARS == EXEMPLARS


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


@pytest.mark.parametrize("name", ["sp.txt", "my prompt.md", "./sp.txt"])
def test_a_files_name_is_no_system_prompt(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert choose(system_prompt=name)[0].system == name  # words, as long as there is no file
    Path(name).write_text("Be brief.")
    with pytest.raises(UserError, match=r'system_prompt: .* is a file; for its text, use --system_prompt "\$\(cat '):
        choose(system_prompt=name)


@pytest.mark.parametrize("pattern", ["xml", "boxed", "hash", "final", "text", "Result: {answer}"])
def test_another_pattern_asks_for_the_answer_in_its_form(pattern):
    other = {"completion": THINK_FORMAT, "pattern": "</think> <answer>{answer}</answer>"}
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
    assert task.form("1 May") == (None, None) and task.verdict("1 May", {"answer": "1 May"}).strict
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
    (
        "answer_pattern: boxed does not .* of prompt_format ",
        {"completion": "So: {answer}", "pattern": "So: {answer}"},
        {"answer_pattern": "boxed"},
    ),
    ("num_shots: 2 is more than the exemplars; use 0 to 0", {"exemplars": []}, {"num_shots": 2}),
    ("num_shots: 9 .*use 0 to 3", "xml", {"num_shots": 9}),
]


@pytest.mark.parametrize(("named", "prompt_format", "settings"), REFUSED)
def test_a_format_that_cannot_work_is_refused_by_its_setting(named, prompt_format, settings):
    with pytest.raises(UserError, match=f"^{named}"):
        choose(prompt_format, **settings)


# --- What is edited in the script is used, or what replaces it is said

WORDS = "Reply with one label, in <answer> tags."
BOXED = "Reply with one label in \\boxed{}."
EDITED = dataclasses.replace(XML, system=WORDS, opening=WORDS)  # as an edit of SYSTEM_PROMPT leaves it
MINE = prompts.PromptFormat(
    "My words.", "Ticket: {question}", "{reasoning}\nLabel: {answer}", pattern="Label: {answer}"
)
OWN = {"system": "Other."}
SHOTS = [("Cancel it!", "They want to leave.", "cancellation"), *EXEMPLARS]
SHOWN = {"exemplars": [{"question": "1?", "reasoning": "1.", "answer": "1"}]}


def at(place, **settings):
    """Settings that come from this place."""
    return {key: (value, place) for key, value in settings.items()}


# What is edited (formats, exemplars), the settings with where they come from; the prompt's words, and what is said
WINS = [
    # SYSTEM_PROMPT
    ({"xml": EDITED}, {}, WORDS, None),
    ({"xml": EDITED}, at("script", answer_pattern="boxed"), WORDS, "SYSTEM_PROMPT stays .* boxed .* never shows .box"),
    ({"xml": dataclasses.replace(EDITED, system=BOXED, opening=BOXED)}, at("flag", answer_pattern="boxed"), BOXED,
     "SYSTEM_PROMPT stays as it is written; answer_pattern boxed only says where the answer is$"),
    ({"xml": EDITED}, at("flag", answer_pattern="text"), WORDS, "SYSTEM_PROMPT stays"),
    ({"xml": EDITED}, at("recipe", answer_pattern="hash"), WORDS, "SYSTEM_PROMPT stays .* never shows ####"),
    ({"xml": EDITED}, at("flag", answer_pattern="xml"), WORDS, None),
    ({"xml": EDITED}, at("flag", system_prompt="Flag."), "Flag.", r"system_prompt \(flag\) replaces SYSTEM_PROMPT"),
    ({"xml": EDITED}, at("recipe", system_prompt="It."), "It.", r"system_prompt \(recipe\) replaces SYSTEM_PROMPT"),
    ({"xml": EDITED}, at("script", system_prompt="It."), None, "^system_prompt: SYSTEM_PROMPT is another"),
    ({"xml": EDITED}, at("flag", prompt_format="think"), None, "^prompt_format: think .flag. .* SYSTEM_PROMPT"),
    ({"xml": EDITED}, at("script", prompt_format="think"), None, "^prompt_format: think .script. .* SYSTEM_PROMPT"),
    ({"xml": EDITED}, at("recipe", prompt_format="think"), THINK.system, "think .recipe. replaces SYSTEM_PROMPT"),
    ({"xml": EDITED}, at("recipe", prompt_format=OWN), "Other.", "prompt_format .recipe. replaces SYSTEM_PROMPT"),
    ({"xml": EDITED}, at("flag", prompt_format=OWN), "Other.", "prompt_format .flag. replaces SYSTEM_PROMPT"),
    ({"xml": EDITED}, at("flag", prompt_format={"chat": False}), None, "a mapping without system .* SYSTEM_PROMPT"),
    # PROMPT_FORMATS
    ({"mine": MINE}, at("script", prompt_format="mine"), "My words.", None),
    ({"mine": MINE}, {}, XML.system, r"prompt_format xml \(script\) replaces PROMPT_FORMATS\['mine'\]"),
    ({"xml": EDITED, "mine": MINE}, at("flag", prompt_format="mine"), "My words.", "mine .flag. replaces SYSTEM_PR"),
    ({"xml": EDITED, "mine": MINE}, {}, WORDS, r"replaces PROMPT_FORMATS\['mine'\]"),
    ({"xml": EDITED, "mine": dataclasses.replace(MINE, system=WORDS)}, at("flag", prompt_format="mine"), WORDS, None),
    ({"mine": MINE}, at("script", prompt_format="mine") | at("flag", answer_pattern="hash"), None,
     r"^answer_pattern: hash .* PROMPT_FORMATS\['mine'\]"),
    ({"mine": MINE}, at("script", prompt_format="mine") | at("flag", answer_pattern="Label: {answer}"),
     "My words.", None),
    ({"mine": MINE}, at("script", prompt_format="mine") | at("flag", system_prompt="Flag."), "Flag.",
     r"system_prompt \(flag\) replaces PROMPT_FORMATS\['mine'\]"),
    ({"mine": MINE}, at("script", prompt_format="mine") | at("script", system_prompt="It."), None,
     r"^system_prompt: PROMPT_FORMATS\['mine'\] is another"),
    ({"think": dataclasses.replace(THINK, system="Hm.")}, {}, XML.system, r"replaces PROMPT_FORMATS\['think'\]"),
    # settings alone
    ({}, at("flag", answer_pattern="boxed"), "Think step by step", "answer_pattern boxed asks for answers in its own"),
    ({}, at("flag", prompt_format="think") | at("flag", answer_pattern="hash"), "Think step by step", "hash asks for"),
    ({}, at("flag", system_prompt="It.") | at("flag", answer_pattern="hash"), "It.", "system_prompt stays .* ####"),
    ({}, at("flag", system_prompt="It.") | at("flag", prompt_format="think"), "It.", None),
    ({}, at("recipe", prompt_format=OWN) | at("flag", answer_pattern="hash"), "Other.", "prompt_format stays"),
    ({}, at("recipe", prompt_format=OWN) | at("recipe", system_prompt="It."), None, "^system_prompt: prompt_format"),
    ({}, at("recipe", prompt_format=OWN) | at("flag", system_prompt="It."), "It.", ".flag. replaces prompt_format"),
    # EXEMPLARS
    ({"shots": SHOTS}, at("flag", num_shots=1), XML.system, None),
    ({"shots": SHOTS}, {}, XML.system, "EXEMPLARS is edited, and num_shots 0 .script. .* set num_shots"),
    ({"shots": SHOTS}, at("recipe", num_shots=0), XML.system, "num_shots 0 .recipe."),
    ({"shots": SHOTS}, at("flag", num_shots=1, prompt_format=OWN | {"exemplars": []}), None, "^num_shots"),
    ({"shots": SHOTS}, at("flag", num_shots=1) | at("recipe", prompt_format=OWN | SHOWN), "Other.",
     "those of prompt_format .recipe. replace EXEMPLARS"),
    ({"shots": SHOTS}, at("flag", num_shots=1) | at("script", prompt_format=OWN | SHOWN), None,
     "^prompt_format: .* EXEMPLARS is edited"),
]  # fmt: skip


def outcome(edits, settings):
    """(system prompt, or None where it is refused; all that is said)."""
    formats = PROMPT_FORMATS | {name: edit for name, edit in edits.items() if name != "shots"}
    given = {"prompt_format": "xml"} | {key: value for key, (value, _) in settings.items()}
    origin = {key: place for key, (_, place) in settings.items()}
    try:
        chosen = prompts.choose_prompt(formats, edits.get("shots", EXEMPLARS), **given, origin=origin)
    except UserError as error:
        return None, str(error)
    assert chosen.prompt.opening.strip() in (chosen.prompt.system.strip(), "")
    said = "\n".join(f"{note.finding} → {note.remedy}" if note.remedy else note.finding for note in chosen.notes)
    return chosen.prompt.system, said


@pytest.mark.parametrize(("edits", "settings", "words", "said"), WINS)
def test_the_table_says_which_prompt_wins_and_what_is_said(edits, settings, words, said):
    found, told = outcome(edits, settings)
    assert (found is None and words is None) or found.startswith(words), (found, told)
    assert re.search(said, told) if said else told == ""


def test_no_prompt_that_somebody_wrote_vanishes_unsaid():
    """All combinations of edits and settings, from every place."""
    places = ("script", "recipe", "flag")
    formats = ["xml", "think", "mine", OWN]
    refused = 0
    for edited, added in itertools.product((False, True), repeat=2):
        edits = ({"xml": EDITED} if edited else {}) | ({"mine": MINE} if added else {})
        for style, style_place, system, pattern in itertools.product(
            formats, places, (None, *places), (None, "boxed", "text", "Label: {answer}")
        ):
            if style == "mine" and not added:
                continue
            settings = {"prompt_format": (style, style_place), "answer_pattern": (pattern, "flag")}
            settings |= {"system_prompt": ("Set.", system)} if system else {}
            words, told = outcome(edits, settings)
            written = {"SYSTEM_PROMPT": WORDS} if edited else {}
            written |= {"PROMPT_FORMATS['mine']": "My words."} if added else {}
            written |= {"prompt_format": "Other."} if style is OWN else {}
            written |= {"system_prompt": "Set."} if system else {}
            if words is None:
                refused += 1
                assert sum(name in told for name in [*written, "answer_pattern", "prompt_format"]) >= 2, told
            for name, text in written.items() if words is not None else ():
                assert text == words or re.search(f"replaces .*{re.escape(name)}", told), (settings, name, words, told)
    assert refused


@pytest.mark.parametrize("completion", [XML_COT_FORMAT, THINK_FORMAT])
def test_what_a_prompt_ends_in_is_no_part_of_the_completion(completion):
    first, *_ = completion.partition("\n")
    assert prompts.prefilled(f"<|assistant|>\n{first}\n", completion) == f"{first}\n"
    assert prompts.prefilled("<|assistant|>\n", completion) == "" == prompts.prefilled("2?\n<b>", completion)


@pytest.mark.parametrize("text, shaped", [("", False), (" \n", False), ("72", True)])
def test_a_format_of_the_answer_alone_needs_an_answer(text, shaped):
    assert has_soft_format(text, "{answer}") is has_strict_format(text, "{answer}") is shaped
