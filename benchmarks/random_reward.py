"""Rewards that know nothing: one for measuring a run's speed without a model that can learn, one as a control."""

import random
import zlib

DICE = random.Random(0)


def random_reward(completions: list, **kwargs) -> list[float]:
    """Between 0 and 1, by the text alone, so that both sides of a comparison reward the same text alike."""
    texts = (text if isinstance(text, str) else text[-1]["content"] for text in completions)
    return [zlib.crc32(text.encode()) % 997 / 996 for text in texts]


def chance_reward(completions: list, **kwargs) -> list[float]:
    """Between 0 and 1, drawn anew for each completion, whatever it says: there is nothing to learn from it."""
    return [DICE.random() for _ in completions]
