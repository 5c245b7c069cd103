"""Small trainers on completions that follow from their prompts: stock's and ours, their gradients, their logs."""

import inspect
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from helpers_runs import ROWS, run_in
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from grpo.scoring.functions import logged_name
from grpo.scoring.scorer import Scorer
from grpo.task import Task
from grpo.task.prompts import XML
from grpo.training.callbacks import SkipNonFiniteSteps, Watch
from grpo.training.run_trainer import RunTrainer
from lean_grpo import LeanGRPOTrainer

LENGTH = 24
NO_TASK = Task(XML, judge_name="nobody")  # whose completions nobody judges
TIMES = ("time/", "step_time", "train_", "total_flos")
PROMPTS = [row["question"] + " x" * (n % 4) for n, row in enumerate(ROWS)]  # so that some are padded on the left


# --- Rewards


def some_groups_live(completion_ids, prompts, **kwargs):
    """Half of the groups have one reward for all, so that their advantages are zero."""
    return [
        0.5 if sum(map(ord, prompt)) % 2 else float(sum(ids) % 7)
        for ids, prompt in zip(completion_ids, prompts, strict=True)
    ]


def rewards_by_sum(completion_ids, **kwargs):
    return [float(sum(ids) % 997) for ids in completion_ids]


def no_group_lives(completion_ids, **kwargs):
    return [0.0] * len(completion_ids)


def seven_tenths(completion_ids, **kwargs):
    """One value, which float32 cannot average."""
    return [0.7] * len(completion_ids)


# --- Trainers


def completions(lengths=None, log_probs=False):
    """Replaces sampling: completions that follow from their prompt and how often it was asked, in any process.

    Args:
        lengths: of all of them; None: many lengths, some cut.
        log_probs: whether an engine's are part of it, near those of a new model.
    """
    asked = Counter()

    def sample(prompt_ids, *args, **kwargs):
        sampled = []
        for prompt in map(tuple, prompt_ids):
            asked[prompt] += 1
            chance = random.Random(f"{prompt} {asked[prompt]}")
            length = lengths or min(LENGTH, max(1, int(chance.lognormvariate(1.8, 0.9))))
            sampled.append([chance.randrange(5, 500) for _ in range(length)])
            if 1 < length < LENGTH:
                sampled[-1][-1] = 2
        chance = random.Random(0)
        return sampled, [[chance.gauss(-6.2, 0.5) for _ in ids] for ids in sampled] if log_probs else None

    return sample


def make_trainer(
    trainer_class,
    model,
    output,
    reward=some_groups_live,
    peft=None,
    lengths=None,
    own=None,
    prompts=PROMPTS,
    columns=None,
    callbacks=(),
    task=NO_TASK,
    run=None,
    **settings,
):
    """A trainer of this class, of one step.

    Args:
        task, run: of a RunTrainer.
        model: a model, or its directory.
        lengths: of the completions; None: many; "sampled": the trainer samples; a function replaces sampling.
        own: keyword arguments of our trainers alone.
        columns: of the training data, besides the prompts.
        settings: GRPOConfig's.
    """
    defaults = {
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 2,
        "num_generations": 4,
        "max_completion_length": LENGTH,
        "max_steps": 1,
        "learning_rate": 0.05,
        "lr_scheduler_type": "constant",
        "optim": "sgd",
        "max_grad_norm": 0.0,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "save_strategy": "no",
        "report_to": "none",
        "logging_steps": 1,
        "disable_tqdm": True,
    }
    if isinstance(model, str | Path):
        model = AutoModelForCausalLM.from_pretrained(model, dtype="float32")
    scoring = {"reward_funcs": reward}
    kind = inspect.unwrap(trainer_class)  # of a function that makes one
    if isinstance(kind, type) and issubclass(kind, RunTrainer):
        rewards = {logged_name(one): one for one in (reward if isinstance(reward, list) else [reward])}
        task = replace(task, prompt=replace(task.prompt, chat=not isinstance(prompts[0], str)))
        scorer = Scorer(task, rewards, dict.fromkeys(rewards, 1.0))
        scoring = {"run": run or run_in(output), "scorer": scorer}
    trainer = trainer_class(
        model=model,
        **scoring,
        args=GRPOConfig(output_dir=str(output), **{**defaults, **settings}),
        train_dataset=Dataset.from_dict({"prompt": prompts, **(columns or {})}),
        processing_class=AutoTokenizer.from_pretrained(getattr(model, "tokenizer_of", model.name_or_path)),
        peft_config=peft,
        callbacks=list(callbacks),
        **(own or {}),
    )
    if lengths != "sampled":
        trainer._generate_single_turn = lengths if callable(lengths) else completions(lengths)
    return trainer


def watched(model, output, more=(), **settings):
    """(trainer, its callback Watch): a run's trainer with the callbacks that raise alarms, on rows with gold answers.

    `watch.asked` lists the steps at which skipped steps ask for the run's end.
    """
    settings = {"lengths": "sampled", "own": {"packed": False}, "max_completion_length": 6, **settings}
    prompts = [[{"role": "user", "content": row["question"]}] for row in ROWS]
    answers = {"answer": [row["answer"].split()[-1] for row in ROWS]}
    asked = []
    skip = SkipNonFiniteSteps(lambda reason: asked.append(skip.trainer.state.global_step + 1))
    watch = Watch(Path(output), skip, lambda reason: None)
    watch.asked = asked
    own = {"prompts": prompts, "columns": answers, "callbacks": [skip, watch, *more]}
    trainer = make_trainer(RunTrainer, model, output, **own, **settings)
    return trainer, watch


class Spoil(TrainerCallback):
    """Makes the gradient of one micro-batch of these steps NaN, and lists the steps that changed nothing."""

    def __init__(self, trainer, steps):
        self.trainer, self.steps, self.before, self.unchanged = trainer, steps, None, []
        self.plain, trainer.compute_loss = trainer.compute_loss, self.compute_loss
        trainer.add_callback(self)

    def compute_loss(self, *args, **kwargs):
        loss = self.plain(*args, **kwargs)
        if self.trainer.state.global_step + 1 not in self.steps or self.trainer.accelerator.sync_gradients:
            return loss
        return loss * float("nan")

    def numbers(self):
        """The weights, and what the optimizer keeps of them."""
        kept = self.trainer.optimizer.state_dict()["state"].values()
        tensors = [*self.trainer.model.state_dict().values(), *(value for each in kept for value in each.values())]
        tensors = [getattr(tensor, "_local_tensor", tensor) for tensor in tensors]  # this process' part of FSDP's
        return torch.cat([tensor.detach().flatten().float() for tensor in tensors])

    def on_step_begin(self, args, state, control, **kwargs):
        self.before = self.numbers()

    def on_step_end(self, args, state, control, **kwargs):
        if torch.equal(self.before, self.numbers()):
            self.unchanged.append(state.global_step)


# --- Gradients


class Gradients(TrainerCallback):
    """Gradients of all parameters, as the optimizer takes them."""

    def __init__(self):
        self.steps = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
        self.steps.append({
            name: gradient.full_tensor() if hasattr(gradient, "full_tensor") else gradient.clone()  # FSDP's
            for name, gradient in gradients.items()
        })  # fmt: skip


def trained(trainer_class, model, output, **options):
    """(gradients of each optimizer step, log of each, trainer) of a run with `make_trainer`'s arguments."""
    if options.get("num_iterations", 1) > 1 or "steps_per_generation" in options:
        options = {"max_steps": 4, **options}  # so that old log-probabilities matter
    gradients = Gradients()
    trainer = make_trainer(trainer_class, model, output, callbacks=[gradients], **options)
    trainer.train()
    return gradients.steps, trainer.state.log_history, trainer


def largest_difference(stock, lean):
    """The largest of all parameters and steps, relative to stock's norm, or to a thousandth of the whole gradient's.

    A smaller one is made of rounding.
    """
    assert len(stock) == len(lean) > 0
    differences = []
    for one, other in zip(stock, lean, strict=True):
        assert one.keys() == other.keys()
        floor = 1e-3 * torch.stack([gradient.norm() for gradient in one.values()]).norm().clamp(min=1e-20)
        differences += [((other[name] - one[name]).norm() / max(one[name].norm(), floor)).item() for name in one]
    return max(differences)


def compare(model, output, differing=("entropy",), **options):
    """Train both: gradients equal to 1e-5, every logged value too, but for the named ones; the lean trainer."""
    stock, stock_log, _ = trained(GRPOTrainer, model, output, **options)
    lean, lean_log, trainer = trained(LeanGRPOTrainer, model, output, own={"pack_tokens": 30}, **options)
    assert trainer.kernel is not None and any(gradient.any() for step in stock for gradient in step.values())
    assert largest_difference(stock, lean) < 1e-5
    for one, other in zip(stock_log, lean_log, strict=True):
        assert set(other) == set(one)
        for key, value in one.items():
            if key not in differing and not key.startswith(TIMES):
                assert other[key] == pytest.approx(value, rel=1e-4, abs=1e-6), key
    return trainer
