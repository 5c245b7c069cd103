"""A run directory → `report.html` and `curves.png`.

    python -m grpo report RUN_DIR

Reads files only, so a run can be reported while it trains, after it was killed, or on another machine. A missing file
is skipped.
"""

import functools
import json
import platform
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from grpo.core.errors import ArgumentParser, UserError, reason_of
from grpo.core.text import short_name
from grpo.runs import charts, directory
from grpo.runs.record import recorded_resume_command

REFRESH = 30  # seconds between two versions of the page of a run that trains, at least
# Keys of eval_*.json, and how people call them
SHARES = {
    "accuracy_lenient": "Accuracy, lenient",
    "accuracy_strict": "Accuracy, strict",
    "maj_k": "maj@k, sampled",
    "pass_k": "pass@k, sampled",
    "format_strict": "Format, strict",
    "format_soft": "Format, soft",
    "truncated": "Truncated",
}
HEADINGS = {"before": "Before", "after": "After", "only": "Result"}

# --- Reading ------------------------------------------------------------------------------------------------------


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The file's objects, one a line; none where there is no file."""
    # not splitlines(): a completion may hold U+2028. After the last newline is what a killed run has half written
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1] if path.is_file() else []
    return [_object(line, f"{path}, line {number}") for number, line in enumerate(lines, 1)]


def _read_object(path: Path) -> dict[str, Any]:
    """The file's JSON object; empty where there is no file."""
    return _object(path.read_text(encoding="utf-8", errors="replace"), str(path)) if path.is_file() else {}


def _object(text: str, where: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise UserError(f"{where} is not a JSON object; remove it to read the run without it")
    return found


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """The logs of each optimizer step, in order."""
    return by_step(read_lines(run / "metrics.jsonl"))


def by_step(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Log lines joined by their step, in order: later values count, and a session's summary does not."""
    steps: dict[int, dict[str, Any]] = {}
    for line in lines:
        if "train_runtime" not in line:
            steps[line["step"]] = steps.get(line["step"], {}) | line
    return [steps[step] for step in sorted(steps)]


def read_facts(run: Path) -> dict[str, Any]:
    """The contents of the run's files; UserError where one is broken, or all are missing."""
    record, lines = _read_object(run / "run.json"), read_lines(run / "metrics.jsonl")
    curves = charts.read_curves(by_step(lines))
    trained = [line["step"] for line in lines if "loss" in line or "train_runtime" in line]
    steps = record["step"] if record.get("step") is not None else max(trained, default=0)
    status = _status(run, record)
    evaluations = {when: _read_object(run / f"eval_{when}.json") for when in HEADINGS}
    comparison = _read_object(run / "comparison.json")
    # those of an earlier end are not this one's; an older version's have no step
    now = None if record and status not in ("finished", "evaluated") else steps
    if evaluations["after"].get("step", now) != steps:
        evaluations["after"] = {}
    if not evaluations["after"] or comparison.get("step", now) != steps:
        comparison = {}
    evaluations = {when: summary for when, summary in evaluations.items() if summary}
    if not (record or curves or evaluations):
        raise UserError(f"{str(run)!r} holds no run (no run.json, metrics.jsonl or eval_*.json)")
    settings = record.get("settings") or {}
    return {
        "name": settings.get("run_name") or run.resolve().name,
        "record": record,
        "settings": settings,
        "data_name": settings.get("dataset_name") or "",
        "status": status,
        "resume": recorded_resume_command(run) if any(run.glob("checkpoint-*")) else None,
        "steps": steps,
        "turns": turns_of(record),
        "earlier": sorted((path.name for path in run.glob("_ended-at-step-*")), key=lambda name: (len(name), name)),
        "curves": curves,
        "limits": _limits(record, settings, curves),
        "stages": record.get("stages") or [],
        "evaluations": evaluations,
        "results": results_of(evaluations, comparison),
        "comparison": comparison,
        "alarms": read_lines(run / "alarms.jsonl"),
    }


def turns_of(record: dict[str, Any]) -> list[str]:
    """Where a resumed run went on with something else, in words: its settings are those of its last session."""
    sessions = record.get("sessions") or []
    return [
        f"from step {each['from_step']} on: {', '.join(each['changed'])}" for each in sessions if "changed" in each
    ]


def _status(run: Path, record: dict[str, Any]) -> str:
    """The run's end, or running; killed only where its own machine knows that nothing writes it any more."""
    status = record.get("status") or "running"
    here = (record.get("process") or {}).get("host") == platform.node()
    return "killed" if status == "running" and here and not directory.is_locked(run) else status


def _limits(record: dict[str, Any], settings: dict[str, Any], curves: dict[str, charts.Curve]) -> dict[str, float]:
    """Limits by the key of their curve: a perfect answer's reward, and the norm that gradients are clipped to."""
    perfect, names = record.get("perfect") or {}, settings.get("reward_funcs") or []
    limits = {f"rewards/{name}/mean": value for name, value in perfect.items()}
    if len(perfect) == len(names) > 0 and not record.get("stages"):
        weights = settings.get("reward_weights") or [1.0] * len(names)
        limits["reward"] = sum(weight * value for weight, value in zip(weights, perfect.values(), strict=True))
    norm = settings.get("max_grad_norm") or 0
    if "grad_norm" in curves and 0 < norm < 4 * max(curves["grad_norm"].values):  # farther away it would flatten these
        limits["grad_norm"] = norm
    return limits


def results_of(evaluations: dict[str, dict[str, Any]], comparison: dict[str, Any]) -> dict[str, Any]:
    """Rows by key of eval_*.json: name, a number with its interval for each evaluation, and the paired change.

    Shares are in per cent.
    """
    found = dict.fromkeys(key for summary in evaluations.values() for key in summary)
    earned = {key: short_name(key[7:]) for key in found if key.startswith("reward_")}
    earned |= {"reward": "Reward, weighted sum"} if "reward" in found else {}
    rewards = comparison.get("rewards") or {}
    k = next((summary["k"] for summary in evaluations.values() if "k" in summary), "k")
    shares = {key: name.replace("@k", f"@{k}") for key, name in SHARES.items()}
    results = {}
    for key, name in (shares | {"mean_length": "Mean length, tokens"} | earned).items():
        unit, places = (100, ".1f") if key in SHARES else (1, ".1f" if key == "mean_length" else ".2f")
        known = [summary[key] for summary in evaluations.values() if summary.get(key) is not None]
        cells = [_cell(summary, key, unit, places) for summary in evaluations.values()]
        if len(evaluations) == 2:
            unpaired = {"difference": known[1] - known[0]} if len(known) == 2 else {}
            paired = (
                rewards.get(key[7:]) if key.startswith("reward_") else comparison.get(key.removeprefix("accuracy_"))
            )
            cells.append(_cell(paired or unpaired, "difference", unit, f"+z{places}"))
        if known:
            results[key] = (name, cells)
    return results


def _cell(summary: dict[str, Any], key: str, unit: int, places: str) -> tuple[str, str]:
    """A number and its interval as texts; a dash for no number, an empty text for no interval."""
    numbers = [summary.get(key + end) for end in ("", "_low", "_high")]
    value, *ends = ["–" if each is None else format(unit * each, places).replace("-", "−") for each in numbers]
    known = "–" not in ends and numbers[1] != numbers[2]  # without any variation there is none
    return value, " to ".join(ends) if known else ""


def _examples(
    run: Path, evaluations: dict[str, dict[str, Any]]
) -> dict[str, list[tuple[dict[str, Any], dict[str, Any]]]]:
    """The questions that were fixed, broken and never right (leniently), as records before and after.

    Without gold answers: those whose answers earn more, less and the same, the largest differences first.
    """
    if not {"before", "after"} <= evaluations.keys():
        return {}
    before, after = (read_lines(run / f"completions_{when}.jsonl") for when in ("before", "after"))
    # one that was killed while it was written has fewer
    pairs = [pair for pair in zip(before, after, strict=False) if pair[0]["question"] == pair[1]["question"]]
    if all("lenient" in record for pair in pairs for record in pair):
        return {
            "fixed": [pair for pair in pairs if pair[1]["lenient"] and not pair[0]["lenient"]],
            "broken": [pair for pair in pairs if pair[0]["lenient"] and not pair[1]["lenient"]],
            "never right": [pair for pair in pairs if not (pair[0]["lenient"] or pair[1]["lenient"])],
        }
    paid = [pair for pair in pairs if None not in (pair[0].get("reward"), pair[1].get("reward"))]
    ranked = sorted(paid, key=lambda pair: pair[0]["reward"] - pair[1]["reward"])
    return {
        "earns more": [pair for pair in ranked if pair[0]["reward"] < pair[1]["reward"]],
        "earns less": [pair for pair in reversed(ranked) if pair[0]["reward"] > pair[1]["reward"]],
        "earns the same": [pair for pair in ranked if pair[0]["reward"] == pair[1]["reward"]],
    }


# --- The page and curves.png --------------------------------------------------------------------------------------


def write(run: Path) -> Path:
    """Write `report.html`, and `curves.png` where the run has trained, and return the report's path."""
    facts = read_facts(run)
    if facts["curves"]:
        curves = _between(facts["evaluations"], facts["curves"]) | facts["curves"]
        charts.draw_curves(run / "curves.png", curves, facts["stages"], facts["limits"])
    return _write_page(run, facts)


def refresh(run: Path, steps: int = 0, every: int = REFRESH) -> str:
    """Write `report.html` without `curves.png`: while its run trains, the page reloads itself.

    Args:
        steps: optimizer steps of the whole run.
        every: seconds after which it does.

    Returns:
        why it could not be written, empty if it was: no run ends for its report.
    """
    try:
        facts = read_facts(run)
        now = {"every": every, "at": time.strftime("%H:%M:%S"), "steps": steps}
        _write_page(run, facts, now if facts["status"] == "running" else None)
    except Exception as error:
        return reason_of(error)
    return ""


def _between(evaluations: dict[str, dict[str, Any]], curves: dict[str, charts.Curve]) -> dict[str, charts.Curve]:
    """The evaluations before and after as curves of two points, for a run without `eval_every`."""
    if not {"before", "after"} <= evaluations.keys():
        return {}
    last = max(curve.steps[-1] for curve in curves.values())
    ends = {0: evaluations["before"], evaluations["after"].get("step", last): evaluations["after"]}
    lines = [{f"eval/{key}": value for key, value in ends[step].items()} | {"step": step} for step in ends]
    return charts.read_curves(lines)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    if minutes > 59:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _setting(value: Any) -> Any:
    """A setting's value; whole numbers without `.0`, where a setting could be a ratio, too (save_steps)."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else value


@functools.cache
def _template() -> Template:
    folder = FileSystemLoader(Path(__file__).with_name("templates"))
    rules: Any = {"autoescape": True, "undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    page = Environment(loader=folder, **rules)  # it escapes: models write markup
    page.filters |= {"number": charts.number, "duration": _duration, "short_name": short_name, "setting": _setting}
    return page.get_template("report.html.j2")


def _write_page(run: Path, facts: dict[str, Any], live: dict[str, Any] | None = None) -> Path:
    shown: dict[str, Any] = {"examples": _examples(run, facts["evaluations"]), "live": live, "headings": HEADINGS}
    shown |= {"image": charts.image, "is_own": charts.is_a_rewards_own}
    text = _template().render(facts | shown)
    path, part = run / "report.html", run / ".report.html.part"  # a browser may load the page while it is written
    try:
        part.write_text(text + "\n", encoding="utf-8", errors="replace")  # a lone surrogate cannot be encoded
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)  # what a full disk has cut short
    return path


def main(argv: list[str]) -> int:
    """`python -m grpo report`; its exit status."""
    parser = ArgumentParser(prog="python -m grpo report", description="Write a run's report.html and curves.png.")
    parser.add_argument("run", metavar="RUN_DIR", type=Path, help="the directory of a run, finished or not")
    report = write(parser.parse_args(argv).run)
    print(*[path for path in (report, report.with_name("curves.png")) if path.exists()], sep="\n")
    return 0
