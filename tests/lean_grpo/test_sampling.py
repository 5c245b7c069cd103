"""lean_grpo/sampling.py: what is sampled is what `model.generate` would, and what vLLM is given changes no weight.

In training: test_rollouts.py; whatever the batch does: tests/policy/test_answering.py.
"""

import contextlib
from types import SimpleNamespace

import pytest
import torch
from helpers_runs import DEMO
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, MambaConfig, MambaForCausalLM, PreTrainedConfig

from lean_grpo import sampling
from lean_grpo.sampling import complete, keeping_frozen_weights, reason_against

OWN_CACHE = "the model has states, chunked attention or another cache of its own"
SIZES = {
    "vocab_size": 512,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_hidden_layers": 1,
}


def test_models_with_states_are_left_to_generate():
    model = MambaForCausalLM(MambaConfig(vocab_size=512, hidden_size=16, num_hidden_layers=1, state_size=4))
    assert reason_against(model) == OWN_CACHE


def test_windows_that_are_not_in_the_masks_are_left_to_generate():
    """Training would attend to all positions, and `generate` to those of the window."""
    config = AutoConfig.for_model("llama", **SIZES, sliding_window=8)
    assert reason_against(AutoModelForCausalLM.from_config(config)) == OWN_CACHE


UNLIKE = {
    "chunks": ("llama", {"attention_chunk_size": 8}),
    "no window": ("qwen2", {"layer_types": ["sliding_attention"]}),  # transformers raises when it makes a cache
}
if hasattr(PreTrainedConfig, "per_layer_config"):  # from transformers 5.24 on
    UNLIKE["own windows"] = ("mistral", {"per_layer_config": {0: {"sliding_window": 4}}})


@pytest.mark.parametrize(("kind", "options"), UNLIKE.values(), ids=UNLIKE)
def test_configurations_with_other_caches_are_left_to_generate(kind, options):
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SIZES, **options))
    assert reason_against(model) == OWN_CACHE


def a_rollout(model, each_token=lambda rows: None):
    with sampling.sampling_mode(model), torch.autocast("cpu", torch.bfloat16):
        return complete(
            model, SimpleNamespace(pad_token_id=0), 4 * [[5, 6, 7], [8, 9]], [2], 12, each_token=each_token
        )


@pytest.mark.parametrize("end", ["done", "an exception", "a signal"])
@pytest.mark.parametrize("adapter", [False, True])
def test_float32_weights_are_lent_and_come_back(adapter, end):
    """In autocast's 16 bits, cast once; afterwards the parameters are the same objects, storages and bytes."""
    torch.manual_seed(0)
    base = model = AutoModelForCausalLM.from_pretrained(DEMO / "model", dtype=torch.float32)
    if adapter:
        model = get_peft_model(base, LoraConfig(target_modules=["q_proj", "up_proj"], init_lora_weights=False))
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained)
    model(input_ids=torch.tensor([[5, 6, 7]])).logits.sum().backward()
    optimizer.step()  # which makes its state

    def everything():
        of_optimizer = [optimizer.state[weight]["exp_avg_sq"] for weight in trained]
        tensors = [*model.parameters(), *(weight.grad for weight in trained), *of_optimizer]
        return [(id(tensor), tensor.data_ptr(), tensor.detach().view(torch.int32).clone()) for tensor in tensors]

    before, formats = everything(), set()

    def each_token(rows):
        linear = [module for module in model.modules() if type(module) is torch.nn.Linear]
        formats.update(layer.weight.dtype for layer in linear)
        formats.add(base.get_input_embeddings().weight.dtype)  # tied to the head, and no linear layer
        if len(formats) == 2 and end != "done":
            raise KeyboardInterrupt if end == "a signal" else RuntimeError

    with contextlib.nullcontext() if end == "done" else pytest.raises((KeyboardInterrupt, RuntimeError)):
        a_rollout(model, each_token)
    assert formats == {torch.bfloat16, torch.float32}
    for (*old, value), (*new, other) in zip(before, everything(), strict=True):
        assert old == new and torch.equal(value, other)


def test_prompts_with_virtual_tokens_are_left_to_generate():
    model = AutoModelForCausalLM.from_pretrained(DEMO / "model")
    adapted = get_peft_model(model, PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM"))
    assert reason_against(adapted) == "the adapter adds tokens to the prompt"


def test_weights_that_trl_merges_an_adapter_into_stay_bitwise():
    """As it does for vLLM: in 16 bits a sum cannot be taken back."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(DEMO / "model", dtype=torch.bfloat16)
    model = get_peft_model(model, LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=False))
    layer = model.get_base_model().model.layers[0].self_attn.q_proj.base_layer
    before = layer.weight.clone()

    def sync():
        model.merge_adapter()
        assert not torch.equal(layer.weight, before)
        model.unmerge_adapter()
        assert not torch.equal(layer.weight, before)

    keeping_frozen_weights(sync, model)()
    assert torch.equal(layer.weight, before)
