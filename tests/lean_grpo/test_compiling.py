"""lean_grpo/compiling.py: one graph for all layers, with the same tokens; where it cannot be, one line and no harm.

Dynamo traces on any machine; its plain backend computes what it traced with torch's own operations. CUDA graphs are a
stand-in (test_decoding.py).
"""

import logging
import weakref
from types import SimpleNamespace

import exactness
import pytest
import torch
from helpers_graphs import on_a_fake_gpu
from helpers_runs import DEMO
from peft import LoraConfig, get_peft_model
from torch._dynamo.utils import counters
from transformers import AutoModelForCausalLM

from lean_grpo import attention, compiling, decoding, models, sampling
from lean_grpo.compiling import TokenSteps
from lean_grpo.sampling import Sampling, complete

PROMPTS = 3 * [[9, 8, 7, 6, 5], [9, 8, 7, 6, 5, 4, 3, 4, 5, 6], [9, 8, 7, 1]]
NOT_COMPILED, CANNOT = "note: layers are not compiled for token steps: ", "they cannot be compiled ("


@pytest.fixture(autouse=True)
def fake_gpu(monkeypatch):
    monkeypatch.setattr(decoding.Graphs, "verdicts", weakref.WeakKeyDictionary())
    monkeypatch.setattr(TokenSteps, "refused", weakref.WeakKeyDictionary())
    monkeypatch.setattr(TokenSteps, "planned", weakref.WeakKeyDictionary())
    monkeypatch.setattr(TokenSteps, "verified", weakref.WeakKeyDictionary())
    monkeypatch.setattr(TokenSteps, "backend", "eager")
    monkeypatch.setattr(decoding, "ROOM", 8)
    torch._dynamo.reset()
    counters.clear()
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "propagate", False)  # a line for each step of tracing
    yield on_a_fake_gpu(monkeypatch)
    torch._dynamo.reset()


def demo(dtype=torch.float32):
    return AutoModelForCausalLM.from_pretrained(DEMO / "model", dtype=dtype)


def rollouts(model, autocast=False):
    """Greedy tokens and samples of batches with other numbers of rows, over two widths of the buffers."""
    torch.manual_seed(0)
    with sampling.sampling_mode(model), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        return [
            complete(model, SimpleNamespace(pad_token_id=0), PROMPTS[:rows], [2], 16, drawn)
            for rows, drawn in ((9, None), (4, Sampling(temperature=1.3)))
        ]


def plain_and_compiled(model, base=None, **given):
    plain = rollouts(model, **given)
    TokenSteps.planned[base or model] = TokenSteps.worth
    return plain, rollouts(model, **given)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["qwen2", "llama", "qwen3", "gemma", "mistral", "gemma3_text", "gpt2", "mixtral"])
def test_all_layers_share_one_graph(name, capsys):
    """Of all widths, numbers of rows and rollouts. Rows outgrow the windows of Mistral and Gemma 3."""
    model = exactness.toy(name)
    plain, compiled = plain_and_compiled(model)
    kinds = 2 if name == "gemma3_text" else 1  # transformers 5.17 compiles layers with and without a window
    assert compiled == plain and counters["stats"]["unique_graphs"] <= kinds
    assert model in TokenSteps.verified and not capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("numbers", ["float32", "bfloat16", "autocast"])
def test_an_adapter_is_part_of_the_compiled_layer(numbers):
    torch.manual_seed(0)
    base = demo(torch.bfloat16 if numbers == "bfloat16" else torch.float32)
    adapter = LoraConfig(target_modules=["q_proj", "v_proj", "up_proj"], init_lora_weights=False, lora_dropout=0.5)
    model = get_peft_model(base, adapter)
    plain, compiled = plain_and_compiled(model, base, autocast=numbers == "autocast")
    assert compiled == plain and counters["stats"]["unique_graphs"] == 1 and base in TokenSteps.verified


def test_weights_that_change_in_place_are_followed():
    model = demo()
    TokenSteps.planned[model] = TokenSteps.worth
    first = rollouts(model)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.1)
    changed = rollouts(model)
    TokenSteps.planned.clear()
    assert first != changed == rollouts(model) and counters["stats"]["unique_graphs"] == 1


def test_few_token_steps_are_not_worth_compiling(capsys):
    model = demo()
    TokenSteps.planned[model] = 40 * 30
    rollouts(model)
    rollouts(model)
    assert capsys.readouterr().out == f"{NOT_COMPILED}it would take longer than it saves in 1,200 token steps\n"
    assert decoding.Graphs.verdicts[model] == "" and not counters["stats"]
    TokenSteps.plan(model, TokenSteps.worth)  # a longer run of the same model
    rollouts(model)
    assert model in TokenSteps.verified and not capsys.readouterr().out


def test_an_interrupt_leaves_no_layer_replaced(monkeypatch):
    model = demo()
    layers, replaced = TokenSteps(model, compiling.layers_of(model)), compiling._bound

    def interrupted(run, number, layer):
        if number == 2:
            raise KeyboardInterrupt
        return replaced(run, number, layer)

    monkeypatch.setattr(compiling, "_bound", interrupted)
    with pytest.raises(KeyboardInterrupt), layers.running(None):
        pass
    assert not any("forward" in vars(layer) for layer in layers.layers)


def no_compiler(graph, inputs):
    raise RuntimeError("Failed to find C compiler")


def wrong(graph, inputs):
    return lambda *given: [1.5 * output for output in graph(*given)]


class Breaks(torch.nn.Module):
    def forward(self, inputs):
        torch._dynamo.graph_break()
        return torch.nn.functional.silu(inputs)


def wrapped(layer):
    layer.mlp.forward = layer.mlp.forward


def hooked(layer):
    layer.mlp.register_forward_hook(lambda module, inputs, output: None)


def unnumbered(layer):
    layer.self_attn.register_module("inner", torch.nn.Module())
    layer.self_attn.inner.layer_idx = 7


def different(layer):
    layer.mlp.act_fn = Named("layer" * layer.self_attn.layer_idx)


class Named(torch.nn.Module):
    def __init__(self, name):
        super().__init__()
        self.name = name

    def forward(self, inputs):
        return torch.nn.functional.silu(inputs) * (1 if self.name else 1.0)


def broken(layer):
    layer.mlp.act_fn = Breaks()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "change", "reason"),
    [
        (no_compiler, None, f"{CANNOT}BackendCompilerFailed: backend='no_compiler' raised: RuntimeError: Failed to"),
        (wrong, None, "a step's next tokens diverge by "),
        ("eager", wrapped, "another library has replaced their forward"),
        ("eager", hooked, "they have hooks"),
        ("eager", unnumbered, "the model's layers are not numbered"),
        ("eager", broken, f"{CANNOT}Unsupported: Call to `torch._dynamo.graph_break()`"),
        ("eager", different, f"{CANNOT}RuntimeError: the layers differ: more than 2 would be compiled)"),
    ],
)  # fmt: skip
def test_what_cannot_be_compiled_is_replayed_as_it_is(backend, change, reason, fake_gpu, monkeypatch, capsys):
    model = demo()
    monkeypatch.setattr(compiling, "KINDS", 2)
    for layer in model.model.layers if change else ():
        change(layer)
    monkeypatch.setattr(TokenSteps, "backend", staticmethod(backend) if callable(backend) else backend)
    plain, compiled = plain_and_compiled(model)
    said = capsys.readouterr().out
    assert compiled == plain and said.startswith(NOT_COMPILED + reason) and said.count("\n") == 1
    assert decoding.Graphs.verdicts[model] == "" and model not in TokenSteps.verified
    assert not any("forward" in vars(layer) for layer in compiling.layers_of(model))


def test_a_layer_that_runs_twice_in_a_step_is_not_compiled(capsys):
    pytest.importorskip("transformers.models.dory")
    model = exactness.toy("dory")
    plain, compiled = plain_and_compiled(model)
    assert compiled == plain and decoding.Graphs.verdicts[model] == ""
    said = f"{NOT_COMPILED}{CANNOT}RuntimeError: a layer runs more than once in a step)\n"
    assert capsys.readouterr().out == said


@pytest.mark.slow
def test_a_compiled_step_has_the_next_tokens_of_a_plain_one(monkeypatch):
    """By the real compiler, in C++."""
    monkeypatch.setattr(decoding, "ROOM", 32)
    for dtype, most in ((torch.float32, 1e-6), (torch.bfloat16, decoding.LIMIT / 4)):
        torch.manual_seed(0)  # of the draws: some tokens differ by more in 16 bits
        model = demo(dtype)
        attention.register()
        decoder = decoding.Decoder(model, str(models.cache_argument(model)), [2], 20, Sampling().draw)
        layers = TokenSteps(model, compiling.layers_of(model))
        layers.function = torch.compile(TokenSteps.forward, fullgraph=True)
        with torch.no_grad():
            decoder.read([[5, 6, 7], [8, 9]], [0, 1, 0, 1], 0)
            for _ in range(12):
                before, decoder.layers = decoder._state(), None
                wanted = decoder._compute().clone()
                decoder._restore(before)
                decoder.layers = layers
                assert decoding.divergence(decoder._fixed(), wanted) < most
                decoder.place.used += 1
