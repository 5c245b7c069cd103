"""The model reads what a prompt says, and rewards see what a completion says, whatever the template."""

import dataclasses
import itertools
import json
import shutil
from pathlib import Path

import pytest
import trl
from helpers_runs import DEMO, LEARNS, TINY, alarms, flags
from helpers_tables import each
from tokenizers import AddedToken
from transformers import AutoTokenizer

import train_grpo
from grpo.__main__ import main as tool
from grpo.core.errors import UserError
from grpo.policy import templates
from grpo.task import Task, prompts
from grpo.task.prompts import THINK, XML
from train_grpo import EXEMPLARS

SHIPPED = {path.stem: path for path in (Path(trl.__file__).parent / "chat_templates").glob("*.jinja")}
OF_IMAGES = {"idefics3", "llava_next", "smolvlm"}  # their messages are no texts: refused in one line


@pytest.fixture
def tokenizer():
    loaded = AutoTokenizer.from_pretrained(DEMO / "model")
    loaded.bos_token = "<|endoftext|>"  # which some templates write
    return loaded


@each(itertools.product(sorted(SHIPPED), [THINK, XML]))
def test_the_system_prompt_and_worked_examples_survive_every_template_that_trl_ships(name, prompt_format, tokenizer):
    tokenizer.chat_template = SHIPPED[name].read_text(encoding="utf-8")
    if name.removesuffix("_training") in OF_IMAGES:
        with pytest.raises(UserError, match=r"refuses a question|leaves the question out"):
            templates.fit_to_template(Task(prompt_format, EXEMPLARS[:2]), tokenizer, {})
        return
    task, _ = templates.fit_to_template(Task(prompt_format, EXEMPLARS[:2]), tokenizer, {})
    rendered = " ".join(prompts.rendered(task.ask("What is 2 + 2?"), tokenizer).split())
    answered = [prompt_format.answered(reasoning, answer) for _, reasoning, answer in EXEMPLARS[:2]]
    for text in (prompt_format.system, *answered, "What is 2 + 2?"):
        assert " ".join(text.split()) in rendered


def test_arguments_that_a_template_does_not_read_are_named(tokenizer):
    tokenizer.chat_template = SHIPPED["qwen3"].read_text(encoding="utf-8")
    given = {"enable_thinking": False, "enable_thinkin": True}
    tokenizer.name_or_path = "m"
    notes = templates.fit_to_template(Task(XML, EXEMPLARS[:1]), tokenizer, given)[0].notes
    found = [note.finding for note in notes if note.name == "chat_template_kwargs"]
    assert found == ["the chat template of m does not read enable_thinkin"]


@pytest.mark.parametrize(
    ("name", "notes", "roles"),
    [
        ("qwen3", ["worked examples"], ["system", "user"]),
        ("gemma", ["system prompt"], ["user", "assistant", "user"]),
        ("llama3", [], ["system", "user", "assistant", "user"]),
    ],
)
def test_a_change_of_the_prompt_is_said_and_kept_in_the_record(name, notes, roles, tokenizer):
    tokenizer.chat_template = SHIPPED[name].read_text(encoding="utf-8")
    task, _ = templates.fit_to_template(Task(THINK, EXEMPLARS[:1]), tokenizer, {})
    assert [check.name for check in task.notes] == notes
    assert [message["role"] for message in task.ask("2 + 2?")] == roles
    again = prompts.PromptFormat(**json.loads(json.dumps(task.record()))["prompt"])  # as `ask` reads it
    assert again.prompt("2 + 2?", EXEMPLARS[:1]) == task.ask("2 + 2?")


def test_a_conversation_keeps_its_turns_where_the_system_prompt_goes_into_the_first(tokenizer):
    tokenizer.chat_template = SHIPPED["gemma"].read_text(encoding="utf-8")
    task, _ = templates.fit_to_template(Task(XML), tokenizer, {})
    turns = [("user", "Hi"), ("assistant", "Hello"), ("user", "2 + 2?")]
    asked = task.ask([{"role": role, "content": text} for role, text in turns])
    assert [message["role"] for message in asked] == ["user", "assistant", "user"]
    assert asked[0]["content"] == f"{XML.system.strip()}\n\nHi" and asked[2]["content"] == "2 + 2?"


@pytest.mark.parametrize("name", ["phi3", "qwen3", "gemma"])  # which know no developer, or no system message either
def test_a_rows_own_system_message_is_read_by_the_model(name, tokenizer):
    tokenizer.chat_template = SHIPPED[name].read_text(encoding="utf-8")
    for prompt_format in (XML, dataclasses.replace(XML, system="")):
        task, _ = templates.fit_to_template(Task(prompt_format), tokenizer, {})
        for role in ("system", "developer"):
            asked = task.ask([{"role": role, "content": "Be terse."}, {"role": "user", "content": "2 + 2?"}])
            rendered = prompts.rendered(asked, tokenizer)
            assert "Be terse." in rendered and "Respond in" not in rendered


def test_a_format_that_ends_in_the_end_token_is_said(tokenizer):
    tokenizer.eos_token = AddedToken("</answer>", special=True)
    (note,) = templates.fit_to_template(Task(XML), tokenizer, {})[0].notes
    assert note.status == "warning" and "</answer> is the tokenizer's end token" in note.finding


TAGS = ["<reasoning>", "</reasoning>", "<answer>", "</answer>"]


def test_tags_that_are_special_tokens_are_kept_in_decoding(tokenizer, tmp_path):
    tokenizer.add_special_tokens({"additional_special_tokens": [*TAGS, "<other>"]})
    tokenizer.save_pretrained(tmp_path)
    for _ in range(2):  # and of a tokenizer that a run has saved
        saved = AutoTokenizer.from_pretrained(tmp_path)
        task, saved = templates.fit_to_template(Task(XML), saved, {})
        notes = task.notes
        text = task.perfect("2 + 2 = 4", "4")
        ids = saved.encode(f"{text}<other>{saved.eos_token}", add_special_tokens=False)
        assert ids == tokenizer.encode(f"{text}<other>{saved.eos_token}", add_special_tokens=False)
        assert saved.decode(ids, skip_special_tokens=True) == text == saved.batch_decode([ids], True)[0]
        assert notes[0].name == "tags" and "<answer>" in notes[0].finding
        saved.save_pretrained(tmp_path)


def test_end_tokens_of_a_format_stay_special(tokenizer):
    tokenizer.eos_token = AddedToken("</answer>", special=True)
    assert templates.keeping_tags(tokenizer, "<answer>4</answer>") == (tokenizer, [])


@pytest.mark.slow
def test_a_run_is_scored_by_the_tags_that_it_sampled(tmp_path, capfd):
    """The words in the demo's tags are single tokens: as special ones they would vanish wherever text is decoded."""
    shutil.copytree(DEMO / "model", "special")
    special = AutoTokenizer.from_pretrained("special")
    special.add_special_tokens({"additional_special_tokens": ["reasoning", "answer"]})
    special.save_pretrained("special")
    assert len(special) == 512 and special.decode(special.encode("<answer>"), skip_special_tokens=True) == "<>"
    settings = {**TINY, **LEARNS, "eval_samples": "24", "max_completion_length": "64", "logging_steps": "1"}
    for model in (DEMO / "model", "special"):
        settings |= {"model_name_or_path": str(model), "output_dir": f"run_{Path(model).name}"}
        assert train_grpo.main(flags(**settings)) == 0
    plain, kept = (json.loads(Path(f"run_{name}/eval_before.json").read_text()) for name in ("model", "special"))
    assert kept["format_strict"] == plain["format_strict"] > 0.3
    logged = [json.loads(line) for line in Path("run_special/metrics.jsonl").read_text().splitlines()]
    assert max(line.get("rewards/strict_format_reward_func/mean", 0) for line in logged) > 0
    capfd.readouterr()
    assert tool(["ask", "run_special", "Lea has 6 boxes with 8 pens in each. How many pens does Lea have?"]) == 0
    assert "</reasoning>" in capfd.readouterr().out
    assert tool(["xray", "run_special"]) == 0


ENDS = {  # the template's end of an answer, the end token, and what is said of it
    "the demo's": ("<|im_end|>\n", "<|im_end|>", None),
    "a base model's": ("<|im_end|>\n", "<|endoftext|>", "ends an answer with '<|im_end|>', not with '<|endoftext|>'"),
    "a text": ("\n### End", "<|endoftext|>", "ends an answer with '### End', not with"),
    "nothing": ("", "<|endoftext|>", "ends an answer with nothing, not with"),
}


@pytest.mark.parametrize("case", ENDS)
def test_an_end_of_answers_that_ends_no_completion_is_described(case, tokenizer):
    end, eos, said = ENDS[case]
    tokenizer.chat_template = "{% for m in messages %}<|im_start|>{{ m.content }}" + end + "{% endfor %}"
    found = templates.unended(tokenizer, [tokenizer.convert_tokens_to_ids(eos)], {})
    assert said in found if said else found == ""
    tokenizer.chat_template = "{{ raise_exception('no answers') }}"
    assert templates.unended(tokenizer, [0], {}) == ""


def test_a_model_whose_turns_never_end_is_warned_of(tiny_model, tiny_run, capfd):
    """By preflight and by the alarm, whose remedy is no higher limit."""
    model = Path(shutil.copytree(tiny_model, "model"))
    for name in ("tokenizer_config.json", "config.json", "generation_config.json"):
        values = json.loads((model / name).read_text())
        values |= {"eos_token": "<|endoftext|>"} if name.startswith("tokenizer") else {"eos_token_id": 0}
        (model / name).write_text(json.dumps(values))
    argv = tiny_run(model_name_or_path=model, max_steps="6", eval_samples="0", save_strategy="no")
    assert train_grpo.main(argv) == 0
    shown = " ".join(capfd.readouterr().out.split())
    assert "warning end token the chat template ends an answer with '<|im_end|>', not with '<|endoftext|>'" in shown
    alarm = alarms("run")["all_truncated"]
    assert alarm["remedy"] == templates.ADD_END and "with '<|im_end|>'" in alarm["message"]
    values["eos_token_id"] = [0, 2]
    (model / name).write_text(json.dumps(values))
    assert train_grpo.main([*argv, "--dry_run", "true", "--output_dir", "other"]) == 0
    assert "the chat template ends" not in capfd.readouterr().out
