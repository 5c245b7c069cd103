"""What a run shows while it trains: lines of aligned columns, the time left, samples with their gold answers."""

import math
import random
import time
from collections import deque
from typing import Any

from datasets import Dataset
from rich.console import Console
from rich.panel import Panel
from rich.text import Text
from tqdm import tqdm
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainerState
from transformers.trainer import DEFAULT_PROGRESS_CALLBACK

from grpo.core.processes import show
from grpo.core.redaction import for_rich
from rewards import short_name

ROWS = 20  # lines under one header
FEW = 4  # lines at least between two samples
MIXED = "mixed"  # the column of groups with right and wrong completions
GAP = 2  # blanks between columns
LONGEST = 1200  # characters of a prompt or a completion that a sample shows
BAR = "{percentage:3.0f}%|{bar}| step {n_fmt} of {total_fmt}{postfix}"


class Progress(TrainerCallback):
    """Replaces transformers' dictionary of 30 metrics a log, its progress bar, and TRL's table of samples.

    Args:
        golds: the gold answers, by question.
    """

    def __init__(self, golds: dict[str, str] | None = None) -> None:
        self.golds = golds or {}
        self.table = Table()
        self.clock = Clock()
        self.bar: Any = tqdm(disable=True)
        self._next_sample, self._every = 0, 1

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self._every = max(state.max_steps // 10, FEW * state.logging_steps)
        hidden = args.disable_tqdm or not state.is_world_process_zero
        self.bar = tqdm(
            total=state.max_steps, initial=state.global_step, bar_format=BAR, leave=False, dynamic_ncols=True,
            disable=hidden or None,  # None: shown in a terminal only
        )  # fmt: skip

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self.clock.tick()
        if (left := self._left(state)) != "-":
            self.bar.set_postfix_str(f"{left} left", refresh=False)
        self.bar.update()

    def on_log(
        self, args: Any, state: TrainerState, control: Any, logs: dict[str, float] | None = None, **kwargs: Any
    ) -> None:
        if not state.is_world_process_zero or not logs:
            return
        if "reward" in logs:
            cells, rewards = cells_of(logs)
            for line in self.table.lines(
                {"step": str(state.global_step), **cells, "left": self._left(state)}, rewards, logs.get("stage")
            ):
                show(line)
        elif "eval_reward" in logs:  # of the held-out questions, where eval_strategy asks for it
            cells, rewards = cells_of({key.removeprefix("eval_"): value for key, value in logs.items()})
            cells = {"step": "eval", **cells, "left": ""}
            # a line of its own header only where no other has come before it
            for line in self.table.lines(cells, rewards) if not self.table.names else [self.table.row(cells)]:
                show(line)

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self.bar.close()

    def _left(self, state: TrainerState) -> str:
        return self.clock.left(state.max_steps - state.global_step)

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
        """Question, completion, gold answer and rewards below each other, at most some ten times a run.

        Takes the arguments of TRL's `print_prompt_completions_sample`, which has a column for each reward and so
        leaves a dozen characters for the completion.
        """
        if step < self._next_sample:
            return
        self._next_sample = step + self._every
        chosen: Any = range(len(prompts))
        if num_samples is not None and num_samples < len(chosen):
            chosen = sorted(random.Random(step).sample(chosen, num_samples))  # leaves the run's own generator alone
        for index in chosen:
            question = last_text(prompts[index])
            gold = f"[green]gold: {for_rich(self.golds[question][:80])}[/green]  " if question in self.golds else ""
            parts = [f"{short_name(name)} {_number(values[index])}" for name, values in rewards.items()]
            text = f"[bold]{_shortened(question)}[/bold]\n\n{_shortened(last_text(completions[index]).strip())}\n\n"
            text += f"{gold}[magenta]advantage {advantages[index]:+.2f}[/magenta]\n[cyan]{' · '.join(parts)}[/cyan]"
            show(Panel(text, title=f"a sample of step {step}", title_align="left"))
        self.table.rows = 0  # a header follows


class Table:
    """Lines of aligned columns under a header that is repeated, no wider than the console.

    Rewards that do not fit are left to `metrics.jsonl`; those that judge the answer come first.
    """

    def __init__(self) -> None:
        self.rows = 0  # since the last header
        self.names: list[str] = []  # of the columns shown
        self._widths: dict[str, int] = {}
        self._hidden: list[str] = []
        self._layout: Any = None

    def lines(self, cells: dict[str, str], rewards: list[str], stage: Any = None) -> list[Text]:
        """The line of these cells, after a header where one is due."""
        layout, header = (list(cells), stage, Console().width), []
        if self.rows % ROWS == 0 or layout != self._layout or any(len(cells[n]) > self._widths[n] for n in self.names):
            self._layout, self.rows = layout, 0
            self._fit(cells, rewards, Console().width)
            header = [Text("\n" + self._aligned({name: name for name in self.names}), style="bold")]
            hidden = [name for name in rewards if name not in [*self.names, MIXED]]
            if hidden and hidden != self._hidden:
                header.insert(0, Text(f"\nnot shown in {Console().width} columns: {', '.join(hidden)}", style="dim"))
            self._hidden = hidden
        self.rows += 1
        return [*header, self.row(cells)]

    def row(self, cells: dict[str, str]) -> Text:
        return Text(self._aligned(cells))

    def _fit(self, cells: dict[str, str], rewards: list[str], width: int) -> None:
        for name, cell in cells.items():  # a column never gets narrower
            self._widths[name] = max(len(name), len(cell), self._widths.get(name, 5))
        names = [name for name in cells if name not in rewards]
        left = width - sum(self._widths[name] + GAP for name in names) + GAP
        for name in sorted(rewards, key=lambda name: "correct" not in name):
            if self._widths[name] + GAP <= left:
                names.append(name)
                left -= self._widths[name] + GAP
        self.names = [name for name in cells if name in names]

    def _aligned(self, cells: dict[str, str]) -> str:
        return (" " * GAP).join(cells.get(name, "").rjust(self._widths[name]) for name in self.names)


class Clock:
    """The time left, from the mean of the last 50 whole steps; the first one, which warms up, does not count."""

    def __init__(self) -> None:
        self._ends: deque[float] = deque(maxlen=51)

    def tick(self) -> None:
        """A step has ended."""
        self._ends.append(time.perf_counter())

    def left(self, steps: int) -> str:
        """What so many more steps take: `0:42`, `12:05`, `3h05`; `-` while nothing is known."""
        if len(self._ends) < 2:
            return "-"
        seconds = round(steps * (self._ends[-1] - self._ends[0]) / (len(self._ends) - 1))
        return (
            f"{seconds // 60}:{seconds % 60:02}" if seconds < 3600 else f"{seconds // 3600}h{seconds % 3600 // 60:02}"
        )


def cells_of(logs: dict[str, float]) -> tuple[dict[str, str], list[str]]:
    """What to watch in a log, by column, and for which columns there need be no room: rewards (means; none of another
    stage), and last the share of groups with right and wrong completions.
    """
    rewards = {
        _column(key[8:-5]): _number(value)
        for key, value in logs.items()
        if key.startswith("rewards/") and key.endswith("/mean") and logs.get(f"reward_weights/{key[8:-5]}") != 0
    }
    cells = {"reward": _number(logs["reward"]), "std": _number(logs.get("reward_std")), **rewards}
    if logs.get("groups/mixed") is not None:
        rewards[MIXED] = cells[MIXED] = f"{100 * logs['groups/mixed']:.0f}%"
    cells["length"] = f"{logs['completions/mean_length']:.0f}"
    cells["cut"] = f"{100 * logs['completions/clipped_ratio']:.0f}%"
    return cells, list(rewards)


def _column(reward: str) -> str:
    name = short_name(reward)
    return reward if name in ("step", "reward", "std", MIXED, "length", "cut", "left") else name


def last_text(messages: Any) -> str:
    """A text, or the last of a conversation's messages: the question of a prompt."""
    return messages if isinstance(messages, str) else messages[-1]["content"]


def _number(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.2f}"


def _shortened(text: str) -> str:
    return for_rich(text if len(text) <= LONGEST else text[:LONGEST] + " …")


def make_readable(trainer: Trainer) -> None:
    """Let `Progress` replace what transformers and TRL print."""
    from trl.trainer import grpo_trainer  # here: a dry run draws its tables without TRL's trainer

    golds = {}
    for rows in (trainer.train_dataset, trainer.eval_dataset):
        both: Any = rows.select_columns(["prompt", "answer"]) if isinstance(rows, Dataset) else ()
        golds.update({last_text(row["prompt"]): row["answer"] for row in both if row["answer"] is not None})
    progress = Progress(golds)
    for stock in (DEFAULT_PROGRESS_CALLBACK, PrinterCallback):
        trainer.remove_callback(stock)
    trainer.add_callback(progress)
    grpo_trainer.print_prompt_completions_sample = progress.show_samples  # type: ignore[assignment]  # or plain text
