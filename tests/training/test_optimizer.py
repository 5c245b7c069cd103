"""grpo/training/optimizer.py: what a library refuses is one line, and what it takes is what training uses."""

import re

import pytest
import torch
from helpers_trainer import make_trainer
from trl import GRPOTrainer

from grpo.core.errors import UserError
from grpo.training import optimizer


@pytest.fixture
def build(tiny_model, tmp_path):
    """Build what a trainer with these settings builds, and return the trainer."""

    def built(**settings):
        trainer = make_trainer(GRPOTrainer, tiny_model, tmp_path, **settings)
        optimizer.build(trainer)
        return trainer

    return built


@pytest.mark.parametrize(
    ("optim", "arguments", "said"),
    [
        ("sgd", "momentum=-1", "Invalid momentum value: -1.0"),
        ("sgd", "nesterov=true", "Nesterov momentum requires a momentum"),
        ("sgd", "momentum=x", "could not convert string to float: 'x'"),
        ("sgd", "momentum", "not enough values to unpack"),
        ("sgd", "momentum=0.9,weight_decay=-1", "Invalid weight_decay value"),
        ("rmsprop", "alpha=-1", "Invalid alpha value: -1.0"),
        ("adagrad", "lr_decay=-1", "Invalid lr_decay value"),
    ],
)
def test_arguments_that_an_optimizer_refuses_are_one_line(optim, arguments, said, build):
    with pytest.raises(UserError, match=f"^optim_args: {re.escape(arguments)}: .*{re.escape(said)}"):
        build(optim=optim, optim_args=arguments)


@pytest.mark.parametrize(
    "arguments",
    [{"use_reentrnat": True}, {"use_reentrant": False, "determinism": 1}, {"use_reentrant": True, "debug": True}],
    ids=str,
)
def test_arguments_that_checkpointing_refuses_are_one_line(arguments, build):
    with pytest.raises(UserError, match=r"^gradient_checkpointing_kwargs: "):
        build(gradient_checkpointing=True, gradient_checkpointing_kwargs=arguments)
    build(gradient_checkpointing=False, gradient_checkpointing_kwargs=arguments)  # which reads none


@pytest.mark.parametrize(
    ("optim", "arguments"),
    [
        ("rmsprop", "alpha=0.9,momentum=0.5,centered=true"),
        ("sgd", "momentum=0.9,nesterov=true"),
        ("adamw_torch", None),
    ],
)
def test_training_uses_the_optimizer_that_was_built(optim, arguments, build):
    trainer = build(optim=optim, optim_args=arguments, max_steps=2)
    built = trainer.optimizer
    trainer.train()
    assert trainer.optimizer.optimizer is built and built.state


# --- bfloat16 weights


BY_CHANCE = {"optim": "adamw_torch_8bit", "optim_args": "bf16_stochastic_round=true"}


def displacement(build, dtype=torch.bfloat16, **settings):
    """How far weights like Qwen's get in 100 steps at the script's rate, with gradients that have a direction."""
    trainer = build(learning_rate=5e-6, adam_beta2=0.99, **settings)
    random = torch.Generator().manual_seed(0)
    before = (torch.randn(128, 128, generator=random) * 0.03).bfloat16()
    weight = torch.nn.Parameter(before.to(dtype, copy=True))
    options = {key: value for key, value in trainer.optimizer.defaults.items() if key in ("lr", "betas", "eps")}
    own = {key: value for key, value in vars(trainer.optimizer).items() if key == "bf16_stochastic_round"}
    optimizer = type(trainer.optimizer)([weight], **options, **own)
    direction = torch.randn(128, 128, generator=random)
    for _ in range(100):
        weight.grad = (direction + torch.randn(128, 128, generator=random)).to(dtype)
        optimizer.step()
    return weight.detach().float() - before.float()


def test_plain_adamw_loses_the_updates_of_bfloat16_weights(build):
    reference = displacement(build, torch.float32, optim="adamw_torch")
    assert (displacement(build, optim="adamw_torch") * reference).sum() < 0.1 * (reference**2).sum()


@pytest.mark.slow
def test_rounding_by_chance_keeps_them(build):
    pytest.importorskip("torchao")
    reference = displacement(build, torch.float32, optim="adamw_torch")
    moved = displacement(build, **BY_CHANCE)
    assert ((moved * reference).sum() / (reference**2).sum()).item() == pytest.approx(1, abs=0.05)


def test_a_missing_compiler_is_one_line_before_the_run_begins(build, monkeypatch):
    pytest.importorskip("torchao")

    def refuse(*args, **kwargs):
        raise RuntimeError("No working C++ compiler found\nmore")

    monkeypatch.setattr(torch, "compile", refuse)
    with pytest.raises(UserError, match=r"^optim_args: bf16_stochastic_round=true: No working C\+\+ compiler found$"):
        build(**BY_CHANCE)
