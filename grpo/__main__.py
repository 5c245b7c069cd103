"""Tools: python -m grpo new | report | xray | compare | ask | merge | publish."""

import os
import sys

if not __package__:  # started as `python path/grpo`, from any directory
    sys.path[0] = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))

from grpo import unhandled  # noqa: F401, I001 - first, for failures of the next imports
import importlib

from grpo.core import versions
from grpo.core.errors import UserError, did_you_mean, one_line, run_main
from grpo.core.processes import ignore_old_names, let_idle_threads_sleep
from grpo.core.requirements import check_environment

TOOLS = {  # a tool's module is imported only when it is used; each has main(argv)
    "new": ("grpo.tools.new", "write the script and the demo to a directory of your own"),
    "report": ("grpo.tools.report", "write report.html and curves.png of a run"),
    "xray": ("grpo.tools.xray", "score a run's completions, or a file of them, reward by reward"),
    "compare": ("grpo.tools.compare", "show what several runs learned, side by side"),
    "ask": ("grpo.tools.ask", "ask a saved run a question"),
    "merge": ("grpo.tools.merge", "merge a LoRA adapter into its model"),
    "publish": ("grpo.tools.publish", "upload a run to the Hub"),
}
USAGE = "usage: python -m grpo " + " | ".join(TOOLS) + " (each with --help)"
LISTED = "\n".join([USAGE, *(f"  {name:8}{what}" for name, (_, what) in TOOLS.items())])


def main(argv: list[str] | None = None) -> int:
    """Run a tool and return its exit status."""
    words = sys.argv[1:] if argv is None else argv
    return run_main(lambda: _run(words))


def _run(words: list[str]) -> int:
    if words[:1] in ([], ["--help"], ["-h"]):
        print(LISTED)
        return 0 if words else 2
    if "--version" in words:
        print(versions.line())
        return 0
    if words[0] not in TOOLS:
        raise UserError(f"{words[0]!r} is not a tool{did_you_mean(words[0], TOOLS)}")
    check_environment()
    let_idle_threads_sleep()
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # no tool uses DeepSpeed, which would warn that there is no GPU
    ignore_old_names()
    with one_line(kinds=(OSError,)):  # a file that may not be read, a directory that may not be written
        return importlib.import_module(TOOLS[words[0]][0]).main(words[1:])


if __name__ == "__main__":
    sys.exit(main())
