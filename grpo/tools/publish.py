"""`python -m grpo publish RUN NAME`: upload a run to the Hub."""

from pathlib import Path

from grpo.core.errors import ArgumentParser
from grpo.core.text import printable
from grpo.report.hub import publish


def main(argv: list[str]) -> int:
    """Run `python -m grpo publish` and return its exit status."""
    parser = ArgumentParser(
        prog="python -m grpo publish", description="Upload a run's model, card and records to the Hub, and list them."
    )
    parser.add_argument("run", metavar="RUN", type=Path, help="the directory of a run, or of a merged model")
    parser.add_argument("name", metavar="NAME", help="your-name/your-model; made (public) if it does not exist")
    arguments = parser.parse_args(argv)
    print(printable(f"Uploaded to {publish(arguments.run, arguments.name)}"))
    return 0
