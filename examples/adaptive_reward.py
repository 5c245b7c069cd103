"""A reward whose size follows its success: a rarely earned one grows, one that nearly everybody earns shrinks.

List it in HYPERPARAMETERS["reward_funcs"] of train_grpo.py, around any reward that is a plain function:

    from examples.adaptive_reward import AdaptiveReward
    ...
    reward_funcs=[xmlcount_reward_func, AdaptiveReward(correctness_reward_func)],

or name the one below: --reward_funcs examples.adaptive_reward.correctness --allow_custom_rewards true

The factor is part of the trainer's state: checkpoints keep it, preflight and the held-out questions before and after
training get the reward without it. What it costs:

- The curves of this reward and of `reward` move with the factor; its own curve is `adaptive/<name>`.
- Several processes have a factor each, of the completions that they scored, and a checkpoint keeps the first one's.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from rewards import correctness_reward_func

RAISE_BELOW, RAISE_BY = 0.3, 1.2  # a reward that fewer completions of a rollout earn is multiplied by more …
LOWER_ABOVE, LOWER_BY = 0.8, 0.9  # … and one that more of them earn by less
SMALLEST, LARGEST = 0.25, 4.0


def adapted(factor: float, values: Sequence[float], threshold: float = 0.0) -> float:
    """The factor after a rollout in which a reward gave these values; a value above the threshold is a success.

    >>> adapted(1.0, [0.0, 0.0, 0.0, 2.0])
    1.2
    """
    success = sum(value > threshold for value in values) / len(values)
    factor *= RAISE_BY if success < RAISE_BELOW else LOWER_BY if success > LOWER_ABOVE else 1.0
    return min(max(factor, SMALLEST), LARGEST)


class AdaptiveReward:
    """A reward times a factor, which every rollout changes for the next one.

    Args:
        reward: a reward function; its parameters (`reward_args`) and the columns that it needs stay its own.
        threshold: a value above it is a success. Penalties are never above 0, so do not adapt them.
    """

    def __init__(self, reward: Callable[..., Sequence[float | None]], threshold: float = 0.0) -> None:
        functools.update_wrapper(self, reward)  # the signature, by which parameters are found
        self.reward, self.threshold = reward, threshold
        self.__name__ = f"adaptive_{reward.__name__}"  # by which TRL logs it

    def __call__(self, **arguments: Any) -> list[float | None]:
        factors = arguments["trainer_state"].stateful_callbacks.setdefault("adaptive_rewards", {})
        factor = factors.get(self.__name__, 1.0)
        values = self.reward(**arguments)
        known = [value for value in values if value is not None]
        if len(known) > 1:  # a single completion is no rollout: a reward that raised is called for each alone
            factors[self.__name__] = adapted(factor, known, self.threshold)
        arguments["log_metric"](f"adaptive/{self.__name__}", factor)
        return [None if value is None else factor * value for value in values]


correctness = AdaptiveReward(correctness_reward_func)
