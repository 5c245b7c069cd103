"""What cannot be computed in packs is trained by TRL's own step, which one line says at construction."""

import pytest
import torch
from datasets import Dataset
from helpers_trainer import largest_difference, no_group_lives, rewards_by_sum, trained
from peft import PromptTuningConfig
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    FalconConfig,
    FalconForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)
from trl import GRPOConfig, GRPOTrainer

from grpo.training import attention, packable
from grpo.training.trainer import LeanGRPOTrainer

SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 1}


def deaf():
    """A Qwen2 in bfloat16 whose attention sees everything before it, whatever its mask says."""
    torch.manual_seed(0)
    config = Qwen2Config(vocab_size=512, num_hidden_layers=1, **SMALL)
    model = Qwen2ForCausalLM(config).to(torch.bfloat16)
    layer = model.model.layers[0].self_attn
    forward = layer.forward

    def alone(*args, attention_mask=None, pack=None, **kwargs):
        return forward(*args, attention_mask=None, **kwargs)

    layer.forward = alone
    return model


def falcon():
    """Its ALiBi biases are made of a two-dimensional mask."""
    torch.manual_seed(0)
    return FalconForCausalLM(
        FalconConfig(vocab_size=512, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, alibi=True)
    )


def growing_rotation():
    torch.manual_seed(0)
    rotation = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    return LlamaForCausalLM(LlamaConfig(vocab_size=512, num_hidden_layers=1, rope_parameters=rotation, **SMALL))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (deaf, "packs would change its log-probabilities"),
        (falcon, "refuses packs ("),
        (growing_rotation, "rotary frequencies"),
    ],
    ids=["deaf in bfloat16", "refuses a block mask", "rotation by the longest row"],
)
def test_models_that_cannot_take_packs_fall_back_in_one_line(tiny_model, tmp_path, capsys, make, reason):
    model = make()
    model.tokenizer_of = tiny_model
    gradients, _, trainer = trained(LeanGRPOTrainer, model, tmp_path)
    lines = [line for line in capsys.readouterr().out.splitlines() if "note:" in line or "raining step" in line]
    lines = [line for line in lines if "samples the rollouts" not in line]
    assert len(lines) == 1 and reason in lines[0] and trainer.kernel is None
    model = make()
    model.tokenizer_of = tiny_model
    stock, _, _ = trained(GRPOTrainer, model, tmp_path)
    assert largest_difference(stock, gradients) < 1e-5


def test_learned_positions_begin_at_each_row_unlike_stocks(tiny_model, tmp_path):
    """GPT-2 was sampled with positions from 0; stock TRL trains it on positions that begin after the padding."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 512, "n_embd": 32, "n_layer": 1, "n_head": 2, "initializer_range": 0.3}
    model = GPT2LMHeadModel(GPT2Config(**sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
    model.tokenizer_of = tiny_model
    _, _, trainer = trained(LeanGRPOTrainer, model, tmp_path, learning_rate=0.0, reward=rewards_by_sum)
    plan = trainer._plan
    alone = trainer.model.eval()
    for row in range(len(plan.computed)):
        prompt = plan.rows["prompt_ids"][row][plan.rows["prompt_mask"][row].bool()]
        completion = plan.rows["completion_ids"][row][plan.rows["completion_mask"][row].bool()]
        logits = alone(torch.cat([prompt, completion])[None]).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        expected = logits.gather(1, completion[:, None])[:, 0]
        torch.testing.assert_close(plan.log_probs[row, : len(completion)], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"peft": PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)}, "depends on where a row begins"),
        ({"torch_compile": True}, "torch_compile"),
        ({"own": {"rollout_func": lambda prompts, trainer: {}}}, "rollout_func"),
    ],
    ids=["prompt learning", "torch_compile", "rollout_func"],
)
def test_settings_without_packs_are_named_at_construction(tiny_model, tmp_path, capsys, settings, reason):
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype="float32")
    peft, own = settings.get("peft"), settings.get("own", {})
    settings = {key: value for key, value in settings.items() if key not in ("peft", "own")}
    arguments = {"use_cpu": True, "bf16": False, "report_to": "none", "num_generations": 2, **settings}
    arguments |= {"per_device_train_batch_size": 2, "output_dir": str(tmp_path)}
    trainer = LeanGRPOTrainer(
        model=model,
        reward_funcs=no_group_lives,
        args=GRPOConfig(**arguments),
        train_dataset=Dataset.from_list([{"prompt": "one"}]),
        processing_class=AutoTokenizer.from_pretrained(tiny_model),
        peft_config=peft,
        **own,
    )
    assert trainer.kernel is None
    assert capsys.readouterr().out.count(reason) == 1


def spoiled(kind):
    """sdpa's part of a pack, with an error of one kind."""
    right = attention._one_by_one

    def broken(*args):
        raise RuntimeError("no kernel image is available")

    def wrong(*args):
        return right(*args) * 1.1

    def wrong_in_the_backward(*args):
        output = right(*args)
        return output.detach() + 1.1 * (output - output.detach())

    def nothing(*args):
        return right(*args) * float("nan")

    def nothing_in_the_backward(*args):
        output = right(*args)
        output.register_hook(lambda gradient: gradient * float("nan")) if output.requires_grad else None
        return output

    return {
        "broken": broken, "wrong": wrong, "wrong in the backward": wrong_in_the_backward, "NaN": nothing,
        "NaN in the backward": nothing_in_the_backward,
    }[kind]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("broken", "refuses packs (RuntimeError: no kernel image is available)"),
        ("wrong", "packs would change its log-probabilities"),
        ("wrong in the backward", "packs would change its gradient by"),
        ("NaN", "packs would change its log-probabilities by nan"),
        ("NaN in the backward", "packs would change its gradient by nan"),
    ],
)
def test_attention_that_fails_its_trial_becomes_trls_own_step(tiny_model, tmp_path, capsys, monkeypatch, kind, reason):
    monkeypatch.setattr(attention, "_one_by_one", spoiled(kind))

    def model():
        torch.manual_seed(0)
        sizes = {**SMALL, "num_attention_heads": 4}
        made = Qwen2ForCausalLM(Qwen2Config(vocab_size=512, num_hidden_layers=2, initializer_range=0.3, **sizes))
        made.tokenizer_of = tiny_model
        return made

    found, _, trainer = trained(LeanGRPOTrainer, model(), tmp_path, reward=rewards_by_sum)
    assert trainer.kernel is None and capsys.readouterr().out.count(reason) == 1
    stock, _, _ = trained(GRPOTrainer, model(), tmp_path, reward=rewards_by_sum)
    assert largest_difference(stock, found) < 1e-5


def test_the_trial_leaves_no_gradient_and_no_random_draw(tiny_model, tmp_path):
    trainer = trained(LeanGRPOTrainer, tiny_model, tmp_path, max_steps=1)[2]
    trainer.model.zero_grad()
    state = torch.get_rng_state()
    assert packable.misfit(trainer) is None
    assert torch.equal(torch.get_rng_state(), state) and trainer.model.training
    assert all(weight.grad is None for weight in trainer.model.parameters())
