"""grpo/training/selfcheck.py: what is wrong on this machine is not used, and the fastest of the rest is."""

import json
import time
from dataclasses import replace

import pytest
import torch
from datasets import Dataset
from helpers_runs import DEMO, LEARNS
from transformers import AttentionInterface, AutoModelForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from trl import GRPOConfig

import train_grpo
from grpo.core.errors import UserError
from grpo.training import attention, packable, packing, rollouts, selfcheck
from grpo.training.selfcheck import Gradients, Trial, fastest, trial_rows, try_engine
from grpo.training.trainer import LeanGRPOTrainer


@pytest.fixture(scope="module")
def one(tmp_path_factory, tokenizer):
    lines = (DEMO / "train.jsonl").read_text().splitlines()[:64]
    prompts = [[{"role": "user", "content": json.loads(line)["question"]}] for line in lines]
    config = GRPOConfig(
        output_dir=str(tmp_path_factory.mktemp("run")), use_cpu=True, bf16=False, report_to="none",
        per_device_train_batch_size=8, num_generations=8, max_completion_length=48,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_pretrained(DEMO / "model", dtype=torch.float32)
    return LeanGRPOTrainer(
        model, lambda completions, **_: [0.0] * len(completions), config, Dataset.from_dict({"prompt": prompts}),
        processing_class=tokenizer, generation="lean",
    )  # fmt: skip


@pytest.fixture
def trainer(one, monkeypatch):
    """A trainer of the demo's model, with its prompts; what a test changes of it is as before afterwards."""
    for name in ("_engine", "backend", "pack_tokens"):
        monkeypatch.setattr(one, name, getattr(one, name))
    monkeypatch.setattr(selfcheck, "TOKENS", 24)
    return one


@pytest.fixture(scope="module")
def gradients(one):
    return Gradients(one, selfcheck._prompts(one)[:8], 256)


def without_prompts(pack):
    own, _ = packing.segments(pack)
    return {"attention_mask": attention.block_mask(pack)["attention_mask"] & (own == own[:, None])}


def sdpa(name, arguments=attention.block_mask, implementation="sdpa"):
    return attention.Backend(name, implementation, arguments, 2048)


@pytest.mark.parametrize("limit", [96, 256, 1024])
def test_the_trials_pack_has_the_length_that_cudnn_failed_at(limit, trainer):
    rows = trial_rows(selfcheck._prompts(trainer), limit)
    assert packing.cost(rows) <= limit and all(completion for _, completion in rows)
    assert packing.cost(rows) % 128 == 64 or limit < 192
    assert limit < 256 or len({prompt for prompt, _ in rows}) < len(rows)  # prompts are shared


def test_right_gradients_pass_and_wrong_ones_do_not(gradients):
    right = [gradients.try_out(backend) for backend in (sdpa("mask"), *packable.candidates(gradients.trainer))]
    assert all(trial.off < 1e-4 and not trial.fault and trial.seconds > 0 for trial in right)
    wrong = gradients.try_out(sdpa("without prompts", without_prompts))
    assert wrong.off > 0.1 and "away from float32's" in wrong.fault


def test_a_gradient_with_nan_is_named(gradients):
    def broken(module, query, *args, **kwargs):
        return sdpa_attention_forward(module, query + 0 * (query - query.detach()).abs().sqrt(), *args, **kwargs)

    AttentionInterface.register("broken", broken)
    assert "NaN" in gradients.try_out(sdpa("broken", implementation="broken")).fault


def test_a_trial_leaves_the_model_as_it_was(gradients):
    model, state = gradients.trainer.model.train(), torch.get_rng_state()
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    gradients.try_out(sdpa("mask"))
    assert model.config._attn_implementation == "sdpa" and model.training
    assert all(weight.grad is None and torch.equal(weight, before[name]) for name, weight in model.named_parameters())
    assert torch.equal(state, torch.get_rng_state())


class Wrong(rollouts.Lean):
    """Draws as if the logits were divided by another temperature."""

    name = "wrong"

    def __init__(self, trainer, temperature):
        super().__init__(trainer)
        self.sampling = replace(self.sampling, temperature=temperature)


@pytest.mark.parametrize("engine", ["lean", "hf", "continuous"])
def test_an_engine_that_draws_from_the_policy_passes(engine, trainer):
    trainer._engine = rollouts.choose(trainer, engine)
    trial = try_engine(trainer, selfcheck._prompts(trainer))
    assert (trial.name, trial.fault) == (engine, "") and abs(trial.off) < 0.03 and trial.seconds > 0


@pytest.mark.parametrize("temperature", [0.2, 2.0])
def test_an_engine_with_another_temperature_does_not(temperature, trainer):
    trainer._engine = Wrong(trainer, temperature)
    assert "nats from the policy's distribution" in try_engine(trainer, selfcheck._prompts(trainer)).fault


def test_tokens_of_a_truncated_distribution_may_surprise_less(trainer, monkeypatch):
    monkeypatch.setattr(trainer.args, "top_k", 2)
    trainer._engine = Wrong(trainer, 0.2)
    assert not try_engine(trainer, selfcheck._prompts(trainer)).fault


class Stale(rollouts.Lean):
    """Draws from other weights than the policy's."""

    name = "stale"

    def __call__(self, trainer, prompt_ids):
        weights = {name: weight.clone() for name, weight in trainer.model.state_dict().items()}
        torch.manual_seed(0)
        with torch.no_grad():
            for weight in trainer.model.parameters():
                weight += 0.6 * weight.std() * torch.randn_like(weight)
        completions = super().__call__(trainer, prompt_ids)
        trainer.model.load_state_dict(weights)
        return completions


def test_an_engine_with_other_weights_does_not_pass(trainer):
    trainer._engine = Stale(trainer)
    assert "nats from the policy's" in try_engine(trainer, selfcheck._prompts(trainer)).fault


WRONG_ENDS = {"late": lambda ids: [*ids, 7], "early": lambda ids: ids[:-1] or [7, 7], "twice": lambda ids: ids * 60}


@pytest.mark.parametrize("change", WRONG_ENDS.values(), ids=WRONG_ENDS)
def test_completions_that_end_wrongly_are_seen(change, trainer):
    class Changed(rollouts.Lean):
        def __call__(self, trainer, prompt_ids):
            return [change(ids) for ids in super().__call__(trainer, prompt_ids)]

    trainer._engine = Changed(trainer)
    assert "do not end" in try_engine(trainer, selfcheck._prompts(trainer)).fault


def test_the_fastest_right_one_is_taken_and_others_named(trainer, monkeypatch, capsys):
    mask, wrong, slow = sdpa("mask"), sdpa("wrong", without_prompts), sdpa("slow", implementation="slow")

    now = [0.0]

    def tick(device):
        now[0] += 0.001
        return now[0]

    def sleepy(*args, **kwargs):
        now[0] += 1
        return sdpa_attention_forward(*args, **kwargs)

    def fails(pack):
        raise RuntimeError("no kernel\nfor this GPU")

    AttentionInterface.register("slow", sleepy)
    monkeypatch.setattr(packable, "candidates", lambda trainer: [slow, sdpa("fails", fails), wrong, mask])
    monkeypatch.setattr(selfcheck, "TIMED", 256)
    monkeypatch.setattr(selfcheck, "_clock", tick)
    state = torch.get_rng_state()
    trials = selfcheck.run(trainer, race=False, pack_tokens=None)
    assert torch.equal(state, torch.get_rng_state())
    assert [trial["name"] for trial in trials if trial["chosen"]] == ["mask", "lean"]
    assert trainer.backend is mask and trainer.pack_tokens == 2048
    shown = capsys.readouterr().out
    assert "note: attention by fails is not used: RuntimeError: no kernel for this GPU" in shown
    assert "note: attention by wrong is not used: its gradient" in shown
    assert "Self-check: attention by mask" in shown and "(slow " in shown


def test_what_only_raises_leaves_attention_as_it_is(trainer, monkeypatch, capsys):
    def full(*args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")

    monkeypatch.setattr(Gradients, "_backward", full)
    before = trainer.backend
    trials = selfcheck.run(trainer, race=False, pack_tokens=None)
    assert trainer.backend is before and [trial["name"] for trial in trials if trial["chosen"]] == ["lean"]
    shown = capsys.readouterr().out
    assert "is not used: it needs more memory than there is" in shown and "note: attention is not checked" in shown


def test_the_engine_that_stays_begins_anew_and_says_its_own_size(trainer, capsys):
    trainer._engine = rollouts.Continuous(trainer)
    try_engine(trainer, selfcheck._prompts(trainer)[:2])
    assert "Rollouts:" not in capsys.readouterr().out and trainer._engine.max_new_tokens == 48
    selfcheck.run(trainer, race=False, pack_tokens=None)
    assert trainer._engine.name == "continuous" and trainer._engine.decoder is None
    trainer._engine(trainer, selfcheck._prompts(trainer)[:2])
    assert "Rollouts: continuous batching, 2 rows of 256" in capsys.readouterr().out


def test_nothing_right_ends_the_run_with_a_remedy():
    trials = [Trial("generation", "vllm", 1.0, 0.9, "its tokens are off"), Trial("attention", "mask", 1.0)]
    assert fastest(trials, "attention", "").name == "mask"
    with pytest.raises(UserError, match=r"no generation gives right results .*vllm: its tokens are off.*hf"):
        fastest(trials, "generation", "--generation hf")


def test_what_was_refused_before_is_not_tried(trainer, monkeypatch):
    wrong, mask = sdpa("wrong"), sdpa("mask")
    monkeypatch.setattr(packable, "candidates", lambda trainer: [wrong, mask])
    monkeypatch.setattr(trainer, "refused", {"wrong"})
    trials = selfcheck.run(trainer, race=False, pack_tokens=None)
    assert [trial["name"] for trial in trials] == ["mask", "lean"]


def test_a_lost_gpu_ends_the_run_with_the_name_of_what_lost_it(monkeypatch):
    def attempt(name):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: attempt(""))
    with pytest.raises(UserError, match=r"hf made the GPU unusable .*illegal memory access"):
        selfcheck._each("generation", ["hf"], attempt, deadline=time.monotonic() + 9)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    (trial,) = selfcheck._each("generation", ["hf"], attempt, deadline=time.monotonic() + 9)
    assert trial.raised


def test_a_remedy_of_its_own_is_not_swallowed():
    def attempt(name):
        raise UserError("generation: use another")

    with pytest.raises(UserError, match="use another"):
        selfcheck._each("generation", ["continuous"], attempt, deadline=time.monotonic() + 9)


def test_what_comes_after_the_budget_is_not_tried(capsys):
    def attempt(name):
        return Trial("generation", name, 1.0)

    trials = selfcheck._each("generation", ["first", "second"], attempt, deadline=time.monotonic() - 1)
    assert [trial.name for trial in trials] == ["first"]
    assert "note: second is not tried" in capsys.readouterr().out


def test_it_is_for_gpus_unless_asked_for(trainer, monkeypatch):
    assert not selfcheck.wanted(trainer, None) and selfcheck.wanted(trainer, True)
    monkeypatch.setattr(trainer.accelerator.state, "device", torch.device("cuda"))
    assert selfcheck.wanted(trainer, None) and not selfcheck.wanted(trainer, False)


@pytest.mark.slow
def test_a_run_records_and_reports_its_self_check(tiny_run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    few = {"max_steps": "1", "eval_samples": "4", "save_strategy": "no"}
    assert train_grpo.main(tiny_run(**{**LEARNS, **few}, self_check="true")) == 0
    trials = json.loads((tmp_path / "run/run.json").read_text())["self_check"]
    assert {(trial["kind"], trial["chosen"]) for trial in trials} >= {("attention", True), ("generation", True)}
    assert {trial["name"] for trial in trials} >= {"lean", "hf"}  # generation is auto: a race
    assert "Self-check: attention by sdpa, segment by segment" in capsys.readouterr().out
    assert "What was tried on this machine" in (tmp_path / "run/report.html").read_text()
