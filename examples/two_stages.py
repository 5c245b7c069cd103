"""Two stages: first the format alone, then the answers, with a small reward for the format.

    python train_grpo.py --config recipes/two_stage.yaml

Both stages are one run, with one optimizer and one learning-rate schedule; a resumed run finds its stage by its step.
Outside of training, where `trainer_state.max_steps` is 0, the reward is the last stage's: in preflight and on the
held-out questions, whose figures before, while and after training are then of one reward. Its parts have the curves
`two_stages/<reward>`, and the stage has `two_stages/stage`.
"""

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from rewards import (
    XML_COT_FORMAT,
    Extract,
    Golds,
    Texts,
    correctness_reward_func,
    extract_xml_answer,
    int_reward_func,
    soft_format_reward_func,
    strict_format_reward_func,
    xmlcount_reward_func,
)

Rewards = Mapping[Callable[..., Any], float]  # with their weights

FORMAT: Rewards = {xmlcount_reward_func: 1.0, soft_format_reward_func: 1.0, strict_format_reward_func: 1.0}
ANSWERS: Rewards = {correctness_reward_func: 1.0, int_reward_func: 1.0, soft_format_reward_func: 0.5}


class Stages:
    """The weighted sum of the current stage's rewards, as one reward.

    Args:
        stages: the rewards of each stage, with their weights.
    """

    __name__ = "two_stages"  # by which TRL logs it

    def __init__(self, *stages: Rewards) -> None:
        self.stages = stages

    def __call__(
        self,
        completions: Texts,
        answer: Golds,
        *,
        borders: Sequence[int] = (100,),
        template: str = XML_COT_FORMAT,
        extract: Extract = extract_xml_answer,
        **kwargs: Any,
    ) -> list[float]:
        """Return the sum for each completion; `borders` are the last optimizer steps of all stages but the last."""
        state, log = kwargs["trainer_state"], kwargs["log_metric"]
        step = state.global_step + 1  # the one that these completions are for
        stage = sum(step > border for border in borders) if state.max_steps else -1  # 0: outside of training
        sums = [0.0] * len(completions)
        for reward, weight in self.stages[stage].items():
            values = reward(completions, answer=answer, template=template, extract=extract)
            log(f"two_stages/{reward.__name__.removesuffix('_reward_func')}", fmean(values))
            sums = [total + weight * value for total, value in zip(sums, values, strict=True)]
        log("two_stages/stage", float(stage % len(self.stages) + 1))
        return sums


two_stages = Stages(FORMAT, ANSWERS)
