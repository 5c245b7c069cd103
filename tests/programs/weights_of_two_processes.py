"""The weights after two optimizer steps of each case, as they are saved: weights_of_two_processes.py MODEL DIRECTORY

In one case the second step is that of a run which is resumed with other options of the optimizer.

Started by a launcher. The first process saves them in DIRECTORY/weights.pt.
"""

import os
import sys

import torch
from helpers_trainer import make_trainer
from steps_of_two_processes import CASES

from grpo.config.hardware import OVERRIDDEN
from grpo.core import processes
from grpo.training.run_trainer import RunTrainer
from lean_grpo import LeanGRPOTrainer

NAMES = "dapo", "reference", "adapter"  # each of two micro-batches a step


def weights(trainer_class, name, model, output, batch=8):
    """By their names, which an adapter has alone; and the trainer."""
    torch.manual_seed(0)  # of the adapter
    case = {**CASES[name], "max_steps": 2, "per_device_train_batch_size": batch}
    trainer = make_trainer(trainer_class, model, output, **case)
    trainer.train()
    return {key: value for key, value in whole_state(trainer).items() if name != "adapter" or "lora_" in key}, trainer


def whole_state(trainer):
    return trainer.accelerator.get_state_dict(trainer.model_wrapped) or {}


FIRST = {"optim": "adamw_torch", "learning_rate": 1e-3, "adam_beta1": 0.9, "adam_beta2": 0.999, "weight_decay": 0.0}
THEN = {"learning_rate": 2e-3, "adam_beta1": 0.1, "adam_beta2": 0.9, "weight_decay": 0.5}


def resumed(model, output, then=THEN, batch=8):
    """The weights after a step with FIRST and, resumed, one with other options, and these."""
    settings = {"max_steps": 1, "save_strategy": "steps", "save_steps": 1, "per_device_train_batch_size": batch}
    make_trainer(RunTrainer, model, output, **settings | FIRST).train()
    trainer = make_trainer(RunTrainer, model, output, **settings | FIRST | then | {"max_steps": 2})
    trainer.train(resume_from_checkpoint=f"{output}/checkpoint-1")
    groups = trainer.optimizer.param_groups
    options = [{key: group[key] for key in ("lr", "betas", "weight_decay")} for group in groups]
    return whole_state(trainer), options


def main(model, output):
    for name in OVERRIDDEN:  # as train_grpo.py does
        os.environ.pop(name, None)
    result = {}
    for name in NAMES:
        result[name], trainer = weights(LeanGRPOTrainer, name, model, output)
    result["resumed"] = resumed(model, f"{output}/resumed")
    result["trained by"] = trainer.accelerator.distributed_type.value, trainer.kernel is not None
    if trainer.accelerator.is_main_process:
        torch.save(result, f"{output}/weights.pt")
    del trainer
    processes.end_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
