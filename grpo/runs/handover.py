"""The part of a run's record that a question to its model needs; it goes wherever the model goes."""

import json
from pathlib import Path
from typing import Any

from grpo.core.errors import UserError
from grpo.runs.checkpoints import SEAL, write_json

SETTINGS = ("dtype", "bf16", "max_completion_length", "chat_template_kwargs")


def read(model: Path) -> dict[str, Any] | None:
    """The `prompt`, `shots` and `settings` that a saved model was trained with; None where nothing records them.

    They are in the record of its directory (a run, a merged model), in a checkpoint's seal, or in the record of the
    run around it (a checkpoint, an earlier end).

    Raises:
        UserError: a record cannot be read.
    """
    for path in (model / "run.json", model / SEAL, model.resolve().parent / "run.json"):
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            prompt, shots = dict(record["prompt"]), list(record["shots"])
            return {"prompt": prompt, "shots": shots, "settings": {key: record["settings"][key] for key in SETTINGS}}
        except FileNotFoundError:
            continue
        except (OSError, ValueError, KeyError, TypeError) as error:
            lacks_it = isinstance(error, KeyError | TypeError)
            if path.name == SEAL or (path.parent != model and lacks_it):  # settings alone; another program's record
                continue
            raise UserError(f"{str(model)!r} is not a run ({type(error).__name__} in {path})") from None
    return None


def write(record: dict[str, Any], merged: Path) -> None:
    """Write this part, as a merged model's own record."""
    write_json(merged / "run.json", {"status": "merged", **record})
