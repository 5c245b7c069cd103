"""grpo/training/rollouts.py: completions as TRL's own path samples them, in another order of work."""

from collections import Counter

import pytest
import torch
from datasets import Dataset
from helpers_runs import DEMO
from helpers_trainer import trained
from peft import LoraConfig
from transformers import AutoModelForCausalLM
from trl import GRPOConfig, GRPOTrainer

from grpo.core.errors import UserError
from grpo.training import rollouts
from grpo.training.trainer import LeanGRPOTrainer

QUESTIONS = ["What is 3 + 4?", "Tom has 12 apples and eats 5. How many are left?", "What is 2 * 7?"]


@pytest.fixture(scope="module")
def ids(tokenizer):
    """Three prompts of different lengths, each four times, in groups that are not next to each other."""
    chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
    return 4 * [tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"] for chat in chats]


@pytest.fixture(scope="module")
def make(tmp_path_factory, tokenizer):
    """A stock trainer of the demo's model."""

    def trainer(peft_config=None, **settings):
        config = GRPOConfig(
            output_dir=str(tmp_path_factory.mktemp("run")), use_cpu=True, report_to="none",
            per_device_train_batch_size=4, num_generations=4,
            **{"max_completion_length": 24, "bf16": False, **settings},
        )  # fmt: skip
        rows = Dataset.from_list([{"prompt": question} for question in QUESTIONS])
        model = AutoModelForCausalLM.from_pretrained(DEMO / "model", dtype=torch.float32)
        return GRPOTrainer(
            model, lambda completions, **_: [float(len(text)) for text in completions], config, rows,
            processing_class=tokenizer, peft_config=peft_config,
        )  # fmt: skip

    return trainer


@pytest.fixture
def make_lean(tmp_path, tokenizer):
    """A LeanGRPOTrainer of the demo's model with TRL's training step, under bfloat16 autocast."""

    def trainer(**options):
        config = GRPOConfig(
            output_dir=str(tmp_path), use_cpu=True, bf16=True, report_to="none", per_device_train_batch_size=4,
            num_generations=4, max_completion_length=4,
        )  # fmt: skip
        rows = Dataset.from_list([{"prompt": question} for question in QUESTIONS])
        model = AutoModelForCausalLM.from_pretrained(DEMO / "model", dtype=torch.float32)
        reward = lambda completions, **_: [0.0] * len(completions)  # noqa: E731
        return LeanGRPOTrainer(model, reward, config, rows, processing_class=tokenizer, packed=False, **options)

    return trainer


@pytest.fixture(scope="module")
def usual(make):
    return make()


def stock(trainer, ids):
    return GRPOTrainer._generate_single_turn(trainer, ids, None, {}, 4)[0]


@pytest.mark.parametrize("limit", [1, 24, 60])
def test_a_cold_policy_completes_as_trl_does(limit, make, tokenizer, ids):
    trainer = make(temperature=1e-4, max_completion_length=limit)
    found = rollouts.choose(trainer, "lean")(trainer, ids)
    assert found == stock(trainer, ids)
    ended = [tokens[-1] == tokenizer.eos_token_id for tokens in found]
    assert all(end or len(tokens) == limit for tokens, end in zip(found, ended, strict=True))
    assert all(ended) if limit == 60 else not all(ended)


@pytest.mark.parametrize("end", [True, False])
def test_completions_of_the_end_token_alone_and_without_one(end, make, tokenizer, ids):
    trainer = make(max_completion_length=5)
    eos = tokenizer.eos_token_id
    with torch.no_grad():
        trainer.model.get_output_embeddings().register_forward_hook(
            lambda module, inputs, logits: logits.index_fill(-1, torch.tensor([eos]), 1e9 if end else -1e9)
        )
    found = rollouts.choose(trainer, "lean")(trainer, ids)
    assert found == 12 * [[eos]] if end else all(len(tokens) == 5 and eos not in tokens for tokens in found)
    assert [len(tokens) for tokens in found] == [len(tokens) for tokens in stock(trainer, ids)]


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
    ours = Counter(map(tuple, rollouts.choose(trainer, "lean")(trainer, count * [ids[1]])))
    trl = Counter(map(tuple, stock(trainer, count * [ids[1]])))
    for pair in ours | trl:
        share = (ours[pair] + trl[pair]) / (2 * count)
        assert abs(ours[pair] - trl[pair]) <= 5 * (2 * count * share * (1 - share)) ** 0.5 + 1, pair


def test_the_global_random_state_decides(usual, ids):
    sample = rollouts.choose(usual, "lean")
    torch.manual_seed(7)
    first, state = sample(usual, ids), torch.get_rng_state()
    second = sample(usual, ids)
    torch.set_rng_state(state)  # as a resumed run does, with an engine that begins anew
    assert rollouts.choose(usual, "lean")(usual, ids) == second != first
    torch.manual_seed(8)  # as another process has
    assert sample(usual, ids) != first
    same = [tuple(tokens) for tokens, prompt in zip(first, ids, strict=True) if prompt == ids[0]]
    assert len(set(same)) > 1


@pytest.mark.slow
def test_an_adapter_takes_part_and_dropout_does_not(make, ids):
    torch.manual_seed(0)
    adapter = LoraConfig(target_modules=["q_proj", "v_proj"], init_lora_weights=False, lora_dropout=0.5)
    trainer = make(peft_config=adapter, temperature=1e-4)
    trainer.model.train()
    sample = rollouts.choose(trainer, "lean")
    found = sample(trainer, ids)
    assert found == sample(trainer, ids) and trainer.model.training
    assert stock(trainer, ids) != found  # TRL samples from a policy with holes
    trainer.model.eval()
    assert stock(trainer, ids) == found and not (sample(trainer, ids) != found or trainer.model.training)
    with trainer.model.disable_adapter():
        assert sample(trainer, ids) != found


def test_checkpointing_is_off_while_decoding_and_on_afterwards(make, ids, monkeypatch):
    trainer, seen = make(temperature=1e-4), []
    real = rollouts.complete_in_full_batch
    monkeypatch.setattr(
        rollouts,
        "complete_in_full_batch",
        lambda model, *rest: (seen.append(model.is_gradient_checkpointing), real(model, *rest))[1],
    )
    trainer.model.gradient_checkpointing_enable()
    trainer.model.train()
    assert rollouts.choose(trainer, "lean")(trainer, ids) == stock(trainer, ids)
    assert seen == [False] and trainer.model.is_gradient_checkpointing and trainer.model.training


def test_auto_is_lean(usual):
    assert type(rollouts.choose(usual)) is rollouts.Lean
    assert rollouts.choose(usual, "hf") is None


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"generation_kwargs": {"no_repeat_ngram_size": 2}}, "the settings ask for no_repeat_ngram_size"),
        ({"generation_kwargs": {"do_sample": False}}, "the settings ask for do_sample=False"),
        ({"repetition_penalty": 1.1}, "the settings ask for repetition_penalty"),
    ],
    ids=["ngrams", "greedy", "penalty"],
)
def test_what_lean_cannot_do_is_left_to_generate_in_one_line(settings, reason, make, capsys):
    assert rollouts.choose(make(**settings)) is None
    assert capsys.readouterr().out == (f"note: rollouts are sampled by model.generate, not lean, because {reason}\n")


def test_settings_of_the_models_own_count_where_trls_say_nothing(make, capsys):
    trainer = make()
    trainer.model.generation_config.min_p = 0.3
    trainer.model.generation_config.repetition_penalty = 1.1  # as Qwen2.5's; TRL's 1.0 counts
    assert rollouts.choose(trainer, "lean").sampling.min_p == 0.3
    trainer.model.generation_config.no_repeat_ngram_size = 3
    assert rollouts.choose(trainer, "lean") is None and "no_repeat_ngram_size" in capsys.readouterr().out


def test_vllm_needs_its_switch_and_trls_batching_is_refused(usual, monkeypatch):
    with pytest.raises(UserError, match="needs use_vllm=True"):
        rollouts.choose(usual, "vllm")
    monkeypatch.setattr(usual.args, "use_transformers_continuous_batching", True)
    with pytest.raises(UserError, match=r"use_transformers_continuous_batching: .* drop it"):
        rollouts.choose(usual, "auto")


def test_a_cache_of_the_users_own_choice_stays(make):
    trainer = make(cache_implementation="static")
    assert rollouts.choose(trainer) is None and trainer.generation_config.disable_compile
    with pytest.raises(UserError, match="lean contradicts cache_implementation"):
        rollouts.choose(trainer, "lean")


# --- In training


@pytest.mark.parametrize("adapter", [None, LoraConfig(target_modules=["q_proj", "up_proj"])], ids=["all", "adapter"])
def test_rollouts_follow_each_optimizer_step(adapter, tmp_path, tokenizer, monkeypatch):
    """A cold policy's completions at each step are `generate`'s with the weights of that step."""
    compared, real = [], LeanGRPOTrainer._generate_single_turn

    def sample(self, prompt_ids, *rest):
        found = real(self, prompt_ids, *rest)[0]
        compared.append((found, stock(self, prompt_ids)))
        return found, None

    monkeypatch.setattr(LeanGRPOTrainer, "_generate_single_turn", sample)
    model = AutoModelForCausalLM.from_pretrained(DEMO / "model", dtype=torch.float32)
    trained(
        LeanGRPOTrainer, model, tmp_path, peft=adapter, lengths="sampled", own={"generation": "lean"}, max_steps=3,
        temperature=1e-4, learning_rate=0.3,
        reward=lambda completions, **_: [float(place % 3) for place in range(len(completions))],
    )  # fmt: skip
    assert len(compared) == 3 and all(ours == theirs for ours, theirs in compared)
    assert compared[0][0] != compared[2][0]


@pytest.mark.parametrize("engine", ["lean", "hf"])
def test_rollouts_compute_like_the_loss(engine, make_lean):
    """bfloat16 under autocast, also in an adapter's base model; merged, on sdpa; afterwards as it was."""
    trainer = make_lean(generation=engine, peft_config=LoraConfig(target_modules=["q_proj"], init_lora_weights=False))
    base, seen = trainer.model.get_base_model(), set()
    base.config._attn_implementation = "flash_attention_2"  # trains with it, where there is one
    layer = base.model.layers[0].self_attn.q_proj
    before = layer.base_layer.weight.detach().clone()
    base.lm_head.register_forward_hook(
        lambda module, inputs, logits: seen.add((logits.dtype, base.config._attn_implementation, layer.merged))
    )
    trainer._generate_single_turn([[5, 6, 7], [8, 9]], None, {}, 2)
    assert seen == {(torch.bfloat16, "sdpa", True)}
    assert base.config._attn_implementation == "flash_attention_2" and not layer.merged
    assert torch.equal(layer.base_layer.weight, before)
