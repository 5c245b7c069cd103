"""Unsloth replaces Transformers and PEFT: it loads the model, makes the adapter and patches TRL's trainer."""

import contextlib
import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpo.core.errors import UserError
from grpo.core.settings import Config


def import_if_asked(hyperparameters: dict[str, Any], argv: Sequence[str]) -> None:
    """Import Unsloth where the settings say `use_unsloth`, before anything imports the libraries that it patches.

    The settings are parsed with what it patches (trl, transformers, peft), so this looks for one of them by itself;
    `resolve` then checks them all.

    Raises:
        UserError: Unsloth is not installed, or there is not one GPU for it.
    """
    if not _asked(hyperparameters, argv):
        return
    if importlib.util.find_spec("unsloth") is None:
        raise UserError(
            "use_unsloth: Unsloth is not installed; pip install -r requirements-unsloth.txt in an environment of its "
            "own, or use --use_unsloth false"
        )
    import torch

    if not torch.cuda.device_count():
        raise UserError("use_unsloth: Unsloth needs a CUDA GPU, and none is visible; use --use_unsloth false")
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise UserError("use_unsloth: Unsloth trains on one GPU here; start it without torchrun, or drop use_unsloth")
    # Importing it starts CUDA, which reads this variable once and for all
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    import unsloth  # noqa: F401


def _asked(hyperparameters: dict[str, Any], argv: Sequence[str]) -> bool:
    from grpo.core import parsing  # here: it needs a library, and main reports what is missing

    parser = parsing.ArgumentParser(add_help=False)
    parser.add_argument("--config", nargs="?")
    parser.add_argument("--use_unsloth", nargs="?", const="true")
    given, _ = parser.parse_known_args(argv)
    asked = hyperparameters.get("use_unsloth", False)
    if given.config and Path(given.config).is_file():
        with contextlib.suppress(OSError, ValueError, AttributeError):  # `resolve` reports what is wrong with it
            asked = parsing.from_yaml(Path(given.config).read_text(encoding="utf-8-sig")).get("use_unsloth", asked)
    return str(given.use_unsloth or asked).lower() not in ("false", "f", "no", "n", "0")


def load(config: Config) -> Any:
    """The model with an adapter to train, as Unsloth makes them; a saved adapter on its base model, to train on."""
    import torch
    from peft import PeftModel
    from unsloth import FastLanguageModel

    script, training, model = config.script, config.training, config.model
    loaded, _ = FastLanguageModel.from_pretrained(  # the tokenizer is the one that was checked
        model_name=model.model_name_or_path,
        revision=None if model.model_revision == "main" else model.model_revision,
        max_seq_length=(script.max_prompt_length or 0) + (training.max_completion_length or 0),
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
