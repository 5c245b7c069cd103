"""Evaluate a model on the same held-out questions before and after training, and compare."""

from pathlib import Path
from typing import Any

from accelerate.utils import broadcast_object_list

from grpo.core.errors import UserError
from grpo.core.jsonfiles import read_lines, read_object, write_json
from grpo.core.processes import is_first_process, say
from grpo.data.dataset import Data
from grpo.evaluation import curve, evaluate
from grpo.evaluation.curve import AccuracyCurve
from grpo.evaluation.evaluate import Evaluation
from grpo.results import comparison
from grpo.results.answer import Answer
from grpo.runs.run import Run
from grpo.training import causes


def measure_before(run: Run, trainer: Any, data: Data) -> AccuracyCurve | None:
    """Evaluate the policy before training, save and print its answers, and prepare evaluations with `eval_every`.

    A resumed run reuses its first evaluation unless a relevant setting has changed. Returns None without held-out
    questions (eval_samples 0).
    """
    config = run.config
    if not len(data.held_out):
        return None
    checkpoint = config.training.resume_from_checkpoint
    saved = None
    if checkpoint and not config.resumed_with:
        saved = _saved(Path(checkpoint).parent, data, config.script.eval_num_samples)
    before: Evaluation | None = broadcast_object_list([saved])[0]  # the first process': all must do the same
    if before is None:
        before = curve.measure(config, trainer, data)
    else:
        say("Evaluation before training: reused from the start of the run")
    if is_first_process():
        evaluate.save(config.output, "before", before)
        evaluate.print_answers("before training", before.answers, trainer.task.prompt.pattern)
    accuracy = AccuracyCurve(run, trainer, data, before)
    if accuracy.every or config.own_metric:
        trainer.add_callback(accuracy)
    return accuracy


def _saved(directory: Path, data: Data, num_samples: int) -> Evaluation | None:
    """Load a run's evaluation before training if it has the same held-out questions and number of samples."""
    try:
        summary = read_object(directory / "eval_before.json")
        answers = list(map(Answer.from_json, read_lines(directory / "completions_before.jsonl")))
    except UserError:  # a broken file: measure again
        return None
    wanted = list(zip(data.held_out["question"], data.held_out["answer"], strict=True))
    asked = [(one.question, one.answer) for one in answers]
    return Evaluation(summary, answers) if asked == wanted and summary.get("k", 1) == num_samples else None


def measure_after(accuracy: AccuracyCurve | None) -> None:
    """Evaluate the weights that are saved, compare them with `measure_before` question by question, print both."""
    if accuracy is None:
        return
    run, trainer, before = accuracy.run, accuracy.trainer, accuracy.before
    run.end_for_signal()
    step = trainer.weights_step
    last = accuracy.after if step == trainer.state.global_step else None
    after = last or curve.measure(run.config, trainer, accuracy.data)
    if is_first_process():
        evaluate.save(run.output, "after", after, step)
        error = before.summary.get("judge_error") or after.summary.get("judge_error") or ""
        compared = comparison.compare(before.answers, after.answers, error)
        needed = compared["verdict"] not in causes.NO_CAUSE_NEEDED
        reasons = causes.explain(trainer.state, before.answers, after.answers, compared) if needed else []
        compared |= {"step": step, "diagnosis": reasons}
        write_json(run.output / "comparison.json", compared)
        evaluate.print_answers("after training", after.answers, trainer.task.prompt.pattern)
        evaluate.print_summaries({"before": before.summary, "after": after.summary}, compared)
