"""The libraries' private names that grpo/ overrides, reads or sets: an upgrade fails here first."""

import ast
import importlib
import inspect
import re

import pytest
from helpers_runs import ROOT

GRPO, TRAINER = "trl.trainer.grpo_trainer", "transformers.trainer"
# Where each comes from. An upgrade that renames one: find what does its work now, and change grpo/ and this table
NAMES = {
    "_actions": "argparse",
    "_attn_implementation": "transformers.configuration_utils",
    "_buffered_inputs": GRPO,
    "_calculate_rewards": GRPO,
    "_compute_loss": GRPO,
    "_current_train_step_time": GRPO,
    "_dist": GRPO,
    "_entropy_bonus_enabled": GRPO,
    "_fix_param_name_to_vllm": "trl.generation.vllm_generation",
    "_from_model_config": "transformers.generation.configuration_utils",
    "_generate": GRPO,
    "_generate_and_score_completions": GRPO,
    "_generate_single_turn": GRPO,
    "_get_default_generation_params": "transformers.generation.configuration_utils",
    "_get_output_dir": TRAINER,
    "_get_per_token_logps_and_entropies": GRPO,
    "_get_train_sampler": GRPO,
    "_globalstep_last_logged": TRAINER,
    "_group_actions": "argparse",
    "_hf_deepspeed_config_weak_ref": "transformers.integrations.deepspeed",
    "_init_state": "optimi.stableadamw",
    "_init_vllm": "trl.generation.vllm_generation",
    "_is_stateful": "transformers.generation.utils",
    "_is_vlm": GRPO,
    "_issue_warnings_after_load": TRAINER,
    "_iter_named_params": "trl.generation.vllm_generation",
    "_load_best_model": TRAINER,
    "_logs": GRPO,
    "_metrics": GRPO,
    "_optionals": "argparse",
    "_parameters": "torch.nn.modules.module",
    "_prepare_generation_config": "transformers.generation.utils",
    "_prepare_inputs": GRPO,
    "_run_epoch": TRAINER,
    "_save_checkpoint": GRPO,
    "_step": GRPO,
    "_supports_attention_backend": "transformers.modeling_utils",
    "_supports_sdpa": "transformers.modeling_utils",
    "_tokenize_prompts": GRPO,
    "_tokenizer": GRPO,
    "_total_loss_scalar": TRAINER,
    "_tr_loss": TRAINER,
}


def private(name):
    return name.startswith("_") and not name.startswith("__") and name != "_"


def used():
    """Private names that grpo/ reads, sets, or overrides, without those that are its own."""
    libraries = "".join(inspect.getsource(importlib.import_module(name)) for name in {*NAMES.values(), GRPO, TRAINER})
    theirs = set(re.findall(r"(?:def |self\.)(_[a-z]\w*)", libraries))
    found, own = set(), {"_exit", "_fields", "_replace"}  # documented, of os and of named tuples
    for path in (ROOT / "grpo").rglob("*.py"):
        seen, defined = set(), set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute):
                seen.add(node.attr)
                if isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
                    defined.add(node.attr)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                defined.add(node.name)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in theirs:
                seen.add(node.value)  # for getattr, or in a table of names
        overrides = path.name in ("trainer.py", "base_trainer.py", "vllm_engine.py")  # TRL's methods
        found |= seen - (defined - theirs if overrides else defined)
        own |= defined - theirs
    return {name for name in found - own if private(name)}


def test_the_table_has_every_private_name_in_use():
    found = used()
    assert found - NAMES.keys() == set(), "grpo/ uses private names that NAMES does not list"
    assert NAMES.keys() - found == set(), "NAMES lists private names that grpo/ no longer uses"


@pytest.mark.parametrize("name", NAMES)
def test_the_installed_libraries_have_the_private_name(name):
    source = inspect.getsource(importlib.import_module(NAMES[name]))
    assert re.search(rf"\b{name}\b", source), (
        f"{NAMES[name]} has no {name} any more: see what replaces it, then change grpo/ and NAMES"
    )
