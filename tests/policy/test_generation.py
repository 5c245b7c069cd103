"""grpo/policy/generation.py: the completions of `model.generate`, whatever the batch does.

Other architectures: tests/training/test_exactness.py; distributions and adapters: tests/training/test_rollouts.py.
"""

import pytest
import torch
from helpers_runs import DEMO
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from grpo.data import dataset, prompts, sources
from grpo.policy import generation
from grpo.policy.generation import Sampling, eos_ids, generate
from train_grpo import EXEMPLARS, PROMPT_FORMATS

COUNT = 16


@pytest.fixture(scope="module")
def demo():
    return AutoModelForCausalLM.from_pretrained(DEMO / "model", dtype=torch.float32)


@pytest.fixture(scope="module")
def ids(tokenizer):
    """Prompts of different lengths."""
    rows = sources.load_source(str(DEMO / "test.jsonl"))["train"].select(range(COUNT))
    style = PROMPT_FORMATS["xml"]
    asked = dataset.make_prompts(rows, lambda question: style.prompt(question, EXEMPLARS[: len(question) % 2]))[0]
    return prompts.tokenize(asked["prompt"], tokenizer)


def stock(model, tokenizer, ids, limit):
    """One prompt at a time by `model.generate`."""
    found, ends = [], eos_ids(model, tokenizer)
    model.eval()
    for prompt in ids:
        output = model.generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long), do_sample=False,
            max_new_tokens=limit, eos_token_id=ends, pad_token_id=tokenizer.pad_token_id, repetition_penalty=1.0,
        )[0, len(prompt) :].tolist()  # fmt: skip
        end = next((place for place, token in enumerate(output) if token in ends), None)
        found.append((output[:end], end is None))
    return found


@pytest.fixture(scope="module")
def reference(demo, tokenizer, ids):
    return stock(demo, tokenizer, ids, 32)  # some are cut off, most end at different lengths


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [3, 8, 64])
def test_greedy_completions_are_those_of_generate(batch_size, demo, tokenizer, ids, reference):
    assert len({len(tokens) for tokens, _ in reference}) > 5 and 0 < sum(cut for _, cut in reference) < COUNT
    assert generate(demo, tokenizer, ids, 32, batch_size) == reference


def test_sequences_may_fill_all_positions_of_the_model(tokenizer):
    """A row that has ended waits for others to leave with it, and must not be computed beyond the last position."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=512, n_embd=48, n_layer=2, n_head=4, n_positions=60))
    prompts = [[5 + row] * 20 for row in range(64)]
    assert all(len(tokens) == 40 or not cut for tokens, cut in generate(model, tokenizer, prompts, 40, 64))
    drawn = generate(model, tokenizer, prompts, 40, 64, Sampling(temperature=1.0, seed=0))
    assert any(not cut for _, cut in drawn) and any(cut for _, cut in drawn)


def test_the_batch_is_kept_full(demo, tokenizer, ids, monkeypatch):
    widths = []
    real = generation._Batch.step
    monkeypatch.setattr(generation._Batch, "step", lambda self: (widths.append(len(self.rows)), real(self)))
    found = generate(demo, tokenizer, ids, 60, 6)
    before_the_end = widths[: len(widths) // 2]
    assert max(widths) == 6 and min(before_the_end) >= 4
    assert sum(widths) < 1.2 * sum(len(tokens) for tokens, _ in found)


def test_samples_are_seeded_and_differ_among_themselves(demo, tokenizer, ids):
    def draw(seed):
        return generate(demo, tokenizer, [ids[0]] * 8, 16, 4, Sampling(temperature=1.5, seed=seed))

    first = draw(1)
    assert first == draw(1) != draw(2) and len({tuple(tokens) for tokens, _ in first}) > 1


@pytest.mark.parametrize("fallback", [False, True])
def test_the_models_own_sampling_defaults_are_ignored(fallback, demo, tokenizer, ids, reference, monkeypatch):
    own = {**demo.generation_config.to_dict(), "repetition_penalty": 9.0, "do_sample": True, "top_k": 3}
    monkeypatch.setattr(demo, "generation_config", type(demo.generation_config)(**own))
    if fallback:
        monkeypatch.setattr(generation, "obstacle", lambda model: "a test says so")
    assert generate(demo, tokenizer, ids[:6], 32, 8) == reference[:6]
    for one in (Sampling(temperature=1.5, top_k=1), Sampling(temperature=1.5, top_p=1e-6)):
        assert generate(demo, tokenizer, ids[:6], 32, 4, one) == reference[:6]


def test_samples_follow_the_policys_distribution(demo, tokenizer, ids):
    """That of the rollouts is TRL's: tests/training/test_rollouts.py."""
    with torch.no_grad():
        shares = demo.eval()(torch.tensor([ids[0]])).logits[0, -1].div(2.0).softmax(-1)
    drawn = generate(demo, tokenizer, [ids[0]] * 1000, 1, 250, Sampling(temperature=2.0, seed=1))
    tokens = torch.tensor([tokens[0] if tokens else tokenizer.eos_token_id for tokens, _ in drawn])
    counts = tokens.bincount(minlength=len(shares))
    assert torch.allclose(counts / 1000, shares, atol=0.04) and (counts > 0).sum() > 5


def test_a_repetition_penalty_is_left_to_generate(demo, tokenizer, ids, reference, capsys):
    drawn = generate(demo, tokenizer, ids[:2], 32, 2, Sampling(top_k=1, repetition_penalty=9.0))
    assert drawn != reference[:2] and "model.generate, because a repetition_penalty is set" in capsys.readouterr().out


@pytest.mark.parametrize("sampling", [None, Sampling(temperature=1.0)])
def test_the_models_mode_and_the_random_state_stay(sampling, demo, tokenizer, ids):
    demo.train()
    state = torch.get_rng_state()
    generate(demo, tokenizer, ids[:3], 4, 2, sampling)
    assert demo.training and torch.equal(state, torch.get_rng_state())
    demo.eval()
