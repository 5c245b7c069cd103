"""The tools beside the trainer: python -m grpo report | xray | plan."""

import sys

from grpo.config import plan
from grpo.evaluation import xray
from grpo.runs import report

TOOLS = {"report": report.main, "xray": xray.main, "plan": plan.main}


def main(argv: list[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    if not words or words[0] not in TOOLS:
        print(f"error: usage: python -m grpo {' | '.join(TOOLS)} (each with --help)", file=sys.stderr)
        return 2
    return TOOLS[words[0]](words[1:])


if __name__ == "__main__":
    sys.exit(main())
