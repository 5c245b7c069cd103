"""Use Unsloth instead of Transformers and PEFT: it loads the model, creates the adapter and patches TRL's trainer."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpo.core.errors import ArgumentParser, one_line
from grpo.core.processes import file
from grpo.core.settings import Config


def import_if_asked(argv: Sequence[str]) -> None:
    """Import Unsloth before the libraries that it patches, for --use_unsloth true or the recipe `unsloth`."""
    parser = ArgumentParser(prog=f"python {sys.argv[0]}", add_help=False)
    parser.add_argument("--use_unsloth", "--use-unsloth", nargs="?", const="true")
    parser.add_argument("--config", default="")
    given, _ = parser.parse_known_args(argv)
    by_recipe = str(Path(given.config).stem == "unsloth")
    if (given.use_unsloth or by_recipe).lower() in ("false", "no", "0"):
        return
    # the import starts CUDA, which reads this variable only once
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    remedy = f"pip install -r {file('requirements-unsloth.txt')} in an environment of its own, with a CUDA GPU"
    with one_line(  # NotImplementedError without a GPU
        "use_unsloth: Unsloth cannot be imported (", f"); {remedy}, or use --use_unsloth false"
    ):
        import unsloth  # noqa: F401


def load(config: Config) -> Any:
    """Load the model with a new adapter, or a saved adapter with its base model, through Unsloth."""
    import torch
    from peft import PeftModel
    from unsloth import FastLanguageModel

    training, model = config.training, config.model
    loaded, _ = FastLanguageModel.from_pretrained(  # preflight has checked our tokenizer, not Unsloth's
        model_name=model.model_name_or_path,
        revision=None if model.model_revision == "main" else model.model_revision,
        max_seq_length=(config.script.max_prompt_length or 0) + config.completion_limit,
        dtype=None if model.dtype in (None, "auto") else getattr(torch, model.dtype),
        load_in_4bit=model.load_in_4bit,
        load_in_8bit=model.load_in_8bit,
        fast_inference=training.use_vllm,
        gpu_memory_utilization=training.vllm_gpu_memory_utilization,
        max_lora_rank=model.lora_r,
        trust_remote_code=training.trust_remote_code,
        random_state=training.seed,
    )
    if config.script.eval_only or isinstance(loaded, PeftModel):
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
