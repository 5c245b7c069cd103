"""LeanGRPOTrainer for runs that survive faulty rewards and resume bit by bit.

Private members of TRL 1.16 and transformers that this module overrides or uses, and the test in tests/ that fails if
one changes:

    _generate                      training/test_run_trainer.py::test_phases_are_timed
    _generate_and_score_completions  training/test_run_trainer.py::test_phases_are_timed
    _calculate_rewards             scoring/test_guard.py::test_a_fault_has_the_gradient_of_none_in_stock_trl
    _log_completion_extra          scoring/test_calling.py::test_rewards_get_in_evaluations_what_trl_gives_them
    _log_metric                    scoring/test_calling.py::test_rewards_get_in_evaluations_what_trl_gives_them
    _metrics                       training/test_callbacks.py::test_each_rollout_is_read_and_an_alarm_raised_once
    _logs                          training/test_callbacks.py::test_each_rollout_is_read_and_an_alarm_raised_once
    _get_train_sampler             training/test_resumed.py::test_a_resumed_run_ends_as_the_uninterrupted_one
    _run_epoch                     training/test_resumed.py::test_a_finished_run_that_is_resumed_stays_as_it_is
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import torch
from accelerate.utils import gather_object
from datasets import Dataset
from transformers import EarlyStoppingCallback, TrainerCallback
from trl.trainer.utils import RepeatSampler

from grpo.core.errors import UserError
from grpo.core.phases import OPTIMIZER_STEP, REWARDS, SAMPLING, TRAINING_STEP, Phase
from grpo.core.processes import GivenUp, say
from grpo.policy import templates
from grpo.policy.loading import digest_of_configuration, digest_of_weights
from grpo.report import card, hub, trackers
from grpo.results.measures import LENIENT
from grpo.runs.run import Run
from grpo.scoring import registry
from grpo.scoring.guard import RewardGuard, random_states_kept
from grpo.scoring.sample import Sample
from grpo.scoring.scorer import Scorer
from grpo.task import given
from grpo.training import sampling_trial
from grpo.training.causes import History, collapse
from grpo.training.checkpointing import SealedCheckpoints
from grpo.training.console import Progress, printing
from grpo.training.of_trainer import OfTrainer
from lean_grpo.overrides import same_loss
from rewards import completion_text


class RunTrainer(SealedCheckpoints):
    """A run's trainer: it scores completions, leaves out faulty rows, logs solved groups and seals checkpoints.

    A resumed run equals the uninterrupted one bit by bit if the checkpoint is at the end of a rollout, which the
    callback StopAtRolloutEnd ensures.

    Args:
        run: the run whose signals, phases and facts it asks.
        scorer: scores completions. Verdicts are for the logged shares of groups; training itself only uses rewards.
        model, callbacks and other arguments: GRPOTrainer's, but for `reward_funcs`, which are the scorer's.
        measure: evaluates the policy on the held-out questions, in place of TRL's evaluation; returns its measures as
            `eval_…`.
        perfect: each reward's value for a perfect completion, by logged name, if preflight measured it.
        max_faulty_rewards: the largest share of a rollout's rows on which rewards may fail, in [0, 1] (guard.py).

    Attributes:
        solved: the share of right completions in each group of the last rollout of all processes, (groups,); NaN if
            unknown. Like `given` and `collapsed`, of the prompts that the data's sampler showed.
        given: the last rollout's answers and gold answers of all processes, as `given.tally` counts them.
        collapsed: whether its completions are one text for every question (causes.py).
        history: what alarms and causes know of the run, and of its earlier sessions.
        weights, configuration: digests of the model to begin with (policy/loading.py).
        wandb_id: the id of the run's W&B run; None: W&B chooses it.
    """

    def __init__(
        self,
        run: Run,
        scorer: Scorer,
        model: Any,
        *args: Any,
        callbacks: Sequence[TrainerCallback] = (),
        measure: Callable[[], dict[str, float]] = dict,
        perfect: Mapping[str, float] | None = None,
        max_faulty_rewards: float = 0.1,
        **kwargs: Any,
    ) -> None:
        is_loaded = not isinstance(model, str)
        self.weights = digest_of_weights(model) if is_loaded else ""
        self.configuration = digest_of_configuration(model) if is_loaded else ""
        rewards = list(scorer.rewards.values())
        super().__init__(run, scorer.task.record(), model, rewards, *args, callbacks=[*callbacks], **kwargs)
        self.scorer, self.measure = scorer, measure
        self.prefill = scorer.task.prompt.prefill
        self.guard = RewardGuard(Path(self.args.output_dir or ""), max_faulty_rewards)
        self._rollouts_of = "", 0  # a step, and how many of its rollouts were scored before
        self.solved = torch.zeros(0)
        self.given: dict[str, Any] | None = None
        self.collapsed = False
        self._seconds: dict[str, float] = {}  # of a rollout's phases
        self._judge_failed = False
        tokenizer, ends = cast(Any, self.processing_class), self.eos_token_ids
        of_template = run.config.template_kwargs
        unended = templates.unended(tokenizer, ends, of_template) if scorer.task.prompt.chat else ""
        penalties = sorted(registry.penalties(scorer.rewards))
        self.history = History(perfect=dict(perfect or {}), penalties=penalties, unended=unended)
        self.wandb_id = trackers.wandb_id(self.args)
        for callback in callbacks:
            if isinstance(callback, OfTrainer):
                callback.join(self)
        sampling_trial.run(self)

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        stops_early = any(isinstance(callback, EarlyStoppingCallback) for callback in self.callback_handler.callbacks)
        if stops_early and (self.args.metric_for_best_model is None or self.args.eval_strategy == "no"):
            raise UserError(
                f"EarlyStoppingCallback: it needs a metric; use --metric_for_best_model {LENIENT.key} with "
                "--eval_every 10"
            )
        with (
            trackers.dropping_failed(self.callback_handler.callbacks),
            trackers.resuming_wandb(self.wandb_id),
            self.run.during(OPTIMIZER_STEP),
        ):
            if isinstance(resume_from_checkpoint, str):
                self.check_checkpoint(resume_from_checkpoint)
            return super().train(resume_from_checkpoint, *args, **kwargs)

    # Phases

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        """Like LeanGRPOTrainer's, but log the seconds of a rollout's phases, of all its rounds, and its faulty rows.

        TRL's `step_time` is everything except the optimizer's step.
        """
        self._seconds = {}
        self.guard.begin_rollout()
        output = super()._generate_and_score_completions(inputs)
        for name, seconds in self._seconds.items():
            self.note(name, seconds)
        if self.guard.any_fault:  # also 0, so that a log's mean is over its rollouts
            self.note("rewards/left_out", self.guard.share)
        return output

    @contextlib.contextmanager
    def _timed(self, phase: Phase, name: str) -> Iterator[None]:
        start = time.perf_counter()
        with self.run.during(phase):
            yield
        self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - start

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        with self._timed(SAMPLING, "time/generation"):
            return super()._generate(*args, **kwargs)

    @same_loss
    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        with self.run.during(TRAINING_STEP):
            return super().training_step(*args, **kwargs)

    # What is logged

    def note(self, name: str, value: float) -> None:
        """Add a value to a metric of training; the next log has the mean of its values."""
        self.training_metrics.setdefault(name, []).append(value)

    @property
    def training_metrics(self) -> dict[str, list[float]]:
        """Values of each metric since training's last log."""
        return cast(dict[str, list[float]], self._metrics["train"])

    @property
    def last_rollout(self) -> dict[str, Any]:
        """TRL's log of the last rollout of all processes: `prompt`, `completion`, `rewards` by name."""
        return cast(dict[str, Any], self._logs)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Like TRL's, but a resumed run logs the same values as an uninterrupted one.

        `train_loss` is the mean over all steps, not only those of this session. If nothing was sampled, the last
        table of completions is kept.
        """
        lines = [line for line in self.state.log_history if "loss" in line]
        if "train_loss" in logs and lines:
            steps = [line["step"] for line in lines]
            weights = [now - before for now, before in zip(steps, [0, *steps], strict=False)]
            logs["train_loss"] = fmean([line["loss"] for line in lines], weights)
        shows, self.log_completions = self.log_completions, self.log_completions and bool(self._logs["prompt"])
        progress = [callback for callback in self.callback_handler.callbacks if isinstance(callback, Progress)]
        with printing(progress[0].show_samples) if progress else contextlib.nullcontext():
            super().log(logs, *args, **kwargs)
        self.log_completions = shows

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True  # transformers would take a step beyond a finished run's end
            return
        super()._run_epoch(*args, **kwargs)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Measure the policy on the held-out questions; TRL would sample a group for each of them.

        A signal ends the evaluation, which then has no measures, and the run with this step's checkpoint.
        """
        metrics: dict[str, float] = {}
        with contextlib.suppress(GivenUp):
            metrics = self.measure()
        if self.state.global_step < self.state.max_steps:
            self.run.stop.after_step()
        if self.run.stop.is_asked and self.at_boundary:
            self.control.should_training_stop = self.control.should_save = True
        if metrics:
            self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    # Rewards

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, ids: Any) -> torch.Tensor:
        """Like TRL's, but exclude rows on which a reward fails, and log groups as right, wrong or mixed.

        Rewards and the judge may seed and draw: each rollout gives them random states of its own, and training keeps
        its own. A resumed run gives them the same.
        """
        step = f"{self.args.seed} {self.args.process_index} True {self.state.global_step}"
        self._rollouts_of = step, self._rollouts_of[1] + 1 if self._rollouts_of[0] == step else 0
        seed = f"{step} {self._rollouts_of[1]}"
        shared = {"trainer_state": self.state, "log_extra": self._log_completion_extra, "log_metric": self._log_metric}
        texts = map(completion_text, completions)
        samples = [Sample(row, text, tokens) for row, text, tokens in zip(inputs, texts, ids, strict=True)]
        with self._timed(REWARDS, "time/rewards"):
            with random_states_kept(f"judge {seed}"):
                samples = self.scorer.judge(samples)
            with random_states_kept(seed):
                samples = self.scorer.reward(samples, shared)
        if self.is_first_round:
            self._note_solved(samples)
            self._count_answers(samples)
        return self.guard.gather(self, samples)

    def _count_answers(self, samples: Sequence[Sample]) -> None:
        """Count the answers of all processes, to see whether the policy gives one answer to everything."""
        own = [(sample.verdict.read[: given.CLIPPED], sample.gold, sample.text) for sample in samples]
        answers, golds, texts = map(list, zip(*gather_object(own), strict=True))
        self.given = given.tally(answers, golds, self.num_generations or 1)
        self.collapsed = collapse(texts, self.solved.tolist(), self.num_generations or 1)

    def _note_solved(self, samples: Sequence[Sample]) -> None:
        """Log the shares of groups that are all right, all wrong and mixed.

        Args:
            samples: this process' completions.
        """
        faults = [sample.judge_fault for sample in samples if sample.judge_fault]
        verdicts = [sample.verdict.lenient for sample in samples]
        # for all processes to gather: infinity where the judge failed, NaN where it cannot judge
        numbers = [math.nan if verdict is None else float(verdict) for verdict in verdicts]
        numbers = [math.inf if sample.judge_fault else number for sample, number in zip(samples, numbers, strict=True)]
        right = self.accelerator.gather(torch.tensor(numbers, device=self.accelerator.device)).cpu()
        if right.isinf().any() and not self._judge_failed:
            fault = gather_object(faults[:1])[0]
            say(f"note: the judge fails, so some groups are not logged as right or wrong ({fault})")
            self._judge_failed = True
        right = right.masked_fill(right.isinf(), torch.nan)
        self.solved = right.view(-1, self.num_generations or 1).mean(dim=1)
        known = self.solved[~self.solved.isnan()]
        kinds = {"all_right": known == 1, "all_wrong": known == 0, "mixed": (known > 0) & (known < 1)}
        for kind, those in kinds.items() if len(known) else ():
            self.note(f"groups/{kind}", those.float().mean().item())

    # Checkpoints

    def _get_train_sampler(self, dataset: Dataset | None = None) -> RepeatSampler:
        stock = cast(RepeatSampler, super()._get_train_sampler(dataset))
        return _InEpochs(stock, lambda: int(self.state.epoch or 0))

    # The Hub

    def init_hf_repo(self, *args: Any, **kwargs: Any) -> None:
        with hub.one_line_refusals():
            super().init_hf_repo(*args, **kwargs)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Write TRL's model card and, if the directory contains a run, the run's section below it."""
        output, hub_model_id = Path(self.args.output_dir or ""), cast(Any, self.hub_model_id)
        placeholder = f"your-name/{card.hub_name(output.name)}"  # TRL would print None
        self.hub_model_id = hub_model_id or cast(Any, placeholder)
        super().create_model_card(*args, **kwargs)
        self.hub_model_id = hub_model_id
        if self.is_world_process_zero() and (output / "run.json").exists():
            try:
                card.complete(output, self.state.global_step)
            except UserError as error:  # a broken file must not cost the checkpoint
                say(f"note: the model card is TRL's alone ({error})")


class _InEpochs(RepeatSampler):
    """TRL's sampler with an order of prompts that depends on the epoch.

    Stock TRL draws all orders from one generator. A resumed run would restart it, and see the prompts of its third
    epoch in the order of the first.
    """

    def __init__(self, stock: RepeatSampler, epoch: Callable[[], int]) -> None:
        self.__dict__.update(stock.__dict__)
        self._epoch = epoch

    def __iter__(self) -> Iterator[int]:
        if self.shuffle:
            self.generator.manual_seed(cast(int, self.seed))
            for _ in range(self._epoch()):
                torch.randperm(self.num_samples, generator=self.generator)
        return super().__iter__()
