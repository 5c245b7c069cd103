"""A GRPOTrainer for long runs: it survives faulty rewards, names what filled the device, and resumes identically.

Stock TRL ends a run where a reward raises. Resumed, it draws the prompts of a later epoch in the first one's order,
forgets what it measured since its last log, and takes the newest checkpoint for a complete one.
"""

import contextlib
import json
import math
import pickle
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from datasets import Dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import RepeatSampler

from grpo.core import gpu, out_of_memory
from grpo.core.errors import UserError
from grpo.core.out_of_memory import phase
from grpo.policy import sharding, vllm_engine
from grpo.rewarding import groups
from grpo.rewarding.guard import RewardGuard
from grpo.rewarding.judge import Judge
from grpo.runs import checkpoints, report
from grpo.runs.record import without_nan
from grpo.training import optimizer

COMPLETION_IDS, COMPLETIONS = 1, 3  # where they are in what TRL's `_generate` returns


class BaseGRPOTrainer(GRPOTrainer):
    """TRL's GRPOTrainer that handles reward faults and out-of-memory errors, and resumes as if never interrupted.

    Its arguments and results are GRPOTrainer's. A resumed run is bitwise the uninterrupted one where the checkpoint
    falls on a rollout's end; the callback Stopping sees to that.

    Args:
        max_faulty_rewards: the largest share of a rollout's rows, in [0, 1], on which rewards may fail (guard.py).

    Attributes:
        checkpoint_facts: what each checkpoint's seal remembers besides its files.
        judge: what is right, for the metrics of groups; None: these are not known.
        prefill: what rendered prompts end in and completions begin with: `<think>\\n` of some chat templates. Rewards
            and logs get the whole text; TRL's completion alone would never be in the format (TRL issue 6966).
        losses_finite: whether all losses of this process were finite since a callback last set it.
    """

    args: GRPOConfig
    judge: Judge | None = None
    prefill = ""
    pack_tokens: int | None = None  # what a training step computes at once; None: TRL's micro-batch
    model: Any  # PreTrainedModel or PeftModel; never None once constructed

    def __init__(self, *args: Any, max_faulty_rewards: float = 0.1, **kwargs: Any) -> None:
        self.checkpoint_facts: dict[str, Any] = {}
        self._resumed_from: Path | None = None
        with phase(out_of_memory.START), vllm_engine.used_by_trl():
            super().__init__(*args, **kwargs)
        if self.accelerator.device.type == "cuda":
            gpu.prepare(self.args.tf32)  # what vLLM has just undone, and for those who use no train_grpo.py
        self.output_dir = Path(self.args.output_dir or "")  # TrainingArguments has set it
        self.guard = RewardGuard(self.output_dir, max_faulty_rewards)
        self.losses_finite = torch.ones((), dtype=torch.bool, device=self.accelerator.device)
        sharding.check(self)
        self.add_callback(RestoreMetrics(self))

    # Faults: each phase of a run is named where a device is full

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        with phase(out_of_memory.GENERATION, self), self._timed("time/generation"):
            generated = super()._generate(*args, **kwargs)
        self._write_out(*generated[COMPLETION_IDS : COMPLETIONS + 1])
        return generated

    def _write_out(self, completion_ids: list[list[int]], _: Any, completions: list[Any]) -> None:
        """Let completions be what the model wrote, after what its prompt began.

        TRL has neither: where the tokenizer has a response template, `<think>` and what it holds are taken out.
        """
        parsed = any(getattr(self._tokenizer, f"response_{kind}", None) for kind in ("template", "schema"))
        if self.tools or not (self.prefill or parsed):
            return
        texts = self._tokenizer.batch_decode(completion_ids, skip_special_tokens=True)
        for index, text in enumerate(texts):
            whole = self.prefill + text
            chat = not isinstance(completions[index], str)
            completions[index] = [{"role": "assistant", "content": whole}] if chat else whole

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, ids: Any) -> torch.Tensor:
        with phase(out_of_memory.REWARDS, self), self._timed("time/rewards"), self.guard.watching(self) as faults:
            values = super()._calculate_rewards(inputs, prompts, completions, ids)
            right = groups.verdicts(self.judge, inputs, completions) if self.judge else []
        values = self.guard.exclude(self, values, faults, prompts=prompts, completions=completions)
        self._note_groups(right, values)
        return values

    def _note_groups(self, right: list[float], values: torch.Tensor) -> None:
        """Log which groups are right and wrong; what no reward has scored is not part of its group."""
        if self.judge is None:
            return
        mode, group = ("train", self.num_generations) if self.model.training else ("eval", self.num_generations_eval)
        gathered = self.accelerator.gather(torch.tensor(right, device=values.device))
        solved = groups.solved(gathered.masked_fill(values.isnan().all(1), math.nan), group or 1)
        for name, share in groups.shares(solved).items():
            self._metrics[mode].setdefault(name, []).append(share)

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Any]:
        with phase(out_of_memory.SCORING, self):
            output = super()._generate_and_score_completions(inputs)
            self._check_rollout(output)
        return output

    def _check_rollout(self, output: dict[str, Any]) -> None:
        """Raise where a rollout cannot be trained on."""

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        with phase(out_of_memory.TRAINING, self):
            loss = super().training_step(*args, **kwargs)
            self._wait_for_backward()
        self.losses_finite &= loss.isfinite().all()
        return loss

    def _wait_for_backward(self) -> None:
        """Count it in `step_time`, where a GPU is still at it: TRL's clock stops once it is launched."""
        if self.accelerator.device.type != "cuda":
            return
        start = time.perf_counter()
        torch.cuda.synchronize()  # transformers would be next to wait, for the loss
        waited = time.perf_counter() - start
        if self._step % self.current_gradient_accumulation_steps:
            self._current_train_step_time += waited
        else:
            self._metrics["train"]["step_time"][-1] += waited

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        training = self.model.training
        with phase(out_of_memory.EVALUATION, self):
            measured = super().evaluate(*args, **kwargs)
        self.model.train(training)  # otherwise the last log would be one of an evaluation, without training's metrics
        return measured

    @contextlib.contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        """Log how long it takes, in seconds; `step_time`, which TRL logs, is all but the optimizer's step."""
        start = time.perf_counter()
        yield
        mode = "train" if self.model.training else "eval"
        self._metrics[mode].setdefault(name, []).append(time.perf_counter() - start)

    @property
    def at_boundary(self) -> bool:
        """Whether the next micro-batch begins with a rollout: only there can a checkpoint be resumed from."""
        return self._step % ((self.args.steps_per_generation or 1) * self.num_iterations) == 0

    def weights_are_finite(self) -> bool:
        """Whether all trained weights are finite, on all processes alike."""
        local, device = [sharding.part(w) for w in self.model.parameters() if w.requires_grad], self.accelerator.device
        finite = torch.stack([torch.isfinite(weight).all().to(device) for weight in local]).all()
        return bool(self.accelerator.gather(finite[None]).all())

    # Starting and resuming

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """As GRPOTrainer's; True takes the newest complete checkpoint.

        Raises:
            UserError: the checkpoint is not complete, or a device is full.
        """
        if resume_from_checkpoint is True:
            found, skipped = checkpoints.newest(self.output_dir)
            if found is None:
                raise UserError("; ".join(["resume_from_checkpoint: there is no complete checkpoint", *skipped]))
            resume_from_checkpoint = str(found)
        elif resume_from_checkpoint and (reason := checkpoints.problem_with(Path(resume_from_checkpoint))):
            raise UserError(f"resume_from_checkpoint: cannot resume from {resume_from_checkpoint!r}: {reason}")
        self._resumed_from = Path(resume_from_checkpoint) if resume_from_checkpoint else None
        if self._resumed_from:
            sharding.check_checkpoint(self._resumed_from, self.accelerator)
        on_start = self.args.eval_on_start
        self.args.eval_on_start = on_start and not resume_from_checkpoint  # the run evaluated when it began
        try:
            with phase(out_of_memory.OPTIMIZER, self):  # all else in it has a phase of its own
                return super().train(resume_from_checkpoint or None, *args, **kwargs)
        except Exception as error:
            if not self.args.disable_tqdm and self.is_world_process_zero():
                print(file=sys.stderr)  # the error gets a line of its own, not the progress bar's
            if isinstance(error, pickle.UnpicklingError):  # torch's words advise to run the pickle
                raise UserError(
                    f"resume_from_checkpoint: {resume_from_checkpoint!r} contains a pickle with code, or a broken one "
                    "(none of it was run); use an earlier checkpoint"
                ) from error
            raise
        finally:
            self.args.eval_on_start = on_start

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        """As transformers', but tied weights (`lm_head.weight`), which a checkpoint has once, are not missing."""
        tied = getattr(self.model, "all_tied_weights_keys", {})
        load_result.missing_keys[:] = [key for key in load_result.missing_keys if key not in tied]
        super()._issue_warnings_after_load(load_result)

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        if self.state.global_step < self.state.max_steps:
            return super()._run_epoch(*args, **kwargs)
        self.control.should_training_stop = True  # transformers would take one step more than a finished run has

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        sharding.keep_precision(self.accelerator)

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        """As transformers', but stable_adamw without its Triton kernel where that cannot work, and dithered."""
        made = super().create_optimizer(*args, **kwargs)
        if self.accelerator.device.type == "cpu" or self.is_fsdp_enabled:
            optimizer.use_no_triton(made)
        optimizer.dither(made, self.args.seed)
        return made

    def _get_train_sampler(self, dataset: Dataset | None = None) -> RepeatSampler:
        stock = cast(RepeatSampler, super()._get_train_sampler(dataset))
        return _InEpochs(stock, lambda: int(self.state.epoch or 0))

    # Writing checkpoints

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """As transformers', but sealed when all of it is on the disk, and only then are older ones removed.

        Weights that contain NaN or infinity are not saved: a run must be able to resume from its newest checkpoint.
        """
        if not self.weights_are_finite():
            return
        run = Path(self._get_output_dir(trial=trial))
        directory, accelerator = run / f"checkpoint-{self.state.global_step}", self.accelerator
        if self.args.should_save:
            checkpoints.break_seal(directory)
            shutil.rmtree(directory, ignore_errors=True)  # what an earlier attempt left
        accelerator.wait_for_everyone()
        keep, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            with phase(out_of_memory.CHECKPOINT, self):
                super()._save_checkpoint(model, trial)
            self._save_unlogged(directory)
            accelerator.wait_for_everyone()
            if self.args.should_save:
                divided_by = sharding.kind(accelerator)
                checkpoints.seal(directory, accelerator.num_processes, divided_by=divided_by, **self.checkpoint_facts)
        except Exception:
            shutil.rmtree(directory, ignore_errors=True)  # to free the space
            raise
        finally:
            self.args.save_total_limit = keep
        if self.args.should_save:
            checkpoints.remove_old(run, keep, self.state.best_model_checkpoint)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """As transformers', without its progress bars; it saves no weights where FSDP's checkpoints are in parts."""
        with sharding.saved_whole(self.accelerator), _no_bars():
            super().save_model(output_dir, _internal_call=_internal_call)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """Ours where the directory holds the record of a run, which TRL's would replace at each save."""
        output = Path(self.args.output_dir or "")
        if not (output / "run.json").exists():
            super().create_model_card(*args, **kwargs)
        elif self.is_world_process_zero():
            report.write_model_card(output)

    # Metrics since the last log

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
        if "loss" in logs and self.accelerator.device.type == "cuda":  # since the log before, on this process' GPU
            logs["memory/peak_gb"] = torch.cuda.max_memory_allocated() / 1e9
            torch.cuda.reset_peak_memory_stats()
        completions = self.log_completions
        self.log_completions = completions and bool(self._logs["prompt"])  # an empty table would replace the last one
        try:
            super().log(logs, *args, **kwargs)
        finally:
            self.log_completions = completions


@contextlib.contextmanager
def _no_bars() -> Iterator[None]:
    """Without transformers' bar for the files it writes, which would break the one of training."""
    hook = transformers.utils.logging.set_tqdm_hook(lambda make, args, how: make(*args, **{**how, "disable": True}))
    try:
        yield
    finally:
        transformers.utils.logging.set_tqdm_hook(hook)


class RestoreMetrics(TrainerCallback):
    """Gives a resumed trainer back what it had measured since its last log."""

    def __init__(self, trainer: BaseGRPOTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.trainer._resumed_from:
            self.trainer._load_unlogged(self.trainer._resumed_from)


class _InEpochs(RepeatSampler):
    """TRL's sampler, whose order of prompts depends on the epoch that begins.

    Stock draws one order after the other from a generator that starts anew in a resumed run, which would so see the
    prompts of its third epoch in the order of the first.
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
