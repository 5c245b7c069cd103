"""Evaluations by fixed answers: each process writes what it measured and what its judge was asked to rank<N>.json."""

import json
import os
import random
import sys
from pathlib import Path

import numpy as np
import torch
from accelerate import PartialState
from datasets import Dataset

from grpo.core.processes import GivenUp, by_all_processes
from grpo.evaluation.evaluate import HeldOut
from grpo.policy.answering import Completion
from grpo.rewarding.rollout import judge_reward_func
from grpo.task import Task
from grpo.task.prompts import XML

# The last question repeats the first, and its answer
ROWS = [{"question": f"{number} + 1?", "prompt": f"{number} + 1?", "answer": str(number + 1)} for number in range(6)]
ROWS += ROWS[:1]


class Fixed:
    """A policy whose answers follow from the questions alone."""

    def answer(self, questions, check):
        return [Completion(f"It is {question[0]}.", [1, 2], False) for question in questions]

    def sample(self, questions, count, check):
        return [[Completion(f"{question[0]}, {n}", [1], False) for n in range(count)] for question in questions]


def evaluated(fails=()):
    """What an evaluation by a judge that draws found, what its judge was asked here, and the next random number."""
    asked = []

    def judge(text, row):
        asked.append([row["question"], text])
        if row["question"] in fails:
            raise ValueError(f"cannot read {row['question']}")
        return random.random() + np.random.rand() + torch.rand(1).item() > 1.5

    task = Task(XML, judge=judge, judge_name="mine")
    rewards = {"judge_reward_func": lambda **kwargs: judge_reward_func(**kwargs, task=task)}
    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(3)
    found = HeldOut(Dataset.from_list(ROWS), task, rewards, {"judge_reward_func": 1.0}, 3).evaluate(Fixed())
    del found.summary["seconds"]
    return {"summary": found.summary, "answers": [one.to_json() for one in found.answers]}, asked, random.random()


def gives_up():
    """Whether all processes learn that the last gave up."""
    state = PartialState()

    def work(share):
        if state.process_index == state.num_processes - 1:
            raise GivenUp
        return dict.fromkeys(share)

    try:
        by_all_processes(work, 5)
    except GivenUp:
        return True


def results():
    """All of the above, as JSON has it."""
    found = {"right": evaluated(), "failing": evaluated(["3 + 1?", "4 + 1?"]), "given up": gives_up()}
    return json.loads(json.dumps(found))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    PartialState(cpu=True)
    Path(f"rank{os.environ['RANK']}.json").write_text(json.dumps(results()))
