"""The same held-out questions before and after training, and what the difference says; or one model measured alone."""

import json
from pathlib import Path
from typing import Any

from accelerate.utils import broadcast_object_list
from transformers import PreTrainedTokenizerBase

from grpo.core.processes import is_first_process, say
from grpo.core.settings import Config
from grpo.data.dataset import Data
from grpo.evaluation import comparison, curve, evaluate
from grpo.evaluation.curve import AccuracyCurve
from grpo.evaluation.evaluate import Evaluation
from grpo.policy import loading
from grpo.rewarding.judge import Judge
from grpo.rewarding.registry import Rewards
from grpo.runs.resume import changes
from grpo.runs.run import Run, open_run

COLOURS = {"got_better": "bold green", "got_worse": "bold red"}  # of a verdict; all others say less than was hoped


def measure_before(run: Run, trainer: Any, data: Data) -> AccuracyCurve | None:
    """Measure the policy that training starts from, save and show what it answers, and follow it with `eval_every`.

    A resumed run takes what it found when it began, where no setting that matters was changed. None where there are
    no held-out questions (eval_samples 0).
    """
    config = run.config
    if not len(data.held_out):
        return None
    checkpoint = config.training.resume_from_checkpoint
    saved = None
    if checkpoint and not changes(Path(checkpoint), config.settings()):
        saved = _saved(Path(checkpoint).parent, data, config.script.eval_num_samples)
    known: Evaluation | None = broadcast_object_list([saved])[0]  # the main process', since all must do the same
    if known:
        say("Evaluation before training: reused from the start of the run")
    before = known or curve.measure(config, trainer, data)
    if is_first_process():
        evaluate.save(config.output, "before", *before)
        evaluate.print_answers("before training", before[1])
    accuracy = AccuracyCurve(run, trainer, data, before)
    if accuracy.every:
        trainer.add_callback(accuracy)
    return accuracy


def _saved(directory: Path, data: Data, num_samples: int) -> Evaluation | None:
    """A run's evaluation before training, if it is of these held-out questions and as many samples."""
    try:
        summary = json.loads((directory / "eval_before.json").read_text(encoding="utf-8"))
        lines = (directory / "completions_before.jsonl").read_text(encoding="utf-8").split("\n")
        records = [json.loads(line) for line in lines if line]
    except (OSError, ValueError):
        return None
    wanted = list(zip(data.held_out["question"], data.held_out["answer"], strict=True))
    asked = [(record["question"], record["answer"]) for record in records]
    return (summary, records) if asked == wanted and summary.get("k", 1) == num_samples else None


def measure_after(accuracy: AccuracyCurve | None) -> None:
    """Measure the trained policy, compare it with `measure_before` question by question, save and show both."""
    if accuracy is None:
        return
    run, trainer, before = accuracy.run, accuracy.trainer, accuracy.before
    summary, answers = accuracy.after or curve.measure(run.config, trainer, accuracy.data)
    if is_first_process():
        summary["step"] = trainer.state.global_step
        evaluate.save(run.output, "after", summary, answers)
        compared = comparison.compare(before[1], answers)
        (run.output / "comparison.json").write_text(json.dumps(compared, indent=2) + "\n", encoding="utf-8")
        evaluate.print_answers("after training", answers)
        style = COLOURS.get(compared["verdict"], "bold yellow")
        evaluate.print_evaluations({"before": before[0], "after": summary}, compared["sentence"], style)


def measure_alone(
    config: Config, tokenizer: PreTrainedTokenizerBase, data: Data, judge: Judge, rewards: Rewards
) -> int:
    """`--eval_only`: measure the model as it is; the exit status."""
    with open_run(config) as run:
        summary, answers = evaluate.measure(config, loading.load_model(config)[0], tokenizer, data, judge, rewards)
        run.begin(**data.facts())  # only now: a model that cannot be measured leaves nothing behind
        if is_first_process():
            evaluate.save(config.output, "only", summary, answers)
            evaluate.print_evaluations({Path(config.model_name).name: summary})
        run.end("evaluated")
    return run.exit_status
