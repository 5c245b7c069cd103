"""A reward that keeps every group live: for measuring a run's speed without a model that can learn."""

import zlib


def random_reward(completions: list, **kwargs) -> list[float]:
    """Between 0 and 1, by the text alone, so that both sides of a comparison reward the same text alike."""
    texts = (text if isinstance(text, str) else text[-1]["content"] for text in completions)
    return [zlib.crc32(text.encode()) % 997 / 996 for text in texts]
