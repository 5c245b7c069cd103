"""Whether the Hub takes the model, asked before training, and how the model gets there afterwards."""

import shlex
from typing import TYPE_CHECKING

from grpo.core.checklist import Check
from grpo.core.errors import one_line

if TYPE_CHECKING:
    from trl import GRPOConfig, GRPOTrainer

LOGIN = "hf auth login, or export HF_TOKEN (a token that may write), and check the network; or --push_to_hub false"


def check(training: "GRPOConfig") -> Check:
    """A line of preflight's table: who pushes where; UserError where the Hub cannot be asked."""
    from huggingface_hub import HfApi

    with one_line("push_to_hub: the Hub refuses the model (", f"); {LOGIN}", kinds=(OSError,)):
        user = HfApi().whoami()
    finding = f"{training.hub_model_id or training.output_dir}, as {user['name']}"
    if user.get("auth", {}).get("accessToken", {}).get("role") == "read":
        return Check("error", "push_to_hub", f"{finding}, whose token may only read", LOGIN)
    return Check("ok", "push_to_hub", finding)


def push(trainer: "GRPOTrainer") -> None:
    """Upload the run directory without its checkpoints; TRL writes the model card (`create_model_card`)."""
    output = str(trainer.args.output_dir)
    command = shlex.join(["hf", "upload", str(trainer.hub_model_id), output, "--exclude", "checkpoint-*/*"])
    remedy = f"it is complete in {output}; to upload it: {command}"
    with one_line("push_to_hub: the Hub refuses the model (", f"); {remedy}", kinds=(OSError,)):
        trainer.push_to_hub()
