"""The tools beside the trainer: python -m grpo report | xray | compare."""

import importlib
import sys

from grpo.config.help import versions
from grpo.core.ending import pipe_may_close
from grpo.core.errors import MISTAKE, UserError, did_you_mean, readable

TOOLS = {  # a tool's module is imported only when it is used; each has main(argv)
    "report": ("grpo.runs.report", "a run directory → report.html and curves.png"),
    "xray": ("grpo.evaluation.xray", "completions in a JSONL file, scored reward by reward"),
    "compare": ("grpo.evaluation.compare", "what several runs learned, side by side"),
}
USAGE = "usage: python -m grpo " + " | ".join(TOOLS) + " (each with --help)"


def main(argv: list[str] | None = None) -> int:
    """Run a tool; its exit status."""
    words = sys.argv[1:] if argv is None else argv
    if words[:1] in (["--help"], ["-h"]):
        print(USAGE, *(f"  {name:8}{what}" for name, (_, what) in TOOLS.items()), sep="\n")
        return 0
    if "--version" in words:
        print(versions())
        return 0
    if not words or words[0] not in TOOLS:
        wrong = f"{words[0]!r} is not a tool{did_you_mean(words[0], TOOLS)}" if words else USAGE
        print(f"error: {wrong}", file=sys.stderr)
        return MISTAKE
    status = 0
    try:
        with pipe_may_close(), readable(left="nothing was written"):
            status = importlib.import_module(TOOLS[words[0]][0]).main(words[1:])
    except UserError as error:  # a library is missing; a tool's own have a line of their own
        print(f"error: {error}", file=sys.stderr)
        return MISTAKE
    return status


if __name__ == "__main__":
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # where stdout is not UTF-8
    sys.exit(main())
