"""Evaluate a model that is not trained (`--eval_only`)."""

from grpo.core.phases import EVALUATION
from grpo.core.processes import is_first_process
from grpo.data.dataset import load_questions
from grpo.policy.answering import Policy
from grpo.policy.evaluation import HeldOut, save
from grpo.policy.loading import digest_of_configuration, digest_of_weights, load_for_evaluation, load_tokenizer
from grpo.policy.templates import fit_to_template
from grpo.preflight import preflight
from grpo.preflight.plan import Plan
from grpo.results.by_kind import by_kind
from grpo.results.printing import print_summaries
from grpo.runs.run import Run
from grpo.scoring.registry import needing_gold, weights_of
from grpo.scoring.scorer import Rewards, Scorer
from grpo.task.task import Task


def evaluate_only(run: Run, task: Task, rewards: Rewards) -> int:
    """Answer the held-out questions that a run with these settings has, and save the results. Return the exit status.

    With `dry_run` only check settings and data.
    """
    config = run.config
    tokenizer = load_tokenizer(config)
    task, tokenizer = fit_to_template(task, tokenizer, config.template_kwargs)
    needing = needing_gold(config, {} if task.judge else rewards, task)  # a judge needs none, and nothing is trained
    questions = load_questions(config, task, tokenizer, needing)
    preflight.check(Plan(run, tokenizer, task, questions, rewards))
    if config.script.dry_run:
        return 0
    with run.open(questions):
        run.step = None
        model = load_for_evaluation(config)
        run.begin_with(digest_of_weights(model), digest_of_configuration(model))
        policy = Policy.in_training(model, tokenizer, config.training, task.prompt.prefill)
        scorer = Scorer(task, rewards, weights_of(config, rewards))
        with run.during(EVALUATION):
            evaluation = HeldOut(questions.held_out, scorer, config.script.eval_num_samples).evaluate(policy)
        evaluation.summary["measure"] = run.measure
        # after the evaluation, so that one that fails leaves no files
        run.begin(**task.record(), data=questions.counts())
        if is_first_process():
            save(run.output, "only", evaluation)
            kinds = by_kind(config.script.eval_by, {"only": evaluation.samples})
            print_summaries({"only": evaluation.summary}, kinds=kinds)
        run.end("evaluated")
    return run.exit_status
