"""What a saved run is good for: one question, and its adapter merged into its model."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from trl import GRPOTrainer

from grpo.core.errors import UserError, readable
from grpo.core.processes import is_first_process, say
from grpo.core.redaction import printable
from grpo.core.settings import Config
from grpo.data.prompts import PromptFormat, Shot, tokenize
from grpo.policy import sampling
from grpo.policy.loading import load_model, load_tokenizer, read_adapter, read_model_config
from grpo.runs import hub
from rewards import extract_answer


def prompting(directory: str) -> tuple[PromptFormat, list[Shot]] | None:
    """The prompt format and the worked examples of the run that a directory belongs to; None where there is none.

    A run's checkpoints and its merged model belong to it. UserError where its record cannot be read.
    """
    place = Path(directory)
    inside = place.name == "merged" or place.name.startswith("checkpoint-")
    path = (place.parent if inside and not (place / "run.json").exists() else place) / "run.json"
    if not path.is_file():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        return PromptFormat(**record["prompt"]), [(asked, why, gold) for asked, why, gold in record["shots"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{str(path)!r} is not a run's record ({type(error).__name__}); move it, or fix it") from None


def answer(
    config: Config,
    model: PreTrainedModel,
    tokenizer: Any,
    prompt_format: PromptFormat,
    shots: Sequence[Shot],
) -> str:
    """The greedy completion of the question that `--ask` gives, and the answer read out of it."""
    training = config.training
    prompts = tokenize([prompt_format.prompt(config.script.ask or "", shots)], tokenizer, config.template_kwargs)
    with sampling.training_autocast(training, model):
        ((ids, cut),) = sampling.answer(model, tokenizer, prompts, config.completion_limit, batch_size=1)
    text = prompt_format.prefill + tokenizer.decode(ids, skip_special_tokens=True)
    end = f" (cut off at {config.completion_limit} tokens)" if cut else ""
    read = extract_answer(text, prompt_format.pattern)
    read = "nothing marks it" if read == text.strip() else read or "empty"
    return printable(f"{text.rstrip()}\n\nAnswer: {read}{end}")


def merge(config: Config, directory: str | Path, replace: bool = False) -> Path:
    """Write `merged/` into an adapter's directory: its model with the adapter added to the weights, and the tokenizer.

    The base model is loaded anew, unquantized, so that an adapter trained on 4-bit weights merges too. The merged
    weights are saved in `dtype` (auto: the base model's); in bfloat16 they are rounded once.
    """
    adapter, merged = read_adapter(str(directory), None), Path(directory) / "merged"
    if adapter is None:
        raise UserError(f"merge_only: {str(directory)!r} is not an adapter (no adapter_config.json); use a LoRA run's")
    if merged.exists() and not replace:
        raise UserError(f"merge_only: {str(merged)!r} exists; move it away to merge again")
    partial = merged.with_name("merged.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a merge that was interrupted
    source: dict[str, Any] = dict(revision=adapter.revision, trust_remote_code=config.training.trust_remote_code)
    base_name = adapter.base_model_name_or_path or ""  # read_adapter has seen that it is there
    read_model_config(base_name, **source)
    with readable("loading", name=str(directory)):
        base = AutoModelForCausalLM.from_pretrained(base_name, dtype="auto", attn_implementation="eager", **source)
        dtype = config.model.dtype
        number = base.dtype if dtype in (None, "auto") else getattr(torch, dtype)
        model = PeftModel.from_pretrained(base.float(), directory).merge_and_unload()
        tokenizer = AutoTokenizer.from_pretrained(directory, trust_remote_code=config.training.trust_remote_code)
    model.to(number).save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    shutil.rmtree(merged, ignore_errors=True)
    partial.rename(merged)
    return merged


def share(config: Config, trainer: GRPOTrainer) -> None:
    """What is done with a trained run besides: `merge_lora` merges its adapter, `push_to_hub` uploads it."""
    if config.script.merge_lora and is_first_process():
        say(f"Merged the adapter into its model: {merge(config, config.output, replace=True)}")
    if config.training.push_to_hub:
        hub.push(trainer)


def use_saved(config: Config, prompt_format: PromptFormat, exemplars: Sequence[Shot]) -> int:
    """`--ask` a saved run or any other model, or `--merge_only` an adapter; the exit status."""
    if config.script.merge_only:
        print(f"Saved in {merge(config, config.script.merge_only)}")
        return 0
    trained = prompting(config.model_name)  # a run is asked as it was trained
    prompt_format, shots = trained or (prompt_format, exemplars[: config.script.num_shots])
    tokenizer, prompt_format = load_tokenizer(config, prompt_format)
    print(f"{config.model_name} answers:\n")
    print(answer(config, load_model(config)[0], tokenizer, prompt_format, shots))
    return 0
