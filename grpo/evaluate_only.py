"""Evaluate a model that is not trained (`--eval_only`)."""

from grpo.core.processes import is_first_process
from grpo.core.settings import Config
from grpo.data.dataset import load_questions
from grpo.evaluation import evaluate
from grpo.policy.loading import load_for_evaluation, load_tokenizer
from grpo.policy.templates import fit_to_template
from grpo.preflight.plan import Plan
from grpo.preflight.preflight import check
from grpo.rewarding.registry import Rewards, needing_gold
from grpo.runs.run import open_run
from grpo.task.task import Task


def evaluate_only(config: Config, task: Task, rewards: Rewards) -> int:
    """Answer the held-out questions that a run with these settings has, and save the results. Return the exit status.

    With `dry_run` only check settings and data.
    """
    tokenizer = load_tokenizer(config)
    task = fit_to_template(task, tokenizer, config.template_kwargs)
    needing = needing_gold(config, {} if task.judge else rewards, task)  # a judge needs none, and nothing is trained
    questions = load_questions(config, task, tokenizer, needing)
    check(Plan(config, tokenizer, task, questions, rewards))
    if config.script.dry_run:
        return 0
    with open_run(config) as run:
        run.step = None
        evaluation = evaluate.measure(config, load_for_evaluation(config), tokenizer, task, questions, rewards)
        # after the evaluation, so that one that fails leaves no files
        run.begin(**task.record(), data=questions.counts())
        if is_first_process():
            evaluate.save(config.output, "only", evaluation)
            evaluate.print_summaries({"only": evaluation.summary})
        run.end("evaluated")
    return run.exit_status
