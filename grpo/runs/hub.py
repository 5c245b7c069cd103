"""Check access to the Hub before training, and upload a run after it.

python -m grpo publish RUN NAME
"""

import json
import shlex
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path

from huggingface_hub import HfApi
from trl import GRPOConfig, GRPOTrainer

from grpo.core.checklist import Check
from grpo.core.errors import ArgumentParser, UserError, one_line
from grpo.core.text import without_folders
from grpo.runs import report
from grpo.runs.checkpoints import write_json, write_text
from grpo.runs.files import read_object, read_run

LOGIN = "hf auth login, or export HF_TOKEN (a token that may write), and check the network; or --push_to_hub false"
# What is uploaded of a run: by their endings, files at its top alone, so no pickle, lock, checkpoint or source/
UPLOADED = {".safetensors", ".json", ".jinja", ".txt", ".model", ".py", ".md", ".jsonl", ".html", ".png"}
PRIVATE = ("completions_*", "faults.jsonl", ".*")  # questions and completions among them
TEXTS = ("README.md", "adapter_config.json", "comparison.json", "eval_*.json", "*.jsonl")  # they may name a path


def asking() -> AbstractContextManager[None]:
    """Before training, whatever the Hub or the network answers is one line."""
    return one_line("push_to_hub: the Hub refuses the model (", f"); {LOGIN}")


def check(training: GRPOConfig) -> Check:
    """A line of preflight's table: who pushes where; UserError where the Hub cannot be reached."""
    with asking():
        user = HfApi().whoami()
    finding = f"{training.hub_model_id or training.output_dir}, as {user['name']}"
    if user.get("auth", {}).get("accessToken", {}).get("role") == "read":
        return Check("error", "push_to_hub", f"{finding}, whose token may only read", LOGIN)
    return Check("ok", "push_to_hub", finding)


def push(trainer: GRPOTrainer) -> None:
    """Publish a trainer's run, whose repository TRL has made."""
    if trainer.is_world_process_zero():
        run, name = Path(str(trainer.args.output_dir)), str(trainer.hub_model_id)
        print(f"Uploaded to {publish(run, name, trainer.args.hub_revision)}")


def publish(run: Path, name: str, revision: str | None = None) -> str:
    """Upload what others may see of a run, or of a merged model, and return its address."""
    if not any(run.glob("*.safetensors")):
        raise UserError(f"publish: {str(run)!r} holds no trained model; name a finished run")
    command = shlex.join(["python", "-m", "grpo", "publish", str(run), name])
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
    """Fill the folder with what is uploaded of a run: its report is drawn anew, without completions."""
    for path in run.iterdir():
        if path.suffix not in UPLOADED or any(map(path.match, PRIVATE)):
            continue
        if any(map(path.match, TEXTS)):
            write_text(folder / path.name, without_folders(path.read_text(encoding="utf-8", errors="replace")))
        elif path.is_file() and path.name not in ("run.json", "report.html"):
            (folder / path.name).symlink_to(path.resolve())
    if record := read_object(run / "run.json"):
        asked = {key: record[key] for key in ("prompt", "shots") if key in record}  # exactly so, for `ask`
        record = json.loads(without_folders(json.dumps(record))) | asked | {"process": None}
        write_json(folder / "run.json", record)
    if (run / "report.html").exists():
        report.write_page(read_run(folder))


def main(argv: list[str]) -> int:
    """`python -m grpo publish`; its exit status."""
    parser = ArgumentParser(
        prog="python -m grpo publish", description="Upload a run to the Hub, without checkpoints and completions."
    )
    parser.add_argument("run", metavar="RUN", type=Path, help="the directory of a run, or of a merged model")
    parser.add_argument("name", metavar="NAME", help="your-name/your-model; made (public) if it does not exist")
    given = parser.parse_args(argv)
    print(f"Uploaded to {publish(given.run, given.name)}")
    return 0
