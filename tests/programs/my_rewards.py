"""Rewards of one's own, in all the forms that a reward can have."""

import functools

import my_helper  # noqa: F401 (a file beside this one)


class Longer:
    def __call__(self, completions, *, than: int = 3, **kwargs):
        return [float(len(text) > than) for text in completions]


def my_reward(completions, *, scale: float = 1.0, **kwargs):
    return [scale * len(text) for text in completions]


def with_gold(completions, answer, **kwargs):
    return [1.0] * len(completions)


def gold_at_will(completions, answer=None, **kwargs):
    return [1.0] * len(completions)


async def later(completions, **kwargs):
    return [1.0] * len(completions)


calls = []


def counted(completions, **kwargs):
    calls.append(1)
    return [float(len(calls))] * len(completions)


longer, other_name = Longer(), my_reward
part = functools.partial(my_reward, scale=2.0)
