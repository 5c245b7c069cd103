"""`python -m grpo ask [RUN] "QUESTION"`: a saved run answers, with the prompt that it was trained on."""

import json
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from grpo.core.errors import ArgumentParser, UserError
from grpo.core.text import printable
from grpo.data.prompts import PromptFormat, tokenize
from grpo.policy import sampling
from grpo.policy.loading import loads
from grpo.runs import checkpoints, directory
from rewards import extract_answer


def answer(run: Path, question: str) -> str:
    """The greedy completion of a question, and the answer read out of it.

    Args:
        run: the directory of a run, or a checkpoint or merged model in it.
    """
    place = run if (run / "run.json").is_file() else run.parent
    try:
        record = json.loads((place / "run.json").read_text(encoding="utf-8"))
        prompt_format, settings = PromptFormat(**record["prompt"]), record["settings"]
        prompt = prompt_format.prompt(question, record["shots"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"ask: {str(run)!r} is not a run ({type(error).__name__} in its run.json)") from None
    if not any((run / name).is_file() for name in ("config.json", "adapter_config.json")):
        newest, _ = checkpoints.newest(run)
        instead = f"; ask its newest checkpoint, {newest}" if newest else ""
        raise UserError(f"ask: {str(run)!r} holds no model ({record.get('status')}){instead}")
    logging.disable_progress_bar()  # of weights that are loaded
    gpu = torch.cuda.is_available()
    dtype = settings["dtype"] if gpu else "float32"
    with loads(str(run), "ask"):
        tokenizer: Any = AutoTokenizer.from_pretrained(run, trust_remote_code=False)
        model: Any = AutoModelForCausalLM.from_pretrained(run, dtype=dtype, trust_remote_code=False)
    model = model.to("cuda" if gpu else "cpu")
    limit = settings["max_completion_length"]
    prompts = tokenize([prompt], tokenizer, settings["chat_template_kwargs"] or {})
    with torch.autocast(model.device.type, torch.bfloat16, enabled=gpu and settings["bf16"]):
        ((ids, cut),) = sampling.answer(model, tokenizer, prompts, limit, batch_size=1)
    text = prompt_format.prefill + tokenizer.decode(ids, skip_special_tokens=True)
    read = extract_answer(text, prompt_format.pattern)
    read = "nothing marks it" if read == text.strip() else read or "empty"
    end = f" (cut off at {limit} tokens)" if cut else ""
    return printable(f"{text.rstrip()}\n\nAnswer: {read}{end}")


def main(argv: list[str]) -> int:
    """`python -m grpo ask`; its exit status."""
    parser = ArgumentParser(prog="python -m grpo ask", description="Ask a saved run; print its greedy answer.")
    parser.add_argument("run", metavar="RUN", nargs="?", type=Path, help="default: the newest finished one")
    parser.add_argument("question", metavar="QUESTION")
    given = parser.parse_args(argv)
    if not given.question or (given.run is None and Path(given.question).is_dir()):
        raise UserError(f"ask: there is no question; write it in quotes after {given.run or given.question}")
    run = given.run or directory.newest(finished=True)
    if run is None:
        raise UserError("ask: no finished run in outputs/; name the directory of one")
    print(f"{run} answers:\n\n{answer(run, given.question)}")
    return 0
