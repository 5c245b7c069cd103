"""What benchmarks/gpu_check.py has measured of a device, as a plan takes it: limits, and how near runs come."""

import dataclasses
import math
from pathlib import Path
from typing import Any

from grpo.config import planning, rates
from grpo.config.planning import Pace, Work
from grpo.core import parsing
from grpo.core.errors import UserError


def read(path: str) -> dict[str, Any]:
    """A gpu_check.json; UserError where it is none."""
    try:
        found = parsing.from_json(Path(path).read_text(encoding="utf-8"))
        float(found["limits"]["copy_bytes_per_second"]), dict(found["limits"]["matrix_flops_per_second"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"measured: {path!r} is no gpu_check.json ({error}); benchmarks/gpu_check.py writes one"
        ) from None
    return found


def gpu(found: dict[str, Any], sixteen: bool) -> rates.Gpu:
    """The device itself; `sixteen`: its matrix rate for 16-bit numbers, else for float32."""
    try:
        device, limits = found["device"], found["limits"]
        return rates.Gpu(
            str(device["name"]),
            float(device["memory"]),
            float(limits["copy_bytes_per_second"]),
            float(limits["matrix_flops_per_second"]["bfloat16" if sixteen else "float32"]),
            *["measured"] * 3,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"measured: it lacks {error}; benchmarks/gpu_check.py writes it") from None


def _share(entry: dict[str, Any]) -> float | None:
    share = None if entry.get("error") else entry.get("share_of_limit")
    return float(share) if share else None


def paces(work: Work, found: dict[str, Any] | None) -> tuple[tuple[Pace, Pace], dict[str, str]]:
    """Best and worst pace, and where each of their parts comes from."""
    best, worst = planning.assumed(work.engine)
    source = dict.fromkeys(("training", "reading", "launch", "launch_eager"), "assumed")
    if found is None:
        return (best, worst), source
    settings, backend = work.settings, str(work.settings.attn_implementation)
    alike = [
        entry for entry in found.get("training", [])
        if _share(entry) and str(entry.get("dtype")) == str(settings.dtype)
        and bool(entry.get("autocast")) == bool(settings.bf16 or settings.fp16)
        and bool(entry.get("checkpointing")) == bool(settings.gradient_checkpointing)
        and (str(entry.get("trainer")) == "stock") != bool(work.pack_tokens)
    ]  # fmt: skip
    same = [entry for entry in alike if str(entry.get("attention")) == backend]
    if alike:
        shares = [_share(entry) for entry in same or alike]
        best = dataclasses.replace(best, training=max(shares), counted=True)
        worst = dataclasses.replace(worst, training=min(shares), counted=True)
        source["training"] = "measured: " + ", ".join(str(entry.get("name")) for entry in same or alike)
        source["training"] += "" if same else f" (not with {backend})"
    layers = float(found.get("model", {}).get("layers") or work.shape.layers)
    asked = (  # evaluations decode as lean does
        ("launch", work.engine, work.geometry.rollout / work.geometry.world_size),
        ("launch_eager", "lean", settings.per_device_eval_batch_size),
    )
    for key, engine, wanted in asked:
        rows = {
            float(entry["rows"]): float(entry["seconds"]) / float(entry["steps"]) / layers
            for entry in found.get("generation", [])
            if _share(entry) and entry.get("engine") == engine and entry.get("steps")
        }
        if rows:  # as many layers take as many launches
            nearest = min(rows, key=lambda count: abs(math.log(count / wanted)))
            best, worst = (dataclasses.replace(pace, reading=1.0, **{key: rows[nearest]}) for pace in (best, worst))
            source[key] = f"measured with {engine} on {nearest:.0f} rows"
            source["reading"] = "at most, the measured step is longer or as long"
    return (best, worst), source
