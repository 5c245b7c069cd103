"""What a run shows in the console."""

import random
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.panel import Panel
from transformers import ProgressCallback, Trainer

from grpo.core.redaction import for_rich
from rewards import short_name


class ProgressLine(ProgressCallback):
    """Transformers' progress bar, with one readable line a log instead of a dictionary of 30 metrics.

    Args:
        stages: the names of the run's stages, if it has any.
    """

    def __init__(self, stages: Sequence[str] = ()) -> None:
        super().__init__()
        self.stages = stages

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        if self.training_bar is not None and logs and "reward" in logs:
            self.training_bar.write(describe(state.global_step, logs, self.stages))


def describe(step: int, logs: dict[str, float], stages: Sequence[str] = ()) -> str:
    """One line of what to watch: the reward and its parts (means of the log), mean length, share cut off."""
    stage = f" {stages[int(logs['stage']) - 1]}" if len(stages) > 1 else ""
    parts = [f"step {step:4d}{stage}  reward {_number(logs['reward'])} ± {_number(logs.get('reward_std'))} ="]
    for key, value in logs.items():
        # without those that are another stage's
        if key.startswith("rewards/") and key.endswith("/mean") and logs.get(f"reward_weights/{key[8:-5]}") != 0:
            parts.append(f"{short_name(key[8:-5])} {_number(value)}")
    length, cut = logs["completions/mean_length"], 100 * logs["completions/clipped_ratio"]
    parts.append(f"· length {length:.0f}, {cut:.0f} % cut")
    return " ".join(parts)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


class SampleTable:
    """TRL's sample table at a readable size: question, completion, rewards below each other, some ten times a run.

    Takes the arguments of TRL's `print_prompt_completions_sample`: that one has a column for each reward, which leaves
    a dozen characters for the completion.
    """

    longest = 1200  # characters of a prompt or a completion

    def __init__(self, total_steps: int) -> None:
        self.every, self.next_step = max(1, total_steps // 10), 0

    def __call__(
        self,
        prompts: Any,
        completions: Any,
        rewards: dict[str, Any],
        advantages: Any,
        step: int,
        num_samples: int | None = None,
        **kwargs: Any,
    ) -> None:
        if step < self.next_step:
            return
        self.next_step = step + self.every
        chosen: Any = range(len(prompts))
        if num_samples is not None and num_samples < len(chosen):
            chosen = sorted(random.Random(step).sample(chosen, num_samples))  # leaves the run's own generator alone
        Console().print()  # off the progress bar's line
        for index in chosen:
            parts = [f"{short_name(name)} {_number(values[index])}" for name, values in rewards.items()]
            text = f"[bold]{self._text(prompts[index])}[/bold]\n\n{self._text(completions[index])}\n\n"
            text += f"[cyan]{' · '.join(parts)}[/cyan]  [magenta]advantage {advantages[index]:+.2f}[/magenta]"
            Console().print(Panel(text, title=f"a sample of step {step}", title_align="left"))

    def _text(self, messages: Any) -> str:
        text = (messages if isinstance(messages, str) else messages[-1]["content"]).strip()
        return for_rich(text if len(text) <= self.longest else text[: self.longest] + " …")


def make_readable(trainer: Trainer, steps_per_epoch: int, stages: Sequence[str] = ()) -> None:
    """Put `ProgressLine` and `SampleTable` in the place of what transformers and TRL print."""
    from trl.trainer import grpo_trainer  # here: a dry run draws its tables without TRL's trainer

    args = trainer.args
    if not args.disable_tqdm:
        trainer.remove_callback(ProgressCallback)
        trainer.add_callback(ProgressLine(stages))
    total = args.max_steps if args.max_steps > 0 else int(args.num_train_epochs * steps_per_epoch)
    grpo_trainer.print_prompt_completions_sample = SampleTable(total)  # type: ignore[assignment]  # prompts may be plain text
