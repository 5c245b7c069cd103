"""Attach a run's metrics, samples, alarms and stopping to its trainer."""

from typing import Any

from grpo.data.dataset import Data
from grpo.policy import templates
from grpo.report import trackers
from grpo.rewarding import registry
from grpo.runs import resume
from grpo.runs.run import Run
from grpo.task.task import Task
from grpo.training import callbacks, console
from grpo.training.causes import History
from grpo.training.run_trainer import RunTrainer
from grpo.training.stopping import StopAtRolloutEnd


def watch(trainer: RunTrainer, run: Run, task: Task, data: Data, perfect: dict[str, float]) -> None:
    """Begin the run's record and its tracker, and add the callbacks in order.

    Args:
        perfect: each reward's value for a perfect completion, by logged name.
    """
    config = run.config
    trainer.task, trainer.prefill = task, task.prompt.prefill
    trainer.run, trainer.each_token = run, run.check
    record = task.record()
    # `ask` reads the prompt from a copied checkpoint
    trainer.seal_record = resume.seal_record(config, data.train) | {"tokens": data.tokens, **record}
    trackers.start(config.training)
    functions: Any = dict(zip(trainer.reward_func_names, trainer.reward_funcs, strict=True))
    tokenizer: Any = trainer.processing_class
    chat = task.prompt.chat
    unended = templates.unended(tokenizer, trainer.eos_token_ids, config.template_kwargs) if chat else ""
    seen = History(perfect=perfect, penalties=sorted(registry.penalties(functions)), unended=unended)
    # the first reason to stop counts: skipped steps come before the alarms that follow from them
    skip = callbacks.SkipNonFiniteSteps(trainer, run.request_stop)
    for callback in (
        callbacks.MetricsFile(run.output),
        callbacks.LiveReport(run.output),  # after the metrics file, since it shows that
        skip,
        callbacks.Watch(trainer, run.output, skip, run.request_stop, config.script.stop_on_alarm, seen),
        StopAtRolloutEnd(trainer, run),  # last, to see the requests of the others
    ):
        trainer.add_callback(callback)
    console.replace_progress(trainer, task, perfect)
    rows = data.counts() | {"fingerprint": resume.fingerprint(data.train, "question")}  # without the prompt around it
    trainer.wandb_id = trackers.wandb_id(config.training)
    tracked = {"wandb_id": trainer.wandb_id} if trainer.wandb_id else {}
    run.begin(**record, data=rows, perfect=perfect, **tracked)
