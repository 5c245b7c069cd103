"""Check access to the Hub before training, and upload a run afterwards."""

import json
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.utils import validate_repo_id
from trl import GRPOConfig, GRPOTrainer

from grpo.core import commands
from grpo.core.checklist import Check
from grpo.core.errors import UserError, one_line
from grpo.core.jsonfiles import read_object, write_json, write_text
from grpo.core.text import without_folders
from grpo.report import contents
from grpo.report.files import read_run
from grpo.report.report import write_page

LOGIN = "hf auth login, or export HF_TOKEN (a token that may write), and check the network; or --push_to_hub false"
# Uploaded files of a run, besides its FILES: only at its top, so no pickle, lock, checkpoint or source/
MODEL = {".safetensors", ".json", ".jinja", ".txt", ".model", ".py", ".md"}
PICTURES = {".png"}


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
    """Upload the public files of a run or a merged model, and return the address."""
    if not any(run.glob("*.safetensors")):
        raise UserError(f"publish: {str(run)!r} holds no trained model; name a finished run")
    _check_name(name, "publish")
    command = commands.tool("publish", str(run), name)
    with (
        tempfile.TemporaryDirectory() as folder,
        one_line("the upload failed (", f"); the run is complete in {run}; to upload it: {command}"),
    ):
        _copy_public(run, Path(folder))
        repository = HfApi().create_repo(name, exist_ok=True)
        HfApi().upload_folder(
            repo_id=repository.repo_id, folder_path=folder, commit_message=f"Upload {run.name}", revision=revision
        )
    return str(repository)


def _copy_public(run: Path, folder: Path) -> None:
    """Copy the public files of a run to a folder, with a new report without completions."""
    for path in run.iterdir():
        known = list(contents.entries(path.name))
        public = not (path.name.startswith(".") or any(file.is_private for file in known))
        if not (path.is_file() and public and (known or path.suffix in MODEL)):
            continue
        # a text of the run, or PEFT's, may name a path of this machine
        if (known and path.suffix not in PICTURES) or path.name == "adapter_config.json":
            write_text(folder / path.name, without_folders(path.read_text(encoding="utf-8", errors="replace")))
        else:
            (folder / path.name).symlink_to(path.resolve())
    if record := read_object(run / "run.json"):
        asked = {key: record[key] for key in ("prompt", "shots") if key in record}  # exactly so, for `ask`
        record = json.loads(without_folders(json.dumps(record))) | asked | {"process": None}
        write_json(folder / "run.json", record)
    if (run / "report.html").exists():
        write_page(read_run(folder), public=True)
