"""Check access to the Hub before training, and push the model after it."""

import shlex

from huggingface_hub import HfApi
from trl import GRPOConfig, GRPOTrainer

from grpo.core.checklist import Check
from grpo.core.errors import one_line
from grpo.runs.record import NOT_UPLOADED

LOGIN = "hf auth login, or export HF_TOKEN (a token that may write), and check the network; or --push_to_hub false"


def check(training: GRPOConfig) -> Check:
    """A line of preflight's table: who pushes where; UserError where the Hub cannot be reached."""
    with one_line("push_to_hub: the Hub refuses the model (", f"); {LOGIN}"):
        user = HfApi().whoami()
    finding = f"{training.hub_model_id or training.output_dir}, as {user['name']}"
    if user.get("auth", {}).get("accessToken", {}).get("role") == "read":
        return Check("error", "push_to_hub", f"{finding}, whose token may only read", LOGIN)
    return Check("ok", "push_to_hub", finding)


def push(trainer: GRPOTrainer) -> None:
    """Upload the run's directory without its checkpoints and the results of earlier ends.

    transformers leaves out what begins with `checkpoint-` or an underscore.
    """
    output = str(trainer.args.output_dir)
    command = shlex.join(["hf", "upload", str(trainer.hub_model_id), output, *NOT_UPLOADED])
    remedy = f"it is complete in {output}; to upload it: {command}"
    with one_line("push_to_hub: the Hub refuses the model (", f"); {remedy}"):
        trainer.push_to_hub()
