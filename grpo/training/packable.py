"""Which runs can be computed in packs: what their settings say, and a trial on a pack of the real length."""

import inspect
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import DistributedType
from peft import PeftModel
from trl import GRPOTrainer

from grpo.core.out_of_memory import TRAINING, OutOfMemory, phase
from grpo.policy import generation
from grpo.training import attention

if TYPE_CHECKING:
    from grpo.training.trainer import LeanGRPOTrainer

TRIAL = 8192  # positions of the trial's pack, at most
# The mean difference of log-probabilities that packs may make, as a share of what other prompts make. In float32
# rounding makes 1e-7 to 1e-5 of it, and learned positions that are off by one 5e-3 (benchmarks/bench_exactness.py)
LIMIT, LIMIT_ROUNDED = 1e-4, 0.1
ROUNDING = 1e-5  # of a log-probability in float32, where the policy is so new that prompts change little


def why_not(trainer: GRPOTrainer) -> str | None:
    """Why this run cannot be computed in packs, as far as that is known without trying."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    adapters = model.peft_config.values() if isinstance(model, PeftModel) else ()
    base: Any = model.get_base_model() if isinstance(model, PeftModel) else model
    parallel = trainer.accelerator.parallelism_config
    if trainer._is_vlm:
        return "the model takes images"
    if trainer.tools or trainer.environment_factories is not None or trainer.rollout_func is not None:
        return "tools or a rollout_func are used"
    if any(adapter.is_prompt_learning for adapter in adapters):
        return "the adapter adds virtual tokens to the prompts"
    if any(getattr(adapter, "alora_invocation_tokens", None) for adapter in adapters):
        return "the adapter begins to act at a token that it looks for in each row"
    if any(adapter.peft_type == "LILY" for adapter in adapters):
        return "the adapter averages its experts over all that is computed together"
    if trainer.aux_loss_enabled:
        return "the load-balancing loss of experts depends on what is computed together"
    if any(kind in str(getattr(base.config, "rope_parameters", "")) for kind in ("dynamic", "longrope")):
        return "its rotary frequencies depend on the longest row that is computed together"
    optim = trainer.args.optim
    if "lomo" in optim or "layerwise" in optim:
        return f"optim {getattr(optim, 'value', optim)} updates the weights in each backward"
    if "local" in getattr(base.config, "attention_layers", ()):  # GPT-Neo
        return "its local attention counts positions from the beginning of a pack"
    if trainer.args.torch_compile:
        return "torch_compile would compile every length of a pack anew"
    if parallel is not None and (parallel.cp_enabled or parallel.sp_enabled):
        return "a sequence is spread over several devices"
    if len(set((getattr(base, "hf_device_map", None) or {}).values())) > 1:
        return "the model is spread over several devices"
    if "position_ids" not in inspect.signature(type(base).forward).parameters or generation.forgets(base):
        return f"{type(base).__name__} has layers that do not know where a completion begins"
    if not candidates(trainer):
        return f"attn_implementation {base.config._attn_implementation} is not one that packs are known to work with"
    return None


def candidates(trainer: GRPOTrainer) -> list[attention.Backend]:
    """The ways of computing packs that this run's model, device and number format allow, the best first."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    base: Any = model.get_base_model() if isinstance(model, PeftModel) else model
    dtype = attention.computing_dtype(str(trainer.accelerator.mixed_precision), base.dtype)
    return attention.candidates(base.config._attn_implementation, trainer.accelerator.device, dtype, base.config)


@torch.no_grad()
def misfit(trainer: "LeanGRPOTrainer") -> str | None:
    """Why packs do not give this model's log-probabilities, if they do not: for layers that ignore positions or masks.

    The trial's pack is as long as a training step's, so that a window of attention, or a limit of positions, shows.
    A difference is judged by what other prompts would make of the same completions. A new adapter changes nothing yet,
    so adapters are not judged.

    Args:
        trainer: a LeanGRPOTrainer with its backend and pack_tokens.
    """
    if trainer.accelerator.distributed_type in (DistributedType.FSDP, DistributedType.DEEPSPEED):
        return None  # the weights may not be here yet
    assert trainer.backend is not None and trainer.pack_tokens is not None
    model: Any = trainer.model
    training, device = model.training, trainer.accelerator.device
    ids = (torch.arange(36, device=device) * 7 % 97).view(3, 12)
    ids %= trainer.accelerator.unwrap_model(model).config.get_text_config().vocab_size
    ids[1, :5] = ids[0, :5]  # the same prompt
    others = ids.clone()
    others[:, :5] = ids[:, :5].flip(0, 1)
    mask = torch.ones_like(ids)
    mask[1, 9:] = 0  # no padding on the left: TRL would count it as positions where those are learned
    # copies of the first row lie between the prompt of the second and its completion
    room = min(trainer.pack_tokens, TRIAL) - 36
    rows = [*[0] * (1 + max(0, room) // 7), 1, 2]

    def padded(tokens: torch.Tensor) -> torch.Tensor:
        scored = mask.bool() & (torch.arange(12, device=device) >= 5)
        with trainer.accelerator.autocast():
            labels = tokens.masked_fill(~scored, -100)
            return model(input_ids=tokens, attention_mask=mask, labels=labels, fused_lm_head=True).log_probs[:, -7:]

    model.eval()
    try:
        with phase(TRAINING, trainer):
            expected = padded(ids)
            effect = (padded(others) - expected).abs().mean().item()
            packed, *_ = trainer._get_per_token_logps_and_entropies(model, ids[rows], mask[rows], 7)
            error = (packed - expected[rows]).abs().mean().item()
    except OutOfMemory:  # TRL's own step would need more
        raise
    except Exception as reason:  # whatever somebody's layers make of a mask that they do not know
        return f"{type(model).__name__} refuses packs ({type(reason).__name__}: {reason})"
    finally:
        model.train(training)
    base, args = trainer.accelerator.unwrap_model(model), trainer.args
    rounds = args.bf16 or args.fp16 or args.tf32 or base.dtype != torch.float32
    if error <= (LIMIT_ROUNDED * effect if rounds else max(LIMIT * effect, ROUNDING)):
        return None
    return f"packs would change its log-probabilities by {error:.2g} on average, other prompts by {effect:.2g}"
