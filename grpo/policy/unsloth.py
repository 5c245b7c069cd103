"""Unsloth replaces Transformers and PEFT: it loads the model, makes the adapter and patches TRL's trainer."""

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpo.core.errors import ArgumentParser, UserError
from grpo.core.settings import Config

RECIPES = Path(__file__).resolve().parents[2] / "recipes"


def import_if_asked(argv: Sequence[str]) -> None:
    """Import Unsloth where a flag or a recipe asks for it, before what it patches; UserError where it cannot be."""
    if not _asked(argv):
        return
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise UserError("use_unsloth: Unsloth trains on one GPU here; start it without torchrun, or drop use_unsloth")
    # It uses one GPU, and importing it starts CUDA, which reads this variable once and for all
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    try:
        import unsloth  # noqa: F401
    except Exception as error:  # NotImplementedError without a GPU
        raise UserError(
            f"use_unsloth: Unsloth cannot be imported ({error}); pip install -r requirements-unsloth.txt in an "
            "environment of its own, with a CUDA GPU, or use --use_unsloth false"
        ) from None


def _asked(argv: Sequence[str]) -> bool:
    parser = ArgumentParser(prog=f"python {sys.argv[0]}", add_help=False)
    parser.add_argument("--use_unsloth", "--use-unsloth", nargs="?", const="true")
    parser.add_argument("--config")
    given, _ = parser.parse_known_args(argv)
    if given.use_unsloth:
        return given.use_unsloth.lower() not in ("false", "no", "0")
    recipe = given.config or ""
    paths = [Path(recipe), RECIPES / f"{recipe.removesuffix('.yaml')}.yaml"] if recipe else []
    text = next((path.read_text(encoding="utf-8", errors="replace") for path in paths if path.is_file()), "")
    return re.search(r"(?mi)^use_unsloth: *(true|yes|on|1)\b", text) is not None


def check_imported() -> None:
    """UserError where the settings ask for Unsloth too late: in HYPERPARAMETERS, or where other code calls `main`."""
    if "unsloth" not in sys.modules:
        raise UserError(
            "use_unsloth: Unsloth has to be imported before the libraries that it patches; use --use_unsloth true, or "
            "`import unsloth` first"
        )


def load(config: Config) -> Any:
    """The model with an adapter to train, as Unsloth makes them; a saved adapter on its base model, to train on."""
    import torch
    from peft import PeftModel
    from unsloth import FastLanguageModel

    script, training, model = config.script, config.training, config.model
    loaded, _ = FastLanguageModel.from_pretrained(  # the tokenizer is the one that was checked
        model_name=model.model_name_or_path,
        revision=None if model.model_revision == "main" else model.model_revision,
        max_seq_length=(script.max_prompt_length or 0) + config.completion_limit,
        dtype=None if model.dtype in (None, "auto") else getattr(torch, model.dtype),
        load_in_4bit=model.load_in_4bit,
        load_in_8bit=model.load_in_8bit,
        fast_inference=training.use_vllm,
        gpu_memory_utilization=training.vllm_gpu_memory_utilization,
        max_lora_rank=model.lora_r,
        trust_remote_code=training.trust_remote_code,
        random_state=training.seed,
    )
    if script.eval_only or isinstance(loaded, PeftModel):
        return loaded
    return FastLanguageModel.get_peft_model(
        loaded,
        r=model.lora_r,
        lora_alpha=model.lora_alpha,
        lora_dropout=model.lora_dropout,
        target_modules=model.lora_target_modules,
        use_rslora=model.use_rslora,
        use_gradient_checkpointing="unsloth" if training.gradient_checkpointing else False,
        random_state=training.seed,
    )
