"""The GPU of a plan: as its data sheet has it, as `python -m grpo check` measured it, or as flags describe it."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from grpo.core.errors import UserError

CHECK = Path("outputs/check.json")  # where `python -m grpo check` writes what it has measured


class Device(NamedTuple):
    """A GPU: its memory in GB, TB/s that it reads plus writes, TFLOP/s of 16-bit matrix products.

    Where these were measured, `source` is the file, and `engines` are milliseconds of a decoding step of 28 layers.
    """

    name: str
    memory: float
    bandwidth: float
    tflops: float
    engines: Mapping[str, float] = MappingProxyType({})
    source: str = ""


# From data sheets, without sparsity; H100 and H200 as measured with PyTorch 2.11
GPUS = {
    "V100": (16, 0.90, 112), "V100-32": (32, 0.90, 112), "T4": (16, 0.32, 65),
    "L4": (24, 0.30, 121), "A10G": (24, 0.60, 70), "A10": (24, 0.60, 125),
    "A40": (48, 0.70, 150), "L40S": (48, 0.86, 362), "A5000": (24, 0.77, 111), "A6000": (48, 0.77, 155),
    "A100": (80, 2.04, 312), "A100-40": (40, 1.555, 312), "H100": (80, 3.0, 798), "H200": (141, 4.3, 769),
    "B200": (180, 8.0, 2250),
    "RTX 3060": (12, 0.36, 25), "RTX 3080": (10, 0.76, 60), "RTX 3090": (24, 0.94, 71),
    "RTX 4060": (8, 0.27, 30), "RTX 4070": (12, 0.50, 58), "RTX 4080": (16, 0.72, 97), "RTX 4090": (24, 1.01, 165),
    "RTX 5070": (12, 0.67, 62), "RTX 5080": (16, 0.96, 113), "RTX 5090": (32, 1.79, 210),
}  # fmt: skip
BEFORE_AMPERE = {"V100", "V100-32", "T4"}  # of these: no bfloat16, and no variable-length attention


def known_as(name: str) -> str:
    """The table's name of a GPU called 4090, RTX 4090, A100 40GB or NVIDIA H100 80GB HBM3; of others that name."""

    def plain(text: str) -> str:
        return re.sub(r"NVIDIA|GEFORCE|TESLA|RTX|\W", "", text.upper())

    return max((gpu for gpu in GPUS if plain(name).startswith(plain(gpu))), key=len, default=name)


def find_gpu(name: str) -> Device:
    """The device that the table has under any of its names; UserError for others."""
    known = known_as(name)
    if known not in GPUS:
        raise UserError(
            f"gpu: {name!r} is not known; use {', '.join(GPUS)}, or describe yours by all of --tflops, --bandwidth "
            "and --memory"
        )
    return Device(known, *GPUS[known])


def measured(path: Path | None) -> Device | None:
    """The GPU that `python -m grpo check` measured, by its JSON (None: CHECK, if it exists); None for a CPU."""
    file = path or CHECK
    if not (path or file.is_file()):
        return None
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if found["device"]["type"] != "cuda":
            return None
        name, limits = known_as(found["device"]["name"]), found["limits"]
        rate = limits["matrix_flops_per_second"]["bfloat16"] / 1e12
        sampled = [row for row in found["rows"] if row["kind"] == "generation" and not row["error"]]
        return Device(
            name,
            memory=found["device"]["memory"] / 1e9,
            bandwidth=limits["copy_bytes_per_second"] / 1e12,
            tflops=GPUS[name][2] if name in BEFORE_AMPERE else rate,  # these emulate bfloat16
            engines={row["engine"]: 1e3 * row["seconds"] / row["limit"] for row in sampled},
            source=str(file),
        )
    except (OSError, ValueError, LookupError, TypeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise UserError(
            f"check: {str(file)!r} is not what python -m grpo check writes ({reason}); remove it"
        ) from None


def choose(gpu: str | None, check: Path | None = None, **rates: float | None) -> Device:
    """The GPU of this name (None: this machine's, or the one that was checked, or a H100); UserError if unknown.

    Args:
        check: as for `measured`; refused if it is of another GPU.
        rates: Device's memory, bandwidth and tflops, where they are given.
    """
    import torch

    described: dict[str, Any] = {key: value for key, value in rates.items() if value}
    if described and not gpu and len(described) < 3:
        key, missing = next(iter(described)), [f"--{key}" for key in ("tflops", "bandwidth", "memory")]
        missing = [flag for flag in missing if flag[2:] not in described]
        raise UserError(
            f"{key}: it does not describe a GPU by itself; add {' and '.join(missing)}, or the --gpu that it corrects"
        )
    if len(described) == 3 and not check:
        return Device(gpu or "a GPU", **described)
    found = measured(check)
    here = torch.cuda.get_device_name() if torch.cuda.device_count() else found.name if found else "H100"
    name = known_as(gpu or here)
    if found and found.name == name:
        return found._replace(**described)
    if check:
        where = found.name if found else "a CPU"
        raise UserError(
            f"check: {str(check)!r} was measured on {where}, and this plan is for {name}; drop one of them"
        )
    return find_gpu(name)._replace(**described)
