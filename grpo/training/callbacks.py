"""Callbacks of a run: its metrics file and live report, skipped steps, rewards that fail, the alarms of alarms.py."""

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, cast

import torch
from rich.markup import escape
from rich.panel import Panel
from transformers import TrainerCallback, TrainerState, TrainingArguments

from grpo.core.processes import show
from grpo.policy import sharding
from grpo.runs import report
from grpo.runs.record import append_line
from grpo.training.alarms import ALARMS, MIN_UPDATES, WARN_ONLY, Observed, Rollout
from rewards import completion_text

if TYPE_CHECKING:
    from grpo.training.base_trainer import BaseGRPOTrainer

SKIPPED = 3  # skipped optimizer steps in a row that end a run: nothing changes, so the next one will hardly be better


class MetricsFile(TrainerCallback):
    """Append what the trainer logs to `metrics.jsonl`: one JSON object a line, with `step` and `epoch`, no NaN."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "metrics.jsonl"

    def on_log(
        self, args: Any, state: TrainerState, control: Any, logs: dict[str, float] | None = None, **kwargs: Any
    ) -> None:
        if state.is_world_process_zero and logs:
            append_line(self.path, {"step": state.global_step, **logs})


class LiveReport(TrainerCallback):
    """Rewrite `report.html` while the run trains: at logging steps, every 30 s and in 2 % of the time at most.

    A report that cannot be written is one line, and the run continues without.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._due = 0.0  # not before; infinite once it has failed

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self._write(state)
        if state.is_world_process_zero and self._due < math.inf:
            show(f"Watch it: {escape(str(self.directory / 'report.html'))}", soft_wrap=True)

    def on_log(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self._write(state)

    def _write(self, state: TrainerState) -> None:
        begun, used = time.monotonic(), time.thread_time()
        if not state.is_world_process_zero or begun < self._due:
            return
        reason = report.refresh(self.directory, state.max_steps)
        took = time.thread_time() - used  # a chart takes some 30 ms, and a report has about twenty
        self._due = math.inf if reason else begun + max(report.REFRESH, 50 * took)
        if reason:
            show(f"note: no report while it trains ({escape(reason)}); it is written at the end")


class SkipNonFiniteSteps(TrainerCallback):
    """Erase the gradient of an optimizer step whose gradient or loss is not finite on any process.

    Optimizers ignore parameters without a gradient: neither weights nor moments change, the schedule advances. The
    run ends after SKIPPED such steps in a row, and at once where weights are not finite all the same.

    Args:
        stop: ends the run, given the reason and whether to save a checkpoint (`Run.ask`); None: nothing does.

    Attributes:
        nonfinite: what the last step was skipped for, "the gradient holds" or "the loss is"; empty if it was not.
        counts: skipped steps in a row and in all; part of every checkpoint.
    """

    def __init__(self, trainer: "BaseGRPOTrainer", stop: Callable[..., None] | None = None) -> None:
        self.trainer, self.stop = trainer, stop
        self.nonfinite = ""
        self.counts = {"in_a_row": 0, "in_all": 0}

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self.counts = _kept(state).setdefault("skipped_steps", self.counts)

    def on_pre_optimizer_step(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        weights = [weight for _, weight in _trained(self.trainer)]
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        # DeepSpeed keeps its gradients to itself; with fp16 the gradient scaler skips such steps
        if not gradients or self.trainer.accelerator.scaler is not None:
            return
        # clipping by an infinite norm has turned some value into NaN, so it still shows here
        self.nonfinite = self._agree(torch.nn.utils.get_total_norm(gradients).isfinite())
        for weight in weights if self.nonfinite else ():
            weight.grad = None
        self._count()

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if self.stop and not self.trainer.weights_are_finite():  # sampling would fail and not name the cause
            reason = "weights that hold NaN or infinity, of which no checkpoint is written"
            self.stop(f"{reason}: the newest one is from before", save=False)

    def _agree(self, gradient: torch.Tensor) -> str:
        """What is not finite on any process, where all of them get the same answer; a new step begins with it."""
        losses, accelerator = self.trainer.losses_finite, self.trainer.accelerator
        gradient = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient  # FSDP's
        finite = torch.stack([gradient.to(losses.device), losses]).float()[None]
        if accelerator.num_processes > 1:
            finite = accelerator.gather(finite)
        losses.fill_(True)
        gradient_finite, loss_finite = finite.bool().all(0).tolist()
        if gradient_finite and loss_finite:
            return ""
        return "the loss is" if gradient_finite else "the gradient holds"

    def _count(self) -> None:
        self.counts["in_a_row"] = self.counts["in_a_row"] + 1 if self.nonfinite else 0
        self.counts["in_all"] += bool(self.nonfinite)
        if self.counts["in_all"]:  # logged from the first one on
            self.trainer._metrics["train"]["skipped_steps"] = [float(self.counts["in_all"])]
        row = self.counts["in_a_row"]
        if self.stop and row and row % SKIPPED == 0:  # a resumed run may skip as many again
            self.stop(f"{row} skipped steps in a row: {self.nonfinite} NaN or infinity; they have changed nothing")


class StopAtFaultyRewards(TrainerCallback):
    """End the run where rewards failed on too many completions (rewarding/guard.py)."""

    def __init__(self, trainer: "BaseGRPOTrainer", stop: Callable[..., None]) -> None:
        self.trainer, self.stop = trainer, stop

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if self.trainer.guard.excess:
            self.stop(self.trainer.guard.excess)


class Watch(TrainerCallback):
    """Raise each alarm once: in the console, in `alarms.jsonl`, and as the metric `alarms/<name>` for the tracker.

    Everything it reads was gathered from all processes by TRL, so that all of them reach the same findings and stop
    at the same step without communicating. TRL passes a rollout to no callback, so `_metrics` and `_logs` are read:
    at each optimizer step, whatever `logging_steps` says.

    Args:
        skip: knows whether a step was skipped.
        stop: ends the run, given the reason (`Run.ask`); None: no alarm does.
    """

    def __init__(
        self,
        trainer: "BaseGRPOTrainer",
        directory: Path,
        skip: SkipNonFiniteSteps,
        stop: Callable[..., None] | None = None,
    ) -> None:
        self.trainer, self.path, self.skip, self.stop = trainer, directory / "alarms.jsonl", skip, stop
        self.seen = Observed()
        self.raised: dict[str, str] = {}  # messages by the alarm's name
        self._raised_before: set[str] = set()  # alarms of the run that is resumed
        self._read: dict[str, int] = {}  # how many values of each of TRL's metrics were read since its last log
        self._weights: dict[str, torch.Tensor] = {}
        self._warmup = 0

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        if kept := _kept(state).get("watch"):  # of the checkpoint that is resumed
            self.seen = Observed.restored(kept["seen"])
            self.raised, self._read = kept["raised"], kept["read"]
            self._raised_before = set(self.raised)  # and yet it was resumed
        # part of every checkpoint from here on
        _kept(state)["watch"] = {"seen": self.seen, "raised": self.raised, "read": self._read}
        self._weights = _sample(self.trainer)
        self._warmup = args.get_warmup_steps(state.max_steps)

    def on_pre_optimizer_step(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self.seen.updates += bool(kwargs["lr_scheduler"].get_last_lr()[0] > 0)  # before the schedule's next rate

    def on_step_end(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        self.seen.nonfinite = self.skip.nonfinite
        now = self._new_metrics()
        if cut := self.seen.metrics.get("completions/clipped_ratio"):
            now.setdefault("completions/clipped_ratio", cut[-1])  # one rollout may serve several steps
        for key, value in now.items():
            self.seen.note(key, value)
        warm = state.global_step >= self._warmup
        if "reward" in now:
            self.seen.add(self._rollout(), after_warmup=warm)
        if self.seen.weights_moved is None and self.seen.updates:
            self._compare_weights(warm)
        self._raise(state)

    def on_log(
        self, args: Any, state: TrainerState, control: Any, logs: dict[str, float] | None = None, **kwargs: Any
    ) -> None:
        if self._read.keys() <= (logs or {}).keys():  # those of an evaluation are logged apart
            self._read.clear()  # TRL empties what it has logged

    def _new_metrics(self) -> dict[str, float]:
        """The means of what TRL has noted since the last optimizer step."""
        means = {}
        for key, values in self.trainer._metrics["train"].items():
            start = self._read.get(key, 0)
            fresh = [value for value in values[start if start <= len(values) else 0 :] if not math.isnan(value)]
            if fresh:
                means[key] = fmean(fresh)
            self._read[key] = len(values)
        return means

    def _rollout(self) -> Rollout:
        noted: dict[str, Any] = self.trainer._logs
        weights = dict(zip(noted["rewards"], self.trainer.reward_weights.tolist(), strict=True))
        weights = {name: weight for name, weight in weights.items() if weight}  # the others are another stage's
        values = {
            name: [None if math.isnan(value) else weights.get(name, 1.0) * value for value in column]
            for name, column in noted["rewards"].items()
        }
        rewards = {name: values.pop(name) for name in weights}
        texts = [completion_text(completion) for completion in noted["completion"]]
        group = self.trainer.num_generations or 1
        return Rollout(list(noted["prompt"]), texts, rewards, group, weights, values)

    def _compare_weights(self, warm: bool) -> None:
        """Settle whether any sampled weight has moved: yes at once, no after MIN_UPDATES."""
        accelerator, current = self.trainer.accelerator, _sample(self.trainer)
        moved = any(not torch.equal(current[name], old) for name, old in self._weights.items())
        if accelerator.num_processes > 1:  # each may hold a part of them
            moved = bool(accelerator.gather(torch.tensor([moved], device=accelerator.device)).any())
        # 16-bit weights rightly do not move while a learning rate is tiny
        judged = self.seen.updates >= MIN_UPDATES and (warm or all(w.element_size() > 2 for w in current.values()))
        self.seen.weights_moved = True if moved else False if judged else None

    def _raise(self, state: TrainerState) -> None:
        for name, (check, remedy) in ALARMS.items():
            if name not in self.raised and (message := check(self.seen)):
                self.raised[name] = message
                self._report(state, name, message, remedy)
        ending = [name for name in self.raised if name not in {*WARN_ONLY, *self._raised_before}]
        if self.stop and ending:
            self.stop(f"an alarm: {', '.join(ending)}")

    def _report(self, state: TrainerState, name: str, message: str, remedy: str) -> None:
        self.trainer._metrics["train"][f"alarms/{name}"].append(1.0)
        if not state.is_world_process_zero:
            return
        append_line(self.path, {"step": state.global_step, "name": name, "message": message, "remedy": remedy})
        title = f"[bold red]alarm at step {state.global_step}: {name}[/bold red]"
        text = f"{escape(message[0].upper() + message[1:])}.\n[bold]Remedy[/bold]: {escape(remedy)}."
        show(Panel(text, title=title, title_align="left", border_style="red"))


def _kept(state: TrainerState) -> dict[str, Any]:
    """What callbacks keep in every checkpoint, by name; transformers types it as what its constructor takes, too."""
    return cast(dict[str, Any], state.stateful_callbacks)


def _trained(trainer: "BaseGRPOTrainer") -> Iterator[tuple[str, torch.nn.Parameter]]:
    assert trainer.model is not None
    return ((name, weight) for name, weight in trainer.model.named_parameters() if weight.requires_grad)


def _sample(trainer: "BaseGRPOTrainer", per_tensor: int = 256) -> dict[str, torch.Tensor]:
    """Some weights of every trained parameter, of this process' part of it."""
    parts = {name: sharding.part(weight) for name, weight in _trained(trainer)}
    return {name: part[:: max(1, part.numel() // per_tensor)].clone() for name, part in parts.items() if part.numel()}
