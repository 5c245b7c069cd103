"""lean_grpo/norms.py: torch's kernel replaces the RMS norms that it equals, in 16 bits, and nothing else.

On the CPU, where torch computes it in several operations.
"""

import copy
import io
import pickle

import pytest
import torch
import torch._dynamo
from helpers_trainer import make_trainer
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.cohere.modeling_cohere import CohereLayerNorm
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.olmo2.modeling_olmo2 import Olmo2RMSNorm

from lean_grpo import LeanGRPOTrainer, norms

HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, **HEADS}
OWN = {"gpt2": {"vocab_size": 64, "n_embd": 32, "n_layer": 3, "n_head": 4}}
KINDS = [LlamaRMSNorm, Olmo2RMSNorm, Gemma3RMSNorm]


def build(kind, dtype=torch.bfloat16):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **OWN.get(kind, SIZES)))
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.1 * torch.randn_like(weight))
    return model.to(dtype).eval()


def replaced(model):
    """The modules whose forward is not their class's, but for the model, whose head TRL replaces."""
    return [module for module in model.modules() if "forward" in vars(module) and not hasattr(module, "lm_head")]


def norm(kind, dtype=torch.bfloat16):
    module = kind(64, eps=1e-5)
    torch.manual_seed(0)
    module.weight.data.add_(torch.randn(64))
    return module.to(dtype)


def computed(module, numbers, gradient, dtype):
    """(result, gradients of numbers and weight) of a norm."""
    numbers = numbers.to(dtype).requires_grad_()
    result = module(numbers)
    return [result, *torch.autograd.grad(result, [numbers, module.weight], gradient.to(dtype))]


class Wide(torch.overrides.TorchFunctionMode):
    """Computes in float64 what asks for float32."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        func = torch.Tensor.double if func is torch.Tensor.float else func
        return func(*(torch.float64 if value is torch.float32 else value for value in args), **(kwargs or {}))


@pytest.mark.parametrize(
    ("kind", "count"), [("llama", 7), ("qwen2", 7), ("qwen3", 13), ("gemma3_text", 19), ("gpt2", 0)]
)
def test_a_models_rms_norms_are_replaced_and_restored(kind, count):
    """Two or four of each layer, those of queries and keys, and the last one; no LayerNorm."""
    model = build(kind)
    state = torch.get_rng_state()
    norms.replace(model)
    assert len(replaced(model)) == count and torch.equal(torch.get_rng_state(), state)
    norms.restore(model)
    assert not replaced(model)


@pytest.mark.parametrize("kind", KINDS)
def test_in_float64_the_kernel_equals_the_norm(kind, monkeypatch):
    module, numbers, gradient = norm(kind, torch.float64), *torch.randn(2, 5, 7, 64, dtype=torch.float64)
    with Wide():
        expected = computed(module, numbers * 1e-3, gradient, torch.float64)
        monkeypatch.setattr(norms, "SMALL_FORMATS", (torch.float64,))
        norms.replace(module)
        found = computed(module, numbers * 1e-3, gradient, torch.float64)
    for one, other in zip(expected, found, strict=True):
        assert (one - other).norm() <= 1e-12 * one.norm()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", norms.SMALL_FORMATS)
@pytest.mark.parametrize("autocast", [False, True])
def test_in_16_bits_the_kernel_is_no_further_from_exact(kind, dtype, autocast):
    """And so are its gradients; the format stays."""
    module, (numbers, gradient) = norm(kind, dtype), torch.randn(2, 50, 7, 64).to(dtype)
    with Wide():
        exact = computed(copy.deepcopy(module).double(), numbers, gradient, torch.float64)
    with torch.autocast("cpu", dtype, enabled=autocast):
        before = computed(module, numbers, gradient, dtype)
        norms.replace(module)
        after = computed(module, numbers, gradient, dtype)
    assert replaced(module) and [part.dtype for part in after] == [part.dtype for part in before]
    for exactly, one, other in zip(exact, before, after, strict=True):
        assert (other - exactly).norm() <= 1.02 * (one - exactly).norm()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weights", [torch.float32, torch.bfloat16])
def test_float32_is_computed_as_before(kind, weights, monkeypatch):
    """Weights in float32 under autocast, or numbers in float32."""
    module = norm(kind, weights)
    norms.replace(module)
    assert replaced(module)
    monkeypatch.setattr(norms, "rms_norm", None)
    formats = [torch.float32] if weights == torch.bfloat16 else [torch.float32, torch.bfloat16, torch.float16]
    for dtype in formats:
        numbers = torch.randn(5, 64).to(dtype)
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(module(numbers), kind.forward(module, numbers))


def test_the_kernel_runs_outside_autocast(monkeypatch):
    """CUDA's would run it in float32; the CPU's does not know it."""
    found, plain = [], norms.rms_norm

    def noting(*given):
        found.append(torch.is_autocast_enabled("cpu"))
        return plain(*given)

    for kind in KINDS:
        norms.replace(module := norm(kind))
        monkeypatch.setattr(norms, "rms_norm", noting)
        with torch.autocast("cpu", torch.bfloat16):
            module(torch.randn(5, 64).bfloat16())
        monkeypatch.undo()
    assert found == [False] * 3


class InFloat32(LlamaRMSNorm):
    def forward(self, hidden_states):
        return super().forward(hidden_states).float()


class EpsilonOutside(LlamaRMSNorm):
    def forward(self, hidden_states):
        return self.weight * hidden_states / (hidden_states.square().mean(-1, keepdim=True).sqrt() + 1e-5)


class Gated(LlamaRMSNorm):
    def forward(self, hidden_states, gate=None):
        return super().forward(hidden_states)


class Refusing(LlamaRMSNorm):
    def forward(self, hidden_states):
        raise ValueError("no such input")


@pytest.mark.parametrize("kind", [InFloat32, EpsilonOutside, Gated, Refusing, CohereLayerNorm, torch.nn.LayerNorm])
def test_other_norms_stay(kind):
    module = norm(kind)
    norms.replace(module)
    assert not replaced(module)


def test_a_forward_that_somebody_else_replaced_stays():
    module = norm(LlamaRMSNorm)
    module.forward = theirs = lambda hidden_states: hidden_states
    norms.replace(module)
    norms.restore(module)
    assert module.forward is theirs


def test_copies_have_weights_of_their_own_and_files_are_as_before(tmp_path):
    model = build("llama")
    norms.replace(model)
    ids = torch.arange(10)[None]
    with torch.no_grad():
        expected = model(ids).logits
        copied, pickled = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
        saved = io.BytesIO()
        torch.save(model, saved)
        model.save_pretrained(tmp_path)
        loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
        for weight in model.parameters():
            weight.zero_()
        assert torch.equal(copied(ids).logits, expected)
        saved.seek(0)
        for other in (pickled, torch.load(saved, weights_only=False), loaded):
            assert torch.allclose(other(ids).logits, expected, atol=0.05)
    assert len(replaced(copied)) == 7 and not replaced(loaded)


def test_adapters_work_with_them():
    """Also norms that are trained as a whole."""
    model = build("qwen3")
    norms.replace(model)
    ids = torch.arange(10)[None]
    adapted = get_peft_model(model, LoraConfig(target_modules=["q_proj"], modules_to_save=["q_norm"]))
    with torch.no_grad():
        for name, weight in adapted.named_parameters():
            if "modules_to_save" in name:
                weight.mul_(3)
        trained = adapted(ids).logits
        with adapted.disable_adapter():
            assert (adapted(ids).logits - trained).norm() > 0.1 * trained.norm()
        assert torch.allclose(adapted.merge_and_unload()(ids).logits, trained, atol=0.05)


@pytest.mark.parametrize("kind", ["llama", "gemma3_text"])
@pytest.mark.parametrize("own", [False, True])
def test_layers_share_one_compilation(kind, own):
    """With the kernel as with the models' own norms."""
    torch._dynamo.reset()
    model, numbers, graphs = build(kind), torch.randn(2, 5, 32).bfloat16(), []
    if not own:
        norms.replace(model)
    types = getattr(model.config, "layer_types", None) or []
    positions = model.model.rotary_emb(numbers, torch.arange(5)[None], *types[:1])

    def backend(graph, inputs):
        graphs.append(graph)
        return graph

    def call(layer, numbers):
        return layer(numbers, position_embeddings=positions)

    compiled = torch.compile(call, backend=backend, fullgraph=True)
    with torch.no_grad(), torch._dynamo.config.patch(allow_unspec_int_on_nn_module=True):
        for layer in model.model.layers:
            expected, numbers = call(layer, numbers), compiled(layer, numbers)
            assert torch.equal(expected, numbers)
    assert len(graphs) == 1
    kernels = sum("rms_norm" in str(node.target) for node in graphs[0].graph.nodes)
    assert kernels == (0 if own else 2 if kind == "llama" else 6)


def trainer_on_gpu(monkeypatch, tiny_model, tmp_path, **options):
    """A trainer in bfloat16 that takes the CPU for a GPU, as another one of this model has done."""
    monkeypatch.setattr(norms, "fits", lambda device: True)
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype="bfloat16")
    norms.replace(model)
    return make_trainer(LeanGRPOTrainer, model, tmp_path, **options)


def test_packs_samples_and_the_reference_have_the_same_norms(tiny_model, tmp_path, monkeypatch):
    found = []
    monkeypatch.setattr(
        norms, "rms_norm", lambda numbers, *given: found.append(numbers.shape) or plain(numbers, *given)
    )
    plain = torch.nn.functional.rms_norm
    options = {"beta": 0.1, "lengths": "sampled", "max_completion_length": 4, "bf16": True, "num_iterations": 2}
    trainer = trainer_on_gpu(monkeypatch, tiny_model, tmp_path, max_steps=2, **options)
    assert trainer.kernel is not None
    assert [len(replaced(model)) for model in (trainer.model, trainer.ref_model)] == [5, 5]
    found.clear()
    trainer.train()
    assert {shape[0] for shape in found} >= {1, 16}  # packs; rows of a rollout


@pytest.mark.parametrize("why", ["not packed", "a misfit", "a CPU"])
def test_trls_own_step_has_the_models_own_norms(why, tiny_model, tmp_path, monkeypatch):
    if why == "a misfit":
        monkeypatch.setattr("lean_grpo.trial.misfit", lambda trainer: why)
    fits, own = norms.fits, {"packed": why != "not packed"}
    if why == "a CPU":
        assert not fits(torch.device("cpu"))
        trainer = make_trainer(LeanGRPOTrainer, tiny_model, tmp_path)
    else:
        trainer = trainer_on_gpu(monkeypatch, tiny_model, tmp_path, own=own, beta=0.1)
        assert trainer.kernel is None and not replaced(trainer.ref_model)
    assert not replaced(trainer.model)
