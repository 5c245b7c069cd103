"""One optimizer step whose completions depend on the prompts alone: how far it moves the weights, whoever computes it.

As a script, started by a launcher with sharded weights: sharded_step.py MODEL DIRECTORY compares with what one process
has saved in the directory.
"""

import os
import sys
from pathlib import Path

import torch
from helpers_trainer import trained
from peft import LoraConfig
from trl import GRPOTrainer

from grpo.policy import sharding
from grpo.training.trainer import LeanGRPOTrainer

RATE = 1e4  # so large that the digits of the weights themselves do not round the gradient away


def one_process_lives(completion_ids, prompts, **kwargs):
    """Only completions of the prompts of one process have an advantage."""
    lives = [prompt.startswith("What is 2 +") for prompt in prompts]
    return [float(sum(ids) % 7) if one else 1.0 for ids, one in zip(completion_ids, lives, strict=True)]


# One optimizer step of plain gradient descent moves the weights by the gradient, wherever a library keeps that
SETTINGS = {
    "dapo": {},
    "reference": {"loss_type": "grpo", "beta": 0.1, "gradient_checkpointing": True},
    "adapter": {"peft": LoraConfig(r=4, target_modules=["q_proj", "up_proj"], init_lora_weights=False)},
    "mostly dead": {"reward": one_process_lives},
}


def from_the_prompts(prompt_ids, *args, **kwargs):
    """Replaces sampling: the same completions for a prompt, whichever process samples them."""
    seen, completions = {}, []
    for ids in map(tuple, prompt_ids):
        number = seen[ids] = seen.get(ids, 0) + 1
        length = 1 + (sum(ids) * (3 * number + 1) + 5 * number) % 24
        completions.append([5 + (7 * place + sum(ids) * number) % 490 for place in range(length)])
        if length < 24:
            completions[-1][-1] = 2
    return completions, None


def step(trainer_class, model, directory, batch, **settings):
    """The trained weights after a step, by name, whole on every process; and the trainer."""
    torch.manual_seed(0)  # of the adapter
    settings |= {"learning_rate": RATE, "per_device_train_batch_size": batch}
    if trainer_class is not GRPOTrainer:
        settings["own"] = {"pack_tokens": 60}  # so that processes have unequal numbers of packs
    _, _, trainer = trained(trainer_class, model, directory, lengths=from_the_prompts, **settings)
    with sharding.whole(trainer) as policy:
        named = {name: weight for name, weight in policy.named_parameters() if weight.requires_grad}
        weights = {name: getattr(weight, "data", weight).detach().clone() for name, weight in named.items()}
    return weights, trainer


def distance(found, expected):
    """Of all weights together, relative to how far they were to be moved: what rounding leaves of a gradient."""
    assert found.keys() == expected.keys()
    wrong = torch.stack([(found[key] - after).norm() for key, (_, after) in expected.items()]).norm()
    return (wrong / torch.stack([(after - before).norm() for before, after in expected.values()]).norm()).item()


def say(line):
    os.write(1, f"{line}\n".encode())  # at once: processes that print write into each other's lines


def main(model, saved):
    out = Path("out")
    for name, settings in SETTINGS.items():
        expected = torch.load(f"{saved}/{name}.pt")
        for trainer_class in (GRPOTrainer, LeanGRPOTrainer) if name == "dapo" else (LeanGRPOTrainer,):
            found, trainer = step(trainer_class, model, out, 8, **settings)
            wrong = distance(found, expected)
            say(f"{trainer.accelerator.distributed_type.value} {trainer_class.__name__} {name} {wrong}")
            assert wrong < 1e-5, (trainer_class, name, wrong)
    # its mean is over a micro-batch's tokens, so that one process has another one
    stock, lean = (step(kind, model, out, 8, loss_type="bnpo")[0] for kind in (GRPOTrainer, LeanGRPOTrainer))
    assert distance(lean, {key: (expected[key][0], weight) for key, weight in stock.items()}) < 1e-5
    # bfloat16 rounds, in shapes of its own; log-probabilities stay float32, and gradients are added in float32. It
    # comes last, as DeepSpeed keeps it for the process' next trainer
    found, _ = step(LeanGRPOTrainer, model, out, 8, bf16=True)
    wrong = distance(found, torch.load(f"{saved}/dapo.pt"))
    say(f"under bf16 {wrong}")
    assert 1e-4 < wrong < 0.03
    step(LeanGRPOTrainer, model, out, 8, beta=0.1, bf16=True)  # the reference model is sharded, too
    say("all equal")
    trainer.accelerator.wait_for_everyone()
    trainer.accelerator.end_training()


if __name__ == "__main__":
    main(*sys.argv[1:])
