"""Callbacks that watch a run while it trains: the metrics file, and the alarms of alarms.py."""

import math
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.panel import Panel
from transformers import TrainerCallback

from grpo.policy import sharding
from grpo.runs.record import append_line
from grpo.training.alarms import ALARMS, GOES_ON, MOVES
from grpo.training.observed import Observed, Rollout
from rewards import completion_text

SPOILT = "weights that hold NaN or infinity, of which no checkpoint is written: the newest one is from before"
SKIPPED = 3  # optimizer steps skipped in a row that end a run: nothing changes, so the next one will hardly be better


class MetricsFile(TrainerCallback):
    """Append what the trainer logs to `metrics.jsonl`: one JSON object a line, with `step` and `epoch`, no NaN."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "metrics.jsonl"

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        if state.is_world_process_zero and logs:
            append_line(self.path, {"step": state.global_step, **logs})


class Watch(TrainerCallback):
    """Raise each alarm once: in the console, in `alarms.jsonl`, and as the metric `alarms/<name>` for the tracker.

    All it looks at TRL has gathered from all processes, so that all of them come to the same findings and stop at the
    same step without asking each other. TRL shows a rollout to nobody, so `_metrics` and `_logs` are read.

    It also skips optimizer steps that would spoil the weights, and ends the run after SKIPPED of them in a row, or
    where too many rewards have failed.

    Args:
        trainer: a BaseGRPOTrainer; its metrics are read at each optimizer step, whatever `logging_steps` says.
        stop: what ends the run, given the reason and whether to save a checkpoint (`Stopping.ask`); None: nothing.
        at_alarms: whether an alarm ends it, too.
    """

    def __init__(
        self, trainer: Any, directory: Path, stop: Callable[..., None] | None = None, at_alarms: bool = False
    ) -> None:
        self.trainer, self.path, self.stop, self.at_alarms = trainer, directory / "alarms.jsonl", stop, at_alarms
        prompt = trainer.train_dataset[0]["prompt"]
        self._fixed = {
            "scaled_by_group": trainer.scale_rewards == "group",
            "chat_template_unused": isinstance(prompt, str) and bool(trainer.processing_class.chat_template),
        }
        self.seen = Observed(**self._fixed)
        self.raised: dict[str, str] = {}  # what was said, by the alarm's name, or its name, a slash and its subject
        self._told_before: set[str] = set()  # alarms of the run that is gone on with
        self._read: dict[str, int] = {}  # how many values of each of TRL's metrics were read since its last log
        self._weights: dict[str, torch.Tensor] = {}
        self._warmup = 0
        self._skipped = {"in a row": 0, "in all": 0}

    @property
    def names(self) -> list[str]:
        """The alarms that were raised, in order."""
        return list(dict.fromkeys(key.partition("/")[0] for key in self.raised))

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if kept := state.stateful_callbacks.get("watch"):  # of the run that is gone on with
            self.seen = Observed.restored(kept["seen"], **self._fixed)
            self.raised, self._read, self._skipped = kept["raised"], kept["read"], kept["skipped"]
            self._told_before = set(self.names)  # and it goes on all the same
        self._weights = _sample(self.trainer.model)
        self._warmup = args.get_warmup_steps(state.max_steps)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        parameters = [p for p in self.trainer.model.parameters() if p.grad is not None]
        # DeepSpeed keeps its gradients to itself; with fp16 the gradient scaler skips such steps, as it should
        if parameters and self.trainer.accelerator.scaler is None:
            # clipping by an infinite norm has turned some value into NaN, so it still shows here
            gradient = torch.nn.utils.get_total_norm([p.grad for p in parameters]).isfinite()
            self.seen.nonfinite = self._agreed(gradient, self.trainer.losses_finite)
            for parameter in parameters if self.seen.nonfinite else ():
                parameter.grad = None  # which optimizers leave out: neither weights nor moments change
            self._count_skipped(state)
        self.seen.moves += self.trainer.lr_scheduler.get_last_lr()[0] > 0
        self._raise(state, state.global_step + 1)  # at once: a step with NaN may be the last one

    def _agreed(self, gradient: torch.Tensor, loss: torch.Tensor) -> str:
        """What is not finite, on any process; the losses are looked at anew from here on."""
        gradient = gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient  # FSDP's
        finite = torch.stack([gradient.to(loss.device), loss]).float()[None]
        if self.trainer.accelerator.num_processes > 1:
            finite = self.trainer.accelerator.gather(finite)
        loss.fill_(True)
        gradient_finite, loss_finite = finite.bool().all(0).tolist()
        return "" if gradient_finite and loss_finite else "the loss is" if gradient_finite else "the gradient holds"

    def _count_skipped(self, state: Any) -> None:
        in_a_row = self._skipped["in a row"] + 1 if self.seen.nonfinite else 0
        self._skipped = {"in a row": in_a_row, "in all": self._skipped["in all"] + bool(in_a_row)}
        if self._skipped["in all"]:  # from the first one on
            self.trainer._metrics["train"]["skipped_steps"] = [float(self._skipped["in all"])]
        if in_a_row and in_a_row % SKIPPED == 0 and self.stop:  # a run that goes on after it has as many again
            sound = self.trainer.weights_are_finite()
            kept = "they have changed nothing, so the weights are those from before" if sound else SPOILT
            self.stop(f"{in_a_row} skipped steps in a row: {self.seen.nonfinite} NaN or infinity; {kept}", save=sound)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        now = self._new_metrics()
        if cut := self.seen.metrics.get("completions/clipped_ratio"):
            now.setdefault("completions/clipped_ratio", cut[-1])  # these completions are trained on for several steps
        for key, value in now.items():
            self.seen.note(key, value)
        warm = state.global_step >= self._warmup
        if "reward" in now:
            self.seen.add(self._rollout(), after_warmup=warm)
        if self.seen.weights_moved is None and self.seen.moves:
            current = _sample(self.trainer.model)
            moved = any(not torch.equal(current[name], old) for name, old in self._weights.items())
            if self.trainer.accelerator.num_processes > 1:  # each may hold a part of them
                moved = bool(self.trainer.accelerator.gather(self.trainer.losses_finite.new_tensor([moved])).any())
            # 16-bit weights rightly stand still while a learning rate is tiny
            judged = self.seen.moves >= MOVES and (warm or all(w.element_size() > 2 for w in current.values()))
            self.seen.weights_moved = True if moved else False if judged else None
        if self.stop and self.trainer.guard.excess:
            self.stop(self.trainer.guard.excess)
        if self.stop and not self.trainer.weights_are_finite():  # the next rollout would fail, and say nothing of it
            self.stop(SPOILT, save=False)
        self._raise(state, state.global_step)
        self._keep(state)

    def _keep(self, state: Any) -> None:
        """Leave in the trainer's state, which is part of every checkpoint, what the watch goes on from."""
        kept = {"seen": self.seen, "raised": self.raised, "read": self._read, "skipped": self._skipped}
        state.stateful_callbacks["watch"] = kept

    def _new_metrics(self) -> dict[str, float]:
        """The means of what TRL has noted since the last optimizer step."""
        noted, means = self.trainer._metrics["train"], {}
        for key, values in noted.items():
            start = self._read.get(key, 0)
            fresh = [value for value in values[start if start <= len(values) else 0 :] if not math.isnan(value)]
            if fresh:
                means[key] = fmean(fresh)
        self._read = {key: len(values) for key, values in noted.items()}
        return means

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._read = {}  # TRL's log empties what it has noted
        self._keep(state)

    def _rollout(self) -> Rollout:
        noted = self.trainer._logs
        weights = dict(zip(noted["rewards"], self.trainer.reward_weights.tolist(), strict=True))
        weights = {name: weight for name, weight in weights.items() if weight}  # the others are another stage's
        values = {
            name: [None if math.isnan(value) else weights.get(name, 1.0) * value for value in column]
            for name, column in noted["rewards"].items()
        }
        rewards = {name: values.pop(name) for name in weights}
        texts = [completion_text(completion) for completion in noted["completion"]]
        return Rollout(list(noted["prompt"]), texts, rewards, self.trainer.num_generations, weights, values)

    def _raise(self, state: Any, step: int) -> None:
        for name, (check, remedy) in ALARMS.items():
            found = check(self.seen)
            for subject, message in found.items() if isinstance(found, dict) else [("", found)]:
                key = f"{name}/{subject}" if subject else name
                if message and key not in self.raised:
                    self.raised[key] = message
                    self._tell(state, step, name, message, remedy)
        ending = [name for name in self.names if name not in {*GOES_ON, *self._told_before}] if self.at_alarms else []
        if self.stop and ending:
            self.stop(f"an alarm: {', '.join(ending)}")

    def _tell(self, state: Any, step: int, name: str, message: str, remedy: str) -> None:
        self.trainer._metrics["train"][f"alarms/{name}"].append(1.0)
        if not state.is_world_process_zero:
            return
        append_line(self.path, {"step": step, "name": name, "message": message, "remedy": remedy})
        Console().print()  # off the progress bar's line
        title = f"[bold red]alarm at step {step}: {name}[/bold red]"
        text = f"{escape(message[0].upper() + message[1:])}.\n[bold]Remedy[/bold]: {escape(remedy)}."
        Console().print(Panel(text, title=title, title_align="left", border_style="red"))


def _sample(model: Any, per_tensor: int = 256) -> dict[str, torch.Tensor]:
    """Some weights of every parameter that is trained, of this process' part of it."""
    found = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and (flat := sharding.part(parameter)).numel():
            found[name] = flat[:: max(1, flat.numel() // per_tensor)].clone()
    return found
