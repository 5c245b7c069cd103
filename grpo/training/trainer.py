"""GRPOTrainer's training step: the same gradient for less work.

Stock TRL pads a rollout to its longest prompt and completion, computes each prompt once for every completion, and
trains on completions whose advantage is zero. Here the completions that can move the policy are laid out in packs
without padding (packing.py), each prompt once, and TRL's own loss is asked for each pack. It is asked a second time,
without gradient, for each of TRL's micro-batches, so that what is logged is what stock TRL logs.

README, "The training step", says what is exact, what differs and what falls back to TRL's own step.
"""

import contextlib
import ctypes
import functools
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import torch
from accelerate.utils import DistributedType
from trl import GRPOTrainer

from grpo.core.processes import say
from grpo.policy import sharding
from grpo.policy.vllm import SyncCheck
from grpo.training import attention, micro_batches, packable, packing, rollouts
from grpo.training.durable import DurableGRPOTrainer
from grpo.training.micro_batches import Batch, Plan


class LeanGRPOTrainer(DurableGRPOTrainer):
    """TRL's GRPOTrainer: its arguments, a plain GRPOConfig, its gradients to rounding.

    Args:
        generation: how completions are sampled: auto, lean, hf, compiled, continuous or vllm (rollouts.py). None: as
            the GRPOConfig says, with the same completions as a GRPOTrainer of the same seed.
        packed: false takes TRL's own training step, with its padding.
        pack_tokens: positions of a pack at most, which bounds the memory of a training step (but where a micro-batch
            has one backward: see `_in_parts`); a longer completion has a pack to itself. None: what suits the
            attention implementation, 2,048 on a CPU.
        max_faulty_rewards: as DurableGRPOTrainer's.
    """

    def __init__(
        self,
        *args: Any,
        generation: str | None = None,
        packed: bool = True,
        pack_tokens: int | None = None,
        **kwargs: Any,
    ) -> None:
        self.backend: attention.Backend | None = None  # None: everything is TRL's own
        self._known: tuple[torch.Tensor, torch.Tensor, None] | None = None
        self._plans: dict[int, Plan] = {}
        super().__init__(*args, **kwargs)
        self._engine = None if generation is None else rollouts.choose(self, generation)
        self._sync_check = SyncCheck()
        if self.accelerator.device.type == "cpu":
            keep_freed_memory()
        if pack_tokens is not None and pack_tokens < 1:
            raise ValueError(f"pack_tokens: {pack_tokens} is out of range; give at least 1")
        if not packed:
            return
        reason = packable.why_not(self)
        if reason is None:
            implementation = self.accelerator.unwrap_model(self.model).config._attn_implementation
            self.backend = attention.choose(implementation, self.accelerator.device)
            self.pack_tokens = pack_tokens or self.backend.pack_tokens
            reason = packable.misfit(self)
        if reason is not None:
            self.backend = self.pack_tokens = None
            say(f"note: the training step is TRL's own, with its padding: {reason}")
            return
        known = self.loss_type in micro_batches.KNOWN
        known = known and self.top_entropy_quantile == 1 and not self._entropy_bonus_enabled
        # DeepSpeed's engine steps in the backward of an optimizer step's last micro-batch: there may be but one
        self._in_parts = known and self.accelerator.distributed_type != DistributedType.DEEPSPEED
        together = math.gcd(self.args.gradient_accumulation_steps, self.args.steps_per_generation)
        self._block = 1 if self.loss_type in micro_batches.TOKEN_MEANS else together
        self._drops = self.beta == 0 and self.loss_type != "vespo"  # vespo logs a weight of every completion
        whole = "" if self._in_parts else "; one backward for all packs of a micro-batch"
        say(f"Training step: packs of {self.pack_tokens:,} tokens, {self.backend.name}{whole}")

    # One batch on its way

    def _prepare_inputs(self, generation_batch: Any) -> Batch:
        rollout = self._buffered_inputs
        inputs = super()._prepare_inputs(generation_batch)
        if self._buffered_inputs is not rollout:
            self._plans.clear()
        return inputs

    def compute_loss(
        self, model: Any, inputs: Batch, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> torch.Tensor:
        """The loss of this micro-step's packs; the gradients of all of them but the last are there on return."""
        if self.backend is None or not self._in_parts or not self.model.training or return_outputs:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        position = self._step % self.args.steps_per_generation
        block, turn = divmod(position, self._block)
        if block not in self._plans:
            batches = self._buffered_inputs[block * self._block :][: self._block]
            share = self.backend.shares_prompts
            self._plans[block] = micro_batches.plan(
                batches, self.loss_type, self._drops, self.pack_tokens, share, self._most
            )
        plan = self._plans[block]
        packs = plan.turns[turn]
        total = torch.zeros((), device=self.accelerator.device, requires_grad=not packs)
        for number, (chosen, factor) in enumerate(packs, start=1):
            more = number < len(packs)
            # Processes add their gradients up in the last backward of an optimizer step. With FSDP they do in each:
            # otherwise every device would hold a gradient of all weights.
            waits = more and self.accelerator.sync_gradients and not self._dist.is_fsdp
            with self.accelerator.no_sync(model) if waits else contextlib.nullcontext():
                loss = self._loss_of(model, plan, chosen) * factor
                if more:
                    self.accelerator.backward(loss)
                    loss = loss.detach()
            total = total + loss
        if turn + 1 == len(plan.turns):
            self._log(model, plan)
        return total

    def _loss_of(self, model: Any, plan: Plan, chosen: list[int]) -> torch.Tensor:
        """TRL's loss of some rows as if they were a micro-batch; of none, a zero that all weights are part of."""
        rows = {key: value[chosen or [0]] if value.ndim else value for key, value in plan.rows.items()}
        with self._by_itself():
            if not chosen:
                ids = torch.cat([rows["prompt_ids"], rows["completion_ids"]], 1)
                nothing, width = torch.zeros_like(ids), rows["completion_ids"].shape[1]
                return self._get_per_token_logps_and_entropies(model, ids, nothing, width)[0].sum()
            loss = super()._compute_loss(model, rows)
        plan.log_probs[chosen], plan.entropies[chosen] = self._seen
        return loss

    def _log(self, model: Any, plan: Plan) -> None:
        """Let TRL log what it logs, micro-batch by micro-batch, of the values that are known by now."""
        tokens = plan.rows["completion_mask"] * plan.computed[:, None]
        sums = torch.stack([(plan.entropies * tokens).sum(), tokens.sum().float()])
        entropy = self.accelerator.reduce(sums, reduction="sum")
        plan.entropies[~plan.computed] = entropy[0] / entropy[1]  # so that the mean is that of the others
        done = 0
        for batch in plan.batches:
            rows = slice(done, done := done + len(batch["advantages"]))
            self._known = plan.log_probs[rows], plan.entropies[rows], None
            try:
                with torch.no_grad():
                    super()._compute_loss(model, batch)
            finally:
                self._known = None

    @contextlib.contextmanager
    def _by_itself(self) -> Iterator[None]:
        """TRL's loss without what it logs, and without the other processes, which may have fewer packs."""
        metrics, accelerator = self._metrics, self.accelerator
        self._metrics, self.accelerator = defaultdict(lambda: defaultdict(list)), _Alone(accelerator)
        try:
            yield
        finally:
            self._metrics, self.accelerator = metrics, accelerator

    def _most(self, count: int) -> int:
        """The largest count of all processes, at least 1: sharded weights are gathered by all of them, or by none."""
        return int(self.accelerator.gather(torch.tensor([max(count, 1)], device=self.accelerator.device)).max())

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        compute_entropy: bool = False,
        **others: Any,
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """As TRL's: training, old and reference log-probabilities all come from here; zero where nothing is scored."""
        if self._known is not None:
            return self._known
        if self.backend is None:
            return super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, batch_size, compute_entropy, **others
            )
        rows = packing.rows_of(input_ids, attention_mask, logits_to_keep)
        packs = packing.divide(rows, self.pack_tokens, self.backend.shares_prompts)
        packs += [[]] * (self._most(len(packs)) - len(packs))
        with self.accelerator.autocast():
            log_probs, entropies = attention.score(model, self.backend, rows, packs, logits_to_keep, input_ids.device)
        if entropies is not None:
            self._seen = log_probs.detach(), entropies.detach()
        return log_probs, entropies, None

    # The rollout

    def _generate_single_turn(self, prompt_ids: Any, images: Any, *args: Any, **kwargs: Any) -> Any:
        if self._engine is None or images is not None:
            apart = self._dist.is_fsdp and not self.use_vllm  # TRL would gather every layer anew for each token
            with sharding.whole(self) if apart else contextlib.nullcontext():
                return super()._generate_single_turn(prompt_ids, images, *args, **kwargs)
        return self._engine(self, prompt_ids), None

    def _generate_and_score_completions(self, inputs: Any) -> Batch:
        output = super()._generate_and_score_completions(inputs)
        self._sync_check(self, output)
        return output

    # What takes the time

    def _generate(self, *args: Any, **kwargs: Any) -> Any:
        with self._timed("time/generation"):
            return super()._generate(*args, **kwargs)

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        with self._timed("time/rewards"):
            return super()._calculate_rewards(*args, **kwargs)

    @contextlib.contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        """Log how long it takes, in seconds; `step_time`, which TRL logs, is everything."""
        start = time.perf_counter()
        yield
        self._metrics["train" if self.model.training else "eval"][name].append(time.perf_counter() - start)


def trainer_class(script: Any) -> Callable[..., GRPOTrainer]:
    """What constructs the trainer of a run with these ScriptArguments, from GRPOTrainer's arguments."""
    if script.use_unsloth:
        # upon the class, with a training step of its own, that Unsloth has put in its place
        return functools.partial(DurableGRPOTrainer, max_faulty_rewards=script.max_faulty_rewards)
    own = {key: getattr(script, key) for key in ("generation", "packed", "pack_tokens", "max_faulty_rewards")}
    return functools.partial(LeanGRPOTrainer, **own)


def keep_freed_memory() -> bool:
    """Let this process keep large blocks of memory for its next tensors; whether that could be arranged.

    glibc hands blocks above some 32 MB, and whatever is free at the heap's end, back to the system, which zeroes every
    page that is asked for again: a tenth of the processor time of a training step on a CPU. See mallopt(3).
    """
    trim, mmap, most = -1, -3, 2**31 - 1
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library
        return False
    return bool(mallopt(mmap, 2**30) and mallopt(trim, most))


class _Alone:
    """An accelerator that meets no other process."""

    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator

    def __getattr__(self, name: str) -> Any:
        return getattr(self._accelerator, name)

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def reduce(self, tensor: torch.Tensor, reduction: str = "sum") -> torch.Tensor:
        return tensor
