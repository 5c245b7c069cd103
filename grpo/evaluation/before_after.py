"""The same held-out questions before and after training, and what the difference says; or one model measured alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from transformers import PreTrainedTokenizerBase

from grpo.core.processes import is_first_process
from grpo.core.settings import Config
from grpo.data.dataset import Data
from grpo.evaluation import comparison, evaluate
from grpo.evaluation.evaluate import Evaluation
from grpo.policy import loading, sharding
from grpo.runs.run import open_run

if TYPE_CHECKING:
    from trl import GRPOTrainer


def measure_before(config: Config, trainer: GRPOTrainer, tokenizer: PreTrainedTokenizerBase, data: Data) -> Evaluation:
    """Measure the policy that training starts from, save and show what it answers."""
    with sharding.whole(trainer) as policy:
        summary, answers = evaluate.measure_before(config, policy, tokenizer, data)
    if is_first_process():
        evaluate.save(config.output, "before", summary, answers)
        evaluate.print_answers("before training", answers)
    return summary, answers


def measure_after(
    config: Config, trainer: GRPOTrainer, tokenizer: PreTrainedTokenizerBase, data: Data, before: Evaluation
) -> None:
    """Measure the trained policy, compare it with `before` question by question, save and show both."""
    with sharding.whole(trainer) as policy:
        summary, answers = evaluate.measure(config, policy, tokenizer, data)
    if is_first_process():
        evaluate.save(config.output, "after", summary, answers)
        comparison.save(config.output, compared := comparison.compare(before[1], answers))
        evaluate.print_answers("after training", answers)
        evaluate.print_evaluations({"before": before[0], "after": summary}, compared["sentence"])


def measure_alone(config: Config, tokenizer: PreTrainedTokenizerBase, data: Data) -> int:
    """`--eval_only`: measure the model as it is; the exit status."""
    with open_run(config) as run:
        summary, answers = evaluate.measure(config, loading.load(config), tokenizer, data)
        run.begin(**data.facts())  # only now: it may replace a run (`overwrite_run`)
        if is_first_process():
            evaluate.save(config.output, "only", summary, answers)
            evaluate.print_evaluations({Path(config.model_name).name: summary})
        run.end("evaluated")
    return run.exit_status
