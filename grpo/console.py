"""What a run shows in the console."""

import random
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from rich.table import Table
from transformers import ProgressCallback, Trainer

from rewards import short_name

from .checks import Check
from .evaluation import SHARES
from .masking import printable


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


def _plain(text: str) -> str:
    """What a model, a user or a file wrote, as text: rich takes it for no markup, and the terminal for no command."""
    return escape(printable(text))


class SampleTable:
    """TRL's sample table at a readable size: question, completion, rewards below each other, some ten times a run.

    Takes the arguments of TRL's `print_prompt_completions_sample`: that one has a column for each reward, which leaves
    a dozen characters for the completion.
    """

    def __init__(self, total_steps: int, longest: int = 1200) -> None:
        self.every = max(1, total_steps // 10)
        self.longest = longest
        self.next_step = 0

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
        return _plain(text if len(text) <= self.longest else text[: self.longest] + " …")


def make_readable(trainer: Trainer, steps_per_epoch: int, stages: Sequence[str] = ()) -> None:
    """Put `ProgressLine` and `SampleTable` in the place of what transformers and TRL print."""
    from trl.trainer import grpo_trainer  # here: a dry run draws its tables without TRL's trainer

    args = trainer.args
    if not args.disable_tqdm:
        trainer.remove_callback(ProgressCallback)
        trainer.add_callback(ProgressLine(stages))
    total = args.max_steps if args.max_steps > 0 else int(args.num_train_epochs * steps_per_epoch)
    grpo_trainer.print_prompt_completions_sample = SampleTable(total)


# --- Before and after training ------------------------------------------------------------------------------------

STYLES = {"ok": "green", "warning": "yellow", "error": "bold red"}


def print_checks(checks: Sequence[Check], example: str) -> None:
    """The table of preflight, and a prompt as the model gets it."""
    table = Table(title="Preflight", title_justify="left", box=None, pad_edge=False)
    for heading in ("", "check", "finding"):
        table.add_column(heading, overflow="fold")
    for check in checks:
        remedy = f"\n→ {_plain(check.remedy)}" if check.remedy else ""
        style = STYLES[check.status]
        table.add_row(f"[{style}]{check.status}[/{style}]", _plain(check.name), _plain(check.finding) + remedy)
    Console().print(table)
    Console().print(Panel(_plain(example), title="a prompt, as the model gets it", title_align="left"))


def print_answers(when: str, records: Sequence[dict[str, Any]], count: int = 2) -> None:
    """The first held-out questions, always the same ones, with their greedy completions."""
    for record in records[:count]:
        text = f"[bold]{_plain(record['question'])}[/bold]\n\n{_plain(record['completion'].strip()[:1200])}\n\n"
        mark = "[green]right[/green]" if record["lenient"] else "[red]wrong[/red]"
        read = record["extracted"] if "<answer>" in record["completion"] else ""
        text += f"answer read: {_plain(read[:80]) or 'none'}, gold: {_plain(record['answer'])}, {mark}"
        Console().print(Panel(text, title=f"a held-out question, {when}", title_align="left"))


def print_evaluations(evaluations: dict[str, dict[str, Any]], verdict: str = "") -> None:
    """Summaries beside each other (`before` and `after`, or one alone), shares in per cent with their intervals."""
    summaries = list(evaluations.values())
    table = Table(
        title=f"{summaries[0]['n']} held-out questions, greedy, in per cent (95 % interval)",
        caption="strict: the answer tag holds exactly the gold answer; lenient: the right number, wherever it stands",
        title_justify="left",
        caption_justify="left",
    )
    table.add_column("")
    for heading in [*evaluations, *(["change"] if len(summaries) == 2 else [])]:
        table.add_column(_plain(heading), justify="right")

    def row(name: str, cells: list[str], values: list[float]) -> None:
        table.add_row(name, *cells, *([f"{values[1] - values[0]:+.1f}"] if len(values) == 2 else []))

    k = summaries[0].get("k")
    sampled = {"maj_k": f"maj@{k}, sampled", "pass_k": f"pass@{k}, sampled"} if k else {}
    for key, name in {**{key: key.replace("_", ", ") for key in SHARES}, **sampled}.items():
        cells = [f"{100 * s[key]:.1f} ({100 * s[f'{key}_low']:.0f}-{100 * s[f'{key}_high']:.0f})" for s in summaries]
        row(name, cells, [100 * summary[key] for summary in summaries])
    lengths = [summary["mean_length"] for summary in summaries]
    row("mean length, tokens", [f"{length:.1f}" for length in lengths], lengths)
    Console().print(table)
    if verdict:
        Console().print(f"[bold]{_plain(verdict)}[/bold]")
