"""grpo/training/run_trainer.py: a run's trainer trains as LeanGRPOTrainer does, and notes what a run needs to know.

Its guard: tests/scoring/test_guard.py; right groups: tests/task/test_task.py; checkpoints: test_resumed.py.
"""

import ast
import inspect
import math
import random
import re
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from helpers_runs import ROOT
from helpers_trainer import PROMPTS, largest_difference, make_trainer, trained
from trl import GRPOTrainer
from trl.trainer import grpo_trainer

from grpo.runs import checkpoints
from grpo.training import checkpointing, run_trainer
from grpo.training.run_trainer import RunTrainer
from lean_grpo import LeanGRPOTrainer
from lean_grpo import trainer as lean_trainer


def test_gradients_and_logs_are_those_of_the_lean_trainer(tiny_model, tmp_path):
    (lean, lean_log, _), (run, log, _) = (
        trained(kind, tiny_model, tmp_path, max_steps=2) for kind in (LeanGRPOTrainer, RunTrainer)
    )
    assert largest_difference(lean, run) == 0
    same = {key for key in lean_log[0] if "time" not in key}
    assert [{key: line[key] for key in same} for line in log[:2]] == [
        {key: line[key] for key in same} for line in lean_log[:2]
    ]


def test_phases_are_timed(tiny_model, tmp_path):
    trainer = make_trainer(RunTrainer, tiny_model, tmp_path, lengths="sampled", max_steps=2)
    trainer.train()
    for line in trainer.state.log_history[:2]:
        assert 0 < line["time/rewards"] < line["time/generation"] < line["step_time"]


def sampled_beside(reward, tiny_model, output, **settings):
    """The completions of three rollouts that this reward scores, and the states of the others' random numbers."""
    seen = []

    def scored(completion_ids, **kwargs):
        seen.append([tuple(ids) for ids in completion_ids])
        return reward(completion_ids)

    random.seed(5), np.random.seed(5)
    settings = {"lengths": "sampled", "max_steps": 3, "learning_rate": 0.0, **settings}
    make_trainer(RunTrainer, tiny_model, output, reward=scored, **settings).train()
    return seen, (random.random(), np.random.rand())


def test_a_reward_that_seeds_does_not_repeat_samples(tiny_model, tmp_path):
    def seeding(completion_ids):
        random.seed(0), np.random.seed(0), torch.manual_seed(0)
        return [float(place % 2) for place in range(len(completion_ids))]

    seen, others = sampled_beside(seeding, tiny_model, tmp_path)
    plain, expected = sampled_beside(lambda ids: [0.0] * len(ids), tiny_model, tmp_path)
    assert seen == plain and others == expected and seen[0] != seen[1] != seen[2]


def test_a_reward_by_chance_draws_anew_in_each_rollout(tiny_model, tmp_path):
    """And the same numbers in the same rollout of another process' start, as of a resumed run."""

    def drawn():
        found = []

        def chance(completion_ids):
            found.append((random.random(), np.random.rand(), torch.rand(1).item()))
            return [0.0] * len(completion_ids)

        # two rollouts in each optimizer step
        sampled_beside(chance, tiny_model, tmp_path, steps_per_generation=1)
        return found

    first = drawn()
    assert len(first) == 6 and all(len(set(kind)) == 6 for kind in zip(*first, strict=True)) and drawn() == first


def test_further_rounds_count_in_a_rollouts_times_and_faults(tiny_model, tmp_path):
    """Everything else that is logged is of its first round."""
    rounds = []

    def fails_later(completion_ids, **kwargs):
        rounds.append(len(completion_ids))
        time.sleep(0.05)
        return [1.0 if len(rounds) == 1 else math.nan] * len(completion_ids)

    own = {"dynamic_sampling": 2, "max_faulty_rewards": 0.7}
    _, log, trainer = trained(RunTrainer, tiny_model, tmp_path, reward=fails_later, own=own)
    assert rounds == [16] * 3 and log[0]["time/rewards"] > 0.15
    assert log[0]["rewards/left_out"] == trainer.guard.share == pytest.approx(2 / 3) and not trainer.guard.excess
    assert log[0]["reward"] == 1 and log[0]["dynamic_sampling/live"] == 0 and len(trainer.solved) == 4


def test_every_epoch_has_stocks_order_of_prompts(tiny_model, tmp_path):
    orders = []
    for trainer_class in (GRPOTrainer, RunTrainer):
        asked = []

        def sample(prompt_ids, *others, asked=asked):
            asked.append(list(dict.fromkeys(map(tuple, prompt_ids))))
            return [[5, 2]] * len(prompt_ids), None

        options = {"prompts": PROMPTS[:8], "lengths": sample, "max_steps": -1, "num_train_epochs": 2}
        make_trainer(trainer_class, tiny_model, tmp_path, **options).train()
        orders.append(asked)
    assert orders[0] == orders[1] and len(orders[0]) == 4 and orders[0][:2] != orders[0][2:]  # two rollouts an epoch


def test_a_checkpoint_is_sealed_once_all_of_it_is_written(tiny_model, tmp_path, monkeypatch):
    seal, there = checkpoints.seal, []

    def sealing(directory, *args, **record):
        there.append({path.name for path in directory.iterdir()})
        seal(directory, *args, **record)

    monkeypatch.setattr(checkpoints, "seal", sealing)
    trainer = make_trainer(RunTrainer, tiny_model, tmp_path, max_steps=2, save_strategy="steps", save_steps=1)
    trainer.train()
    assert [checkpoints.problem_with(tmp_path / f"checkpoint-{step}") for step in (1, 2)] == [None, None]
    assert all({"model.safetensors", "optimizer.pt", "rng_state.pth", checkpoints.STATE} <= names for names in there)


# --- Private members of the libraries

FILES = {lean_trainer: ROOT / "tests" / "lean_grpo", run_trainer: ROOT / "tests", checkpointing: ROOT / "tests"}


def listed(module):
    """{private member: the test that notices a change}, from the table in the module's docstring."""
    rows = (line.split() for line in module.__doc__.splitlines() if "::" in line)
    return dict(rows)


def members(module):
    """The libraries' private members that a module uses, or for lean_grpo's trainer any of its package."""
    file = Path(module.__file__)
    files = file.parent.glob("*.py") if module is lean_trainer else [file]
    tree = ast.parse("\n".join(path.read_text(encoding="utf-8") for path in files))
    sources = grpo_trainer, transformers.Trainer, transformers.PreTrainedModel, transformers.PreTrainedConfig
    sources += transformers.GenerationMixin, transformers.GenerationConfig
    stock = "".join(map(inspect.getsource, sources))
    used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    used |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    made = r"self\.{0}\b|def {0}\b|\n    {0}: "
    return {name for name in used if re.match("_[a-z]", name) and re.search(made.format(name), stock)}


@pytest.mark.parametrize("module", FILES, ids=lambda module: module.__name__)
def test_private_members_are_listed_with_a_test(module):
    """So that whoever takes a new version of TRL knows where to look."""
    assert listed(module).keys() == members(module)
    for place in listed(module).values():
        file, _, test = place.partition("::")
        assert f"def {test}(" in (FILES[module] / file).read_text(encoding="utf-8"), place
