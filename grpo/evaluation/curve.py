"""Accuracy on held-out questions while a run trains: a curve over its optimizer steps."""

import contextlib
import dataclasses
from typing import Any

from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState

from grpo.core.errors import UserError
from grpo.core.processes import GivenUp, show
from grpo.core.settings import Config
from grpo.core.text import decimals
from grpo.data.dataset import Data
from grpo.evaluation import evaluate
from grpo.evaluation.evaluate import Evaluation
from grpo.results.measures import of_summaries
from grpo.runs.run import Run
from lean_grpo import sharding


def measure(config: Config, trainer: Any, data: Data) -> Evaluation:
    """Evaluate a RunTrainer's policy on the held-out questions. Raise GivenUp for a signal while training."""
    with trainer.run.may_give_up("this evaluation"), sharding.whole(trainer) as policy:
        return evaluate.measure(
            config, policy, trainer.processing_class, trainer.task, data, trainer.rewards, trainer.run, trainer.state
        )


class AccuracyCurve(TrainerCallback):
    """Evaluate the policy every `eval_every` optimizer steps, between the evaluations before and after.

    If one of its measures chooses the best checkpoint, it is measured wherever TRL's evaluation would be.

    It restores the random states, so that it does not change the weights. A signal ends an evaluation, which the
    resumed run repeats.

    Attributes:
        after: the evaluation after the last step, or None before it.
    """

    def __init__(self, run: Run, trainer: Any, data: Data, before: Evaluation) -> None:
        self.every = run.config.script.eval_every or 0
        self.run, self.trainer, self.data, self.before = run, trainer, data, before
        self.after: Evaluation | None = None
        self._measured = {"step": -1}  # the last evaluation; part of every checkpoint
        self._summary: dict[str, Any] = {}  # of the last evaluation of this session
        if metric := run.config.own_metric:
            if before.summary.get(metric) is None:
                reason = before.summary.get("judge_error") or "no held-out answer has a value"
                raise UserError(f"metric_for_best_model: {metric} is not measured ({reason}); use another")
            trainer.own_metric, trainer.trl_evaluates = self._own_metric, run.config.trl_evaluates

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        kept: Any = state.stateful_callbacks
        self._measured = kept.setdefault("accuracy_curve", self._measured)
        if state.global_step == 0:
            self._log(self.before.summary)
        elif self._is_due(state) and self._measured["step"] < state.global_step:
            self._measure()  # stopped before this evaluation
            if not self.trainer.trl_evaluates:
                self.trainer.consider_checkpoint()

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._is_due(state):
            self._measure()

    def _own_metric(self) -> dict[str, float]:
        """Return the measure of this step that chooses the best checkpoint. Raise GivenUp for a signal."""
        if not self._summary or self._measured["step"] < self.trainer.state.global_step:
            self._measure()
        if self._measured["step"] < self.trainer.state.global_step:
            raise GivenUp
        metric = self.run.config.own_metric
        return {f"eval_{metric}": self._summary[metric]} if metric in self._summary else {}

    def _is_due(self, state: Any) -> bool:
        if not self.every:
            return False
        return state.global_step % self.every == 0 or state.global_step >= state.max_steps

    def _measure(self) -> None:
        config, state = self.run.config, self.trainer.state
        ends = state.global_step >= state.max_steps
        if not ends:  # greedy answers alone
            config = dataclasses.replace(config, script=dataclasses.replace(config.script, eval_num_samples=1))
        with contextlib.suppress(GivenUp):
            self.run.check_all()
            evaluation = measure(config, self.trainer, self.data)
            self.after, self._summary = evaluation if ends else None, evaluation.summary
            self._log(evaluation.summary)

    def _log(self, summary: dict[str, Any]) -> None:
        """Log and print the summary for the current step."""
        trainer = self.trainer
        step = self._measured["step"] = trainer.state.global_step
        logs = {f"eval/{key}": value for key, value in summary.items() if not isinstance(value, str)}
        logs["time/evaluation"] = logs.pop("eval/seconds")
        due = trainer.control.should_log
        # not TRL's log, which would add training metrics of an incomplete step
        Trainer.log(trainer, logs)
        trainer.control.should_log = due
        parts = []
        for measure in [measure for measure in of_summaries([summary]) if measure.curve]:
            value = decimals(measure.factor * summary[measure.key], measure.places)
            if measure.is_share:
                low, high = (100 * summary[f"{measure.key}{end}"] for end in ("_low", "_high"))
                value += f" % ({low:.0f}-{high:.0f})"
            parts.append(f"{measure.words} {value}")
        if trainer.is_world_process_zero():
            show(f"step {step}, held-out questions: {', '.join(parts)}")
