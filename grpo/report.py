"""The run directory → `report.html`, `curves.png` and the model card: what was learned, and at what cost.

    python -m grpo.report RUN_DIR

Reads files only, so a run can be reported while it trains, after it was killed, or elsewhere; what is missing is left
out. Whatever a model or a user wrote is escaped where the templates are filled.
"""

import json
import math
import re
import sys
from pathlib import Path
from typing import Any

from rewards import short_name

from . import UserError

SHARES = ("accuracy_lenient", "accuracy_strict", "format_strict")
NUMBERS = ("n", *(f"{share}{end}" for share in SHARES for end in ("", "_low", "_high")))  # of an eval_*.json

# --- Reading ------------------------------------------------------------------------------------------------------


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """The logs of optimizer steps in order, the later one where a resumed run logged a step again."""
    lines = [line for line in _read_lines(run / "metrics.jsonl", "step") if "reward" in line]
    steps = {line["step"]: line for line in lines if isinstance(line["step"], int)}
    return [steps[step] for step in sorted(steps)]


def _read_lines(path: Path, *keys: str) -> list[dict[str, Any]]:
    """The file's objects, one a line, each with these keys; none where there is no file."""
    # not splitlines(): a completion may hold U+2028
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n") if path.is_file() else []
    objects = []
    for number, line in enumerate(lines, 1):
        try:
            item = json.loads(line or "null")
        except ValueError:
            if number == len(lines):  # no newline after it: the run was killed while it wrote this
                break
            item = line
        if isinstance(item, dict) and all(key in item for key in keys):
            objects.append(item)
        elif item is not None:
            raise UserError(f"{path}, line {number}: no JSON object with {', '.join(keys)}; remove the line")
    return objects


def _read_object(path: Path, *numbers: str) -> dict[str, Any]:
    """The file's JSON object, with a number under each of these keys; empty where there is no file."""
    try:
        item = json.loads(path.read_text(encoding="utf-8", errors="replace")) if path.is_file() else {}
    except ValueError:
        item = None
    if not isinstance(item, dict) or (item and not all(isinstance(item.get(key), int | float) for key in numbers)):
        raise UserError(f"{path}: not a JSON object, or not a whole one; remove it to report the run without it")
    return item


def _facts(run: Path) -> dict[str, Any]:
    """What the templates show, from those files that are there."""
    record, metrics = _read_object(run / "run.json"), read_metrics(run)
    evaluations = {when: _read_object(run / f"eval_{when}.json", *NUMBERS) for when in ("before", "after", "only")}
    evaluations = {when: summary for when, summary in evaluations.items() if summary}
    if not (record or metrics or evaluations):
        raise UserError(f"{str(run)!r} holds no run (no run.json, metrics.jsonl or eval_*.json)")
    settings = found if isinstance(found := record.get("settings"), dict) else {}
    return {
        "name": settings.get("run_name") or run.resolve().name,
        "record": record,
        "settings": settings,
        "status": record.get("status") or "running",
        "charts": _charts(metrics),
        "evaluations": evaluations,
        "comparison": _read_object(run / "comparison.json"),
        "alarms": _read_lines(run / "alarms.jsonl", "step", "name", "message", "remedy"),
    }


def _examples(run: Path) -> dict[str, list[tuple[dict[str, Any], dict[str, Any]]]]:
    """The questions that were fixed and broken (by lenient correctness), as records before and after."""
    keys = ("question", "answer", "completion", "extracted", "strict", "lenient")
    before, after = (_read_lines(run / f"completions_{when}.jsonl", *keys) for when in ("before", "after"))
    # an evaluation that was killed while it wrote has fewer
    pairs = [pair for pair in zip(before, after, strict=False) if pair[0]["question"] == pair[1]["question"]]
    return {
        "fixed": [pair for pair in pairs if pair[1]["lenient"] and not pair[0]["lenient"]],
        "broken": [pair for pair in pairs if pair[0]["lenient"] and not pair[1]["lenient"]],
    }


# --- Drawing ------------------------------------------------------------------------------------------------------


def _charts(metrics: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """A chart of every number that was logged, by its key; the reward and the mean length have a band."""
    points: dict[str, list[tuple[int, float, float, float]]] = {}  # step, value, low, high
    before: dict[str, float] = {"step": 0, "num_tokens": 0}
    for line in metrics:
        numbers = {key: item for key, item in line.items() if isinstance(item, int | float) and math.isfinite(item)}
        if "num_tokens" in numbers and numbers.get("step_time") and line["step"] > before["step"]:
            # TRL logs the tokens since the start, and the mean time of an optimizer step since the last log
            numbers["seconds"] = (line["step"] - before["step"]) * numbers["step_time"]
            numbers["tokens_per_second"] = (numbers["num_tokens"] - before["num_tokens"]) / numbers["seconds"]
            before = numbers
        for key, value in numbers.items():
            spread = numbers.get("reward_std", 0) if key == "reward" else 0
            low, high = value - spread, value + spread
            if key == "completions/mean_length":
                low, high = (numbers.get(f"completions/{end}_length", value) for end in ("min", "max"))
            points.setdefault(key, []).append((line["step"], value, low, high))
    shares = ("completions/clipped_ratio", "frac_reward_zero_std")
    return {key: _chart(points[key], top=1 if key in shares else 0) for key in points}


def _chart(points: list[tuple[int, float, float, float]], top: float) -> dict[str, Any]:
    """What the page draws of one curve; its axis reaches from 0, or below, to `top`, or above."""
    from matplotlib.ticker import MaxNLocator

    steps, values, lows, highs = zip(*points, strict=True)
    left, right, bottom, top = steps[0], max(steps[-1], steps[0] + 1), min(0, *lows), max(top, *highs)
    top = top if top > bottom else 1
    half = min(len(values) // 40, 50)  # a long run's curve is noisy: a running mean is drawn over it
    parts = [values[max(0, index - half) : index + half + 1] for index in range(len(values))]
    x_ticks, y_ticks = MaxNLocator(4, integer=True), MaxNLocator(4, steps=[1, 2, 2.5, 5, 10])
    outline = [*zip(steps, highs, strict=True), *reversed([*zip(steps, lows, strict=True)])]
    return {
        "curve": list(zip(steps, values, strict=True)),
        "smooth": [(step, sum(part) / len(part)) for step, part in zip(steps, parts, strict=True)] if half else [],
        "window": 2 * half + 1,
        "band": outline if lows != highs else [],
        "box": (left, right, bottom, top),
        "x_ticks": [tick for tick in x_ticks.tick_values(left, right).tolist() if left <= tick <= right],
        "y_ticks": [tick for tick in y_ticks.tick_values(bottom, top).tolist() if bottom <= tick <= top],
    }


def draw_curves(run: Path) -> Path:
    """Write `curves.png`, the rewards while training beside the answers before and after, and return its path."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    pyplot.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "font.size": 10})
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4), width_ratios=(3, 2), layout="constrained")
    charts = _charts(read_metrics(run))
    if "reward" in charts:
        left.plot(*zip(*charts["reward"]["curve"], strict=True), color="black", linewidth=2, label="all rewards")
    for index, key in enumerate(key for key in charts if re.fullmatch("rewards/.*/mean", key)):
        name = short_name(key[8:-5]).replace("$", r"\$")
        # dashed, each in its turn: rewards that lie on each other stay visible
        left.plot(*zip(*charts[key]["curve"], strict=True), dashes=(4, 2 * index), label=name)
    left.set(xlabel="optimizer step", ylabel="mean reward of a completion", title="While it trains")
    left.set_ylim(bottom=min(0, left.get_ylim()[0]))
    left.grid(axis="y", alpha=0.3)
    for when, offset, color in (("before", -0.2, "#b8c4ce"), ("after", 0.2, "#4d94bd")):
        if summary := _read_object(run / f"eval_{when}.json", *NUMBERS):
            share = [100 * summary[key] for key in SHARES]
            errors = [[abs(100 * (summary[key + end] - summary[key])) for key in SHARES] for end in ("_low", "_high")]
            places = [index + offset for index in range(len(SHARES))]
            bars = right.bar(places, share, 0.38, yerr=errors, color=color, label=when, error_kw={"alpha": 0.5})
            right.bar_label(bars, fmt="%.1f", label_type="center")
            right.set_title(f"{summary['n']} held-out questions, greedy")
    right.set_xticks(range(len(SHARES)), [key.replace("_", "\n") for key in SHARES])
    right.set(ylabel="per cent, with 95 % intervals", ylim=(0, 105))
    if not right.patches:  # no evaluation
        right.remove()
    for axes in [axes for axes in figure.axes if axes.get_legend_handles_labels()[0]]:
        axes.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3)
    figure.savefig(run / "curves.png", dpi=130)
    pyplot.close(figure)
    return run / "curves.png"


def _number(value: float) -> str:
    """A number as people read it, to about three digits: 842,354 · 34.1 · 0.0184 · 2.1e-8."""
    small = 0 < abs(value) < 1e-3
    text = f"{value:.1e}" if small else f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return text.replace(".0e", "e").replace("e-0", "e-").replace("-", "−", value < 0)


def _duration(seconds: float) -> str:
    minutes = round(seconds) // 60
    return f"{minutes // 60} h {minutes % 60} min" if minutes > 59 else f"{minutes} min {round(seconds) % 60} s"


def _markdown(value: Any) -> str:
    """Text that stays text: one line, a character code for all that Markdown or HTML could take for markup."""
    if hasattr(value, "__html__"):  # the template says that it is safe
        return str(value)
    markup = r"[^\w .,/%+=→…±−–():-]|:(?=//)|(?<=www)\.|(?<![^\W_])_|_(?![^\W_])"
    return re.sub(markup, lambda match: f"&#{ord(match[0])};", re.sub(r"\s+", " ", str(value)))


def _fill(template: str, path: Path, facts: dict[str, Any]) -> Path:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=path.suffix == ".html",
        finalize=_markdown if path.suffix == ".md" else None,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"number": _number, "duration": _duration, "short_name": short_name}
    environment.filters["python"] = lambda text: Markup(repr(text).replace("`", r"\x60"))  # inside a code fence
    text = environment.get_template(template).render(facts)
    path.write_text(text + "\n", encoding="utf-8", errors="replace")  # a lone surrogate cannot be encoded
    return path


def write(run: Path) -> Path:
    """Write `report.html`, and `curves.png` where the run has trained, and return the report's path."""
    facts = _facts(run) | {"examples": _examples(run)}
    if facts["charts"]:
        draw_curves(run)
    return _fill("report.html.j2", run / "report.html", facts)


def write_model_card(run: Path, **names: Any) -> Path:
    """Write the model card, `README.md` beside the model; TRL's names for model and data are in `run.json` already."""
    facts = _facts(run) | {"adapter": (run / "adapter_config.json").is_file()}
    for key in ("model_name_or_path", "dataset_name"):
        name = str(facts["settings"].get(key))
        hub_id = re.fullmatch(r"[a-zA-Z0-9][\w.-]*(/[\w.-]+)?(?<!\.jsonl|..\.csv|arquet)", name, re.ASCII)
        facts[key] = name if hub_id and not Path(name).exists() else None
    return _fill("model_card.md.j2", run / "README.md", facts)


def main(argv: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    try:
        if len(arguments) != 1:
            raise UserError("usage: python -m grpo.report RUN_DIR (the directory of one run)")
        report = write(Path(arguments[0]))
    except (UserError, OSError) as error:  # OSError: a directory that cannot be written
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(*[path for path in (report, report.with_name("curves.png")) if path.exists()], sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
