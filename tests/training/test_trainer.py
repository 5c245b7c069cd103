"""LeanGRPOTrainer beside stock GRPOTrainer: the same rollouts, gradients equal to rounding, the same metrics."""

import random
import subprocess
import sys

import pytest
import torch
from datasets import Dataset
from helpers_runs import ROOT, ROWS
from peft import LoraConfig
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    TrainerCallback,
)
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
    """In the place of sampling: completions of many lengths, some cut, the same ones for the same seed."""
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


def trained(trainer_class, model, tmp_path, reward=some_groups_live, peft=None, lengths=None, own=None, **settings):
    """A run of one rollout: (gradients of each optimizer step, log of each, trainer)."""
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
    gradients = Gradients()
    tokenizer_of = getattr(model, "tokenizer_of", model.name_or_path)
    trainer = trainer_class(
        model=model,
        reward_funcs=reward,
        args=GRPOConfig(output_dir=str(tmp_path), **{**defaults, **settings}),
        train_dataset=Dataset.from_list([{"prompt": row["question"] + " x" * (n % 4)} for n, row in enumerate(ROWS)]),
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
    assert trainer.backend is not None and stock[0]
    assert any(gradient.any() for gradient in stock[0].values())
    assert largest_difference(stock, lean) < 1e-5
    for one, other in zip(stock_log, lean_log, strict=True):
        assert {key for key in other if not key.startswith("time/")} == set(one)
        for key, value in one.items():
            if key not in differing and not key.startswith(TIMES):
                assert other[key] == pytest.approx(value, rel=1e-4, abs=1e-6), key
    return trainer


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo", "bnpo", "cispo", "sapo", "luspo", "vespo"])
def test_every_loss_type_has_stock_gradients(tiny_model, tmp_path, loss_type):
    trainer = compare(tiny_model, tmp_path, loss_type=loss_type, importance_sampling_level="token")
    (plan, *_) = trainer._plans.values()
    assert max(len(packs) for packs in plan.turns) > 1
    assert plan.computed.all() == (loss_type == "vespo") and plan.computed.any()


@pytest.mark.parametrize(
    "settings",
    [
        {"beta": 0.1},
        {"beta": 0.1, "loss_type": "grpo", "mask_truncated_completions": True},
        {"mask_truncated_completions": True},
        {"num_iterations": 2},
        {"num_iterations": 2, "loss_type": "bnpo", "beta": 0.1, "use_bias_correction_kl": False},
        {"num_iterations": 2, "loss_type": "grpo", "importance_sampling_level": "sequence", "delta": 1.5},
        {"steps_per_generation": 4},
        {"steps_per_generation": 4, "loss_type": "dr_grpo", "num_iterations": 2},
        {"steps_per_generation": 1, "loss_type": "sapo"},
        {"steps_per_generation": 3, "per_device_train_batch_size": 4},
        {"gradient_checkpointing": True},
        {"scale_rewards": "batch"},
        {"multi_objective_aggregation": "normalize_then_sum"},
        {"off_policy_mask_threshold": 0.01, "num_iterations": 2},
    ],
    ids=lambda settings: " ".join(f"{key}={value}" for key, value in settings.items()),
)
def test_settings_that_change_the_loss_have_stock_gradients(tiny_model, tmp_path, settings):
    compare(tiny_model, tmp_path, **settings)


@pytest.mark.parametrize("settings", [{"top_entropy_quantile": 0.4}, {"entropy_coef": 0.01}], ids=str)
def test_what_depends_on_the_micro_batch_keeps_it_and_all_its_metrics(tiny_model, tmp_path, settings):
    trainer = compare(tiny_model, tmp_path, differing=(), **settings)
    assert not trainer._in_parts and not trainer._plans


def test_with_a_reference_model_nothing_is_left_out_and_all_metrics_are_stocks(tiny_model, tmp_path):
    compare(tiny_model, tmp_path, differing=(), beta=0.1, loss_type="dr_grpo")


@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_an_adapter_has_stock_gradients(tiny_model, tmp_path, beta):
    """With beta the reference is the model without its adapter."""
    lora = LoraConfig(
        r=4, lora_alpha=8, lora_dropout=0.0, target_modules=["q_proj", "down_proj"], init_lora_weights=False
    )
    torch.manual_seed(0)
    compare(tiny_model, tmp_path, peft=lora, beta=beta, seed=7)


@pytest.mark.parametrize("lengths", [1, LENGTH])
def test_completions_of_one_token_and_of_the_limit(tiny_model, tmp_path, lengths):
    compare(tiny_model, tmp_path, lengths=lengths)


def test_the_same_seed_samples_what_stock_samples(tiny_model, tmp_path):
    """Nothing of ours draws a random number: with TRL's sampling, two steps are those of a stock trainer."""
    compare(tiny_model, tmp_path, lengths="sampled", reward=rewards_by_sum, max_steps=2, differing=("entropy",))


@pytest.mark.parametrize("implementation", ["eager"])
def test_other_attention_has_stock_gradients(tiny_model, tmp_path, implementation):
    model = AutoModelForCausalLM.from_pretrained(tiny_model, attn_implementation=implementation, dtype="float32")
    other = AutoModelForCausalLM.from_pretrained(tiny_model, attn_implementation=implementation, dtype="float32")
    stock, _, _ = trained(GRPOTrainer, model, tmp_path)
    lean, _, trainer = trained(LeanGRPOTrainer, other, tmp_path)
    assert trainer.backend.name == "eager with a block mask" and largest_difference(stock, lean) < 1e-5


def test_rollouts_without_any_advantage_leave_zero_gradients_as_stock_does(tiny_model, tmp_path):
    """Not none: the optimizer's momentum and weight decay go on."""
    gradients, logs, _ = trained(LeanGRPOTrainer, tiny_model, tmp_path, reward=no_group_lives)
    stock, _, _ = trained(GRPOTrainer, tiny_model, tmp_path, reward=no_group_lives)
    assert gradients[0].keys() == stock[0].keys()
    assert not any(gradient.any() for gradient in gradients[0].values())
    assert logs[0]["loss"] == 0 and logs[0]["entropy"] is None  # nothing was computed that could tell


def test_the_entropy_of_completions_that_are_left_out_is_not_in_the_mean(tiny_model, tmp_path):
    _, logs, trainer = trained(LeanGRPOTrainer, tiny_model, tmp_path)
    (plan,) = trainer._plans.values()
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype="float32")
    total = count = 0
    for row in plan.computed.nonzero().flatten().tolist():
        prompt = plan.rows["prompt_ids"][row][plan.rows["prompt_mask"][row].bool()]
        completion = plan.rows["completion_ids"][row][plan.rows["completion_mask"][row].bool()]
        logits = model(torch.cat([prompt, completion])[None]).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        total, count = total - (logits.exp() * logits).sum().item(), count + len(completion)
    assert 0 < plan.computed.sum() < len(plan.computed)
    assert logs[0]["entropy"] == pytest.approx(total / count, rel=0.02)  # a mean of micro-batches' means, as TRL's is


def test_no_more_than_a_pack_is_computed_at_once(tiny_model, tmp_path):
    """The budget bounds the memory of a step, whatever the micro-batch is."""
    seen = []
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype="float32")
    model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["input_ids"].shape), with_kwargs=True
    )
    trained(LeanGRPOTrainer, model, tmp_path, own={"pack_tokens": 64})
    assert len(seen) > 3 and max(rows * length for rows, length in seen) <= 64


def test_evaluation_during_training_is_stocks(tiny_model, tmp_path):
    settings = {"per_device_eval_batch_size": 4, "num_generations_eval": 2}
    losses = []
    for trainer_class in (GRPOTrainer, LeanGRPOTrainer):
        _, _, trainer = trained(trainer_class, tiny_model, tmp_path, learning_rate=0.0, beta=0.1, **settings)
        trainer._generate_single_turn = rollouts(5)
        losses.append(trainer.evaluate(trainer.train_dataset.select(range(6))))
    for key in ("eval_loss", "eval_entropy", "eval_kl", "eval_clip_ratio/region_mean"):
        assert losses[1][key] == pytest.approx(losses[0][key], rel=1e-4, abs=1e-6)


def test_times_are_in_the_log(tiny_model, tmp_path):
    _, logs, _ = trained(LeanGRPOTrainer, tiny_model, tmp_path)
    assert 0 < logs[0]["time/rewards"] < logs[0]["step_time"]
    assert 0 < logs[0]["time/generation"] < logs[0]["step_time"]


TWO_PROCESSES = """
import os, sys
from pathlib import Path
sys.path[:0] = [{root!r}, {tests!r}, *__import__("glob").glob({tests!r} + "/*/")]
import torch
from accelerate import PartialState
from test_trainer import GRPOTrainer, LeanGRPOTrainer, largest_difference, no_group_lives, rollouts, trained

rank = int(os.environ["RANK"])

def only_on_the_first(completion_ids, **kwargs):
    return [float(sum(ids) % 7) if rank == 0 else 1.0 for ids in completion_ids]

cases = dict(
    dapo=dict(), bnpo=dict(loss_type="bnpo"), reference=dict(beta=0.1, loss_type="grpo"),
    dead=dict(reward=only_on_the_first), all_dead=dict(reward=no_group_lives), quantile=dict(top_entropy_quantile=0.5),
)
for name, settings in cases.items():
    found = []
    for trainer_class in (GRPOTrainer, LeanGRPOTrainer):
        own = dict(pack_tokens=60) if trainer_class is LeanGRPOTrainer else dict()
        import test_trainer
        test_trainer.rollouts = lambda seed, lengths=None: rollouts(seed + 10 * rank, lengths)
        gradients, logs, trainer = trained(trainer_class, {model!r}, Path({out!r}), own=own, **settings)
        found.append((gradients, logs, trainer))
    (stock, stock_log, _), (lean, lean_log, trainer) = found
    packs = [len(turn) for plan in trainer._plans.values() for turn in plan.turns]
    if name == "all_dead":
        assert not any(gradient.any() for gradient in lean[0].values())
    else:
        assert largest_difference(stock, lean) < 1e-5, name
    if rank == 0:
        for key in ("loss", "reward", "clip_ratio/region_mean", "kl"):
            if key in stock_log[0]:
                assert abs(stock_log[0][key] - lean_log[0][key]) < 1e-5, (name, key)
    print(f"rank {{rank}} {{name}} packs {{packs}} equal", flush=True)
PartialState().wait_for_everyone()
trainer.accelerator.end_training()
"""


@pytest.mark.slow
def test_two_processes_have_stock_gradients_whatever_each_has_to_compute(tiny_model, tmp_path):
    """Unequal lengths, and a process without a live completion: nothing hangs, and the sum is the same."""
    script = tmp_path / "two.py"
    script.write_text(
        TWO_PROCESSES.format(root=str(ROOT), tests=str(ROOT / "tests"), model=tiny_model, out=str(tmp_path / "out"))
    )
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", str(script)],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.count(" equal") == 12


def test_under_autocast_the_gradients_are_stocks_to_its_rounding(tiny_model, tmp_path):
    """In bfloat16 both sides round, each in shapes of its own."""
    stock, _, _ = trained(GRPOTrainer, tiny_model, tmp_path, bf16=True)
    lean, _, trainer = trained(LeanGRPOTrainer, tiny_model, tmp_path, bf16=True, own={"pack_tokens": 30})
    exact, _, _ = trained(GRPOTrainer, tiny_model, tmp_path)
    assert trainer.backend is not None
    assert 1e-4 < largest_difference(exact, lean) < 0.05  # it is under autocast
    assert largest_difference(stock, lean) < 0.05


def test_a_budget_below_one_is_refused(tiny_model, tmp_path):
    with pytest.raises(ValueError, match="pack_tokens: 0 is out of range"):
        trained(LeanGRPOTrainer, tiny_model, tmp_path, own={"pack_tokens": 0})
