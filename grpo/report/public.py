"""Copy what is public of a run: the files of a list of names, without the names and folders of this machine."""

import contextlib
import getpass
import os
import platform
import re
from collections.abc import Callable, Collection, Iterator
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

from grpo.core.jsonfiles import read_lines, read_object, read_value, write_json, write_lines, write_text
from grpo.core.text import anonymous, owners
from grpo.report import contents
from grpo.report.card import of_repository
from grpo.report.files import read_run
from grpo.report.report import write_page
from grpo.results.record import RunRecord

# Public besides the public FILES: what transformers, PEFT and tokenizers write for a language model. There are no
# pickles, folders or links among them; code that `auto_map` names is added
CONFIGS = (
    "config.json",
    "generation_config.json",
    "adapter_config.json",
    "tokenizer_config.json",
)
WEIGHTS = (
    "model.safetensors",
    "model-?????-of-?????.safetensors",
    "model.safetensors.index.json",
    "adapter_model.safetensors",
)
VOCABULARIES = (
    "tokenizer.json",
    "tokenizer.model",
    "sentencepiece.model",
    "sentencepiece.bpe.model",
    "spiece.model",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "emoji.json",
    "tekken.json",
    "added_tokens.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)
PICTURES = {".png"}
# Public values of run.json: what repeats, explains or asks the run. Others are of use on its machine only
RECORD = (
    "status",
    "started",
    "script",
    "launcher",
    "program",
    "argv",
    "commit",
    "versions",
    "hardware",
    "geometry",
    "prompt",
    "shots",
    "data",
    "perfect",
    "sources",
    "code",
    "origin",
    "decisions",
    "settings",
    "sessions",
    "seconds",
    "step",
    "planned",
    "best_step",
)
SESSION = ("started", "from_step", "changed", "seconds", "status")
OF_DATA = ("by",)  # keys of comparison.json with cells of the data, which stay here as its questions do
EXACT = ("prompt", "shots")  # for `ask`


def files_of(run: Path) -> list[str]:
    """Return the names of a run's public files, sorted. Links, whatever they point to, are not among them."""
    names = {path.name for path in run.iterdir() if path.is_file() and not path.is_symlink()}
    model = [
        name for name in names if any(fnmatchcase(name, pattern) for pattern in (*CONFIGS, *WEIGHTS, *VOCABULARIES))
    ]
    listed = {name: list(contents.entries(name)) for name in names}
    records = [name for name, files in listed.items() if files and not any(file.is_private for file in files)]
    page = {"report.html"} & names  # another one, without completions
    return sorted({*model, *records, *page, *_own_code(run, names)})


def _own_code(run: Path, names: Collection[str]) -> set[str]:
    """Return the names of a model's and a tokenizer's own Python files: `auto_map`'s, and those that these import."""
    named = [read_value(run / name, "auto_map") for name in ("config.json", "tokenizer_config.json") if name in names]
    paths = [path for classes in named if isinstance(classes, dict) for path in _texts(list(classes.values()))]
    new = {match[1] for path in paths if (match := re.fullmatch(r"(\w+)\.\w+", path))}  # not "other/repository--…"
    files = set[str]()
    while new := {f"{name}.py" for name in new} & set(names) - files:
        files |= new
        texts = [(run / name).read_text(encoding="utf-8", errors="replace") for name in new]
        new = {name for text in texts for name in re.findall(r"^\s*from\s+\.(\w+)\s+import\b", text, re.MULTILINE)}
    return files


def copy(run: Path, folder: Path, repository: str = "") -> None:
    """Copy the public files of a run to a folder, without names and folders, and a new report without completions.

    Args:
        repository: its owner's name is public, and so are those of the model and the data.
    """
    record, files = RunRecord.read(run), files_of(run)
    hide = partial(anonymous, names=_names(record, repository))
    for name in set(files) - {"run.json", "report.html"}:
        path, target = run / name, folder / name
        if name in CONFIGS:
            _copy_changed(path, target, read_object, partial(_mapped, change=_last_part), write_json)
        elif not any(contents.entries(name)) or path.suffix in PICTURES:
            target.symlink_to(path.resolve())
        elif path.suffix == ".json":
            _copy_changed(path, target, read_object, lambda value: _mapped(_without_cells(value), hide), write_json)
        elif path.suffix == ".jsonl":
            _copy_changed(path, target, read_lines, partial(_mapped, change=hide), write_lines)
        else:
            text = hide(path.read_text(encoding="utf-8", errors="replace"))
            write_text(target, of_repository(text, repository) if repository else text)
    if "run.json" in files:
        write_json(folder / "run.json", _public_record(record, hide))
    if "report.html" in files:
        write_page(read_run(folder), public=True)


def _without_cells(value: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON object without the keys that have cells of the user's data."""
    return {key: item for key, item in value.items() if key not in OF_DATA}


def _copy_changed(
    path: Path, target: Path, read: Callable[[Path], Any], change: Callable[[Any], Any], write: Any
) -> None:
    """Copy a JSON file; one that the change leaves alone byte by byte."""
    value = read(path)
    if (changed := change(value)) == value:
        target.symlink_to(path.resolve())
    else:
        write(target, changed)


def _public_record(record: RunRecord, hide: Callable[[str], str]) -> dict[str, Any]:
    """Return what is public of run.json: RECORD, with the last part of each path, and without names."""
    folder, values = record.started_in or "", record.to_json()

    def word(text: str) -> str:  # of a command line, or a setting
        flag, equals, value = text.partition("=") if text.startswith("--") else ("", "", text)
        return hide(flag + equals + _last_part(value, folder))

    public = {key: _mapped(values[key], hide) for key in RECORD if key in values}
    public |= {key: _mapped(values[key], word) for key in ("program", "argv", "settings") if key in values}
    sessions = public.get("sessions", [])
    if sessions:
        public["sessions"] = [{key: session[key] for key in SESSION if key in session} for session in sessions]
    return public | {key: values[key] for key in EXACT if key in values}


def _last_part(value: str, folder: str = "") -> str:
    """Return the last part of a path of this machine; another text as it is.

    Args:
        folder: where a relative path begins.
    """
    path = Path(value)
    is_absolute = (
        path.is_absolute() and len(path.parts) > 2 and os.path.exists(path.parents[-2])
    )  # not "/think about a/b"
    is_local = is_absolute or value.startswith(("./", "../", "~/")) or os.path.exists(os.path.join(folder, value))
    return Path(anonymous(value)).name or value if is_local and "\n" not in value else value


def _names(record: RunRecord, repository: str) -> dict[str, str]:
    """Return the users and hosts that a run's record and this machine know, with the words that replace them.

    An owner of the repository, or of the model or data on the Hub, is public.
    """
    users = set[str]().union(*map(owners, [str(Path.home()), *_texts(record.to_json())]))
    with contextlib.suppress(OSError, KeyError):  # a user without a name
        users.add(getpass.getuser())
    hosts = {str(host) for host in (platform.node(), record.host) if host}
    ids = ("model_name_or_path", "dataset_name", "eval_dataset_name", "hub_model_id")
    public = {str(name).partition("/")[0] for name in (repository, *map(record.settings.get, ids)) if name}
    names = dict.fromkeys(users, "user") | dict.fromkeys(hosts | {host.partition(".")[0] for host in hosts}, "host")
    return {name: word for name, word in names.items() if name not in public}


def _texts(value: Any) -> Iterator[str]:
    """Yield the texts in a JSON value."""
    if isinstance(value, str):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _texts(item)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """Return a JSON value with each of its texts changed, keys among them."""
    if isinstance(value, dict):
        return {change(key): _mapped(item, change) for key, item in value.items()}
    if isinstance(value, list):
        return [_mapped(item, change) for item in value]
    return change(value) if isinstance(value, str) else value
