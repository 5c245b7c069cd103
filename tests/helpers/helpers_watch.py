"""A small trainer that is watched, what can spoil its steps, and the alarms that a run raised."""

import copy
import json
from pathlib import Path

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig

import rewards
import train_grpo
from grpo.training.callbacks import SkipNonFiniteSteps, Watch
from grpo.training.trainer import LeanGRPOTrainer

make_prompt = train_grpo.PROMPT_FORMATS["xml"].prompt
STEP = {"max_completion_length": 6, "gradient_accumulation_steps": 2, "learning_rate": 1e-3, "logging_steps": 1}


def alarms(run="run"):
    """What the run raised, by name."""
    path = Path(run) / "alarms.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    assert all(set(line) == {"step", "name", "message", "remedy"} for line in lines)
    return {line["name"]: line for line in lines}


def is_text(completions, **kwargs):
    return [0.5] * len(completions)


def is_long(completions, **kwargs):
    return [0.001 * len(completion[0]["content"]) for completion in completions]


def trainer(tmp_path, model, prompt=make_prompt, reward_funcs=None, callbacks=(), **overrides):
    """A trainer that is watched, for what the command refuses or cannot express."""
    settings = {"max_completion_length": 1, "num_generations": 4, "per_device_train_batch_size": 8, "max_steps": 4}
    args = GRPOConfig(
        output_dir=str(tmp_path / "run"), use_cpu=True, bf16=False, report_to="none", save_strategy="no",
        disable_tqdm=True, **{**settings, **overrides},
    )  # fmt: skip
    made = LeanGRPOTrainer(
        packed=False,
        model=AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
        reward_funcs=reward_funcs or [rewards.correctness_reward_func],
        args=args,
        train_dataset=Dataset.from_list([{"prompt": prompt(str(n)), "answer": str(n)} for n in range(40)]),
        processing_class=AutoTokenizer.from_pretrained(model, padding_side="left"),
        callbacks=list(callbacks),
    )
    asked = []
    skip = SkipNonFiniteSteps(made, lambda reason, save=True: asked.append((made.state.global_step + 1, reason)))
    watch = Watch(made, tmp_path / "run", skip, lambda reason: None)
    watch.asked = asked
    made.add_callback(skip)
    made.add_callback(watch)
    return made, watch


class Spoil(TrainerCallback):
    """In some steps the gradient of one of their micro-batches is not finite."""

    def __init__(self, made, steps):
        self.made, self.steps, self.states = made, steps, []
        self.plain, made.compute_loss = made.compute_loss, self.compute_loss

    def compute_loss(self, *args, **kwargs):
        loss = self.plain(*args, **kwargs)
        if self.made.state.global_step + 1 not in self.steps or self.made.accelerator.sync_gradients:
            return loss
        return loss * float("nan")

    def on_step_begin(self, args, state, control, **kwargs):
        self.note()

    def note(self):
        optimizer = self.made.optimizer.state_dict()["state"]
        self.states.append(copy.deepcopy((self.made.model.state_dict(), optimizer)))

    def same(self, one, other):
        """Whether a step changed neither weights nor anything that the optimizer keeps."""
        (weights, kept), (weights_after, kept_after) = self.states[one], self.states[other]
        return equal(weights, weights_after) and equal(kept, kept_after)


def equal(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else one == other
