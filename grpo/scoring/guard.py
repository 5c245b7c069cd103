"""Keep a run safe from its rewards and its judge, which are the user's code.

They keep the global random states. Rows on which one fails are excluded from their rollout, counted and described.

In TRL, a reward that raises ends the run, NaN counts as None (0 in the sum, as a wrong answer would), and an infinity
zeroes its whole group. Here a row on which one fails has None from every reward: its own advantage is 0, and the
group's advantages are those of a group without it.
"""

import contextlib
import dataclasses
import io
import math
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import gather_object

from grpo.core.jsonfiles import append_line
from grpo.core.processes import say, show
from grpo.core.text import for_rich
from grpo.scoring.sample import Fault, Sample

FAILED = math.inf  # instead of the values of a row on which a reward fails, to gather
DESCRIBED = 3  # failed rows described per reward and rollout; all are counted
SHOWN = 600  # characters of a text in the console


# --- Outside of training ------------------------------------------------------------------------------------------


def keep_random_states() -> Callable[[], None]:
    """Return a function that restores the current random states of Python, NumPy and torch."""
    python, arrays, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    gpu = torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None

    def restore() -> None:
        random.setstate(python)
        np.random.set_state(arrays)
        torch.set_rng_state(cpu)
        if gpu is not None:
            torch.cuda.set_rng_state(gpu)

    return restore


@contextlib.contextmanager
def random_states_kept(seed: str = "") -> Iterator[None]:
    """Restore the random states of Python, NumPy and torch on exit, whatever is drawn or seeded inside.

    Args:
        seed: start inside from states that follow from this text, so that other texts draw other numbers; "": from
            the current states.
    """
    restore = keep_random_states()
    try:
        if seed:
            random.seed(seed)
            np.random.seed(random.getrandbits(32))
            torch.manual_seed(random.getrandbits(63))
        yield
    finally:
        restore()


@contextlib.contextmanager
def without_effects() -> Iterator[None]:
    """Hide what the user's code prints, and keep the random states."""
    with random_states_kept(), contextlib.redirect_stdout(io.StringIO()):
        yield


def say_faults(samples: Sequence[Sample]) -> None:
    """Print a line if rewards failed on samples."""
    faults = [sample.faults[0] for sample in samples if sample.faults]
    if faults:
        count = f"{len(faults)} of {len(samples)} answers"
        say(f"note: rewards fail on {count}, which are excluded from their means (first: {faults[0]})")


# --- In training --------------------------------------------------------------------------------------------------


class RewardGuard:
    """Exclude the rows of a rollout for which a reward does not return a finite number.

    Args:
        directory: the run's directory; its `faults.jsonl` describes failed rows.
        limit: the largest excluded share of a training rollout's rows (of all processes), in [0, 1].

    Attributes:
        faults: the first failed rows of this process in this round, a few for each reward.
        any_fault: True if any reward has failed in this run.
        share: the excluded share of the rows of this rollout, in all of its rounds (lean_grpo/dynamic_sampling.py).
        excess: the reason to end the run if more than `limit` failed, else "". The same on all processes.
    """

    def __init__(self, directory: Path, limit: float) -> None:
        self.path, self.limit = directory / "faults.jsonl", limit
        self.faults: list[Fault] = []
        self.any_fault, self.excess = False, ""
        self.share = 0.0
        self._rows = 0  # of this rollout
        self._shown: set[str] = set()

    def begin_rollout(self) -> None:
        """Count anew."""
        self.share, self._rows = 0.0, 0

    def gather(self, trainer: Any, samples: Sequence[Sample]) -> torch.Tensor:
        """Return the rewards of all processes, (rows, rewards), NaN for None and in all of a row on which one failed.

        Count and report these rows.
        """
        self.faults = _first_faults(samples)
        numbers = [
            [FAILED if sample.faults else _number(value) for value in (sample.rewards or {}).values()]
            for sample in samples
        ]
        values = trainer.accelerator.gather(torch.tensor(numbers, device=trainer.accelerator.device))
        failed = values.isinf().any(1)
        values[failed] = torch.nan
        step = trainer.state.global_step + 1
        self.any_fault |= bool(failed.any())
        count = self.share * self._rows + failed.sum().item()
        self._rows += len(failed)
        share = self.share = count / self._rows
        if not failed.any():
            return values
        process = trainer.accelerator.process_index
        faults = gather_object([(process, fault) for fault in self.faults])
        if trainer.accelerator.is_main_process:
            for process, fault in faults:
                self._report(step, process, fault)
        if share > self.limit and not self.excess:
            first = f" (first: {faults[0][1]})" if faults else ""
            self.excess = f"the reward guard: {100 * share:.0f} % of the rows of step {step} were excluded{first}"
        return values

    def _report(self, step: int, process: int, fault: Fault) -> None:
        """Append a fault to `faults.jsonl`; print it if it is the first of its reward."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        described = dataclasses.asdict(fault)
        append_line(self.path, {"step": step, "process": process, **described})
        if fault.function in self._shown:
            return
        self._shown.add(fault.function)
        show(f"[bold red]faulty reward at step {step}: {for_rich(fault.function)}[/bold red]")
        for key in ("question", "completion", "fault", "traceback"):
            show(f"[bold]{key}[/bold]: {for_rich(described[key].strip()[-SHOWN:])}")
        show(
            f"Such rows are excluded from their rollout (metric rewards/left_out); above {100 * self.limit:g} % of a "
            f"rollout (max_faulty_rewards) the run ends. {self.path.name} describes more of them."
        )


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _first_faults(samples: Sequence[Sample]) -> list[Fault]:
    """Return the first DESCRIBED faults of each reward."""
    by_reward: dict[str, list[Fault]] = {}
    for fault in (fault for sample in samples for fault in sample.faults):
        by_reward.setdefault(fault.function, []).append(fault)
    return [fault for faults in by_reward.values() for fault in faults[:DESCRIBED]]
