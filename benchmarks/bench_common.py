"""What the benchmarks share: the project on the path, a clock, prompts of a file of questions, tables.

They are scripts: `python benchmarks/bench_x.py` finds this module beside it.
"""

import resource
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from grpo.config.check_cases import clock, load_model, load_tokenizer  # noqa: E402, F401


def device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def processor_seconds() -> float:
    """Of all processes that this one has started and that have ended by now."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime


def load(model: str) -> tuple[Any, Any]:
    """A float32 model, a local directory or a Hub id, and its tokenizer."""
    return load_model(model, device(), "float32"), load_tokenizer(model)


def prompt_ids(file: str, tokenizer: Any, count: int, num_shots: int) -> list[list[int]]:
    """Token ids of the first questions of a file, in the xml format."""
    from grpo.data import prompts, sources
    from train_grpo import EXEMPLARS, PROMPT_FORMATS

    rows = sources.load_source(file)["train"].select(range(count))
    shots = EXEMPLARS[:num_shots]
    return prompts.tokenize([PROMPT_FORMATS["xml"].prompt(row["question"], shots) for row in rows], tokenizer)


def print_table(title: str, headings: Sequence[str], rows: Iterable[Sequence[str]], width: int = 120) -> None:
    """The first column to the left, numbers to the right."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title)
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="right" if index else "left")
    for row in rows:
        table.add_row(*row)
    Console(width=width).print(table)
