"""Checks of the model and the machine: sizes, learning rate, context, memory and disk."""

import math
import shutil
from collections.abc import Iterator, Mapping

from grpo.core.checklist import Check, warn_if
from grpo.core.text import counted, human_bytes
from grpo.policy import answering, loading, memory, templates
from grpo.preflight import room
from grpo.preflight.plan import Checks, Plan, TrainingPlan

DEFAULT_RATE = 5e-6  # that of HYPERPARAMETERS, for 1.5 billion weights
# Weights of a model at most → the rates of its recipe, for all weights and an adapter (docs/reading-curves.md)
RATES = {15e6: ("1e-4", "5e-4"), 0.5e9: ("2e-5", "2e-4"), math.inf: ("5e-6", "5e-5")}

CHECKS = Checks()


@CHECKS.add
def about_end(plan: Plan) -> Iterator[Check]:
    """Warn if the chat template ends answers with tokens that end no completion."""
    if not plan.task.prompt.chat:
        return
    ends = answering.end_tokens(loading.read_generation(plan.config), plan.tokenizer)
    if finding := templates.unended(plan.tokenizer, ends, plan.config.template_kwargs):
        limit = "; completions may go on to max_completion_length"
        yield Check("warning", "end token", finding + limit, templates.ADD_END)


@CHECKS.add
def about_model(plan: Plan) -> Iterator[Check]:
    """Check the model and its adapter. Load no weights."""
    config, peft_config, shape = plan.config, plan.peft_config, plan.shape
    name, trains = config.model.model_name_or_path, isinstance(plan, TrainingPlan)
    if isinstance(shape, Check):
        yield shape
        return
    for key, missing in shape.unmatched.items():
        finding, remedy = f"nothing in {name} is called {' or '.join(missing)}", "correct the name, or drop it"
        if key == "lora_target_modules":
            finding += f"; its layers are {', '.join(shape.linear)}"
            remedy = "name some of these, or use all-linear"
        yield Check("error", key, finding, remedy)
    if shape.unmatched:
        return
    share = f"{shape.trained / 1e6:,.1f} of " if trains else ""
    base = peft_config.base_model_name_or_path if peft_config else None  # a new adapter has none yet
    finding = f"{name}{f' (an adapter of {base})' if base else ''}: {share}{shape.parameters / 1e6:,.1f} million "
    attends = room.kernel(plan).name if trains and config.script.packed else config.model.attn_implementation
    finding += f"parameters{' are trained' if share else ''}, in {config.model.dtype}, attention {attends}"
    yield warn_if(not shape.trained, "model", finding, "nothing would be learned; check use_peft and lora_*", "error")


@CHECKS.add
def about_vocabulary(plan: Plan) -> Iterator[Check]:
    """Report an error if a prompt or a special token is beyond the model's vocabulary."""
    if (shape := plan.usable_shape) is None:
        return
    tokenizer = plan.tokenizer
    largest = max(*plan.prompt_ids(), tokenizer.eos_token_id or 0, tokenizer.pad_token_id or 0)
    if largest >= shape.vocabulary > 0:
        finding = f"the tokenizer has token {largest}, but the model knows only {shape.vocabulary} tokens"
        yield Check("error", "vocabulary", finding, "use the tokenizer that belongs to the model")


@CHECKS.add
def about_context(plan: Plan) -> Iterator[Check]:
    """Warn if prompt and completion may be longer than the model supports."""
    if (shape := plan.usable_shape) is None:
        return
    needed = room.longest_prompt(plan) + plan.config.completion_limit
    if shape.positions and needed > shape.positions:
        finding = f"prompt and completion take up to {needed} tokens, the model was made for {shape.positions}"
        yield Check("warning", "context", finding, "lower max_completion_length or max_prompt_length")


@CHECKS.add_for_training
def about_quantization(plan: TrainingPlan) -> Iterator[Check]:
    """Refuse to train quantized weights without an adapter."""
    model = plan.config.model
    if (model.load_in_4bit or model.load_in_8bit) and plan.peft_config is None:
        remedy = "add --use_peft true, which trains an adapter on them, or drop load_in_4bit and load_in_8bit"
        yield Check("error", "use_peft", f"quantized weights ({model.model_name_or_path}) cannot be trained", remedy)


@CHECKS.add_for_training
def about_loss(plan: TrainingPlan) -> Iterator[Check]:
    """Refuse terms of the loss that this model or run does not have, which TRL does once the weights are loaded."""
    training, name = plan.config.training, plan.config.model.model_name_or_path
    if training.router_aux_loss_coef and not hasattr(plan.model_config.get_text_config(), "output_router_logits"):
        yield Check(
            "error", "router_aux_loss_coef", f"{name} is not a mixture of experts", "drop router_aux_loss_coef"
        )
    if training.sync_ref_model and (plan.peft_config or not training.beta):
        finding = "an adapter's reference is its base model" if plan.peft_config else "beta 0 has no reference model"
        yield Check("error", "sync_ref_model", finding, "drop sync_ref_model" + ", or set beta" * (not training.beta))


@CHECKS.add_for_training
def about_rate(plan: TrainingPlan) -> Iterator[Check]:
    """Warn of learning rates that are too low: the default with a small model, or at most 1e-5 with an adapter."""
    if (shape := plan.usable_shape) is None:
        return
    rate = plan.config.training.learning_rate
    by_default = plan.config.origin.get("learning_rate") == "script" and rate == DEFAULT_RATE
    whole, adapter = next(rates for limit, rates in RATES.items() if shape.parameters < limit)
    if shape.adapter and 0 < rate <= 1e-5:
        finding, instead = f"{rate:g} teaches an adapter next to nothing", adapter
    elif shape.parameters < 0.5e9 and by_default:
        finding = f"{rate:g}, the default, is for 1.5 billion weights, not {shape.parameters / 1e6:,.1f} million"
        instead = whole
    else:
        return
    where = "docs/reading-curves.md, Which learning rate"
    yield Check("warning", "learning_rate", finding, f"try --learning_rate {instead} ({where})")


@CHECKS.add_for_training
def about_memory(plan: TrainingPlan) -> Iterator[Check]:
    """Check that a training step, a rollout and an evaluation fit in memory, with completions as long as allowed."""
    if (shape := plan.usable_shape) is None:
        return
    if (parts := room.estimate(plan)) is None:
        finding = "the model's config.json does not give the sizes of its layers"
        yield Check("warning", "memory", finding, "watch the first step")
        return
    least, device = memory.least(shape, plan.run.args, plan.config.model, room.shards(plan)), plan.device
    finding = f"at least {human_bytes(sum(least.values()))} ({_listed(least)}), {human_bytes(sum(parts.values()))} if "
    more = {part: size for part, size in parts.items() if part not in least}
    finding += f"completions reach {counted(plan.config.completion_limit, 'token')} ({_listed(more)}), besides Python "
    finding += f"and its libraries; {human_bytes(device.free)} free on {device.name}"
    remedy = "docs/troubleshooting.md, Out of memory: use_peft, gradient_checkpointing, pack_tokens, fewer completions"
    yield warn_if(not device.has_room_for(parts), "memory", finding, remedy, routine=True)


@CHECKS.add_for_training
def about_larger_steps(plan: TrainingPlan) -> Iterator[Check]:
    """Say how many completions a step on a GPU could have, if twice as many as it has would fit in memory."""
    origin, geometry = plan.config.origin, plan.config.geometry
    # a checkpoint keeps its batch, and generation_batch_size the size of a rollout
    fixed = plan.run.checkpoint or "generation_batch_size" in origin
    if fixed or plan.device.kind != "cuda" or (batch := room.larger_batch(plan)) is None:
        return
    times = batch // geometry.per_device_train_batch_size
    step = f"{geometry.per_step * times} completions a step"
    finding = f"memory is left: --per_device_train_batch_size {batch} ({step}) would fit"
    if not plan.run.args.use_vllm:
        finding += f"; sampling {room.MEASURED_ROWS} rows takes 1.3 times as long as 64 (1.5B, one H200)"
    yield Check("ok", "larger steps", finding, routine=origin.get("per_device_train_batch_size") in ("recipe", "flag"))


@CHECKS.add_for_training
def about_disk(plan: TrainingPlan) -> Iterator[Check]:
    """Check that checkpoints and the model have room on the disk."""
    if (shape := plan.usable_shape) is None:
        return
    training, output = plan.config.training, plan.run.output
    checkpoint, final = memory.disk(shape, training, plan.config.model)
    count = 0 if training.save_strategy == "no" else (training.save_total_limit or 10) + 1  # one more while it writes
    needed = count * checkpoint + final
    existing = next(path for path in (output, *output.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    files = f"{count} checkpoints of {human_bytes(checkpoint)} and the model" if count else "the model, no checkpoint"
    finding = f"about {human_bytes(needed)}: {files}; {human_bytes(free)} free in {existing}"
    remedy = "free some space, lower save_total_limit, or save_only_model true (such a run cannot be resumed)"
    status = "error" if free < final + bool(count) * checkpoint else "warning"
    yield warn_if(free < needed, "disk", finding, remedy, status, routine=True)


def _listed(parts: Mapping[str, float]) -> str:
    return ", ".join(f"{part} {human_bytes(size)}" for part, size in parts.items() if size)
