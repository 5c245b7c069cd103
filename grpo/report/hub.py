"""Check access to the Hub before training, and upload a run afterwards."""

import os
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.utils import validate_repo_id
from trl import GRPOConfig, GRPOTrainer

from grpo.core import commands
from grpo.core.checklist import Check
from grpo.core.directories import is_run
from grpo.core.errors import UserError, one_line
from grpo.core.jsonfiles import read_value
from grpo.core.text import counted, human_bytes, printable
from grpo.report import public
from grpo.report.card import is_hub_id

LOGIN = "hf auth login, or export HF_TOKEN (a token that may write), and check the network; or --push_to_hub false"


def one_line_refusals() -> AbstractContextManager[None]:
    """Turn any error of the Hub or the network before training into one line."""
    return one_line("push_to_hub: the Hub refuses the model (", f"); {LOGIN}")


def check_access(training: GRPOConfig) -> Check:
    """Report for preflight which user pushes to which repository. Raise UserError if the Hub cannot be reached."""
    _check_name(training.hub_model_id or Path(str(training.output_dir)).absolute().name, "hub_model_id")
    with one_line_refusals():
        user = HfApi().whoami()
    finding = f"{training.hub_model_id or training.output_dir}, as {user['name']}"
    if user.get("auth", {}).get("accessToken", {}).get("role") == "read":
        return Check("error", "push_to_hub", f"{finding}, whose token may only read", LOGIN)
    return Check("ok", "push_to_hub", finding)


def _check_name(name: str, setting: str) -> None:
    """Raise UserError if the Hub has no such names."""
    with one_line(f"{setting}: ", kinds=(ValueError,)):
        validate_repo_id(name)


def push(trainer: GRPOTrainer) -> None:
    """Upload a trainer's run to the repository that TRL has created."""
    if trainer.is_world_process_zero():
        run, name = Path(str(trainer.args.output_dir)), str(trainer.hub_model_id)
        print(f"Uploaded to {publish(run, name, trainer.args.hub_revision)}")


def publish(run: Path, name: str, revision: str | None = None) -> str:
    """Upload the public files of a run or a merged model, print their names, and return the address."""
    if not is_run(run):
        raise UserError(f"publish: {str(run)!r} is neither a run nor a merged model (no run.json of one); name one")
    if not any(name.endswith(".safetensors") for name in public.files_of(run)):
        raise UserError(f"publish: {str(run)!r} holds no trained model; name a finished run")
    _check_name(name, "publish")
    if base := _local_base(run):
        print(
            printable(
                f"note: the adapter's base model {base!r} is on this machine only, where no reader has it; publish "
                f"the merged model instead: {commands.tool('merge', str(run))}"
            )
        )
    command = commands.tool("publish", str(run), name)
    with (
        tempfile.TemporaryDirectory() as folder,
        one_line("the upload failed (", f"); the run is complete in {run}; to upload it: {command}"),
    ):
        name = name if "/" in name else f"{HfApi().whoami()['name']}/{name}"  # as the card names it
        public.copy(run, Path(folder), name)
        print(_listed(Path(folder)))
        repository = HfApi().create_repo(name, exist_ok=True)
        HfApi().upload_folder(
            repo_id=repository.repo_id, folder_path=folder, commit_message=f"Upload {run.name}", revision=revision
        )
    return str(repository)


def _local_base(run: Path) -> str:
    """Return the base model of an adapter if it is no repository of the Hub, but a directory; else ""."""
    base = str(read_value(run / "adapter_config.json", "base_model_name_or_path") or "")
    return base if base and (os.path.isdir(base) or not is_hub_id(base)) else ""


def _listed(folder: Path) -> str:
    """List the files that are uploaded, with their sizes, for the console."""
    sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    files = ", ".join(f"{name} {human_bytes(size)}" for name, size in sizes.items())
    return printable(f"Uploading {counted(len(sizes), 'file')}, {human_bytes(sum(sizes.values()))}: {files}")
