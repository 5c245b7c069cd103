"""lean_grpo/trial.py: what packs do not fit takes TRL's own step, which one line says at the start."""

from pathlib import Path

import pytest
import torch
import trl
from accelerate.utils import DistributedType
from helpers_trainer import PROMPTS, largest_difference, make_trainer, rewards_by_sum, trained
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
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)
from trl import GRPOTrainer

from lean_grpo import LeanGRPOTrainer, attention, trial

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}


def deaf():
    """A Qwen2 in bfloat16 whose attention sees everything before it, whatever its mask says."""
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=512, num_hidden_layers=1, **SIZES)).to(torch.bfloat16)
    layer = model.model.layers[0].self_attn
    forward = layer.forward

    def alone(*args, attention_mask=None, pack=None, **kwargs):
        return forward(*args, attention_mask=None, **kwargs)

    layer.forward = alone
    return model


def falcon():
    """Its ALiBi biases are made of a two-dimensional mask."""
    return FalconForCausalLM(
        FalconConfig(vocab_size=512, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, alibi=True)
    )


def growing_rotation():
    rotation = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    return LlamaForCausalLM(LlamaConfig(vocab_size=512, num_hidden_layers=1, rope_parameters=rotation, **SIZES))


def eager():
    config = Qwen2Config(vocab_size=512, num_hidden_layers=1, attn_implementation="eager", **SIZES)
    return Qwen2ForCausalLM(config)


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (deaf, "packs would change its log-probabilities"),
        (falcon, "refuses packs ("),
        (growing_rotation, "rotary frequencies"),
        (eager, "attention is eager"),
    ],
)
def test_models_that_packs_do_not_fit_take_trls_own_step(tiny_model, tmp_path, capsys, build, reason):
    def made():
        torch.manual_seed(0)
        model = build()
        model.tokenizer_of = tiny_model
        return model

    gradients, _, trainer = trained(LeanGRPOTrainer, made(), tmp_path)
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "raining step" in line)
    assert line.startswith("note: the training step is TRL's own") and reason in line and trainer.kernel is None
    stock, _, _ = trained(GRPOTrainer, made(), tmp_path)
    assert largest_difference(stock, gradients) < 1e-5


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"peft": PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)}, "depends on where a row begins"),
        ({"torch_compile": True}, "torch_compile"),
        ({"own": {"rollout_func": lambda prompts, trainer: {}}}, "rollout_func"),
    ],
    ids=["prompt learning", "torch_compile", "rollout_func"],
)
def test_settings_without_packs_are_named_at_the_start(tiny_model, tmp_path, capsys, options, reason):
    assert make_trainer(LeanGRPOTrainer, tiny_model, tmp_path, **options).kernel is None
    assert capsys.readouterr().out.count(reason) == 1


def plus(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: one.
        b: another.
    """
    return a + b


class Room:
    """An environment without tools."""

    def reset(self, **kwargs):
        return "You are in a room."

    def get_reward(self):
        return 1.0


def roll_out(prompts, trainer):
    """By `generate`, as a user might; the text has no prefill before it."""
    ids = trainer.processing_class([prompt[-1]["content"] for prompt in prompts])["input_ids"]
    one = [trainer.model.generate(torch.tensor([row]), max_new_tokens=3)[0, len(row) :].tolist() for row in ids]
    return {"prompt_ids": ids, "completion_ids": one, "logprobs": None}


OTHERS = {
    "tools": {"tools": [plus]},
    "environment": {"environment_factory": Room},
    "rollout_func": {"rollout_func": roll_out},
}


@pytest.mark.parametrize("own", OTHERS.values(), ids=OTHERS)
def test_what_others_write_parts_of_is_trls_own(tiny_model, tmp_path, monkeypatch, capsys, own):
    """Sampling, too, whose completions they may continue."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja").read_text("utf-8")
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    model = AutoModelForCausalLM.from_pretrained(tiny_model)
    model.tokenizer_of = tmp_path / "tokenizer"
    generate, asked = model.generate, []
    monkeypatch.setattr(model, "generate", lambda *args, **kwargs: asked.append(args) or generate(*args, **kwargs))
    prompts = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
    trainer = make_trainer(
        LeanGRPOTrainer, model, tmp_path, own=own, prompts=prompts, lengths="sampled", reward=rewards_by_sum
    )
    assert trainer.kernel is None and "tools, environments or a rollout_func are used" in capsys.readouterr().out
    trainer.train()
    assert asked


def raises(scores):
    raise RuntimeError("no kernel image is available")


def is_wrong_in_the_backward(scores):
    return scores.detach() + 1.1 * (scores - scores.detach())


def has_no_number(scores):
    return scores * float("nan")


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (raises, "refuses packs (RuntimeError: no kernel image is available)"),
        (is_wrong_in_the_backward, "packs would change its gradient by"),
        (has_no_number, "packs would change its log-probabilities by nan"),
    ],
)
def test_attention_that_fails_its_trial_is_not_used(tiny_model, tmp_path, capsys, monkeypatch, spoil, reason):
    real = attention.score

    def spoiled(*args):
        log_probs, entropies = real(*args)
        return spoil(log_probs), entropies

    monkeypatch.setattr(attention, "score", spoiled)
    assert make_trainer(LeanGRPOTrainer, tiny_model, tmp_path).kernel is None
    assert capsys.readouterr().out.count(reason) == 1


def deep(**more):
    """Without attention's and MLP's parts a zero embedding stays zero, whose norm has a gradient of 1 / sqrt(eps)."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=512, num_hidden_layers=1, rms_norm_eps=1e-30, initializer_range=0.3, **SIZES, **more
    )
    model = Qwen2ForCausalLM(config)
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.data.zero_()
        layer.mlp.down_proj.weight.data.zero_()
    return model


def test_a_padding_token_is_no_part_of_the_trial(tiny_model, tmp_path, capsys):
    model = deep(pad_token_id=0)
    assert not model.model.embed_tokens.weight[0].any()
    model.tokenizer_of = tiny_model
    assert make_trainer(LeanGRPOTrainer, model, tmp_path).kernel is not None, capsys.readouterr().out


def test_tokens_that_overflow_are_replaced_by_others(tiny_model, tmp_path, capsys):
    model = deep()
    with torch.no_grad():
        model.model.embed_tokens.weight[0] = 0
    model.tokenizer_of = tiny_model
    assert make_trainer(LeanGRPOTrainer, model, tmp_path).kernel is not None, capsys.readouterr().out
    with torch.no_grad():
        model.model.embed_tokens.weight.zero_()
    assert make_trainer(LeanGRPOTrainer, model, tmp_path).kernel is None
    assert "no finite log-probabilities or gradient" in capsys.readouterr().out


def test_the_trial_leaves_no_gradient_and_no_random_draw(tiny_model, tmp_path):
    trainer = make_trainer(LeanGRPOTrainer, tiny_model, tmp_path)
    trainer.model.train()
    state = torch.get_rng_state()
    assert trial.misfit(trainer) is None
    assert torch.equal(torch.get_rng_state(), state) and trainer.model.training
    assert all(weight.grad is None for weight in trainer.model.parameters())


def test_learned_positions_begin_at_each_row_unlike_stocks(tiny_model, tmp_path):
    """As GPT-2 was sampled. Stock's rows begin after their padding, so it is asked about each prompt alone."""

    def gradients(trainer_class, *prompts):
        torch.manual_seed(0)
        sizes = {"vocab_size": 512, "n_embd": 32, "n_layer": 1, "n_head": 2, "initializer_range": 0.3}
        model = GPT2LMHeadModel(GPT2Config(**sizes, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))
        model.tokenizer_of = tiny_model
        options = {"num_generations": 8, "gradient_accumulation_steps": len(prompts), "reward": rewards_by_sum}
        return trained(trainer_class, model, tmp_path, prompts=prompts, loss_type="dr_grpo", **options)[0][0]

    short, long = "Hi", "What is 3 + 4, and what is 5 + 6?"
    one, other = (gradients(GRPOTrainer, prompt) for prompt in (short, long))
    mean = {name: (one[name] + other[name]) / 2 for name in one}
    assert largest_difference([mean], [gradients(LeanGRPOTrainer, short, long)]) < 1e-5
    assert largest_difference([mean], [gradients(GRPOTrainer, short, long)]) > 1e-3


def mistral(tokenizer):
    model = MistralForCausalLM(MistralConfig(vocab_size=512, num_hidden_layers=1, sliding_window=4096, **SIZES))
    model.tokenizer_of = tokenizer
    return model


def test_packs_without_a_models_window_are_found_out(tiny_model, tmp_path, monkeypatch, capsys):
    """Though no row of the trial is as long as the window."""
    model = mistral(tiny_model)
    assert make_trainer(LeanGRPOTrainer, model, tmp_path).kernel is not None
    monkeypatch.setattr(attention, "windows", lambda config: [None])
    assert make_trainer(LeanGRPOTrainer, model, tmp_path).kernel is None
    assert "packs would change its log-probabilities" in capsys.readouterr().out
    assert model.config.sliding_window == 4096


@pytest.mark.parametrize("distributed", ["NO", "FSDP", "DEEPSPEED"])
def test_windows_under_a_block_mask_take_trls_own_step(tiny_model, tmp_path, distributed, monkeypatch):
    """On a GPU without FlashAttention 2, whose block mask has no windows; sharded weights are not tried at all."""
    trainer = make_trainer(LeanGRPOTrainer, mistral(tiny_model), tmp_path)
    monkeypatch.setattr(trainer, "kernel", attention.Kernel("sdpa", 2048, by_segment=False))
    monkeypatch.setattr(trainer.accelerator.state, "distributed_type", getattr(DistributedType, distributed))
    assert trial.misfit(trainer) == "on a GPU sliding windows in packs need FlashAttention 2"
