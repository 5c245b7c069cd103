"""A flag that would have no effect is refused, and no other: TRL's own code is the judge."""

import contextlib
import importlib
import inspect
import itertools
import re
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
from helpers_runs import DEMO
from helpers_tables import each
from helpers_trainer import make_trainer
from transformers import SchedulerType, Trainer, TrainingArguments, get_scheduler
from transformers.training_args import OptimizerNames
from trl import GRPOTrainer

import train_grpo
from grpo.config.configure import configure
from grpo.config.parsing import Parser
from grpo.core.errors import UserError
from grpo.core.settings import TRL_SETTINGS, about

CPU = ["--use_cpu", "true", "--report_to", "none", "--model_name_or_path", str(DEMO / "model")]
DEFAULTS = Parser().defaults
PACKAGES = (  # of optimizers
    "bitsandbytes", "bitsandbytes.optim", "galore_torch", "apollo_torch", "lomo_optim", "grokadamw", "torchao",
    "torchao.optim", "torchao.prototype.low_bit_optim", "schedulefree", "optimi", "torchdistx",
    "torchdistx.optimizers",
)  # fmt: skip
LOSSES = TRL_SETTINGS["loss_type"].choices
OTHER = {  # another value of each setting that only some losses read
    "epsilon": 0.01,
    "epsilon_high": 0.02,
    "delta": 1.3,
    "sapo_temperature_neg": 3.0,
    "sapo_temperature_pos": 3.0,
    "vespo_k_pos": 1.0,
    "vespo_k_neg": 1.0,
    "vespo_lambda_pos": 1.0,
    "vespo_lambda_neg": 1.0,
    "off_policy_mask_threshold": 0.01,
    "use_bias_correction_kl": False,
}


@pytest.fixture(scope="module")
def gradient(tiny_model, tmp_path_factory):
    """TRL's gradient of given log-probabilities, with some settings, on the policy that sampled or on a later one."""
    trainer = make_trainer(GRPOTrainer, tiny_model, tmp_path_factory.mktemp("loss"))
    trainer.current_gradient_accumulation_steps = 1
    random = torch.Generator().manual_seed(0)
    shape = (12, 9)
    old, moved, reference = (torch.randn(shape, generator=random) * 0.5 - 3 for _ in range(3))
    inputs = {
        f"{part}_{kind}": torch.ones(shape, dtype=int) for part in ("prompt", "completion") for kind in ("ids", "mask")
    }
    inputs |= {"advantages": torch.randn(12, generator=random), "num_items_in_batch": torch.tensor(108)}
    inputs["ref_per_token_logps"] = reference

    def compute(settings, off_policy):
        for key, value in settings.items():
            for owner in (trainer, trainer.args):
                setattr(owner, key, value)
        trainer.epsilon_low = settings["epsilon"]
        trainer.epsilon_high = settings["epsilon"] if settings["epsilon_high"] is None else settings["epsilon_high"]
        log_probs = (moved if off_policy else old).clone().requires_grad_()
        trainer._get_per_token_logps_and_entropies = lambda *args, **kwargs: (log_probs, torch.ones(shape), None)
        batch = inputs | ({"old_per_token_logps": old} if off_policy else {})
        trainer._compute_loss(SimpleNamespace(training=True), batch).backward()
        return log_probs.grad

    return compute


CASES = itertools.product(OTHER, LOSSES, (False, True), (None, 0.5), (0.0, 0.1))


@each(CASES)
def test_a_setting_of_the_loss_is_refused_where_no_gradient_changes(key, loss, off_policy, high, beta, gradient):
    settings = {name: DEFAULTS[name] for name in OTHER} | {"loss_type": loss, "beta": beta, "epsilon_high": high}
    other = settings | {key: OTHER[key]}
    has_effect = not torch.allclose(gradient(settings, off_policy), gradient(other, off_policy), rtol=1e-5)
    all_settings = DEFAULTS | {"use_vllm": False, "num_iterations": 1 + off_policy, **other}
    assert has_effect is all(need.holds(all_settings) for need in about(key).needs)


def test_every_setting_that_the_loss_names_is_tried():
    """But those that have an effect with each loss, and those that a switch beside them turns on."""
    read = set(re.findall(r"self\.(?:args\.)?(\w+)", inspect.getsource(GRPOTrainer._compute_loss)))
    usual = {"loss_type", "beta", "importance_sampling_level", "top_entropy_quantile", "use_adaptive_entropy"}
    usual |= {"entropy_coef", "entropy_target", "use_vllm", "vllm_importance_sampling_correction"}
    usual |= {"entropy_coef_min", "entropy_coef_max", "entropy_coef_delta", "router_aux_loss_coef"}
    usual |= {"max_completion_length", "steps_per_generation"}
    assert (read & DEFAULTS.keys()) - usual <= OTHER.keys()


@each(kind.value for kind in SchedulerType)
def test_a_warm_up_is_refused_for_schedules_without_one(kind):
    needs = {
        "reduce_lr_on_plateau": {},
        "cosine_with_min_lr": {"min_lr": 0.1},
        "cosine_warmup_with_min_lr": {"min_lr": 0.1},
    }
    needs |= {"warmup_stable_decay": {"num_decay_steps": 2}}
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    schedule = get_scheduler(kind, optimizer, 4, 8, scheduler_specific_kwargs=needs.get(kind, {}))
    warms_up = schedule.get_last_lr()[0] < 1 if hasattr(schedule, "lr_lambdas") else False
    assert warms_up is all(need.holds({"lr_scheduler_type": kind}) for need in about("warmup_steps").needs)


@each(kind.value for kind in SchedulerType)
def test_arguments_of_a_schedule_are_refused_where_none_is_read(kind):
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    reads = True
    with contextlib.suppress(TypeError):
        get_scheduler(kind, optimizer, 4, 8, scheduler_specific_kwargs={"no_such_argument": 0})
        reads = False
    assert reads is all(need.holds({"lr_scheduler_type": kind}) for need in about("lr_scheduler_kwargs").needs)


ARGUMENTS = "rank=8,update_proj_gap=9,momentum=0.5,lr_decay=0.5,alpha=0.5,gamma=0.5,r=0.5,block_size=9,kahan_sum=1"
ARGUMENTS += ",use_kahan_summation=True"
NOT_HERE = {"adamw_torch_xla", "adamw_torch_npu_fused"}  # of other devices


@each(kind.value for kind in OptimizerNames)
def test_what_an_optimizer_does_not_read_is_refused(kind, monkeypatch):
    """As if the packages of all optimizers were installed; transformers itself is the judge."""
    module = importlib.import_module("transformers.trainer_optimizer")
    for name in [name for name in vars(module) if re.fullmatch(r"is_\w+_available", name)]:
        monkeypatch.setattr(module, name, lambda *version: True)
    monkeypatch.setattr(module.importlib.metadata, "version", lambda name: "99")
    for package in PACKAGES:
        monkeypatch.setitem(sys.modules, package, MagicMock())
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    given = {"optim": kind, "report_to": "none", "use_cpu": True, "optim_target_modules": "all-linear"}

    def made(**changed):
        return str(Trainer.get_optimizer_cls_and_kwargs(TrainingArguments(**given | changed), model)[1])

    if kind in NOT_HERE:
        return
    other = {"adam_beta1": 0.25, "adam_beta2": 0.25, "adam_epsilon": 0.25, "optim_args": ARGUMENTS}
    for key, value in other.items():
        reads = made(**{key: value}) != made()
        assert reads is all(need.holds({"optim": kind}) for need in about(key).needs), key


def test_target_modules_are_of_the_optimizers_that_read_them():
    functions = inspect.getsource(pytest.importorskip("transformers.trainer_optimizer")).split("\ndef ")
    low_rank = {one.partition("(")[0] for one in functions if "_setup_low_rank_optimizer(" in one.partition("\n")[2]}
    assert low_rank == {"_get_galore_optimizer", "_get_apollo_optimizer"}
    assert "optim_target_modules" not in "".join(one for one in functions if not one.startswith("_setup_low_rank"))
    for kind in OptimizerNames:
        named = "galore" in kind.value or "apollo" in kind.value
        assert named is all(need.holds({"optim": kind.value}) for need in about("optim_target_modules").needs)


WITHOUT = [  # flags, the first of which has no effect
    "--save_steps 5 --save_strategy no",
    "--logging_steps 5 --logging_strategy epoch",
    "--eval_steps 5",
    "--eval_steps 5 --eval_strategy epoch",
    "--eval_delay 2",
    "--eval_on_start true",
    "--eval_on_start true --eval_strategy epoch",
    "--num_generations_eval 2 --eval_strategy epoch",
    "--eval_steps 5 --eval_every 10",
    "--eval_strategy epoch --eval_samples 0",
    "--num_generations_eval 2",
    "--do_eval true",
    "--do_train false",
    "--do_predict true",
    "--data_seed 0",
    "--data_seed 7",
    "--hub_model_id me/x",
    "--hub_private_repo true",
    "--fsdp_config {}",
    "--project mine",
    "--trackio_space_id me/x",
    "--greater_is_better false",
    "--num_completions_to_print 3 --log_completions false",
    "--log_multimodal false",
    "--max_tool_calling_iterations 3",
    "--gradient_checkpointing_kwargs {} --gradient_checkpointing false",
    "--dataloader_in_order false",
    "--ds3_gather_for_generation false",
    "--average_tokens_across_devices false",
    "--bf16_full_eval true",
    "--pack_tokens 99 --packed false",
    "--eval_num_samples 4 --eval_samples 0",
    "--sync_ref_model true",
    "--ref_model_sync_steps 5",
    "--entropy_target 0.5",
    "--vllm_server_port 8001 --use_vllm true",
    "--vllm_gpu_memory_utilization 0.5 --use_vllm true --vllm_mode server",
    "--vllm_importance_sampling_clip_max none",
    "--adam_beta1 0.5 --optim sgd",
    "--adam_epsilon 1e-6 --optim adafactor",
    "--optim_args momentum=0.9",
    '--lr_scheduler_kwargs {"num_cycles":2} --lr_scheduler_type constant',
]


@pytest.mark.parametrize("flags", WITHOUT)
def test_a_flag_without_effect_is_one_line(flags):
    key = flags.split()[0].removeprefix("--")
    with pytest.raises(UserError, match=rf"^{key}: it has no effect.*; drop it") as caught:
        configure(train_grpo.HYPERPARAMETERS, [*CPU, *flags.split()])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "flags",
    [
        "--num_train_epochs 2",
        "--eval_steps 5 --eval_strategy steps --per_device_eval_batch_size 16",
        "--eval_strategy epoch --eval_delay 2 --do_eval true --per_device_eval_batch_size 7",
        "--warmup_steps 0 --lr_scheduler_type constant",  # it asks for nothing
        "--do_train true",
        "--max_steps 4 --save_steps 2",
        "--epsilon_high 0.28 --num_iterations 2",
        "--epsilon_high 0.28 --gradient_accumulation_steps 1 --steps_per_generation 4",
        "--epsilon_high 0.28 --gradient_accumulation_steps 1 --generation_batch_size 64",
        "--ref_model_sync_steps 5 --sync_ref_model true --beta 0.1",
        "--project mine --report_to trackio",
    ],
)
def test_a_flag_with_an_effect_is_taken(flags, monkeypatch):
    monkeypatch.setattr("grpo.report.trackers.drop_missing", lambda *args, **kwargs: [])
    configure(train_grpo.HYPERPARAMETERS, ["--use_cpu", "true", *CPU[4:], *flags.split()])


def spelled_out(name):
    """The flag of this setting's default, as a program writes it; None has no text."""
    value = getattr(DEFAULTS[name], "value", DEFAULTS[name])
    return [f"--{name}", *map(str, value)] if isinstance(value, list) else [f"--{name}", str(value)]


def test_a_command_line_that_spells_out_all_defaults_is_taken():
    """But those of a GPU, and do_train: the script trains, whatever TRL's default says."""
    names = [
        name for name, value in DEFAULTS.items() if value not in (None, []) and name not in ("use_cpu", "do_train")
    ]
    assert len(names) > 150
    flags = [word for name in names for word in spelled_out(name)]
    configure(train_grpo.HYPERPARAMETERS, [*flags, *CPU])


@pytest.mark.parametrize(
    "flags",
    [
        "--num_train_epochs 2 --max_steps 10",
        "--eval_num_samples 1 --eval_samples 0",
        "--epsilon 0.2",
        "--optim sgd --adam_beta1 0.9",
        "--vllm_mode colocate",
        "--vllm_gpu_memory_utilization 0.3 --vllm_importance_sampling_correction true",
        "--attn_implementation flash_attention_2",
        "--push_to_hub true --hub_strategy every_save",
        "--include_num_input_tokens_seen no",
        "--save_steps 100 --save_strategy no",
        "--use_peft false --lora_r 16 --lora_alpha 64",
    ],
)
def test_a_flag_at_its_default_asks_for_nothing(flags):
    configure(train_grpo.HYPERPARAMETERS, [*CPU, *flags.split()])


def test_only_flags_are_refused():
    """A value of HYPERPARAMETERS or a recipe may wait for its switch."""
    configure(train_grpo.HYPERPARAMETERS | {"sapo_temperature_neg": 2.0, "eval_steps": 5, "epsilon_high": 0.28}, CPU)
