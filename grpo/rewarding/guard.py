"""Rewards that fail: the completions at fault are left out of their rollout, counted and told.

TRL ends the run where a reward raises, takes a NaN for a None (in its sum a 0, so a wrong answer), and zeroes a whole
group for an infinity. Here such a row gets None from every reward: its group's advantages are those of a group without
it, and its own is 0.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import gather_object
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel

from grpo.core.errors import UserError
from grpo.rewarding import scoring
from grpo.runs.record import append_line, mask

SHOWN = 600  # characters of a text in the console
Row = dict[str, Any]


class RewardGuard:
    """Sees to it that a trainer's rewards are numbers, or their rows left out.

    Args:
        directory: of the run; descriptions of rows at fault are appended to `faults.jsonl` in it.
        limit: the largest share of a training rollout's rows, of all processes, that may be left out.

    Attributes:
        any_fault: whether any reward has failed in this run so far.
        excess: why the run is to end, because more were; empty otherwise. The same on all processes.
    """

    def __init__(self, directory: Path, limit: float) -> None:
        self.path, self.limit = directory / "faults.jsonl", limit
        self.excess = ""
        self._told: set[str] = set()
        self.any_fault = False

    @contextlib.contextmanager
    def watching(self, trainer: Any) -> Iterator[scoring.Scoring]:
        """While TRL calls the rewards: one that fails on a row gives a number all the same."""
        own, seen = trainer.reward_funcs, scoring.Scoring(self.limit * trainer.accelerator.num_processes)
        trainer.reward_funcs = [
            reward if isinstance(reward, torch.nn.Module) else seen.guarded(name, reward)
            for name, reward in zip(trainer.reward_func_names, own, strict=True)
        ]
        try:
            yield seen
        finally:
            trainer.reward_funcs = own

    def leave_out(self, trainer: Any, values: torch.Tensor, seen: scoring.Scoring, **columns: Any) -> torch.Tensor:
        """The rewards with NaN in all of a row at fault; tells and counts them.

        Args:
            values: (rows of all processes, rewards).
            columns: `prompts` and `completions` of this process.

        Raises:
            UserError: on all processes alike, where a reward on any of them returned no list of numbers.
        """
        rows = len(columns["prompts"])
        own = values[trainer.accelerator.process_index * rows :][:rows]
        scoring.of_models(seen, trainer.reward_func_names, trainer.reward_funcs, own, columns)
        processes = gather_object([seen])
        if error := next((each.error for each in processes if each.error), ""):
            raise UserError(error)
        for number, each in enumerate(processes):
            values[[number * rows + row for row in sorted(each.rows)]] = torch.nan
        left_out, nonfinite = (
            sum(len(getattr(each, kind)) for each in processes) / len(values) for kind in ("rows", "nonfinite")
        )
        faults = [
            {"step": trainer.state.global_step + 1, "process": number, **fault}
            for number, each in enumerate(processes)
            for fault in each.faults
        ]
        self.any_fault |= bool(faults)
        training = trainer.model.training
        if self.any_fault:  # from the first one on, so that the mean over a log's rollouts is right
            noted = trainer._metrics["train" if training else "eval"]
            noted["rewards/left_out"].append(left_out)
            noted["rewards/nonfinite"].append(nonfinite)
        if trainer.accelerator.is_main_process:
            self._tell(mask(faults))
        if training and left_out > self.limit and not self.excess:
            first = mask(f"{faults[0]['function']}: {faults[0]['fault']}")
            step = faults[0]["step"]
            self.excess = (
                f"the reward guard: {100 * left_out:.0f} % of the rows of step {step} were left out (first: {first})"
            )
        return values

    def _tell(self, faults: list[dict[str, Any]]) -> None:
        """Write the faults down; show the first one of each reward."""
        for fault in faults:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            append_line(self.path, fault)
            if fault["function"] in self._told:
                continue
            self._told.add(fault["function"])
            shown = {
                "Question": fault["question"][-SHOWN:],
                "Completion": fault["completion"][-SHOWN:],
                "Fault": fault["traceback"][-2 * SHOWN :] or fault["fault"],
            }
            text = "\n".join(f"[bold]{kind}[/bold]: {escape(what.strip())}" for kind, what in shown.items())
            text += (
                "\nSuch rows are left out of their rollout and count neither as right nor as wrong. The metric "
                f"rewards/left_out is their share; above {100 * self.limit:g} % of a rollout (max_faulty_rewards) "
                f"the run ends. Others are described in {escape(self.path.name)}."
            )
            title = f"[bold red]reward at fault at step {fault['step']}: {escape(fault['function'])}[/bold red]"
            Console().print()  # off the progress bar's line
            Console().print(Panel(text, title=title, title_align="left", border_style="red"))
