"""Decide whether a run can use packs: known reasons against them, and a trial with its own model."""

import contextlib
import inspect
import math
from collections.abc import Iterator
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from accelerate.utils.memory import should_reduce_batch_size
from peft import PeftModel
from transformers import ProcessorMixin
from trl import GRPOTrainer

from lean_grpo import overrides, wrappers
from lean_grpo.models import has_plain_cache, windows

BEGINNINGS = 0, 101, 211  # offsets in the vocabulary, tried until the values are finite
PACK_LENGTHS = 8192, 512  # most positions of the trial's pack: without and with gradient
SHORT = 6  # sliding windows while packs are tried, so that 12 tokens are longer
SMALL = 2**20  # most elements of a weight whose gradient is compared
# Largest differences that packs may cause, in float32 and with 16-bit or TF32 rounding: of log-probabilities, relative
# to the change that other prompts cause; of the gradient, relative to its norm. Of the gradient's norm, float32's
# rounding causes 1e-7 to 1e-5, learned positions that are off by one cause 5e-3 (benchmarks/exactness.py)
LIMIT, LIMIT_ROUNDED = 1e-4, 0.1
LIMIT_OF_GRADIENT, LIMIT_OF_GRADIENT_ROUNDED = 1e-3, 0.2
ROUNDING = 1e-5  # smallest limit of log-probabilities in float32: prompts hardly affect an untrained model
# What TRL and transformers call between a scored rollout and the end of its backward
STEP = overrides.Methods(GRPOTrainer, "training_step", beyond=("_generate_and_score_completions",))
BACKWARD = overrides.Methods(Accelerator, "backward")  # once for each pack, not for each micro-batch


def others_write(trainer: Any) -> bool:
    """True if tools, environments or a rollout_func may write parts of a GRPOTrainer's completions."""
    return bool(trainer.tools) or trainer.rollout_func is not None or trainer.environment_factories is not None


def override_of_step(trainer: Any) -> str | None:
    """Name what overrides a part of the training step, which is then TRL's own, or None."""
    return STEP.override(trainer) or BACKWARD.override(trainer.accelerator)


def reason_against_packing(trainer: Any) -> str | None:
    """Return a known reason why this LeanGRPOTrainer cannot use packs, or None."""
    model, base = wrappers.unwrapped(trainer.model), wrappers.base_of(trainer.model)
    adapters = model.peft_config.values() if isinstance(model, PeftModel) else ()
    optim = str(getattr(trainer.args.optim, "value", trainer.args.optim))
    if override := override_of_step(trainer):
        return override
    if base.config._attn_implementation != "sdpa":
        return f"the model's attention is {base.config._attn_implementation}, and packs need sdpa"
    if "position_ids" not in inspect.signature(type(base).forward).parameters or not has_plain_cache(base):
        return f"{type(base).__name__} has layers that cannot tell where a completion begins in a pack"
    if isinstance(trainer.processing_class, ProcessorMixin):
        return "the model reads images"
    if others_write(trainer):
        return "tools, environments or a rollout_func are used, so rollouts are TRL's own, too"
    if wrappers.is_compiled(trainer):
        return "torch_compile would compile every length of a pack anew"
    if not wrappers.passes_on(model, "forward") or any(adapter.peft_type == "LILY" for adapter in adapters):
        return "the adapter depends on where a row begins, or on what is computed with it"
    if trainer.aux_loss_enabled:
        return "the load-balancing loss of experts depends on what is computed together"
    if any(kind in str(getattr(base.config, "rope_parameters", "")) for kind in ("dynamic", "longrope")):
        return "its rotary frequencies depend on the longest row that is computed together"
    zero = trainer.accelerator.state.deepspeed_plugin
    if zero and zero.zero_stage == 3 and adapters and trainer.args.gradient_checkpointing:
        return "ZeRO-3 checkpoints an adapter's layers such that a backward may hold one forward only"
    if "lomo" in optim or "layerwise" in optim:
        return f"optim {optim} updates the weights in each backward"
    return None


def misfit(trainer: Any) -> str | None:
    """Try packs with this model. Return why they differ from TRL's padded rows, or None if they agree.

    Log-probabilities are compared on a pack of the usual length, to detect attention windows; known ones are shortened
    meanwhile, so that the trial's rows are longer. The tolerance is a fraction of the change that a different prompt
    causes. Gradients of small weights are compared on a shorter pack, since evaluation mode does not checkpoint. They
    also test new adapters, which change no log-probability.

    Args:
        trainer: a LeanGRPOTrainer with `kernel` and `pack_tokens` set.
    """
    base, config = wrappers.unwrapped(trainer.model), wrappers.base_of(trainer.model).config
    if any(windows(config)) and not trainer.kernel.by_segment:
        return "on a GPU sliding windows in packs need FlashAttention 2"
    if trainer.accelerator.distributed_type in (DistributedType.FSDP, DistributedType.DEEPSPEED):
        return None  # the weights may not be gathered yet
    training = trainer.model.training
    trainer.model.eval()
    try:
        with _short_windows(config):
            for ids in _tokens(trainer, base):
                error, effect, wrong, norm = _differences(trainer, ids)
                if math.isfinite(effect) and math.isfinite(norm):  # otherwise try other tokens
                    break
            else:
                return "its padded rows have no finite log-probabilities or gradient, so packs cannot be judged"
    except Exception as reason:  # custom layers may raise anything
        if isinstance(reason, torch.OutOfMemoryError) or should_reduce_batch_size(reason):
            raise  # TRL's own step would need more
        return f"{type(base).__name__} refuses packs ({type(reason).__name__}: {reason})"
    finally:
        trainer.model.train(training)
    args = trainer.args
    rounds = bool(args.bf16 or args.fp16 or args.tf32 or base.dtype != torch.float32)
    # written so that NaN, which some kernels return under masks, does not pass
    if not error <= (LIMIT_ROUNDED * effect if rounds else max(LIMIT * effect, ROUNDING)):
        return f"packs would change its log-probabilities by {error:.2g} on average, other prompts by {effect:.2g}"
    if not wrong <= (LIMIT_OF_GRADIENT_ROUNDED if rounds else LIMIT_OF_GRADIENT) * norm:
        return f"packs would change its gradient by {100 * wrong / max(norm, 1e-30):.2g} %"
    return None


@contextlib.contextmanager
def _short_windows(config: Any) -> Iterator[None]:
    """Make sliding windows shorter than the trial's rows, so that packs have to keep to them."""
    if not any(windows(config)):
        yield
        return
    text = config.get_text_config()
    window, text.sliding_window = text.sliding_window, SHORT
    try:
        yield
    finally:
        text.sliding_window = window


def _tokens(trainer: Any, base: Any) -> Iterator[torch.Tensor]:
    """Yield (3, 12) token ids without special tokens, since a padding token's zero embedding may overflow."""
    config, device = base.config.get_text_config(), trainer.accelerator.device
    special = {config.pad_token_id, getattr(base.get_input_embeddings(), "padding_idx", None)}
    special |= set(getattr(trainer.processing_class, "all_special_ids", ()))
    ordinary = torch.tensor([token for token in range(config.vocab_size) if token not in special], device=device)
    for first in BEGINNINGS:
        ids = ordinary[(first + torch.arange(36, device=device) * 7 % 97) % len(ordinary)].view(3, 12)
        ids[1, :5] = ids[0, :5]  # the same prompt
        yield ids


def _differences(trainer: Any, ids: torch.Tensor) -> tuple[float, float, float, float]:
    """Compare packs of these tokens with padded rows.

    Returns:
        Mean absolute changes of log-probabilities by packs and by other prompts; the norm of the gradient's change by
        packs, and the norm of the padded rows' gradient.
    """
    model, device = trainer.model, ids.device
    others = ids.clone()
    others[:, :5] = ids[:, :5].flip(0, 1)
    mask = torch.ones_like(ids)
    mask[1, 9:] = 0  # no padding on the left: TRL would count it as positions where those are learned
    scored = mask.bool() & (torch.arange(12, device=device) >= 5)

    def padded(tokens: torch.Tensor) -> torch.Tensor:
        labels = tokens.masked_fill(~scored, -100)
        with trainer.accelerator.autocast():
            return model(input_ids=tokens, attention_mask=mask, labels=labels, fused_lm_head=True).log_probs[:, -7:]

    def packed(length: int) -> tuple[torch.Tensor, list[int]]:
        # copies of the first row lie between the prompt of the second and its completion
        rows = [*[0] * (1 + max(0, min(trainer.pack_tokens, length) - 36) // 7), 1, 2]
        return trainer._get_per_token_logps_and_entropies(model, ids[rows], mask[rows], 7)[0], rows

    trained = [weight for weight in model.parameters() if weight.requires_grad]
    small = [weight for weight in trained if weight.numel() <= SMALL] or trained[-1:]

    def gradient(log_probs: torch.Tensor, rows: list[int]) -> torch.Tensor:
        shares = torch.tensor([1 / rows.count(row) for row in rows], device=device)
        weights = torch.arange(21, device=device).cos().view(3, 7)[rows] * shares[:, None]
        parts = torch.autograd.grad((log_probs * weights).sum(), small, allow_unused=True)
        return torch.cat([part.flatten().float() for part in parts if part is not None])

    with torch.no_grad():
        expected = padded(ids)
        effect = (padded(others) - expected).abs().mean().item()
        computed, rows = packed(PACK_LENGTHS[0])
        error = (computed - expected[rows]).abs().mean().item()
    if not small:  # nothing is trained
        return error, effect, 0.0, 0.0
    wanted = gradient(padded(ids), [0, 1, 2])
    return error, effect, (gradient(*packed(PACK_LENGTHS[1])) - wanted).norm().item(), wanted.norm().item()
