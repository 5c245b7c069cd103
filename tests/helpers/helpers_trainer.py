"""Train stock GRPOTrainer and LeanGRPOTrainer on the same completions, and compare gradients and logs."""

import random

import pytest
from datasets import Dataset
from helpers_runs import ROWS
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from grpo.training.trainer import LeanGRPOTrainer

LENGTH = 24
TIMES = ("time/", "step_time", "train_", "total_flos")


class Gradients(TrainerCallback):
    """Of all parameters, as they are when the optimizer takes them."""

    def __init__(self):
        self.steps = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        named = ((name, parameter.grad) for name, parameter in model.named_parameters())
        self.steps.append({name: gradient.clone() for name, gradient in named if gradient is not None})


def some_groups_live(completion_ids, prompts, **kwargs):
    """Half of the groups have one reward for all, so that their advantages are zero."""
    return [
        0.5 if sum(map(ord, prompt)) % 2 else float(sum(ids) % 7)
        for ids, prompt in zip(completion_ids, prompts, strict=True)
    ]


def rewards_by_sum(completion_ids, **kwargs):
    return [float(sum(ids) % 997) for ids in completion_ids]


def no_group_lives(completion_ids, **kwargs):
    return [0.0] * len(completion_ids)


def rollouts(seed, lengths=None):
    """Replaces sampling: completions of many lengths, some cut, the same ones for the same seed."""
    chance = random.Random(seed)

    def sample(prompt_ids, *args, **kwargs):
        completions = []
        for _ in prompt_ids:
            length = min(LENGTH, max(1, int(chance.lognormvariate(1.8, 0.9)))) if lengths is None else lengths
            completions.append([chance.randrange(5, 500) for _ in range(length)])
            if 1 < length < LENGTH:
                completions[-1][-1] = 2
        return completions, None

    return sample


def trained(
    trainer_class,
    model,
    tmp_path,
    reward=some_groups_live,
    peft=None,
    lengths=None,
    own=None,
    prompts=None,
    columns=None,
    **settings,
):
    """A run of one rollout: (gradients of each optimizer step, log of each, trainer).

    Args:
        lengths: of the completions; None: many; "sampled": TRL samples; a function replaces TRL's sampling.
        own: LeanGRPOTrainer's keyword arguments.
        prompts: of the training data; None: 40 sums as plain text.
        columns: of the training data, besides the prompts.
    """
    defaults = {
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 2,
        "num_generations": 4,
        "max_completion_length": LENGTH,
        "max_steps": 1,
        "learning_rate": 0.05,
        "lr_scheduler_type": "constant",
        "optim": "sgd",
        "max_grad_norm": 0.0,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "save_strategy": "no",
        "report_to": "none",
        "logging_steps": 1,
        "disable_tqdm": True,
    }
    if isinstance(model, str):
        model = AutoModelForCausalLM.from_pretrained(model, dtype="float32")
    if settings.get("num_iterations", 1) > 1 or "steps_per_generation" in settings:
        settings = {"max_steps": 4, **settings}
    prompts = prompts or [row["question"] + " x" * (n % 4) for n, row in enumerate(ROWS)]
    gradients = Gradients()
    tokenizer_of = getattr(model, "tokenizer_of", model.name_or_path)
    trainer = trainer_class(
        model=model,
        reward_funcs=reward,
        args=GRPOConfig(output_dir=str(tmp_path), **{**defaults, **settings}),
        train_dataset=Dataset.from_dict({"prompt": prompts, **(columns or {})}),
        processing_class=AutoTokenizer.from_pretrained(tokenizer_of),
        peft_config=peft,
        callbacks=[gradients],
        **(own or {}),
    )
    if lengths != "sampled":
        trainer._generate_single_turn = lengths if callable(lengths) else rollouts(3, lengths)
    trainer.train()
    return gradients.steps, trainer.state.log_history, trainer


def largest_difference(stock, lean):
    """Of all parameters and steps, relative to stock's norm."""
    assert len(stock) == len(lean) > 0 and all(
        one.keys() == other.keys() for one, other in zip(stock, lean, strict=True)
    )
    pairs = [(one[name], other[name]) for one, other in zip(stock, lean, strict=True) for name in one]
    return max(((other - one).norm() / one.norm().clamp(min=1e-20)).item() for one, other in pairs)


def compare(model, tmp_path, differing=("entropy",), **settings):
    """Train both: gradients equal to 1e-5, every logged value too, but for the named ones; the lean trainer."""
    stock, stock_log, _ = trained(GRPOTrainer, model, tmp_path, **settings)
    lean, lean_log, trainer = trained(LeanGRPOTrainer, model, tmp_path, own={"pack_tokens": 30}, **settings)
    assert trainer.kernel is not None and stock[0]
    assert any(gradient.any() for gradient in stock[0].values())
    assert largest_difference(stock, lean) < 1e-5
    for one, other in zip(stock_log, lean_log, strict=True):
        assert {key for key in other if not key.startswith("time/")} == set(one)
        for key, value in one.items():
            if key not in differing and not key.startswith(TIMES):
                assert other[key] == pytest.approx(value, rel=1e-4, abs=1e-6), key
    return trainer
