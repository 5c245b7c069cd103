"""`python -m grpo merge RUN`: add an adapter to its model's weights, so that any program can load the result."""

import shutil
from pathlib import Path
from typing import Any

from peft import PeftConfig, PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo.core.errors import ArgumentParser, UserError
from grpo.policy.loading import loads


def merge(adapter: Path, output: Path) -> None:
    """Write a model with its adapter added to the weights, and the tokenizer, in the base model's number format.

    The base model is loaded unquantized, so that an adapter trained on 4-bit weights merges, too. The sum is computed
    in float32 and rounded once.

    Raises:
        UserError: there is no adapter, its files cannot be used, or `output` exists.
    """
    if not (adapter / "adapter_config.json").is_file():
        raise UserError(f"merge: {str(adapter)!r} is not an adapter (no adapter_config.json); name a LoRA run")
    if output.exists():
        raise UserError(f"merge: {str(output)!r} exists; move it away, or use --output")
    partial = output.with_name(f"{output.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a merge that was interrupted
    with loads(str(adapter), "merge"):
        config = PeftConfig.from_pretrained(str(adapter))
        source: dict[str, Any] = dict(revision=config.revision, trust_remote_code=False)
        base = AutoModelForCausalLM.from_pretrained(config.base_model_name_or_path, dtype="auto", **source)
        number = base.dtype
        model = PeftModel.from_pretrained(base.float(), adapter).merge_and_unload()
        tokenizer = AutoTokenizer.from_pretrained(adapter, trust_remote_code=False)
    model.to(number).save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    partial.rename(output)


def main(argv: list[str]) -> int:
    """`python -m grpo merge`; its exit status."""
    parser = ArgumentParser(prog="python -m grpo merge", description="Merge a run's LoRA adapter into its model.")
    parser.add_argument("run", metavar="RUN", type=Path, help="the directory of a run, or of a checkpoint in it")
    parser.add_argument("--output", type=Path, metavar="DIRECTORY", help="default: RUN/merged")
    given = parser.parse_args(argv)
    output = given.output or given.run / "merged"
    merge(given.run, output)
    print(f"Saved in {output}")
    return 0
