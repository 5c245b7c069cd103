"""grpo/policy/decoding.py: how a model samples, and that nothing of it is left afterwards."""

import contextlib

import pytest
import torch
from helpers_runs import DEMO
from peft import LoraConfig, get_peft_model
from transformers import AttentionInterface, AttentionMaskInterface, AutoModelForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from grpo.policy import decoding, generation
from grpo.policy.decoding import on_sdpa, sampling_mode, sampling_weights

IDS = torch.arange(5, 25)[None]


def load(dtype=torch.float32):
    return AutoModelForCausalLM.from_pretrained(DEMO / "model", dtype=dtype).eval()


def adapted(dtype=torch.float32, **options):
    torch.manual_seed(0)
    options = {"target_modules": ["q_proj", "v_proj", "down_proj"], "init_lora_weights": False, **options}
    return get_peft_model(load(dtype), LoraConfig(r=4, lora_alpha=8, **options)).eval()


def tensors(model):
    return {name: (id(value), value.data_ptr(), value.detach().clone()) for name, value in model.named_parameters()}


def assert_untouched(model, before):
    after = tensors(model)
    assert list(after) == list(before)
    for name, (number, pointer, value) in before.items():
        assert after[name][:2] == (number, pointer) and torch.equal(after[name][2], value), name


def fails_inside(context):
    with pytest.raises(KeyError), context:
        raise KeyError


# --- Attention


@pytest.fixture
def trained():
    """A model that trains with an attention which is not sdpa."""
    AttentionInterface.register("of_my_own", sdpa_attention_forward)
    AttentionMaskInterface.register("of_my_own", sdpa_mask)
    model = load()
    model.set_attn_implementation("of_my_own")
    yield model
    AttentionInterface._global_mapping.pop("of_my_own")
    AttentionMaskInterface._global_mapping.pop("of_my_own")


@pytest.mark.parametrize("wrap", [False, True], ids=["model", "adapter"])
def test_sampling_is_on_sdpa_whatever_trains(wrap, trained, tokenizer, monkeypatch):
    model = get_peft_model(trained, LoraConfig(target_modules=["q_proj"])) if wrap else trained
    seen, real = [], generation.complete_in_full_batch
    monkeypatch.setattr(
        generation,
        "complete_in_full_batch",
        lambda model, *rest: (seen.append(model.config._attn_implementation), real(model, *rest))[1],
    )
    generation.generate(model, tokenizer, [[5, 6, 7]], 2, 1)
    assert seen == ["sdpa"] and trained.config._attn_implementation == "of_my_own"
    fails_inside(on_sdpa(model))
    assert trained.config._attn_implementation == "of_my_own" == trained.model.config._attn_implementation


def test_eager_stays_because_sdpa_lacks_what_it_is_set_for():
    model = load()
    model.set_attn_implementation("eager")
    with on_sdpa(model):
        assert model.config._attn_implementation == "eager"


# --- Adapters


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_merged_adapter_computes_the_same_and_leaves_no_trace(dtype):
    model = adapted(dtype, lora_bias=False)
    before = tensors(model)
    layer = model.get_base_model().model.layers[0].self_attn.q_proj
    with torch.no_grad():
        expected = model(IDS).logits
        with sampling_weights(model):
            assert layer.merged and not torch.equal(layer.base_layer.weight, before[_name(model, layer)][2])
            found = model(IDS).logits
        assert torch.allclose(found.float(), expected.float(), atol=1e-4 if dtype == torch.float32 else 0.3)
        assert torch.equal(model(IDS).logits, expected)
    assert not layer.merged
    assert_untouched(model, before)


def _name(model, layer):
    return next(name for name, value in model.named_parameters() if value is layer.base_layer.weight)


def test_the_next_merge_shows_an_optimizer_step():
    model = adapted()
    with sampling_mode(model):
        first = model(IDS).logits
    model(IDS).logits.logsumexp(-1).sum().backward()
    torch.optim.SGD([weight for weight in model.parameters() if weight.requires_grad], lr=0.01).step()
    with sampling_mode(model):
        second = model(IDS).logits
    with torch.no_grad():
        assert torch.allclose(second, model(IDS).logits, atol=1e-4)
    assert not torch.allclose(second, first, atol=1e-3)


def test_a_disabled_adapter_is_not_merged():
    model = adapted()
    with torch.no_grad(), model.disable_adapter():
        expected = model(IDS).logits
        with sampling_weights(model):
            assert torch.equal(model(IDS).logits, expected)


@pytest.mark.parametrize(
    ("why", "line"),
    [
        ("quantized", "its base is quantized"),
        ("sharded", "its weights are sharded"),
    ],
)
def test_what_cannot_be_merged_samples_unmerged_with_a_line(why, line, monkeypatch, capsys):
    model = adapted()
    layer = model.get_base_model().model.layers[0].self_attn.q_proj
    if why == "quantized":  # bitsandbytes' layers have classes of their own
        monkeypatch.setattr(decoding.lora, "Linear", type("Another", (), {}))
    else:
        monkeypatch.setattr(decoding, "is_sharded", lambda model: True)
    decoding._note.cache_clear()
    for _ in range(2):
        with sampling_weights(model):
            assert not layer.merged
    out = capsys.readouterr().out
    assert line in out and out.count("\n") == 1


# --- Number formats


@pytest.mark.parametrize("make", [load, adapted], ids=["model", "adapter"])
def test_under_autocast_float32_weights_get_16_bit_copies(make):
    """The same logits as by autocast itself, bit by bit, and the weights stay float32."""
    model = make()
    before = tensors(model)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        with sampling_weights(model) if make is adapted else contextlib.nullcontext():
            reference = _by_autocast(model)
        with sampling_weights(model):
            assert model.get_output_embeddings().weight.dtype == torch.bfloat16
            assert model.get_input_embeddings().weight.dtype == torch.float32  # the head's, tied to it
            found = model(IDS).logits
    assert torch.equal(found, reference)
    assert_untouched(model, before)


def _by_autocast(model):
    """With float32 weights that autocast itself turns into 16-bit ones."""
    heads = [module for module in model.modules() if type(module) is torch.nn.Linear]
    held = [(module, dict(module._parameters)) for module in heads]
    for module, parameters in held:
        for name, weight in parameters.items():
            module._parameters[name] = None if weight is None else torch.nn.Parameter(weight.float())
    try:
        return model(IDS).logits
    finally:
        for module, parameters in held:
            module._parameters.update(parameters)
