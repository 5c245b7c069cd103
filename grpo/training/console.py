"""Print a run's progress: aligned columns, the time left, and samples with their gold answers."""

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import Any

from datasets import Dataset
from rich.console import Console
from rich.padding import Padding
from rich.text import Text
from transformers import PrinterCallback, TrainerState
from transformers.trainer import DEFAULT_PROGRESS_CALLBACK
from transformers.utils import logging
from trl.trainer import grpo_trainer

from grpo.core.processes import show
from grpo.core.text import decimals, printable, reward_key, rewarded, short_name
from grpo.report.curves import is_a_rewards_own
from grpo.results.printing import show_answer
from grpo.task.given import how_read
from grpo.task.prompts import last_text
from grpo.task.task import Task
from grpo.training.of_trainer import OfTrainer
from rewards import Gold, completion_text, correctness_reward_func

REFILLED = ("sampled", "rounds", "live")  # completions of a rollout, further rounds, groups with a difference at last
COLUMNS = ("step", "reward", "std", "mixed", *REFILLED, "length", "cut", "left")  # besides the rewards
ROWS = 20  # lines under one header
SAMPLES = 5  # a run, at most
LINES_BETWEEN = 8  # least number of lines between two samples


class Progress(OfTrainer):
    """Replace transformers' dictionary of 30 metrics per log, its progress bar, and TRL's table of samples.

    Args:
        golds: gold answers by question.
    """

    def __init__(self, reward_names: Iterable[str], golds: dict[str, Gold], task: Task) -> None:
        self.rewards = {  # column → key of the log
            name if short_name(name) in COLUMNS else short_name(name): reward_key(name) for name in reward_names
        }
        self.golds, self.task = golds, task
        self._pays: dict[str, float] = {}  # for a perfect completion, by logged name; narrow terminals show these
        self._widths: dict[str, int] = {}  # of the columns that fit, by heading
        self._rows = 0  # since the last header
        self._begun: tuple[int, float] | None = None  # first step and its end, as the first is slow
        self._next_sample, self._every = 0, 1

    def join(self, trainer: Any) -> None:
        """Learn the trainer, and take its stock printers and transformers' progress bars away."""
        super().join(trainer)
        self._pays = trainer.history.perfect
        for stock in (DEFAULT_PROGRESS_CALLBACK, PrinterCallback):
            trainer.remove_callback(stock)
        logging.disable_progress_bar()  # bars of written files would interrupt ours

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self._every = max(state.max_steps // SAMPLES, LINES_BETWEEN * state.logging_steps)

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self._begun = self._begun or (state.global_step, time.perf_counter())

    def on_log(
        self, args: Any, state: TrainerState, control: Any, logs: dict[str, float] | None = None, **kwargs: Any
    ) -> None:
        if state.is_world_process_zero and "reward" in (logs or {}):
            self._print(state, logs or {})

    def _print(self, state: TrainerState, logs: dict[str, float]) -> None:
        """Print a log as a row of the table, and below it the numbers that rewards log (TRL's `log_metric`)."""
        mixed = logs.get("groups/mixed")
        cells = {
            "step": str(state.global_step),
            "reward": _number(logs["reward"]),
            "std": _number(logs.get("reward_std")),
            **{name: _number(logs.get(key)) for name, key in self.rewards.items()},
            "mixed": "-" if mixed is None else f"{100 * mixed:.0f}%",
            **_refilled(logs),
            "length": f"{logs['completions/mean_length']:.0f}",
            "cut": f"{100 * logs['completions/clipped_ratio']:.0f}%",
            "left": self._left(state),
        }
        if not self._widths:
            self._widths = {name: max(len(name), 5) for name in cells}
            while self.rewards and sum(self._widths.values()) + 2 * len(self._widths) > Console().width:
                dropped = min(self.rewards, key=lambda name: (self._paid(name), -len(name)))
                del self.rewards[dropped], self._widths[dropped]
        if self._rows % ROWS == 0:
            show(Text("\n" + "  ".join(name.rjust(width) for name, width in self._widths.items()), style="bold"))
        self._rows += 1
        show(Text("  ".join(cells[name].rjust(width) for name, width in self._widths.items())))
        metrics = [f"{printable(key)[:40]} {_number(value)}" for key, value in logs.items() if is_a_rewards_own(key)]
        if metrics:
            show(Padding(Text("  ".join(metrics)), (0, 0, 0, 7), expand=False))

    def _paid(self, column: str) -> float:
        return self._pays.get(rewarded(self.rewards[column]) or "", 0.0)

    def _left(self, state: TrainerState) -> str:
        """Estimate the time left: `0:42`, `12:05`, `3h05`; a dash if unknown."""
        if self._begun is None or (done := state.global_step - self._begun[0]) < 1:
            return "-"
        seconds = round((time.perf_counter() - self._begun[1]) / done * (state.max_steps - state.global_step))
        if seconds < 3600:
            return f"{seconds // 60}:{seconds % 60:02}"
        return f"{seconds // 3600}h{seconds % 3600 // 60:02}"

    def show_samples(
        self,
        prompts: Any,
        completions: Any,
        rewards: dict[str, Any],
        advantages: Any,
        step: int,
        num_samples: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Print completions with their questions, extracted answers, gold answers and rewards.

        The arguments are those of TRL's `print_prompt_completions_sample`, whose columns for rewards leave only a
        dozen characters for the completion.
        """
        if step < self._next_sample:
            return
        self._next_sample = step + self._every
        for index in samples_of(list(prompts), list(advantages), num_samples):
            question, text = last_text(prompts[index]), completion_text(completions[index])
            scores = [f"{short_name(name)} {_number(values[index])}" for name, values in rewards.items()]
            notes = [f"advantage {decimals(advantages[index], 2, '+')}", *scores]
            read = how_read(text, self.task.answer(text), self.task.prompt.pattern)
            # held-out answers are read by the lenient rule, too
            reader = "correctness reads" if correctness_reward_func.__name__ in rewards else "strict reading"
            show_answer(f"a sample of step {step}", question, text, read, self.golds.get(question), notes, reader)
            self._rows = 0  # a header follows


def _refilled(logs: dict[str, float]) -> dict[str, str]:
    """Return the cells of dynamic sampling, if it is on."""
    keys = [f"dynamic_sampling/{name}" for name in ("completions", "rounds", "live")]
    if not logs.keys() >= set(keys):
        return {}
    sampled, rounds, live = (logs[key] for key in keys)
    return dict(zip(REFILLED, (f"{sampled:.0f}", f"{rounds:.1f}", f"{100 * live:.0f}%"), strict=True))


def samples_of(prompts: list[Any], advantages: list[float], count: int | None) -> list[int]:
    """Choose completions to show: the best and the worst ones of the group with the largest differences of rewards.

    Args:
        prompts: equal and adjacent within a group.
        count: None: all completions.
    """
    if count is None:
        return list(range(len(prompts)))
    groups = [
        sorted(indices, key=advantages.__getitem__)
        for _, indices in groupby(range(len(prompts)), lambda index: str(prompts[index]))
    ]
    group = max(groups, key=lambda ranked: advantages[ranked[-1]] - advantages[ranked[0]])
    best = group[::-1][: (count + 1) // 2]
    return list(dict.fromkeys(best + group[: count // 2]))


def _number(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else decimals(value, 2)


@contextlib.contextmanager
def printing(show: Callable[..., None]) -> Iterator[None]:
    """Let TRL's log print completions by this function, which has the arguments of TRL's own."""
    stock = grpo_trainer.print_prompt_completions_sample
    grpo_trainer.print_prompt_completions_sample = show  # type: ignore[assignment]
    try:
        yield
    finally:
        grpo_trainer.print_prompt_completions_sample = stock


def golds_of(rows: Dataset) -> dict[str, Gold]:
    """Return the gold answers of training rows by question, as their prompts end."""
    both = rows.select_columns(["prompt", "answer"])
    return {last_text(row["prompt"]): row["answer"] for row in both if row["answer"] is not None}
