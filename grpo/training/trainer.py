"""TRL's GRPOTrainer with the same gradient for less work, for runs that survive faulty rewards and resume bit by bit.

Stock TRL pads a rollout to its longest prompt and completion, computes each prompt once for every completion, and
trains on completions whose advantage is zero. Here completions with a non-zero advantage are packed without padding
(packing.py), each prompt once, and TRL's own loss is computed for each pack. It is computed a second time, without
gradient, for each of TRL's micro-batches, so that what is logged is what stock TRL logs.

Some models get another gradient than from stock TRL, the right one: TRL passes no positions, so that many models
count the padding on a prompt's left as positions. Rotary positions are relative and do not change with it; learned
ones do (GPT-2, GPT-BigCode, BioGPT, XGLM, BERT's family), and so do added sinusoids (CTRL), a norm after the rotation
(HunYuan) and queries scaled by position (Ministral-3, beyond its original length). Here each row begins at position 0,
as it was sampled.

docs/training-step.md lists what differs and what falls back to TRL's own step.
"""

import contextlib
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean
from typing import Any, cast

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType, gather_object
from datasets import Dataset
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import RepeatSampler

from grpo.core import gpu
from grpo.core.errors import UserError
from grpo.core.processes import say
from grpo.policy import sampling, sharding
from grpo.policy.sampling import Sampling
from grpo.rewarding.guard import RewardGuard, fault_of
from grpo.rewarding.isolation import random_states_kept
from grpo.rewarding.judge import Judge
from grpo.runs import checkpoints, model_card
from grpo.training import attention, micro_batches, packable, packing
from grpo.training.micro_batches import Batch, Plan
from rewards import completion_text

# Settings of TRL's `generate` that our sampler does not know
ONLY_GENERATE = ("generation_kwargs", "cache_implementation", "use_transformers_continuous_batching")


class LeanGRPOTrainer(GRPOTrainer):
    """TRL's GRPOTrainer: its arguments, a plain GRPOConfig, its gradients to rounding.

    A resumed run is bitwise the uninterrupted one where the checkpoint falls on a rollout's end; the callback
    StopAtRolloutEnd sees to that.

    Args:
        packed: false uses TRL's own training step, with its padding.
        pack_tokens: the largest number of positions in a pack, which bounds the memory of a training step (except
            where a micro-batch has one backward: see `_in_parts`); a longer completion gets a pack to itself. None:
            8,192 with FlashAttention 2, otherwise 2,048.
        attn_implementation: of packs: flash_attention_2 looks for the package flash-attn, sdpa does not. The model
            itself runs on sdpa.
        max_faulty_rewards: the largest share of a rollout's rows, in [0, 1], on which rewards may fail (guard.py).

    Attributes:
        judge: the run's, which says what is right in evaluations and in the logged shares of groups; training itself
            asks rewards only.
        solved: the share of each group's completions that is right in the last rollout of all processes, (groups,);
            NaN where nobody knows.
        prefill: what rendered prompts end in and completions begin with: `<think>\\n` of some chat templates. Rewards
            and logs get the whole text; TRL's completion alone would never be in the format (TRL issue 6966).
        checkpoint_facts: what each checkpoint's seal remembers besides its files.
    """

    args: GRPOConfig
    judge: Judge | None = None
    prefill = ""
    model: Any  # PreTrainedModel or PeftModel; never None once constructed

    def __init__(
        self,
        *args: Any,
        packed: bool = True,
        pack_tokens: int | None = None,
        attn_implementation: str = "flash_attention_2",
        max_faulty_rewards: float = 0.1,
        **kwargs: Any,
    ) -> None:
        self.kernel: attention.Kernel | None = None  # None: the training step is TRL's own
        self.pack_tokens: int | None = None
        self._logged_values: tuple[torch.Tensor, torch.Tensor, None] | None = None
        self._plan: Plan | None = None
        super().__init__(*args, **kwargs)
        if self.accelerator.device.type == "cuda":
            gpu.prepare(self.args.tf32)  # vLLM has just undone it
        self.checkpoint_facts: dict[str, Any] = {}
        self.guard = RewardGuard(Path(self.args.output_dir or ""), max_faulty_rewards)
        self.solved = torch.zeros(0)
        self._judge_failed, self._judge_fault = False, ""
        model = self.accelerator.unwrap_model(self.model)
        if self.use_vllm and hasattr(self, "vllm_generation"):  # Unsloth has one of its own
            self.vllm_generation.sync_weights = sampling.keeping_frozen_weights(  # type: ignore[method-assign]
                self.vllm_generation.sync_weights, model
            )
        others = [name for name in ONLY_GENERATE if getattr(self.args, name)]
        why = f"{others[0]} is set" if others else sampling.reason_against(model, Sampling.of(self))
        self._samples_by_generate = why is not None
        if why and not self.use_vllm:
            say(f"note: model.generate samples the rollouts, because {why}")
        reason = packable.reason_against_packing(self) if packed else None
        if packed and reason is None:
            base = model.get_base_model() if hasattr(model, "get_base_model") else model
            mixed = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(self.accelerator.mixed_precision, base.dtype)
            self.kernel = attention.kernel(attn_implementation, self.accelerator.device, mixed, base.config)
            self.pack_tokens = pack_tokens or self.kernel.pack_tokens
            reason = packable.misfit(self)
        if reason is not None:
            self.kernel = self.pack_tokens = None
            say(f"note: the training step is TRL's own, with its padding: {reason}")
        if self.kernel is None:
            return
        known = self.loss_type in micro_batches.KNOWN
        known = known and self.top_entropy_quantile == 1 and not self._entropy_bonus_enabled
        # DeepSpeed's engine steps in the backward of an optimizer step's last micro-batch: there may be but one
        self._in_parts = known and self.accelerator.distributed_type != DistributedType.DEEPSPEED
        self._micro_batches = cast(int, self.args.steps_per_generation)  # of a rollout; GRPOConfig has set it
        together = math.gcd(self.args.gradient_accumulation_steps, self._micro_batches)
        self._planned_together = 1 if self.loss_type in micro_batches.TOKEN_MEANS else together
        self._skips_dead_rows = self.beta == 0 and self.loss_type != "vespo"  # which logs a weight of every completion
        whole = "" if self._in_parts else "; one backward for all packs of a micro-batch"
        say(f"Training step: packs of {self.pack_tokens:,} tokens, {self.kernel.name}{whole}")

    def create_accelerator_and_postprocess(self) -> None:
        super().create_accelerator_and_postprocess()
        sharding.keep_precision(self.accelerator)

    # The rollout

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        """As TRL's; completions are what the model wrote, after what its prompt began.

        TRL has neither: where the tokenizer has a response template, `<think>` and what it holds are taken out.
        """
        with self._timed("time/generation"):
            prompt_ids, completion_ids, tool_mask, completions, *rest = super()._generate(*args, **kwargs)
        parsed = any(getattr(self._tokenizer, f"response_{kind}", None) for kind in ("template", "schema"))
        if not self.tools and (self.prefill or parsed):
            texts = [self.prefill + text for text in self._tokenizer.batch_decode(completion_ids, True)]
            chat = not isinstance(completions[0], str)
            completions = [[{"role": "assistant", "content": text}] for text in texts] if chat else texts
        return prompt_ids, completion_ids, tool_mask, completions, *rest

    def _generate_single_turn(self, prompt_ids: Any, images: Any, *args: Any, **kwargs: Any) -> Any:
        """Sample by vLLM or `generate` as TRL does, else by our sampler, which draws from the same distribution."""
        if self.use_vllm or self._samples_by_generate or images is not None:
            with sharding.whole(self) if self.is_fsdp_enabled else contextlib.nullcontext():
                return super()._generate_single_turn(prompt_ids, images, *args, **kwargs)
        limit, drawn = self.max_completion_length or 0, Sampling.of(self)
        # the loss computes under this autocast, too; an adapter's base model would not by itself
        with sharding.whole(self) as policy, self.accelerator.autocast(), sampling.sampling_mode(policy):
            return sampling.complete(policy, self._tokenizer, prompt_ids, self.eos_token_ids, limit, drawn), None

    # Rewards

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, ids: Any) -> torch.Tensor:
        """As TRL's, but rows on which a reward fails are excluded, and groups are logged as right, wrong or mixed."""
        with self._timed("time/rewards"), self.guard.watching(self):
            values = super()._calculate_rewards(inputs, prompts, completions, ids)
            with random_states_kept():
                right = list(map(self._is_right, inputs, completions))
        self._note_solved(self.accelerator.gather(torch.tensor(right, device=self.accelerator.device)).cpu())
        return self.guard.exclude(self, values)

    def _is_right(self, row: dict[str, Any], completion: Any) -> float:
        """The judge's verdict on a completion, 0 or 1; NaN where there is none, infinity where the judge fails."""
        if self.judge is None or not self.judge.can_judge(row):
            return math.nan
        try:
            return float(self.judge.verdict(completion_text(completion), row))
        except (Exception, SystemExit) as error:  # a user's function may raise anything, and costs no training
            self._judge_fault = fault_of(error)
            return math.inf

    def _note_solved(self, right: torch.Tensor) -> None:
        """Log which share of the groups is all right, all wrong and mixed.

        Args:
            right: (completions of all processes,), 0 or 1, NaN where nobody knows, infinity where the judge failed.
        """
        if right.isinf().any() and not self._judge_failed:
            (fault, *_) = [each for each in gather_object([self._judge_fault]) if each] or [""]
            say(f"note: the judge fails, so some groups are not logged as right or wrong ({fault})")
            self._judge_failed = True
        right = right.masked_fill(right.isinf(), torch.nan)
        if self.judge is not None:
            self.judge.forget()
        group = (self.num_generations if self.model.training else self.num_generations_eval) or 1
        self.solved = right.view(-1, group).mean(dim=1)
        known = self.solved[~self.solved.isnan()]
        kinds = {"all_right": known == 1, "all_wrong": known == 0, "mixed": (known > 0) & (known < 1)}
        for kind, those in kinds.items() if len(known) else ():
            self._metrics[self._mode].setdefault(f"groups/{kind}", []).append(those.float().mean().item())

    @property
    def _mode(self) -> str:
        return "train" if self.model.training else "eval"

    @contextlib.contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        """Log how long it takes, in seconds; `step_time`, which TRL logs, is all but the optimizer's step."""
        start = time.perf_counter()
        yield
        self._metrics[self._mode].setdefault(name, []).append(time.perf_counter() - start)

    # The training step

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: Batch,
        return_outputs: bool = False,
        num_items_in_batch: torch.Tensor | int | None = None,
    ) -> torch.Tensor:
        """The loss of these inputs; in a training step, of this micro-step's packs.

        The packs of an optimizer step sum to what its micro-batches sum to. The gradients of all of this micro-step's
        packs but the last are accumulated on return.
        """
        plan, turn = self._planned(inputs) if self.model.training and not return_outputs else (None, 0)
        if plan is None:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        packs = plan.packs_of_micro_batch[turn]
        total = torch.zeros((), device=self.accelerator.device, requires_grad=not packs)
        for number, (chosen, factor) in enumerate(packs, start=1):
            more = number < len(packs)
            # Processes add their gradients up in the last backward of an optimizer step. With FSDP they do in each:
            # otherwise every device would hold a gradient of all weights.
            waits = more and self.accelerator.sync_gradients and not self.is_fsdp_enabled
            with self.accelerator.no_sync(model) if waits else contextlib.nullcontext():
                loss = self._loss_of(model, plan, chosen) * factor
                if more:
                    self.accelerator.backward(loss)
                    loss = loss.detach()
            total = total + loss
        if turn + 1 == len(plan.packs_of_micro_batch):
            self._log_losses(model, plan)
        return total

    def _planned(self, inputs: Batch) -> tuple[Plan | None, int]:
        """The plan that these inputs are part of, and the number of its micro-step; None where they are in no plan."""
        if self.pack_tokens is None or not self._in_parts:
            return None, 0
        place = self._step % self._micro_batches
        turn = place % self._planned_together
        if turn == 0:
            batches: list[Batch] = (self._buffered_inputs or [])[place : place + self._planned_together]
            self._plan = None
            if batches and inputs is batches[0]:
                self._plan = micro_batches.plan(
                    batches, self.loss_type, self._skips_dead_rows, self.pack_tokens, self._largest_of_all
                )
        ours = self._plan is not None and inputs is self._plan.batches[turn]
        return self._plan if ours else None, turn

    def _loss_of(self, model: torch.nn.Module, plan: Plan, chosen: list[int]) -> torch.Tensor:
        """TRL's loss of some rows as if they were a micro-batch; of none, a zero that depends on all weights."""
        rows = {key: value[chosen or [0]] if value.ndim else value for key, value in plan.rows.items()}
        with self._without_other_processes():
            if not chosen:
                ids = torch.cat([rows["prompt_ids"], rows["completion_ids"]], 1)
                nothing, width = torch.zeros_like(ids), rows["completion_ids"].shape[1]
                return self._get_per_token_logps_and_entropies(model, ids, nothing, width)[0].sum()
            loss = super()._compute_loss(model, rows)
        plan.log_probs[chosen], plan.entropies[chosen] = self._computed
        return loss

    def _log_losses(self, model: torch.nn.Module, plan: Plan) -> None:
        """Let TRL log what it logs, micro-batch by micro-batch, of the values that are known by now."""
        tokens = plan.rows["completion_mask"] * plan.computed[:, None]
        sums = torch.stack([(plan.entropies * tokens).sum(), tokens.sum().float()])
        entropy = self.accelerator.reduce(sums, reduction="sum")
        plan.entropies[~plan.computed] = entropy[0] / entropy[1]  # so that the mean is that of the others
        done = 0
        for batch in plan.batches:
            rows = slice(done, done := done + len(batch["advantages"]))
            self._logged_values = plan.log_probs[rows], plan.entropies[rows], None
            try:
                with torch.no_grad():
                    super()._compute_loss(model, batch)
            finally:
                self._logged_values = None

    @contextlib.contextmanager
    def _without_other_processes(self) -> Iterator[None]:
        """TRL's loss without what it logs, and without the other processes, which may have fewer packs."""
        metrics, accelerator = self._metrics, self.accelerator
        self._metrics, self.accelerator = defaultdict(lambda: defaultdict(list)), _LocalAccelerator(accelerator)
        try:
            yield
        finally:
            self._metrics, self.accelerator = metrics, accelerator

    def _largest_of_all(self, count: int) -> int:
        """The largest count of all processes, at least 1: sharded weights are gathered by all of them, or by none."""
        return int(self.accelerator.gather(torch.tensor([max(count, 1)], device=self.accelerator.device)).max())

    def _get_per_token_logps_and_entropies(
        self,
        model: torch.nn.Module,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        **others: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """As TRL's: training, old and reference log-probabilities all come from here; zero where nothing is scored."""
        if self._logged_values is not None:
            return self._logged_values
        if self.kernel is None or self.pack_tokens is None:
            return super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, batch_size, compute_entropy, **others
            )
        rows = packing.rows_of(input_ids, attention_mask, logits_to_keep)
        packs = packing.make_packs(rows, self.pack_tokens)
        packs += [[]] * (self._largest_of_all(len(packs)) - len(packs))
        with self.accelerator.autocast():
            log_probs, entropies = attention.score(model, self.kernel, rows, packs, logits_to_keep, input_ids.device)
        if entropies is not None:
            self._computed = log_probs.detach(), entropies.detach()
        return log_probs, entropies, None

    # Runs that resume

    @property
    def at_boundary(self) -> bool:
        """Whether the next micro-batch begins with a rollout: only there can a checkpoint be resumed from."""
        return self._step % ((self.args.steps_per_generation or 1) * self.num_iterations) == 0

    def _get_train_sampler(self, dataset: Dataset | None = None) -> RepeatSampler:
        stock = cast(RepeatSampler, super()._get_train_sampler(dataset))
        return _InEpochs(stock, lambda: int(self.state.epoch or 0))

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        if self.state.global_step < self.state.max_steps:
            return super()._run_epoch(*args, **kwargs)
        self.control.should_training_stop = True  # transformers would take one step more than a finished run has

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """As TRL's, but a run that is resumed logs what the whole would.

        `train_loss` is over all steps, not over those since then, and where nothing was sampled no empty table
        replaces the last one.
        """
        lines = [line for line in self.state.log_history if "loss" in line]
        if "train_loss" in logs and lines:
            steps = [line["step"] for line in lines]
            weights = [now - before for now, before in zip(steps, [0, *steps], strict=False)]
            logs["train_loss"] = fmean([line["loss"] for line in lines], weights)
        shows, self.log_completions = self.log_completions, self.log_completions and bool(self._logs["prompt"])
        super().log(logs, *args, **kwargs)
        self.log_completions = shows

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        """As TRL's, but sealed when all of it is on the disk, and only then are older ones removed."""
        run, args = Path(self.args.output_dir or ""), self.args
        directory, keep = run / f"checkpoint-{self.state.global_step}", args.save_total_limit
        if args.should_save:
            checkpoints.delete(directory)  # what an earlier attempt left
        self.accelerator.wait_for_everyone()
        args.save_total_limit = None
        try:
            super()._save_checkpoint(model, trial)
            self.accelerator.wait_for_everyone()
            if args.should_save:
                checkpoints.seal(directory, self.accelerator.num_processes, **self.checkpoint_facts)
        except Exception:
            checkpoints.delete(directory)  # to free the space
            raise
        finally:
            args.save_total_limit = keep
        if args.should_save:
            checkpoints.rotate(run, keep, self.state.best_model_checkpoint)

    def create_model_card(self, *args: Any, **kwargs: Any) -> None:
        """TRL's, completed with the results where the directory holds a run."""
        super().create_model_card(*args, **kwargs)
        output = Path(self.args.output_dir or "")
        if self.is_world_process_zero() and (output / "run.json").exists():
            try:
                model_card.complete(output, self.state.global_step)
            except UserError as error:  # a file that somebody has broken costs no checkpoint
                say(f"note: the model card is TRL's alone ({error})")


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


class _LocalAccelerator:
    """An accelerator that meets no other process."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator

    def __getattr__(self, name: str) -> Any:
        return getattr(self._accelerator, name)

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def reduce(self, tensor: torch.Tensor, reduction: str = "sum") -> torch.Tensor:
        return tensor
