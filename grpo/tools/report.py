"""`python -m grpo report RUN_DIR`: write a run's report and its curves."""

from pathlib import Path

from grpo.core.errors import ArgumentParser
from grpo.core.text import printable
from grpo.report.contents import draw


def main(argv: list[str]) -> int:
    """Run `python -m grpo report` and return its exit status."""
    parser = ArgumentParser(prog="python -m grpo report", description="Write a run's report.html and curves.png.")
    parser.add_argument("run", metavar="RUN_DIR", type=Path, help="the directory of a run, finished or not")
    for path in draw(parser.parse_args(argv).run):
        print(printable(str(path)))
    return 0
