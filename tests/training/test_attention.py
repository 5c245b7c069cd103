"""Packs through models give the log-probabilities of the padded batch, whatever computes the attention."""

import shutil
from types import SimpleNamespace

import pytest
import torch
from transformers import AttentionInterface, AutoModelForCausalLM
from trl.trainer.utils import add_fused_lm_head

from grpo.training import attention, packing

ROWS = [
    ((11, 12, 13, 14), (21, 22, 23)),
    ((11, 12, 13, 14), (31,)),
    ((41, 42), (51, 52, 53, 54, 55)),
    ((61,), (71, 72)),
    ((11, 12, 13, 14), ()),
]
WIDTH, CPU = 5, torch.device("cpu")


def loaded(directory, implementation="sdpa"):
    model = AutoModelForCausalLM.from_pretrained(directory, attn_implementation=implementation, dtype="float32")
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    return model.eval()


def one_by_one(model):
    """(log-probabilities, entropies) of each row computed alone from the logits, both (rows, WIDTH)."""
    result = torch.zeros(2, len(ROWS), WIDTH)
    for number, (prompt, completion) in enumerate(ROWS):
        if completion:
            logits = model(torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
            chosen = logits.gather(1, torch.tensor(completion)[:, None])[:, 0]
            entropies = -(logits.exp() * logits).sum(-1)
            result[:, number, : len(completion)] = torch.stack([chosen, entropies])
    return result


def gradients(model, values):
    model.zero_grad()
    (values * torch.linspace(1, 2, values.numel()).view(values.shape)).sum().backward()
    return [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("budget", [4, 12, 100])
def test_packs_give_what_rows_give_alone(tiny_model, implementation, budget):
    model = loaded(tiny_model, implementation)
    backend = attention.choose(implementation, CPU)
    packs = packing.divide(ROWS, budget)
    expected = one_by_one(model)
    expected_gradients = gradients(model, expected)
    found = torch.stack(attention.score(model, backend, ROWS, packs, WIDTH, CPU))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    for one, other in zip(gradients(model, found), expected_gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_a_block_mask_gives_the_same_as_segments(tiny_model):
    model, packs = loaded(tiny_model), packing.divide(ROWS, 100)
    found = [
        attention.score(model, attention.Backend("", True, arguments, 100), ROWS, packs, WIDTH, CPU)[0]
        for arguments in (attention._block_mask, attention._block_mask_and_spans)
    ]
    attention.choose("sdpa", CPU)
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="FlexAttention compiles its kernel")
def test_flex_attention_gives_what_rows_give_alone(tiny_model):
    """The forward only: FlexAttention has no backward on a CPU."""
    model, expected = loaded(tiny_model, "flex_attention"), one_by_one(loaded(tiny_model))
    backend = attention.choose("flex_attention", CPU)
    with torch.no_grad():
        found = attention.score(model, backend, ROWS, packing.divide(ROWS, 100), WIDTH, CPU)
    torch.testing.assert_close(torch.stack(found), expected, rtol=1e-5, atol=1e-5)


def test_flex_attention_is_told_what_a_block_mask_says(tiny_model):
    pack = packing.lay_out(ROWS, [0, 1, 2, 3], WIDTH)
    mask = attention._flex(pack)["attention_mask"]
    length = pack.input_ids.shape[1]
    places = torch.arange(length)
    zero = torch.tensor(0)
    cells = [[bool(mask.mask_mod(zero, zero, query, key)) for key in places] for query in places]
    assert torch.equal(torch.tensor(cells), packing.visible(pack))
    assert mask.shape == (1, 1, length, length)


def variable_length(module, query, key, value, attention_mask, scaling=None, cu_seq_lens_q=None, **kwargs):
    """What FlashAttention computes from the boundaries that it is given, in plain sdpa."""
    if cu_seq_lens_q is None:
        raise AssertionError("FlashAttention would have treated the pack as one sequence")
    assert attention_mask is None and torch.equal(cu_seq_lens_q, kwargs["cu_seq_lens_k"])
    sizes = cu_seq_lens_q.diff().tolist()
    assert kwargs["max_length_q"] == kwargs["max_length_k"] == max(sizes)
    groups = query.shape[1] // key.shape[1]
    parts = zip(*(tensor.split(sizes, 2) for tensor in (query, key, value)), strict=True)
    outputs = [
        torch.nn.functional.scaled_dot_product_attention(
            q, k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1), is_causal=True, scale=scaling
        )
        for q, k, v in parts
    ]
    return torch.cat(outputs, 2).transpose(1, 2), None


def test_variable_length_attention_is_told_where_each_row_ends(tiny_model):
    """FlashAttention needs a GPU; a stand-in takes the arguments that transformers hands to it."""
    AttentionInterface.register("variable_length_stand_in", variable_length)
    model = loaded(tiny_model)
    expected = one_by_one(model)
    backend = attention.choose("flash_attention_2", torch.device("cuda"))
    assert not backend.shares_prompts
    model.set_attn_implementation("variable_length_stand_in")
    packs = packing.divide(ROWS, 12, share=False)
    found = attention.score(model, backend, ROWS, packs, WIDTH, CPU)
    torch.testing.assert_close(torch.stack(found), expected, rtol=1e-5, atol=1e-5)


def test_nothing_to_score_is_a_zero_that_all_weights_are_part_of(tiny_model):
    model = loaded(tiny_model)
    log_probs, entropies = attention.score(model, attention.choose("sdpa", CPU), ROWS, [[]], WIDTH, CPU)
    assert not log_probs.any() and not entropies.any() and log_probs.shape == (len(ROWS), WIDTH)
    assert all(grad is not None and not grad.any() for grad in gradients(model, log_probs))


def test_sdpa_without_a_pack_is_transformers_own(tiny_model):
    attention.choose("sdpa", CPU)
    model, ids = loaded(tiny_model), torch.tensor([[5, 6, 7, 8]])
    ours = model(ids).logits
    AttentionInterface.register("sdpa", attention.sdpa_attention_forward)
    assert torch.equal(model(ids).logits, ours)


@pytest.mark.parametrize(
    ("implementation", "device", "name"),
    [
        ("sdpa", "cpu", "sdpa, segment by segment"),
        ("sdpa", "cuda", "sdpa with a block mask"),
        ("eager", "cuda", "eager with a block mask"),
        ("flex_attention", "cuda", "FlexAttention"),
        ("flash_attention_3", "cuda", "variable-length FlashAttention, prompts not shared"),
        ("kernels-community/flash-attn2", "cuda", "variable-length FlashAttention, prompts not shared"),
    ],
)
def test_the_backend_follows_what_the_model_runs_with(implementation, device, name):
    assert attention.choose(implementation, torch.device(device)).name == name


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({}, 2048), ({"pack_tokens": 512}, 512), ({"packed": False}, None), ({"use_unsloth": True}, None)],
)
def test_the_budget_is_the_users_or_suits_the_attention(settings, expected):
    script = SimpleNamespace(**{"packed": True, "pack_tokens": None, "use_unsloth": False, **settings})
    assert attention.budget(script, "sdpa", CPU) == expected
    assert attention.budget(script, "my_attention", CPU) is None
