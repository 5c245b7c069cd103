"""lean_grpo/overrides.py: whoever overrides TRL's step or transformers' `generate` is obeyed, which one line says.

Others do so in a subclass, in a mixin before or behind, on the object, in the library's class, before and while it
trains. The trainers themselves keep packs and our sampler.
"""

import copy
import functools

import numpy
import pytest
import torch
from accelerate import Accelerator
from helpers_runs import DEMO
from helpers_trainer import LENGTH, largest_difference, make_trainer, rewards_by_sum, trained
from peft import LoraConfig, PeftModelForCausalLM, get_peft_model
from transformers import AutoModelForCausalLM, GenerationConfig, GenerationMixin, Qwen2ForCausalLM, TrainerCallback
from trl import GRPOTrainer
from trl.experimental.gmpo import GMPOTrainer

from grpo.core.errors import UserError
from grpo.policy import answering
from grpo.policy.answering import Policy, complete_by_generate
from grpo.training.run_trainer import RunTrainer
from lean_grpo import LeanGRPOTrainer, micro_batches, overrides, sampling, trial
from lean_grpo.overrides import same_loss

STEP = "note: the training step is TRL's own, with its padding: "
GENERATE = "note: model.generate samples the rollouts, because "
BEFORE_THE_STEP = ("_generate_and_score_completions",)

# --- The training step: each function makes a class of a trainer's class


def method(name, change):
    """A subclass whose method returns `change(itself, super's method, arguments)`."""

    def made(base):
        def own(self, *args, **kwargs):
            return change(self, getattr(super(mine, self), name), *args, **kwargs)

        mine = type("Mine", (base,), {name: own})
        return mine

    made.__name__ = name
    return made


def three_times(self, stock, *args, **kwargs):
    return 3.0 * stock(*args, **kwargs)


def half_of_the_log_probabilities(self, stock, *args, **kwargs):
    log_probs, *rest = stock(*args, **kwargs)
    return 0.5 * log_probs, *rest


def with_positive_advantages(self, stock, model, inputs, *args, **kwargs):
    inputs["advantages"] = inputs["advantages"].clamp(min=0)
    return stock(model, inputs, *args, **kwargs)


def prepared_with_positive_advantages(self, stock, batch):
    inputs = stock(batch)
    inputs["advantages"].clamp_(min=0)
    return inputs


def with_small_gradients(self, stock, *args, **kwargs):
    loss = stock(*args, **kwargs)
    for weight in self.model.parameters():
        weight.grad *= 0.1
    return loss


def every_other_token(self, stock, advantages, per_token_logps, sampling_per_token_logps, mask, off_policy_threshold):
    return mask * (torch.arange(mask.shape[1]) % 2 + self.state.global_step % 2)


SUBCLASSES = {
    "_compute_loss": method("_compute_loss", three_times),
    "compute_loss": method("compute_loss", three_times),
    "compute_loss, in place": method("compute_loss", with_positive_advantages),
    "_prepare_inputs, in place": method("_prepare_inputs", prepared_with_positive_advantages),
    "_get_per_token_logps_and_entropies": method("_get_per_token_logps_and_entropies", half_of_the_log_probabilities),
    "training_step": method("training_step", with_small_gradients),
    "get_off_policy_mask": method("get_off_policy_mask", every_other_token),
}


class Tripled:
    """A mixin."""

    def _compute_loss(self, model, inputs):
        return 3.0 * super()._compute_loss(model, inputs)


class Behind(GRPOTrainer):
    """Of stock's class, and behind LeanGRPOTrainer in the order of methods."""

    def compute_loss(self, *args, **kwargs):
        return 3.0 * super().compute_loss(*args, **kwargs)


def check(capsys, stock, lean, override, found=None):
    """Train a stock and a lean trainer: stock's gradients to the last bit, and one line."""
    (expected, _, _), (gradients, _, trainer) = stock, lean
    assert largest_difference(expected, gradients) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith(STEP)] == [STEP + override]
    return trainer


@pytest.mark.parametrize("name", SUBCLASSES)
def test_a_subclass_of_the_step_is_obeyed(tiny_model, tmp_path, capsys, name):
    made, options = SUBCLASSES[name], {"own": {"pack_tokens": 30}, "off_policy_mask_threshold": 0.5}
    plain, _, _ = trained(GRPOTrainer, tiny_model, tmp_path, off_policy_mask_threshold=0.5)
    stock = trained(made(GRPOTrainer), tiny_model, tmp_path, off_policy_mask_threshold=0.5)
    lean = trained(made(LeanGRPOTrainer), tiny_model, tmp_path, **options)
    trainer = check(capsys, stock, lean, f"Mine overrides {made.__name__}")
    assert trainer.kernel is None and largest_difference(plain, stock[0]) > 1e-2


@pytest.mark.parametrize(
    ("stock", "classes", "override"),
    [
        (GMPOTrainer, (GMPOTrainer, LeanGRPOTrainer), "GMPOTrainer overrides _compute_loss"),
        (GMPOTrainer, (LeanGRPOTrainer, GMPOTrainer), "GMPOTrainer overrides _compute_loss"),
        (GMPOTrainer, (RunTrainer, GMPOTrainer), "GMPOTrainer overrides _compute_loss"),
        (type("Stock", (Tripled, GRPOTrainer), {}), (Tripled, LeanGRPOTrainer), "Tripled overrides _compute_loss"),
        (Behind, (LeanGRPOTrainer, Behind), "Behind overrides compute_loss"),
    ],
    ids=["before", "behind", "behind a run's", "no trainer", "own, behind"],
)
def test_a_mixin_is_obeyed(tiny_model, tmp_path, capsys, stock, classes, override):
    options = {"num_iterations": 2, "max_steps": 3}
    found = trained(stock, tiny_model, tmp_path, **options)
    check(capsys, found, trained(type("Mixed", classes, {}), tiny_model, tmp_path, **options), override)
    assert largest_difference(trained(GRPOTrainer, tiny_model, tmp_path, **options)[0], found[0]) > 1e-2


def tripled(loss, wraps):
    """A function that returns three times another's loss, and may pretend to be that function."""

    def own(*args, **kwargs):
        return 3.0 * loss(*args, **kwargs)

    return functools.wraps(loss)(own) if wraps else own


@pytest.mark.parametrize(
    ("name", "wraps", "after", "base"),
    [
        ("_compute_loss", False, 0, LeanGRPOTrainer),
        ("_compute_loss", True, 1, RunTrainer),
        ("compute_loss", False, 1, LeanGRPOTrainer),
        ("compute_loss", True, 0, RunTrainer),
    ],
)
def test_a_method_of_the_object_is_obeyed_from_then_on(tiny_model, tmp_path, capsys, name, wraps, after, base):
    def replacing(cls):
        @functools.wraps(cls, updated=())
        def made(*args, **kwargs):
            class Replace(TrainerCallback):
                def on_step_begin(self, args, state, control, **kwargs):
                    planned.append(bool(vars(trainer).get("_plan")))
                    if state.global_step == after:
                        setattr(trainer, name, tripled(getattr(trainer, name), wraps))

            trainer = cls(*args, **kwargs)
            trainer.add_callback(Replace())
            return trainer

        return made

    planned = []
    stock, _, _ = trained(replacing(GRPOTrainer), tiny_model, tmp_path, max_steps=3)
    lean, _, trainer = trained(replacing(base), tiny_model, tmp_path, max_steps=3, own={"pack_tokens": 30})
    assert largest_difference(stock, lean) < 1e-5
    assert capsys.readouterr().out.count(f"{STEP}{name} of {base.__name__} is replaced\n") == 1
    assert trainer.kernel is not None and planned == [False] * 3 + [False, bool(after), False]
    delattr(trainer, name)
    assert trainer._in_packs()


def test_a_loss_replaced_within_a_step_waits_for_the_next(tiny_model, tmp_path):
    """Its packs span all micro-batches: half of them and TRL's second micro-batch would be the gradient of neither."""

    def replaced(event):
        class Replace(TrainerCallback):
            def replace(self, args, state, control, **kwargs):
                if state.global_step == (event == "on_step_begin"):
                    trainers[-1]._compute_loss = tripled(trainers[-1]._compute_loss, False)

        def made(*args, **kwargs):
            trainers.append(LeanGRPOTrainer(*args, **kwargs))
            trainers[-1].add_callback(type("Own", (Replace,), {event: Replace.replace})())
            return trainers[-1]

        trainers = []
        return trained(made, tiny_model, tmp_path, max_steps=2, learning_rate=1e-3)[0]

    assert largest_difference(replaced("on_step_begin"), replaced("on_substep_end")) < 1e-5


def halving(backward):
    """A backward that halves all gradients after it, those of earlier ones, too."""

    @functools.wraps(backward)
    def own(self, *args, **kwargs):
        backward(self, *args, **kwargs)
        for weight in self.trained.parameters():
            weight.grad *= 0.5

    return own


@pytest.mark.parametrize("place", ["the object", "its class", "the library"])
def test_a_backward_of_the_accelerator_is_obeyed(tiny_model, tmp_path, capsys, monkeypatch, place):
    def replacing(cls):
        def made(*args, **kwargs):
            trainer = cls(*args, **kwargs)
            accelerator, own = trainer.accelerator, halving(Accelerator.backward)
            accelerator.trained = trainer.model
            if place == "the object":
                accelerator.backward = own.__get__(accelerator)
            elif place == "its class":
                accelerator.__class__ = type("Own", (Accelerator,), {"backward": own})
            else:
                monkeypatch.setattr(Accelerator, "backward", own)
            return trainer

        return made

    plain, _, _ = trained(GRPOTrainer, tiny_model, tmp_path)
    stock, _, _ = trained(replacing(GRPOTrainer), tiny_model, tmp_path)
    monkeypatch.undo()
    lean, _, _ = trained(replacing(LeanGRPOTrainer), tiny_model, tmp_path, own={"pack_tokens": 30})
    assert largest_difference(stock, lean) < 1e-5 and largest_difference(plain, stock) > 1e-2
    line = "Own overrides backward" if place == "its class" else "backward of Accelerator is replaced"
    assert f"{STEP}{line}\n" in capsys.readouterr().out


@pytest.mark.parametrize("wraps", [False, True])
@pytest.mark.parametrize("owner", [GRPOTrainer, LeanGRPOTrainer])
def test_a_replaced_method_of_the_library_is_obeyed(tiny_model, tmp_path, capsys, monkeypatch, owner, wraps):
    name = "_compute_loss" if owner is GRPOTrainer else "compute_loss"
    plain, _, _ = trained(GRPOTrainer, tiny_model, tmp_path)
    loss = tripled(getattr(owner, name), wraps)
    monkeypatch.setattr(owner, name, loss)
    stock = type("Mine", (GRPOTrainer,), {name: tripled(getattr(GRPOTrainer, name), False)})
    found = trained(GRPOTrainer if owner is GRPOTrainer else stock, tiny_model, tmp_path)
    assert largest_difference(plain, found[0]) > 1
    who = f"{name} of GRPOTrainer is replaced" if owner is GRPOTrainer else f"LeanGRPOTrainer overrides {name}"
    check(capsys, found, trained(LeanGRPOTrainer, tiny_model, tmp_path), who)


def applied(loss):
    return functools.partialmethod(lambda self, factor, *args, **kwargs: factor * loss(self, *args, **kwargs), 3.0)


@pytest.mark.parametrize(
    "change",
    [applied, *(functools.partial(tripled, wraps=wraps) for wraps in (False, True))],
    ids=["applied", "plain", "wraps"],
)
def test_what_was_replaced_before_our_import_is_an_override(tiny_model, tmp_path, capsys, monkeypatch, change):
    monkeypatch.setattr(GRPOTrainer, "compute_loss", change(GRPOTrainer.compute_loss))
    monkeypatch.setattr(trial, "STEP", overrides.Methods(GRPOTrainer, "training_step", beyond=BEFORE_THE_STEP))
    stock, _, _ = trained(GRPOTrainer, tiny_model, tmp_path)
    lean, _, _ = trained(LeanGRPOTrainer, tiny_model, tmp_path)
    assert largest_difference(stock, lean) < 1e-5
    assert f"{STEP}compute_loss of GRPOTrainer is replaced\n" in capsys.readouterr().out


@pytest.mark.parametrize("base", [LeanGRPOTrainer, RunTrainer])
def test_our_trainers_and_those_that_declare_it_keep_packs(tiny_model, tmp_path, capsys, base):
    """A subclass of a declared method has to declare its own."""

    def training_step(self, *args, **kwargs):
        return base.training_step(self, *args, **kwargs)

    declared = type("Timed", (base,), {"training_step": same_loss(training_step), "log": lambda *_, **__: None})
    stock, _, _ = trained(GRPOTrainer, tiny_model, tmp_path)
    for cls in (base, declared):
        lean, _, trainer = trained(cls, tiny_model, tmp_path, own={"pack_tokens": 30})
        assert trainer._plan is not None and largest_difference(stock, lean) < 1e-5
    assert "note: " not in capsys.readouterr().out
    forgotten = type("Forgotten", (declared,), {"training_step": lambda *args: declared.training_step(*args)})
    lean, _, trainer = trained(forgotten, tiny_model, tmp_path)
    assert trainer._plan is None and f"{STEP}Forgotten overrides training_step\n" in capsys.readouterr().out


def test_the_methods_of_a_step_are_read_from_the_library():
    assert trial.STEP.members.keys() >= {*(made.__name__ for made in SUBCLASSES.values()), "get_high_entropy_mask"}
    assert not trial.STEP.members.keys() & {"_generate", "_calculate_rewards", "log", "train", "evaluate", "_step"}
    assert all(trial.STEP.members.values()) and all(sampling.GENERATION.members.values())
    assert all(trial.BACKWARD.members.values()) and all(sampling.ADAPTED.members.values())


# --- Micro-batches


def scored(change):
    """A function of a trainer's class: a subclass that changes a scored rollout."""

    def made(base):
        class Mine(base):
            def _generate_and_score_completions(self, inputs):
                output = super()._generate_and_score_completions(inputs)
                change(output, inputs)
                return output

        return Mine

    return made


def by_token(output, inputs):
    width = output["completion_ids"].shape[1]
    output["advantages"] = output["advantages"][:, None] * torch.linspace(1, 0, width)


def with_lists(output, inputs):
    output["prompts"] = [row["prompt"] for row in inputs]
    output["number"] = torch.arange(len(inputs)).float()
    output["nothing"] = None
    output["all"] = torch.tensor(3.0)


def with_a_tool_mask(output, inputs):
    output["tool_mask"] = (torch.arange(output["completion_ids"].shape[1]) % 3 > 0).long() * output["completion_mask"]


MASKED = "dapo", "bnpo", "grpo"
OTHER_VALUES = "a completion_mask has other values than 0 and 1"


def with_gaps(output, inputs):
    output["completion_mask"][:, 1] = 0


def of(kind, factor=1):
    """A change of the completion mask's number format, and of its values."""

    def change(output, inputs):
        output["completion_mask"] = (output["completion_mask"].float() * factor).to(kind)

    return change


@pytest.mark.parametrize(
    ("change", "loss_type", "reason"),
    [
        *((of(kind), loss_type, "") for kind in (torch.float32, torch.bfloat16, torch.bool) for loss_type in MASKED),
        *((of(torch.float32, 0.5), loss_type, OTHER_VALUES) for loss_type in MASKED),
        (of(torch.long, 2), "dapo", OTHER_VALUES),
        *((by_token, loss_type, "") for loss_type in ("dapo", "bnpo", "vespo")),
        *((with_a_tool_mask, loss_type, "") for loss_type in ("grpo", "bnpo")),
        (with_lists, "dapo", ""),
        (with_gaps, "dapo", "a mask of a micro-batch has gaps"),
    ],
)
def test_what_a_subclass_scores_has_stocks_gradient(tiny_model, tmp_path, capsys, change, reason, loss_type):
    made, options = scored(change), {"loss_type": loss_type}
    stock, _, _ = trained(made(GRPOTrainer), tiny_model, tmp_path, **options)
    lean, _, trainer = trained(made(LeanGRPOTrainer), tiny_model, tmp_path, own={"pack_tokens": 30}, **options)
    assert largest_difference(stock, lean) < 1e-5 and bool(trainer._plan) == (not reason)
    lines = [line for line in capsys.readouterr().out.splitlines() if "micro-batches: " in line]
    assert lines == [f"note: the training step keeps TRL's micro-batches: {reason}"] * bool(reason)


def test_advantages_of_another_class_are_its_own(tiny_model, tmp_path):
    """Behind ours: those of ties, which stock's would only have from rounding, stay."""

    class Ones(GRPOTrainer):
        def _generate_and_score_completions(self, inputs):
            output = super()._generate_and_score_completions(inputs)
            output["advantages"] = torch.ones_like(output["advantages"])
            return output

    stock, _, _ = trained(Ones, tiny_model, tmp_path)
    lean, _, trainer = trained(type("Mixed", (LeanGRPOTrainer, Ones), {}), tiny_model, tmp_path)
    assert largest_difference(stock, lean) < 1e-5 and trainer._plan.computed.all()


# --- Settings of a step


@pytest.mark.slow
@pytest.mark.parametrize(
    ("start", "later"),
    [
        *(({"loss_type": "dapo"}, {"loss_type": kind}) for kind in micro_batches.KNOWN if kind != "dapo"),
        ({"loss_type": "bnpo"}, {"loss_type": "grpo"}),
        ({"entropy_coef": 0.1}, {"loss_type": "grpo"}),
        ({"beta": 0.1}, {"beta": 0.01, "epsilon_low": 0.1}),
        ({"beta": 0.1}, {"beta": 0.0}),
        ({"top_entropy_quantile": 0.4}, {"top_entropy_quantile": 1.0}),
        ({}, {"top_entropy_quantile": 0.4}),
    ],
    ids=str,
)
def test_settings_that_a_callback_changes_are_obeyed(tiny_model, tmp_path, start, later):
    """As stock's, which reads them in each step."""

    def changing(cls):
        def made(*args, **kwargs):
            class Change(TrainerCallback):
                def on_step_end(self, args, state, control, **kwargs):
                    vars(trainer).update(later if state.global_step == 1 else {})

            trainer = cls(*args, **kwargs)
            trainer.add_callback(Change())
            return trainer

        return made

    options = {"max_steps": 3, "learning_rate": 1e-3, **start}
    stock, _, _ = trained(changing(GRPOTrainer), tiny_model, tmp_path, **options)
    lean, _, _ = trained(changing(LeanGRPOTrainer), tiny_model, tmp_path, own={"pack_tokens": 30}, **options)
    assert largest_difference(stock, lean) < 1e-5


# --- Sampling

PROMPTS = [[5, 6, 7, 100, 200], [8, 9], [5, 6, 7, 100, 200], [30, 31, 32]]
COLD = {"temperature": 1e-4}
FIELDS = {  # with a value that has an effect
    "suppress_tokens": list(range(18, 28)),
    "begin_suppress_tokens": list(range(60, 500)),
    "bad_words_ids": [[token] for token in range(18, 28)],
    "sequence_bias": [[[token], -10.0] for token in range(18, 28)],
    "no_repeat_ngram_size": 1,
    "min_length": 20,
    "min_new_tokens": 18,
    "forced_eos_token_id": 2,
    "exponential_decay_length_penalty": (1, 3.0),
    "guidance_scale": 3.0,
    "num_beams": 2,
    "max_time": 1e-9,
    "an_unknown_field": 1,
}
HARMLESS = ("num_beams", "forced_eos_token_id", "an_unknown_field")  # here


def own_model():
    return AutoModelForCausalLM.from_pretrained(DEMO / "model", dtype=torch.float32)


def sampler(output, model, **settings):
    model.tokenizer_of = DEMO / "model"
    settings = {**COLD, "max_completion_length": LENGTH, "lengths": "sampled", **settings}
    return make_trainer(LeanGRPOTrainer, model, output, **settings)


@pytest.fixture(scope="module")
def _made(tmp_path_factory):
    return sampler(tmp_path_factory.mktemp("run"), own_model())


@pytest.fixture
def trainer(_made, capsys):
    """One that samples, with the demo's model; its configurations and notes are those of a new one."""
    _made._said.clear()
    kept = [(config, dict(vars(config))) for config in (_made.generation_config, _made.model.generation_config)]
    capsys.readouterr()
    yield _made
    for config, fields in kept:
        vars(config).clear()
        vars(config).update(fields)


@pytest.fixture(scope="module")
def greedy(_made, tokenizer):
    """What the demo's model answers."""
    return complete_by_generate(_made.model, tokenizer, PROMPTS, [2], LENGTH)


def both(trainer):
    """What the trainer and stock's sampling draw, from the same random state."""
    drawn = []
    for draw in (type(trainer), GRPOTrainer):
        torch.manual_seed(0)
        drawn.append(draw._generate_single_turn(trainer, PROMPTS, None, {}, 2)[0])
    return drawn


def notes(capsys):
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith(GENERATE)]


def configurations(trainer):
    return {"the model's": trainer.model.generation_config, "the trainer's": trainer.generation_config}


@pytest.mark.slow
@pytest.mark.parametrize("place", ["the model's", "the trainer's"])
@pytest.mark.parametrize("name", FIELDS)
def test_a_field_that_our_sampler_does_not_know_is_obeyed(trainer, greedy, capsys, name, place):
    """From the next rollout on, until it is unset."""
    assert trainer._samples_itself()
    setattr(configurations(trainer)[place], name, FIELDS[name])
    ours, stock = both(trainer)
    assert ours == stock and (ours != greedy or name in HARMLESS)
    both(trainer)
    assert notes(capsys) == [f"{GENERATE}{name} is set"]
    setattr(configurations(trainer)[place], name, None)
    assert trainer._samples_itself() and both(trainer)[0] == greedy


@pytest.mark.parametrize("kind", [numpy.array, torch.tensor, tuple], ids=["numpy", "torch", "tuple"])
def test_arrays_in_a_configuration_are_read_like_lists(trainer, greedy, capsys, kind):
    trainer.generation_config.eos_token_id = kind([2])
    assert both(trainer) == [greedy, greedy] and not notes(capsys)
    trainer.generation_config.suppress_tokens = kind(FIELDS["suppress_tokens"])
    assert not trainer._samples_itself() and notes(capsys) == [f"{GENERATE}suppress_tokens is set"]


def test_every_field_is_known_or_left_to_generate(tokenizer):
    """Those of other versions of transformers, too."""
    model = own_model()
    for name in vars(GenerationConfig()).keys() - sampling.OBEYED - sampling.WITHOUT_EFFECT:
        if not name.startswith("_"):
            config = sampling.merged(model, sampling.configuration(tokenizer, [2], 5))
            vars(config)[name] = "odd"
            assert sampling._reason_of_fields(config) == f"{name} is set"
    assert sampling.reason_against(model, sampling.configuration(tokenizer, [2], 5)) is None


@pytest.mark.parametrize(
    "change",
    [
        {"max_new_tokens": 5}, {"temperature": 1e-4}, {"do_sample": False}, {"top_k": 1}, {"top_p": 1e-6},
        {"min_p": 1.0}, {"use_cache": False, "do_sample": False}, {"output_scores": True, "do_sample": False},
        {"max_length": 7, "top_k": 1},
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("place", ["the model's", "the trainer's"])
def test_our_sampler_obeys_the_fields_that_it_knows(trainer, greedy, capsys, monkeypatch, change, place):
    """A length curriculum, or another temperature, for example, in a callback."""
    if place == "the trainer's":
        trainer.generation_config.temperature = 1.0
    vars(configurations(trainer)[place]).update(change)
    asked, complete = [], sampling.complete
    monkeypatch.setattr(
        sampling, "complete", lambda *given, **others: asked.append(given) or complete(*given, **others)
    )
    ours, stock = both(trainer)
    if "max_new_tokens" in change and place == "the trainer's":
        assert max(map(len, ours)) == max(map(len, stock)) == 5
    else:
        assert ours == stock == greedy
    assert asked and not notes(capsys)


def test_a_min_p_of_the_model_is_drawn_by(trainer, greedy, capsys):
    """GRPOConfig's is None by default, so that `generate` takes the model's."""
    trainer.generation_config.temperature = 1.0
    assert both(trainer)[0] != greedy
    trainer.model.generation_config.min_p = 1.0
    assert both(trainer) == [greedy, greedy] and not notes(capsys)


def test_a_rollout_asks_once_and_a_policy_once_for_all_batches(trainer, tokenizer, monkeypatch):
    """Asking tries an adapter's `generate` and reads many classes."""
    asked, ask = [], sampling.reason_against
    for module in (sampling, answering):
        monkeypatch.setattr(module, "reason_against", lambda *given: asked.append(given) or ask(*given))
    trainer._generate_single_turn(PROMPTS, None, {}, 2)
    assert len(asked) == 1
    Policy(trainer.model, tokenizer, LENGTH, 1).complete(PROMPTS)
    assert len(asked) == 2


def test_without_a_configuration_the_models_own_decides(trainer):
    assert sampling.reason_against(trainer.model) is None
    trainer.model.generation_config.repetition_penalty = 1.1
    assert sampling.reason_against(trainer.model) == "repetition_penalty is set"


def test_other_end_tokens_than_the_trainers_are_left_to_generate(trainer, capsys):
    trainer.generation_config.eos_token_id = [2, 13]
    ours, stock = both(trainer)
    assert ours == stock and notes(capsys) == [f"{GENERATE}generation_config has other end tokens"]


# --- Models with a `generate` of their own: each function returns (model, the line's end)


def without_digits(generate):
    def own(*args, **kwargs):
        return generate(*args, **{**kwargs, "suppress_tokens": FIELDS["suppress_tokens"]})

    return own


def wrapped_generate():
    model = own_model()
    model.generate = without_digits(model.generate)
    return model, "generate of Qwen2ForCausalLM is replaced"


def of_a_class(name):
    """A model of remote code, with one method of its own that has an effect."""

    def own(self, *args, **kwargs):
        if name == "prepare_inputs_for_generation":
            inputs = getattr(super(Remote, self), name)(*args, **kwargs)
            return {**inputs, "input_ids": inputs["input_ids"] + 1}
        if name == "_get_logits_processor":
            processors = getattr(super(Remote, self), name)(*args, **kwargs)
            processors.append(lambda ids, scores: -scores)
            return processors
        return without_digits(getattr(super(Remote, self), name))(*args, **kwargs)

    Remote = type("Remote", (Qwen2ForCausalLM,), {name: own})
    return lambda: (Remote.from_pretrained(DEMO / "model", dtype=torch.float32), f"Remote overrides {name}")


def adapted(**options):
    torch.manual_seed(0)
    config = LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"], init_lora_weights=False, **options)
    return get_peft_model(own_model(), config)


ADAPTER = "the adapter's `generate` does more than call the base model's"


def activated():
    return adapted(alora_invocation_tokens=PROMPTS[0][-2:]), ADAPTER


def in_the_configuration(generate, copies):
    """A `generate` that edits the configuration, and adds no argument."""

    def own(*args, generation_config=None, **kwargs):
        if generation_config is not None:
            generation_config = copy.copy(generation_config) if copies else generation_config
            generation_config.suppress_tokens = FIELDS["suppress_tokens"]
        return generate(*args, generation_config=generation_config, **kwargs)

    return own


def adapter_with(change, place):
    """A function that makes an adapter whose `generate`, or that of what it holds, is replaced."""

    def made():
        model = adapted()
        owner = {"itself": model, "its layers": model.base_model, "its base": model.get_base_model()}[place]
        owner.generate = change(owner.generate)
        line = f"generate of {type(owner).__name__} is replaced" if place != "its layers" else ADAPTER
        return model, line

    return made


class OwnAdapter(PeftModelForCausalLM):
    def generate(self, *args, **kwargs):
        return without_digits(super().generate)(*args, **kwargs)


class OwnConfiguration(PeftModelForCausalLM):
    def generate(self, *args, **kwargs):
        return in_the_configuration(super().generate, copies=True)(*args, **kwargs)


def adapter_class(cls):
    def made():
        model = adapted()
        model.__class__ = cls
        return model, f"{cls.__name__} overrides generate"

    return made


CHANGES = {
    "an argument": without_digits,
    "a field": functools.partial(in_the_configuration, copies=False),
    "a copy's field": functools.partial(in_the_configuration, copies=True),
}
MODELS = {
    "wrapped": wrapped_generate,
    **{name: of_a_class(name) for name in ("generate", "prepare_inputs_for_generation", "_get_logits_processor")},
    "aLoRA": activated,
    **{
        f"adapter, {place}, {kind}": adapter_with(change, place)
        for place in ("itself", "its layers", "its base")
        for kind, change in CHANGES.items()
    },
    **{f"adapter, {cls.__name__}": adapter_class(cls) for cls in (OwnAdapter, OwnConfiguration)},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_a_generate_of_its_own_is_obeyed(tmp_path, tokenizer, capsys, name):
    model, line = MODELS[name]()
    trainer = sampler(tmp_path, model, gradient_checkpointing=name == "aLoRA")
    ours, stock = both(trainer)
    assert ours == stock and notes(capsys) == [GENERATE + line]
    plain = adapted() if "adapter" in name else own_model()
    assert ours != complete_by_generate(plain, tokenizer, PROMPTS, [2], LENGTH)


def changed(name, stock, wraps):
    """A function that replaces a model's method, with an effect; it may pretend to be that method."""

    def own(*args, **kwargs):
        found = stock(*args, **kwargs)
        if name == "prepare_inputs_for_generation":
            return {**found, "input_ids": found["input_ids"] + 1}
        if name == "_get_logits_processor":
            found.append(lambda ids, scores: -scores)
        if name == "_get_stopping_criteria":
            found.append(lambda ids, scores, **kwargs: torch.ones(len(ids), dtype=torch.bool))
        return found

    own = without_digits(stock) if name == "generate" else own
    return functools.wraps(stock)(own) if wraps else own


METHODS = ("generate", "prepare_inputs_for_generation", "_get_logits_processor", "_get_stopping_criteria")


@pytest.mark.slow
@pytest.mark.parametrize("wraps", [False, True])
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("place", ["the object", "its class", "the library", "early"])
def test_a_replaced_method_of_generation_is_obeyed(trainer, greedy, capsys, monkeypatch, place, name, wraps):
    owner = {"the object": trainer.model, "its class": Qwen2ForCausalLM}.get(place, GenerationMixin)
    monkeypatch.setattr(owner, name, changed(name, getattr(owner, name), wraps), raising=False)
    if place == "early":
        methods = overrides.Methods(GenerationMixin, "generate", "_sample", libraries=("transformers.",))
        monkeypatch.setattr(sampling, "GENERATION", methods)
    ours, stock = both(trainer)
    assert ours == stock != greedy
    whose = "Qwen2ForCausalLM" if place == "the object" else "GenerationMixin"
    line = f"Qwen2ForCausalLM overrides {name}" if place == "its class" else f"{name} of {whose} is replaced"
    assert notes(capsys) == [GENERATE + line]


@pytest.mark.parametrize("way", ["a class", "the library"])
def test_sampling_behind_ours_is_obeyed(tmp_path, capsys, monkeypatch, way):
    """What our class' `super()` reaches."""

    def sample(self, prompt_ids, *args, **kwargs):
        return [[7, 2] for _ in prompt_ids], None

    base = LeanGRPOTrainer
    if way == "a class":
        base = type("Mixed", (base, type("Own", (GRPOTrainer,), {"_generate_single_turn": sample})), {})
    else:
        monkeypatch.setattr(GRPOTrainer, "_generate_single_turn", sample)
    trainer = make_trainer(base, DEMO / "model", tmp_path, lengths="sampled")
    assert trainer._generate_single_turn(PROMPTS, None, {}, 2)[0] == 4 * [[7, 2]]
    who = "Own overrides {}" if way == "a class" else "{} of GRPOTrainer is replaced"
    assert notes(capsys) == [GENERATE + who.format("_generate_single_turn")]


@pytest.mark.parametrize("adapter", [None, LoraConfig(target_modules=["q_proj"])], ids=["all", "adapter"])
@pytest.mark.parametrize("base", [LeanGRPOTrainer, RunTrainer])
def test_our_trainers_keep_our_sampler(tmp_path, capsys, monkeypatch, base, adapter):
    """Also once `generate` has sampled: PEFT's replaces a method meanwhile."""
    trainer = make_trainer(
        base, DEMO / "model", tmp_path, lengths="sampled", max_steps=2, reward=rewards_by_sum, peft=adapter, **COLD
    )
    ours, stock = both(trainer)
    assert ours == stock
    asked, complete = [], sampling.complete
    monkeypatch.setattr(
        sampling, "complete", lambda *given, **others: asked.append(given) or complete(*given, **others)
    )
    trainer.train()
    assert len(asked) == 2 and not notes(capsys) and trainer._plan is not None


# --- Answers of a policy: evaluations, `ask` and preflight


@pytest.mark.slow
@pytest.mark.parametrize("name", FIELDS)
def test_a_policy_answers_as_generate_does(tokenizer, greedy, capsys, name):
    """A checkpoint that suppresses digits writes none, whoever asks it."""
    model = own_model()
    setattr(model.generation_config, name, FIELDS[name])
    found = [done.ids for done in Policy(model, tokenizer, LENGTH, 2).complete(PROMPTS)]
    expected = []
    for prompt in PROMPTS:
        output = model.generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long), do_sample=False,
            max_new_tokens=LENGTH, pad_token_id=0, num_beams=1,
        )[0, len(prompt) :].tolist()  # fmt: skip
        expected.append(output)
    if name not in ("min_length", "max_time"):  # which count the prompt's padding, and the clock
        assert found == expected
    assert (found != greedy) == (name not in HARMLESS)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: model.generate answers")]
    assert lines == [f"note: model.generate answers the questions, because {name} is set"] * (name != "num_beams")


@pytest.mark.parametrize("field", [{"prompt_lookup_num_tokens": 3}, {"dola_layers": "low"}, {"suppress_tokens": "x"}])
def test_what_generate_refuses_is_one_line(tokenizer, field):
    model = own_model()
    vars(model.generation_config).update(field)
    with pytest.raises(
        UserError, match=r"^model\.generate cannot answer \(.*\); change the model's generation_config"
    ):
        Policy(model, tokenizer, 5, 2).complete(PROMPTS)


SHIPPED = {  # what the generation_config.json of well-known models sets
    "Qwen2.5": {"do_sample": True, "repetition_penalty": 1.1, "temperature": 0.7, "top_p": 0.8, "top_k": 20},
    "Qwen3": {"do_sample": True, "temperature": 0.6, "top_p": 0.95, "top_k": 20, "max_new_tokens": 2048},
    "Llama 3": {"do_sample": True, "temperature": 0.6, "top_p": 0.9},
    "Gemma 3": {"do_sample": True, "top_k": 64, "top_p": 0.95},
}


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("drawn", [sampling.Sampling(), None], ids=["sampled", "greedy"])
def test_what_well_known_models_ship_keeps_our_sampler(tokenizer, name, drawn):
    """The run's settings replace it; otherwise the fastest way would be lost for most people."""
    model = own_model()
    model.generation_config.update(**SHIPPED[name])
    assert sampling.reason_against(model, sampling.configuration(tokenizer, [2], 8, drawn)) is None
