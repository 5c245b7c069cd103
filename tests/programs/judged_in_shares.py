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
from grpo.policy.evaluation import HeldOut
from grpo.scoring.sample import Sample
from grpo.scoring.scorer import Scorer, judge_reward_func
from grpo.task import Task
from grpo.task.prompts import XML

ROWS = [{"question": f"{number} + 1?", "prompt": f"{number} + 1?", "answer": str(number + 1)} for number in range(6)]


class Fixed:
    """A policy whose answers follow from the questions alone."""

    def answer(self, rows, draws, check):
        return [Sample(row, f"It is {row['question'][0]}.", draws=drawn(row, draws)) for row in rows]


def drawn(row, count):
    return [Sample(row, f"{row['question'][0]}, {number}") for number in range(count)]


def evaluated(fails=()):
    """What an evaluation by a judge that draws found, what its judge was asked here, and the next random number."""
    asked = []

    def judge(text, row):
        asked.append([row["question"], text])
        if row["question"] in fails:
            raise ValueError(f"cannot read {row['question']}")
        return random.random() + np.random.rand() + torch.rand(1).item() > 1.5

    task = Task(XML, judge=judge, judge_name="mine")
    scorer = Scorer(task, {"judge_reward_func": judge_reward_func}, {"judge_reward_func": 1.0})
    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(3)
    found = HeldOut(Dataset.from_list(ROWS), scorer, 3).evaluate(Fixed())
    del found.summary["seconds"]
    return {"summary": found.summary, "answers": [one.to_json() for one in found.samples]}, asked, random.random()


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
