"""lean_grpo/dynamic_sampling.py: groups that teach nothing are replaced, and nothing else of a step changes."""

import re

import pytest
import torch
from datasets import Dataset, IterableDataset
from helpers_trainer import PROMPTS, Gradients, largest_difference, make_trainer, rewards_by_sum
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from lean_grpo import LeanGRPOTrainer

MANY = [f"{prompt} {number}" for number in range(8) for prompt in PROMPTS]  # further prompts are other ones


def odd_prompts_live(prompts, completion_ids, **kwargs):
    """Groups whose prompt ends on an even number have one reward."""
    odd = [int(prompt.rpartition(" ")[2]) % 2 for prompt in prompts]
    return [float(sum(ids) % 7) if live else 0.5 for live, ids in zip(odd, completion_ids, strict=True)]


def few_live(prompts, completion_ids, **kwargs):
    """One prompt in eight teaches."""
    rare = [prompt.endswith(" 3") for prompt in prompts]
    return [float(sum(ids) % 7) if live else 0.5 for live, ids in zip(rare, completion_ids, strict=True)]


def none_lives(prompts, **kwargs):
    return [0.5] * len(prompts)


class Kept(LeanGRPOTrainer):
    """Keeps what each step trains on, and how many prompts each call samples."""

    def __init__(self, *args, **kwargs):
        self.outputs, self.asked = [], []
        super().__init__(*args, **kwargs)

    def _generate(self, prompts):
        self.asked.append(prompts)
        return super()._generate(prompts)

    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        self.outputs.append(
            {key: value.clone() if hasattr(value, "clone") else value for key, value in output.items()}
        )
        return output


def run(model, output, count, reward=odd_prompts_live, trainer_class=Kept, **settings):
    settings = {"prompts": MANY, "own": {"dynamic_sampling": count}, **settings}
    trainer = make_trainer(trainer_class, model, output, reward, **settings)
    trainer.train()
    return trainer


def rounds(trainer):
    """The prompts of each round, by step."""
    counts = [1 + int(log["dynamic_sampling/rounds"]) for log in trainer.state.log_history if "loss" in log]
    asked = iter(trainer.asked)
    return [[next(asked) for _ in range(count)] for count in counts]


def weights(trainer):
    return torch.cat([weight.detach().flatten() for weight in trainer.model.parameters()])


@pytest.mark.parametrize("reward", [odd_prompts_live, few_live])
def test_dead_groups_are_replaced_by_further_prompts(reward, tiny_model, tmp_path):
    trainer = run(tiny_model, tmp_path, 50, reward, max_steps=3)
    log = trainer.state.log_history[0]
    assert all((output["advantages"].view(-1, 4) != 0).any(1).all() for output in trainer.outputs)
    assert log["dynamic_sampling/live"] == 1
    sizes = [len(prompts) for prompts in rounds(trainer)[0]]
    assert log["dynamic_sampling/completions"] == sum(sizes) > 16 and log["dynamic_sampling/rounds"] == len(sizes) - 1
    assert sizes == sorted(sizes, reverse=True) and sizes[-1] < 16  # no more than are missing
    for prompts in trainer.asked:
        assert all(len(set(prompts[at : at + 4])) == 1 for at in range(0, len(prompts), 4))


def test_further_prompts_come_once_each_before_they_come_again(tiny_model, tmp_path):
    few = MANY[:12]
    trainer = run(tiny_model, tmp_path, 4, none_lives, prompts=few, max_steps=3)
    of_steps = rounds(trainer)
    further = [prompt for sampled in of_steps for prompts in sampled[1:] for prompt in prompts[::4]]
    assert sorted(further[:12]) == sorted(further[12:24]) == sorted(few)
    assert further[:12] != further[12:24]
    without = run(tiny_model, tmp_path, 0, none_lives, prompts=few, max_steps=3)
    assert [sampled[0] for sampled in of_steps] == without.asked  # the sampler's own stay as they are
    assert [log["epoch"] for log in trainer.state.log_history] == [log["epoch"] for log in without.state.log_history]


def test_what_stays_dead_after_the_last_round_is_trained_on_as_by_trl(tiny_model, tmp_path):
    trainer = run(tiny_model, tmp_path, 2, none_lives)
    log = trainer.state.log_history[0]
    assert (log["dynamic_sampling/rounds"], log["dynamic_sampling/completions"], log["dynamic_sampling/live"]) == (
        2, 48, 0,
    )  # fmt: skip
    assert not trainer.outputs[0]["advantages"].any()
    assert torch.equal(weights(trainer), weights(run(tiny_model, tmp_path, 0, none_lives)))


def test_rewards_that_fail_are_no_dead_groups(tiny_model, tmp_path):
    """Neither a group without any reward, nor one where the other completions are alike, is replaced or replaces."""

    def failing(prompts, **kwargs):
        kinds = [int(prompt.rpartition(" ")[2]) % 2 for prompt in prompts]
        return [None if whole or place % 4 == 0 else 0.5 for place, whole in enumerate(kinds)]

    trainer = run(tiny_model, tmp_path, 3, failing)
    assert len(trainer.asked) == 1 and trainer.state.log_history[0]["dynamic_sampling/live"] == 0

    def failing_further(prompts, **kwargs):
        return [0.5 if len(trainer.asked) == 1 else None] * len(prompts)

    trainer = make_trainer(Kept, tiny_model, tmp_path, failing_further, own={"dynamic_sampling": 2}, prompts=MANY)
    trainer.train()
    assert len(trainer.asked) == 3 and list(trainer._logs["prompt"]) == trainer.asked[0]


OPTIONS = {
    "dapo": {},
    "grpo": {"loss_type": "grpo"},
    "all normalized": {"multi_objective_aggregation": "normalize_then_sum"},
    "scaled by all": {"scale_rewards": "batch"},
    "reference": {"beta": 0.1},
    "off policy": {"num_iterations": 2, "max_steps": 2},
    "several steps a rollout": {"steps_per_generation": 4, "max_steps": 2},
}


@pytest.mark.parametrize("option", OPTIONS)
def test_the_gradient_is_stock_trls_on_the_same_groups(option, tiny_model, tmp_path):
    """Stock TRL gets the chosen prompts as its data, and their completions and rewards instead of its own."""
    ours = Gradients()

    class Chosen(Kept):
        def _generate_and_score_completions(self, inputs):
            output = super()._generate_and_score_completions(inputs)
            rows = len(output["advantages"])
            self.chosen = [list(column)[-rows:] for column in (self._logs["prompt"], self._logs["rewards"][name])]
            return output

    name = odd_prompts_live.__name__
    settings = {"num_generations": 4, **OPTIONS[option]}
    lean = run(tiny_model, tmp_path, 9, trainer_class=Chosen, callbacks=[ours], **settings)
    prompts, rewards = lean.chosen
    chosen = lean.outputs[0]
    lengths = chosen["completion_mask"].sum(1).tolist()
    ids = [row[:length] for row, length in zip(chosen["completion_ids"].tolist(), lengths, strict=True)]
    assert len(lean.asked) > 1

    class Stock(GRPOTrainer):
        def _generate_and_score_completions(self, inputs):
            for row, prompt in zip(inputs, prompts, strict=True):
                row["prompt"] = prompt
            return super()._generate_and_score_completions(inputs)

        def _calculate_rewards(self, *args):
            return torch.tensor(rewards).view(-1, 1)

    theirs = Gradients()
    made = make_trainer(
        Stock, tiny_model, tmp_path, odd_prompts_live, lengths=lambda *args, **kwargs: (ids, None),
        prompts=MANY, callbacks=[theirs], **settings,
    )  # fmt: skip
    made.train()
    assert largest_difference(theirs.steps, ours.steps) < 1e-5


def test_without_dead_groups_nothing_changes_to_the_bit(tiny_model, tmp_path):
    one, other = (run(tiny_model, tmp_path, count, rewards_by_sum, max_steps=3) for count in (0, 4))
    assert torch.equal(weights(one), weights(other))
    for without, log in zip(one.state.log_history, other.state.log_history, strict=True):
        assert {key for key in log if not key.startswith("dynamic_sampling/")} == without.keys()
        for key, value in without.items():
            assert "time" in key or "per_second" in key or log[key] == value, key


def test_logs_are_of_the_prompts_that_the_sampler_showed(tiny_model, tmp_path):
    """Chosen groups alone would always look half solved; only tokens are counted over all rounds."""

    def logs_itself(prompts, completion_ids, log_metric=None, log_extra=None, **kwargs):
        log_metric("asked", len(prompts))
        log_extra("words", [len(prompt) for prompt in prompts])
        return odd_prompts_live(prompts, completion_ids)

    one, other = (run(tiny_model, tmp_path / str(count), count, logs_itself) for count in (0, 4))
    without, log = one.state.log_history[0], other.state.log_history[0]
    assert len(other.asked) > 1
    assert log["num_tokens"] > without["num_tokens"]
    of_training = {"num_tokens", "loss", "grad_norm", "entropy"}
    for key, value in without.items():
        if key not in of_training and "time" not in key and not key.startswith("clip_ratio"):
            assert log[key] == pytest.approx(value, rel=1e-6), key
    # the table of samples has what was trained on, with what rewards say of it
    extra, prompts = other._logs["extra"]["words"], other._logs["prompt"]
    assert list(extra)[-16:] == [len(prompt) for prompt in list(prompts)[-16:]]
    assert all(int(prompt.rpartition(" ")[2]) % 2 for prompt in prompts)


def test_rewards_that_change_their_rows_score_all_rounds_alike(tiny_model, tmp_path):
    """Each completion has a row of its own, as in TRL; what is added to a row is no column of further ones."""
    seen = []

    def takes_one(prompts, hints, completion_ids, **kwargs):
        seen.extend(hint.pop() if hint else None for hint in hints)
        return [0.5] * len(prompts)

    class Adds(Kept):
        def _calculate_rewards(self, inputs, *args):
            for row in inputs:
                row["seen"] = True
            return super()._calculate_rewards(inputs, *args)

    columns = {"hints": [["a"] for _ in MANY]}
    run(tiny_model, tmp_path, 2, takes_one, Adds, columns=columns, max_steps=2)
    assert len(seen) == 96 and set(seen) == {"a"}


def test_what_a_subclass_generates_goes_with_its_rows(tiny_model, tmp_path):
    """Its columns of any type, and fields for rewards. The rows of a rollout are those of its output."""
    pairs, notes = [], []

    class Own(Kept):
        def _generate(self, prompts):
            ids, completions, mask, texts, log_probs, _, *images = super()._generate(prompts)
            return tuple(ids), tuple(completions), mask, texts, log_probs, {"note": list(prompts)}, *images

        def _generate_and_score_completions(self, inputs):
            output = super()._generate_and_score_completions(inputs)
            texts = self._tokenizer.batch_decode(output["prompt_ids"], skip_special_tokens=True)
            pairs.extend(zip([row["prompt"] for row in inputs], texts, strict=True))
            return output

    def reads(prompts, note, completion_ids, **kwargs):
        notes.extend(zip(prompts, note, strict=True))
        return odd_prompts_live(prompts, completion_ids)

    run(tiny_model, tmp_path, 4, reads, Own)
    assert len(notes) > 16 and all(prompt == note for prompt, note in notes)
    assert len(pairs) == 16 and all(prompt == text for prompt, text in pairs)


class StopAt(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = control.should_save = state.global_step == 2


def test_a_resumed_run_goes_on_with_the_same_further_prompts(tiny_model, tmp_path):
    settings = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    settings |= {"lengths": "sampled", "max_completion_length": 6}
    whole = run(tiny_model, tmp_path / "whole", 3, few_live, **settings)
    half = run(tiny_model, tmp_path / "half", 3, few_live, callbacks=[StopAt()], **settings)
    settings |= {"own": {"dynamic_sampling": 3}, "prompts": MANY}
    rest = make_trainer(Kept, tiny_model, tmp_path / "half", few_live, **settings)
    rest.train(resume_from_checkpoint=True)
    assert half.asked + rest.asked == whole.asked and len(whole.asked) > 4
    assert torch.equal(weights(rest), weights(whole))


def test_evaluations_sample_no_further_prompts(tiny_model, tmp_path):
    trainer = make_trainer(Kept, tiny_model, tmp_path, none_lives, own={"dynamic_sampling": 3}, prompts=MANY)
    trainer.eval_dataset = trainer.train_dataset.select(range(4))
    trainer.evaluate()
    assert trainer.asked and all(prompt in MANY[:4] for prompts in trainer.asked for prompt in prompts)


def test_another_class_that_scores_rollouts_keeps_its_own(tiny_model, tmp_path, capsys):
    class Scores(GRPOTrainer):
        def _generate_and_score_completions(self, inputs):
            return super()._generate_and_score_completions(inputs)

    trainer = run(tiny_model, tmp_path, 3, none_lives, trainer_class=type("Both", (Kept, LeanGRPOTrainer, Scores), {}))
    assert len(trainer.asked) == 1
    assert "dynamic_sampling has no effect: Scores overrides" in capsys.readouterr().out


def a_stream():
    yield from ({"prompt": prompt} for prompt in MANY)


REFUSED = {
    "a negative number": ({"dynamic_sampling": -1}, {}, "dynamic_sampling is -1"),
    "a stream": ({}, {"train_dataset": IterableDataset.from_generator(a_stream)}, "stream"),
    "images": ({}, {"train_dataset": Dataset.from_dict({"prompt": MANY, "image": MANY})}, "images"),
    "a rollout_func": ({}, {"rollout_func": lambda prompts, trainer: {}}, "rollout_func"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_refilled_is_refused_in_one_line(case, tiny_model, tmp_path):
    own, arguments, words = REFUSED[case]
    args = GRPOConfig(str(tmp_path), use_cpu=True, bf16=False, report_to="none", num_generations=4, max_steps=1)
    arguments = {"train_dataset": Dataset.from_dict({"prompt": MANY}), **arguments}
    with pytest.raises(ValueError, match=re.escape(words)) as refusal:
        LeanGRPOTrainer(str(tiny_model), none_lives, args=args, **arguments, **{"dynamic_sampling": 2, **own})
    assert "\n" not in str(refusal.value)
