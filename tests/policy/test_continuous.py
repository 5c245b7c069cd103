"""grpo/policy/continuous.py: completions of `generate` from a cache of fixed size, and what a CUDA graph relies on.

Without a GPU steps run uncaptured; a graph is played by one that records operators and replays them (`Graph`).
Whole rollouts, distributions and adapters: tests/training/test_rollouts.py.
"""

import contextlib
from types import SimpleNamespace

import pytest
import torch
from helpers_runs import DEMO
from peft import LoraConfig, get_peft_model
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM, FalconConfig, FalconForCausalLM, GPT2Config, GPT2LMHeadModel

from grpo.core.errors import UserError
from grpo.policy import continuous, generation
from grpo.policy.continuous import Decoder, complete_continuously
from grpo.policy.decoding import sampling_mode
from grpo.policy.generation import Sampling, complete_in_full_batch, eos_ids

QUESTIONS = [
    "What is 3 + 4?",
    "Tom has 12 apples and eats 5. How many are left?",
    "1 + 1?",
    "Ann has 3 pens and buys 9 more pens, then loses 2 of them. How many pens does she have?",
]


@pytest.fixture(scope="module")
def demo():
    return AutoModelForCausalLM.from_pretrained(DEMO / "model", dtype=torch.float32)


@pytest.fixture(scope="module")
def jobs(tokenizer):
    """Prompts of four lengths, each four times, in turns."""
    chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
    ids = [tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"] for chat in chats]
    return list(enumerate(4 * ids))


def complete(how, model, tokenizer, jobs, limit=40, batch_size=64, copies=None, **options):
    with sampling_mode(model, copies):
        return sorted(how(model, tokenizer, jobs, eos_ids(model, tokenizer), limit, batch_size, **options))


@pytest.mark.parametrize(("batch_size", "limit"), [(64, 30), (5, 30), (10, 13), (1, 3), (64, 1)])
def test_greedy_completions_of_ragged_prompts_are_generates(batch_size, limit, demo, tokenizer, jobs):
    """`complete_by_generate` is `model.generate`, one prompt at a time."""
    some = jobs[:4] if batch_size == 1 else jobs
    one_by_one = complete(generation.complete_by_generate, demo, tokenizer, some[:4], limit, 1, sampling=None)
    expected = [(job, *one_by_one[job % 4][1:]) for job, _ in some]
    assert complete(complete_continuously, demo, tokenizer, some, limit, batch_size) == expected
    assert limit < 30 or len({len(ids) for _, ids, _ in expected}) > 2


def test_one_decoder_follows_weights_that_change_in_place(demo, tokenizer, jobs):
    """Rollout after rollout with the same memory: a graph would read the same addresses."""
    model = AutoModelForCausalLM.from_pretrained(DEMO / "model", dtype=torch.float32)
    decoder, seen, places = Decoder(model, tokenizer, None), [], []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(3):
        found = complete(complete_continuously, model, tokenizer, jobs, decoder=decoder)
        assert found == complete(complete_in_full_batch, model, tokenizer, jobs)
        seen.append(found)
        places.append([decoder.addresses, decoder.tokens.data_ptr(), decoder.layers[0][0].data_ptr()])
        ids = torch.tensor([jobs[0][1]])
        model(ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert seen[0] != seen[1] != seen[2] and places[0] == places[1] == places[2]


def test_a_cache_grows_with_what_is_asked_and_is_given_back(demo, tokenizer, jobs):
    decoder = Decoder(demo, tokenizer, None)
    complete(complete_continuously, demo, tokenizer, jobs[:6], 5, decoder=decoder)
    small = decoder.bytes, decoder.rows
    assert small[1] == 6 and decoder.length == 256
    expected = complete(complete_in_full_batch, demo, tokenizer, jobs[:3], 5)
    assert complete(complete_continuously, demo, tokenizer, jobs[:3], 5, decoder=decoder) == expected
    assert (decoder.bytes, decoder.rows) == small  # what is there is enough
    complete(complete_continuously, demo, tokenizer, jobs, 300, decoder=decoder)
    assert decoder.rows == 16 and decoder.length == 512 and decoder.bytes == 2 * 16 / 6 * small[0]
    decoder.close()
    assert decoder.bytes == 0 and not decoder.graphs


def test_little_memory_takes_fewer_rows_at_once(demo, tokenizer, jobs, monkeypatch):
    expected = complete(complete_in_full_batch, demo, tokenizer, jobs)
    decoder = Decoder(demo, tokenizer, None)
    with sampling_mode(demo):
        decoder.reserve(1, 10, [5])
    row = decoder.bytes
    monkeypatch.setattr(continuous, "free_memory", lambda device: 2 * 3.5 * row)
    decoder = Decoder(demo, tokenizer, None)
    assert complete(complete_continuously, demo, tokenizer, jobs, decoder=decoder) == expected
    assert decoder.rows == 3


def test_rows_leave_for_smaller_steps_and_waiting_prompts_enter(demo, tokenizer, jobs, monkeypatch):
    steps, real = [], Decoder.advance
    monkeypatch.setattr(Decoder, "advance", lambda self, *how: (steps.append(how), real(self, *how))[1])
    many = [(number, jobs[number % 16][1]) for number in range(40)]
    torch.manual_seed(0)
    found = complete(complete_continuously, demo, tokenizer, many, 60, 20, sampling=Sampling(temperature=1.8))
    sizes = [rows for _, rows, _ in steps]
    assert set(sizes) == {8, 16, 20} and sizes[0] == 20 and sizes[-1] == 8
    assert all(count <= continuous.LOOK for count, _, _ in steps)
    assert sum(count * rows for count, rows, _ in steps) < 2 * sum(len(ids) for _, ids, _ in found)


def test_attention_reads_only_the_part_that_is_filled(demo, tokenizer, jobs, monkeypatch):
    widths, real = [], continuous._Slots.update
    monkeypatch.setattr(
        continuous._Slots, "update", lambda self, *new, **how: (widths.append(self.keys.shape[2]), real(self, *new))[1]
    )
    monkeypatch.setattr(continuous, "LENGTHS", 32)
    expected = complete(complete_in_full_batch, demo, tokenizer, jobs)
    assert complete(complete_continuously, demo, tokenizer, jobs) == expected
    assert widths == sorted(widths) and len(set(widths)) >= 2 and all(width % 32 == 0 for width in widths)


def test_sequences_may_fill_all_positions_of_the_model(tokenizer):
    """A row that has ended is still computed, and must not be beyond the last position."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=512, n_embd=48, n_layer=2, n_head=4, n_positions=60))
    prompts = [(row, [5 + row] * (20 - row % 3)) for row in range(64)]
    assert complete(complete_continuously, model, tokenizer, prompts) == complete(
        complete_in_full_batch, model, tokenizer, prompts
    )
    torch.manual_seed(0)
    drawn = complete(complete_continuously, model, tokenizer, prompts, sampling=Sampling())
    assert any(not cut for _, _, cut in drawn) and any(cut for _, _, cut in drawn)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_attention_may_be_eager(attention, tokenizer, jobs):
    model = AutoModelForCausalLM.from_pretrained(DEMO / "model", dtype=torch.float32, attn_implementation=attention)
    expected = complete(complete_in_full_batch, model, tokenizer, jobs, 12)
    assert complete(complete_continuously, model, tokenizer, jobs, 12) == expected


def test_models_that_count_from_the_mask_are_unfit(demo):
    assert continuous.unfit(demo) is None
    falcon = FalconConfig(vocab_size=32, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, alibi=True)
    assert "attention" in continuous.unfit(FalconForCausalLM(falcon))


# --- Capture


class Graph(TorchDispatchMode):
    """What a CUDA graph is: the operators under its capture, replayed on the same tensors, without any Python."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        if operator is torch.ops.aten._local_scalar_dense.default:  # .item(), which waits for the device
            raise RuntimeError("operation not permitted when stream is capturing\nCUDA kernel errors might be …")
        result = operator(*args, **(kwargs or {}))
        self.calls.append((operator, args, kwargs or {}, result))
        return result

    def replay(self):
        for operator, args, kwargs, result in self.calls:
            given = {tensor.untyped_storage().data_ptr() for tensor in tensors((args, kwargs))}
            for old, new in zip(tensors(result), tensors(operator(*args, **kwargs)), strict=True):
                if old.untyped_storage().data_ptr() not in given:  # neither a view nor in place
                    old.copy_(new)


class NoWaiting(TorchDispatchMode):
    """What torch.cuda.set_sync_debug_mode("error") is."""

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        if operator is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("called a synchronizing CUDA operation")
        return operator(*args, **(kwargs or {}))


def tensors(tree):
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


@pytest.fixture
def graphs(monkeypatch):
    """torch.cuda as far as a capture uses it; what is done with it, in order."""
    done, capturing, real, refuses = [], [], Decoder._step, []

    def set_sync_debug_mode(mode):
        if mode == "error":
            refuses.append(NoWaiting())
        else:
            assert mode == 0 and refuses.pop()

    @contextlib.contextmanager
    def capture(graph, pool, stream, capture_error_mode):
        assert (pool, stream.number, capture_error_mode) == ("pool", 1, "thread_local")
        done.append("capture")
        capturing.append(graph)
        try:
            yield
        finally:
            capturing.pop()

    def step(self, rows, length):
        if not capturing:
            done.append("step")
            with refuses[-1] if refuses else contextlib.nullcontext():
                return real(self, rows, length)
        state = [self.tokens, self.lengths, *tensors(self.layers)]  # a capture computes nothing
        before, dice = [tensor.clone() for tensor in state], torch.get_rng_state()
        with capturing[-1]:
            real(self, rows, length)
        torch.set_rng_state(dice)
        for tensor, value in zip(state, before, strict=True):
            tensor.copy_(value)

    monkeypatch.setattr(Decoder, "_step", step)
    stream = SimpleNamespace(number=1, wait_stream=lambda other: done.append("wait"))
    for name, value in [
        ("Stream", lambda device: stream), ("current_stream", lambda device: stream), ("graph", capture),
        ("graph_pool_handle", lambda: "pool"), ("CUDAGraph", Graph), ("stream", contextlib.nullcontext),
        ("set_sync_debug_mode", set_sync_debug_mode), ("get_sync_debug_mode", lambda: 0),
    ]:  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, value)
    clear = torch.clear_autocast_cache
    monkeypatch.setattr(torch, "clear_autocast_cache", lambda: (done.append("clear"), clear()))
    return done


def decoder_that_captures(model, tokenizer, sampling=None):
    decoder = Decoder(model, tokenizer, sampling)
    decoder.captures = True
    return decoder


def test_each_shape_is_captured_once_and_replayed(demo, tokenizer, jobs, graphs, monkeypatch):
    monkeypatch.setattr(continuous, "LENGTHS", 32)
    expected = complete(complete_in_full_batch, demo, tokenizer, jobs)
    decoder = decoder_that_captures(demo, tokenizer)
    assert complete(complete_continuously, demo, tokenizer, jobs, decoder=decoder) == expected
    shapes = len(decoder.graphs)
    # the step that counts, then its capture, with no 16-bit copy of a weight from before or for after
    assert shapes > 1 and graphs == shapes * ["wait", "step", "clear", "capture", "clear", "wait"]
    assert complete(complete_continuously, demo, tokenizer, jobs, decoder=decoder) == expected
    assert graphs.count("capture") == shapes == graphs.count("step")  # nothing but replays


def test_captured_or_not_a_seed_draws_the_same(demo, tokenizer, jobs, graphs):
    """A resumed run captures where the uninterrupted one replays."""
    sampling, drawn = Sampling(temperature=1.3, top_p=0.95), []
    decoder = decoder_that_captures(demo, tokenizer, sampling)
    for engine in (decoder, decoder, Decoder(demo, tokenizer, sampling)):
        torch.manual_seed(3)
        drawn.append(complete(complete_continuously, demo, tokenizer, jobs, sampling=sampling, decoder=engine))
    assert drawn[0] == drawn[1] == drawn[2]


def test_graphs_go_where_a_weight_has_another_address(demo, tokenizer, jobs, graphs):
    model = AutoModelForCausalLM.from_pretrained(DEMO / "model", dtype=torch.float32)
    decoder = decoder_that_captures(model, tokenizer)
    complete(complete_continuously, model, tokenizer, jobs, 9, decoder=decoder)
    before = graphs.count("capture")
    weight = model.model.layers[0].mlp.up_proj.weight
    weight.data = weight.data.clone()  # as loading a checkpoint into new memory does
    complete(complete_continuously, model, tokenizer, jobs, 9, decoder=decoder)
    assert graphs.count("capture") == 2 * before


def test_graphs_follow_weights_that_change_in_place(tokenizer, jobs, graphs):
    model = AutoModelForCausalLM.from_pretrained(DEMO / "model", dtype=torch.float32)
    decoder, seen, captured = decoder_that_captures(model, tokenizer), [], []
    for _ in range(2):
        seen.append(complete(complete_continuously, model, tokenizer, jobs, decoder=decoder))
        assert seen[-1] == complete(complete_in_full_batch, model, tokenizer, jobs)
        captured.append(graphs.count("capture"))
        ids = torch.tensor([jobs[0][1]])
        model(ids, labels=ids).loss.backward()
        torch.optim.SGD(model.parameters(), lr=0.02).step()
    assert seen[0] != seen[1] and captured[0] == captured[1]  # the second rollout only replayed


def test_graphs_read_merged_16_bit_copies_that_are_kept(tokenizer, jobs, graphs):
    """A float32 model and adapter under bfloat16 autocast: the copies are filled anew for each rollout, in place."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(DEMO / "model", dtype=torch.float32)
    model = get_peft_model(model, LoraConfig(target_modules=["q_proj", "up_proj"], init_lora_weights=False))
    decoder, copies, seen, captured = decoder_that_captures(model, tokenizer), {}, [], []
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            seen.append(complete(complete_continuously, model, tokenizer, jobs, 12, copies=copies, decoder=decoder))
            assert seen[-1] == complete(complete_continuously, model, tokenizer, jobs, 12)  # uncaptured, other copies
        captured.append(graphs.count("capture"))
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "lora_B" in name:
                    weight.mul_(-2)
    assert seen[0] != seen[1] and captured[0] == captured[1]
    assert decoder.layers[0][0].dtype == torch.bfloat16


def test_a_model_that_waits_for_the_gpu_is_not_captured(tokenizer, jobs, graphs, capsys):
    """It is found before anything is captured, so that it costs nothing, not even a draw."""
    model = AutoModelForCausalLM.from_pretrained(DEMO / "model", dtype=torch.float32)
    model.lm_head.register_forward_hook(lambda module, inputs, logits: logits * (1 + 0 * logits.sum().item()))
    sampling, drawn = Sampling(temperature=1.3), []
    for decoder in (decoder_that_captures(model, tokenizer, sampling), Decoder(model, tokenizer, sampling)):
        torch.manual_seed(3)
        drawn.append(complete(complete_continuously, model, tokenizer, jobs, sampling=sampling, decoder=decoder))
    assert drawn[0] == drawn[1] and "capture" not in graphs
    out = capsys.readouterr().out
    assert out.count("\n") == 1 and "without CUDA graphs" in out and "test_continuous.py, line" in out


def failing(reason):
    """As torch.cuda.graph: the end of a capture that has failed raises an error of its own."""

    @contextlib.contextmanager
    def capture(*args, **kwargs):
        try:
            yield
            raise RuntimeError(reason)
        finally:
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture")

    return capture


def test_a_capture_that_fails_ends_the_run(demo, tokenizer, jobs, graphs, monkeypatch):
    """Nothing in this process can be relied on then; the error has the first reason, and the stream is as before."""
    inside = []

    @contextlib.contextmanager
    def on_stream(which):
        inside.append(which)
        try:
            yield
        finally:
            inside.pop()

    monkeypatch.setattr(torch.cuda, "stream", on_stream)
    monkeypatch.setattr(
        torch.cuda, "graph", failing("operation not permitted when stream is capturing\nCUDA kernel …")
    )
    decoder = decoder_that_captures(demo, tokenizer)
    remedy = r"\(operation not permitted when stream is capturing\), or .* memory .*; use --generation lean"
    with pytest.raises(UserError, match=remedy):
        complete(complete_continuously, demo, tokenizer, jobs, decoder=decoder)
    assert inside == [] and not decoder.graphs


def test_lean_rules_out_graphs_in_evaluations_as_well(demo, monkeypatch):
    """It is the way out where a capture fails, and the first one may be an evaluation's."""
    assert generation.way_of_evaluation(demo, "auto") is complete_in_full_batch
    monkeypatch.setattr(type(demo), "device", torch.device("cuda"))
    assert generation.way_of_evaluation(demo, "vllm") is complete_continuously
    assert generation.way_of_evaluation(demo, "lean") is complete_in_full_batch


def test_a_capture_without_memory_says_so(demo, tokenizer, jobs, graphs, monkeypatch):
    monkeypatch.setattr(torch.cuda, "graph", failing("CUDA out of memory. Tried to allocate 2 GiB"))
    with pytest.raises(RuntimeError, match="out of memory"):
        decoder = decoder_that_captures(demo, tokenizer)
        complete(complete_continuously, demo, tokenizer, jobs, decoder=decoder)


def test_all_captures_run_on_one_stream(demo, tokenizer, jobs, graphs, monkeypatch):
    made, real = [], torch.cuda.Stream
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: made.append(device) or real(device))
    decoder = decoder_that_captures(demo, tokenizer)
    for _ in range(2):
        complete(complete_continuously, demo, tokenizer, jobs, 9, decoder=decoder)
        decoder.close()
    assert len(made) == 1
