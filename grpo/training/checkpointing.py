"""A trainer whose checkpoints are whole or do not count, and from which a run resumes bit by bit.

Private members of transformers that this module overrides or uses, and the test in tests/ that fails if one changes:

    _step                          training/test_stopping.py::test_checkpoints_due_amid_a_rollout_come_at_its_end
    _prepare_for_training          policy/test_sharding.py::test_sharded_run_is_resumed_and_saves_all_weights
    _load_from_checkpoint          runs/test_resume.py::test_a_damaged_file_is_one_line
    _load_optimizer_and_scheduler  training/test_resumed.py::test_a_resumed_optimizer_follows_the_settings
    _save_checkpoint               training/test_resumed.py::test_a_checkpoint_that_fails_leaves_the_last_one_whole
    _determine_best_metric         training/test_best.py::test_what_is_said_is_of_the_weights_that_are_saved
    _init_training_state           training/test_best.py::test_the_best_checkpoint_moves_with_its_run
    _load_best_model               training/test_best.py::test_what_is_said_is_of_the_weights_that_are_saved
    _finalize_training             training/test_best.py::test_what_is_said_is_of_the_weights_that_are_saved
    _load_rng_state                training/test_stopping.py::test_a_signal_ends_a_run_that_continues_exactly
    _load_scaler                   test_security.py::test_a_checkpoint_runs_no_code_at_a_resume
"""

import contextlib
from pathlib import Path
from typing import Any, TypedDict, cast

import torch
from transformers import EarlyStoppingCallback, TrainerState
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import SaveStrategy

from grpo.core.kinds import fault
from grpo.core.phases import READING, SAVING
from grpo.core.processes import say
from grpo.results.measures import is_of_evaluation
from grpo.runs import checkpoints, pickles
from grpo.runs.run import Run
from grpo.training.causes import History
from lean_grpo import LeanGRPOTrainer
from lean_grpo.dynamic_sampling import STATE


class _Watch(TypedDict):
    seen: History
    raised: list[str]


class _AccuracyCurve(TypedDict):
    step: int


class _DynamicSampling(TypedDict):
    prompts: int


SAVED_STATE = {  # what a resumed run uses of trainer_state.json
    "epoch": float,
    "global_step": int,
    "max_steps": int,
    "log_history": list[dict[str, Any]],
    "best_model_checkpoint": str | None,
    "stateful_callbacks": {"watch": _Watch, "accuracy_curve": _AccuracyCurve, STATE: _DynamicSampling},
}
OPTIONS = {"initial_lr", "betas", "eps", "weight_decay", "fused"}  # of a group of an optimizer's parameters


class SealedCheckpoints(LeanGRPOTrainer):
    """A LeanGRPOTrainer that seals a checkpoint once all of it is written, and resumes exactly from its rollout's end.

    Args:
        run: the run whose phases, facts and changes it asks.

    Attributes:
        sealed: additional values for the seal of each checkpoint.
        best_step: the optimizer step of the best checkpoint, once its weights are loaded; None before.
    """

    def __init__(self, run: Run, sealed: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        self.run, self.sealed = run, sealed
        super().__init__(*args, **kwargs)
        self.best_step: int | None = None
        self._own_options: list[dict[str, Any]] = []
        self._own_rates: list[Any] = []
        self._reading: contextlib.ExitStack | None = None

    def check_checkpoint(self, checkpoint: str) -> None:
        """Raise ValueError for files that are damaged or would run code: they fail amid transformers' `train`."""
        with self.run.during(READING):
            state = vars(TrainerState.load_from_json(f"{checkpoint}/{checkpoints.STATE}"))
            if found := fault(state, SAVED_STATE):
                raise ValueError(f"{checkpoints.STATE}: {found}")
            pickles.check(Path(checkpoint))

    @property
    def at_boundary(self) -> bool:
        """True if the next micro-batch begins with a rollout: only such checkpoints resume exactly."""
        return self._step % ((self.args.steps_per_generation or 1) * self.num_iterations) == 0

    def _checkpoint(self, step: int) -> Path:
        return Path(self.args.output_dir or "") / f"checkpoint-{step}"

    # Reading

    def _load_from_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        with self.run.during(READING):
            super()._load_from_checkpoint(*args, **kwargs)

    def _load_rng_state(self, *args: Any) -> None:
        with self.run.during(READING):
            super()._load_rng_state(*args)

    def _load_scaler(self, checkpoint: str | None) -> None:
        with self.run.during(READING) if checkpoint else contextlib.nullcontext():
            super()._load_scaler(checkpoint)

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
                self._reading.enter_context(self.run.during(READING))
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

    # Writing

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """Like TRL's, but seal the checkpoint once all of it is on the disk, and only then delete older ones."""
        run, args = Path(self.args.output_dir or ""), self.args
        directory, keep = self._checkpoint(self.state.global_step), args.save_total_limit
        if args.should_save:
            checkpoints.delete(directory)  # left by an earlier attempt
        self.accelerator.wait_for_everyone()
        args.save_total_limit = None
        try:
            with self.run.during(SAVING):
                super()._save_checkpoint(model, trial)
            self.accelerator.wait_for_everyone()
            if args.should_save:
                checkpoints.seal(directory, self.accelerator.num_processes, **self.run.facts, **self.sealed)
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

        A best value of another metric or measure is forgotten. Callbacks with a state have it again. Logs, evaluations
        and checkpoints come at the steps of this run's settings, not at those of the checkpoint's.
        """
        max_steps, resumed = args[0], args[3]
        with self.run.during(READING) if resumed else contextlib.nullcontext():
            counts = super()._init_training_state(*args)
        self.state.compute_steps(self.args, max_steps)
        rechosen = self.run.rechosen
        if resumed is not None:
            self._restore_callbacks(bool(rechosen))
        if rechosen and self.state.best_metric is not None:
            begins = f"the best from step {self.state.global_step} on counts"
            say(f"note: the best value so far is dropped, {begins}; changed: {', '.join(rechosen)}")
            self.state.best_metric = self.state.best_global_step = self.state.best_model_checkpoint = None
        if self.run.remeasured:  # what is said of the log is not of two measures
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
            with self.run.during(READING):  # now, and not once training is over
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
