"""Engines and attention implementations tried on this machine with the policy itself, before a run begins.

Nobody has measured every GPU with every driver and release, and their faults differ: cuDNN attention gives NaN
gradients for some lengths (pytorch#196678) and wrong tokens on some GPUs (pytorch#193893). So each candidate computes
a little of what the run will compute. One that is wrong is excluded with a line; the fastest of the others is taken.

Attention: forward and backward of one pack. The reference is the same model in the same arithmetic, except that its
attention is computed in float32 by plain matrix products with the pack's mask.

Generation: a few tokens for some dozen prompts. The policy's own forward scores them. Tokens that are drawn from its
distribution surprise it, on average, as much as its entropy says; tokens from any other distribution surprise it more.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import DistributedType, gather_object
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from trl import GRPOTrainer

from grpo.core import out_of_memory
from grpo.core.errors import UserError
from grpo.core.processes import say
from grpo.policy.decoding import base_of
from grpo.training import attention, packable, packing, rollouts

if TYPE_CHECKING:
    from grpo.training.trainer import LeanGRPOTrainer

BUDGET = 30.0  # seconds; what has not begun by then is not tried
# Positions of the pack that is compared with the reference, which takes the square of it, and of the one that is timed
COMPARED, TIMED = 512, 1024
TOKENS, ROWS = 48, 64  # of a trial rollout
AT_ONCE = 8  # completions that the policy scores at once
# Of a gradient's distance from the reference, relative. In 16 bits rounding alone gives 0.01 with the demo's model and
# up to 0.05 with SmolLM2's 30 layers (on a CPU); completions that do not see their prompt give 0.5.
MAX_DISTANCE = {torch.bfloat16: 0.15, torch.float16: 0.15, torch.float32: 0.01}
MAX_SURPRISE = 0.01  # nats above the entropy, beside five standard errors
SAMPLED = 4096  # values of each parameter's gradient that are compared


@dataclass(frozen=True)
class Trial:
    """What one candidate did.

    Attributes:
        kind: attention or generation.
        seconds: for a token (of a pack, or sampled) in a second pass, when all is warm; None where it failed.
        off: the gradient's relative distance from the reference, or nats of surprise above the entropy.
        fault: why it cannot be used; empty where it can.
        raised: whether the fault is an error; nothing is known of its results then.
    """

    kind: str
    name: str
    seconds: float | None = None
    off: float | None = None
    fault: str = ""
    raised: bool = False


# --- Attention ----------------------------------------------------------------------------------------------------


def trial_rows(prompts: Sequence[Sequence[int]], limit: int) -> list[packing.Row]:
    """Rows whose pack has at most `limit` positions: four completions a prompt, of lengths between 1 and 150 tokens.

    Their tokens are other prompts'. The last one is cut so that the pack's length is 64 above a multiple of 128, where
    that leaves any: one of cuDNN's faults needs that.
    """
    text = [token for prompt in prompts for token in prompt]
    text *= math.ceil((limit + 200) / len(text))
    rows: list[packing.Row] = []
    for number in range(4 * len(prompts)):
        start, length = 37 * number % (len(text) - 200), (1, 150, 23, 64)[number % 4]
        row = tuple(prompts[number // 4]), tuple(text[start : start + length])
        if packing.cost([*rows, row]) > limit:
            break
        rows.append(row)
    spare = (packing.cost(rows) - 64) % 128
    *others, (prompt, completion) = rows or [(tuple(prompts[0][-limit // 2 :]), tuple(text[: limit // 2]))]
    return [*others, (prompt, completion[: -spare or None] or completion)]


def _in_float32(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *args: Any,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Transformers' sdpa, with these numbers."""
    with sdpa_kernel(SDPBackend.MATH), torch.autocast(query.device.type, enabled=False):
        output, _ = sdpa_attention_forward(module, query.float(), key.float(), value.float(), *args, **kwargs)
    return output.to(query.dtype), None


class Gradients:
    """The gradients of one pack by different ways of computing it, compared with the reference's."""

    def __init__(self, trainer: "LeanGRPOTrainer", prompts: Sequence[Sequence[int]], most: int | None = None) -> None:
        self.trainer = trainer
        self.rows, self.timed = (trial_rows(prompts, min(size, most or size)) for size in (COMPARED, TIMED))
        AttentionInterface.register("in_float32", _in_float32)
        reference = attention.Backend("float32", "in_float32", attention.block_mask, COMPARED)
        self.exact, _, _ = self._backward(reference, self.rows)
        args = trainer.args
        number = torch.bfloat16 if args.bf16 else torch.float16 if args.fp16 else trainer.model.dtype
        self.limit = MAX_DISTANCE[number]

    def try_out(self, backend: attention.Backend, race: bool = True) -> Trial:
        """One candidate; a right one is timed in a second pass, since the first may compile.

        Args:
            race: time it on the longer pack, which takes more memory; one that is alone need not be fast.
        """
        found, _, finite = self._backward(backend, self.rows)
        if not finite:
            return Trial("attention", backend.name, fault="its gradient holds NaN or infinity")
        apart = sum((found[name] - exact).square().sum().item() for name, exact in self.exact.items())
        norm = sum(exact.square().sum().item() for exact in self.exact.values())
        off = math.sqrt(apart / norm) if norm else math.inf
        if not off <= self.limit:
            fault = f"its gradient is {off:.2g} of its length away from float32's; rounding explains {self.limit:g}"
            return Trial("attention", backend.name, None, off, fault)
        rows = self.timed if race else self.rows
        self._backward(backend, rows)
        return Trial("attention", backend.name, self._backward(backend, rows)[1], off)

    def _backward(
        self, backend: attention.Backend, rows: list[packing.Row]
    ) -> tuple[dict[str, torch.Tensor], float, bool]:
        """Some values of each parameter's gradient, seconds for a token, and whether all of the gradient is finite."""
        trainer = self.trainer
        model, device = trainer.model, trainer.accelerator.device
        width = max(len(completion) for _, completion in rows)
        signs = torch.tensor([(-1.0) ** number for number in range(len(rows))], device=device)[:, None]
        try:
            with _attending(model, backend.implementation), _evaluating(model):
                start = _clock(device)
                with trainer.accelerator.autocast():
                    scores, _ = attention.score(model, backend, rows, [list(range(len(rows)))], width, device)
                (scores * signs).sum().backward()
                seconds = (_clock(device) - start) / packing.cost(rows)
            found = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
            finite = bool(torch.nn.utils.get_total_norm(list(found.values())).isfinite())
            some = {name: part.flatten()[:: max(1, part.numel() // SAMPLED)].float() for name, part in found.items()}
        finally:
            model.zero_grad(set_to_none=True)
        return some, seconds, finite


# --- Generation ---------------------------------------------------------------------------------------------------


def try_engine(trainer: "LeanGRPOTrainer", prompts: Sequence[Sequence[int]]) -> Trial:
    """Let the trainer's engine complete the prompts, and the policy's forward judge what it drew.

    Args:
        prompts: token ids, each completed num_generations times.
    """
    device, name, group = trainer.accelerator.device, engine_of(trainer), trainer.num_generations or 1
    tokens = min(TOKENS, trainer.max_completion_length or TOKENS)
    asked = [list(prompt) for prompt in prompts for _ in range(group)][: max(1, ROWS // group) * group]
    with _limited(trainer, tokens):
        trainer._generate_single_turn(asked, None, {}, group)  # compiles, captures, starts what there is to start
        start = _clock(device)
        completions, _ = trainer._generate_single_turn(asked, None, {}, group)
        seconds = (_clock(device) - start) / max(1, sum(map(len, completions)))
    if fault := _misfit(completions, len(asked), tokens, trainer.eos_token_ids):
        return Trial("generation", name, seconds, None, fault)
    surprise = _surprise(trainer, asked, completions)
    off = surprise.mean().item()
    limit = MAX_SURPRISE + 5 * surprise.std().item() / math.sqrt(len(surprise))
    right = off <= limit and (off >= -limit or _truncates(trainer))
    fault = f"its tokens are {off:+.2f} nats from the policy's distribution, where chance explains {limit:.2f}"
    return Trial("generation", name, seconds, off, "" if right else fault)


def _surprise(
    trainer: "LeanGRPOTrainer", prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]
) -> torch.Tensor:
    """For each drawn token its negative log-probability less the entropy, in nats; their expectation is 0."""
    model, device = trainer.model, trainer.accelerator.device
    left, width = max(map(len, prompts)), max(map(len, completions))
    pad = trainer._tokenizer.pad_token_id
    ids, mask = [], []
    for prompt, completion in zip(prompts, completions, strict=True):  # padded as TRL does
        before, after = left - len(prompt), width - len(completion)
        ids.append([pad] * before + [*prompt, *completion] + [pad] * after)
        mask.append([0] * before + [1] * (len(prompt) + len(completion)) + [0] * after)
    rows, seen = torch.tensor(ids, device=device), torch.tensor(mask, device=device)
    found = []
    with torch.no_grad(), _evaluating(model):
        for first in range(0, len(ids), AT_ONCE):
            some = slice(first, first + AT_ONCE)
            if trainer.backend is None:
                scores, entropies, _ = GRPOTrainer._get_per_token_logps_and_entropies(
                    trainer, model, rows[some], seen[some], width, compute_entropy=True
                )
            else:
                laid = packing.rows_of(rows[some], seen[some], width)
                packs = [[row] for row in range(len(laid))]  # alone: nothing but the engine is in question
                with trainer.accelerator.autocast():
                    scores, entropies = attention.score(model, trainer.backend, laid, packs, width, device)
            assert entropies is not None
            found.append((-scores - entropies)[seen[some, -width:].bool()].float())
    return torch.cat(found)


def _misfit(completions: Sequence[Sequence[int]], count: int, limit: int, ends: Sequence[int]) -> str:
    if len(completions) != count:
        return f"it gave {len(completions)} completions for {count} prompts"
    for ids in completions:
        ended = [position for position, token in enumerate(ids) if token in ends]
        if len(ids) > limit or (ended != [len(ids) - 1] and (ended or len(ids) != limit)):
            return "its completions do not end where the end token or the limit says"
    return ""


def _truncates(trainer: "LeanGRPOTrainer") -> bool:
    """Whether unlikely tokens are never drawn: the others then surprise less than the entropy says."""
    args = trainer.args
    return bool(args.top_p < 1 or args.top_k or args.min_p or args.generation_kwargs or args.repetition_penalty != 1)


# --- Both ---------------------------------------------------------------------------------------------------------


def run(trainer: "LeanGRPOTrainer", race: bool, pack_tokens: int | None) -> list[dict[str, Any]]:
    """Try what the trainer could use, and let it use the fastest that is right; all processes do so together.

    Args:
        race: whether `generation` is auto; otherwise the engine that was asked for is only checked.
        pack_tokens: as LeanGRPOTrainer's.

    Returns:
        Every trial as a dictionary, with `chosen`.

    Raises:
        UserError: nothing is right.
    """
    device, deadline = trainer.accelerator.device, time.monotonic() + BUDGET
    trials: list[Trial] = []
    chosen: list[Trial] = []
    with torch.random.fork_rng([device] if device.type == "cuda" else []):  # the run samples what it would without
        prompts = _prompts(trainer)
        if trainer.backend is not None:
            backends = {way.name: way for way in packable.candidates(trainer) if way.name not in trainer.refused}
            made: list[Gradients] = []

            def compute(name: str) -> Trial:
                made[:] = made or [Gradients(trainer, prompts, trainer.pack_tokens)]
                return made[0].try_out(backends[name], race=len(backends) > 1)

            trials += _each("attention", backends, compute, deadline)
            if best := fastest(trials, "attention", "--attn_implementation eager"):
                chosen.append(best)
                trainer.backend = backends[best.name]
                trainer.pack_tokens = pack_tokens or trainer.backend.pack_tokens
        before = trainer._engine
        engines = {engine_of(trainer): before}
        if race and trainer._engine is not None:
            engines = {**engines, "lean": rollouts.Lean(trainer), "hf": None, **engines}

        def sample(name: str) -> Trial:
            trainer._engine = engines[name]
            return try_engine(trainer, prompts)

        trials += _each("generation", engines, sample, deadline)
        best = fastest(trials, "generation", "--generation hf")
        chosen += [best] if best else []
        trainer._engine = engines[best.name] if best else before
        for engine in engines.values():
            if engine is not None:  # the one that stays begins anew, at the run's own size
                engine.close()
    if chosen:
        say(describe(trials, chosen))
    return [asdict(trial) | {"chosen": trial in chosen} for trial in trials]


def wanted(trainer: "LeanGRPOTrainer", asked: bool | None) -> bool:
    """Whether to try anything: as asked, otherwise on a GPU; sharded weights are not whole yet."""
    if trainer.accelerator.distributed_type in (DistributedType.FSDP, DistributedType.DEEPSPEED):
        if asked:
            say("note: there is no self-check, because the weights are sharded")
        return False
    return trainer.accelerator.device.type == "cuda" if asked is None else asked


def describe(trials: Sequence[Trial], chosen: Sequence[Trial]) -> str:
    """What was taken and what else was tried, in one line."""
    parts = []
    for best in chosen:
        others = [trial for trial in trials if trial.kind == best.kind and trial is not best and not trial.fault]
        rates = ", ".join(f"{trial.name} {_rate(trial)}" for trial in others)
        parts.append(f"{best.kind} by {best.name}, {_rate(best)} tokens/s{rates and f' ({rates})'}")
    return f"Self-check: {'; '.join(parts)}"


def _rate(trial: Trial) -> str:
    return f"{1 / (trial.seconds or math.inf):,.0f}"


def engine_of(trainer: "LeanGRPOTrainer") -> str:
    """What samples this trainer's rollouts, as `generation` calls it."""
    return trainer._engine.name if trainer._engine else "vllm" if trainer.use_vllm else "hf"


def fastest(trials: Sequence[Trial], kind: str, otherwise: str) -> Trial | None:
    """The fastest right one of a kind; None where all of them raised errors, as the run itself may not.

    Raises:
        UserError: there is none, and a wrong one.
    """
    tried = [trial for trial in trials if trial.kind == kind]
    right = [trial for trial in tried if not trial.fault and trial.seconds is not None]
    if right:
        return min(right, key=lambda trial: trial.seconds or 0.0)
    if wrong := "; ".join(f"{trial.name}: {trial.fault}" for trial in tried if not trial.raised):
        raise UserError(f"self_check: no {kind} gives right results on this machine ({wrong}); use {otherwise}")
    say(f"note: {kind} is not checked, and stays as it is")
    return None


def _each(kind: str, names: Iterable[str], attempt: Callable[[str], Trial], deadline: float) -> list[Trial]:
    """One trial for each name until the deadline; whatever fails is a trial with a fault."""
    trials: list[Trial] = []
    for name in names:
        if trials and _agreed(time.monotonic() > deadline):
            say(f"note: {name} is not tried, because the self-check's {BUDGET:.0f} seconds are over")
            continue
        try:
            trial = attempt(name)
        except UserError:  # has its own remedy
            raise
        except Exception as error:  # a candidate may fail in any way
            _still_there(name, error)
            full = out_of_memory.is_one(error)
            reason = "it needs more memory than there is" if full else f"{type(error).__name__}: {error}"
            trial = Trial(kind, name, fault=" ".join(reason.split())[:300], raised=True)
        trials.append(trial := _worst(trial))
        if trial.fault:
            say(f"note: {kind} by {name} is not used: {trial.fault}")
    return trials


def _still_there(name: str, error: Exception) -> None:
    """UserError where the GPU is lost to this process, in which nothing works from then on."""
    if not torch.cuda.is_available():
        return
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"self_check: {name} made the GPU unusable ({reason}); use another --generation or --attn_implementation"
        ) from error


def _agreed(here: bool) -> bool:
    return any(gather_object([here]))


def _worst(trial: Trial) -> Trial:
    """Of all processes: any fault counts, and the slowest decides."""
    trials: list[Trial] = gather_object([trial])
    faulty = next((one for one in trials if one.fault), None)
    return faulty or max(trials, key=lambda one: one.seconds or 0.0)


def _prompts(trainer: "LeanGRPOTrainer") -> list[list[int]]:
    """The first training prompts as the policy gets them."""
    rows: Any = trainer.train_dataset
    ids: list[list[int]] = trainer._tokenize_prompts(rows["prompt"][:ROWS])[0]
    return ids


@contextmanager
def _attending(model: Any, implementation: str) -> Iterator[None]:
    base = base_of(model)
    before = base.config._attn_implementation
    base.set_attn_implementation(implementation)
    try:
        yield
    finally:
        base.set_attn_implementation(before)


@contextmanager
def _evaluating(model: Any) -> Iterator[None]:
    """Without dropout, and without checkpointing, which needs training mode."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


@contextmanager
def _limited(trainer: "LeanGRPOTrainer", tokens: int) -> Iterator[None]:
    """Completions of so many tokens at most, whatever the engine."""
    changes = [("generation_config", "max_new_tokens", tokens), ("_engine", "max_new_tokens", tokens)]
    changes += [("_engine", "quiet", True)]
    changes += [("vllm_generation", "max_completion_length", tokens)] if trainer.use_vllm else []
    holders = [(getattr(trainer, name, None), key, value) for name, key, value in changes]
    kept = [(holder, key, getattr(holder, key)) for holder, key, _ in holders if hasattr(holder, key)]
    for holder, key, value in holders:
        if hasattr(holder, key):
            setattr(holder, key, value)
    try:
        yield
    finally:
        for holder, key, value in kept:
            setattr(holder, key, value)


def _clock(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
