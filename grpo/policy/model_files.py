"""What can be wrong with a model's files, said in one line before its weights are read."""

import json
import os
from pathlib import Path

from grpo.core.errors import GIVE_A_MODEL, UserError

# What the libraries raise for files that hold anything
BROKEN = (OSError, LookupError, ValueError, TypeError, AttributeError, ArithmeticError, RuntimeError, ImportError)


def refuse_unusable(name: str, *files: str) -> None:
    """UserError where `name` is no directory and cannot be a Hub id, or one of its JSON files is broken."""
    if os.path.isfile(name):
        raise UserError(f"model_name_or_path: {name!r} is a file; give the directory of a model, or a Hub id")
    if (name.startswith((".", "/")) or name.count("/") > 1) and not os.path.isdir(name):  # no Hub id
        raise UserError(f"model_name_or_path: the directory {name!r} does not exist; give another one or a Hub id")
    for path in (Path(name, file) for file in files if os.path.lexists(os.path.join(name, file))):
        try:
            reason = None if isinstance(json.loads(path.read_text(encoding="utf-8")), dict) else "no JSON object"
        except OSError as error:
            reason = error.strerror
        except (ValueError, RecursionError) as error:
            reason = str(error) or "nested too deeply"
        if reason:
            raise UserError(
                f"model_name_or_path: {str(path)!r} is broken ({reason}); get this file of the model again"
            )


def probe_weights(name: str, stem: str) -> None:
    """UserError where a directory has no weights of this name, or some that are cut off or missing."""
    from safetensors import SafetensorError, safe_open

    index, files = Path(name, f"{stem}.safetensors.index.json"), [Path(name, f"{stem}.safetensors")]
    if not files[0].exists() and index.exists():
        shards = json.loads(index.read_text(encoding="utf-8")).get("weight_map")
        files = [Path(name, shard) for shard in sorted(set(shards.values()))] if isinstance(shards, dict) else []
        if not files:
            raise UserError(f"model_name_or_path: {str(index)!r} names no weights; get this file of the model again")
    elif not files[0].exists():
        pickled = {"model": "pytorch_model.bin*", "adapter_model": "adapter_model.bin"}[stem]
        if not list(Path(name).glob(pickled)):
            wanted = f"no {stem}.safetensors and no {pickled.rstrip('*')}"
            raise UserError(
                f"model_name_or_path: {name!r} does not load (it holds no weights: {wanted}); {GIVE_A_MODEL}"
            )
        return
    for file in files:
        try:
            with safe_open(file, framework="pt"):  # its header must agree with its size
                pass
        except (OSError, SafetensorError) as error:
            reason = "it is missing" if isinstance(error, FileNotFoundError) else str(error)
            raise UserError(
                f"model_name_or_path: {name!r} does not load ({file.name}: {reason}); get this file of the model again"
            ) from None
