"""A reward that knows nothing: the control of sweep.py, and groups with a signal for any model in speed.py."""

import random

DICE = random.Random(0)


def chance_reward(completions: list, **kwargs) -> list[float]:
    """Between 0 and 1, drawn anew for each completion: there is nothing to learn from it."""
    return [DICE.random() for _ in completions]
