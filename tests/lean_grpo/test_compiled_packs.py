"""Packs by compiled layers: one graph for all layers and packs, forward and backward, and what packs give without.

FlashAttention 2 is a stand-in: an operation of its own, so that Dynamo does not look into it, with a gradient.
"""

import logging

import pytest
import torch
from helpers_runs import DEMO
from helpers_trainer import make_trainer
from peft import LoraConfig, get_peft_model
from torch._dynamo.utils import counters
from transformers import AutoConfig, AutoModelForCausalLM
from trl.trainer.utils import add_fused_lm_head

from lean_grpo import LeanGRPOTrainer, attention, compiling, norms, packing, wrappers
from lean_grpo.attention import Kernel
from lean_grpo.compiling import OptimizerSteps, TokenSteps

CPU, WIDTH = torch.device("cpu"), 9


def segments(query, key, value, ends_q, ends_k, scaling, before):
    """Of each segment: its slices of queries and keys, the queries, keys and values of its heads, and the weights."""
    groups = query.shape[1] // key.shape[1]
    for segment in range(len(ends_q) - 1):
        of_q, of_k = (slice(*ends[segment : segment + 2].tolist()) for ends in (ends_q, ends_k))
        q, k, v = query[of_q], key[of_k].repeat_interleave(groups, 1), value[of_k].repeat_interleave(groups, 1)
        seen = torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q))
        if before >= 0:
            seen.triu_(len(k) - len(q) - before)
        scores = torch.einsum("qhd,khd->hqk", q.float(), k.float()) * scaling
        yield of_q, of_k, q.float(), k.float(), v.float(), scores.masked_fill(~seen, -torch.inf).softmax(-1)


@torch.library.custom_op("lean_grpo_tests::attend", mutates_args=())
def attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, ends_q: torch.Tensor, ends_k: torch.Tensor,
    longest_q: int, longest_k: int, scaling: float, before: int,
) -> torch.Tensor:  # fmt: skip
    assert longest_q >= ends_q.diff().max() and longest_k >= ends_k.diff().max()
    output = torch.empty_like(query)
    for of_q, _, _, _, v, weights in segments(query, key, value, ends_q, ends_k, scaling, before):
        output[of_q] = torch.einsum("hqk,khd->qhd", weights, v).to(output.dtype)
    return output


@attend.register_fake
def _(query, *others):
    return torch.empty_like(query)


@torch.library.custom_op("lean_grpo_tests::attend_backward", mutates_args=())
def backward(
    gradient: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, ends_q: torch.Tensor,
    ends_k: torch.Tensor, scaling: float, before: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    outputs = [torch.zeros_like(tensor, dtype=torch.float32) for tensor in (query, key, value)]
    for of_q, of_k, q, k, v, weights in segments(query, key, value, ends_q, ends_k, scaling, before):
        g = gradient[of_q].float()
        of_weights = torch.einsum("qhd,khd->hqk", g, v)
        of_scores = scaling * weights * (of_weights - (of_weights * weights).sum(-1, keepdim=True))
        outputs[0][of_q] = torch.einsum("hqk,khd->qhd", of_scores, k)
        for output, parts in ((outputs[1], (of_scores, q)), (outputs[2], (weights, g))):
            by_head = torch.einsum("hqk,qhd->khd", *parts)
            output[of_k] += by_head.unflatten(1, (key.shape[1], -1)).sum(2)
    return tuple(output.to(query.dtype) for output in outputs)


@backward.register_fake
def _(gradient, query, key, value, *others):
    return tuple(torch.empty_like(tensor) for tensor in (query, key, value))


def setup_context(ctx, inputs, output):
    ctx.save_for_backward(*inputs[:5])
    ctx.numbers = inputs[7:]


attend.register_autograd(
    lambda ctx, gradient: (*backward(gradient.contiguous(), *ctx.saved_tensors, *ctx.numbers), *[None] * 6),
    setup_context=setup_context,
)
FLASH = Kernel("FlashAttention 2", 8192, attend)


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    attention.register()
    for name in ("planned", "refused", "verified"):
        monkeypatch.setattr(OptimizerSteps, name, compiling.Models())
    monkeypatch.setattr(OptimizerSteps, "backend", "aot_eager")
    monkeypatch.setattr(logging.getLogger("torch.__trace"), "propagate", False)  # a line for each step of tracing
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def make_model(name="demo", adapter=False):
    torch.manual_seed(0)
    if name.startswith("demo"):
        dtype = torch.bfloat16 if "16" in name else torch.float32
        model = AutoModelForCausalLM.from_pretrained(DEMO / "model", dtype=dtype)
        norms.replace(model)  # which changes nothing in float32
    else:
        sizes = {"vocab_size": 512, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4}
        sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "initializer_range": 0.3}
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **sizes, sliding_window=3))
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    if adapter:
        targets = ["q_proj", "v_proj", "down_proj"]
        model = get_peft_model(model, LoraConfig(target_modules=targets, init_lora_weights=False))
        model.enable_input_require_grads()
    return model.train()


ROWS = [
    (tuple(range(5 + prompt, 9 + prompt)), tuple(range(20 + number, 20 + number + 1 + (3 * number + prompt) % 8)))
    for prompt in range(4)
    for number in range(3)
]


def scored(model, layers, chosen, autocast):
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        return attention.score(model, FLASH, ROWS, chosen, WIDTH, CPU, layers)


def values_and_gradients(model, layers, autocast=False):
    """Of rollouts that are divided differently, so that packs have many lengths and numbers of segments."""
    found = []
    for pack_tokens in (40, 21, 11):
        model.zero_grad()
        values, entropies = scored(model, layers, packing.make_packs(ROWS, pack_tokens), autocast)
        weights = torch.linspace(-1, 1, values.numel()).view_as(values)
        (values * weights).sum().backward()
        gradients = [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]
        found += [values.detach(), entropies.detach(), *gradients]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize(
    ("name", "adapter", "autocast"),
    [
        ("demo", False, False),
        ("demo", True, False),
        ("demo", True, True),
        ("demo in 16 bits", False, True),
        ("llama", False, False),
        ("qwen3", False, False),
    ],
)
def test_all_packs_share_one_graph(name, adapter, autocast, checkpointing, capsys):
    if checkpointing and compiling.recomputes_outside():
        pytest.skip("a trainer does not compile checkpointed layers here")
    model = make_model(name, adapter=adapter)
    base = wrappers.base_of(model)
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    plain = values_and_gradients(model, None, autocast)  # after it the model needs no mask
    OptimizerSteps.planned[base] = OptimizerSteps.worth
    compiled = values_and_gradients(model, OptimizerSteps.of(base), autocast)
    for one, other in zip(plain, compiled, strict=True):
        assert (one - other).norm() <= (0.1 if autocast else 1e-5) * one.norm()
    assert counters["stats"]["unique_graphs"] == 1 and not capsys.readouterr().out


def failing(graph, inputs):
    raise RuntimeError("Failed to find C compiler")


@pytest.mark.parametrize("kind", ["no compiler", "few steps"])
def test_packs_that_cannot_be_compiled_run_as_they_are(kind, monkeypatch, capsys):
    model = make_model()
    plain = values_and_gradients(model, None)
    monkeypatch.setattr(OptimizerSteps, "backend", staticmethod(failing))
    OptimizerSteps.planned[model] = 20 if kind == "few steps" else OptimizerSteps.worth
    compiled = values_and_gradients(model, OptimizerSteps.of(model))
    assert all(map(torch.equal, plain, compiled)) and not any("forward" in vars(layer) for layer in model.model.layers)
    reasons = {
        "few steps": "it would take longer than it saves in 20 optimizer steps",
        "no compiler": "they cannot be compiled (BackendCompilerFailed: backend='failing' raised: RuntimeError: Fail",
    }
    said = capsys.readouterr().out
    assert said.startswith(f"note: layers are not compiled for optimizer steps: {reasons[kind]}")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "settings",
    [
        {"max_steps": 7},
        {"max_steps": 7, "steps_per_generation": 4},
        {"max_steps": -1, "num_train_epochs": 3},
        {"max_steps": -1, "num_train_epochs": 3, "num_iterations": 2},
        {"max_steps": -1, "num_train_epochs": 2, "gradient_accumulation_steps": 1, "steps_per_generation": 2},
    ],
    ids=str,
)
def test_the_plan_has_the_steps_and_rollouts_of_the_run(settings, tiny_model, tmp_path):
    trainer = make_trainer(LeanGRPOTrainer, tiny_model, tmp_path, **settings)
    sample, rollouts = trainer._generate_single_turn, []
    trainer._generate_single_turn = lambda *given, **others: rollouts.append(1) or sample(*given, **others)
    trainer.train()
    assert OptimizerSteps.planned[trainer.model] == trainer.state.global_step
    assert TokenSteps.planned[trainer.model] in range(
        (len(rollouts) - 1) * trainer.max_completion_length, len(rollouts) * trainer.max_completion_length + 1
    )


@pytest.mark.parametrize("agrees", [pytest.param(True, marks=pytest.mark.slow), False])
def test_a_trainer_compiles_what_agrees_with_its_trial(agrees, tiny_model, tmp_path, monkeypatch, capsys):
    """The gradient is that without; compiled layers that compute something else are not used."""
    monkeypatch.setattr(attention, "kernel", lambda *given: FLASH)
    monkeypatch.setattr(OptimizerSteps, "worth", 1)
    if not agrees:
        wrong = lambda graph, inputs: lambda *given: [output.flip(-1) for output in graph(*given)]  # noqa: E731
        monkeypatch.setattr(OptimizerSteps, "backend", staticmethod(wrong))
    changes = []
    for compiled in (False, True):
        trainer = make_trainer(LeanGRPOTrainer, tiny_model, tmp_path, bf16=True)
        if compiled:  # as on a GPU
            trainer._compile([trainer.model])
        before = torch.cat([weight.detach().flatten() for weight in trainer.model.parameters()])
        trainer.train()  # a step of SGD
        changes.append(torch.cat([weight.detach().flatten() for weight in trainer.model.parameters()]) - before)
    assert counters["stats"]["unique_graphs"] > 0 and bool(trainer._layers) is agrees
    assert 0 <= (changes[0] - changes[1]).norm() <= 0.05 * changes[0].norm()
    said = "note: layers are not compiled for optimizer steps: packs would change its log-probabilities"
    assert (said in capsys.readouterr().out) is not agrees


@pytest.mark.slow
def test_checkpointed_layers_that_are_recomputed_as_they_are_stay_so(tiny_model, tmp_path, monkeypatch, capsys):
    """transformers 5.17 checkpoints a layer's call: a backward after the forward meets another layer."""
    monkeypatch.setattr(attention, "kernel", lambda *given: FLASH)
    monkeypatch.setattr(OptimizerSteps, "worth", 1)
    monkeypatch.setattr(compiling, "recomputes_outside", lambda: True)
    for checkpointing in (True, False):
        own = {"bf16": True, "gradient_checkpointing": checkpointing}
        trainer = make_trainer(LeanGRPOTrainer, tiny_model, tmp_path, **own)
        trainer._compile([trainer.model])
        said = "this version of transformers recomputes checkpointed ones as they are"
        assert bool(trainer._layers) is not checkpointing and (said in capsys.readouterr().out) is checkpointing


@pytest.mark.slow
def test_a_reference_model_is_compiled_where_the_policy_is(tiny_model, tmp_path, monkeypatch):
    """Otherwise the two would round differently, and the divergence would begin above 0."""
    monkeypatch.setattr(attention, "kernel", lambda *given: FLASH)
    monkeypatch.setattr(OptimizerSteps, "worth", 1)
    trainer = make_trainer(LeanGRPOTrainer, tiny_model, tmp_path, bf16=True, beta=0.1)
    trainer._compile([trainer.model, trainer.ref_model])
    computed, compute = set(), OptimizerSteps.compute
    monkeypatch.setattr(
        OptimizerSteps, "compute", lambda self, *given: computed.add(self.base) or compute(self, *given)
    )
    trainer.train()
    assert computed == {trainer.model, trainer.ref_model} and trainer.state.log_history[0]["kl"] < 1e-6
