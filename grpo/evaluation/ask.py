"""`python -m grpo ask [RUN] "QUESTION"`: a saved model answers, with the prompt that it was trained on.

A model without a record, such as one of the Hub, is asked with the recipe's prompt.
"""

import dataclasses
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from grpo.core.errors import ArgumentParser, UserError, one_line
from grpo.core.text import printable
from grpo.policy import answering
from grpo.policy.loading import loads
from grpo.policy.merge import load_base
from grpo.runs import checkpoints, directory
from grpo.runs.files import read_prompt, read_record
from grpo.task import prompts
from grpo.task.answers import extract_answer
from grpo.task.prompts import XML, Prompt, PromptFormat

# Of a model without a record
SETTINGS: dict[str, Any] = dict(dtype="bfloat16", bf16=True, max_completion_length=512, chat_template_kwargs=None)


def answer(model_dir: Path, question: str) -> str:
    """The greedy completion of a question, and the answer read out of it, below a line with the model's name.

    Args:
        model_dir: a run, a checkpoint, a merged model or any other directory with a model, or a copy of one.
    """
    record = read_prompt(model_dir)
    if not any((model_dir / name).is_file() for name in ("config.json", "adapter_config.json")):
        raise UserError(f"ask: {_without_model(model_dir)}")
    logging.disable_progress_bar()  # of weights that are loaded
    gpu = torch.cuda.is_available()
    settings = record["settings"] if record else SETTINGS
    dtype = settings["dtype"] if gpu else "float32"
    with loads(str(model_dir), "ask"):
        tokenizer: Any = AutoTokenizer.from_pretrained(model_dir, trust_remote_code=False)
    prompt_format, prompt = (
        _as_recorded(model_dir, record, question) if record else _as_the_recipe(model_dir, tokenizer, question)
    )
    if (model_dir / "adapter_config.json").is_file():
        base = load_base(model_dir, "ask", dtype)
        with loads(str(model_dir), "ask"):
            model: Any = PeftModel.from_pretrained(base, model_dir)
    else:
        with loads(str(model_dir), "ask"):
            model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=dtype, trust_remote_code=False)
    model = model.to("cuda" if gpu else "cpu").eval()
    limit = settings["max_completion_length"]
    asked = prompts.tokenize([prompt], tokenizer, settings["chat_template_kwargs"])
    with torch.autocast(model.device.type, torch.bfloat16, enabled=gpu and settings["bf16"]):
        ((ids, cut),) = answering.answer(model, tokenizer, asked, limit, batch_size=1)
    text = prompt_format.prefill + tokenizer.decode(ids, skip_special_tokens=True)
    read = extract_answer(text, prompt_format.pattern)
    read = "nothing marks it" if read == text.strip() else read or "empty"
    end = f" (cut off at {limit} tokens)" if cut else ""
    with_prompt = "" if record else " to the recipe's prompt, since no record has its own"
    return printable(f"{model_dir} answers{with_prompt}:\n\n{text.rstrip()}\n\nAnswer: {read}{end}")


def _without_model(place: Path) -> str:
    """The reason why a path holds no model, and what to ask instead."""
    if not place.is_dir():
        return f"there is no directory {str(place)!r}; name one of a run or a model"
    newest, _ = checkpoints.newest(place)
    instead = f"; ask its newest checkpoint, {newest}" if newest else ""
    status = read_record(place, "status")
    return f"{str(place)!r} holds no model ({status or 'no config.json'}){instead}"


def _as_recorded(model_dir: Path, record: dict[str, Any], question: str) -> tuple[PromptFormat, Prompt]:
    """The recorded format and the question in it; UserError where the record is not of this version's form."""
    try:
        prompt_format = PromptFormat(**record["prompt"])
        return prompt_format, prompt_format.prompt(question, record["shots"])
    except (TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"ask: the record of {str(model_dir)!r} has a prompt of another version ({type(error).__name__}: {error})"
        ) from None


def _as_the_recipe(model_dir: Path, tokenizer: Any, question: str) -> tuple[PromptFormat, Prompt]:
    """The recipe's format as this tokenizer renders it, and the question in it.

    Raises:
        UserError: the chat template refuses it.
    """
    recipe = dataclasses.replace(XML, chat=tokenizer.chat_template is not None)
    with one_line(f"ask: the chat template of {str(model_dir)!r} refuses the recipe's prompt (", ")"):
        text = prompts.rendered(recipe.prompt("2 + 2?"), tokenizer)  # a template is code of the model's author
    return dataclasses.replace(recipe, prefill=prompts.prefilled(text, recipe.completion)), recipe.prompt(question)


def main(argv: list[str]) -> int:
    """`python -m grpo ask`; its exit status."""
    parser = ArgumentParser(prog="python -m grpo ask", description="Ask a saved model; print its greedy answer.")
    parser.add_argument(
        "run",
        metavar="RUN",
        nargs="?",
        type=Path,
        help="a run, or another directory with a model; default: the newest finished run",
    )
    parser.add_argument("question", metavar="QUESTION")
    given = parser.parse_args(argv)
    if not given.question or (given.run is None and Path(given.question).is_dir()):
        raise UserError(f"ask: there is no question; write it in quotes after {given.run or given.question}")
    run = given.run or directory.newest(finished=True)
    if run is None:
        raise UserError("ask: no finished run in outputs/; name the directory of one")
    print(answer(run, given.question))
    return 0
