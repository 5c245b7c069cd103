"""LeanGRPOTrainer for runs that survive faulty rewards and resume bit by bit.

Private members of TRL 1.16 and transformers that this module overrides or uses, and the test in tests/ that fails if
one changes:

    _generate                      training/test_run_trainer.py::test_phases_are_timed
    _calculate_rewards             scoring/test_guard.py::test_a_fault_has_the_gradient_of_none_in_stock_trl
    _metrics                       training/test_callbacks.py::test_each_rollout_is_read_and_an_alarm_raised_once
    _logs                          training/test_callbacks.py::test_each_rollout_is_read_and_an_alarm_raised_once
    _step                          training/test_stopping.py::test_checkpoints_due_amid_a_rollout_come_at_its_end
    _get_train_sampler             training/test_resumed.py::test_a_resumed_run_ends_as_the_uninterrupted_one
    _run_epoch                     training/test_resumed.py::test_a_finished_run_that_is_resumed_stays_as_it_is
    _prepare_for_training          policy/test_sharding.py::test_sharded_run_is_resumed_and_saves_all_weights
    _load_from_checkpoint          runs/test_resume.py::test_a_damaged_file_is_one_line
    _load_optimizer_and_scheduler  training/test_resumed.py::test_a_resumed_optimizer_follows_the_settings
    _save_checkpoint               training/test_resumed.py::test_a_checkpoint_that_fails_leaves_the_last_one_whole
    _generate_single_turn          training/test_stopping.py::test_a_signal_ends_work_that_is_repeated
    _determine_best_metric         training/test_best.py::test_what_is_said_is_of_the_weights_that_are_saved
    _init_training_state           training/test_best.py::test_the_best_checkpoint_moves_with_its_run
    _load_best_model               training/test_best.py::test_what_is_said_is_of_the_weights_that_are_saved
    _finalize_training             training/test_best.py::test_what_is_said_is_of_the_weights_that_are_saved
    _load_rng_state                training/test_stopping.py::test_a_signal_ends_work_that_is_repeated
    _load_scaler                   test_security.py::test_a_checkpoint_runs_no_code_at_a_resume
    _maybe_log_save_evaluate       training/test_stopping.py::test_a_signal_ends_work_that_is_repeated
    _tr_loss                       training/test_stopping.py::test_a_signal_ends_work_that_is_repeated
"""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, TypedDict, cast

import torch
from accelerate.utils import gather_object
from datasets import Dataset
from transformers import EarlyStoppingCallback, TrainerState
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import SaveStrategy
from trl.trainer.utils import RepeatSampler

from grpo.core.errors import UserError
from grpo.core.kinds import fault
from grpo.core.phases import (
    OPTIMIZER_STEP,
    READING,
    REWARDS,
    SAMPLING,
    SAVING,
    TRAINING_STEP,
    Phase,
)
from grpo.core.processes import GivenUp, say
from grpo.policy.loading import digest_of_configuration, digest_of_weights
from grpo.report import card, hub, trackers
from grpo.results.measures import LENIENT, is_of_evaluation
from grpo.runs import checkpoints, pickles
from grpo.runs.run import Run
from grpo.scoring.guard import RewardGuard, keep_random_states, random_states_kept
from grpo.scoring.sample import Sample
from grpo.scoring.scorer import Scorer
from grpo.task import given
from grpo.training import sampling_trial
from grpo.training.causes import History
from lean_grpo import LeanGRPOTrainer
from lean_grpo.overrides import same_loss
from rewards import completion_text


class _Watch(TypedDict):
    seen: History
    raised: list[str]


class _AccuracyCurve(TypedDict):
    step: int


SAVED_STATE = {  # what a resumed run uses of trainer_state.json
    "epoch": float,
    "global_step": int,
    "max_steps": int,
    "log_history": list[dict[str, Any]],
    "best_model_checkpoint": str | None,
    "stateful_callbacks": {"watch": _Watch, "accuracy_curve": _AccuracyCurve},
}
OPTIONS = {
    "initial_lr",
    "betas",
    "eps",
    "weight_decay",
    "fused",
}  # of a group of an optimizer's parameters


class RunTrainer(LeanGRPOTrainer):
    """A LeanGRPOTrainer that also guards rewards, logs solved groups and seals checkpoints.

    A resumed run equals the uninterrupted one bit by bit if the checkpoint is at the end of a rollout, which the
    callback StopAtRolloutEnd ensures.

    Args:
        max_faulty_rewards: the largest share of a rollout's rows on which rewards may fail, in [0, 1] (guard.py).

    Attributes:
        scorer: scores completions. Verdicts are for the logged shares of groups; training itself only uses rewards.
        solved: the share of right completions in each group of the last rollout of all processes, (groups,); NaN if
            unknown.
        given: the last rollout's answers and gold answers of all processes, as `given.tally` counts them.
        run: the run that signals end; without one they have their usual effect.
        measure: evaluates the policy on the held-out questions, in place of TRL's evaluation; returns its measures as
            `eval_…`.
        history: what alarms and causes know of the run; a resumed run has its own.
        best_step: the optimizer step of the best checkpoint, once its weights are loaded; None before.
        seal_record: additional values for the seal of each checkpoint.
        weights, configuration: digests of the model to begin with (policy/loading.py).
        wandb_id: the id of the run's W&B run; None: W&B chooses it.
    """

    run: Run | None = None
    wandb_id: str | None = None
    measure: Callable[[], dict[str, float]] = staticmethod(dict)

    def __init__(self, scorer: Scorer, model: Any, *args: Any, max_faulty_rewards: float = 0.1, **kwargs: Any) -> None:
        is_loaded = not isinstance(model, str)
        self.weights = digest_of_weights(model) if is_loaded else ""
        self.configuration = digest_of_configuration(model) if is_loaded else ""
        super().__init__(model, list(scorer.rewards.values()), *args, **kwargs)
        self.scorer = scorer
        self.seal_record: dict[str, Any] = {}
        self._restore_random_states: Callable[[], None] | None = None
        self.guard = RewardGuard(Path(self.args.output_dir or ""), max_faulty_rewards)
        self._rollouts_of = "", 0  # a step, and how many of its rollouts were scored before
        self.solved = torch.zeros(0)
        self.given: dict[str, Any] | None = None
        self._judge_failed = False
        self._own_options: list[dict[str, Any]] = []
        self._own_rates: list[Any] = []
        self._reading: contextlib.ExitStack | None = None
        self.best_step: int | None = None
        self.history = History()
        sampling_trial.run(self)

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        stops_early = any(isinstance(callback, EarlyStoppingCallback) for callback in self.callback_handler.callbacks)
        if stops_early and (self.args.metric_for_best_model is None or self.args.eval_strategy == "no"):
            raise UserError(
                f"EarlyStoppingCallback: it needs a metric; use --metric_for_best_model {LENIENT.key} with "
                "--eval_every 10"
            )
        with (
            trackers.harmless(self.callback_handler.callbacks),
            trackers.resuming_wandb(self.wandb_id),
            self._during(OPTIMIZER_STEP),
        ):
            if isinstance(resume_from_checkpoint, str):
                with self._during(READING):  # first, since a broken file fails amid transformers' `train`
                    state = vars(TrainerState.load_from_json(f"{resume_from_checkpoint}/{checkpoints.STATE}"))
                    if found := fault(state, SAVED_STATE):
                        raise ValueError(f"{checkpoints.STATE}: {found}")
                    pickles.check(Path(resume_from_checkpoint))
            return super().train(resume_from_checkpoint, *args, **kwargs)

    # Phases

    def _during(self, phase: Phase) -> contextlib.AbstractContextManager[None]:
        return self.run.during(phase) if self.run else contextlib.nullcontext()

    @contextlib.contextmanager
    def _timed(self, phase: Phase, name: str) -> Iterator[None]:
        """Log the seconds of a rollout's phase; TRL's `step_time` is everything except the optimizer's step."""
        start = time.perf_counter()
        with self._during(phase):
            yield
        self.note(name, time.perf_counter() - start)

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        with self._timed(SAMPLING, "time/generation"):
            return super()._generate(*args, **kwargs)

    @same_loss
    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        with self._during(TRAINING_STEP):
            return super().training_step(*args, **kwargs)

    def _load_from_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        with self._during(READING):
            super()._load_from_checkpoint(*args, **kwargs)

    def _load_rng_state(self, *args: Any) -> None:
        with self._during(READING):
            super()._load_rng_state(*args)

    def _load_scaler(self, checkpoint: str | None) -> None:
        with self._during(READING) if checkpoint else contextlib.nullcontext():
            super()._load_scaler(checkpoint)

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
        super().log(logs, *args, **kwargs)
        self.log_completions = shows

    # Signals

    def keep_random_states(self) -> None:
        """Keep the random states of this step's end, which a checkpoint of it has."""
        self._restore_random_states = keep_random_states()

    def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
        """Like LeanGRPOTrainer's; all processes raise GivenUp if one of them has received a signal."""
        if self.run is None:
            return super()._generate_single_turn(*args, **kwargs)
        sampled = None
        with contextlib.suppress(GivenUp):
            sampled = super()._generate_single_turn(*args, **kwargs)
        self.run.check_all()
        return sampled

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True  # transformers would take a step beyond a finished run's end
            return
        try:
            super()._run_epoch(*args, **kwargs)
        except GivenUp:  # while a rollout was sampled: no weight has changed since the last step
            if self._restore_random_states:
                self._restore_random_states()
            elif kwargs["resume_from_checkpoint"]:  # nor has any since this checkpoint
                self._load_rng_state(kwargs["resume_from_checkpoint"])
            kept = ("model", "trial", "epoch", "ignore_keys_for_eval", "start_time")
            self._end_here(self._tr_loss, None, **{key: kwargs[key] for key in kept})

    def _end_here(self, *args: Any, **kwargs: Any) -> None:
        """End training at the last step, with its checkpoint."""
        assert self.run is not None
        step, control = self.state.global_step, self.control
        self.run.stop_for_signal()
        control.should_training_stop = control.should_log = True
        control.should_evaluate = False
        control.should_save = step > 0 and not checkpoints.is_sealed(self._checkpoint(step))
        super()._maybe_log_save_evaluate(*args, **kwargs)

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        """Like transformers', but a signal ends an evaluation."""
        try:
            super()._maybe_log_save_evaluate(*args, **kwargs)
        except GivenUp:  # `metric_for_best_model` has no value for this step
            step = self.state.global_step
            if self.args.metric_for_best_model:
                say(f"note: the evaluation at step {step} is given up, so this step cannot be the best")
            self.control.should_evaluate = False
            if step >= self.state.max_steps:
                super()._maybe_log_save_evaluate(*args, **kwargs)
            elif self.at_boundary:
                self._end_here(*args, **kwargs)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Measure the policy on the held-out questions; TRL would sample a group for each of them."""
        metrics = self.measure()
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    # Rewards

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, ids: Any) -> torch.Tensor:
        """Like TRL's, but exclude rows on which a reward fails, and log groups as right, wrong or mixed.

        Rewards and the judge may seed and draw: each rollout gives them random states of its own, and training keeps
        its own. A resumed run gives them the same.
        """
        step = f"{self.args.seed} {self.args.process_index} {self.state.global_step}"
        self._rollouts_of = step, self._rollouts_of[1] + 1 if self._rollouts_of[0] == step else 0
        seed = f"{step} {self._rollouts_of[1]}"
        shared = {"trainer_state": self.state, "log_extra": self._log_completion_extra, "log_metric": self._log_metric}
        texts = map(completion_text, completions)
        samples = [Sample(row, text, tokens) for row, text, tokens in zip(inputs, texts, ids, strict=True)]
        with self._timed(REWARDS, "time/rewards"), random_states_kept(seed):
            samples = self.scorer.score(samples, shared)
            self._count_answers(samples)
        self._note_solved(samples)
        return self.guard.gather(self, samples)

    def _count_answers(self, samples: Sequence[Sample]) -> None:
        """Count the answers of all processes, to see whether the policy gives one answer to everything."""
        pairs = gather_object([(sample.verdict.read[: given.CLIPPED], sample.gold) for sample in samples])
        answers, golds = [text for text, _ in pairs], [gold for _, gold in pairs]
        self.given = given.tally(answers, golds, self.num_generations or 1)

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

    @property
    def at_boundary(self) -> bool:
        """True if the next micro-batch begins with a rollout: only such checkpoints resume exactly."""
        return self._step % ((self.args.steps_per_generation or 1) * self.num_iterations) == 0

    def _get_train_sampler(self, dataset: Dataset | None = None) -> RepeatSampler:
        stock = cast(RepeatSampler, super()._get_train_sampler(dataset))
        return _InEpochs(stock, lambda: int(self.state.epoch or 0))

    def _checkpoint(self, step: int) -> Path:
        return Path(self.args.output_dir or "") / f"checkpoint-{step}"

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: str | None) -> Any:
        """Like transformers', but name the phase in which it loads a checkpoint, also for DeepSpeed and FSDP."""
        with contextlib.ExitStack() as stack:
            self._reading = stack if resume_from_checkpoint else None
            try:
                return super()._prepare_for_training(max_steps, train_dataloader, resume_from_checkpoint)
            finally:
                self._reading = None

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        """Like transformers', which next loads a checkpoint: keep the optimizer's own options, which that replaces."""
        schedule = super().create_scheduler(num_training_steps, optimizer)
        if optimizer is None:  # complete; DeepSpeed passes one while it prepares it
            groups = cast(Any, self.optimizer).param_groups
            self._own_options = [{key: group[key] for key in OPTIONS & group.keys()} for group in groups]
            self._own_rates = list(getattr(schedule, "base_lrs", ()))
            if self._reading:
                self._reading.enter_context(self._during(READING))
        return schedule

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """Like transformers', but the learning rate and the optimizer's options follow this run's settings.

        A checkpoint contains those of its own run: a changed one would have no effect, and with more steps the next
        one would be at the rate of the old schedule's end, often 0.
        """
        super()._load_optimizer_and_scheduler(checkpoint)
        if checkpoint is None:
            return
        schedule, base = cast(Any, self.lr_scheduler), self._own_rates
        for group, own in zip(cast(Any, self.optimizer).param_groups, self._own_options, strict=True):
            was_fused, is_fused = bool(group.get("fused")), bool(own.get("fused"))
            group.update(own)
            for weight in group["params"] if was_fused != is_fused else ():
                state = cast(Any, self.optimizer).state.get(weight, {})
                if "step" in state:  # counted where it is read: by the kernel, or by Python
                    state["step"] = state["step"].to(weight.device if is_fused else "cpu")
        if isinstance(schedule, torch.optim.lr_scheduler.LambdaLR):  # others have no rate for a step
            rates = [rate * scale(schedule.last_epoch) for rate, scale in zip(base, schedule.lr_lambdas, strict=True)]
            schedule.base_lrs, schedule._last_lr = base, rates
            for group, rate in zip(schedule.optimizer.param_groups, rates, strict=True):
                group["lr"] = rate

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Like TRL's, but seal the checkpoint once all of it is on the disk, and only then delete older ones."""
        run, args = Path(self.args.output_dir or ""), self.args
        directory, keep = self._checkpoint(self.state.global_step), args.save_total_limit
        if args.should_save:
            checkpoints.delete(directory)  # left by an earlier attempt
        self.accelerator.wait_for_everyone()
        args.save_total_limit = None
        try:
            with self._during(SAVING):
                super()._save_checkpoint(model, trial)
            self.accelerator.wait_for_everyone()
            if args.should_save:
                checkpoints.seal(directory, self.accelerator.num_processes, **self.seal_record)
        except Exception:
            if args.should_save:  # another process' failure must not end this one while it writes
                checkpoints.delete(directory)  # to free the space
            raise
        finally:
            args.save_total_limit = keep
        if args.should_save:
            checkpoints.rotate(run, keep, self.state.best_model_checkpoint)

    # The best checkpoint

    @property
    def weights_step(self) -> int:
        """The optimizer step of the weights: the last, or that of the best checkpoint once it is loaded."""
        return self.state.global_step if self.best_step is None else self.best_step

    @property
    def _keeps_the_best(self) -> bool:
        """True if the best checkpoint is kept; otherwise a metric may still end training early."""
        return bool(self.args.load_best_model_at_end or self.args.save_strategy == SaveStrategy.BEST)

    def consider_checkpoint(self) -> None:
        """Evaluate the checkpoint that training resumes from, if its run ended before that."""
        self._determine_best_metric(self.evaluate(), None)

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        """Like transformers', but only a step with a checkpoint can be the best to keep. Return True to save one."""
        step, name = self.state.global_step, self.args.metric_for_best_model
        saves = self.control.should_save or checkpoints.is_sealed(self._checkpoint(step)) or not self._keeps_the_best
        if self.args.save_strategy == SaveStrategy.BEST:
            saves |= self.at_boundary or step >= self.state.max_steps
        if name and metrics.get(f"eval_{name}") is None:
            say(f"note: {name} has no value at step {step}, which cannot be the best")
            saves = False
        is_best = saves and super()._determine_best_metric(metrics, trial)
        return is_best or self.control.should_save

    def _init_training_state(self, *args: Any) -> Any:
        """Like transformers', but find the best checkpoint beside the resumed one, where it was moved with its run.

        A best value of another metric or measure is forgotten. Callbacks with a state have it again.
        """
        resumed = args[3]
        with self._during(READING) if resumed else contextlib.nullcontext():
            counts = super()._init_training_state(*args)
        rechosen = self.run.rechosen if self.run else []
        if resumed is not None:
            self._restore_callbacks(bool(rechosen))
        if rechosen and self.state.best_metric is not None:
            begins = f"the best from step {self.state.global_step} on counts"
            say(f"note: the best value so far is dropped, {begins}; changed: {', '.join(rechosen)}")
            self.state.best_metric = self.state.best_global_step = self.state.best_model_checkpoint = None
        if self.run and self.run.remeasured:  # what is said of the log is not of two measures
            for line in self.state.log_history:
                for key in [key for key in line if is_of_evaluation(key)]:
                    del line[key]
        if resumed is not None and self._keeps_the_best and (best := self.state.best_global_step):
            beside = Path(resumed).with_name(f"checkpoint-{best}")
            earlier = self.state.best_model_checkpoint
            if checkpoints.is_sealed(beside):
                self.state.best_model_checkpoint = str(beside)
            elif earlier is None or not checkpoints.is_sealed(Path(earlier)):
                say(f"note: checkpoint-{best}, the best so far, is gone; the best of the following ones counts")
                self.state.best_metric = self.state.best_global_step = self.state.best_model_checkpoint = None
        if resumed is not None and self._keeps_the_best and (kept := self.state.best_model_checkpoint):
            with self._during(READING):  # now, and not once training is over
                pickles.check(Path(kept))
        return counts

    def _restore_callbacks(self, is_another_metric: bool) -> None:
        """Give callbacks that export a state (ExportableState) that of the checkpoint, such as used-up patience.

        Their arguments stay those of this session. transformers restores them only if asked, with the old arguments.

        Args:
            is_another_metric: patience, which counts values of the old one, begins anew.
        """
        saved = cast(dict[str, Any], self.state.stateful_callbacks)
        by_name: dict[str, list[Any]] = {}
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, ExportableState):
                by_name.setdefault(type(callback).__name__, []).append(callback)
        for name, callbacks in by_name.items():
            known = saved.get(name)
            # of several of one class transformers appends the states at each checkpoint
            states = known[-len(callbacks) :] if isinstance(known, list) else [known]
            for callback, state in zip(callbacks, states, strict=False):
                if not (is_another_metric and isinstance(callback, EarlyStoppingCallback)):
                    _restore(callback, state)
            # the next checkpoint needs an entry, also for a callback that is new
            saved[name] = [one.state() for one in callbacks] if len(callbacks) > 1 else callbacks[0].state()

    def _load_best_model(self) -> None:
        super()._load_best_model()
        self.best_step = checkpoints.step_of(Path(self.state.best_model_checkpoint or ""))

    def _finalize_training(self, *args: Any) -> Any:
        """Like transformers', but keep the last checkpoint beside the best one: a run resumes from it."""
        keep, self.args.save_total_limit = self.args.save_total_limit, None
        if self.args.load_best_model_at_end and self.state.best_model_checkpoint is None:
            say("note: load_best_model_at_end: no checkpoint has been evaluated, so the last weights are kept")
        try:
            return super()._finalize_training(*args)
        finally:
            self.args.save_total_limit = keep

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


def _restore(callback: Any, state: Any) -> None:
    """Give a callback the state of a checkpoint, as far as it exports one."""
    attributes = state.get("attributes") if isinstance(state, dict) else None
    own = callback.state().get("attributes", {})
    for name, value in attributes.items() if isinstance(attributes, dict) else ():
        if name in own:
            setattr(callback, name, value)
    if isinstance(callback, EarlyStoppingCallback):
        used_up = callback.early_stopping_patience_counter >= callback.early_stopping_patience
        if used_up:  # it has ended the run, which goes on
            callback.early_stopping_patience_counter = 0


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
