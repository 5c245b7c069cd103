"""What a machine is and can do: its GPU, the kernels that work there, how fast it copies and multiplies."""

import importlib.metadata
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from benchmarks.measured_run import float32_products, synchronize

PACKAGES = (
    "torch", "transformers", "trl", "peft", "accelerate", "torch-optimi", "triton", "flash-attn", "flash-attn-3",
    "kernels", "vllm", "bitsandbytes",
)  # fmt: skip


def versions() -> dict[str, str | None]:
    """Of the packages that matter; None where one is not installed."""
    found: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def device() -> dict[str, Any]:
    """The first GPU, or the CPU where there is none."""
    import torch
    from transformers.utils import is_torch_tf32_available

    kind = "cuda" if torch.cuda.is_available() else "cpu"
    facts = {"type": kind, "cuda": torch.version.cuda}
    if kind == "cpu":
        import psutil

        about, threads = processor(), torch.get_num_threads()
        return facts | {
            "name": f"{about.get('model name', 'CPU')}, {threads} thread{'s' * (threads > 1)}",
            "memory": psutil.virtual_memory().total,
            "driver": None,
            "capability": None,
            "tf32": False,
            "bf16": "avx512_bf16" in about.get("flags", "").split(),
        }
    properties = torch.cuda.get_device_properties(0)
    return facts | {
        "name": properties.name,
        "memory": properties.total_memory,
        "driver": driver(),
        "capability": f"{properties.major}.{properties.minor}",
        "tf32": is_torch_tf32_available(),
        "bf16": torch.cuda.is_bf16_supported(including_emulation=False),
    }


def processor() -> dict[str, str]:
    """What Linux says about the first core; elsewhere nothing."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def driver() -> str | None:
    """The version of NVIDIA's driver; None where nvidia-smi is missing or does not answer."""
    if shutil.which("nvidia-smi") is None:
        return None
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.strip().splitlines()[0] if answer.strip() else None


def _sdpa(backend: str) -> Callable[..., Any]:
    def attention(query: Any, key: Any, value: Any) -> Any:
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.functional import scaled_dot_product_attention

        with sdpa_kernel(getattr(SDPBackend, backend)):
            return scaled_dot_product_attention(query, key, value, is_causal=True)

    return attention


def _flex(query: Any, key: Any, value: Any) -> Any:
    import torch
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention)(query, key, value)


def _flash(query: Any, key: Any, value: Any) -> Any:
    from transformers.utils import is_flash_attn_2_available

    if not is_flash_attn_2_available():
        raise ImportError("flash-attn is not installed, or does not fit this device")
    from flash_attn import flash_attn_func

    return flash_attn_func(*(tensor.transpose(1, 2) for tensor in (query, key, value)), causal=True)


def _flash_3(query: Any, key: Any, value: Any) -> Any:
    from transformers.utils import is_flash_attn_3_available

    if not is_flash_attn_3_available():
        raise ImportError("flash-attn 3 is not installed, or does not fit this device")
    from flash_attn_interface import flash_attn_func

    output = flash_attn_func(*(tensor.transpose(1, 2) for tensor in (query, key, value)), causal=True)
    return output[0] if isinstance(output, tuple) else output


# sdpa's own kernels, among which it chooses, and values of attn_implementation
KERNELS: dict[str, Callable[..., Any]] = {
    "sdpa/flash": _sdpa("FLASH_ATTENTION"),
    "sdpa/efficient": _sdpa("EFFICIENT_ATTENTION"),
    "sdpa/cudnn": _sdpa("CUDNN_ATTENTION"),
    "sdpa/math": _sdpa("MATH"),
    "flex_attention": _flex,
    "flash_attention_2": _flash,
    "flash_attention_3": _flash_3,
}


def attend(name: str, device: str) -> None:
    """Forward and backward of one of KERNELS on this device; whatever it raises says why that does not work."""
    import torch

    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    tensors = [torch.randn(1, 4, 256, 64, device=device, dtype=dtype, requires_grad=True) for _ in range(3)]
    KERNELS[name](*tensors).sum().backward()
    synchronize(device)


def limits(device: str, tf32: bool) -> dict[str, Any]:
    """The two rates that nothing on this machine can be faster than."""
    rates = {"bfloat16": matrix_rate(device, "bfloat16"), "float32": matrix_rate(device, "float32")}
    if tf32:
        with float32_products(True):
            rates["tf32"] = matrix_rate(device, "float32")
    return {"copy_bytes_per_second": copy_rate(device), "matrix_flops_per_second": rates}


def matrix_rate(device: str, dtype: str) -> float:
    """Floating-point operations per second of a product of square matrices, the best of ten."""
    import torch

    side = 8192 if device == "cuda" else 2048
    left, right = (torch.randn(side, side, dtype=getattr(torch, dtype), device=device) for _ in range(2))
    return 2 * side**3 / _fastest(lambda: torch.mm(left, right), device)


def copy_rate(device: str) -> float:
    """Bytes read plus bytes written per second by a copy that is many times larger than any cache, the best of ten."""
    import torch

    size = 2**30 if device == "cuda" else 2**29
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / _fastest(lambda: target.copy_(source), device)


def _fastest(function: Callable[[], Any], device: str) -> float:
    """Seconds of the fastest of ten calls."""
    best = float("inf")
    for _ in range(10):
        synchronize(device)
        start = perf_counter()
        function()
        synchronize(device)
        best = min(best, perf_counter() - start)
    return best
