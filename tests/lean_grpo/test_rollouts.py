"""Rollouts are what TRL's own path samples, in another order of work (lean_grpo/sampling.py)."""

from collections import Counter

import pytest
import torch
from helpers_runs import DEMO
from helpers_trainer import make_trainer
from peft import LoraConfig
from transformers.generation.continuous_batching.requests import GenerationOutput
from trl import GRPOTrainer

from lean_grpo import LeanGRPOTrainer, sampling

QUESTIONS = ["What is 3 + 4?", "Tom has 12 apples and eats 5. How many are left?", "What is 2 * 7?"]


@pytest.fixture(scope="module")
def ids(tokenizer):
    """Three prompts of different lengths, each four times, in groups that are not next to each other."""
    chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
    return 4 * [tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"] for chat in chats]


@pytest.fixture
def make(tmp_path):
    """A trainer of the demo's model that samples."""

    def make(**settings):
        return make_trainer(LeanGRPOTrainer, DEMO / "model", tmp_path, lengths="sampled", **settings)

    return make


def sample(trainer, ids):
    return trainer._generate_single_turn(ids, None, {}, 4)[0]


def stock(trainer, ids):
    return GRPOTrainer._generate_single_turn(trainer, ids, None, {}, 4)[0]


@pytest.mark.parametrize("limit", [1, 24, 60])
def test_a_cold_policy_completes_as_trl_does(limit, make, tokenizer, ids):
    trainer = make(temperature=1e-4, max_completion_length=limit)
    found = sample(trainer, ids)
    assert found == stock(trainer, ids)
    ended = [tokens[-1] == tokenizer.eos_token_id for tokens in found]
    assert all(end or len(tokens) == limit for tokens, end in zip(found, ended, strict=True))
    assert all(ended) if limit == 60 else not all(ended)


def test_a_completion_may_be_the_end_token_alone(make, tokenizer, ids):
    trainer, end = make(max_completion_length=5), tokenizer.eos_token_id
    trainer.model.get_output_embeddings().register_forward_hook(
        lambda module, inputs, logits: logits.index_fill(-1, torch.tensor([end]), 1e9)
    )
    with torch.no_grad():
        assert sample(trainer, ids) == stock(trainer, ids) == 12 * [[end]]


SETTINGS = [
    {},
    {"temperature": 1.5, "top_k": 5, "top_p": 0.9},
    {"temperature": 1.5, "min_p": 0.05},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: "-".join(settings) or "usual")
def test_samples_have_the_distribution_of_trls(settings, make, ids):
    """Of two tokens after one prompt: as many of a kind as the other's shares say, up to 5 standard deviations."""
    trainer, count = make(max_completion_length=2, **settings), 250
    torch.manual_seed(0)
    ours = Counter(map(tuple, sample(trainer, count * [ids[1]])))
    trl = Counter(map(tuple, stock(trainer, count * [ids[1]])))
    for pair in ours | trl:
        share = (ours[pair] + trl[pair]) / (2 * count)
        assert abs(ours[pair] - trl[pair]) <= 5 * (2 * count * share * (1 - share)) ** 0.5 + 1, pair


def test_the_global_random_state_decides(make, ids):
    trainer = make()
    torch.manual_seed(7)
    first, state = sample(trainer, ids), torch.get_rng_state()
    second = sample(trainer, ids)
    torch.set_rng_state(state)  # as a resumed run does
    assert sample(trainer, ids) == second != first
    torch.manual_seed(8)  # as another process has
    assert sample(trainer, ids) != first
    same = [tuple(tokens) for tokens, prompt in zip(first, ids, strict=True) if prompt == ids[0]]
    assert len(set(same)) > 1


def test_an_adapter_takes_part_and_dropout_does_not(make, ids):
    torch.manual_seed(0)
    adapter = LoraConfig(target_modules=["q_proj", "v_proj"], init_lora_weights=False, lora_dropout=0.5)
    trainer = make(peft=adapter, temperature=1e-4)
    trainer.model.train()
    found = sample(trainer, ids)
    assert found == sample(trainer, ids) and trainer.model.training
    assert stock(trainer, ids) != found  # TRL samples from a policy with holes
    trainer.model.eval()
    assert stock(trainer, ids) == found == sample(trainer, ids) and not trainer.model.training
    with trainer.model.disable_adapter():
        assert sample(trainer, ids) != found


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"generation_kwargs": {"no_repeat_ngram_size": 2}}, "no_repeat_ngram_size is set"),
        ({"repetition_penalty": 1.1}, "repetition_penalty is set"),
        ({"max_completion_length": None}, "neither max_completion_length nor max_new_tokens is set"),
    ],
)
def test_settings_of_generate_alone_are_left_to_it(settings, reason, make, ids, monkeypatch, capsys):
    trainer = make(temperature=1e-4, **settings)
    assert f"note: model.generate samples the rollouts, because {reason}\n" in capsys.readouterr().out
    monkeypatch.setattr(sampling, "complete", None)
    assert sample(trainer, ids[:2]) == stock(trainer, ids[:2])


@pytest.mark.parametrize("adapter", [None, LoraConfig(target_modules=["q_proj", "up_proj"])], ids=["all", "adapter"])
def test_rollouts_follow_each_optimizer_step(adapter, make, monkeypatch):
    """A cold policy's completions are `generate`'s with the weights of that step, and nothing is checkpointed then."""
    compared, checkpointed, plain = [], [], sampling.complete

    def both(self, prompt_ids, *rest):
        found = real(self, prompt_ids, *rest)[0]
        compared.append((found, stock(self, prompt_ids)))
        return found, None

    def complete(model, *rest, **others):
        checkpointed.append(model.is_gradient_checkpointing)
        return plain(model, *rest, **others)

    real = LeanGRPOTrainer._generate_single_turn
    monkeypatch.setattr(LeanGRPOTrainer, "_generate_single_turn", both)
    monkeypatch.setattr(sampling, "complete", complete)
    trainer = make(
        peft=adapter, max_steps=3, temperature=1e-4, learning_rate=0.3, gradient_checkpointing=True,
        reward=lambda completions, **_: [float(place % 3) for place in range(len(completions))],
    )  # fmt: skip
    trainer.train()
    assert len(compared) == 3 and all(ours == theirs for ours, theirs in compared)
    assert compared[0][0] != compared[2][0]
    assert checkpointed == [False] * 3 and trainer.model.is_gradient_checkpointing


def test_rollouts_compute_like_the_loss(make):
    """bfloat16 under autocast, also in an adapter's base model, which keeps its float32 weights."""
    trainer = make(bf16=True, peft=LoraConfig(target_modules=["q_proj"], init_lora_weights=False))
    base, seen = trainer.model.get_base_model(), set()
    base.lm_head.register_forward_hook(lambda module, inputs, logits: seen.add(logits.dtype))
    sample(trainer, [[5, 6, 7], [8, 9]])
    assert seen == {torch.bfloat16} and base.lm_head.weight.dtype == torch.float32


# --- Continuous batching


@pytest.mark.parametrize("adapter", [None, LoraConfig(target_modules=["q_proj"])], ids=["all", "adapter"])
def test_continuous_batching_keeps_the_weights(adapter, make, ids):
    """TRL casts them to bfloat16 in place, and with them what AdamW knows; buffers, too."""
    small = {"num_blocks": 16, "max_batch_tokens": 256}
    trainer = make(
        bf16=True, use_transformers_continuous_batching=True, transformers_continuous_batching_config=small,
        peft=adapter, max_completion_length=4,
    )  # fmt: skip
    before = {
        name: tensor.clone() for name, tensor in [*trainer.model.named_parameters(), *trainer.model.named_buffers()]
    }
    cast = []
    trainer.model.get_output_embeddings().register_forward_hook(lambda module, *_: cast.append(module.weight.dtype))
    found = sample(trainer, ids)
    after = dict([*trainer.model.named_parameters(), *trainer.model.named_buffers()])
    assert set(cast) == {torch.bfloat16}  # as TRL samples
    assert all(
        torch.equal(after[name], tensor) and after[name].dtype == tensor.dtype for name, tensor in before.items()
    )
    assert "generate_batch" not in vars(trainer.model) and len(found) == len(ids)


@pytest.mark.parametrize("kind", ["failed", "missing"])
def test_continuous_batching_that_loses_rows_raises(kind, make, ids, monkeypatch):
    def generate_batch(self, prompts, **kwargs):
        outputs = {index: GenerationOutput(str(index), generated_tokens=[5]) for index in range(len(prompts))}
        if kind == "failed":
            outputs[3].error = "CUDA out of memory"
        else:
            del outputs[3]
        return outputs

    trainer = make(use_transformers_continuous_batching=True)
    monkeypatch.setattr(type(trainer.model), "generate_batch", generate_batch)
    reason = ": CUDA out of memory" if kind == "failed" else ", as its log says"
    with pytest.raises(RuntimeError, match=f"^continuous batching lost 1 of 12 rows{reason}$"):
        sample(trainer, ids)
