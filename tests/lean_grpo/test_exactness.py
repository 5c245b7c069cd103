"""LeanGRPOTrainer's gradients are stock TRL's to 1e-5 in float32, and so is all that it logs.

On the same completions: prompts of groups, some padded on the left, completions padded on the right, a quarter of them
without an advantage. On two processes: test_two_processes.py; on vLLM's own completions: tests/real_vllm.
"""

import pytest
import torch
from helpers_runs import examples
from helpers_settings import CHOICES
from helpers_trainer import (
    LENGTH,
    PROMPTS,
    compare,
    completions,
    largest_difference,
    some_groups_live,
    trained,
)
from hypothesis import example, given
from hypothesis import strategies as st
from peft import IA3Config, LoraConfig
from transformers import AutoConfig, AutoModelForCausalLM
from trl import GRPOTrainer

from lean_grpo import LeanGRPOTrainer, attention, packing

# Rounding moves tokens across the quantile's threshold; the others change nothing here
LEFT_OUT = ("top_entropy_quantile", "multi_objective_aggregation", "disable_dropout")
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, **HEADS}


@pytest.mark.parametrize("loss_type", CHOICES["loss_type"])
def test_every_loss_type_has_stock_gradients(tiny_model, tmp_path, loss_type):
    compare(tiny_model, tmp_path, loss_type=loss_type)


def every_group_lives(completion_ids, **kwargs):
    return [sum(ids) % 97 / 14 for ids in completion_ids]


@st.composite
def settings(draw):
    """Random settings of those that change the loss."""
    choices = {name: values for name, values in CHOICES.items() if name not in LEFT_OUT}
    found = {name: draw(st.sampled_from(values), label=name) for name, values in choices.items()}
    return {name: value for name, value in found.items() if value is not None}


@examples(8)
@given(settings())
@example({"num_iterations": 2, "loss_type": "grpo", "importance_sampling_level": "sequence", "delta": 1.5})
@example({"num_iterations": 2, "loss_type": "dr_grpo", "steps_per_generation": 4, "beta": 0.1})
@example({"num_iterations": 2, "off_policy_mask_threshold": 0.01})
def test_random_settings_have_stock_gradients(tiny_model, tmp_path_factory, settings):
    # a step of a KL term alone is made of small differences, whose digits are rounding
    reward = every_group_lives if settings.get("beta") else some_groups_live
    compare(tiny_model, tmp_path_factory.mktemp("run"), reward=reward, max_steps=3, **settings)


@pytest.mark.parametrize("mode", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"])
def test_an_engines_log_probabilities_correct_both_alike(tiny_model, tmp_path, mode):
    """As vLLM's, which only a constructor would start."""

    def with_engine(trainer_class):
        def construct(*args, **kwargs):
            trainer = trainer_class(*args, **kwargs)
            trainer.use_vllm = True
            return trainer

        return construct

    found = [
        trained(
            with_engine(trainer_class), tiny_model, tmp_path, lengths=completions(log_probs=True),
            vllm_importance_sampling_mode=mode,
        )
        for trainer_class in (GRPOTrainer, LeanGRPOTrainer)
    ]  # fmt: skip
    (stock, stock_log, _), (lean, log, trainer) = found
    assert largest_difference(stock, lean) < 1e-5 and trainer.kernel is not None
    for key in ("loss", "sampling/sampling_logp_difference/mean", "sampling/importance_sampling_ratio/max"):
        assert log[0][key] == pytest.approx(stock_log[0][key], rel=1e-4)
    plain, _, _ = trained(LeanGRPOTrainer, tiny_model, tmp_path)
    assert largest_difference(plain, lean) > 1e-2  # the correction takes part


@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_a_group_that_is_not_divided_has_stock_gradients(tiny_model, tmp_path, monkeypatch, beta):
    """Its pack is larger than others, which takes a prompt that would be costly to compute again."""
    monkeypatch.setattr(attention, "kernel", lambda *given: attention.Kernel("sdpa", 40))
    options = {"beta": beta, "lengths": 10, "per_device_train_batch_size": 4}
    stock, _, _ = trained(GRPOTrainer, tiny_model, tmp_path, **options)
    lean, _, trainer = trained(LeanGRPOTrainer, tiny_model, tmp_path, **options)
    sizes = [packing.cost([trainer._plan.laid_out[row] for row in rows])
             for turn in trainer._plan.packs_of_micro_batch for rows, _ in turn]  # fmt: skip
    assert max(sizes) > 40 and largest_difference(stock, lean) < 1e-5


@pytest.mark.parametrize("option", [{"top_entropy_quantile": 0.4}, {"entropy_coef": 0.01}], ids=str)
def test_losses_of_a_whole_micro_batch_keep_it_whole(tiny_model, tmp_path, option):
    compare(tiny_model, tmp_path, differing=(), **option)


def test_with_a_reference_model_all_metrics_are_stocks(tiny_model, tmp_path):
    compare(tiny_model, tmp_path, differing=(), beta=0.1, loss_type="dr_grpo")


@pytest.mark.parametrize("lengths", [1, LENGTH])
def test_completions_of_one_token_and_of_the_limit(tiny_model, tmp_path, lengths):
    compare(tiny_model, tmp_path, lengths=lengths)


# --- Adapters


def lora(**options):
    options = {"target_modules": ["q_proj", "down_proj"], "init_lora_weights": False, **options}
    return LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, **options)


ADAPTERS = {
    "lora": lora(),
    "dora": lora(use_dora=True),
    "modules_to_save": lora(modules_to_save=["lm_head"]),
    "ia3": IA3Config(
        target_modules=["q_proj", "down_proj"], feedforward_modules=["down_proj"], init_ia3_weights=False
    ),
}


@pytest.mark.parametrize("name", ADAPTERS)
@pytest.mark.parametrize("beta", [0.0, 0.1])
def test_adapters_have_stock_gradients(tiny_model, tmp_path, name, beta):
    """With beta the reference is the model without its adapter."""
    torch.manual_seed(0)
    compare(tiny_model, tmp_path, peft=ADAPTERS[name], beta=beta, seed=7)


# --- Architectures


ARCHITECTURES = {  # a model type: its sizes, and whether it is computed in packs
    "gpt2": ({"n_embd": 32, "n_layer": 2, "n_head": 4}, True),  # learned positions
    "qwen3": (SIZES, True),
    "bloom": ({"hidden_size": 32, "n_layer": 2, "n_head": 4}, False),  # ALiBi, which counts from the mask
    "gemma2": ({**SIZES, "sliding_window": 8}, False),  # caps its scores, which sdpa cannot
    "mistral": ({**SIZES, "sliding_window": 8}, True),  # shorter than the prompts, in all layers
    "gemma3_text": ({**SIZES, "sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}, True),
}


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architectures_have_stock_gradients(tiny_model, tmp_path, name):
    """Without padding on the left: where positions are learned, stock counts it (test_trial.py)."""
    sizes, packed = ARCHITECTURES[name]

    def build():
        config = AutoConfig.for_model(name, vocab_size=512, pad_token_id=0, bos_token_id=1, eos_token_id=2, **sizes)
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(0.05 * torch.randn_like(weight))
        model.tokenizer_of = tiny_model
        return model

    options = {"prompts": PROMPTS[::4], "disable_dropout": True}
    stock, _, _ = trained(GRPOTrainer, build(), tmp_path, **options)
    lean, _, trainer = trained(LeanGRPOTrainer, build(), tmp_path, **options)
    assert (trainer.kernel is not None) is packed
    assert largest_difference(stock, lean) < 1e-5
