"""A step in which the questions without a right completion are those whose completions are cut off, and no others.

So TRL's own `mask_truncated_completions` masks what `skip_unsolved` has to mask.
"""

import random

from helpers_runs import ROWS
from helpers_trainer import LENGTH, GRPOTrainer, trained
from transformers import AutoTokenizer

from grpo.rewarding.judge import Judge
from grpo.training.trainer import LeanGRPOTrainer


def is_right(text, row):
    return not row["hopeless"] and sum(map(ord, text)) % 4 > 0


class Skipping(LeanGRPOTrainer):
    judge = Judge(function=is_right, name="is_right")
    skip_unsolved = True


def is_hopeless(prompt_ids):
    return sum(prompt_ids) % 3 == 0


def rollouts(seed):
    chance = random.Random(seed)

    def sample(prompt_ids, *args, **kwargs):
        completions = []
        for prompt in prompt_ids:
            completions.append([chance.randrange(5, 500) for _ in range(chance.randrange(2, LENGTH))])
            completions[-1][-1] = 5 if is_hopeless(prompt) else 2
        return completions, None

    return sample


def both(model, out, seed=3, **settings):
    """Stock TRL with truncated completions masked, and the lean trainer without the unsolved groups; as `trained`."""
    prompts = [row["question"] for row in ROWS]
    ids = AutoTokenizer.from_pretrained(model)(prompts)["input_ids"]
    columns = {"hopeless": [is_hopeless(row) for row in ids]}
    found = []
    for trainer_class, more in ((GRPOTrainer, {"mask_truncated_completions": True}), (Skipping, {})):
        own = settings.get("own", {}) if trainer_class is Skipping else {}
        given = {**settings, **more, "own": own, "prompts": prompts, "columns": columns, "lengths": rollouts(seed)}
        found.append(trained(trainer_class, model, out, **given))
    return found
