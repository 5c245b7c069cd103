"""`FILES`: the files of a run's directory. Its end, a resumed run, `report` and `publish` read this one list."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from grpo.core.directories import others_in
from grpo.core.errors import UserError
from grpo.core.text import listed
from grpo.report import charts
from grpo.report.files import RunFiles, read_run
from grpo.report.report import limits, write_page


def _draw_curves(run: RunFiles, path: Path) -> None:
    if run.curves:
        charts.draw_curves(path, run.curves, run.held_out_curves, limits(run))


def _draw_page(run: RunFiles, path: Path) -> None:
    write_page(run)


@dataclass(frozen=True)
class RunFile:
    """A file of a run, besides its model and its checkpoints.

    Attributes:
        name: a name, or a pattern of names.
        draw: writes it from the others at the end of a run, and for `python -m grpo report`; None: the run writes it.
        is_log: it has a JSON object with its `step` a line: a resumed run keeps those up to its checkpoint.
        is_result: it is about the end of a run: a resumed run moves it to `_ended-at-step-N`.
        is_private: it contains questions or completions: `publish` keeps it here.
    """

    name: str
    draw: Callable[[RunFiles, Path], Any] | None = None
    is_log: bool = False
    is_result: bool = False
    is_private: bool = False


FILES = (
    RunFile("run.json"),
    RunFile("metrics.jsonl", is_log=True),
    RunFile("alarms.jsonl", is_log=True),
    RunFile("faults.jsonl", is_log=True, is_private=True),
    RunFile("eval_before.json"),
    RunFile("eval_only.json"),
    RunFile("eval_after.json", is_result=True),
    RunFile("completions_*", is_private=True),
    RunFile("completions_during.jsonl", is_log=True),
    RunFile("completions_after.jsonl", is_result=True),
    RunFile("comparison.json", is_result=True),
    RunFile("README.md", is_result=True),
    RunFile("merged", is_result=True),
    RunFile("curves.png", draw=_draw_curves, is_result=True),
    RunFile("report.html", draw=_draw_page, is_private=True),  # `publish` draws another without completions
)


def entries(name: str) -> Iterator[RunFile]:
    """Yield what is known of a file with this name."""
    return (file for file in FILES if fnmatch(name, file.name))


def _is_kept(name: str) -> bool:
    """True for a file of a run that `draw` does not write over."""
    files = list(entries(name))
    return bool(files) and not any(file.draw for file in files)


def draw(directory: Path) -> list[Path]:
    """Write the report and all else that is drawn from a run's files. Return the paths.

    Raises:
        UserError: the directory is not a run's, or a file of it is broken.
    """
    if others := [name for name in others_in(directory) if not _is_kept(name)]:
        raise UserError(f"{str(directory)!r} holds {listed(others, 3)}, but no run.json; name a run's directory")
    run, paths = read_run(directory), []
    for file in FILES:
        if file.draw:
            file.draw(run, path := directory / file.name)
            paths += [path] if path.exists() else []
    return paths
