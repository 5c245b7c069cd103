"""Every number of every setting: either one line and status 2 before anything is loaded, or TRL's step takes it."""

import dataclasses
import functools
import re

import pytest
from helpers_runs import DEMO
from helpers_tables import each
from helpers_trainer import make_trainer
from trl import GRPOConfig, GRPOTrainer

import train_grpo
from grpo.config.configure import configure
from grpo.config.parsing import GROUPS
from grpo.core.errors import UserError
from grpo.core.settings import about

FIELDS = {field.name: field for owner in GROUPS for field in dataclasses.fields(owner)}
NUMBERS = [name for name, field in FIELDS.items() if re.search(r"\b(int|float)\b", str(field.type))]
VALUES = ("-1", "0", "-1e-5", "0.5", "1.5", "1000000000")
NOT_FINITE = ("nan", "inf", "-inf")
CPU = ["--use_cpu", "true", "--report_to", "none", "--model_name_or_path", str(DEMO / "model")]
# Of these a huge value makes a huge run
SIZES = re.compile(
    r"per_device|gradient_accumulation|generation|num_iterations|max_(steps|completion)|num_train|dataloader|lora"
    r"|vllm|local_rank|ddp|logging|save|eval|(top|num)_completions|router|pad_to"
)


def flags_for(name):
    """Flags that this setting needs to have an effect, and those that they need."""
    remedies = [need.remedy.partition(" (")[0].split() for need in about(name).needs]
    before = [flag for key, *_ in remedies for flag in flags_for(key.removeprefix("--"))]
    return before + [word for remedy in remedies for word in remedy]


@functools.cache
def outcome(name, value):
    """The configuration with this value, and "", or None and the error."""
    try:
        return configure(train_grpo.HYPERPARAMETERS, [*CPU, *flags_for(name), f"--{name}", value]), ""
    except UserError as error:
        return None, str(error)


@each((name, value) for name in NUMBERS for value in NOT_FINITE)
def test_nan_and_infinity_are_no_value_of_any_setting(name, value):
    assert re.match(rf"{name}: .*(not a finite number|invalid (int|float|str) value)", outcome(name, value)[1])


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--reward_weights", "1", "1", "nan", "1", "1"], "reward_weights: nan is not"),
        (["--lr_scheduler_kwargs", '{"num_cycles": NaN}'], "lr_scheduler_kwargs: nan is not"),
        (["--reward_args", '{"int_reward_func": {"value": [1, Infinity]}}'], "reward_args: inf is not"),
        (["--max_grad_norm", "inf"], "use a number at least 0; 0 does not clip"),
    ],
)
def test_lists_and_mappings_have_finite_numbers(flags, named):
    with pytest.raises(UserError, match=named):
        configure(train_grpo.HYPERPARAMETERS, [*CPU, *flags])


@each((name, value) for name in NUMBERS for value in VALUES)
def test_a_number_that_is_refused_is_one_line(name, value):
    _, line = outcome(name, value)
    assert "\n" not in line and "expected one argument" not in line
    assert not line.startswith(name) or re.search(r"; (use|drop|set)|invalid", line), line


def test_numbers_out_of_range_are_refused_with_status_2(capsys):
    for flags in (
        "--adam_epsilon -1",
        "--learning_rate -1e-5",
        "--beta .1 --sync_ref_model true --ref_model_sync_steps 0",
    ):
        assert train_grpo.main([*CPU, *flags.split()]) == 2
        found = capsys.readouterr().err.splitlines()
        assert len(found) == 1 and "is out of range; use a number" in found[0]


def test_a_negative_number_is_a_value(capsys):
    given = ["--reward_weights", "-1", "-1e-1", "-.5", "2", "-3E0"]
    assert configure(train_grpo.HYPERPARAMETERS, [*CPU, *given]).training.reward_weights == [-1, -0.1, -0.5, 2, -3]


def steps():
    """Settings that TRL's step reads, with each accepted value."""
    own = {field.name for field in dataclasses.fields(GRPOConfig)}
    names = [name for name in NUMBERS if name in own and not SIZES.search(name) and name != "reward_weights"]
    assert {"adam_epsilon", "delta", "sapo_temperature_pos", "top_k", "warmup_steps"} <= set(names)
    return ((name, value) for name in names for value in VALUES)


@pytest.mark.slow
@each(steps())
def test_a_number_that_is_accepted_takes_trls_step(name, value, tiny_model, tmp_path):
    config, refused = outcome(name, value)
    if refused:
        return
    keys = [word.removeprefix("--") for word in (*flags_for(name), f"--{name}") if word.startswith("--")]
    sizes = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 1, "num_generations": 2, "max_steps": 2}
    own = {"lengths": "sampled", "max_completion_length": 4, "optim": "adamw_torch", "learning_rate": 1e-4}
    given = {key: getattr(config.training, key) for key in keys}
    make_trainer(GRPOTrainer, tiny_model, tmp_path, **sizes | own | given).train()
