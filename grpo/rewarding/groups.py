"""What the groups of a rollout can teach: are all, some or none of a group's completions right?"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from grpo.rewarding.judge import Judge
from rewards import completion_text


def verdicts(judge: Judge, rows: Sequence[Mapping[str, Any]], completions: Sequence[Any]) -> list[float]:
    """For each completion 1 if it is right, 0 if it is wrong, NaN where nobody can tell.

    Args:
        rows: of the data, one for each completion; equal texts of rows that follow each other are judged once.
    """
    found: list[float] = []
    known: dict[str, float] = {}
    for index, (row, completion) in enumerate(zip(rows, completions, strict=True)):
        if index and row != rows[index - 1]:
            known = {}
        text = completion_text(completion)
        if text not in known:
            known[text] = float(judge.is_right(text, row)) if judge.judges(row) else math.nan
        found.append(known[text])
    return found


def solved(right: torch.Tensor, group: int) -> torch.Tensor:
    """The share of each group's completions that is right, (groups,); NaN where nobody can tell of any.

    >>> solved(torch.tensor([1.0, 0.0, 0.0, 0.0, math.nan, 1.0]), 2)
    tensor([0.5000, 0.0000, 1.0000])
    """
    return torch.nanmean(right.view(-1, group), dim=1)


def shares(solved: torch.Tensor) -> dict[str, float]:
    """Metrics: of the groups that can be judged, which share is all right, all wrong and mixed; empty without any."""
    known = solved[~solved.isnan()]
    kinds = {"all_right": known == 1, "all_wrong": known == 0, "mixed": (known > 0) & (known < 1)}
    return {f"groups/{kind}": those.float().mean().item() for kind, those in kinds.items() if len(known)}
