"""grpo/policy/answering.py: the completions of `model.generate`, whatever the batch does.

In training, and the distribution against TRL's: tests/lean_grpo/test_rollouts.py.
"""

import pytest
import torch
from helpers_runs import DEMO
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from grpo.data import sources
from grpo.policy import answering
from grpo.policy.answering import Policy, end_tokens
from grpo.task.prompts import XML, tokenized
from lean_grpo.sampling import Sampling, reason_against
from train_grpo import EXEMPLARS

COUNT = 16
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
SIZES = {"vocab_size": 512, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, **HEADS}
LOOPED = {
    **SIZES, "num_hidden_layers": 3, "n_input_layers": 1, "n_recurrent_layers": 1, "n_output_layers": 1,
    "layer_types": ["full_attention"] * 3, "recurrent_kv_cache_mode": "last_loop",
}  # fmt: skip
DORY = pytest.mark.skipif("dory" not in CONFIG_MAPPING_NAMES, reason="needs a newer transformers")


@pytest.fixture(scope="module")
def policy():
    return AutoModelForCausalLM.from_pretrained(DEMO / "model", dtype=torch.float32)


@pytest.fixture(scope="module")
def ids(tokenizer):
    """Prompts of different lengths."""
    questions = [row["question"] for row in sources.load_source(str(DEMO / "test.jsonl"))["train"][:COUNT]]
    return list(tokenized([XML.prompt(question, EXEMPLARS[: len(question) % 2]) for question in questions], tokenizer))


def answer(model, tokenizer, ids, limit, batch_size, sampling=None, seed=0):
    """Completions' tokens, and whether they were cut off."""
    policy = Policy(model, tokenizer, limit, batch_size, seed=seed)
    return [(done.ids, done.truncated) for done in policy.complete(ids, sampling)]


def stock(model, tokenizer, ids, limit):
    """One prompt at a time by `model.generate`."""
    found, ends = [], end_tokens(model.generation_config, tokenizer)
    model.eval()
    for prompt in ids:
        output = model.generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long), do_sample=False,
            max_new_tokens=limit, eos_token_id=ends, pad_token_id=tokenizer.pad_token_id, repetition_penalty=1.0,
        )[0, len(prompt) :].tolist()  # fmt: skip
        end = next((place + 1 for place, token in enumerate(output) if token in ends), None)
        found.append((output[:end], end is None))
    return found


@pytest.fixture(scope="module")
def reference(policy, tokenizer, ids):
    return stock(policy, tokenizer, ids, 32)  # some are cut off, most end at different lengths


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [3, 64])
def test_greedy_completions_are_those_of_generate(batch_size, policy, tokenizer, ids, reference):
    assert len({len(tokens) for tokens, _ in reference}) > 5 and 0 < sum(cut for _, cut in reference) < COUNT
    assert answer(policy, tokenizer, ids, 32, batch_size) == reference


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "sizes", "by_generate"),
    [
        ("gpt2", {"vocab_size": 512, "n_embd": 32, "n_layer": 2, "n_head": 4}, False),  # learned positions
        ("llama", SIZES, False),
        ("qwen3", SIZES, False),
        ("gemma2", {**SIZES, "sliding_window": 8}, False),  # shorter than the prompts
        ("moshi", {**SIZES, "sliding_window": 8}, True),  # a window in its cache, but not in its masks
        pytest.param("dory", LOOPED, True, marks=DORY),  # its loops read cached keys themselves
        ("bloom", {"vocab_size": 512, "hidden_size": 32, "n_layer": 2, "n_head": 4}, True),  # ALiBi, from the mask
    ],
)
def test_greedy_completions_of_other_architectures(kind, sizes, by_generate, tokenizer, ids):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes), dtype=torch.float32)
    assert bool(reason_against(model)) is by_generate
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.2 * torch.randn_like(weight))
    assert answer(model, tokenizer, ids[:6], 12, 4) == stock(model, tokenizer, ids[:6], 12)


def test_sequences_may_fill_all_positions_of_the_model(tokenizer):
    """A row that has ended waits for others to leave with it, and must not be computed beyond the last position."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=512, n_embd=48, n_layer=2, n_head=4, n_positions=60))
    prompts = [[5 + row] * 20 for row in range(64)]
    assert all(len(tokens) == 40 or not cut for tokens, cut in answer(model, tokenizer, prompts, 40, 64))
    drawn = answer(model, tokenizer, prompts, 40, 64, Sampling())
    assert any(not cut for _, cut in drawn) and any(cut for _, cut in drawn)


def test_rows_leave_and_equal_prompts_are_read_once(policy, tokenizer, ids):
    seen = []
    hook = policy.model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["input_ids"].shape), with_kwargs=True
    )
    found = answer(policy, tokenizer, [ids[0]] * 32 + [ids[1]] * 32, 60, 64, Sampling(temperature=1.5))
    hook.remove()
    assert seen[0][0] == 2 and seen[1] == (64, 1) and seen[-1][0] < 32
    assert sum(rows for rows, _ in seen[1:]) < 1.2 * sum(len(tokens) for tokens, _ in found)


def test_samples_are_seeded_and_differ_among_themselves(policy, tokenizer, ids):
    def draw(seed):
        return answer(policy, tokenizer, [ids[0]] * 8, 16, 4, Sampling(temperature=1.5), seed)

    first = draw(1)
    assert first == draw(1) != draw(2) and len({tuple(tokens) for tokens, _ in first}) > 1


@pytest.mark.parametrize("by_generate", [False, True])
def test_the_models_own_sampling_defaults_are_ignored(by_generate, policy, tokenizer, ids, reference, monkeypatch):
    own = {**policy.generation_config.to_dict(), "repetition_penalty": 9.0, "do_sample": True, "top_k": 3}
    monkeypatch.setattr(policy, "generation_config", type(policy.generation_config)(**own))
    if by_generate:
        monkeypatch.setattr(answering, "reason_against", lambda *_: "a test says so")
    assert answer(policy, tokenizer, ids[:3], 32, 8) == reference[:3]
    for one in (Sampling(temperature=1.5, top_k=1), Sampling(temperature=1.5, top_p=1e-6)):
        assert answer(policy, tokenizer, ids[:3], 32, 4, one) == reference[:3]


def test_every_declared_end_token_ends_a_completion(policy, tokenizer, ids, reference, monkeypatch):
    end = reference[0][0][3]
    monkeypatch.setattr(policy.generation_config, "eos_token_id", [tokenizer.eos_token_id, end])
    first = reference[0][0].index(end)
    # its text is kept, as TRL keeps it for rewards: decoding drops special tokens alone
    assert tokenizer.decode(reference[0][0][: first + 1], skip_special_tokens=True).endswith(tokenizer.decode([end]))
    assert answer(policy, tokenizer, ids[:1], 32, 1) == [(reference[0][0][: first + 1], False)]


@pytest.mark.parametrize("batch_size", [1, 8])
def test_a_stop_string_ends_a_completion_without_padding(policy, tokenizer, ids, reference, monkeypatch, batch_size):
    """Neither is the row truncated, nor does its padding count as tokens."""
    string = tokenizer.decode(reference[0][0][:4])
    monkeypatch.setattr(policy.generation_config, "stop_strings", [string])
    done = Policy(policy, tokenizer, 32, batch_size).complete(ids[:8])
    alone, cut = done[0], [any(string in tokenizer.decode(found[:n]) for n in range(33)) for found, _ in reference[:8]]
    assert alone.text == string and alone.tokens == 4 and not alone.truncated and not all(cut)
    for one, (found, truncated), is_cut in zip(done, reference, cut, strict=False):
        if not is_cut:
            assert (one.ids, one.truncated) == (found, truncated)


def test_a_policy_answers_and_samples_prompts_as_texts(policy, tokenizer):
    questions = [XML.prompt(f"What is {n} + 1?") for n in range(3)]
    asked = Policy(
        policy, tokenizer, limit=40, batch_size=8, prefill="<reasoning>", sampling=Sampling(temperature=1.5)
    )
    answers = asked.answer([{"prompt": question, "answer": "7"} for question in questions], draws=4)
    found = answer(policy, tokenizer, list(tokenized(questions, tokenizer)), 40, 8)
    assert [(done.ids, done.truncated) for done in answers] == found
    assert [done.text for done in answers] == [
        "<reasoning>" + tokenizer.decode(ids, skip_special_tokens=True) for ids, _ in found
    ]
    assert [done.tokens for done in answers] == [len(ids) - (not cut) for ids, cut in found]
    assert [len(done.draws) for done in answers] == [4] * 3 and len({draw.text for draw in answers[0].draws}) > 1
    assert [done.row["prompt"] for done in answers] == questions == [done.draws[3].row["prompt"] for done in answers]
