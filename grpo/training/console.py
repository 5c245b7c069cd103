"""The console while a run trains: lines of aligned columns, the time left, samples with their gold answers."""

import math
import time
from itertools import groupby
from random import Random
from typing import Any

from datasets import Dataset
from rich.console import Console
from rich.padding import Padding
from rich.panel import Panel
from rich.text import Text
from tqdm import tqdm
from transformers import PrinterCallback, TrainerCallback, TrainerState
from transformers.trainer import DEFAULT_PROGRESS_CALLBACK
from transformers.utils import logging
from trl import GRPOTrainer
from trl.trainer import grpo_trainer

from grpo.core.processes import show
from grpo.core.text import for_rich, printable, short_name
from grpo.runs.charts import is_a_rewards_own
from grpo.task.task import Task
from rewards import completion_text

COLUMNS = ("step", "reward", "std", "mixed", "length", "cut", "left")  # beside the rewards
ROWS = 20  # lines under one header
SAMPLES = 5  # a run, at most
FEW = 8  # lines at least between two samples
LONGEST = 1200  # characters of a prompt or a completion that a sample shows
BAR = "{percentage:3.0f}%|{bar}| step {n_fmt} of {total_fmt}{postfix}"


class Progress(TrainerCallback):
    """Replaces transformers' dictionary of 30 metrics a log, its progress bar, and TRL's table of samples.

    Args:
        reward_names: as TRL logs them.
        golds: the gold answers, by question.
        task: reads the answer out of a completion.
    """

    def __init__(self, reward_names: list[str], golds: dict[str, str], task: Task) -> None:
        short = {name: short_name(name) for name in reward_names}
        self.rewards = {
            name if short[name] in COLUMNS else short[name]: f"rewards/{name}/mean" for name in reward_names
        }
        self.golds, self.task = golds, task
        self.bar: Any = tqdm(disable=True)
        self._columns: dict[str, int] = {}  # with their widths, as they fit into the terminal
        self._rows = 0  # since the last header
        self._begun: tuple[int, float] | None = None  # the end of the first step, which warms up, and when it was
        self._next_sample, self._every = 0, 1
        self._show = grpo_trainer.print_prompt_completions_sample

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self._every = max(state.max_steps // SAMPLES, FEW * state.logging_steps)
        grpo_trainer.print_prompt_completions_sample = self.show_samples  # type: ignore[assignment]  # or plain text
        hidden = args.disable_tqdm or not state.is_world_process_zero
        self.bar = tqdm(
            total=state.max_steps, initial=state.global_step, bar_format=BAR, leave=False, dynamic_ncols=True,
            disable=hidden or None,  # None: shown in a terminal only
        )  # fmt: skip

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self._begun = self._begun or (state.global_step, time.perf_counter())
        if left := self._left(state):
            self.bar.set_postfix_str(f"{left} left", refresh=False)
        self.bar.update()

    def on_log(
        self, args: Any, state: TrainerState, control: Any, logs: dict[str, float] | None = None, **kwargs: Any
    ) -> None:
        if not state.is_world_process_zero or not logs:
            return
        if "reward" in logs:
            self._print({"step": str(state.global_step), **self._cells(logs), "left": self._left(state) or "-"})
            self._print_own(logs)
        elif "eval_reward" in logs:  # of the held-out questions, where eval_strategy asks for it
            own = {key.removeprefix("eval_"): value for key, value in logs.items()}
            self._print({"step": "eval", **self._cells(own), "left": ""})
            self._print_own(own)

    def on_train_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self.bar.close()
        grpo_trainer.print_prompt_completions_sample = self._show

    def _cells(self, logs: dict[str, float]) -> dict[str, str]:
        """The figures to watch in a log: means of the rewards, groups with right and wrong completions, lengths."""
        mixed, cut = logs.get("groups/mixed"), logs["completions/clipped_ratio"]
        return {
            "reward": _number(logs["reward"]),
            "std": _number(logs.get("reward_std")),
            **{name: _number(logs.get(key)) for name, key in self.rewards.items()},
            "mixed": "-" if mixed is None else f"{100 * mixed:.0f}%",
            "length": f"{logs['completions/mean_length']:.0f}",
            "cut": f"{100 * cut:.0f}%",
        }

    def _print(self, cells: dict[str, str]) -> None:
        if not self._columns:
            self._columns = {name: max(len(name), 5) for name in cells}
            while sum(self._columns.values()) + 2 * len(self._columns) > Console().width and self.rewards:
                # those that judge the answer stay longest
                name = min(self.rewards, key=lambda name: ("correct" in name, -len(name)))
                self._columns.pop(name)
                del self.rewards[name]
        if self._rows % ROWS == 0:
            show(Text("\n" + "  ".join(name.rjust(width) for name, width in self._columns.items()), style="bold"))
        self._rows += 1
        show(Text("  ".join(cells.get(name, "-").rjust(width) for name, width in self._columns.items())))

    def _print_own(self, logs: dict[str, float]) -> None:
        """What rewards log themselves (TRL's `log_metric`), below the line that it belongs to."""
        own = [f"{printable(key)[:40]} {_number(value)}" for key, value in logs.items() if is_a_rewards_own(key)]
        if own:
            show(Padding(Text("  ".join(own)), (0, 0, 0, 7), expand=False))

    def _left(self, state: TrainerState) -> str:
        """The time that the other steps take: `0:42`, `12:05`, `3h05`; empty while nothing is known."""
        if self._begun is None or (done := state.global_step - self._begun[0]) < 1:
            return ""
        seconds = round((time.perf_counter() - self._begun[1]) / done * (state.max_steps - state.global_step))
        hours = f"{seconds // 3600}h{seconds % 3600 // 60:02}"
        return f"{seconds // 60}:{seconds % 60:02}" if seconds < 3600 else hours

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
        """The best and the worst of a group: question, completion, the answer read, the gold answer and rewards.

        Takes the arguments of TRL's `print_prompt_completions_sample`, which has a column for each reward and so
        leaves a dozen characters for the completion.
        """
        if step < self._next_sample:
            return
        self._next_sample = step + self._every
        for index, place in samples_of(list(prompts), list(advantages), step, num_samples).items():
            question, text = last_text(prompts[index]), completion_text(completions[index]).strip()
            read = self.task.answer(text)
            facts = [f"read: {'none' if read in ('', text) else for_rich(read[:80])}"]
            facts += [f"[green]gold: {for_rich(self.golds[question][:80])}[/green]"] if question in self.golds else []
            facts += [f"[magenta]advantage {advantages[index]:+.2f}[/magenta]"]
            parts = [f"{short_name(name)} {_number(values[index])}" for name, values in rewards.items()]
            body = f"[bold]{_shortened(question)}[/bold]\n\n{_shortened(text)}\n\n"
            body += f"{'  '.join(facts)}\n[cyan]{' · '.join(parts)}[/cyan]"
            show(Panel(body, title=f"a sample of step {step}{place}", title_align="left"))
            self._rows = 0  # a header follows


def samples_of(prompts: list[Any], advantages: list[float], step: int, count: int | None) -> dict[int, str]:
    """The indices of the completions to show, and what the title says of each of them.

    Args:
        prompts: those of a group are the same, and next to each other.
        count: two for each group, its best and its worst; groups whose completions earned different rewards come
            first. None: all completions.
    """
    if count is None:
        return dict.fromkeys(range(len(prompts)), "")
    groups = [list(places) for _, places in groupby(range(len(prompts)), lambda at: str(prompts[at]))]
    Random(step).shuffle(groups)  # a generator of its own: the run's stays as it was
    groups.sort(key=lambda group: len({advantages[at] for at in group}) == 1)
    found: dict[int, str] = {}
    for group in groups[: (count + 1) // 2]:
        best, worst = (choose(group, key=lambda at: advantages[at]) for choose in (max, min))
        found[best] = ", whose group earned the same" if best == worst else ": the best of a group"
        found.setdefault(worst, ": the worst of the same group")
    return dict(list(found.items())[:count])


def last_text(messages: Any) -> str:
    """A text, or the last of a conversation's messages: the question of a prompt."""
    return messages if isinstance(messages, str) else messages[-1]["content"]


def _number(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.2f}"


def _shortened(text: str) -> str:
    return for_rich(text if len(text) <= LONGEST else text[:LONGEST] + " …")


def replace_progress(trainer: GRPOTrainer, task: Task) -> None:
    """Let `Progress` replace what transformers and TRL print."""
    golds = {}
    for rows in (trainer.train_dataset, trainer.eval_dataset):
        both: Any = rows.select_columns(["prompt", "answer"]) if isinstance(rows, Dataset) else ()
        golds.update({last_text(row["prompt"]): row["answer"] for row in both if row["answer"] is not None})
    for stock in (DEFAULT_PROGRESS_CALLBACK, PrinterCallback):
        trainer.remove_callback(stock)
    trainer.add_callback(Progress(trainer.reward_func_names, golds, task))
    logging.disable_progress_bar()  # of files that are written, in the middle of ours
