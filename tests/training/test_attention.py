"""Packs through models give the log-probabilities of the padded batch, whatever computes the attention."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from helpers_attention import variable_length
from transformers import AttentionInterface, AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM
from trl.trainer.utils import add_fused_lm_head

from grpo.training import attention, packing
from grpo.training.attention import Kernel

ROWS = [
    ((11, 12, 13, 14), (21, 22, 23)),
    ((11, 12, 13, 14), (31,)),
    ((41, 42), (51, 52, 53, 54, 55)),
    ((61,), (71, 72)),
    ((11, 12, 13, 14), ()),
]
WIDTH, CPU, CUDA = 5, torch.device("cpu"), torch.device("cuda")
BF16 = torch.bfloat16
SDPA = Kernel("sdpa", 2048)


def loaded(directory):
    model = AutoModelForCausalLM.from_pretrained(directory, dtype="float32")
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


@pytest.mark.parametrize("pack_tokens", [4, 12, 100])
def test_packs_give_what_rows_give_alone(tiny_model, pack_tokens):
    model = loaded(tiny_model)
    packs = packing.make_packs(ROWS, pack_tokens)
    expected = one_by_one(model)
    expected_gradients = gradients(model, expected)
    found = torch.stack(attention.score(model, SDPA, ROWS, packs, WIDTH, CPU))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    for one, other in zip(gradients(model, found), expected_gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_a_block_mask_gives_the_same_as_segments(tiny_model):
    """What a GPU without FlashAttention 2 computes."""
    model = loaded(tiny_model)
    found = attention.score(model, SDPA, ROWS, packing.make_packs(ROWS, 100), WIDTH, CPU)[0]
    pack = packing.lay_out(ROWS, packing.make_packs(ROWS, 100)[0], WIDTH)
    output = model(
        input_ids=pack.input_ids,
        attention_mask=packing.visible(pack)[None, None],
        position_ids=pack.position_ids,
        shift_labels=pack.labels,
        fused_lm_head=True,
    )
    scored = output.log_probs[pack.labels != packing.IGNORED]
    torch.testing.assert_close(found.flatten()[pack.cells], scored, rtol=1e-5, atol=1e-5)


def test_nothing_to_score_is_a_zero_that_all_weights_are_part_of(tiny_model):
    model = loaded(tiny_model)
    log_probs, entropies = attention.score(model, SDPA, ROWS, [[]], WIDTH, CPU)
    assert not log_probs.any() and not entropies.any() and log_probs.shape == (len(ROWS), WIDTH)
    assert all(grad is not None and not grad.any() for grad in gradients(model, log_probs))


def test_sdpa_without_a_pack_is_transformers_own(tiny_model):
    model, ids = loaded(tiny_model), torch.tensor([[5, 6, 7, 8]])
    attention.score(model, SDPA, ROWS, [[0]], WIDTH, CPU)  # which registers ours
    ours = model(ids).logits
    AttentionInterface.register("sdpa", attention.sdpa_attention_forward)
    assert torch.equal(model(ids).logits, ours)


# --- FlashAttention 2 ---------------------------------------------------------------------------------------------


@pytest.fixture
def calls(monkeypatch):
    """As on a GPU that has it: the reference replaces torch's kernel; the list counts its calls."""
    found = []

    def counted(*args, **kwargs):
        found.append(args[0].dtype)
        return variable_length(*args, **kwargs)

    monkeypatch.setattr(attention, "varlen_attn", counted)
    monkeypatch.setattr(attention, "fits", lambda *_: True)
    return found


def heads_of_eight(dtype="float32"):
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=512, num_hidden_layers=2, initializer_range=0.3, **sizes))
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    return model.to(getattr(torch, dtype)).eval()


def torchs(asked="sdpa"):
    return attention.kernel(asked, CUDA, BF16, None)


def test_gathered_keys_give_what_segments_give(calls):
    """The whole model in float64: exact to rounding, with prompts of several completions and heads that share keys."""
    model, packs = heads_of_eight("float64"), packing.make_packs(ROWS, 100)
    expected = torch.stack(attention.score(model, SDPA, ROWS, packs, WIDTH, CPU))
    expected_gradients = gradients(model, expected)
    assert not calls
    found = torch.stack(attention.score(model, torchs(), ROWS, packs, WIDTH, CPU))
    assert len(calls) == model.config.num_hidden_layers * len(packs)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)  # the fused head computes in float32
    for one, other in zip(gradients(model, found), expected_gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_a_layers_gradients_are_those_of_a_block_mask(heads, calls):
    torch.manual_seed(0)
    pack = packing.lay_out(ROWS, [0, 1, 2, 3], WIDTH)
    length, results = pack.input_ids.shape[1], []
    for given in (None, attention.Segments(pack.sizes, pack.parents, packing.keys(pack), torchs().attend)):
        torch.manual_seed(0)
        query, key, value = (
            torch.randn(1, count, length, 8, dtype=torch.float64, requires_grad=True) for count in (4, heads, heads)
        )
        module = SimpleNamespace(num_key_value_groups=4 // heads)
        output, _ = attention._sdpa(module, query, key, value, packing.visible(pack)[None, None], pack=given)
        (output * torch.linspace(1, 2, output.numel()).view(output.shape)).sum().backward()
        results.append([output, query.grad, key.grad, value.grad])
    assert len(calls) == 1
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_gradients_of_a_shared_prompt_are_added_up_in_float32():
    tensor = torch.zeros(1, 1, 8, dtype=BF16, requires_grad=True)
    attention._Gather.apply(tensor, torch.zeros(1000, dtype=torch.long)).sum().backward()
    assert (tensor.grad == 1000).all()  # in 16 bits, one by one, it would end at 256


def test_under_autocast_all_of_it_is_computed_in_16_bits(calls):
    """Rotary positions leave float32 queries and keys, and 16-bit values, where weights are float32."""
    model, packs = heads_of_eight(), packing.make_packs(ROWS, 100)
    with torch.autocast("cpu", BF16):
        found, _ = attention.score(model, torchs(), ROWS, packs, WIDTH, CPU)
    assert calls == [BF16] * model.config.num_hidden_layers
    torch.testing.assert_close(found, one_by_one(model)[0], rtol=0.05, atol=0.2)


def test_torch_takes_the_arguments_and_has_a_gradient(monkeypatch):
    """On meta tensors: its signature differs between versions, and its kernel needs a GPU."""
    monkeypatch.setattr(attention, "fits", lambda *_: True)
    pack = packing.lay_out(ROWS, [0, 1, 2, 3], WIDTH, "meta")
    keys = packing.keys(packing.lay_out(ROWS, [0, 1, 2, 3], WIDTH))
    keys = packing.Keys(*(part.to("meta") if torch.is_tensor(part) else part for part in vars(keys).values()))
    query, key = (torch.randn(1, heads, pack.input_ids.shape[1], 8, device="meta", dtype=BF16) for heads in (4, 2))
    for tensor in (query, key):
        tensor.requires_grad_()
    given = attention.Segments(pack.sizes, pack.parents, keys, torchs().attend)
    output, _ = attention._sdpa(SimpleNamespace(), query, key, key, None, scaling=0.3, pack=given)
    output.sum().backward()
    assert output.shape == (1, pack.input_ids.shape[1], 4, 8) and key.grad.shape == key.shape


@pytest.mark.parametrize("asked", ["flash_attention_2", "sdpa"])
def test_the_package_is_used_where_it_is_asked_for_and_installed(asked, calls, monkeypatch):
    """A stand-in for it: its function gets what it takes, and the pack comes out as by torch's own."""
    used = []

    def flash_attn_varlen_func(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, dropout_p=0.0, softmax_scale=None,
        causal=False,
    ):  # fmt: skip
        assert causal and not dropout_p
        used.append(q.dtype)
        return variable_length(
            q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, scale=softmax_scale, window_size=(-1, 0)
        )

    assert torchs(asked).name == "FlashAttention 2 (torch's own)"
    package = ModuleType("flash_attn")
    package.flash_attn_varlen_func = flash_attn_varlen_func
    monkeypatch.setitem(sys.modules, "flash_attn", package)
    model, packs = heads_of_eight("float64"), packing.make_packs(ROWS, 100)
    kernel = torchs(asked)
    expected, found = (attention.score(model, each, ROWS, packs, WIDTH, CPU)[0] for each in (SDPA, kernel))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    package_runs = asked == "flash_attention_2"
    assert (len(used), len(calls)) == ((2, 0) if package_runs else (0, 2))
    assert (
        kernel.name
        == f"FlashAttention 2 ({'the package flash-attn' if package_runs else 'torch' + chr(39) + 's own'})"
    )
    assert kernel.pack_tokens == 8192


@pytest.mark.parametrize(
    ("facts", "fits"),
    [
        ({}, True),
        ({"device": CPU}, False),
        ({"dtype": torch.float32}, False),
        ({"capability": (7, 5)}, False),
        ({"head_dim": 288}, False),
        ({"head_dim": 60}, False),
        ({"attention_dropout": 0.1}, False),
    ],
    ids=str,
)
def test_it_takes_16_bits_heads_of_256_and_ampere(facts, fits, monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: facts.get("capability", (9, 0)))
    own = {key: value for key, value in facts.items() if key in ("head_dim", "attention_dropout")}
    config = Qwen2Config(**{"head_dim": 128, **own})
    found = attention.kernel("sdpa", facts.get("device", CUDA), facts.get("dtype", BF16), config)
    assert (found.name, found.pack_tokens) == (("FlashAttention 2 (torch's own)", 8192) if fits else ("sdpa", 2048))
