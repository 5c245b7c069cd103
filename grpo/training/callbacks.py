"""Callbacks of a run: its metrics file and live report, skipped steps, alarms; and how they come to the trainer."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from rich.markup import escape
from rich.panel import Panel
from transformers import TrainerCallback, TrainerState, TrainingArguments

from grpo.core.jsonfiles import append_line
from grpo.core.processes import show
from grpo.data.dataset import Data
from grpo.report import report, trackers
from grpo.results.measures import is_of_evaluation
from grpo.runs import facts
from grpo.runs.run import Run
from grpo.scoring.scorer import Scorer
from grpo.training import console
from grpo.training.causes import CAUSES, MIN_UPDATES, Cause, History
from grpo.training.console import Progress
from grpo.training.of_trainer import OfTrainer
from grpo.training.run_trainer import RunTrainer
from grpo.training.stopping import StopAtRolloutEnd

DRAWING = 100  # least seconds of training per second of drawing
MAX_SKIPPED = 3  # this many skipped optimizer steps in a row end a run, since the weights do not change in between


def callbacks_of(run: Run, scorer: Scorer, data: Data) -> list[TrainerCallback]:
    """Return a run's callbacks, in order."""
    # the first reason to stop counts: skipped steps come before the alarms that follow from them
    skip = SkipNonFiniteSteps(run.stop.ask)
    return [
        MetricsFile(run),
        LiveReport(run.output),  # after the metrics file, since it shows that
        skip,
        RoundAlike(),
        Watch(run.output, skip, run.stop.ask, run.config.script.stop_on_alarm),
        StopAtRolloutEnd(run),  # moves to the end, to see the requests of the others
        Progress(scorer.rewards, console.golds_of(data.train), scorer.task),
    ]


def begin_record(trainer: RunTrainer, data: Data) -> None:
    """Begin the run's record and its tracker, once its trainer is built."""
    run = trainer.run
    run.begin_with(trainer.weights, trainer.configuration)
    trackers.start(run.args)
    rows = data.counts() | {"fingerprint": facts.hash_of_rows(data.train, ("question", "answer"))}  # no prompts
    tracked = {"wandb_id": trainer.wandb_id} if trainer.wandb_id else {}
    run.begin(**trainer.scorer.task.record(), data=rows, perfect=trainer.history.perfect, **tracked)


class MetricsFile(TrainerCallback):
    """Append the trainer's logs to `metrics.jsonl`: one JSON object per line, with `step` and `epoch`, without NaN.

    An evaluation's line also has what it rests on, as `measure`: those of another measure are no part of its curve.
    """

    def __init__(self, run: Run) -> None:
        self.run, self.path = run, run.output / "metrics.jsonl"

    def on_log(
        self, args: Any, state: TrainerState, control: Any, logs: dict[str, float] | None = None, **kwargs: Any
    ) -> None:
        if state.is_world_process_zero and logs:
            measure = {"measure": self.run.measure} if any(map(is_of_evaluation, logs)) else {}
            append_line(self.path, {"step": state.global_step, **measure, **logs})


class LiveReport(TrainerCallback):
    """Rewrite `report.html` while the run trains, at logging steps, at most every 30 s.

    This takes at most 1 % of the time. If a report cannot be written, the run prints one line and continues without.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._due = 0.0  # earliest time of the next one; infinite after a failure

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self.on_log(args, state, control)
        if state.is_world_process_zero and self._due < math.inf:
            show(f"Watch it: {escape(str(self.directory / 'report.html'))}", soft_wrap=True)

    def on_log(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if not state.is_world_process_zero or time.monotonic() < self._due:
            return
        start = time.monotonic()
        reason = report.refresh(self.directory, state.max_steps)
        end = time.monotonic()
        self._due = math.inf if reason else end + max(report.REFRESH, DRAWING * (end - start))
        if reason:
            show(f"note: no report while it trains ({escape(reason)}); it is written at the end")


class SkipNonFiniteSteps(OfTrainer):
    """Drop the gradient of an optimizer step if it is not finite. All processes agree, since they share the sum.

    Optimizers ignore parameters without a gradient, so neither weights nor moments change; the schedule advances.
    The run ends after MAX_SKIPPED such steps in a row.

    Attributes:
        in_a_row, in_all: skipped steps in this session.
    """

    def __init__(self, stop: Callable[..., None]) -> None:
        self.stop = stop
        self.in_a_row = self.in_all = 0

    def on_pre_optimizer_step(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        weights = [weight for _, weight in _trained(self.trainer)]
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        # DeepSpeed hides its gradients; with fp16 the gradient scaler skips such steps
        if not gradients or self.trainer.accelerator.scaler is not None:
            return
        # clipping by an infinite norm leaves NaN, so this check comes after it
        norm: Any = torch.nn.utils.get_total_norm(gradients)
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm  # FSDP's
        if norm.isfinite():
            self.in_a_row = 0
            return
        self.in_a_row, self.in_all = self.in_a_row + 1, self.in_all + 1
        for weight in weights:
            weight.grad = None
        self.trainer.training_metrics["skipped_steps"] = [float(self.in_all)]
        if self.in_a_row == MAX_SKIPPED:
            self.stop(
                f"{MAX_SKIPPED} skipped steps in a row: the gradient contains NaN or infinity; no weight changed"
            )


class RoundAlike(TrainerCallback):
    """Let all processes draw the same numbers in a step of an optimizer that rounds by chance (torchao's).

    They follow from the run's seed and the step's number. TRL seeds processes differently, so that each process' copy
    of the weights would be rounded differently, and nothing would make the copies equal again.
    """

    def __init__(self) -> None:
        self._drawing = contextlib.ExitStack()

    def on_pre_optimizer_step(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        optimizer = kwargs["optimizer"]  # accelerate's, around the library's
        if getattr(getattr(optimizer, "optimizer", optimizer), "bf16_stochastic_round", False):
            devices = [args.device] if args.device.type == "cuda" else []
            self._drawing.enter_context(torch.random.fork_rng(devices))
            torch.manual_seed(args.seed + state.global_step)

    def on_optimizer_step(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self._drawing.close()


class Watch(OfTrainer):
    """Raise the alarm of each cause once: in the console, in `alarms.jsonl`, and as the metric `alarms/<name>`.

    TRL has gathered the metrics from all processes, so that all reach the same findings and stop at the same step
    without communicating. It also ends a run whose rewards fail too often (scoring/guard.py).
    """

    def __init__(
        self,
        directory: Path,
        skip: SkipNonFiniteSteps,
        request_stop: Callable[..., None],
        stop_on_alarm: bool = False,
    ) -> None:
        self.path, self.skip = directory / "alarms.jsonl", skip
        self.request_stop, self.stop_on_alarm = request_stop, stop_on_alarm
        self.raised: list[str] = []
        self._read = 0  # rollouts since the last log
        self._weights: dict[str, torch.Tensor] = {}
        self._warmup = 0

    @property
    def seen(self) -> History:
        """The trainer's history."""
        return self.trainer.history

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        kept: Any = state.stateful_callbacks  # part of every checkpoint, so that a resumed run raises the same alarms
        if "watch" in kept:
            self.seen.resume(kept["watch"]["seen"])
            self.raised = kept["watch"]["raised"]
        kept["watch"] = {"seen": vars(self.seen), "raised": self.raised}
        self._weights = _sample(self.trainer)
        self._warmup = args.get_warmup_steps(state.max_steps)

    def on_pre_optimizer_step(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self.seen.updates += bool(kwargs["lr_scheduler"].get_last_lr()[0] > 0)  # before the next rate is set

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if self.trainer.guard.excess:
            self.request_stop(self.trainer.guard.excess)
        self.seen.steps += 1
        self._read_rollout(state)
        self.seen.skipped = self.skip.in_a_row > 0
        if self.seen.weights_moved is None and self.seen.updates:
            self._compare_weights(state.global_step >= self._warmup)
        for cause in CAUSES:
            if cause.name not in self.raised and (message := cause.check(self.seen)):
                self.raised.append(cause.name)
                self._report(state, cause, message)
                if self.stop_on_alarm and cause.stops:
                    self.request_stop(f"an alarm: {cause.name}")

    def on_log(
        self, args: Any, state: TrainerState, control: Any, logs: dict[str, float] | None = None, **kwargs: Any
    ) -> None:
        if "reward" in (logs or {}):  # metrics of an evaluation are logged separately
            self._read = 0  # TRL clears its metrics after logging

    def _read_rollout(self, state: TrainerState) -> None:
        """Read the newest metrics if this step began with a rollout."""
        trainer, metrics = self.trainer, self.trainer.training_metrics
        if len(metrics.get("reward", ())) <= self._read:
            return
        self._read = len(metrics["reward"])
        # None for NaN, as in metrics.jsonl, to detect rewards that return None
        newest = {key: None if math.isnan(values[-1]) else values[-1] for key, values in metrics.items() if values}
        newest["warm"] = float(state.global_step >= self._warmup)
        self.seen.add(newest, trainer.collapsed, trainer.given)

    def _compare_weights(self, warm: bool) -> None:
        """Decide whether any sampled weight has moved: yes at once, no after MIN_UPDATES."""
        accelerator, current = self.trainer.accelerator, _sample(self.trainer)
        moved = any(not torch.equal(current[name], old) for name, old in self._weights.items())
        if accelerator.num_processes > 1:  # each process may have a part of the weights
            moved = bool(accelerator.gather(torch.tensor([moved], device=accelerator.device)).any())
        # during warm-up, 16-bit weights rightly do not move
        self.seen.weights_moved = True if moved else False if warm and self.seen.updates >= MIN_UPDATES else None

    def _report(self, state: TrainerState, cause: Cause, message: str) -> None:
        name, remedy = cause.name, cause.remedy
        self.trainer.training_metrics[f"alarms/{name}"] = [1.0]
        if not state.is_world_process_zero:
            return
        append_line(self.path, {"step": state.global_step, "name": name, "message": message, "remedy": remedy})
        title = f"[bold red]alarm at step {state.global_step}: {name}[/bold red]"
        text = f"{escape(message[0].upper() + message[1:])}.\n[bold]Fix[/bold]: {escape(remedy)}."
        show(Panel(text, title=title, title_align="left", border_style="red"))


def _trained(trainer: RunTrainer) -> Iterator[tuple[str, Any]]:
    return ((name, weight) for name, weight in trainer.model.named_parameters() if weight.requires_grad)


def _sample(trainer: RunTrainer) -> dict[str, torch.Tensor]:
    """Sample about 256 weights of each trained parameter, from this process' part of it."""
    parts = {}
    for name, weight in _trained(trainer):
        weight = getattr(weight, "ds_tensor", weight)  # ZeRO-3's part; the weight itself is empty then
        weight = weight.to_local() if hasattr(weight, "to_local") else weight  # FSDP's
        part = weight.detach().flatten()
        parts[name] = part[:: max(1, part.numel() // 256)].clone()
    return parts
