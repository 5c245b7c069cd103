"""Where the curves go: a tracker that cannot work is found before training; without a key it logs offline."""

import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from huggingface_hub import get_token

from grpo.core.errors import UserError
from grpo.core.processes import is_first_process, say
from grpo.runs.directory import recorded

if TYPE_CHECKING:
    from trl import GRPOConfig

TRACKERS = ("wandb", "tensorboard", "swanlab", "trackio")  # as report_to and their packages name them


class Server(NamedTuple):
    """A tracker that logs to a server, or offline to a folder."""

    label: str
    login: str
    mode: str  # the variable that says online, offline, …
    folder: str


SERVERS = {
    "wandb": Server("W&B", "wandb login, or export WANDB_API_KEY", "WANDB_MODE", "wandb"),
    "swanlab": Server("SwanLab", "export SWANLAB_API_KEY", "SWANLAB_MODE", "swanlog"),
}


def check(settings: dict[str, Any], asked: bool = True) -> list[str]:
    """Turn `report_to` into a list of usable trackers, in place; a note for each that is missing or goes offline.

    Args:
        asked: the command line names them, so that a missing one is a mistake; a recipe's is dropped.
    """
    names, notes = [name.strip() for name in (settings["report_to"] or "none").split(",")], []
    if "none" in names and len(names) > 1:
        raise UserError(f"report_to: {settings['report_to']!r}: 'none' cannot be combined with other trackers")
    for name in [name for name in names if name != "none"]:
        if name not in TRACKERS:
            raise UserError(f"report_to: {name!r} is not a tracker; use none, {', '.join(TRACKERS)}")
        if importlib.util.find_spec(name) is None:
            if asked:
                raise UserError(f"report_to: {name} is not installed; pip install {name}, or use --report_to none")
            names.remove(name)
            notes.append(f"note: {name} is not installed, so nothing is logged to it; pip install {name}")
        elif name in SERVERS and SERVERS[name].mode not in os.environ and mode(name) == "offline":
            label, login, _, folder = SERVERS[name]
            notes.append(
                f"note: {label} is not logged in, so it logs offline to ./{folder} ({name} sync uploads it); log in "
                f"({login}) or use --report_to none"
            )
        elif name == "trackio" and settings["trackio_space_id"] and not get_token():
            raise UserError("report_to: trackio's Space needs a token; export HF_TOKEN, or drop trackio_space_id")
    settings["report_to"] = names or ["none"]
    return notes


def mode(name: str) -> Any:
    """How a tracker of SERVERS logs: as its variable says, otherwise online with a key and offline without one."""
    if wanted := os.environ.get(SERVERS[name].mode):
        return wanted
    if name == "swanlab":
        import swanlab

        return "online" if swanlab.Settings().api_key else "offline"  # of the environment, or of `swanlab login`
    import wandb

    try:
        return "online" if wandb.login(prompt=False, verify=False) else "offline"
    except wandb.errors.Error as error:
        raise UserError(f"report_to: W&B refuses its key ({error}); wandb login, or --report_to none") from None
    finally:
        wandb.teardown()  # login read the environment for good; the next use reads it again


def describe(training: "GRPOConfig") -> str:
    """The trackers in one line, with whether a server is logged to."""
    names = training.report_to or []
    return ", ".join(f"{name} ({mode(name)})" if name in SERVERS else name for name in names) or "none"


def start(training: "GRPOConfig") -> None:
    """Start the runs of the servers' trackers before anything is computed: they may refuse them.

    The callbacks of transformers find these runs and log to them.

    Args:
        training: `run_name` changes where trackio holds another run of that name.
    """
    if "trackio" in (training.report_to or []) and is_first_process():
        _name_for_trackio(training)
    for name in training.report_to or []:
        if name not in SERVERS or not is_first_process():
            continue
        label, _, variable, _ = SERVERS[name]
        try:
            if name == "wandb":
                import wandb

                project = os.environ.get("WANDB_PROJECT", "huggingface")
                wandb_mode = mode(name)
                quiet = wandb.Settings(silent=wandb_mode == "offline")  # preflight has said so
                wandb.init(
                    project=project,
                    name=training.run_name,
                    mode=wandb_mode,
                    reinit="finish_previous",
                    settings=quiet,
                )
            else:
                import swanlab

                # transformers 5.23 asks for a running run first, and swanlab 0.10 raises where there is none
                swanlab.init(name=training.run_name, mode=mode(name), reinit=True)
        except Exception as error:  # a server's, the network's, or one about a variable
            raise UserError(
                f"report_to: {label} refuses this run ({error}); check its key and the network, log offline "
                f"(export {variable}=offline), or use --report_to none"
            ) from error


def _name_for_trackio(training: "GRPOConfig") -> None:
    """transformers lets trackio continue a run of the same name, which would make one curve of two trainings."""
    import trackio

    output = Path(str(training.output_dir))
    if training.resume_from_checkpoint and Path(training.resume_from_checkpoint).parent.resolve() == output.resolve():
        training.run_name = recorded(output, "settings", "run_name") or training.run_name
        return
    try:
        taken = {run.name for run in trackio.Api().runs(training.project)}
    except ValueError:  # no such project yet
        return
    name, number = training.run_name, 2
    while training.run_name in taken:
        training.run_name, number = f"{name}-{number}", number + 1
    if training.run_name != name:
        say(f"note: trackio already has a run {name}; this one is called {training.run_name} (--run_name names it)")
