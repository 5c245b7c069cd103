"""What gpu_check.py has measured → settings for this machine, as the text of a recipe."""

from collections.abc import Sequence
from typing import Any

from benchmarks.gpu_rows import Row

ROOM = 0.8  # of the memory may be used at the peak: longer completions, fragments and the CUDA context take the rest
VLLM_SHARE = 0.3  # of the memory, where vLLM samples on the same device
SIMILAR = 0.97  # a smaller pack that is so fast, relative to the fastest, leaves more memory for nothing


def recipe(found: dict[str, Any]) -> str:
    """YAML for `train_grpo.py --config`, with the reason beside each value.

    Args:
        found: what gpu_check.json holds, but for its `recipe`.
    """
    machine, toy = found["device"], found["toy"]
    lines = [f"# Suggested by benchmarks/gpu_check.py on {found['date']} for {machine['name']}."]
    lines.append(f"# Measured with {found['model']['name']}; give --model_name_or_path for another of about its size.")
    if toy:
        lines.append("# From a toy run on a CPU: it says nothing about a GPU, and little about this machine.")
    settings: list[tuple[str, Any, str]] = []
    if toy:
        settings.append(("use_cpu", "true", "there is no GPU"))
    for engine in [*_fastest_engines(found["generation"]), None]:
        share = ROOM - VLLM_SHARE if engine and engine["engine"] == "vllm" else ROOM
        room = share * machine["memory"]
        chosen, reasons = _fastest_step(found, room)
        if engine is None or _goes_with(engine, chosen):
            break
    if chosen:
        settings += _training(found, chosen, room)
    else:
        lines.append(f"# No training step that was measured {reasons}: these settings say nothing of it.")
    if engine:
        settings += _generation(found["generation"], engine)
    width = max((len(f"{key}: {value}") for key, value, _ in settings), default=0)
    return "\n".join([*lines, *(f"{f'{key}: {value}':<{width}}  # {why}" for key, value, why in settings)]) + "\n"


def _sound(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["error"] is None]


def _fastest_engines(rows: Sequence[Row]) -> list[Row]:
    """At the smallest number of rows, which is what a default run samples at once, the fastest first.

    By the seconds of the rollout, which training waits for: they hang on its longest completion, nearly always one
    that is cut, and so less than tokens per second on the lengths that were drawn.
    """
    sound = _sound(rows)
    least = min((row["rows"] for row in sound), default=0)
    return sorted((row for row in sound if row["rows"] == least), key=lambda row: row["seconds"])


def _fastest_step(found: dict[str, Any], room: float) -> tuple[Row | None, str]:
    """The fastest training row that fits, of those whose gradient was not found to be off; or why there is none."""
    rows = [row for row in _sound(found["training"]) if not (found["toy"] and row["autocast"])]
    off = _off(found)
    rows = [row for row in rows if row["trainer"] == "stock" or row["attention"] not in off]
    if not rows:
        return None, "succeeded"
    fitting = [row for row in rows if row["peak_bytes"] <= room]
    if not fitting:
        return None, f"fitted into {room / 2**30:.1f} GiB"
    return max(fitting, key=lambda row: row["tokens_per_second"]), ""


def _off(found: dict[str, Any]) -> set[str]:
    """Attention with which lean's gradient was further from float32's than it may be."""
    return {row["attention"] for row in found["agreement"]["rows"] if row["passes"] is False}


def _goes_with(engine: Row, chosen: Row | None) -> bool:
    """Compiled decoding needs sdpa; continuous batching would turn float32 weights into bfloat16 (grpo/engines.py)."""
    if chosen is None:
        return True
    if engine["engine"] == "compiled":
        return chosen["attention"] == "sdpa"
    return not (engine["engine"] == "continuous" and chosen["autocast"] and chosen["dtype"] == "float32")


def _training(found: dict[str, Any], chosen: Row, room: float) -> list[tuple[str, Any, str]]:
    rate, lean = chosen["tokens_per_second"], chosen["trainer"] == "lean"

    def rates(key: str) -> str:
        """The speed, beside that of the rows that differ in this alone."""
        others = {}
        fixed = [one for one in ("trainer", "dtype", "attention", "checkpointing") if one != key]
        for row in _sound(found["training"]):
            if all(row[one] == chosen[one] for one in fixed) and row[key] != chosen[key]:
                others[_yaml(row[key])] = row["tokens_per_second"]
        shown = "".join(f"; {value} {speed:,.0f}" for value, speed in others.items())
        return f"{rate:,.0f} tokens/s{shown}"

    settings: list[tuple[str, Any, str]] = [
        ("dtype", chosen["dtype"], rates("dtype")),
        ("attn_implementation", chosen["attention"], rates("attention")),
    ]
    gigabytes = f"{chosen['peak_bytes'] / 2**30:.1f} of {found['device']['memory'] / 2**30:.1f} GiB at the peak"
    settings.append(
        ("gradient_checkpointing", _yaml(chosen["checkpointing"]), f"{gigabytes}, {rates('checkpointing')}")
    )
    if not lean:
        off = "its gradient was further from float32's than stock's"
        why = off if _off(found) else "no lean row was faster and fitted"
        return [
            *settings,
            ("packed", "false", why),
            ("per_device_train_batch_size", 8, "as measured"),
            ("gradient_accumulation_steps", 8, "64 completions an optimizer step"),
        ]
    size, why = pack(found["largest_pack"], chosen, room)
    return [
        *settings,
        ("pack_tokens", size, why),
        ("per_device_train_batch_size", 64, "packs bound the memory, so the whole step is one micro-batch,"),
        ("gradient_accumulation_steps", 1, "in which all completions of a prompt can share it"),
    ]


def pack(search: dict[str, Any], chosen: Row, room: float) -> tuple[int, str]:
    """The smallest pack that is about as fast as the fastest one that fits, and the reason."""
    same = all(search.get(key) == chosen[key] for key in ("attention", "dtype", "checkpointing"))
    tried = [row for row in _sound(search.get("tried", [])) if row["peak_bytes"] <= room] if same else []
    if not tried:
        return chosen["pack_tokens"], "as measured"
    fastest = max(row["tokens_per_second"] for row in tried)
    best = next(row for row in tried if row["tokens_per_second"] >= SIMILAR * fastest)
    largest = f"the largest that ran is {search['pack_tokens']:,}"
    return best["pack_tokens"], f"{best['peak_bytes'] / 2**30:.1f} GiB at the peak; {largest}"


def _generation(rows: Sequence[Row], engine: Row) -> list[tuple[str, Any, str]]:
    others = [row for row in _sound(rows) if row["rows"] == engine["rows"] and row is not engine]
    shown = [f"{row['engine']} {row['seconds']:.2f}" for row in others]
    larger = [row for row in _sound(rows) if row["engine"] == engine["engine"] and row["rows"] > engine["rows"]]
    more = max((row["tokens_per_second"] for row in larger), default=0)
    why = f"{engine['seconds']:.2f} s for a rollout of {engine['rows']} rows"
    why += f" ({engine['tokens_per_second']:,.0f} tokens/s)"
    why += f"; {', '.join(shown)}" if shown else ""
    why += f"; up to {more:,.0f} tokens/s with more rows" if more else ""
    settings = [("generation", engine["engine"], why)]
    if engine["engine"] == "vllm":
        settings.append(("vllm_mode", "colocate", "on the same GPU"))
        settings.append(("vllm_gpu_memory_utilization", VLLM_SHARE, "the rest is for training"))
    return settings


def _yaml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
