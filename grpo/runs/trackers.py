"""Check a run's trackers before it starts. transformers' callbacks log to them."""

import os
from typing import Any

from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK, get_available_reporting_integrations
from trl import GRPOConfig

from grpo.core.checklist import Check
from grpo.core.errors import UserError, did_you_mean, one_line
from grpo.core.processes import is_first_process

OFFLINE = "W&B is not logged in, so it logs offline to ./wandb (wandb sync uploads it)"
WANDB_LOGIN = "log in (wandb login, or export WANDB_API_KEY) or use --report_to none"


def check(settings: dict[str, Any], asked: bool = True) -> list[Check]:
    """Reduce `report_to` to a list of usable trackers, in place. Return a note for each missing or offline one.

    Args:
        asked: True if the command line names them: then a missing one is an error, otherwise it is dropped.
    """
    names = [name.strip() for name in (settings["report_to"] or "none").split(",")]
    notes, usable = list[Check](), []
    for name in [name for name in names if name != "none"]:
        if name not in INTEGRATION_TO_CALLBACK:
            raise UserError(f"report_to: {name!r} is not a tracker{did_you_mean(name, INTEGRATION_TO_CALLBACK)}")
        if name in get_available_reporting_integrations():
            usable.append(name)
            continue
        finding, remedy = f"{name} is not installed", "install its package, or use --report_to none"
        if asked:
            raise UserError(f"report_to: {finding}; {remedy}")
        notes.append(Check("warning", "report_to", f"{finding}, so nothing is logged to it", remedy))
    settings["report_to"] = usable or ["none"]
    if "wandb" in usable and not os.environ.get("WANDB_MODE") and not _logged_in_to_wandb():
        os.environ["WANDB_MODE"] = "offline"
        notes.append(Check("warning", "report_to", OFFLINE, WANDB_LOGIN))
    return notes


def _logged_in_to_wandb() -> bool:
    import wandb  # optional package

    if wandb.run is not None:  # transformers logs to a run that the user has begun
        return True
    try:
        return wandb.login(prompt=False, verify=False)
    except wandb.errors.Error as error:
        raise UserError(f"report_to: W&B refuses its key ({error}); wandb login, or --report_to none") from None
    finally:
        wandb.teardown()  # login has cached the environment; the next use must read it again


def start(training: GRPOConfig) -> None:
    """Begin SwanLab's run, since swanlab 0.10 raises when transformers 5.24 asks whether one exists."""
    if "swanlab" in (training.report_to or []) and is_first_process():
        import swanlab  # optional package

        remedy = "export SWANLAB_API_KEY or SWANLAB_MODE=offline, or use --report_to none"
        with one_line("report_to: ", f"; {remedy}", kinds=(RuntimeError,)):
            swanlab.init(name=training.run_name, project=os.getenv("SWANLAB_PROJECT"))
