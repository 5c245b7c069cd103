"""Where the curves go: trackers that cannot work are found out before training, and log offline where they can."""

import importlib.util
import os
import sys
from collections.abc import Sequence
from typing import Any

from grpo.core.errors import UserError

# report_to's names, and the package that each needs
TRACKERS = {"wandb": "wandb", "tensorboard": "tensorboard", "swanlab": "swanlab", "trackio": "trackio"}

# What says `offline` to those that log to a server
MODES = {"wandb": "WANDB_MODE", "swanlab": "SWANLAB_MODE"}

NO_KEY = {
    "asks": "note: {name} has no key yet, so it asks for one when training starts; {login}, or --report_to none",
    "offline": "note: {name} is not logged in, so it logs offline to ./{folder}; log in ({login}) or give "
    "--report_to none",
}


def check(settings: dict[str, Any], asked: bool = True) -> list[str]:
    """Turn `report_to` into a list of usable trackers, in place; a line for each that is missing or goes offline.

    `asked`: the command line names them, so that a missing one is a mistake; a recipe's is left out.
    """
    names, notes = [name.strip() for name in (settings["report_to"] or "none").split(",")], []
    if "none" in names and len(names) > 1:
        raise UserError(f"report_to: {settings['report_to']!r} names trackers and none of them; give one or the other")
    for name in list(names):
        if name not in ("none", *TRACKERS):
            raise UserError(f"report_to: {name!r} is not a tracker; give none, {', '.join(TRACKERS)}")
        if name != "none" and importlib.util.find_spec(TRACKERS[name]) is None:
            if asked:
                raise UserError(
                    f"report_to: {name} is not installed; pip install {TRACKERS[name]}, or give --report_to none"
                )
            names.remove(name)
            notes.append(f"note: {name} is not installed, so nothing is logged to it; pip install {TRACKERS[name]}")
    settings["report_to"] = names = names or ["none"]
    if "wandb" in names:
        notes += _check_wandb()
    if "swanlab" in names:
        notes += _check_swanlab()
    if "trackio" in names:
        _check_trackio(settings)
    return notes


def _without_key(name: str, login: str, variable: str, folder: str) -> list[str]:
    """Both raise in the middle of train() where they have neither a key nor a terminal to ask for one."""
    asks = sys.stdin is not None and sys.stdin.isatty()
    if not asks:
        os.environ[variable] = "offline"
    return [NO_KEY["asks" if asks else "offline"].format(name=name, login=login, folder=folder)]


def _check_wandb() -> list[str]:
    if "WANDB_MODE" in os.environ:
        return []
    import wandb

    try:
        if wandb.login(prompt=False, verify=False):
            return []
    except wandb.errors.Error as error:
        wandb.teardown()  # which would go on with that key in a later run of this process
        raise UserError(f"report_to: W&B refuses its key ({error}); wandb login, or --report_to none") from None
    wandb.teardown()  # login read the environment for good; the next use reads it again
    return _without_key("W&B", "wandb login", MODES["wandb"], "wandb")


def _check_swanlab() -> list[str]:
    import swanlab

    try:
        found = swanlab.Settings()  # the environment, swanlab.yaml and what `swanlab login` left
    except ValueError as error:
        reason = next((line.strip() for line in str(error).splitlines() if "error," in line), str(error))
        raise UserError(
            f"report_to: SwanLab refuses its settings ({reason}); see SWANLAB_* in the environment"
        ) from None
    if found.mode != "online" or found.api_key:
        return []
    return _without_key("SwanLab", "swanlab login", MODES["swanlab"], "swanlog")


def _check_trackio(settings: dict[str, Any]) -> None:
    from huggingface_hub import get_token

    space = settings["trackio_space_id"] or os.environ.get("TRACKIO_SPACE_ID")
    if space and not get_token():
        raise UserError(
            f"report_to: trackio cannot log to the Space {space!r} without a token; export HF_TOKEN, or drop "
            "trackio_space_id (TRACKIO_SPACE_ID) to log on this machine"
        )


def describe(training: Any, notes: Sequence[str]) -> str:
    """The trackers and where they write, in one line.

    Args:
        training: the GRPOConfig.
        notes: what `check` said.
    """
    asks = [name for name, label in (("wandb", "W&B"), ("swanlab", "SwanLab")) if f"{label} has no key" in str(notes)]
    told = []
    for name in training.report_to:
        if name == "tensorboard":
            runs = os.environ.get("TENSORBOARD_LOGGING_DIR") or os.path.join(training.output_dir, "runs")
            told.append(f"tensorboard (in {runs})")
        elif name == "trackio":
            told.append(f"trackio ({_trackio_place(training)})")
        elif name != "none":
            told.append(
                f"{name} ({os.environ.get(MODES[name]) or ('not logged in' if name in asks else 'logged in')})"
            )
    return ", ".join(told) or "none"


def _trackio_place(training: Any) -> str:
    from trackio.utils import TRACKIO_DIR

    space = training.trackio_space_id or os.environ.get("TRACKIO_SPACE_ID")
    return f"Space {space}" if space else f"in {TRACKIO_DIR}"


def start(training: Any) -> None:
    """On the main process, start the trackers' runs where that can fail, before anything is computed.

    The callbacks of transformers find these runs and log to them.

    Args:
        training: the GRPOConfig; `run_name` changes where trackio holds another run of that name.
    """
    from accelerate import PartialState

    if not PartialState().is_main_process:
        return
    resuming = training.resume_from_checkpoint is not None
    if "wandb" in training.report_to:
        import wandb

        try:
            project = os.environ.get("WANDB_PROJECT", "huggingface")
            wandb.init(project=project, name=training.run_name, reinit="finish_previous")
        except wandb.errors.Error as error:
            raise _unreachable("W&B", MODES["wandb"], error) from None
    if "swanlab" in training.report_to:
        import swanlab
        from swanlab.exceptions import ApiError, AuthenticationError

        try:
            # transformers 5.23 asks for a running run first, and swanlab 0.10 raises where there is none
            swanlab.init(
                project=os.environ.get("SWANLAB_PROJECT"),
                name=training.run_name,
                id=os.environ.get("SWANLAB_RUN_ID"),
                resume=os.environ.get("SWANLAB_RESUME") or ("allow" if resuming else None),
                reinit=True,
            )
        except (ApiError, AuthenticationError) as error:
            raise _unreachable("SwanLab", MODES["swanlab"], error) from None
    if "trackio" in training.report_to and not resuming:
        _give_trackio_a_fresh_name(training)


def _unreachable(name: str, variable: str, error: Exception) -> UserError:
    return UserError(
        f"report_to: {name} does not take this run ({error}); check its key and the network, log offline (export "
        f"{variable}=offline), or give --report_to none"
    )


def _give_trackio_a_fresh_name(training: Any) -> None:
    """transformers lets trackio go on with a run of the same name, so that two trainings would be one curve."""
    import trackio

    try:
        taken = {run.name for run in trackio.Api().runs(training.project)}
    except ValueError:  # no such project yet
        return
    name, number = training.run_name, 2
    while training.run_name in taken:
        training.run_name, number = f"{name}-{number}", number + 1
    if training.run_name != name:
        print(f"note: trackio already has a run {name}; this one is called {training.run_name} (--run_name names it)")
