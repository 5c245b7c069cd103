"""What a run has shown so far, as far as alarms need it: its last rollouts, and its metrics step by step."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

WINDOW = 5  # optimizer steps over which entropies are averaged
IN_A_ROW = 3  # rollouts or optimizer steps that must look alike before an alarm: one may be chance


@dataclass(frozen=True)
class Rollout:
    """One rollout of all processes, group by group.

    `rewards` holds each reward's weighted values, None where it returned none; one whose weight is 0 is left out.
    A completion without any value, as the reward guard leaves it, has no part in its group.
    """

    prompts: list[Any]
    completions: list[str]
    rewards: dict[str, list[float | None]]
    group: int  # completions per group
    weights: dict[str, float] = field(default_factory=dict)  # of each reward; 1 where there is none
    others: dict[str, list[float | None]] = field(default_factory=dict)  # what is left out of `rewards`, unweighted

    def groups(self) -> Iterator[slice]:
        return (slice(start, start + self.group) for start in range(0, len(self.prompts), self.group))

    def spread(self, name: str, group: slice) -> float:
        values = [value for value in self.rewards[name][group] if value is not None]
        return max(values) - min(values) if values else 0.0

    def totals(self, group: slice) -> list[float]:
        """What each completion earned, of those that any reward has scored; one 0 where none is."""
        columns = zip(*(self.rewards[name][group] for name in self.rewards), strict=True)
        rows = [row for row, scored in zip(columns, self.scored(group), strict=True) if scored]
        return [sum(value or 0.0 for value in row) for row in rows] or [0.0]

    def scored(self, group: slice) -> list[bool]:
        columns = [*self.rewards.values(), *self.others.values()]
        return [any(value is not None for value in row) for row in zip(*(c[group] for c in columns), strict=True)]


@dataclass
class Observed:
    """What a run has shown so far; a check reads it, the callback in monitoring.py writes it."""

    scaled_by_group: bool = True  # advantages are divided by the group's standard deviation
    chat_template_unused: bool = False  # the tokenizer has a chat template, and the prompts are bare text
    metrics: dict[str, list[float]] = field(default_factory=dict)  # TRL's, the means of the first and last steps
    rollouts: list[Rollout] = field(default_factory=list)  # the last IN_A_ROW
    rollouts_seen: dict[str, int] = field(default_factory=dict)  # by reward: those that it had a weight in
    rollouts_after_warmup: dict[str, int] = field(default_factory=dict)
    # of each reward's values at a weight of 1 or -1, in the whole run: weights may change
    highest: dict[str, float] = field(default_factory=dict)
    lowest: dict[str, float] = field(default_factory=dict)
    # the lowest and the highest that a completion has earned with these weights
    totals: tuple[float, float] | None = None
    nonfinite: str = ""  # "the gradient holds" or "the loss is", where it does or is
    moves: int = 0  # optimizer steps with a learning rate above 0
    weights_moved: bool | None = None  # None before it is known

    @classmethod
    def restored(cls, found: dict[str, Any], **fixed: bool) -> "Observed":
        """What a checkpoint has kept (`dataclasses.asdict`, through JSON), but for what follows from the run."""
        rollouts = [Rollout(**rollout) for rollout in found["rollouts"]]
        totals = found["totals"] and tuple(found["totals"])
        return cls(**{**found, "rollouts": rollouts, "totals": totals, **fixed})

    def note(self, key: str, value: float) -> None:
        """The mean of a metric in an optimizer step; of many steps the first and the last WINDOW are kept."""
        values = self.metrics.setdefault(key, [])
        values.append(value)
        if len(values) > 2 * WINDOW:
            del values[WINDOW]

    def add(self, rollout: Rollout, after_warmup: bool = True) -> None:
        if self.rollouts and self.rollouts[-1].weights != rollout.weights:
            self.totals = None
        self.rollouts = [*self.rollouts[1 - IN_A_ROW :], rollout]
        totals = [*rollout.totals(slice(None)), *(self.totals or ())]
        self.totals = min(totals), max(totals)
        for name, values in rollout.rewards.items():
            self.rollouts_seen[name] = self.rollouts_seen.get(name, 0) + 1
            self.rollouts_after_warmup[name] = self.rollouts_after_warmup.get(name, 0) + after_warmup
            size = abs(rollout.weights.get(name, 1.0))
            if known := [value / size for value in values if value is not None]:
                self.highest[name] = max([self.highest.get(name, -math.inf), *known])
                self.lowest[name] = min([self.lowest.get(name, math.inf), *known])

    def last(self, key: str) -> list[float]:
        """The metric of the last IN_A_ROW optimizer steps; empty before there are so many."""
        values = self.metrics.get(key, [])
        return values[-IN_A_ROW:] if len(values) >= IN_A_ROW else []

    @property
    def settled(self) -> bool:
        return len(self.rollouts) == IN_A_ROW
