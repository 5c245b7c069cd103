"""`python -m grpo merge RUN`: merge an adapter into its model's weights, so that any program can load the result."""

import dataclasses
import os
import tempfile
from pathlib import Path
from typing import Any

from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from grpo.core.directories import MERGED, check_output
from grpo.core.errors import ArgumentParser, UserError
from grpo.core.text import printable
from grpo.policy.loading import base_of, model_errors, read_adapter
from grpo.results.record import RunRecord
from grpo.runs.record import read_asked


def load_base(adapter: Path, where: str, dtype: str) -> Any:
    """Load an adapter's base model, unquantized; dtype "auto" is the model's own."""
    config: Any = read_adapter(str(adapter), where=where)
    base = base_of(config)
    if os.path.isdir(base):  # downloads keep their progress bar
        logging.disable_progress_bar()
    with model_errors(base, f"{where}: the model under {str(adapter)!r},"):
        return AutoModelForCausalLM.from_pretrained(
            base, dtype=dtype, revision=config.revision, trust_remote_code=False
        )


def merge(adapter: Path, output: Path) -> None:
    """Merge an adapter into its base model and write the result, in the base model's number format.

    Also writes the tokenizer, and the part of the run's record that `ask` reads. The base model is loaded unquantized,
    so that adapters trained on 4-bit weights merge, too. The sum is computed in float32 and rounded once.
    """
    if not (adapter / "adapter_config.json").is_file():
        raise UserError(f"merge: {str(adapter)!r} is not an adapter (no adapter_config.json); name a LoRA run")
    if os.path.lexists(output):  # also a broken link
        raise UserError(f"merge: {str(output)!r} exists; move it away, or use --output")
    check_output(output, "merge")
    record = read_asked(adapter) or RunRecord()
    base = load_base(adapter, "merge", "auto")
    number = base.dtype
    with model_errors(str(adapter), "merge"):
        model = PeftModel.from_pretrained(base.float(), adapter).merge_and_unload()
        tokenizer = AutoTokenizer.from_pretrained(adapter, trust_remote_code=False)
    logging.disable_progress_bar()  # of shards that are written
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".merge-") as folder:
        part = Path(folder) / output.name
        model.to(number).save_pretrained(part)
        tokenizer.save_pretrained(part)
        dataclasses.replace(record, status=MERGED).write(part)
        part.rename(output)


def main(argv: list[str]) -> int:
    """Run `python -m grpo merge` and return its exit status."""
    parser = ArgumentParser(prog="python -m grpo merge", description="Merge a run's LoRA adapter into its model.")
    parser.add_argument("run", metavar="RUN", type=Path, help="the directory of a run, or of a checkpoint in it")
    parser.add_argument("--output", type=Path, metavar="DIRECTORY", help="default: RUN/merged")
    arguments = parser.parse_args(argv)
    output = arguments.output or arguments.run / "merged"
    merge(arguments.run, output)
    print(printable(f"Saved in {output}"))
    return 0
