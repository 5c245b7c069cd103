"""Check a run's trackers before it starts, and call them so that they never end it.

transformers' callbacks log to them, and TRL does itself: its table of completions and its timings.
"""

import contextlib
import functools
import os
import re
import secrets
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK, get_available_reporting_integrations
from trl import GRPOConfig
from trl.extras import profiling
from trl.trainer import grpo_trainer

from grpo.core.checklist import Check
from grpo.core.errors import UserError, did_you_mean, one_line, reason_of
from grpo.core.processes import is_first_process, say
from grpo.core.settings import MACHINE, Settings
from grpo.results.record import RunRecord

OFFLINE = "W&B is not logged in, so it logs offline to ./wandb (wandb sync uploads it)"
TRL_MODULES, CALLED_BY_TRL = (grpo_trainer, profiling), ("wandb", "trackio", "mlflow")
BEGUN: set[str] = set()  # W&B runs of this process that the user has not begun: W&B would add the next run to them
WANDB_LOGIN = "log in (wandb login, or export WANDB_API_KEY) or use --report_to none"


def names(report_to: str | None) -> list[str]:
    """Return the trackers that `report_to` names, or `none`.

    >>> names("wandb, tensorboard"), names(None)
    (['wandb', 'tensorboard'], ['none'])
    """
    return [name.strip() for name in (report_to or "none").split(",")]


def drop_missing(settings: Settings) -> None:
    """Reduce `report_to` to the usable trackers, with a note for each missing or offline one.

    Without a login WANDB_MODE is set in the environment.

    Raises:
        UserError: a name is unknown, or the command line names a tracker that is missing.
    """
    asked, usable = settings.origin.get("report_to") == "flag", list[str]()
    wanted = names(settings["report_to"])
    for name in [name for name in wanted if name != "none"]:
        if name not in INTEGRATION_TO_CALLBACK:
            raise UserError(f"report_to: {name!r} is not a tracker{did_you_mean(name, INTEGRATION_TO_CALLBACK)}")
        if name in get_available_reporting_integrations():
            usable.append(name)
            continue
        finding, remedy = f"{name} is not installed", "install its package, or use --report_to none"
        if asked:
            raise UserError(f"report_to: {finding}; {remedy}")
        settings.notes.append(Check("warning", "report_to", f"{finding}, so nothing is logged to it", remedy))
    if (usable or ["none"]) != wanted:
        settings.set("report_to", ",".join(usable or ["none"]), MACHINE)
    if "wandb" in usable and not os.environ.get("WANDB_MODE") and not _logged_in_to_wandb():
        os.environ["WANDB_MODE"] = "offline"
        settings.notes.append(Check("warning", "report_to", OFFLINE, WANDB_LOGIN))


# --- While training -----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def dropping_failed(callbacks: Iterable[Any]) -> Iterator[None]:
    """Drop a tracker that fails with one line, instead of ending the run.

    In this context TRL's modules call trackers through ours.

    Args:
        callbacks: the trainer's. Events of trackers' callbacks are replaced, for good: they are called after training.
    """
    failed: set[str] = set()

    def safe(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(call)
        def called(*args: Any, **kwargs: Any) -> Any:
            if name not in failed:
                try:
                    return call(*args, **kwargs)
                except Exception as error:
                    failed.add(name)
                    say(f"note: report_to: {name} failed ({reason_of(error)}); the run continues without it")
            return None

        return called

    for callback in callbacks:
        if name := next((name for name, kind in INTEGRATION_TO_CALLBACK.items() if isinstance(callback, kind)), ""):
            for event in [event for event in dir(callback) if event.startswith("on_")]:
                setattr(callback, event, safe(name, getattr(callback, event)))
    own = [
        (module, name, vars(module)[name]) for module in TRL_MODULES for name in CALLED_BY_TRL if name in vars(module)
    ]
    try:
        for module, name, tracker in own:
            setattr(module, name, _Safe(tracker, functools.partial(safe, name)))
        yield
    finally:
        for module, name, tracker in own:
            setattr(module, name, tracker)


class _Safe:
    """A tracker's module whose functions are made safe."""

    def __init__(self, tracker: Any, safe: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        self._tracker, self._make_safe = tracker, safe

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._tracker, name)
        return self._make_safe(value) if callable(value) else value


def wandb_id(training: GRPOConfig) -> str | None:
    """Return the id of the run's W&B run: the user's own, the one that a resumed run already has, or a new one."""
    if "wandb" not in (training.report_to or []):
        return None
    import wandb  # optional package

    output, checkpoint = Path(training.output_dir or ""), training.resume_from_checkpoint
    resumes = checkpoint and Path(checkpoint).parent.resolve() == output.resolve()  # elsewhere it is another run
    earlier = RunRecord.known(output).wandb_id if resumes else None
    if not (isinstance(earlier, str) and re.fullmatch(r"[\w.-]+", earlier)):  # W&B names a folder after it
        earlier = None
    if wandb.run is not None and wandb.run.id in BEGUN - {earlier}:
        wandb.finish()
    begun = wandb.run.id if wandb.run is not None else None
    return begun or os.environ.get("WANDB_RUN_ID") or earlier or secrets.token_hex(4)


@contextlib.contextmanager
def resuming_wandb(run_id: str | None) -> Iterator[None]:
    """Let W&B begin or continue the run of this id, unless the environment names one."""
    variables = {"WANDB_RUN_ID": run_id} if run_id else {}
    if run_id and os.environ.get("WANDB_MODE") != "offline":  # there the id alone joins the parts, at their upload
        variables["WANDB_RESUME"] = "allow"
    missing = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(missing)
    if run_id and sys.modules["wandb"].run is None:
        BEGUN.add(run_id)
    try:
        yield
    finally:
        for name in missing:
            os.environ.pop(name, None)


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
