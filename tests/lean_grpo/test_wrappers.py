"""lean_grpo/wrappers.py: what wraps a model changes neither what is sampled nor what is decided about it."""

import pytest
import torch
from helpers_runs import DEMO
from helpers_trainer import make_trainer
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForCausalLM, MambaConfig, MambaForCausalLM

from grpo.policy.answering import Policy
from lean_grpo import LeanGRPOTrainer, models, sampling, wrappers

PROMPTS = [[5, 6, 7], [8, 9]]


def compiled(model):
    return torch.compile(model, backend="eager")


def adapted(model):
    torch.manual_seed(0)
    return get_peft_model(model, LoraConfig(target_modules=["q_proj"], init_lora_weights=False))


WRAPPERS = {
    "compiled": [compiled],
    "adapter": [adapted],
    "DDP": [DistributedDataParallel],
    "compiled adapter": [adapted, compiled],
    "adapter of a compiled model": [compiled, adapted],
    "compiled DDP": [DistributedDataParallel, compiled],
    "DDP of a compiled adapter": [adapted, compiled, DistributedDataParallel],
}


@pytest.fixture(scope="module")
def _one_process(tmp_path_factory):
    init_process_group("gloo", init_method=f"file://{tmp_path_factory.mktemp('group')}/store", rank=0, world_size=1)
    yield
    destroy_process_group()


@pytest.mark.parametrize("name", WRAPPERS)
def test_a_wrapped_model_samples_as_it_does_alone(name, tokenizer, _one_process):
    model = AutoModelForCausalLM.from_pretrained(DEMO / "model", dtype=torch.float32)
    alone = adapted(model) if "adapter" in name else model
    expected = Policy(alone, tokenizer, 12, 4).complete(PROMPTS)
    if "adapter" in name:
        alone.unload()
        model = AutoModelForCausalLM.from_pretrained(DEMO / "model", dtype=torch.float32)
    for wrap in WRAPPERS[name]:
        model = wrap(model)
    assert sampling.reason_against(model) is None
    assert type(wrappers.base_of(model)).__name__ == "Qwen2ForCausalLM"
    with sampling.sampling_mode(model):
        found = sampling.complete(model, tokenizer, PROMPTS, [tokenizer.eos_token_id], 12)
    assert found == [done.ids for done in expected]
    assert Policy(model, tokenizer, 12, 4).complete(PROMPTS) == expected


@pytest.mark.parametrize("wrap", [None, compiled])
def test_a_model_that_the_sampler_does_not_support_is_refused(wrap, tokenizer):
    """In the sampler itself, so that no caller samples without a cache."""
    states = MambaForCausalLM(MambaConfig(vocab_size=512, hidden_size=16, num_hidden_layers=1, state_size=4))
    virtual = get_peft_model(
        AutoModelForCausalLM.from_pretrained(DEMO / "model"),
        PromptTuningConfig(num_virtual_tokens=2, task_type="CAUSAL_LM"),
    )
    for model, reason in ((states, "the model has states"), (virtual, "the adapter adds tokens to the prompt")):
        model = wrap(model) if wrap else model
        assert reason in sampling.reason_against(model)
        with pytest.raises(ValueError, match=reason):
            sampling.complete(model, tokenizer, PROMPTS, [2], 4)


LORA = LoraConfig(target_modules=["q_proj"])


class WithoutCache(torch.nn.Module):
    def forward(self, input_ids, position_ids=None, logits_to_keep=0):
        """A forward that would ignore a cache."""


def test_a_forward_without_a_cache_has_no_argument_for_it():
    assert models.cache_argument(WithoutCache()) is None


@pytest.mark.slow
@pytest.mark.parametrize("adapter", [None, pytest.param(LORA, marks=pytest.mark.slow)], ids=["all", "adapter"])
@pytest.mark.parametrize("by", ["setting", pytest.param("launcher", marks=pytest.mark.slow)])
def test_rollouts_of_a_compiled_run_are_those_of_a_plain_one(by, adapter, tmp_path, monkeypatch, capsys):
    """Also where a launcher asks for it: by its environment."""

    def rollouts(**settings):
        seen = []

        def reward(completion_ids, **kwargs):
            seen.extend(completion_ids)
            return [float(place % 3) for place in range(len(completion_ids))]

        torch.manual_seed(0)
        trainer = make_trainer(
            LeanGRPOTrainer, DEMO / "model", tmp_path, reward=reward, peft=adapter, lengths="sampled", max_steps=1,
            own={"packed": False} if not settings and by == "setting" else {}, **settings,
        )  # fmt: skip
        trainer.train()
        return seen, trainer

    plain, _ = rollouts()
    capsys.readouterr()
    if by == "launcher":
        monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "EAGER")
        found, trainer = rollouts()
    else:
        found, trainer = rollouts(torch_compile=True, torch_compile_backend="eager")
    assert trainer.model_wrapped is not trainer.model  # it was compiled
    assert found == plain
    assert trainer.kernel is None and "torch_compile" in capsys.readouterr().out
