"""Packs through models give the log-probabilities of the padded batch, whatever computes the attention."""

import dataclasses
import shutil
from types import SimpleNamespace

import pytest
import torch
import transformers.modeling_flash_attention_utils as flash_attention
from helpers_attention import variable_length
from transformers import AttentionInterface, AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM
from trl.trainer.utils import add_fused_lm_head

from grpo.training import attention, packing

ROWS = [
    ((11, 12, 13, 14), (21, 22, 23)),
    ((11, 12, 13, 14), (31,)),
    ((41, 42), (51, 52, 53, 54, 55)),
    ((61,), (71, 72)),
    ((11, 12, 13, 14), ()),
]
WIDTH, CPU, CUDA = 5, torch.device("cpu"), torch.device("cuda")
BF16 = torch.bfloat16


def backend_of(implementation):
    return attention.candidates(implementation, CPU, torch.float32)[0]


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
    backend = backend_of(implementation)
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
        attention.score(model, attention.Backend("", "sdpa", arguments, 100), ROWS, packs, WIDTH, CPU)[0]
        for arguments in (attention.block_mask, attention._by_segment)
    ]
    torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="FlexAttention compiles its kernel")
def test_flex_attention_gives_what_rows_give_alone(tiny_model):
    """The forward only: FlexAttention has no backward on a CPU."""
    model, expected = loaded(tiny_model, "flex_attention"), one_by_one(loaded(tiny_model))
    backend = backend_of("flex_attention")
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


# --- Variable-length attention ------------------------------------------------------------------------------------


@pytest.fixture
def calls(monkeypatch):
    """The reference replaces torch's kernel, which a CPU does not have; the list counts its calls."""
    found = []

    def counted(*args, **kwargs):
        found.append(args[0].dtype)
        return variable_length(*args, **kwargs)

    monkeypatch.setattr(attention, "varlen_attn", counted)
    monkeypatch.setattr(attention, "SIXTEEN_BITS", (*attention.SIXTEEN_BITS, torch.float64))
    return found


def heads_of_eight(dtype="float32"):
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=512, num_hidden_layers=2, initializer_range=0.3, **sizes))
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    return model.to(getattr(torch, dtype)).eval()


def on_a_gpu(config=None, dtype=BF16):
    return attention.candidates("sdpa", CUDA, dtype, config)


def test_gathered_keys_give_what_a_block_mask_gives(calls):
    """The whole model in float64: exact to rounding, with prompts of several completions and heads that share keys."""
    model, packs = heads_of_eight("float64"), packing.divide(ROWS, 100)
    varlen, mask = on_a_gpu()
    expected = torch.stack(attention.score(model, mask, ROWS, packs, WIDTH, CPU))
    expected_gradients = gradients(model, expected)
    assert not calls
    found = torch.stack(attention.score(model, varlen, ROWS, packs, WIDTH, CPU))
    assert len(calls) == model.config.num_hidden_layers * len(packs)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)  # the fused head computes in float32
    for one, other in zip(gradients(model, found), expected_gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("heads", [1, 2, 4])
def test_a_layers_gradients_are_those_of_a_block_mask(heads, calls):
    torch.manual_seed(0)
    pack = packing.lay_out(ROWS, [0, 1, 2, 3], WIDTH)
    length, results = pack.input_ids.shape[1], []
    for arguments in (attention.block_mask(pack), attention._varlen(pack)):
        torch.manual_seed(0)
        query, key, value = (
            torch.randn(1, count, length, 8, dtype=torch.float64, requires_grad=True) for count in (4, heads, heads)
        )
        module = SimpleNamespace(num_key_value_groups=4 // heads)
        given = arguments["attention_mask"]
        output, _ = attention._sdpa_of_packs(module, query, key, value, given, pack=arguments.get("pack"))
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
    model, packs = heads_of_eight(), packing.divide(ROWS, 100)
    with torch.autocast("cpu", BF16):
        found, _ = attention.score(model, on_a_gpu()[0], ROWS, packs, WIDTH, CPU)
    assert calls == [BF16] * model.config.num_hidden_layers
    torch.testing.assert_close(found, one_by_one(model)[0], rtol=0.05, atol=0.2)


def test_torch_takes_the_arguments_and_has_a_gradient():
    """On meta tensors: its signature differs between versions, and its kernel needs a GPU."""
    pack = packing.lay_out(ROWS, [0, 1, 2, 3], WIDTH, "meta")
    keys = packing.keys(packing.lay_out(ROWS, [0, 1, 2, 3], WIDTH))
    keys = packing.Keys(*(part.to("meta") if torch.is_tensor(part) else part for part in vars(keys).values()))
    query, key = (torch.randn(1, heads, pack.input_ids.shape[1], 8, device="meta", dtype=BF16) for heads in (4, 2))
    for tensor in (query, key):
        tensor.requires_grad_()
    output = attention._all_at_once(query, key, key, 0.3, keys)
    output.sum().backward()
    assert output.shape == (1, pack.input_ids.shape[1], 4, 8) and key.grad.shape == key.shape == key.grad.shape


def flash(q, k, v, cu_seqlens_q=None, cu_seqlens_k=None, max_seqlen_q=0, max_seqlen_k=0, softmax_scale=None,
          causal=False, dropout_p=0.0):  # fmt: skip
    """The package's flash_attn_varlen_func."""
    assert causal and not dropout_p
    window = (-1, 0)
    return variable_length(
        q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, scale=softmax_scale, window_size=window
    )


def test_flash_attention_shares_prompts_inside_transformers(tiny_model, monkeypatch):
    """The package needs a GPU: its one function is the reference, and transformers hands the pack to it."""
    ours = {"_loaded_implementation": "flash_attention_2", "_flash_varlen_fn": flash, "_flash_fn": None}
    ours["_process_flash_kwargs_fn"] = flash_attention._lazy_define_process_function(flash)
    for name in ("_pad_fn", "_unpad_fn", "_flash_with_kvcache_fn", "_process_with_kvcache_kwargs_fn"):
        ours[name] = None
    for name, value in ours.items():
        monkeypatch.setattr(flash_attention, name, value, raising=False)
    model = loaded(tiny_model)
    expected = one_by_one(model)
    expected_gradients = gradients(model, expected)
    (backend,) = attention.candidates("flash_attention_2", CUDA, BF16)
    model.config._attn_implementation = "flash_attention_2"
    found = torch.stack(attention.score(model, backend, ROWS, packing.divide(ROWS, 12), WIDTH, CPU))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    for one, other in zip(gradients(model, found), expected_gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    once = AttentionInterface()["flash_attention_2"]
    backend.arguments(packing.lay_out(ROWS, [0], WIDTH))
    assert AttentionInterface()["flash_attention_2"] is once  # it is not wrapped again


# --- The rest -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_a_pack_that_is_filled_up_gives_the_same(tiny_model, implementation):
    model, packs = loaded(tiny_model, implementation), packing.divide(ROWS, 12)
    one = backend_of(implementation)
    filled = dataclasses.replace(
        one, multiple=64, arguments=on_a_gpu()[1].arguments if implementation == "sdpa" else one.arguments
    )
    expected, found = (torch.stack(attention.score(model, each, ROWS, packs, WIDTH, CPU)) for each in (one, filled))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_nothing_to_score_is_a_zero_that_all_weights_are_part_of(tiny_model):
    model = loaded(tiny_model)
    log_probs, entropies = attention.score(model, backend_of("sdpa"), ROWS, [[]], WIDTH, CPU)
    assert not log_probs.any() and not entropies.any() and log_probs.shape == (len(ROWS), WIDTH)
    assert all(grad is not None and not grad.any() for grad in gradients(model, log_probs))


def test_sdpa_without_a_pack_is_transformers_own(tiny_model):
    backend_of("sdpa").arguments(packing.lay_out(ROWS, [0], WIDTH))  # which registers ours
    model, ids = loaded(tiny_model), torch.tensor([[5, 6, 7, 8]])
    ours = model(ids).logits
    AttentionInterface.register("sdpa", attention.sdpa_attention_forward)
    assert torch.equal(model(ids).logits, ours)


@pytest.mark.parametrize(
    ("implementation", "device", "names"),
    [
        ("sdpa", CPU, ["sdpa, segment by segment"]),
        ("sdpa", CUDA, ["variable-length attention", "sdpa with a block mask"]),
        ("eager", CUDA, ["eager with a block mask"]),
        ("my_attention", CUDA, []),
    ],
)
def test_backends_follow_what_the_model_runs_with(implementation, device, names):
    found = attention.candidates(implementation, device, BF16)
    assert [backend.name for backend in found] == names
    assert all(backend.implementation == implementation for backend in found)
