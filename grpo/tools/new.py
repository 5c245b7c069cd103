"""`python -m grpo new DIR`: write the script, rewards.py and the demo's files to a directory, to edit and run there.

Recipes and examples that are not copied are found by their names all the same.
"""

import importlib.metadata
import os
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from grpo.core import INSTALLED, ROOT
from grpo.core.errors import ArgumentParser, UserError
from grpo.core.text import printable

FILES = ("train_grpo.py", "rewards.py", "recipes/demo.yaml", "assets/demo/*.jsonl", "assets/demo/model/*", "launch/*")


def names() -> list[Path]:
    """Return the files to write, relative to the directory."""
    return [path.relative_to(ROOT) for pattern in FILES for path in sorted(ROOT.glob(pattern)) if path.is_file()]


def write(directory: Path) -> None:
    """Write the files, all of them or none.

    Raises:
        UserError: one of them exists, or a file or a link is where a directory should be.
    """
    if taken := [str(name) for name in names() if os.path.lexists(directory / name)]:  # also as a broken link
        raise UserError(f"new: {str(directory)!r} already holds {taken[0]}; use another directory")
    for parent in dict.fromkeys((directory / name).parent for name in names()):
        inside = [folder for folder in (parent, *parent.parents) if folder.is_relative_to(directory)]
        if link := next((folder for folder in inside if folder != directory and folder.is_symlink()), None):
            raise UserError(f"new: {str(link)!r} is a link; use another directory")
        if not (blocked := next(filter(os.path.lexists, (parent, *parent.parents)))).is_dir():
            raise UserError(f"new: {str(blocked)!r} is not a directory; use another name")
    folders = dict.fromkeys(folder for name in names() for folder in reversed((directory / name).parents))
    made = [folder for folder in folders if not folder.exists()]
    written: list[Path] = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory, prefix=".new-") as folder:
            part = Path(folder)
            for name in names():  # all of them before the first one appears
                (part / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, part / name)
            for name in names():
                (directory / name).parent.mkdir(parents=True, exist_ok=True)
                written.append(directory / name)
                (part / name).rename(directory / name)
    except BaseException:  # Ctrl-C, too
        for path in written:
            path.unlink(missing_ok=True)
        for empty in filter(Path.exists, reversed(made)):
            empty.rmdir()
        raise


def next_steps(directory: Path) -> Iterator[str]:
    """Yield what to do next, from the working directory."""
    if not (INSTALLED or any(importlib.metadata.distributions(name="lean-grpo"))):
        yield f"  {shlex.join(['pip', 'install', str(ROOT / 'exact_answers'), f'{ROOT}[script]'])}"
    if directory.resolve() != Path.cwd():
        yield f"  cd {shlex.quote(str(directory))}"
    yield "  python train_grpo.py --config demo     learns small sums on a CPU, in under a minute"
    yield f"Next, edit train_grpo.py: {ROOT / 'docs' / 'your-own-task.md'}"


def main(argv: list[str]) -> int:
    """Run `python -m grpo new` and return its exit status."""
    parser = ArgumentParser(prog="python -m grpo new", description="Write the script, its rewards and the demo.")
    parser.add_argument("directory", metavar="DIR", type=Path, help="the directory to write to; . is this one")
    arguments = parser.parse_args(argv)
    write(arguments.directory)
    wrote = f"Wrote train_grpo.py, rewards.py and the demo (recipes/, assets/, launch/) to {arguments.directory}"
    print(printable("\n".join([wrote, *next_steps(arguments.directory)])))
    return 0
