"""What a measured case comes to, tokens per second and the share of what the machine allows; and how it is shown."""

from typing import Any

from benchmarks.worker import Case

# bfloat16 keeps 8 bits of a number, so two exact ways of computing a gradient differ by percents from each other and
# from float32: no absolute tolerance holds for every model. What can be asked is that lean rounds no worse than stock
# does: both distances come from as many roundings of the same size, and 1.5 leaves room for other shapes and kernels.
TOLERANCE = 1.5
WHY = "bfloat16 rounds both: lean's distance from the float32 gradient may be this many times stock's own"
Row = dict[str, Any]


def training_limit(parameters: int, flops_per_second: float, checkpointing: bool) -> float:
    """Tokens per second if nothing but the weights' products took time, and those ran at full rate.

    >>> training_limit(10**9, 6e12, False)
    1000.0
    """
    return flops_per_second / ((8 if checkpointing else 6) * parameters)


def decode_limit(weight_bytes: float, cache_bytes: float, rows: int, bytes_per_second: float) -> float:
    """Tokens per second if each step only read all weights and the cache of every row.

    Args:
        cache_bytes: of one row.
    """
    return rows * bytes_per_second / (weight_bytes + rows * cache_bytes)


def training_row(case: Case, answer: Row, found: dict[str, Any]) -> Row:
    run = case["run"]
    row = {"name": case["name"], "trainer": run["side"], "pack_tokens": run.get("pack_tokens")}
    row |= {key: run[key] for key in ("dtype", "autocast", "attention", "checkpointing")}
    sixteen = run["autocast"] or run["dtype"] == "bfloat16"
    rate = found["limits"]["matrix_flops_per_second"]["bfloat16" if sixteen else "float32"]
    limit = training_limit(found["model"]["parameters"], rate, run["checkpointing"])
    empty = dict.fromkeys(("tokens_per_second", "seconds", "optimizer_seconds", "peak_bytes", "share_of_limit"))
    row |= empty | {"limit_tokens_per_second": limit, "error": answer.get("error")}
    if row["error"]:
        return row
    one = answer["found"]
    seconds, tokens = one["seconds"][1:], one["tokens"][1:]  # the first step warms up
    speed = sum(tokens) / sum(seconds)
    return row | {
        "pack_tokens": one["pack_tokens"],
        "backend": one["backend"],
        "tokens_per_second": speed,
        "seconds": sum(seconds) / len(seconds),
        "optimizer_seconds": sum(one["optimizer_seconds"][1:]) / len(seconds),
        "peak_bytes": one["memory"],
        "share_of_limit": speed / limit,
    }


def generation_row(case: Case, answer: Row, found: dict[str, Any]) -> Row:
    keys = ("tokens_per_second", "seconds", "steps", "peak_bytes", "mean_length")
    keys += ("limit_tokens_per_second", "share_of_limit")
    row = {"name": case["name"], "engine": case["engine"], "rows": case["rows"], **dict.fromkeys(keys)}
    row["error"] = answer.get("error")
    if row["error"]:
        return row
    one, model, number = answer["found"], found["model"], 4 if found["toy"] else 2
    mean, speed = one["tokens"] / one["rows"], one["tokens"] / one["seconds"]
    cache = (case["prompt"] + mean / 2) * 2 * model["layers"] * model["key_value"] * number
    copy = found["limits"]["copy_bytes_per_second"]
    limit = decode_limit(model["parameters"] * number, cache, case["rows"], copy)
    return row | {
        "tokens_per_second": speed,
        "seconds": one["seconds"],
        "steps": one["steps"],  # of the longest completion
        "peak_bytes": one["memory"],
        "mean_length": mean,
        "limit_tokens_per_second": limit,
        "share_of_limit": speed / limit,
    }


def agreement_row(case: Case, answer: Row) -> Row:
    row = {"attention": case["name"], **dict.fromkeys(("stock", "lean", "between", "passes"))}
    row["error"] = answer.get("error")
    if row["error"]:
        return row
    one = answer["found"]
    return row | one | {"passes": one["lean"] <= TOLERANCE * one["stock"]}


# --- What is shown


def machine_lines(found: dict[str, Any]) -> list[str]:
    """The machine and its limits."""
    device, given, limits = found["device"], found["versions"], found["limits"]
    rates = limits["matrix_flops_per_second"]
    about = [f"{device['memory'] / 2**30:.1f} GiB", f"bfloat16 {'yes' if device['bf16'] else 'no'}"]
    if device["type"] == "cuda":
        about += [f"capability {device['capability']}", f"driver {device['driver'] or 'unknown'}"]
        about += [f"CUDA {device['cuda']}", f"TF32 {'yes' if device['tf32'] else 'no'}"]
    model = found["model"]
    return [
        f"{device['name']}: {', '.join(about)}",
        "versions: " + ", ".join(f"{name} {version}" for name, version in given.items() if version),
        "not installed: " + (", ".join(name for name, version in given.items() if not version) or "nothing"),
        "attention that works: " + (", ".join(device["attention"]) or "none"),
        *(f"  not {name}: {reason}" for name, reason in device["missing"].items()),
        f"model: {model['name']}, {model['parameters']:,} weights",
        f"limits: copy {limits['copy_bytes_per_second'] / 1e9:,.1f} GB/s (read plus written); matrix product "
        + ", ".join(f"{name} {rate / 1e12:,.2f} TFLOP/s" for name, rate in rates.items()),
    ]


def table(found: dict[str, Any]) -> Any:
    from rich.markup import escape
    from rich.table import Table

    shown = Table(title="Toy size, on a CPU" if found["toy"] else None)
    for heading in ("run", "tokens/s", "seconds", "peak, GiB", "limit", "share"):
        shown.add_column(heading, justify="left" if heading == "run" else "right")
    search = found["largest_pack"]
    for title, rows in (
        ("training", found["training"]),
        (f"packs, {search.get('attention')}", search.get("tried", [])),
        ("generation", found["generation"]),
    ):
        if rows:
            shown.add_section()
            shown.add_row(f"[bold]{title}[/bold]")
        for row in rows:
            name = row.get("name") or f"{row['pack_tokens']:,} tokens"
            if row["error"]:
                shown.add_row(f"{name}\n  failed: {escape(row['error'])}")
                continue
            cells = [f"{row['tokens_per_second']:,.0f}", f"{row['seconds']:.2f}", f"{row['peak_bytes'] / 2**30:.2f}"]
            if row.get("share_of_limit"):
                cells += [f"{row['limit_tokens_per_second']:,.0f}", f"{row['share_of_limit']:.1%}"]
            shown.add_row(name, *cells)
    return shown


def last_lines(found: dict[str, Any]) -> list[str]:
    """Agreement, packs, and what was not run."""
    lines = []
    for row in found["agreement"]["rows"]:
        if row["error"]:
            lines.append(f"gradient, {row['attention']}: failed: {row['error']}")
            continue
        verdict = "passes" if row["passes"] else "FAILS"
        lines.append(
            f"gradient, {row['attention']}: {verdict}: distance from float32 {row['lean']:.2e} (lean), "
            f"{row['stock']:.2e} (stock), of both {row['between']:.2e}"
        )
    lines += [f"  ({WHY}: {TOLERANCE:g})"] if lines else []
    if found["largest_pack"]:
        largest = found["largest_pack"]
        lines.append(f"largest pack: {largest['pack_tokens'] or 'none'}; ended by {largest['ended_by']}")
    lines += [f"not run: {one['kind']}, {one['name']}: {one['reason']}" for one in found["not_run"]]
    return lines
