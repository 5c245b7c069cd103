"""`python -m grpo ask [RUN] "QUESTION"`: ask a saved model a question, with the prompt of its training."""

from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from exact_answers import extract_answer
from grpo.core.errors import ArgumentParser, UserError, one_line
from grpo.core.text import printable, shorten
from grpo.policy.answering import Policy
from grpo.policy.loading import model_errors
from grpo.policy.templates import keeping_tags
from grpo.runs import checkpoints, directory
from grpo.runs.record import read_asked
from grpo.task.given import how_read
from grpo.task.prompts import PromptFormat, tokenized
from grpo.tools.merge import load_base


def answer(model_dir: Path, question: str) -> str:
    """Return the model's name, its greedy completion of a question, and the extracted answer, as text."""
    is_adapter = (model_dir / "adapter_config.json").is_file()
    if not (is_adapter or (model_dir / "config.json").is_file()):
        newest, _ = checkpoints.newest(model_dir)
        raise UserError(f"ask: {str(model_dir)!r} contains no model; name {newest or 'the directory of a run'}")
    record = read_asked(model_dir)
    if record is None:
        raise UserError(f"ask: no file has the prompt of {str(model_dir)!r}; ask a run, or its copy with run.json")
    settings = record.settings
    try:
        if settings["max_completion_length"] < 1:
            raise ValueError(f"max_completion_length is {settings['max_completion_length']}")
        prompt_format = PromptFormat(**record.prompt)
        prompt, perfect = prompt_format.prompt(question, record.shots or []), prompt_format.answered("", "")
    except (TypeError, ValueError, AttributeError) as error:
        raise UserError(f"ask: the record of {str(model_dir)!r} is of another version ({error})") from None
    logging.disable_progress_bar()  # of weights that are loaded
    gpu = torch.cuda.is_available()
    dtype = settings["dtype"] if gpu else "float32"
    base: Any = load_base(model_dir, "ask", dtype) if is_adapter else None
    with model_errors(str(model_dir), "ask"):
        tokenizer: Any = AutoTokenizer.from_pretrained(model_dir, trust_remote_code=False)
        model: Any = (
            PeftModel.from_pretrained(base, model_dir)
            if is_adapter
            else AutoModelForCausalLM.from_pretrained(model_dir, dtype=dtype, trust_remote_code=False)
        )
    tokenizer, _ = keeping_tags(tokenizer, perfect)
    with one_line(f"ask: chat_template_kwargs in the record of {str(model_dir)!r}: "):
        tokens = list(tokenized([prompt], tokenizer, settings["chat_template_kwargs"]))
    policy = Policy(
        model.to("cuda" if gpu else "cpu"),
        tokenizer,
        limit=settings["max_completion_length"],
        number=torch.bfloat16 if gpu and settings["bf16"] else None,
        prefill=prompt_format.prefill,
    )
    (answered,) = policy.complete(tokens)
    read = how_read(answered.text, extract_answer(answered.text, prompt_format.pattern), prompt_format.pattern)
    end = f" (cut off at {policy.limit} tokens)" if answered.truncated else ""
    return printable(f"{model_dir} answers:\n\n{answered.text.rstrip()}\n\nAnswer: {shorten(read, 200)}{end}")


def main(argv: list[str]) -> int:
    """Run `python -m grpo ask` and return its exit status."""
    parser = ArgumentParser(prog="python -m grpo ask", description="Ask a saved model; print its greedy answer.")
    parser.add_argument(
        "run",
        metavar="RUN",
        nargs="?",
        type=Path,
        help="a run, or one of its checkpoints or copies; default: the newest finished run",
    )
    parser.add_argument("question", metavar="QUESTION")
    arguments = parser.parse_args(argv)
    if not arguments.question or (arguments.run is None and Path(arguments.question).is_dir()):
        raise UserError(
            f"ask: the question is missing; write it in quotes after {arguments.run or arguments.question}"
        )
    run = arguments.run or directory.newest_finished()
    if run is None:
        raise UserError("ask: no finished run in outputs/; name the directory of one")
    # UTF-8 of a terminal whose locale is ASCII
    question = arguments.question.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    print(answer(run, question))
    return 0
