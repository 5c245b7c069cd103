"""GRPOTrainer's training step: the same gradient for less work.

Stock TRL pads a rollout to its longest prompt and completion, computes each prompt once for every completion, and
trains on completions whose advantage is zero. Here completions with a non-zero advantage are packed without padding
(packing.py), each prompt once, and TRL's own loss is computed for each pack. It is computed a second time, without
gradient, for each of TRL's micro-batches, so that what is logged is what stock TRL logs.

Some models get another gradient than from stock TRL, the right one: TRL passes no positions, so that many models
count the padding on a prompt's left as positions. Rotary positions are relative and do not change with it; learned
ones do (GPT-2, GPT-BigCode, BioGPT, XGLM, BERT's family), and so do added sinusoids (CTRL), a norm after the rotation
(HunYuan) and queries scaled by position (Ministral-3, beyond its original length). Here each row begins at position 0,
as `generate` sampled it.

docs/training-step.md lists what differs and what falls back to TRL's own step.
"""

import contextlib
import functools
import math
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType

from grpo.core.processes import say
from grpo.core.settings import ScriptArguments
from grpo.policy import sharding
from grpo.policy.vllm import SyncCheck
from grpo.training import attention, micro_batches, packable, packing, rollouts
from grpo.training.base_trainer import BaseGRPOTrainer
from grpo.training.micro_batches import Batch, Plan

# A subclass that overrides one of these may sum over rows in ways of its own: TRL's micro-batches stay whole
LOSS_METHODS = (
    "_compute_loss",
    "_get_per_token_logps_and_entropies",
    "get_gamma_weights",
    "get_high_entropy_mask",
    "get_off_policy_mask",
)
# ... and one that overrides one of these may change a micro-batch when its turn comes: none is planned before
INPUT_METHODS = ("_prepare_inputs", "compute_loss")


class LeanGRPOTrainer(BaseGRPOTrainer):
    """TRL's GRPOTrainer: its arguments, a plain GRPOConfig, its gradients to rounding.

    Args:
        generation: how completions are sampled: auto, lean, hf or vllm (rollouts.py). None: as the
            GRPOConfig says, with the same completions as a GRPOTrainer of the same seed.
        packed: false uses TRL's own training step, with its padding.
        pack_tokens: the largest number of positions in a pack, which bounds the memory of a training step (except
            where a micro-batch has one backward: see `_in_parts`); a longer completion gets a pack to itself. None:
            what suits the attention implementation, 2,048 on a CPU.
        max_faulty_rewards: as BaseGRPOTrainer's.

    Raises:
        ValueError: pack_tokens is below 1.
    """

    def __init__(
        self,
        *args: Any,
        generation: str | None = None,
        packed: bool = True,
        pack_tokens: int | None = None,
        **kwargs: Any,
    ) -> None:
        if pack_tokens is not None and pack_tokens < 1:
            raise ValueError(f"pack_tokens: {pack_tokens} is out of range; use at least 1")
        self.backend: attention.Backend | None = None  # None: everything is TRL's own
        self._known: tuple[torch.Tensor, torch.Tensor, None] | None = None
        self._plan: Plan | None = None
        self._in_training_step = False
        super().__init__(*args, **kwargs)
        self._generation = generation
        self._engine = None if generation is None else rollouts.choose(self, generation)
        self._sync_check = SyncCheck()
        if not packed:
            return
        backend, reason = self._choose_backend(pack_tokens)
        if backend is None:
            self.backend = self.pack_tokens = None
            say(f"note: the training step is TRL's own, with its padding: {reason}")
            return
        if backend.note:
            say(f"note: {backend.note}")
        known = self.loss_type in micro_batches.KNOWN and not self._overrides(LOSS_METHODS)
        known = known and self.top_entropy_quantile == 1 and not self._entropy_bonus_enabled
        # DeepSpeed's engine steps in the backward of an optimizer step's last micro-batch: there may be but one
        self._in_parts = known and self.accelerator.distributed_type != DistributedType.DEEPSPEED
        self._turns = cast(int, self.args.steps_per_generation)  # micro-batches of a rollout; GRPOConfig has set it
        together = math.gcd(self.args.gradient_accumulation_steps, self._turns)
        alone = self.loss_type in micro_batches.TOKEN_MEANS or self._overrides(INPUT_METHODS)
        self._block = 1 if alone else together
        self._drops = self.beta == 0 and self.loss_type != "vespo"  # vespo logs a weight of every completion
        whole = "" if self._in_parts else "; one backward for all packs of a micro-batch"
        say(f"Training step: packs of {self.pack_tokens:,} tokens, {backend.name}{whole}")

    def _choose_backend(self, pack_tokens: int | None) -> tuple[attention.Backend | None, str | None]:
        """Take the first way of computing packs that fits this model (packable.misfit); why none does, if so."""
        reason = packable.why_not(self)
        for backend in [] if reason else packable.candidates(self):
            if self.backend is not None:
                say(f"note: {self.backend.name} is not used: {reason}")
            self.backend, self.pack_tokens = backend, pack_tokens or backend.pack_tokens
            if (reason := packable.misfit(self)) is None:
                return backend, None
        return None, reason

    def _overrides(self, names: tuple[str, ...]) -> bool:
        return any(getattr(type(self), name) is not getattr(LeanGRPOTrainer, name) for name in names)

    # One batch on its way

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        self._in_training_step = True
        try:
            return super().training_step(*args, **kwargs)
        finally:
            self._in_training_step = False

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
        plan, turn = self._planned(inputs) if self._in_training_step and not return_outputs else (None, 0)
        if plan is None:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
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

    def _planned(self, inputs: Batch) -> tuple[Plan | None, int]:
        """The plan that these inputs are part of, and the number of its micro-step; None where they are in no plan."""
        if self.backend is None or self.pack_tokens is None or not self._in_parts:
            return None, 0
        place = self._step % self._turns
        turn = place % self._block
        if turn == 0:
            batches: list[Batch] = (self._buffered_inputs or [])[place : place + self._block]
            self._plan = None
            if batches and inputs is batches[0]:
                self._plan = micro_batches.plan(batches, self.loss_type, self._drops, self.pack_tokens, self._most)
        ours = self._plan is not None and inputs is self._plan.batches[turn]
        return self._plan if ours else None, turn

    def _loss_of(self, model: torch.nn.Module, plan: Plan, chosen: list[int]) -> torch.Tensor:
        """TRL's loss of some rows as if they were a micro-batch; of none, a zero that depends on all weights."""
        rows = {key: value[chosen or [0]] if value.ndim else value for key, value in plan.rows.items()}
        with self._by_itself():
            if not chosen:
                ids = torch.cat([rows["prompt_ids"], rows["completion_ids"]], 1)
                nothing, width = torch.zeros_like(ids), rows["completion_ids"].shape[1]
                return self._get_per_token_logps_and_entropies(model, ids, nothing, width)[0].sum()
            loss = super()._compute_loss(model, rows)
        plan.log_probs[chosen], plan.entropies[chosen] = self._seen
        return loss

    def _log(self, model: torch.nn.Module, plan: Plan) -> None:
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
        model: torch.nn.Module,
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
        if self.backend is None or self.pack_tokens is None:
            return super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, batch_size, compute_entropy, **others
            )
        rows = packing.rows_of(input_ids, attention_mask, logits_to_keep)
        packs = packing.divide(rows, self.pack_tokens)
        packs += [[]] * (self._most(len(packs)) - len(packs))
        with self.accelerator.autocast():
            log_probs, entropies = attention.score(model, self.backend, rows, packs, logits_to_keep, input_ids.device)
        if entropies is not None:
            self._seen = log_probs.detach(), entropies.detach()
        return log_probs, entropies, None

    # The rollout

    def _generate_single_turn(self, prompt_ids: Any, images: Any, *args: Any, **kwargs: Any) -> Any:
        if self._engine is not None and images is None:
            return self._engine(self, prompt_ids), None
        with contextlib.ExitStack() as stack:
            if self._dist.is_fsdp and not self.use_vllm:  # TRL would gather every layer anew for each token
                stack.enter_context(sharding.whole(self))
            if self._generation is not None and not self.use_vllm:
                stack.enter_context(rollouts.as_the_loss(self))
            return super()._generate_single_turn(prompt_ids, images, *args, **kwargs)

    def _check_rollout(self, output: Batch) -> None:
        self._sync_check(self, output)


def trainer_class(script: ScriptArguments) -> Callable[..., BaseGRPOTrainer]:
    """Constructs the trainer of a run with these ScriptArguments, from GRPOTrainer's arguments."""
    if script.use_unsloth:  # which has replaced TRL's class by one with a training step of its own
        return functools.partial(BaseGRPOTrainer, max_faulty_rewards=script.max_faulty_rewards)
    own = {key: getattr(script, key) for key in ("generation", "packed", "pack_tokens", "max_faulty_rewards")}
    return functools.partial(LeanGRPOTrainer, **own)


class _Alone:
    """An accelerator that meets no other process."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator

    def __getattr__(self, name: str) -> Any:
        return getattr(self._accelerator, name)

    def gather(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor

    def reduce(self, tensor: torch.Tensor, reduction: str = "sum") -> torch.Tensor:
        return tensor
