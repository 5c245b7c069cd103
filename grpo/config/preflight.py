"""Preflight: check data, rewards, model and machine before the first step, and print a table; loads no weights."""

import math
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import fmean, quantiles

import psutil
import torch
from peft import PeftConfig
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from grpo.core.checklist import Check, stop_at_errors, warn_if
from grpo.core.processes import is_first_process, say
from grpo.core.settings import Config
from grpo.core.text import counted, for_rich, human_bytes, shorten
from grpo.data.dataset import Data
from grpo.evaluation.comparison import smallest_change
from grpo.policy import loading, memory
from grpo.rewarding import probe
from grpo.rewarding.registry import Rewards, check_columns, weights_of
from grpo.runs import hub
from grpo.task import prompts
from grpo.task.task import Task
from lean_grpo import attention, packing

# --- Data ---------------------------------------------------------------------------------------------------------


def _spread(lengths: Sequence[int]) -> str:
    cuts = quantiles(lengths, n=20, method="inclusive") if len(lengths) > 1 else [lengths[0]] * 19
    return f"median {cuts[9]:.0f}, 95 % up to {cuts[18]:.0f}, longest {counted(max(lengths), 'token')}"


FEW = 100  # held-out questions, with which a change of 4 points is the smallest that can be shown


def about_data(config: Config, data: Data) -> Iterator[Check]:
    script, rows = config.script, len(data.train)
    columns = f"{script.question_column} and {script.answer_column}" if data.has_golds else script.question_column
    finding = f"columns {columns}"
    remedies = []
    unmarked = data.unmarked()
    if empty := data.unusable - sum(unmarked.values()):
        lacking = "a question or a gold answer" if data.has_golds else "a question"
        finding += f"; dropped {counted(empty, 'row')} without {lacking}"
        remedies.append(f"{columns} are needed in every row")
    for mark, count in unmarked.items():
        finding += f"; dropped {counted(count, 'row')} without the mark {mark} that the others have"
        remedies.append(f"put {mark} in all gold answers, or in none")
    yield warn_if(remedies, "schema", finding, "; ".join(remedies))
    if data.reserved:
        yield Check("ok", "columns", f"dropped {', '.join(data.reserved)}: TRL uses these names")
    count = len(data.held_out)
    finding = counted(count, "held-out question")
    if data.cut_off and count:
        share = count / (sum(reading.rows for reading in data.readings) - data.unusable)
        finding += f", {100 * share:.0f} % of the rows, which have no split {script.eval_split!r}"
    if not script.eval_only:
        steps = counted(config.geometry.steps_per_epoch(rows), "optimizer step")
        finding = f"{counted(rows, 'training row')}, {steps} per epoch; {finding}"
    remedy = "add rows, or use another eval_dataset_name"
    if script.max_samples and data.cut_off and data.readings[0].rows == script.max_samples:
        remedy = "raise max_samples"
    if count == script.eval_samples:
        remedy = "raise eval_samples"
    smallest = smallest_change(count)
    few = f"so few cannot show a change below {100 * smallest:.1f} points"
    if smallest > 1 or not (data.has_golds or script.judge):  # without, rewards are compared
        few = "so few show only large changes"
    if script.eval_samples == 0:
        finding += "; eval_samples 0: nothing is evaluated before and after"
    yield warn_if(count < FEW and script.eval_samples != 0, "dataset", finding, f"{few}; {remedy}")
    if script.eval_only:
        return
    if rows < config.geometry.rollout_prompts:
        needed = counted(config.geometry.rollout_prompts, "prompt")
        finding = f"{counted(rows, 'training row')} cannot fill one rollout, which takes {needed}"
        remedy = "add rows, or lower per_device_train_batch_size or gradient_accumulation_steps"
        yield Check("error", "dataset", finding, remedy)
    finding = f"dropped {counted(data.overlap, 'training row')} with a held-out question"
    yield warn_if(data.overlap, "overlap", finding, "use training rows that are not in the evaluation")


def about_prompts(config: Config, tokenizer: PreTrainedTokenizerBase, task: Task, prompt: str) -> Iterator[Check]:
    kind = "chat messages" if task.prompt.chat else "plain text"
    name = config.script.prompt_format if isinstance(config.script.prompt_format, str) else "the recipe's own"
    finding = f"{name}{' with your system_prompt' * (config.script.system_prompt is not None)} as {kind}, "
    finding += counted(len(task.shots), "worked example")
    if task.prompt.pattern != "xml":
        finding += f", answers as {task.perfect('…', '72').split('…')[-1].strip()}"
    if task.prompt.prefill:
        finding += f"; they end in {task.prompt.prefill!r}, with which completions are scored and shown"
    cannot = not task.prompt.chat and tokenizer.chat_template is None and not task.shots
    remedy = "the model has no chat template: it may never stop or show the format; num_shots 1 helps"
    yield warn_if(cannot, "prompts", finding, remedy)
    opened = re.search(r"<\w+>\s*$", prompt)
    if opened and not task.prompt.prefill:
        finding = f"prompts end in {opened[0]!r}, which is not part of this format's completions"
        remedy = (
            "no completion can have the format: use --prompt_format think, or a format whose completion has that tag"
        )
        yield Check("warning", "prefilled", finding, remedy)


def solution_lengths(data: Data, task: Task, encode: Callable[[str], list[int]]) -> list[int]:
    """Tokens of the gold solutions of the first training rows, as completions with their end token."""
    lengths = []
    for reasoning, gold in zip(data.reasoning, data.train["answer"], strict=False):
        # GSM8K marks its sums for a calculator, <<48/2=24>>; nobody has to write that
        plain = re.sub(r"<<.*?>>", "", reasoning)
        lengths.append(len(encode(task.perfect(plain, gold or ""))) + 1)
    return lengths


def about_lengths(config: Config, data: Data, solutions: Sequence[int]) -> Iterator[Check]:
    finding = _spread(data.lengths)
    if config.script.max_prompt_length and not config.script.eval_only:
        finding += f"; limit {config.script.max_prompt_length}"
    if data.too_long:
        finding += f"; dropped {counted(data.too_long, 'training row')} above it"
    many = data.too_long > 0.05 * len(data.lengths)
    yield warn_if(many, "prompt length", finding, "raise max_prompt_length or lower num_shots")
    limit = config.completion_limit
    long = fmean(length > limit for length in solutions)
    what = "gold solutions in the answer format" if any(data.reasoning) else "the answer format alone"
    finding = f"{what}: {_spread(solutions)}; limit {limit}"
    finding += f"; {100 * long:.0f} % are longer" if long else ""
    remedy = "raise max_completion_length: a completion that is cut off earns next to nothing"
    yield warn_if(long > 0.05, "completion length", finding, remedy)


# --- Model and machine --------------------------------------------------------------------------------------------


def about_model(
    config: Config,
    model_config: PretrainedConfig,
    peft_config: PeftConfig | None,
    data: Data,
    largest_id: int,
) -> Iterator[Check]:
    name, training, model = config.model.model_name_or_path, config.training, config.model
    try:
        shape = memory.shape(model_config, peft_config, training.trust_remote_code)
    except (ValueError, LookupError, ArithmeticError, AttributeError, TypeError) as error:  # config.json says anything
        fits = f"the adapter does not fit {name}" if peft_config else f"{name} is not a causal language model"
        remedy = "set lora_target_modules" if peft_config else "use another model"
        yield Check("error", "model", f"{fits}: {next(iter(str(error).splitlines()), '')}", remedy)
        return
    except RuntimeError as error:
        yield Check("warning", "model", f"its size is known only once it is loaded ({error})", "watch the memory")
        return
    share = "" if config.script.eval_only else f"{shape.trained / 1e6:,.1f} of "
    base = peft_config.base_model_name_or_path if peft_config else None  # a new adapter has none yet
    saved = f" (an adapter of {base})" if base else ""
    finding = f"{name}{saved}: {share}{shape.parameters / 1e6:,.1f} million parameters"
    number = "bfloat16" if training.bf16 else "float16" if training.fp16 else str(model.dtype)
    kernel = attention.kernel(
        model.attn_implementation or "sdpa", training.device, getattr(torch, number, torch.float32), model_config
    )
    attends = kernel.name if config.script.packed and not config.script.eval_only else model.attn_implementation
    finding += f"{' are trained' if share else ''}, in {model.dtype}, attention {attends}"
    yield warn_if(not shape.trained, "model", finding, "nothing would be learned; check use_peft and lora_*", "error")
    if not config.script.eval_only:
        yield from about_rate(config, shape)
    if largest_id >= shape.vocabulary > 0:
        finding = f"the tokenizer has token {largest_id}, but the model knows only {shape.vocabulary} tokens"
        yield Check("error", "vocabulary", finding, "use the tokenizer that belongs to the model")
    longest = max(data.lengths)
    if not config.script.eval_only:
        longest = min(longest, config.script.max_prompt_length or longest)
    needed = longest + config.completion_limit
    if shape.positions and needed > shape.positions:
        finding = f"prompt and completion take up to {needed} tokens, the model was made for {shape.positions}"
        yield Check("warning", "context", finding, "lower max_completion_length or max_prompt_length")
    if config.script.eval_only:
        return
    yield Check("ok", "this run", counted(count_steps(config, data), "optimizer step"))
    yield about_memory(config, data, shape, longest, largest_pack(config, kernel, longest))
    yield about_disk(config, shape)


DEFAULT_RATE = 5e-6  # that of HYPERPARAMETERS, for 1.5 billion weights
# Weights of a model at most → the rates of its recipe, for all weights and an adapter (docs/reading-curves.md)
RATES = {15e6: ("1e-4", "5e-4"), 0.5e9: ("2e-5", "2e-4"), math.inf: ("5e-6", "5e-5")}


def about_rate(config: Config, shape: memory.Shape) -> Iterator[Check]:
    """A learning rate that teaches nothing: the default one on a small model, or one for all weights on an adapter."""
    rate = config.training.learning_rate
    chosen = "learning_rate" in config.chosen or rate != DEFAULT_RATE
    whole, adapter = next(rates for limit, rates in RATES.items() if shape.parameters < limit)
    if shape.adapter and 0 < rate <= 1e-5:
        finding, instead = f"{rate:g} teaches an adapter next to nothing", adapter
    elif shape.parameters < 0.5e9 and not chosen:
        finding = f"{rate:g}, the default, is for 1.5 billion weights, not {shape.parameters / 1e6:,.1f} million"
        instead = whole
    else:
        return
    where = "docs/reading-curves.md, Which learning rate"
    yield Check("warning", "learning_rate", finding, f"try --learning_rate {instead} ({where})")


def largest_pack(config: Config, kernel: attention.Kernel, prompt: int) -> int | None:
    """The most positions that a training step computes at once; None where it is TRL's own."""
    if not config.script.packed:
        return None
    if config.script.pack_tokens:
        return config.script.pack_tokens
    if not kernel.by_segment:
        return kernel.pack_tokens
    completions = config.training.num_generations or 1
    return packing.largest_pack(kernel.pack_tokens, prompt, completions, config.completion_limit)


def about_memory(config: Config, data: Data, shape: memory.Shape, longest: int, pack_tokens: int | None) -> Check:
    """Check that a training step, a rollout and an evaluation fit in memory."""
    training = config.training
    if not shape.layers:
        finding = "the model's config.json does not give the sizes of its layers"
        return Check("warning", "memory", finding, "watch the first step")
    free, total, where = _free_memory(training.device)
    per_device = config.geometry.rollout // config.geometry.world_size
    answers = min(training.per_device_eval_batch_size, len(data.held_out))
    parts = memory.memory(shape, training, config.model, per_device, longest, pack_tokens, total, answers)
    finding = f"at least {human_bytes(sum(parts.values()))} at the peak, {human_bytes(free)} free on {where} ("
    finding += ", ".join(f"{part} {human_bytes(size)}" for part, size in parts.items() if size) + ")"
    remedy = "docs/troubleshooting.md, Out of memory: use_peft, gradient_checkpointing, pack_tokens, fewer completions"
    return warn_if(sum(parts.values()) > free, "memory", finding, remedy)


def count_steps(config: Config, data: Data) -> int:
    """Optimizer steps of this run, at most."""
    if config.training.max_steps > 0:
        return config.training.max_steps
    return math.ceil(config.geometry.steps_per_epoch(len(data.train)) * config.training.num_train_epochs)


def about_disk(config: Config, shape: memory.Shape) -> Check:
    """Check that checkpoints and the model have room on the disk."""
    training, output = config.training, config.output
    checkpoint, final = memory.disk(shape, training, config.model)
    kept = 0 if training.save_strategy == "no" else (training.save_total_limit or 10) + 1  # one more while it writes
    needed = kept * checkpoint + final
    existing = next(path for path in (output, *output.absolute().parents) if path.exists())
    free = shutil.disk_usage(existing).free
    what = f"{kept} checkpoints of {human_bytes(checkpoint)} and the model" if kept else "the model, no checkpoint"
    finding = f"about {human_bytes(needed)}: {what}; "
    finding += f"{human_bytes(free)} free in {existing}"
    remedy = "free some space, lower save_total_limit, or save_only_model true (such a run cannot be resumed)"
    status = "error" if free < final + bool(kept) * checkpoint else "warning"
    return warn_if(free < needed, "disk", finding, remedy, status)


def _free_memory(device: torch.device) -> tuple[float, float, str]:
    """Bytes that are free, and in all, and where."""
    if device.type == "cuda":
        return *torch.cuda.mem_get_info(device), torch.cuda.get_device_name(device)
    return psutil.virtual_memory().available, psutil.virtual_memory().total, "this machine"


def about_load() -> Iterator[Check]:
    """A note where other work leaves less than one core to a run on the CPU."""
    load, cores = psutil.getloadavg()[0], psutil.cpu_count() or 1
    if load > max(cores - 1, 1):
        finding = f"{load:.1f} in the last minute on {counted(cores, 'core')}: other programs make steps slower"
        yield Check("ok", "load", finding)


def about_surroundings(config: Config) -> Iterator[Check]:
    yield from config.notes
    if config.training.use_cpu:
        yield from about_load()
    if not config.script.eval_only:
        yield Check("ok", "geometry", config.geometry.describe())
        for stage in config.stages:
            never, limit = 0 < config.training.max_steps < stage.first_step, config.training.max_steps
            yield warn_if(never, "stage", stage.describe(), f"it never begins: max_steps ends the run after {limit}")
        yield Check("ok", "tracker", ", ".join(config.training.report_to or ["none"]))
        if config.training.push_to_hub:
            yield hub.check(config.training)
    resume = config.training.resume_from_checkpoint
    finding = f"{config.training.output_dir}" + (f", resumed from {resume}" if resume else "")
    yield Check("ok", "output", finding)


# --- All of it ----------------------------------------------------------------------------------------------------


def run(
    config: Config,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    data: Data,
    rewards: Rewards,
) -> dict[str, dict[str, float]]:
    """Print every check of the table, what the rewards give, and a prompt as the model gets it.

    Returns:
        What each reward gives for a `perfect` completion and for one with a `wrong` answer, by name, for the run's
        record; empty for an evaluation alone.

    Raises:
        UserError: for the first check that failed, where the model's files cannot be used, and for a column that would
            replace a reward's parameter.
    """
    check_columns(rewards, {*data.train.column_names, *data.held_out.column_names})
    architecture = loading.read_configs(config)
    tried, changed, exact, weights = try_out(config, tokenizer, task, data, rewards)
    checks = check(config, tokenizer, *architecture, task, data, tried, changed, exact, weights)
    if is_first_process():
        print_checks(checks)
        if tried:
            # a table's own title wraps at its width
            title = "[italic]Rewards, tried on completions for the first training row[/italic]"
            texts = probe.perturbed(data.reasoning[0], data.train[0]["answer"], task)
            Console().print("", title, probe.matrix(tried, weights), "", probe.listing(texts), "", sep="\n")
        prompt = prompts.rendered(data.train[0]["prompt"], tokenizer, config.template_kwargs)
        print_example(prompt, data.train[0]["answer"] or "none")
    stop_at_errors(checks)
    if config.script.dry_run:
        warnings = sum(check.status == "warning" for check in checks)
        found = f"{warnings or 'no'} warning{'s' * (warnings != 1)}, no error"
        say(f"Dry run: {found}; nothing was trained or written")
    given: dict[str, dict[str, float]] = {"perfect": {}, "wrong": {}}
    for name, values in tried.items():
        for kind, value in values.items():
            key = kind.partition(" ")[0]  # wrong number, wrong answer
            if key in given and isinstance(value, float):
                given[key][rewards[name].__name__] = value
    return given


def try_out(
    config: Config, tokenizer: PreTrainedTokenizerBase, task: Task, data: Data, rewards: Rewards
) -> tuple[probe.Tried, probe.Changed, list[str], dict[str, float]]:
    """Each reward's values for the first training row, the arguments that it changes, exact rewards, and weights.

    All are empty for an evaluation alone.
    """
    if config.script.eval_only:
        return {}, {}, [], {}
    encode = partial(tokenizer.encode, add_special_tokens=False)
    tried, changed, exact = probe.try_rewards(rewards, data.train[0], data.reasoning[0], task, encode)
    return tried, changed, exact, weights_of(config, rewards)


def check(
    config: Config,
    tokenizer: PreTrainedTokenizerBase,
    model_config: PretrainedConfig,
    peft_config: PeftConfig | None,
    task: Task,
    data: Data,
    tried: probe.Tried,
    changed: probe.Changed,
    exact: list[str],
    weights: dict[str, float],
) -> list[Check]:
    """Every check of the table; for an evaluation alone, those that concern it."""
    encode = partial(tokenizer.encode, add_special_tokens=False)
    prompt = prompts.rendered(data.train[0]["prompt"], tokenizer, config.template_kwargs)
    checks = [*about_surroundings(config), *about_data(config, data)]
    checks += probe.about_golds(data, exact, task)
    checks += about_prompts(config, tokenizer, task, prompt)
    checks += probe.about_judge(task, data.train[0])
    checks += about_lengths(config, data, solution_lengths(data, task, encode))
    if tried:
        checks += probe.about_tags(prompt, task, tried, weights)
        checks += probe.about_rewards(tried, weights, data.train.column_names, task)
        checks += probe.about_changed(changed)
    largest_id = max(*encode(prompt), tokenizer.eos_token_id or 0, tokenizer.pad_token_id or 0)
    checks += about_model(config, model_config, peft_config, data, largest_id)
    return checks


STYLES = {"ok": "green", "warning": "yellow", "error": "bold red"}


def print_checks(checks: Sequence[Check]) -> None:
    """The table of preflight."""
    table = Table(title="Preflight", title_justify="left", box=None, pad_edge=False)
    for heading in ("", "check", "finding"):
        table.add_column(heading, overflow="fold")
    for check in checks:
        remedy = f"\n→ {for_rich(check.remedy)}" if check.remedy else ""
        style = STYLES[check.status]
        table.add_row(f"[{style}]{check.status}[/{style}]", for_rich(check.name), for_rich(check.finding) + remedy)
    Console().print(table)


def print_example(prompt: str, gold: str) -> None:
    """A prompt as the model gets it, with its gold answer."""
    title, answer = "a training prompt, as the model gets it", f"gold answer: {for_rich(shorten(gold, 60))}"
    Console().print(Panel(for_rich(prompt), title=title, title_align="left", subtitle=answer, subtitle_align="left"))
