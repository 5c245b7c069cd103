"""Evaluate a run's policy on held-out questions: before, while and after it trains."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accelerate.utils import broadcast_object_list
from transformers import DefaultFlowCallback, Trainer, TrainerControl, TrainerState

from grpo.core.errors import UserError
from grpo.core.jsonfiles import append_line, read_object, write_json
from grpo.core.kinds import is_number
from grpo.core.phases import EVALUATION
from grpo.core.processes import is_first_process, say, show
from grpo.core.text import decimals
from grpo.data.dataset import Data
from grpo.policy.answering import Policy
from grpo.policy.evaluation import Evaluation, HeldOut, save
from grpo.results import comparison
from grpo.results.by_kind import by_kind
from grpo.results.measures import of_summaries
from grpo.results.printing import print_answers, print_summaries
from grpo.results.samples import file_of, read_samples, save_watched
from grpo.runs.resume import FOLLOW_A_METRIC
from grpo.runs.run import Run
from grpo.scoring.sample import Sample
from grpo.scoring.scorer import Scorer
from grpo.task.given_back import try_golds
from grpo.task.task import Task
from grpo.training import causes
from grpo.training.of_trainer import OfTrainer
from lean_grpo import sharding

REFUSED = 0.1  # share of the gold answers from which it explains a run that did not get better


class AccuracyCurve(OfTrainer):
    """Evaluate the policy before and after training, and wherever transformers evaluates (`eval_every`).

    Without held-out questions (eval_samples 0) there is no evaluation.

    It restores the random states, so that it does not change the weights. A signal ends an evaluation, which the
    resumed run repeats.

    Attributes:
        before: the evaluation before training, or None without held-out questions.
        after: the evaluation after the last step, or None before it.
    """

    def __init__(self, run: Run, scorer: Scorer, data: Data) -> None:
        self.run = run
        self.held_out = HeldOut(data.held_out, scorer, run.config.script.eval_num_samples)
        self.before: Evaluation | None = None
        self.after: Evaluation | None = None
        self._begins_anew = False  # True if a resumed run has measured it again
        self._measured = {"step": -1}  # the last evaluation; part of every checkpoint
        self._last: dict[str, float] = {}  # its measures

    def measure_before(self) -> None:
        """Evaluate the policy before training, save and print its answers.

        A resumed run reuses its first evaluation if that rests on the same as this session's.
        """
        trainer = self.trainer
        if not len(self.held_out.rows):
            return
        saved, checkpoint = None, self.run.checkpoint
        if checkpoint:
            saved = saved_evaluation(checkpoint.parent, self.held_out, self.run.measure)
        before: Evaluation | None = broadcast_object_list([saved])[0]  # the first process': all must do the same
        if before is None:
            if checkpoint:
                changed = ", ".join(self.run.remeasured) or "what the saved one rests on, or its record"
                say(f"note: the evaluation before training is measured again; changed: {changed}")
            self._begins_anew = checkpoint is not None
            before = self._evaluate(self.held_out)
        else:
            say("Evaluation before training: reused from the start of the run")
        if is_first_process():
            save(self.run.output, "before", before)
            print_answers("before training", before.samples, trainer.scorer.task.prompt.pattern)
        self.before, self._last = before, {key: value for key, value in before.summary.items() if is_number(value)}
        metric = trainer.args.metric_for_best_model
        if metric and before.summary.get(metric) is None:
            reason = before.summary.get("judge_error") or "no held-out answer has a value"
            raise UserError(f"metric_for_best_model: {metric} is not measured ({reason}); use another")

    def measure_after(self) -> None:
        """Evaluate the weights that are saved, compare them with those before question by question, print both."""
        run, trainer, before = self.run, self.trainer, self.before
        if before is None:
            return
        run.stop.after_training()
        step = trainer.weights_step
        last = self.after if step == trainer.state.global_step else None
        after = last or self._evaluate(self.held_out)
        if is_first_process():
            save(run.output, "after", after, step)
            error = before.summary.get("judge_error") or after.summary.get("judge_error") or ""
            compared = comparison.compare(before.samples, after.samples, error)
            needed = compared["verdict"] not in causes.NO_CAUSE_NEEDED
            seen = trainer.history, trainer.state.log_history, before.samples, after.samples, compared
            reasons = causes.explain(*seen, refused_golds(trainer.scorer.task, before.samples)) if needed else []
            kinds = by_kind(run.config.script.eval_by, {"before": before.samples, "after": after.samples})
            compared |= {"step": step, "diagnosis": reasons} | ({"by": kinds.to_json()} if kinds else {})
            write_json(run.output / "comparison.json", compared)
            print_answers("after training", after.samples, trainer.scorer.task.prompt.pattern)
            print_summaries({"before": before.summary, "after": after.summary}, compared, kinds)

    def _evaluate(self, held_out: HeldOut) -> Evaluation:
        """Evaluate the policy as it is now. Raise GivenUp for a signal while training."""
        trainer, task = self.trainer, held_out.scorer.task
        check = (lambda: None) if self._follows else self.run.stop.after_batch  # the schedule waits for it
        with self.run.during(EVALUATION), sharding.whole(trainer) as model:
            tokenizer: Any = trainer.processing_class
            policy = Policy.in_training(model, tokenizer, trainer.args, task.prompt.prefill)
            evaluation = held_out.evaluate(policy, check)
        evaluation.summary["measure"] = self.run.measure
        return evaluation

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self.before is None or args.eval_strategy == "no":
            return
        kept: Any = state.stateful_callbacks
        self._measured = kept.setdefault("accuracy_curve", self._measured)
        if self.run.rechosen:  # so that the checkpoint is evaluated, too
            self._measured["step"] = -1
        if state.global_step == 0:
            self._log(self.before.summary)
            return
        if self._begins_anew and is_first_process():  # the curve, too
            line = {"step": 0, "measure": self.run.measure, **logged(self.before.summary)}
            append_line(self.run.output / "metrics.jsonl", line)
        if _is_due(args, state) and self._measured["step"] < state.global_step:
            self.trainer.consider_checkpoint()  # its run ended before this evaluation

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if args.eval_strategy != "no":
            control.should_evaluate |= state.global_step >= state.max_steps  # the curve's end

    def measure(self) -> dict[str, float]:
        """Return the measures of this step as `eval_…`; {} without questions. Raise GivenUp for a signal."""
        state = self.trainer.state
        if self.before is None:
            return {}
        ends = state.global_step >= state.max_steps
        held_out = self.held_out if ends else dataclasses.replace(self.held_out, draws=1)  # greedy answers alone
        evaluation = self._evaluate(held_out)
        self.after = evaluation if ends else None
        self._log(evaluation.summary)
        if is_first_process():
            save_watched(self.run.output, evaluation.samples, state.global_step, self.run.measure)
        measures = {key: value for key, value in evaluation.summary.items() if is_number(value)}
        metric = self.trainer.args.metric_for_best_model
        if self._follows and metric not in measures:
            say(f"note: {metric} has no value at step {state.global_step}: the learning rate follows its last one")
            measures[metric] = self._last[metric]
        self._last = measures
        return {f"eval_{key}": value for key, value in measures.items()}

    @property
    def _follows(self) -> bool:
        """True if the schedule of the learning rate follows the metric of evaluations."""
        return self.trainer.args.lr_scheduler_type in FOLLOW_A_METRIC

    def _log(self, summary: dict[str, Any]) -> None:
        """Log and print the summary for the current step."""
        trainer = self.trainer
        step = self._measured["step"] = trainer.state.global_step
        logs = logged(summary)
        Trainer.log(trainer, logs)  # not TRL's, which would add training metrics of an incomplete step
        parts = []
        for measure in [measure for measure in of_summaries([summary]) if measure.curve]:
            value = decimals(measure.factor * summary[measure.key], measure.places)
            if measure.is_share:
                low, high = (100 * summary[f"{measure.key}{end}"] for end in ("_low", "_high"))
                value += f" % ({low:.0f}-{high:.0f})"
            parts.append(f"{measure.words} {value}")
        if trainer.is_world_process_zero():
            show(f"step {step}, held-out questions: {', '.join(parts)}")


def _is_due(args: Any, state: TrainerState) -> bool:
    """True if transformers evaluates at this step."""
    flow, control = DefaultFlowCallback(), TrainerControl()
    flow.on_step_end(args, state, control)
    if float(state.epoch or 0.5).is_integer():
        flow.on_epoch_end(args, state, control)
    return control.should_evaluate or state.global_step >= state.max_steps


def refused_golds(task: Task, samples: Sequence[Sample]) -> str:
    """Say which gold answers the judge does not accept when they are given back; "" if these are few."""
    refused = try_golds(task, [sample.row for sample in samples])
    return str(refused) if refused.share > REFUSED else ""


def logged(summary: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers of a summary by the names under which they are logged."""
    logs = {f"eval/{key}": value for key, value in summary.items() if not isinstance(value, str)}
    logs["time/evaluation"] = logs.pop("eval/seconds")
    return logs


def saved_evaluation(directory: Path, held_out: HeldOut, measure: str) -> Evaluation | None:
    """Load a run's evaluation before training, if it is whole and of this measure and number of samples."""
    try:
        summary = read_object(directory / "eval_before.json")
        samples = read_samples(file_of(directory, "before"))
    except UserError:  # a broken file: measure again
        return None
    wanted = len(held_out.rows), held_out.draws, measure
    found = len(samples), summary.get("k", 1), summary.get("measure")
    return Evaluation(summary, samples) if found == wanted else None
