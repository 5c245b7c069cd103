"""One optimizer step of both trainers, and steps that one process spoils: steps_of_two_processes.py MODEL DIRECTORY

Started by a launcher. Each process saves its gradients, the first log, the steps and rounded weights in
DIRECTORY/RANK.pt.
"""

import importlib.util
import os
import sys

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from helpers_trainer import PROMPTS, Spoil, completions, make_trainer, seven_tenths, trained, watched
from peft import LoraConfig
from transformers import AutoModelForCausalLM
from trl import GRPOTrainer

from grpo.core import processes
from grpo.training.callbacks import RoundAlike
from grpo.training.run_trainer import RunTrainer
from lean_grpo import LeanGRPOTrainer


def one_process_lives(completion_ids, prompts, **kwargs):
    """Only completions of some prompts, which one of the processes gets, have an advantage."""
    lives = [prompt.startswith("What is 2 +") for prompt in prompts]
    return [float(sum(ids) % 7) if one else 1.0 for ids, one in zip(completion_ids, lives, strict=True)]


def rewards_by_length(completions, **kwargs):
    return [0.001 * len(completion[0]["content"]) for completion in completions]


REFILLED = {
    "own": {"dynamic_sampling": 30},
    "reward": one_process_lives,
    "prompts": [f"{prompt} {number}" for number in range(8) for prompt in PROMPTS],
}
CASES = {
    "dapo": {},
    "reference": {"loss_type": "grpo", "beta": 0.1, "gradient_checkpointing": True},
    "adapter": {"peft": LoraConfig(r=4, target_modules=["q_proj", "up_proj"], init_lora_weights=False)},
    "mostly dead": {"reward": one_process_lives},
    "all dead": {"reward": seven_tenths},
    "bf16": {"bf16": True},
    # their means are those of a micro-batch, so that one process has others
    "bnpo": {"loss_type": "bnpo"},
    "quantile": {"top_entropy_quantile": 0.5},
    "refilled": REFILLED,
    "refilled groups of both": {**REFILLED, "num_generations": 32},
}


def completions_of_all():
    """Replaces sampling: a group that two processes share has the completions that one process would sample."""
    sample, state = completions(), PartialState()

    def sample_all(prompt_ids, *args, **kwargs):
        sampled, _ = sample(gather_object([tuple(ids) for ids in prompt_ids]))
        first = state.process_index * len(prompt_ids)
        return sampled[first : first + len(prompt_ids)], None

    return sample_all


def step(trainer_class, name, model, output, batch=8):
    """(gradients, log, trainer) of a case."""
    torch.manual_seed(0)  # of the adapter
    settings = {"own": {}, **CASES[name], "lengths": completions_of_all(), "per_device_train_batch_size": batch}
    # so that processes have unequal numbers of packs; stock's has no settings of its own
    settings["own"] = {"pack_tokens": 60, **settings["own"]} if trainer_class is LeanGRPOTrainer else {}
    gradients, log, trainer = trained(trainer_class, model, output, **settings)
    return gradients, log[0], trainer


def rounded_by_chance(model, output):
    """This process' copy of bfloat16 weights after two steps, the second of which changes them."""
    settings = {"optim": "adamw_torch_8bit", "optim_args": "bf16_stochastic_round=true", "max_steps": 2}
    policy = AutoModelForCausalLM.from_pretrained(model, dtype="bfloat16")
    trainer = make_trainer(RunTrainer, policy, output, callbacks=[RoundAlike()], learning_rate=1e-5, **settings)
    trainer.train()
    return trainer.model.state_dict()


def main(model, output):
    rank, result = int(os.environ["RANK"]), {}
    for name in CASES:
        for trainer_class in (GRPOTrainer, LeanGRPOTrainer):
            gradients, log, trainer = step(trainer_class, name, model, output)
            result[name, trainer_class.__name__] = gradients, log
    result["distributed"] = trainer.accelerator.distributed_type.value
    spoiled = {"max_steps": 5, "reward": rewards_by_length, "optim": "adamw_torch"}
    trainer, watch = watched(model, f"{output}/watched", **spoiled)
    spoil = Spoil(trainer, [2, 3, 4] if rank == 1 else [])
    trainer.train()
    result["unchanged"], result["asked"] = spoil.unchanged, watch.asked
    if importlib.util.find_spec("torchao") and result["distributed"] == "MULTI_CPU":  # each has all weights
        result["rounded"] = rounded_by_chance(model, f"{output}/rounded")
    torch.save(result, f"{output}/{rank}.pt")
    del trainer, watch, spoil
    processes.end_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
