"""`python -m grpo.preflight --plan`: what a run would take on a machine that need not be this one.

Nothing is loaded but the settings. Every rate is printed with where it comes from: measured, a data sheet, assumed.
"""

import argparse
import ast
import math
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import rewards
from grpo.config import measured, planning, rates
from grpo.config.planning import Work, between, two
from grpo.core.errors import UserError
from grpo.policy import memory

INLINE = Path(__file__).resolve().parents[2] / "train_grpo.py"
USAGE = "usage: python -m grpo.preflight --plan [--model_size 1.5B] [--gpu H100] [--flag value ...]"


class _Arguments(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(message.replace("argument --", ""))


def inline_block(path: Path = INLINE) -> dict[str, Any]:
    """HYPERPARAMETERS as it stands in the script, read without running it: grpo/ imports no experiment."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        raise UserError(f"{path.name}: its HYPERPARAMETERS cannot be read ({error})") from None
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == "HYPERPARAMETERS":
            try:
                return {word.arg: _literal(word.value) for word in node.value.keywords}  # type: ignore[union-attr]
            except (AttributeError, ValueError):
                raise UserError(f"{path.name}: HYPERPARAMETERS holds more than literals; a plan reads these") from None
    raise UserError(f"{path.name}: there is no HYPERPARAMETERS block in it")


def _literal(node: ast.expr) -> Any:
    return getattr(rewards, node.id) if isinstance(node, ast.Name) else ast.literal_eval(node)


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0; give one")
    return value


def _arguments(argv: list[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = _Arguments(add_help=False, allow_abbrev=False)
    parser.add_argument("--plan", action="store_true")
    for flag, kind, default in (
        ("model_size", str, None), ("gpu", str, None), ("devices", int, 1), ("price", _positive, 2.5),
        ("mean_completion_length", _positive, 200.0), ("mean_prompt_length", _positive, rates.PROMPT),
        ("live_groups", _positive, 1.0), ("measured", str, None),
    ):  # fmt: skip
        parser.add_argument(f"--{flag}", type=kind, default=default)
    parser.add_argument("--sharding", choices=list(memory.SHARED), default="none")
    ours, others = parser.parse_known_args(argv)
    if ours.devices < 1 or ours.live_groups > 1:
        raise UserError("devices: give at least 1" if ours.devices < 1 else "live_groups: a share; give at most 1")
    return ours, others


def read(argv: list[str]) -> tuple[argparse.Namespace, Work, rates.Gpu, dict[str, Any] | None]:
    """The plan that a command line asks for; raises UserError."""
    import torch

    from grpo.config import resolve
    from grpo.policy import loading
    from grpo.training import attention

    ours, others = _arguments(argv)
    merged = resolve.merge(inline_block(), others, ours.devices)
    settings = SimpleNamespace(**merged.settings)
    settings.optim = SimpleNamespace(value=settings.optim)
    name = ours.model_size or settings.model_name_or_path
    if Path(name).expanduser().is_dir() and not ours.model_size:
        model_config = loading.read_wish(str(Path(name).expanduser()), settings.attn_implementation)
    elif rates.named(name) is None:
        key = "model_size" if ours.model_size else "model_name_or_path"
        raise UserError(f"{key}: no shape of {name!r} is known; give one of {', '.join(rates.MODELS)}, or a directory")
    else:
        model_config = rates.model_config(rates.named(name))
    adapter = None
    if settings.use_peft:
        from peft import LoraConfig

        adapter = LoraConfig(r=settings.lora_r, target_modules=settings.lora_target_modules)
    try:
        shape = memory.shape(model_config, adapter)
    except ValueError as error:
        raise UserError(f"model_name_or_path: {name!r} cannot be planned: {error}") from None
    if not shape.layers:
        raise UserError(f"model_name_or_path: the config.json of {name!r} does not say its layers' sizes")
    found = measured.read(ours.measured) if ours.measured else None
    device = torch.device("cpu" if settings.use_cpu else "cuda")
    if settings.use_cpu:
        settings.bf16 = settings.fp16 = False
        settings.dtype, settings.attn_implementation = "float32", "sdpa"
        settings.generation = "lean" if settings.generation == "auto" else settings.generation
    backend = attention.choose(settings.attn_implementation, device) if settings.packed else None
    work = Work(
        settings, merged.geometry, shape, backend and (settings.pack_tokens or backend.pack_tokens),
        bool(backend and backend.shares_prompts), min(settings.max_samples or rates.ROWS, rates.ROWS - rates.DROPPED),
        min(ours.mean_completion_length, settings.max_completion_length), ours.live_groups,
        ours.mean_prompt_length, ours.sharding,
    )  # fmt: skip
    return ours, work, _device(ours.gpu, found, settings), found


def _device(name: str | None, found: dict[str, Any] | None, settings: Any) -> rates.Gpu:
    sixteen = settings.bf16 or settings.fp16 or settings.dtype in ("bfloat16", "float16")
    if found is not None and name is not None:
        raise UserError(f"gpu: measured is of another device than {name} may be; drop one of them")
    if found is not None:
        return measured.gpu(found, sixteen)
    if settings.use_cpu or not sixteen:
        key = "use_cpu: no CPU is" if settings.use_cpu else "bf16: false computes in float32, whose rates are not"
        raise UserError(f"{key} in the table of GPUs; measure one (benchmarks/gpu_check.py) and give --measured")
    return rates.gpu(name or "H100")


# --- What is said ------------------------------------------------------------------------------------------------


def lines(ours: argparse.Namespace, work: Work, gpu: rates.Gpu, found: dict[str, Any] | None) -> list[str]:
    """The plan as text: the answer, its arithmetic and what it rests on."""
    (best, worst), source = measured.paces(work, found)
    geometry, shape = work.geometry, work.shape
    launch, eager = (
        [1e3 * shape.layers * getattr(pace, key) for pace in (best, worst)] for key in ("launch", "launch_eager")
    )
    parts = planning.memory(work, gpu)
    peak, count = sum(parts.values()), planning.steps(work)
    one, other = planning.time(work, gpu, best), planning.time(work, gpu, worst)
    rows = geometry.rollout // geometry.world_size
    tokens, longest = planning.training_tokens(work, best.counted), work.longest(rows)
    operations = planning.training_operations(work, tokens, best.counted)
    slow, fast = (planning.decoding(work, gpu, rows, pace.launch, pace.reading) for pace in (worst, best))
    sampled = "the samples of filter_pass_rate, " if work.settings.filter_pass_rate or work.settings.curriculum else ""
    phases = ("generation", "training", "optimizer", "evaluation")
    unit, seconds = ("hours", 3600) if other.total > 1800 else ("minutes", 60)
    took = {key: between(getattr(one, key) / seconds, getattr(other, key) / seconds) for key in (*phases, "total")}
    over = "" if work.settings.max_steps > 0 else f" over GSM8K's {work.rows:,} questions"
    cost = between(*(time.total / 3600 * ours.devices * ours.price for time in (one, other)))
    fits = "fits" if peak <= gpu.memory else "does not fit"
    shown = ", ".join(f"{part} {size / 1e9:.1f}" for part, size in parts.items() if size > 5e7)
    return [
        f"Plan (arithmetic; nothing was run): {shape.parameters / 1e6:,.1f} million parameters, "
        f"{shape.trained / 1e6:,.1f} million trained, on {ours.devices} × {gpu.name}, sharding {ours.sharding}",
        f"memory      about {two(peak / 1e9)} GB of {gpu.memory / 1e9:.0f} GB on each device: {fits} ({shown})",
        f"time        {took['total']} {unit}: " + ", ".join(f"{key} {took[key]}" for key in phases),
        f"cost        {cost} at {ours.price:g} a device and hour",
        geometry.describe(),
        f"steps       {count:,} optimizer steps{over}, {count * geometry.per_step:,} completions, "
        f"{two(count * geometry.per_step * work.mean / 1e6)} million tokens generated",
        f"generation  {longest:,.0f} decoding steps a rollout, the expected longest of {rows} completions × "
        f"{between(1e3 * fast, 1e3 * slow)} ms (weights and cache / bandwidth, or the launches of {work.engine})",
        f"training    {tokens:,.0f} tokens a step and device: {two(operations / 1e12)} × 10^12 operations / "
        f"({two(gpu.rate / 1e12)} × 10^12 a second × {between(best.training, worst.training)}) = "
        f"{between(one.training / count, other.training / count)} s",
        f"optimizer   {two(planning.optimizer_bytes(work) / 1e9)} GB / {two(gpu.bandwidth / 1e12)} TB/s = "
        f"{two(1e3 * one.optimizer / count)} ms a step",
        "It rests on:",
        f"- memory {gpu.memory / 1e9:.0f} GB: {gpu.memory_source}; bandwidth {gpu.bandwidth / 1e12:.2f} TB/s: "
        f"{gpu.bandwidth_source}; matrix products {gpu.rate / 1e12:,.1f} TFLOP/s: {gpu.rate_source}",
        f"- training at {between(best.training, worst.training)} of the matrix rate: {source['training']}",
        f"- decoding at {between(best.reading, worst.reading)} of the bandwidth: {source['reading']}",
        f"- a decoding step of {between(*launch)} ms at least in rollouts: {source['launch']}; "
        f"{between(*eager)} ms in evaluations: {source['launch_eager']} (where assumed, another program's eager 1.5B)",
        f"- prompts of {work.prompt:.0f} tokens on average (--mean_prompt_length): unless given, measured on GSM8K "
        "with SmolLM2's tokenizer and no exemplars",
        f"- completions of {work.mean:.0f} tokens on average, lognormal: assumed (--mean_completion_length)",
        f"- {work.live:.0%} of the groups have a signal: assumed (--live_groups)",
        *planning.overheads(work),
        f"- not in it: start-up, {sampled}rewards, checkpoints, what devices tell each other",
    ]


def main(argv: list[str] | None = None) -> int:
    """Print the plan; mistakes are one line and exit status 2."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        if "--plan" not in argv:
            raise UserError(f"grpo.preflight checks a run from within train_grpo.py (--dry_run true); {USAGE}")
        print("\n".join(lines(*read(argv))))
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0
