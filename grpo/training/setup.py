"""Attach a run's metrics, samples, alarms and stopping to its trainer."""

from grpo.data.dataset import Data
from grpo.rewarding.judge import Judge
from grpo.rewarding.stages import StageWeights
from grpo.runs import resume, trackers
from grpo.runs.run import Run
from grpo.training import callbacks, console
from grpo.training.run_trainer import RunTrainer
from grpo.training.stopping import StopAtRolloutEnd


def watch(trainer: RunTrainer, run: Run, data: Data, judge: Judge, tried: dict[str, dict[str, float]]) -> None:
    """Begin the run's record and its tracker, and add the callbacks in their order.

    Args:
        data: whose prompts may end in what completions begin with.
        judge: for evaluations, and to read the answers of samples.
        tried: what each reward gives for a perfect completion and for a wrong one, for the report.

    Raises:
        UserError: a tracker refuses the run, or the training rows are not those of the checkpoint to resume from.
    """
    config = run.config
    trainer.judge, trainer.prefill = judge, data.prompt_format.prefill
    facts = data.facts()
    # a checkpoint that is handed to somebody is asked with its prompt
    trainer.checkpoint_facts = resume.facts(config, data.train) | {key: facts[key] for key in ("prompt", "shots")}
    trackers.start(config.training)
    # the first reason to stop counts: a cause is looked for before the alarms that follow from it
    skip = callbacks.SkipNonFiniteSteps(trainer, run.request_stop)
    for callback in (
        callbacks.MetricsFile(run.output),
        callbacks.LiveReport(run.output),  # which shows what is in that file
        skip,
        callbacks.Watch(trainer, run.output, skip, run.request_stop, config.script.stop_on_alarm),
        *([StageWeights(trainer, config.script.reward_funcs, config.stages)] if config.stages else []),
        StopAtRolloutEnd(trainer, run),  # last: it sees what the others request
    ):
        trainer.add_callback(callback)
    console.replace_progress(trainer, judge)
    facts["data"]["fingerprint"] = resume.fingerprint(data.train, "question")  # whatever the prompt around it
    run.begin(**facts, **tried)
