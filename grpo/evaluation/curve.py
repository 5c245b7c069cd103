"""Accuracy on held-out questions while a run trains: a curve over its optimizer steps."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedTokenizerBase, Trainer, TrainerCallback, TrainerControl, TrainerState

from grpo.core.processes import show
from grpo.core.settings import Config
from grpo.data.dataset import Data
from grpo.evaluation import evaluate
from grpo.evaluation.evaluate import Evaluation
from grpo.policy import sharding

if TYPE_CHECKING:
    from grpo.runs.run import Run

MEASURES = ("accuracy_lenient", "accuracy_strict", "format_strict", "truncated", "reward")  # logged, with intervals


class AccuracyCurve(TrainerCallback):
    """Measure the policy every `eval_every` optimizer steps, as before and after training, which are the curve's ends.

    Nothing of it is random, so that the weights are those of a run without it.

    Args:
        trainer: a BaseGRPOTrainer.
        before: the evaluation before training.

    Attributes:
        after: the evaluation after the last step; None while that has not been made.
    """

    def __init__(
        self,
        config: Config,
        run: Run,
        trainer: Any,
        tokenizer: PreTrainedTokenizerBase,
        data: Data,
        before: Evaluation,
    ) -> None:
        self.every = config.script.eval_every or 0
        self.config, self.run, self.trainer = config, run, trainer
        self.tokenizer, self.data, self.before = tokenizer, data, before
        self.after: Evaluation | None = None
        self._measured = {"step": -1}  # the last one; part of every checkpoint

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        kept: Any = state.stateful_callbacks
        self._measured = kept.setdefault("accuracy_curve", self._measured)
        if state.global_step == 0:
            self._log(self.before[0])
        elif self._is_due(state) and self._measured["step"] < state.global_step:
            self._measure()  # it was stopped before this was measured

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._is_due(state) and not self.run.stopped:
            self._measure()

    def _is_due(self, state: Any) -> bool:
        return state.global_step % self.every == 0 or state.global_step >= state.max_steps

    def _measure(self) -> None:
        trainer, config, script = self.trainer, self.config, self.config.script
        ends = trainer.state.global_step >= trainer.state.max_steps
        if not ends:  # greedy answers alone
            config = dataclasses.replace(config, script=dataclasses.replace(script, eval_num_samples=1))
        with sharding.whole(trainer) as policy:
            rewards = evaluate.rewards_in(trainer)
            evaluation = evaluate.measure(config, policy, self.tokenizer, self.data, trainer.judge, rewards)
        self.after = evaluation if ends else None
        self._log(evaluation[0])

    def _log(self, summary: dict[str, Any]) -> None:
        """Log and print the summary as that of the current step."""
        trainer = self.trainer
        step = self._measured["step"] = trainer.state.global_step
        keys = [f"{measure}{end}" for measure in MEASURES for end in ("", "_low", "_high")]
        logs = {f"eval/{key}": summary[key] for key in [*keys, "n", "mean_length"] if summary.get(key) is not None}
        due = trainer.control.should_log
        # past TRL's, which would log the training metrics with it, before their step is complete
        Trainer.log(trainer, logs | {"time/evaluation": summary["seconds"]})
        trainer.control.should_log = due
        parts = [
            f"{measure.removeprefix('accuracy_')} {100 * summary[measure]:.1f} % "
            f"({100 * summary[f'{measure}_low']:.0f}-{100 * summary[f'{measure}_high']:.0f})"
            for measure in MEASURES[:3]
            if summary.get(measure) is not None
        ]
        if summary.get("reward") is not None:  # there are no gold answers
            parts.insert(0, f"reward {summary['reward']:.2f}")
        if trainer.is_world_process_zero():
            show(f"step {step}, held-out questions: {', '.join(parts[:2])}")


def follow(
    config: Config, run: Run, trainer: Any, tokenizer: PreTrainedTokenizerBase, data: Data, before: Evaluation
) -> AccuracyCurve:
    """Add the curve to a trainer where `eval_every` asks for one."""
    curve = AccuracyCurve(config, run, trainer, tokenizer, data, before)
    if curve.every:
        trainer.add_callback(curve)
    return curve
