"""Accuracy on held-out questions while a run trains: a curve over its steps, and the step whose model is saved."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedTokenizerBase, Trainer, TrainerCallback, TrainerControl, TrainerState

from grpo.core.errors import UserError
from grpo.core.processes import say, show
from grpo.core.settings import Config
from grpo.data.dataset import Data
from grpo.evaluation import evaluate
from grpo.evaluation.evaluate import Evaluation
from grpo.policy import sharding
from grpo.runs import checkpoints

if TYPE_CHECKING:
    from grpo.runs.run import Run

MEASURES = ("accuracy_lenient", "accuracy_strict", "format_strict", "truncated", "reward")  # logged, with intervals
BIASED = "picked by these questions, which biases the accuracy after training upwards"


class AccuracyCurve(TrainerCallback):
    """Measure the policy every `eval_every` optimizer steps, as before and after training, which are the curve's ends.

    Nothing of it is random, so that the weights are those of a run without it. With `keep_best` the checkpoint with
    the best lenient accuracy is kept (of equal ones the first), and the trainer has its weights in the end.

    Args:
        trainer: a BaseGRPOTrainer.

    Attributes:
        after: the evaluation of the policy that the trainer has in the end, by the questions of before and after;
            None where they were not asked.
        step: the optimizer step that this policy is of.
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
        self.every, self.picks = config.script.eval_every or 0, config.script.keep_best
        self.config, self.run, self.trainer, self.tokenizer = config, run, trainer, tokenizer
        self.apart = data.picking is not None  # a checkpoint is not picked by the questions that judge it in the end
        self.data = dataclasses.replace(data, held_out=data.picking) if data.picking is not None else data
        self.before = None if self.apart else before
        self.after: Evaluation | None = None
        self._due = False
        self._measured = {"step": -1}  # the last one; part of every checkpoint

    @property
    def step(self) -> int:
        state = self.trainer.state
        return (self.picks and state.best_global_step) or state.global_step

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._find_best()
        kept: Any = state.stateful_callbacks
        self._measured = kept.setdefault("accuracy_curve", self._measured)
        if state.global_step == 0 and self.before:
            self._note(self.before[0])
        elif self._is_due(state) and self._measured["step"] < state.global_step and self._measure_and_pick():
            state.best_model_checkpoint = str(self.trainer._resumed_from)  # it was stopped before this was measured

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._due |= self._is_due(state)
        may_save = self.trainer.at_boundary or state.global_step == state.max_steps
        if self._due and not self.run.stopped and (may_save or not self.picks):
            self._due = False
            control.should_save |= self._measure_and_pick()  # transformers writes down that it is the best one

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self.picks and self.step < state.global_step and not self.run.stopped:
            self.trainer._load_best_model()
            self.after = None
            say(f"Step {self.step} was the best: its weights replace those of step {state.global_step}")

    def _find_best(self) -> None:
        """Where a resumed run was moved, transformers has not found its best checkpoint."""
        state, resumed = self.trainer.state, self.trainer._resumed_from
        if not self.picks or not state.best_global_step or state.best_model_checkpoint:
            return
        beside = resumed.with_name(f"checkpoint-{state.best_global_step}")
        if checkpoints.is_sealed(beside):
            state.best_model_checkpoint = str(beside)
            return
        say(f"note: {beside}, the best so far, is gone; the best of the steps from here on is kept")
        state.best_metric = state.best_global_step = None

    def _is_due(self, state: Any) -> bool:
        return state.global_step % self.every == 0 or state.global_step >= state.max_steps

    def _measure_and_pick(self) -> bool:
        """Whether this step is the best so far, and its checkpoint is to be kept."""
        trainer, script = self.trainer, self.config.script
        state: Any = trainer.state
        ends = state.global_step >= state.max_steps and not self.apart
        greedy = dataclasses.replace(self.config, script=dataclasses.replace(script, eval_num_samples=1))
        with sharding.whole(trainer) as policy:
            measured = self.config if ends else greedy
            rewards = evaluate.rewards_in(trainer)
            evaluation = evaluate.measure(measured, policy, self.tokenizer, self.data, trainer.judge, rewards)
        self.after = evaluation if ends else None
        self._note(evaluation[0])
        if not self.picks or state.global_step == 0:
            return False
        accuracy, best = evaluation[0]["accuracy_lenient"], state.best_metric
        if best is not None and accuracy <= best:
            return False
        state.best_metric, state.best_global_step = accuracy, state.global_step
        return True

    def _note(self, summary: dict[str, Any]) -> None:
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
    config: Config,
    run: Run,
    trainer: Any,
    tokenizer: PreTrainedTokenizerBase,
    data: Data,
    before: Evaluation,
) -> AccuracyCurve:
    """Add the curve to a trainer where `eval_every` asks for one.

    Raises:
        UserError: `keep_best`, and checkpoints hold no weights that a sharded trainer could load.
    """
    curve = AccuracyCurve(config, run, trainer, tokenizer, data, before)
    sharded = trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled
    if curve.picks and sharded and config.training.save_only_model:
        raise UserError("keep_best: sharded weights are loaded from whole checkpoints; drop save_only_model")
    if curve.every:
        trainer.add_callback(curve)
    if curve.picks and not curve.apart:
        say(f"note: the best checkpoint is {BIASED}")
    return curve
