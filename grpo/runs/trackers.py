"""Where the curves go: a tracker that cannot work is found before training; without a key it logs offline."""

import importlib.util
import os
from typing import TYPE_CHECKING, Any, NamedTuple

from grpo.core.errors import UserError

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
                f"note: {label} is not logged in, so it logs offline to ./{folder}; log in ({login}) or use "
                "--report_to none"
            )
        elif name == "trackio" and (space := _space(settings["trackio_space_id"])):
            from huggingface_hub import get_token

            if not get_token():
                raise UserError(
                    f"report_to: trackio cannot log to the Space {space!r} without a token; export HF_TOKEN, or drop "
                    "trackio_space_id (TRACKIO_SPACE_ID) to log on this machine"
                )
    settings["report_to"] = names or ["none"]
    return notes


def mode(name: str) -> str:
    """How a tracker of SERVERS logs: as its variable says, otherwise online with a key and offline without one."""
    if told := os.environ.get(SERVERS[name].mode):
        return told
    if name == "swanlab":
        import swanlab

        return "online" if swanlab.Settings().api_key else "offline"  # of the environment, or of `swanlab login`
    import wandb

    try:
        found = wandb.login(prompt=False, verify=False)
    except wandb.errors.Error as error:
        raise UserError(f"report_to: W&B refuses its key ({error}); wandb login, or --report_to none") from None
    finally:
        wandb.teardown()  # login read the environment for good; the next use reads it again
    return "online" if found else "offline"


def describe(training: "GRPOConfig") -> str:
    """The trackers and where they write, in one line."""
    places = []
    for name in training.report_to or []:
        if name in SERVERS:
            places.append(f"{name} ({mode(name)})")
        elif name == "tensorboard":
            runs = os.environ.get("TENSORBOARD_LOGGING_DIR") or os.path.join(training.output_dir or "", "runs")
            places.append(f"tensorboard (in {runs})")
        elif name == "trackio":
            from trackio.utils import TRACKIO_DIR

            space = _space(training.trackio_space_id)
            places.append(f"trackio (Space {space})" if space else f"trackio (in {TRACKIO_DIR})")
    return ", ".join(places) or "none"


def _space(setting: str | None) -> str | None:
    return setting or os.environ.get("TRACKIO_SPACE_ID")


def start(training: "GRPOConfig") -> None:
    """On the main process, start the trackers' runs where that can fail, before anything is computed.

    The callbacks of transformers find these runs and log to them.

    Args:
        training: `run_name` changes where trackio holds another run of that name.
    """
    from accelerate import PartialState

    if not PartialState().is_main_process:
        return
    names = training.report_to or []
    for name in [name for name in names if name in SERVERS]:
        if (how := mode(name)) == "offline":
            os.environ[SERVERS[name].mode] = how
    resuming = training.resume_from_checkpoint is not None
    if "wandb" in names:
        import wandb

        try:
            project = os.environ.get("WANDB_PROJECT", "huggingface")
            wandb.init(project=project, name=training.run_name, reinit="finish_previous")
        except wandb.errors.Error as error:
            raise _refused("wandb", error) from None
    if "swanlab" in names:
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
        except (ApiError, AuthenticationError, ValueError) as error:  # ValueError: a variable of its own is wrong
            raise _refused("swanlab", error) from None
    if "trackio" in names and not resuming:
        _rename_for_trackio(training)


def _refused(name: str, error: Exception) -> UserError:
    label, _, variable, _ = SERVERS[name]
    return UserError(
        f"report_to: {label} does not take this run ({error}); check its key and the network, log offline (export "
        f"{variable}=offline), or use --report_to none"
    )


def _rename_for_trackio(training: "GRPOConfig") -> None:
    """transformers lets trackio continue a run of the same name, which would make one curve of two trainings."""
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
