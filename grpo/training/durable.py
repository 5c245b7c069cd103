"""A GRPOTrainer whose runs survive: complete checkpoints, and a continuation that is the run itself.

Stock TRL, resumed, sees the prompts of a later epoch in the first one's order, forgets what it has measured since its
last log, and takes the newest checkpoint for a good one.
"""

import json
import math
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback
from trl.trainer.utils import RepeatSampler

from grpo.core.errors import UserError
from grpo.core.out_of_memory import CHECKPOINT, phase
from grpo.policy import sharding
from grpo.runs import checkpoints
from grpo.runs.record import without_nan
from grpo.training.guarded import GuardedGRPOTrainer


class DurableGRPOTrainer(GuardedGRPOTrainer):
    """TRL's GRPOTrainer: its arguments, its results, and runs that can be gone on with.

    The continuation is the run itself where a checkpoint falls on a rollout's end; the callback Stopping sees to that.

    Attributes:
        checkpoint_facts: what each checkpoint's seal remembers besides its files.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.checkpoint_facts: dict[str, Any] = {}
        self._resumed_from: Path | None = None
        super().__init__(*args, **kwargs)
        sharding.check(self)
        self.add_callback(_GoOn(self))

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> Any:
        """As GRPOTrainer's; True takes the newest complete checkpoint.

        Raises:
            UserError: the checkpoint is not complete.
        """
        if resume_from_checkpoint is True:
            found, skipped = checkpoints.newest(Path(self.args.output_dir))
            if found is None:
                raise UserError("; ".join(["resume_from_checkpoint: there is no complete checkpoint", *skipped]))
            resume_from_checkpoint = str(found)
        elif resume_from_checkpoint and (reason := checkpoints.why_not(Path(resume_from_checkpoint))):
            raise UserError(f"resume_from_checkpoint: {resume_from_checkpoint!r} cannot be gone on from: {reason}")
        self._resumed_from = Path(resume_from_checkpoint) if resume_from_checkpoint else None
        if self._resumed_from:
            sharding.check_checkpoint(self._resumed_from, self.accelerator)
        on_start = self.args.eval_on_start
        self.args.eval_on_start = on_start and not resume_from_checkpoint  # the run has done it when it began
        try:
            return super().train(resume_from_checkpoint=resume_from_checkpoint or None, **kwargs)
        except pickle.UnpicklingError as error:  # torch's words advise to run it
            raise UserError(
                f"resume_from_checkpoint: {resume_from_checkpoint!r} holds a pickle with code, or a broken one (none "
                "of it was run); give an earlier checkpoint"
            ) from error
        finally:
            self.args.eval_on_start = on_start

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        if self.state.global_step < self.state.max_steps:
            return super()._run_epoch(*args, **kwargs)
        self.control.should_training_stop = True  # transformers would do a step more than a finished run has

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        sharding.keep_precision(self.accelerator)

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        """As transformers', but stable_adamw without its Triton kernel where that cannot work."""
        optimizer = super().create_optimizer(*args, **kwargs)
        if self.accelerator.device.type == "cpu" or self.is_fsdp_enabled:
            use_no_triton(optimizer)
        return optimizer

    # Writing

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """As transformers', but sealed when all of it is on the disk, and only then are older ones removed.

        Weights that hold NaN or infinity are not saved: the newest checkpoint is to be one that can be gone on from.
        """
        if not self.weights_are_finite():
            return
        run = Path(self._get_output_dir(trial=trial))
        directory, accelerator = run / f"checkpoint-{self.state.global_step}", self.accelerator
        if self.args.should_save:
            checkpoints.break_seal(directory)
            shutil.rmtree(directory, ignore_errors=True)  # what an earlier attempt has left
        accelerator.wait_for_everyone()
        keep, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            with phase(CHECKPOINT, self):
                super()._save_checkpoint(model, trial)
            self._save_unlogged(directory)
            accelerator.wait_for_everyone()
            if self.args.should_save:
                divided_by = sharding.kind(accelerator)
                checkpoints.seal(directory, accelerator.num_processes, divided_by=divided_by, **self.checkpoint_facts)
        except Exception:
            shutil.rmtree(directory, ignore_errors=True)  # to give room
            raise
        finally:
            self.args.save_total_limit = keep
        if self.args.should_save:
            checkpoints.remove_old(run, keep, self.state.best_model_checkpoint)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """As transformers', which saves no weights where FSDP's checkpoints are to be in parts."""
        with sharding.saved_whole(self.accelerator):
            super().save_model(output_dir, _internal_call=_internal_call)

    # What the next log is still to say

    def _unlogged_file(self, directory: Path) -> Path:
        return directory / f"unlogged_{self.accelerator.process_index}.json"

    def _save_unlogged(self, directory: Path) -> None:
        found = {
            "metrics": self._metrics["train"],
            "loss": self._tr_loss.item(),
            "total_loss": self._total_loss_scalar,
            "last_logged": self._globalstep_last_logged,
            "any_fault": self.guard.any_fault,
        }
        text = json.dumps(without_nan(found), default=float)
        self._unlogged_file(directory).write_text(text + "\n", encoding="utf-8")

    def _load_unlogged(self, directory: Path) -> None:
        found = json.loads(self._unlogged_file(directory).read_text(encoding="utf-8"))
        for name, values in found["metrics"].items():
            self._metrics["train"][name] = [math.nan if value is None else value for value in values]
        self._tr_loss += found["loss"]
        self._total_loss_scalar = found["total_loss"]
        self._globalstep_last_logged = found["last_logged"]
        self.guard.any_fault = found["any_fault"]

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if "train_loss" in logs and self.state.global_step:  # transformers divides by the steps since resuming
            logs["train_loss"] = self._total_loss_scalar / self.state.global_step
        completions = self.log_completions
        self.log_completions = completions and bool(self._logs["prompt"])  # an empty table would replace the last one
        try:
            super().log(logs, *args, **kwargs)
        finally:
            self.log_completions = completions

    # The order of prompts

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        return _InEpochs(super()._get_train_sampler(dataset), lambda: int(self.state.epoch or 0))


def use_no_triton(optimizer: Any) -> None:
    """Let an optimizer of torch-optimi compute with torch alone, on CPUs and on weights that FSDP has divided.

    optimi 0.3 chooses its Triton kernel wherever Triton is installed, which torch from PyPI brings along, and fails
    there in the first step: it looks at a list of weights that is still empty.
    """
    for group in optimizer.param_groups:
        if "triton" in group:
            group["triton"] = False


class _GoOn(TrainerCallback):
    def __init__(self, trainer: DurableGRPOTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.trainer._resumed_from:
            self.trainer._load_unlogged(self.trainer._resumed_from)


class _InEpochs(RepeatSampler):
    """TRL's sampler, whose order of prompts depends on the epoch that begins.

    Stock draws one order after the other from a generator that a resumed run starts anew, so that a run resumed in its
    third epoch would see the prompts in the order of the first.
    """

    def __init__(self, stock: RepeatSampler, epoch: Callable[[], int]) -> None:
        self.__dict__.update(stock.__dict__)
        self._epoch = epoch

    def __iter__(self) -> Iterator[int]:
        if self.shuffle:
            self.generator.manual_seed(self.seed)
            for _ in range(self._epoch()):
                torch.randperm(self.num_samples, generator=self.generator)
        return super().__iter__()
