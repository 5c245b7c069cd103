"""The trainer of a run, with all that records, watches and stops it."""

from typing import Any

from peft import PeftModel
from trl import get_peft_config

from grpo.core.errors import readable
from grpo.core.settings import Config
from grpo.policy import engines
from grpo.rewarding.judge import Judge
from grpo.rewarding.weighting import RewardWeights
from grpo.runs import resume, trackers
from grpo.runs.run import Run
from grpo.training import callbacks, console
from grpo.training.base_trainer import BaseGRPOTrainer
from grpo.training.stopping import Stopping
from grpo.training.trainer import trainer_class


def make_trainer(config: Config, run: Run, judge: Judge, prefill: str, **arguments: Any) -> BaseGRPOTrainer:
    """LeanGRPOTrainer (or what Unsloth has made of TRL's) for these settings, with its callbacks in their order.

    Args:
        judge: what is right, for the metrics of groups.
        prefill: what rendered prompts end in and completions begin with, for the rewards.
        arguments: GRPOTrainer's: `model`, `reward_funcs`, `train_dataset`, `eval_dataset`, `processing_class`.

    Raises:
        UserError: TRL refuses the settings, the Hub or a tracker refuses the run, the training rows are not those of
            the checkpoint to resume from, or the processes differ in what samples.
    """
    training = config.training
    engines.check_agreement(training)
    facts = resume.facts(config, arguments["train_dataset"])
    if training.eval_strategy == "no":
        arguments["eval_dataset"] = None
    if not isinstance(arguments["model"], PeftModel):  # a saved adapter is trained on as it is
        arguments["peft_config"] = get_peft_config(config.model)
    with readable("the trainer"), readable("the Hub", remedy="set a hub_model_id that you may write"):
        trainer = trainer_class(config.script)(args=training, **arguments)
    trainer.judge, trainer.prefill = judge, prefill
    trackers.start(training)
    trainer.checkpoint_facts = facts
    # the first reason to stop counts: a cause is asked about before the alarms that follow from it
    trainer.add_callback(callbacks.MetricsFile(run.output))
    trainer.add_callback(callbacks.LiveReport(run.output))  # which shows what is in that file
    trainer.add_callback(skip := callbacks.SkipNonFiniteSteps(trainer, run.ask))
    trainer.add_callback(callbacks.StopAtFaultyRewards(trainer, run.ask))
    trainer.add_callback(callbacks.Watch(trainer, run.output, skip, run.ask if config.script.stop_on_alarm else None))
    trainer.add_callback(RewardWeights(trainer, config.script, config.stages))
    trainer.add_callback(Stopping(trainer, run))  # last: it sees what the others ask for
    console.make_readable(trainer)
    return trainer
