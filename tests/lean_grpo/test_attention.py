"""lean_grpo/attention.py: packs give the values and the gradients of rows alone, whatever computes the attention.

The kernels themselves need a GPU: tests/gpu.
"""

import sys
from types import ModuleType

import pytest
import torch
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM
from trl.trainer.utils import add_fused_lm_head

from lean_grpo import attention, packing
from lean_grpo.attention import Kernel

ROWS = [
    ((11, 12, 13, 14), (21, 22, 23)),
    ((11, 12, 13, 14), (31,)),
    ((41, 42), (51, 52, 53, 54, 55)),
    ((61,), (71, 72)),
    ((11, 12, 13, 14), ()),
]
WIDTH, CPU, CUDA = 5, torch.device("cpu"), torch.device("cuda")
BF16, FLOAT64 = torch.bfloat16, torch.float64


def flash_attention(query, key, value, ends_q, ends_k, longest_q, longest_k, scaling, before):
    """The values of FlashAttention 2 over segments, in any number format, and the demands of its kernels."""
    assert query.dtype == key.dtype == value.dtype and key.shape == value.shape
    for ends, longest, total in ((ends_q, longest_q, len(query)), (ends_k, longest_k, len(key))):
        assert ends.dtype == torch.int32 and ends.is_contiguous() and longest > 0
        assert ends[0] == 0 and ends[-1] == total and ends.diff().max() <= longest
    key, value = (tensor.repeat_interleave(query.shape[1] // key.shape[1], 1) for tensor in (key, value))
    queries = query.split(ends_q.diff().tolist())
    keys, values = (tensor.split(ends_k.diff().tolist()) for tensor in (key, value))
    outputs = []
    for q, k, v in zip(queries, keys, values, strict=True):
        scores = torch.einsum("qhd,khd->hqk", q, k) * (scaling or q.shape[-1] ** -0.5)
        seen = torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q))  # aligned to the bottom right
        if before >= 0:
            seen.triu_(len(k) - len(q) - before)
        outputs.append(torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, -torch.inf).softmax(-1), v))
    return torch.cat(outputs)


@pytest.fixture(autouse=True)
def registered():
    attention.register()


SDPA, FLASH = Kernel("sdpa", 2048), Kernel("FlashAttention 2", 8192, flash_attention)


def make_model(dtype=torch.float32, key_heads=2, **options):
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": key_heads}
    sizes |= {"vocab_size": 512, "num_hidden_layers": 2, "initializer_range": 0.3, **options}
    model = Qwen2ForCausalLM(Qwen2Config(**sizes))
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    return model.to(dtype).eval()


def one_by_one(model):
    """(log-probabilities, entropies) of each row computed alone from the logits, both (rows, WIDTH)."""
    result = torch.zeros(2, len(ROWS), WIDTH, dtype=model.dtype)
    for number, (prompt, completion) in enumerate(ROWS):
        if completion:
            logits = model(torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
            chosen = logits.gather(1, torch.tensor(completion)[:, None])[:, 0]
            entropies = -(logits.exp() * logits).sum(-1)
            result[:, number, : len(completion)] = torch.stack([chosen, entropies])
    return result


def scores(model, kernel, pack_tokens=100):
    packs = packing.make_packs(ROWS, pack_tokens)
    return torch.stack(attention.score(model, kernel, ROWS, packs, WIDTH, CPU))


def gradients(model, values):
    model.zero_grad()
    (values * torch.linspace(1, 2, values.numel()).view(values.shape)).sum().backward()
    return [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]


@pytest.mark.parametrize("kernel", [SDPA, FLASH], ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("pack_tokens", [4, 12, 100])
@pytest.mark.parametrize("window", [None, 1, 3, 5])
def test_packs_give_what_rows_give_alone(kernel, pack_tokens, window):
    """The second layer has a window: shorter than prompts and completions, or only than both together."""
    model = make_model(use_sliding_window=bool(window), sliding_window=window, max_window_layers=1)
    expected, found = one_by_one(model), scores(model, kernel, pack_tokens)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    for one, other in zip(gradients(model, found), gradients(model, expected), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kernel", [SDPA, FLASH], ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_mask_is_made_once_and_its_absence_changes_no_bit(kernel, checkpointing, monkeypatch):
    model = make_model().train()
    if checkpointing:
        model.gradient_checkpointing_enable()
    with_mask = scores(model, kernel)
    expected = gradients(model, with_mask)
    monkeypatch.setattr(packing, "visible", lambda pack: pytest.fail("a mask that nothing reads"))
    without = scores(model, kernel)
    assert torch.equal(without, with_mask)
    assert all(map(torch.equal, gradients(model, without), expected))


@pytest.mark.parametrize("layers", [1, 2])
def test_layers_that_take_no_pack_get_their_mask(layers):
    """Of a model that drops what it does not know, in one of its layers or in all."""
    model = make_model()
    for layer in model.model.layers[:layers]:
        forward = layer.self_attn.forward
        layer.self_attn.forward = lambda *args, forward=forward, pack=None, **kwargs: forward(*args, **kwargs)
    for _ in range(2):
        torch.testing.assert_close(scores(model, SDPA), one_by_one(model), rtol=1e-5, atol=1e-5)


FAMILIES = (
    "gpt2 llama mistral qwen3 gemma gemma3_text phi3 olmo2 smollm3 granite cohere starcoder2 gpt_neox opt stablelm"
)


@pytest.mark.parametrize("family", FAMILIES.split())
def test_the_models_code_takes_a_pack_without_a_mask(family):
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, vocab_size=512, pad_token_id=0, attn_implementation="sdpa", **sizes)
    if family != "gpt2":
        config.num_key_value_heads, config.head_dim = 4, 8
    model = AutoModelForCausalLM.from_config(config).eval()
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    first, second = scores(model, SDPA), scores(model, SDPA)
    assert torch.equal(first, second)
    assert (model in attention._WITHOUT_MASK) is (family != "stablelm")  # whose layers drop what they do not know
    torch.testing.assert_close(second[0], one_by_one(model)[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("key_heads", [1, 2, 4])
def test_both_ways_have_the_gradients_of_a_block_mask(key_heads):
    """To 1e-12 in float64: segments one by one, and keys that are gathered."""
    model, pack = make_model(FLOAT64, key_heads).model, packing.lay_out(ROWS, [0, 1, 2, 3], WIDTH)
    scores(make_model(), SDPA)  # registers the attention of packs
    segments = attention.Segments(pack.sizes, pack.parents)
    gathered = attention.Segments(pack.sizes, pack.parents, packing.keys(pack), flash_attention)
    results = []
    for given in ({}, {"pack": segments}, {"pack": gathered}):
        mask = packing.visible(pack)[None, None]
        hidden = model(pack.input_ids, mask, pack.position_ids, **given).last_hidden_state
        results.append([hidden, *gradients(model, hidden)])
    for one, *others in zip(*results, strict=True):
        for other in others:
            torch.testing.assert_close(other, one, rtol=1e-12, atol=1e-12)


def test_under_autocast_all_of_it_is_computed_in_16_bits():
    """Rotary positions leave float32 queries and keys, and 16-bit values, where weights are float32."""
    seen = []

    def attend(query, *others, **options):
        seen.append(query.dtype)
        return flash_attention(query, *others, **options)

    model = make_model()
    with torch.autocast("cpu", BF16):
        found = scores(model, Kernel("FlashAttention 2", 8192, attend))
    assert seen == [BF16] * model.config.num_hidden_layers
    torch.testing.assert_close(found[0], one_by_one(model)[0], rtol=0.05, atol=0.2)


def test_nothing_to_score_is_a_zero_that_all_weights_are_part_of():
    model = make_model()
    log_probs, entropies = attention.score(model, SDPA, ROWS, [[]], WIDTH, CPU)
    assert not log_probs.any() and not entropies.any() and log_probs.shape == (len(ROWS), WIDTH)
    found = gradients(model, log_probs)
    assert len(found) == len(list(model.parameters())) and not any(gradient.any() for gradient in found)


@pytest.mark.parametrize("name", ["softcap", "position_bias", "s_aux"])
def test_what_packs_do_not_compute_is_refused(name):
    """Not ignored: Gemma 2 caps its scores, GPT-OSS has sinks."""
    model, pack = make_model().model, packing.lay_out(ROWS, [0, 1], WIDTH)
    segments = attention.Segments(pack.sizes, pack.parents)
    with pytest.raises(ValueError, match=name):
        model(pack.input_ids, packing.visible(pack)[None, None], pack.position_ids, pack=segments, **{name: 30.0})


def test_sdpa_without_a_pack_is_transformers_own():
    model, ids = make_model(), torch.tensor([[5, 6, 7, 8]])
    scores(model, SDPA)  # registers ours
    ours = model(ids).logits
    AttentionInterface.register("sdpa", attention.sdpa_attention_forward)
    assert torch.equal(model(ids).logits, ours)


# --- The choice


@pytest.mark.parametrize(
    ("facts", "fits"),
    [
        ({}, True),
        ({"device": CPU}, False),
        ({"dtype": torch.float32}, False),
        ({"capability": (7, 5)}, False),
        ({"head_dim": 288}, False),
        ({"attention_dropout": 0.1}, False),
    ],
    ids=str,
)
def test_flash_attention_2_takes_16_bits_heads_of_256_and_ampere(facts, fits, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: facts.get("capability", (9, 0)))
    own = {key: value for key, value in facts.items() if key in ("head_dim", "attention_dropout")}
    config = Qwen2Config(**{"head_dim": 128, **own})
    found = attention.kernel("sdpa", facts.get("device", CUDA), facts.get("dtype", BF16), config)
    assert (found.name, found.pack_tokens) == (("FlashAttention 2 (torch's own)", 8192) if fits else ("sdpa", 2048))


@pytest.mark.parametrize("asked", ["flash_attention_2", "sdpa"])
def test_the_package_is_used_where_it_is_asked_for_and_installed(asked, monkeypatch):
    package = ModuleType("flash_attn")
    package.flash_attn_varlen_func = lambda *parts, **options: (*parts, options)
    monkeypatch.setitem(sys.modules, "flash_attn", package)
    monkeypatch.setattr(attention, "fits", lambda *_: True)
    found = attention.kernel(asked, CUDA, BF16, None)
    assert ("the package flash-attn" in found.name) is (asked == "flash_attention_2")
    if asked == "flash_attention_2":
        given = {"softmax_scale": 0.5, "causal": True, "window_size": (7, 0)}
        assert found.attend(*"qkv", scaling=0.5, before=7) == (*"qkv", given)


@pytest.mark.parametrize("before", [-1, 7])
def test_torchs_own_kernel_takes_our_arguments(before, monkeypatch):
    """On meta tensors: its signature differs between versions, and its kernel needs a GPU."""
    monkeypatch.setattr(attention, "fits", lambda *_: True)
    keys = packing.keys(packing.lay_out(ROWS, [0, 1, 2, 3], WIDTH))
    query, key = (torch.randn(len(keys.index), heads, 8, device="meta", dtype=BF16) for heads in (4, 2))
    for tensor in (query, key):
        tensor.requires_grad_()
    ends = keys.ends_q.to("meta"), keys.ends_k.to("meta"), keys.longest_q, keys.longest_k
    output = attention.kernel("sdpa", CUDA, BF16, None).attend(query, key, key, *ends, scaling=0.3, before=before)
    output.sum().backward()
    assert output.shape == query.shape and key.grad.shape == key.shape
