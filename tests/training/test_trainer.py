"""LeanGRPOTrainer beside stock GRPOTrainer: the same rollouts, gradients equal to rounding, the same metrics."""

import pytest
import torch
from helpers_commands import command
from helpers_runs import ROOT
from helpers_trainer import LENGTH, compare, largest_difference, no_group_lives, rollouts, trained
from peft import LoraConfig
from transformers import AutoModelForCausalLM
from trl import GRPOTrainer

from grpo.training.trainer import LeanGRPOTrainer


@pytest.mark.parametrize("loss_type", ["grpo", "dapo", "dr_grpo", "bnpo", "cispo", "sapo", "luspo", "vespo"])
def test_every_loss_type_has_stock_gradients(tiny_model, tmp_path, loss_type):
    trainer = compare(tiny_model, tmp_path, loss_type=loss_type, importance_sampling_level="token")
    plan = trainer._plan
    assert max(len(packs) for packs in plan.packs_of_micro_batch) > 1
    assert plan.computed.all() == (loss_type == "vespo") and plan.computed.any()


@pytest.mark.parametrize(
    "settings",
    [
        {"beta": 0.1, "loss_type": "grpo", "mask_truncated_completions": True},
        {"num_iterations": 2, "loss_type": "bnpo", "beta": 0.1, "use_bias_correction_kl": False},
        {"num_iterations": 2, "loss_type": "grpo", "importance_sampling_level": "sequence", "delta": 1.5},
        {"steps_per_generation": 4, "loss_type": "dr_grpo", "num_iterations": 2},
        {"steps_per_generation": 1, "loss_type": "sapo"},
        {"steps_per_generation": 3, "per_device_train_batch_size": 4},
        {"gradient_checkpointing": True},
        {"off_policy_mask_threshold": 0.01, "num_iterations": 2},
    ],
    ids=lambda settings: " ".join(f"{key}={value}" for key, value in settings.items()),
)
def test_settings_that_change_the_loss_have_stock_gradients(tiny_model, tmp_path, settings):
    compare(tiny_model, tmp_path, **settings)


@pytest.mark.parametrize("settings", [{"top_entropy_quantile": 0.4}, {"entropy_coef": 0.01}], ids=str)
def test_what_depends_on_the_micro_batch_keeps_it_whole(tiny_model, tmp_path, settings):
    trainer = compare(tiny_model, tmp_path, differing=(), **settings)
    assert not trainer._in_parts and trainer._plan is None


def test_with_a_reference_model_all_metrics_are_stocks(tiny_model, tmp_path):
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


def test_eager_attention_takes_trls_own_step(tiny_model, tmp_path, capsys):
    model, other = (
        AutoModelForCausalLM.from_pretrained(tiny_model, attn_implementation="eager", dtype="float32") for _ in "ab"
    )
    stock, _, _ = trained(GRPOTrainer, model, tmp_path)
    lean, _, trainer = trained(LeanGRPOTrainer, other, tmp_path)
    assert trainer.kernel is None and largest_difference(stock, lean) < 1e-5
    assert "TRL's own, with its padding: the model's attention is eager" in capsys.readouterr().out


def test_without_any_advantage_gradients_are_zero_as_in_stock(tiny_model, tmp_path):
    """Not none: the optimizer's momentum and weight decay go on."""
    gradients, logs, _ = trained(LeanGRPOTrainer, tiny_model, tmp_path, reward=no_group_lives)
    stock, _, _ = trained(GRPOTrainer, tiny_model, tmp_path, reward=no_group_lives)
    assert gradients[0].keys() == stock[0].keys()
    assert not any(gradient.any() for gradient in gradients[0].values())
    assert logs[0]["loss"] == 0 and logs[0]["entropy"] is None  # nothing was computed that could tell


def test_entropy_is_the_mean_of_what_was_computed(tiny_model, tmp_path):
    _, logs, trainer = trained(LeanGRPOTrainer, tiny_model, tmp_path)
    plan = trainer._plan
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
    """pack_tokens bounds the memory of a step, whatever the micro-batch is."""
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


TWO_PROCESSES = """
import os, sys
from pathlib import Path
sys.path[:0] = [{root!r}, {tests!r} + "/helpers"]
import torch
from accelerate import PartialState
from helpers_trainer import GRPOTrainer, LeanGRPOTrainer, largest_difference, no_group_lives, rollouts, trained

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
        lengths = rollouts(3 + 10 * rank)
        gradients, logs, trainer = trained(
            trainer_class, {model!r}, Path({out!r}), lengths=lengths, own=own, **settings
        )
        found.append((gradients, logs, trainer))
    (stock, stock_log, _), (lean, lean_log, trainer) = found
    packs = [len(turn) for turn in trainer._plan.packs_of_micro_batch] if trainer._plan else None
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
def test_two_processes_with_unequal_work_have_stock_gradients(tiny_model, tmp_path):
    """Unequal lengths, and a process without a live completion: nothing hangs, and the sum is the same."""
    script = tmp_path / "two.py"
    script.write_text(
        TWO_PROCESSES.format(root=str(ROOT), tests=str(ROOT / "tests"), model=tiny_model, out=str(tmp_path / "out"))
    )
    done = command(script, processes=2)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert done.stdout.count(" equal") == 12


def test_under_autocast_the_gradients_are_stocks_to_its_rounding(tiny_model, tmp_path):
    """In bfloat16 both sides round, each in shapes of its own."""
    stock, _, _ = trained(GRPOTrainer, tiny_model, tmp_path, bf16=True)
    lean, _, trainer = trained(LeanGRPOTrainer, tiny_model, tmp_path, bf16=True, own={"pack_tokens": 30})
    exact, _, _ = trained(GRPOTrainer, tiny_model, tmp_path)
    assert trainer.kernel is not None
    assert 1e-4 < largest_difference(exact, lean) < 0.05  # it is under autocast
    assert largest_difference(stock, lean) < 0.05
