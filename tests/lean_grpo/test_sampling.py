"""lean_grpo/sampling.py: what is sampled is what `model.generate` would, and what vLLM is given changes no weight.

In training: test_rollouts.py; whatever the batch does: tests/policy/test_answering.py.
"""

import torch
from helpers_runs import DEMO
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from transformers import AutoModelForCausalLM, MambaConfig, MambaForCausalLM

from lean_grpo.sampling import keeping_frozen_weights, reason_against


def test_models_with_states_are_left_to_generate():
    model = MambaForCausalLM(MambaConfig(vocab_size=512, hidden_size=16, num_hidden_layers=1, state_size=4))
    assert reason_against(model) == "the model has states, or attends in chunks"


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
