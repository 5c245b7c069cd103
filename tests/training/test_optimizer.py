"""grpo/training/optimizer.py: what a library refuses is one line, and what it takes is what training uses."""

import re

import pytest
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
