"""The weights after two optimizer steps of each case, as they are saved: weights_of_two_processes.py MODEL DIRECTORY

Started by a launcher. The first process saves them in DIRECTORY/weights.pt.
"""

import os
import sys

import torch
from helpers_trainer import make_trainer
from steps_of_two_processes import CASES

from grpo.config.hardware import OVERRIDDEN
from grpo.core import processes
from lean_grpo import LeanGRPOTrainer

NAMES = "dapo", "reference", "adapter"  # each of two micro-batches a step


def weights(trainer_class, name, model, output, batch=8):
    """By their names, which an adapter has alone; and the trainer."""
    torch.manual_seed(0)  # of the adapter
    case = {**CASES[name], "max_steps": 2, "per_device_train_batch_size": batch}
    trainer = make_trainer(trainer_class, model, output, **case)
    trainer.train()
    state = trainer.accelerator.get_state_dict(trainer.model_wrapped)
    return {key: value for key, value in (state or {}).items() if name != "adapter" or "lora_" in key}, trainer


def main(model, output):
    for name in OVERRIDDEN:  # as train_grpo.py does
        os.environ.pop(name, None)
    result = {}
    for name in NAMES:
        result[name], trainer = weights(LeanGRPOTrainer, name, model, output)
    result["trained by"] = trainer.accelerator.distributed_type.value, trainer.kernel is not None
    if trainer.accelerator.is_main_process:
        torch.save(result, f"{output}/weights.pt")
    del trainer
    processes.end_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
