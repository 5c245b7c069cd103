"""Let a saved adapter that is trained further decide the settings of adapters: it is loaded as it is."""

import os
from typing import Any

from peft import PeftConfig

from grpo.core.checklist import Check
from grpo.core.errors import UserError
from grpo.core.settings import MACHINE, Settings
from grpo.policy.loading import read_adapter

# ModelConfig's settings, and their names in a saved adapter
NAMES = {
    "use_peft": "",
    "lora_r": "r",
    "lora_alpha": "lora_alpha",
    "lora_dropout": "lora_dropout",
    "lora_target_modules": "target_modules",
    "lora_target_parameters": "target_parameters",
    "lora_modules_to_save": "modules_to_save",
    "use_rslora": "use_rslora",
    "use_dora": "use_dora",
}


def take_from_saved(settings: Settings) -> None:
    """Replace the settings of adapters by those of the saved adapter that `model_name_or_path` names, if it does.

    A note lists the values in HYPERPARAMETERS that it replaces.

    Raises:
        UserError: a flag or a recipe asks for another value.
    """
    name = settings["model_name_or_path"]
    adapter = read_adapter(name, settings["model_revision"]) if os.path.isdir(name) else None
    if adapter is None:
        return
    replaced = []
    for key, saved_as in NAMES.items():
        given, saved = settings[key], _saved(adapter, saved_as) if saved_as else True
        if _plain(given) == _plain(saved):
            continue
        is_pattern = isinstance(given, str) or given == ["all-linear"]  # of the saved one's names
        if not (isinstance(saved, list) and is_pattern):
            if settings.origin.get(key) in ("flag", "recipe"):
                raise UserError(
                    f"{key}: {given} has no effect: {name!r} is a saved adapter with {key} {saved}; drop it, or merge "
                    f"the adapter to train a new one on it (python -m grpo merge {name})"
                )
            replaced += [f"{key} {given} → {saved}"] if key in settings.origin else []
        settings.set(key, saved, MACHINE)
    if replaced:
        settings.notes.append(Check("ok", "adapter", f"its saved settings count: {', '.join(replaced)}"))


def _saved(adapter: PeftConfig, name: str) -> Any:
    """Return a setting of an adapter; None if adapters of its kind do not have it."""
    value = getattr(adapter, name, None)
    return sorted(value) if isinstance(value, list | set | tuple) else value


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, list | set | tuple) else value or None
