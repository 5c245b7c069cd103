"""GRPOTrainer's training step: the same gradient for less work.

Stock TRL pads a rollout to its longest prompt and completion, computes each prompt once for every completion, and
trains on completions whose advantage is zero. Here the completions that can move the policy are laid out in packs
without padding (packing.py), each prompt once, and TRL's own loss is asked for each pack. It is asked a second time,
without gradient, for each of TRL's micro-batches, so that what is logged is what stock TRL logs.

README, "The training step", says what is exact, what differs and what falls back to TRL's own step.
"""

import contextlib
import math
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from accelerate.utils import DistributedType
from trl import GRPOTrainer

from . import attention, packable, packing

Batch = dict[str, Any]  # tensors with one entry for each completion, and scalars

# How TRL 1.16 adds up a micro-batch of B completions. Of these loss types a completion's share is known beforehand, so
# that a micro-batch can be computed in parts; of any other it is not, and TRL's micro-batch stays whole.
MEANS = ("grpo", "dr_grpo", "sapo", "luspo")  # each completion's sum / B
SUMS = ("dapo", "cispo", "vespo")  # each completion's sum / a constant of the rollout
TOKEN_MEANS = ("bnpo",)  # each completion's sum / the micro-batch's tokens: stays in its micro-batch


@dataclass(frozen=True)
class Plan:
    """How the micro-batches that share a rollout and an optimizer step are computed.

    Attributes:
        batches: TRL's own micro-batches.
        rows: all of them together.
        turns: for each micro-step its packs: the numbers of their rows (none: a pack that moves nothing), and what
            TRL's loss of the pack is to be multiplied by.
        computed: (rows,) false where a completion cannot move the policy.
        log_probs, entropies: (rows, C), filled in as they become known.
    """

    batches: list[Batch]
    rows: Batch
    turns: list[list[tuple[list[int], float]]]
    computed: torch.Tensor
    log_probs: torch.Tensor
    entropies: torch.Tensor


class LeanGRPOTrainer(GRPOTrainer):
    """TRL's GRPOTrainer: its arguments, a plain GRPOConfig, its gradients to rounding.

    Args:
        pack_tokens: positions of a pack at most, which bounds the memory of a training step; a longer completion has
            a pack to itself. None: what suits the attention implementation, 2,048 on a CPU.
    """

    def __init__(self, *args: Any, pack_tokens: int | None = None, **kwargs: Any) -> None:
        self.backend: attention.Backend | None = None  # None: everything is TRL's own
        self._known: tuple[torch.Tensor, torch.Tensor, None] | None = None
        self._plans: dict[int, Plan] = {}
        super().__init__(*args, **kwargs)
        reason = packable.why_not(self)
        if reason is None:
            implementation = self.accelerator.unwrap_model(self.model).config._attn_implementation
            self.backend = attention.choose(implementation, self.accelerator.device)
            self.pack_tokens = pack_tokens or self.backend.pack_tokens
            padded = super()._get_per_token_logps_and_entropies
            reason = packable.misfit(self, padded, self._get_per_token_logps_and_entropies)
        if reason is not None:
            self.backend = None
            self.accelerator.print(f"note: the training step is TRL's own, with its padding: {reason}")
            return
        known = self.loss_type in MEANS + SUMS + TOKEN_MEANS
        known = known and self.top_entropy_quantile == 1 and not self._entropy_bonus_enabled
        # DeepSpeed's engine steps in the backward of an optimizer step's last micro-batch: there may be but one
        self._in_parts = known and self.accelerator.distributed_type != DistributedType.DEEPSPEED
        together = math.gcd(self.args.gradient_accumulation_steps, self.args.steps_per_generation)
        self._block = 1 if self.loss_type in TOKEN_MEANS else together
        self._drops = self.beta == 0 and self.loss_type != "vespo"  # vespo logs a weight of every completion
        self.accelerator.print(f"Training step: packs of {self.pack_tokens:,} tokens, {self.backend.name}")

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
            self._plans[block] = self._plan(self._buffered_inputs[block * self._block :][: self._block])
        plan = self._plans[block]
        packs = plan.turns[turn]
        total = torch.zeros((), device=self.accelerator.device, requires_grad=not packs)
        for number, (chosen, factor) in enumerate(packs, start=1):
            more = number < len(packs)
            # processes add their gradients up in the last backward of an optimizer step, and in no other
            alone = self.accelerator.no_sync(model) if more and self.accelerator.sync_gradients else None
            with alone or contextlib.nullcontext():
                loss = self._loss_of(model, plan, chosen) * factor
                if more:
                    self.accelerator.backward(loss)
                    loss = loss.detach()
            total = total + loss
        if turn + 1 == len(plan.turns):
            self._log(model, plan)
        return total

    def _plan(self, batches: list[Batch]) -> Plan:
        rows = {
            key: torch.cat([batch[key] for batch in batches]) if value.ndim else value
            for key, value in batches[0].items()
            if value is not None
        }
        mask = rows["completion_mask"]
        computed = mask.any(1)
        if self._drops:  # nothing but the advantage moves the policy
            computed &= rows["advantages"] != 0
        ids, mask_of_all = (
            torch.cat([rows[f"prompt_{kind}"], rows[f"completion_{kind}"]], 1) for kind in ("ids", "mask")
        )
        laid_out = packing.rows_of(ids, mask_of_all, mask.shape[1])
        live = computed.nonzero().flatten().tolist()
        divided = packing.divide([laid_out[row] for row in live], self.pack_tokens, self.backend.shares_prompts)
        packs = [[live[number] for number in pack] for pack in divided]
        packs += [[]] * (self._most(len(packs)) - len(packs))
        factors = [1.0] * len(packs)
        if self.loss_type in MEANS:
            factors = [len(pack) * len(batches) / len(computed) for pack in packs]
        elif self.loss_type in TOKEN_MEANS:
            tokens = [len(completion) for _, completion in laid_out]
            factors = [sum(tokens[row] for row in pack) / max(sum(tokens), 1) for pack in packs]
        shares = list(zip(packs, factors, strict=True))
        count = len(batches)
        turns = [shares[len(shares) * turn // count : len(shares) * (turn + 1) // count] for turn in range(count)]
        # of a completion that is left out nothing is known; it counts as unchanged since it was sampled
        log_probs = rows.get("old_per_token_logps", torch.zeros(mask.shape, device=mask.device)).clone()
        return Plan(batches, rows, turns, computed, log_probs, torch.zeros_like(log_probs))

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
            with torch.no_grad():
                super()._compute_loss(model, batch)
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

    # What takes the time

    def _calculate_rewards(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        with self._timed("time/rewards"):
            return super()._calculate_rewards(*args, **kwargs)

    @contextlib.contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self._metrics["train" if self.model.training else "eval"][name].append(time.perf_counter() - start)


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
