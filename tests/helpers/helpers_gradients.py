"""Gradients of a step on completions that follow from their prompts, whichever process samples them."""

import random
from collections import Counter

import helpers_trainer
import torch
from helpers_trainer import LeanGRPOTrainer
from peft import LoraConfig

CASES = {"dapo": {}, "grpo": {"loss_type": "grpo"}, "lora": {"peft": True}}


def by_prompt():
    """Replaces sampling: completions that follow from their prompt and how often it was asked, wherever."""
    asked = Counter()

    def sample(prompt_ids, *args, **kwargs):
        completions = []
        for prompt in map(tuple, prompt_ids):
            asked[prompt] += 1
            chance = random.Random(f"{prompt} {asked[prompt]}")
            length = min(helpers_trainer.LENGTH, max(1, int(chance.lognormvariate(1.8, 0.9))))
            completions.append([chance.randrange(5, 500) for _ in range(length)])
            if 1 < length < helpers_trainer.LENGTH:
                completions[-1][-1] = 2
        return completions, None

    return sample


def gradients(trainer_class, case, model, batch, out):
    """Of a step with `batch` completions in a micro-batch of each process, and its trainer."""
    settings = dict(CASES[case])
    if settings.get("peft"):
        targets = ["q_proj", "down_proj"]
        settings["peft"] = LoraConfig(r=4, lora_alpha=8, target_modules=targets, init_lora_weights=False)
        torch.manual_seed(0)
    own = {"pack_tokens": 60} if trainer_class is LeanGRPOTrainer else {}
    steps, _, trainer = helpers_trainer.trained(
        trainer_class, model, out, lengths=by_prompt(), own=own, per_device_train_batch_size=batch, **settings
    )
    return steps, trainer
