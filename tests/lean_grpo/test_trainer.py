"""lean_grpo/trainer.py: a step computes what can move the policy, in bounded packs, and logs what it computed.

Its gradient is stock TRL's: test_exactness.py.
"""

import time
from pathlib import Path

import pytest
import torch
import trl
from helpers_trainer import PROMPTS, completions, largest_difference, make_trainer, no_group_lives, trained
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary
from transformers import AutoModelForCausalLM
from trl import GRPOTrainer
from trl.chat_template_utils import add_response_schema

from lean_grpo import LeanGRPOTrainer, attention, micro_batches, packing
from lean_grpo.decoding import Waits
from lean_grpo.overrides import same_loss


def shapes_of(model):
    """The shapes of what goes through a model, as a list that grows."""
    seen = []
    model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["input_ids"].shape), with_kwargs=True
    )
    return seen


def loaded(tiny_model):
    return AutoModelForCausalLM.from_pretrained(tiny_model, dtype="float32")


def test_no_more_than_a_pack_is_computed_at_once(tiny_model, tmp_path):
    """pack_tokens bounds the memory of a step, whatever the micro-batch is."""
    seen = shapes_of(model := loaded(tiny_model))
    trained(LeanGRPOTrainer, model, tmp_path, own={"pack_tokens": 64})
    assert len(seen) > 3 and max(rows * length for rows, length in seen) <= 64


@pytest.mark.parametrize(
    ("own", "shapes"), [({}, [(1, 41)]), ({"pack_tokens": 40}, [(1, 31), (1, 21)])], ids=["none chosen", "40 chosen"]
)
def test_a_group_is_whole_where_no_size_was_chosen(tiny_model, tmp_path, monkeypatch, own, shapes):
    """Four completions of 10 tokens, behind a prompt of 2 or 11."""
    monkeypatch.setattr(attention, "kernel", lambda *given: attention.Kernel("sdpa", 40))
    trainer = make_trainer(LeanGRPOTrainer, tiny_model, tmp_path, own=own, lengths=10, per_device_train_batch_size=4)
    seen = shapes_of(trainer.model)
    trainer.train()
    assert seen == shapes


def test_packs_that_are_scored_for_a_reference_are_no_larger(tiny_model, tmp_path, monkeypatch):
    """TRL scores a micro-batch at a time, here a row, although it has the whole rollout."""
    monkeypatch.setattr(attention, "kernel", lambda *given: attention.Kernel("sdpa", 20))
    options = {"lengths": 10, "per_device_train_batch_size": 1, "gradient_accumulation_steps": 16, "beta": 0.1}
    trainer = make_trainer(LeanGRPOTrainer, tiny_model, tmp_path, **options)
    seen = shapes_of(trainer.ref_model)
    trainer.train()
    assert max(length for _, length in seen) <= 23  # a row that is longer than a pack


@pytest.mark.parametrize("tokens", [0, -1])
def test_a_pack_has_a_position(tiny_model, tmp_path, tokens):
    with pytest.raises(ValueError, match=f"pack_tokens is {tokens}"):
        make_trainer(LeanGRPOTrainer, tiny_model, tmp_path, own={"pack_tokens": tokens})


def test_a_step_computes_half_as_many_positions_as_stocks(tiny_model, tmp_path):
    """Without padding, equal prompts and dead completions; but for the two rows of the trial at the start."""
    computed = {}
    for trainer_class in (GRPOTrainer, LeanGRPOTrainer):
        seen = shapes_of(model := loaded(tiny_model))
        trainer = make_trainer(trainer_class, model, tmp_path)
        seen.clear()
        trainer.train()
        computed[trainer_class] = sum(rows * length for rows, length in seen)
    assert computed[LeanGRPOTrainer] < computed[GRPOTrainer] / 2


def test_without_any_advantage_gradients_are_zero_as_in_stock(tiny_model, tmp_path):
    """Not none: the optimizer's momentum and weight decay go on."""
    gradients, logs, _ = trained(LeanGRPOTrainer, tiny_model, tmp_path, reward=no_group_lives)
    stock, _, _ = trained(GRPOTrainer, tiny_model, tmp_path, reward=no_group_lives)
    assert gradients[0].keys() == stock[0].keys()
    assert not any(gradient.any() for gradient in gradients[0].values())
    assert logs[0]["loss"] == 0 and logs[0]["entropy"] is None  # nothing was computed that could tell


def test_the_entropy_is_stocks_where_all_completions_are_computed(tiny_model, tmp_path):
    """Without an advantage they are not, and the logged entropy is that of the others."""
    options = {"reward": lambda completion_ids, **_: [float(place % 4) for place in range(len(completion_ids))]}
    stock, lean = (trained(kind, tiny_model, tmp_path, **options)[1][0] for kind in (GRPOTrainer, LeanGRPOTrainer))
    assert lean["entropy"] == pytest.approx(stock["entropy"], rel=1e-5)


def test_evaluation_during_training_is_stocks(tiny_model, tmp_path):
    settings = {"per_device_eval_batch_size": 4, "num_generations_eval": 2}
    losses = []
    for trainer_class in (GRPOTrainer, LeanGRPOTrainer):
        _, _, trainer = trained(trainer_class, tiny_model, tmp_path, learning_rate=0.0, beta=0.1, **settings)
        trainer._generate_single_turn = completions()
        losses.append(trainer.evaluate(trainer.train_dataset.select(range(6))))
    for key in ("eval_loss", "eval_entropy", "eval_kl", "eval_clip_ratio/region_mean"):
        assert losses[1][key] == pytest.approx(losses[0][key], rel=1e-4, abs=1e-6)


def test_under_autocast_the_gradients_are_stocks_to_its_rounding(tiny_model, tmp_path):
    """In bfloat16 both sides round, each in shapes of its own."""
    stock, _, _ = trained(GRPOTrainer, tiny_model, tmp_path, bf16=True)
    lean, _, trainer = trained(LeanGRPOTrainer, tiny_model, tmp_path, bf16=True, own={"pack_tokens": 30})
    exact, _, _ = trained(GRPOTrainer, tiny_model, tmp_path)
    assert trainer.kernel is not None
    assert 1e-4 < largest_difference(exact, lean) < 0.05  # it is under autocast
    assert largest_difference(stock, lean) < 0.05


def test_the_micro_batches_of_a_step_are_planned_together(tiny_model, tmp_path):
    """All four of them in one pack, with which the first of four micro-steps has nothing to wait for."""
    trainer = make_trainer(LeanGRPOTrainer, tiny_model, tmp_path, gradient_accumulation_steps=4, max_steps=2)
    plans, planned = [], trainer._planned
    trainer._planned = lambda inputs: plans.append(planned(inputs)) or plans[-1]
    trainer.train()
    assert [turn for _, turn in plans] == 2 * [0, 1, 2, 3]
    for step in (plans[:4], plans[4:]):
        assert len({id(plan) for plan, _ in step}) == 1 and len(step[0][0].batches) == 4
        assert sorted(map(len, step[0][0].packs_of_micro_batch)) == [0, 0, 0, 1]


class WaitsForDevice(Waits):
    """Counts waits as if these tensors, and all that is computed from them, were on a GPU."""

    def __init__(self, tensors):
        super().__init__()
        self.there = WeakIdKeyDictionary()
        self.placed(tensors)

    def placed(self, values):
        self.there.update((leaf, True) for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor))
        return values

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if any(tensor in self.there for tensor in given):
            return self.placed(super().__torch_dispatch__(func, types, args, kwargs))
        return func(*args, **(kwargs or {}))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        *({"loss_type": kind} for kind in micro_batches.KNOWN),
        {"loss_type": "grpo", "beta": 0.1, "off_policy_mask_threshold": 0.01, "delta": 1.5},
        {"loss_type": "grpo", "importance_sampling_level": "sequence"},
    ],
    ids=str,
)
def test_a_packs_loss_waits_for_a_gpu_in_trls_head_only(tiny_model, tmp_path, monkeypatch, options):
    """And not for metrics that are thrown away. The head selects hidden states and labels by a mask.

    Not seen here: by sequence TRL also copies a number of rows to the GPU for each metric.
    """
    _, _, trainer = trained(LeanGRPOTrainer, tiny_model, tmp_path, **options)
    monkeypatch.setattr("trl.trainer.utils._use_triton", lambda device: True)
    plan, to_device = trainer._plan, packing.to_device
    waits = WaitsForDevice([*trainer.model.parameters(), *plan.rows.values(), plan.log_probs, plan.entropies])
    monkeypatch.setattr(packing, "to_device", lambda *given: waits.placed(to_device(*given)))
    rows = [row for turn in plan.packs_of_micro_batch for rows, _ in turn for row in rows]
    with waits:
        trainer._loss_of(trainer.model, plan, rows)
    assert waits.found == {"index": 2}


@pytest.mark.parametrize("of_a_rollout", [4, 2], ids=["a plan a step", "two plans a step"])
def test_losses_are_logged_after_the_last_backward(tiny_model, tmp_path, of_a_rollout):
    """TRL's metrics wait for a GPU, which would have nothing to do then. As in stock, a step's time includes them."""
    options = {"gradient_accumulation_steps": 4, "steps_per_generation": of_a_rollout, "max_steps": 2}
    trainer = make_trainer(LeanGRPOTrainer, tiny_model, tmp_path, own={"pack_tokens": 30}, **options)
    did, backward, log_losses = [], trainer.accelerator.backward, trainer._log_losses

    def slow(model, plan):
        did.append("log")
        time.sleep(0.2)
        log_losses(model, plan)

    trainer.accelerator.backward = same_loss(lambda loss: did.append("backward") or backward(loss))
    trainer._log_losses = slow
    trainer.train()
    plans = 2 * 4 // of_a_rollout
    assert did.count("log") == plans and did[-1] == "log"
    done = [len(part.split()) for part in " ".join(did).split("log")[:-1]]
    assert min(done) >= of_a_rollout  # each micro-step's backward comes before
    steps = [line["step_time"] for line in trainer.state.log_history if "step_time" in line]
    assert len(steps) == 2 and min(steps) > 0.2 * plans / 2


def test_a_step_that_failed_logs_nothing_in_the_next_one(tiny_model, tmp_path):
    """After an out-of-memory error, for example, from which a run continues with smaller packs."""
    trainer = make_trainer(LeanGRPOTrainer, tiny_model, tmp_path, gradient_accumulation_steps=1)
    backward, logged = trainer.accelerator.backward, []
    log_losses, trainer._log_losses = trainer._log_losses, lambda model, plan: logged.append(log_losses(model, plan))

    def failing(loss):
        trainer.accelerator.backward = backward
        raise MemoryError

    trainer.accelerator.backward = same_loss(failing)
    with pytest.raises(MemoryError):
        trainer.train()
    assert not logged and not trainer._metrics["train"]["entropy"]
    trainer.train()
    assert len(logged) == 1


def test_rows_are_divided_among_packs_once(tiny_model, tmp_path, monkeypatch):
    """For an optimizer step; its packs are not packed again where their loss is computed."""
    calls, make_packs = [], packing.make_packs
    monkeypatch.setattr(packing, "make_packs", lambda *given: calls.append(given) or make_packs(*given))
    trainer = make_trainer(LeanGRPOTrainer, tiny_model, tmp_path, own={"pack_tokens": 30}, max_steps=2)
    calls.clear()  # the trial's
    trainer.train()
    assert len(calls) == 2


THOUGHT = "<think>\n3 and 4 are 7.\n</think>\n\n7"


@pytest.mark.parametrize("prefill", ["", "<think>\n"])
@pytest.mark.parametrize("conversational", [True, False])
def test_completions_are_all_that_the_model_wrote(tiny_model, tmp_path, prefill, conversational):
    """And what its prompt began, where stock TRL gives rewards no thought by Qwen3's template."""

    def given(trainer_class):
        seen = []

        def reward(completions, **kwargs):
            seen.extend(completions)
            return [0.0] * len(completions)

        def sample(prompt_ids, *others):
            ids = trainer.processing_class(THOUGHT.removeprefix(prefill), add_special_tokens=False)["input_ids"]
            return [ids] * len(prompt_ids), None

        prompts = [[{"role": "user", "content": prompt}] for prompt in PROMPTS] if conversational else PROMPTS
        options = {"reward": reward, "prompts": prompts, "lengths": sample, "max_completion_length": 99}
        trainer = make_trainer(trainer_class, tiny_model, tmp_path, **options)
        template = Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja"
        trainer.processing_class.chat_template = template.read_text(encoding="utf-8")
        add_response_schema(trainer.processing_class)
        trainer.prefill = prefill
        trainer.train()
        return seen

    for completion in given(LeanGRPOTrainer):
        assert completion == ([{"role": "assistant", "content": THOUGHT}] if conversational else THOUGHT)
    if conversational:
        assert all("<think>" not in completion[0]["content"] for completion in given(GRPOTrainer))
