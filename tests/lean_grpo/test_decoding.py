"""lean_grpo/decoding.py: the tokens of a plain loop, whatever the buffers do; CUDA graphs on a stand-in.

Against `generate` and TRL: test_rollouts.py and tests/policy/test_answering.py; on a real GPU: tests/gpu.
"""

import gc
import weakref
from types import SimpleNamespace

import exactness
import pytest
import torch
from helpers_graphs import FakeGraph, on_a_fake_gpu
from helpers_runs import DEMO
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, MistralConfig, Qwen2Config
from transformers.cache_utils import DynamicCache

from lean_grpo import decoding, sampling
from lean_grpo.decoding import Slots
from lean_grpo.models import cache_argument
from lean_grpo.sampling import Sampling, complete

END, OTHER_END = 2, 7
SAMPLED = Sampling(temperature=1.3)
BEGINNING = list(range(100, 140))
PROMPTS = {
    "one": [[5, 6, 7]],
    "groups": 4 * [[5, 6, 7], [8, 9], [10 + n for n in range(40)]],
    "one beginning": 3 * [[*BEGINNING, 5], [*BEGINNING, 6, 7, 8, 9], [*BEGINNING, 5, 6], BEGINNING],
    "a hundred": [[5 + n % 90] * (1 + n % 7) for n in range(100)],
}


def plain_loop(model, prompts, limit, drawn=None, ends=(END, OTHER_END), drops=8):
    """The same batches and draws on a cache that is appended to and copied; an eighth of the rows leave at once."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    cache, name = DynamicCache(config=base.config), cache_argument(base)
    distinct = list(dict.fromkeys(map(tuple, prompts)))
    longest = max(map(len, distinct))
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in distinct])
    ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in distinct])
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    rows, done, copies = list(range(len(prompts))), [[] for _ in prompts], None
    while True:
        logits = base(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=True, logits_to_keep=1,
                      **{name: cache}).logits[:, -1].float()  # fmt: skip
        if copies is None:
            copies = torch.tensor([distinct.index(tuple(prompt)) for prompt in prompts])
            cache.batch_select_indices(copies)
            logits, mask = logits[copies], mask[copies]
        tokens = drawn.draw(logits) if drawn else logits.argmax(-1)
        over = [bool(row and row[-1] in ends) for row in done]
        for row, token in zip(rows, tokens.tolist(), strict=True):
            if not over[row]:
                done[row].append(token)
        over = [row[-1] in ends or len(row) == limit for row in done]
        if drops * sum(over[row] for row in rows) >= len(rows):
            kept = [index for index, row in enumerate(rows) if not over[row]]
            if not kept:
                return done
            cache.batch_select_indices(torch.tensor(kept))
            mask, tokens, rows = mask[kept], tokens[kept], [rows[index] for index in kept]
        mask = torch.cat([mask, torch.tensor([[int(not over[row])] for row in rows])], 1)
        ids, positions = tokens[:, None], mask.sum(-1, keepdim=True) - 1


def same(model, prompts, limit, drawn=None, ends=(END, OTHER_END), drops=8, autocast=False):
    """Both ways of the same random state; what they sample, and that state afterwards, are equal."""
    found = []
    pad = SimpleNamespace(pad_token_id=0)
    for way in ("plain", "ours"):
        torch.manual_seed(0)
        with sampling.sampling_mode(model), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            if way == "plain":
                tokens = plain_loop(model, prompts, limit, drawn, ends, drops)
            else:
                tokens = complete(model, pad, prompts, ends, limit, drawn)
        found.append((tokens, torch.get_rng_state()))
    assert found[0][0] == found[1][0] and torch.equal(found[0][1], found[1][1])
    return found[1][0]


@pytest.fixture(scope="module")
def policy():
    return AutoModelForCausalLM.from_pretrained(DEMO / "model", dtype=torch.float32)


@pytest.fixture
def fake_gpu(monkeypatch):
    monkeypatch.setattr(decoding.Graphs, "verdicts", weakref.WeakKeyDictionary())
    return on_a_fake_gpu(monkeypatch)


# --- The loop


@pytest.mark.parametrize("drawn", [None, SAMPLED, Sampling(temperature=1.5, top_k=9, top_p=0.9)], ids=str)
@pytest.mark.parametrize("name", PROMPTS)
def test_tokens_and_draws_are_those_of_a_plain_loop(name, drawn, policy, monkeypatch):
    monkeypatch.setattr(decoding, "ROOM", 16)
    same(policy, PROMPTS[name], 40, drawn)


@pytest.mark.parametrize("numbers", ["bfloat16", "autocast"])
@pytest.mark.parametrize("drawn", [None, SAMPLED], ids=str)
def test_16_bits_give_the_same_tokens(numbers, drawn, policy):
    model = policy if numbers == "autocast" else AutoModelForCausalLM.from_pretrained(DEMO / "model", dtype="bfloat16")
    same(model, PROMPTS["groups"] + PROMPTS["one beginning"], 40, drawn, autocast=numbers == "autocast")


def test_autocast_keeps_16_bits_in_the_buffers(policy, monkeypatch):
    """Rotary positions make keys float32, and older transformers make the values what the keys are."""
    kept, move = set(), Slots.move

    def noting(layer, *where):
        move(layer, *where)
        kept.update({layer.keys.dtype, layer.values.dtype})

    monkeypatch.setattr(Slots, "move", noting)
    same(policy, PROMPTS["groups"], 5, autocast=True)
    assert kept == {torch.bfloat16}


def test_an_adapter_with_dropout_gives_the_same_tokens(policy):
    torch.manual_seed(0)
    adapter = LoraConfig(target_modules=["q_proj", "up_proj"], init_lora_weights=False, lora_dropout=0.5)
    base = AutoModelForCausalLM.from_pretrained(DEMO / "model", dtype=torch.float32)
    plain = same(base, PROMPTS["groups"], 30, SAMPLED)
    assert same(get_peft_model(base, adapter).train(), PROMPTS["groups"], 30, SAMPLED) != plain


@pytest.mark.parametrize("limit", [1, 2, 16, 17])
def test_limits_around_the_room_of_the_buffers(limit, policy, monkeypatch):
    monkeypatch.setattr(decoding, "ROOM", 16)
    assert max(map(len, same(policy, PROMPTS["groups"], limit, SAMPLED))) == limit


@pytest.mark.parametrize("ends", [tuple(range(512)), ()], ids=["at once", "never"])
def test_all_rows_end_together(ends, policy):
    assert {len(tokens) for tokens in same(policy, PROMPTS["groups"], 20, SAMPLED, ends)} == {1 if ends else 20}


# mistral and gemma3_text have windows of 8 positions, in all layers and in one
ARCHITECTURES = ["gpt2", "llama", "mixtral", "deepseek_v3", "opt", "mistral", "gemma3_text", "gpt_neo"]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architectures_give_the_same_tokens(name, monkeypatch):
    monkeypatch.setattr(decoding, "ROOM", 8)
    monkeypatch.setattr(decoding, "CPU_FORWARD", 4)
    model = exactness.toy(name)
    for drawn in (None, SAMPLED):
        same(model, 3 * [[9, 8, 7, 6, 5], [9, 8, 7, 6, 5, 4, 3, 4, 5, 6], [9, 8, 7, 1]], 20, drawn)


def test_windows_are_those_of_each_layer():
    types = ["full_attention", "sliding_attention"]
    assert decoding.windows(Qwen2Config(num_hidden_layers=2)) == [None, None]
    assert decoding.windows(MistralConfig(num_hidden_layers=2, sliding_window=8)) == [8, 8]
    sizes = {"num_hidden_layers": 2, "use_sliding_window": True, "sliding_window": 8}
    assert decoding.windows(Qwen2Config(layer_types=types, **sizes)) == [None, 8]


def test_a_common_beginning_is_computed_once(policy):
    """Also where prompts have different lengths: none of its positions is computed for a second prompt."""
    computed = []
    hook = policy.model.register_forward_pre_hook(
        lambda module, args, kwargs: computed.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    same_beginning = PROMPTS["one beginning"]
    same(policy, same_beginning, 1)
    hook.remove()
    assert computed[1:] == [(1, 40), (4, 4)]  # after the plain loop's (4, 44)


def test_nothing_of_a_rollout_stays_in_memory(policy, monkeypatch):
    """Without the garbage collector: a training step follows at once."""
    made, plain = [], decoding.Slots.move

    def move(self, *args):
        plain(self, *args)
        made.append(weakref.ref(self.keys))

    monkeypatch.setattr(decoding.Slots, "move", move)
    gc.disable()
    try:
        with sampling.sampling_mode(policy):
            complete(policy, SimpleNamespace(pad_token_id=0), PROMPTS["groups"], [END], 20)
        assert made and not any(buffer() is not None for buffer in made)
    finally:
        gc.enable()


# --- Graphs


@pytest.mark.parametrize("name", ["demo", *ARCHITECTURES[:-1]])
def test_replayed_steps_give_the_same_tokens(name, policy, fake_gpu, monkeypatch, capsys):
    """Rows leave when the buffers are copied, which greedy tokens do not depend on; samples without that."""
    model = policy if name == "demo" else exactness.toy(name)
    with monkeypatch.context() as patch:
        patch.setattr(decoding, "ROOM", 8)
        same(model, PROMPTS["groups"][:8], 24, ends=() if name == "demo" else (END, OTHER_END))
    assert fake_gpu.recorded >= 3 and fake_gpu.replayed > fake_gpu.recorded
    same(model, PROMPTS["groups"][:2], 14, SAMPLED, drops=1)
    assert decoding.Graphs.verdicts[model] == "" and not capsys.readouterr().out


def test_an_adapter_under_autocast_is_replayed(fake_gpu):
    torch.manual_seed(0)
    adapter = LoraConfig(target_modules=["q_proj", "up_proj"], init_lora_weights=False)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(DEMO / "model", dtype=torch.float32), adapter)
    same(model, PROMPTS["groups"], 20, autocast=True)
    assert fake_gpu.recorded and decoding.Graphs.verdicts[model.get_base_model()] == ""


def rollout(model, rows=64, limit=200, end=END):
    with sampling.sampling_mode(model):
        ends = end if isinstance(end, tuple) else [end]
        return complete(model, SimpleNamespace(pad_token_id=0), rows * [[5, 6, 7, 8]], ends, limit, SAMPLED)


@pytest.mark.slow
def test_a_rollout_waits_and_records_seldom(policy, fake_gpu, monkeypatch):
    """64 × 200 tokens: read every sixteenth step, and at the end; one graph."""
    rollout(policy, 2, 8)  # verifies
    FakeGraph.recorded, reads, tolist = 0, [], torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda self: reads.append(self.shape) or tolist(self))
    with decoding.Waits() as waits:
        tokens = rollout(policy, end=-1)
    assert {len(row) for row in tokens} == {200}
    assert fake_gpu.recorded == 1 and len([shape for shape in reads if len(shape) == 2]) == 13  # of tokens
    assert waits.found == {"_local_scalar_dense": 1}  # transformers' look at the mask of the prompts


def test_rows_that_end_leave_when_the_buffers_grow(policy, fake_gpu, monkeypatch):
    rows = []
    plain = decoding.Decoder.keep
    monkeypatch.setattr(decoding, "ROOM", 16)
    monkeypatch.setattr(decoding.Decoder, "keep", lambda self, kept: rows.append(len(kept)) or plain(self, kept))
    lengths = sorted(map(len, rollout(policy, limit=60)))
    assert len(rows) <= 4 and rows == sorted(rows, reverse=True) and rows[-1] < 64
    assert all(1 <= length <= 60 for length in lengths) and lengths[0] < lengths[-1]


def broken(kind):
    """A model that a graph cannot repeat: how it says so, and what is said of it."""
    model = AutoModelForCausalLM.from_pretrained(DEMO / "model", dtype=torch.float32)
    layer, steps = model.model.layers[0].self_attn.o_proj, [0]

    def waits(module, inputs, output):
        return output * (1.0 if output.abs().sum().item() >= 0 else 2.0)

    def counts(module, inputs, output):
        steps[0] += output.shape[1] == 1
        return output * (1 + steps[0] % 3)  # a number that the recording freezes

    def refuses(module, inputs, output):
        if FakeGraph.recording:
            raise RuntimeError("operation not permitted when stream is capturing")

    def not_a_number(module, inputs, output):
        return output * (float("nan") if FakeGraph.recording else 1.0)

    hooks = {"waits": waits, "counts": counts, "refuses": refuses, "not a number": not_a_number}
    if kind == "attention":
        model.set_attn_implementation("eager")
    else:
        layer.register_forward_hook(hooks[kind])
    return model


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("waits", "a step waits for the GPU (_local_scalar_dense)"),
        ("counts", "a step's next tokens diverge by "),
        ("not a number", "a step's next tokens diverge by nan nats"),
        ("refuses", "RuntimeError: operation not permitted when stream is capturing"),
        ("attention", "the model's attention is eager"),
    ],
)
def test_a_model_that_cannot_be_replayed_samples_eagerly(kind, reason, fake_gpu, capsys):
    model = broken(kind)
    if kind == "counts":
        rollout(model, 4, 20)
    else:
        same(model, PROMPTS["groups"], 20)
    recorded = fake_gpu.recorded
    rollout(model, 4, 20)
    said = capsys.readouterr().out
    assert said.startswith(f"note: decoding steps are not replayed as CUDA graphs, which is slower: {reason}")
    assert said.count("\n") == 1 and fake_gpu.recorded == recorded


def test_quantized_weights_and_masked_vocabularies_are_replayed(fake_gpu, capsys):
    """Whether a kernel can be recorded is tried; -inf in both steps is no difference."""
    model = AutoModelForCausalLM.from_pretrained(DEMO / "model", dtype=torch.float32)
    model.is_quantized = True
    impossible = torch.arange(512) % 3 == 1
    model.lm_head.register_forward_hook(lambda module, inputs, logits: logits.masked_fill(impossible, -torch.inf))
    tokens = [token for row in rollout(model, 8, 40) for token in row]
    assert decoding.Graphs.verdicts[model] == "" and not capsys.readouterr().out
    assert not any(token % 3 == 1 for token in tokens)


def test_rows_that_end_at_once_verify_nothing(fake_gpu, capsys):
    """The host looks later; a graph that has compared nothing is compared by the next rollout."""
    model = broken("not a number")
    rollout(model, 4, 20, tuple(range(512)))
    assert model not in decoding.Graphs.verdicts
    rollout(model, 4, 20)
    assert "diverge by nan nats" in capsys.readouterr().out


def test_even_distributions_agree(fake_gpu, capsys):
    """They say nothing, so that a share of it would be no limit."""
    model = AutoModelForCausalLM.from_pretrained(DEMO / "model", dtype=torch.float32)
    model.lm_head.register_forward_hook(lambda module, inputs, logits: 0 * logits)
    rollout(model, 4, 40, -1)
    assert decoding.Graphs.verdicts[model] == "" and not capsys.readouterr().out


def test_divergence_is_that_of_next_tokens():
    wanted = torch.tensor([[0.0, 1.0, -torch.inf], [3.0, 2.0, 1.0]])
    expected = torch.nn.functional.kl_div
    other = wanted + torch.tensor([[0.5, 0.0, 0.0], [0.0, 0.0, 0.1]])
    p, q = wanted.log_softmax(-1)[:, :2], other.log_softmax(-1)[:, :2]  # the impossible token adds nothing
    last = expected(other[1:].log_softmax(-1), wanted[1:].log_softmax(-1), log_target=True, reduction="sum")
    first = expected(q[:1], p[:1], log_target=True, reduction="sum")
    assert decoding.divergence(other, wanted) == pytest.approx((first + last).item() / 2)
    assert decoding.divergence(wanted, wanted) == 0
    for impossible in (wanted, other):
        changed = impossible.clone()
        changed[1, 0] = -torch.inf
        assert decoding.divergence(changed, impossible) == decoding.divergence(impossible, changed) == torch.inf
    for one, two in ((wanted * torch.nan, wanted), (wanted, other * torch.nan)):
        assert not decoding.divergence(one, two) <= torch.inf


def test_a_seed_decides_the_draws_of_a_graph(policy, fake_gpu):
    rollout(policy, 2, 8)  # verifies
    torch.manual_seed(3)
    first = rollout(policy, 8, 40)
    torch.manual_seed(3)
    assert rollout(policy, 8, 40) == first != rollout(policy, 8, 40)


def test_weights_that_change_in_place_are_followed(policy, fake_gpu):
    model = AutoModelForCausalLM.from_pretrained(DEMO / "model", dtype=torch.float32)
    first = same(model, PROMPTS["groups"], 20)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.1)
    assert same(model, PROMPTS["groups"], 20) != first and decoding.Graphs.verdicts[model] == ""


def test_a_graph_whose_tensors_moved_is_not_replayed(policy, fake_gpu):
    """The stand-in's own test: it would notice."""
    weight = torch.nn.Linear(2, 2)
    with FakeGraph() as graph, torch.no_grad():
        weight(torch.ones(1, 2))
    graph.replay()
    weight.weight.data = weight.weight.data.clone()
    with pytest.raises(AssertionError, match="have moved"):
        graph.replay()
