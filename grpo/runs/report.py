"""The run directory → `report.html`, `curves.png` and the model card: what was learned, and at what cost.

    python -m grpo report RUN_DIR

Reads files only, so a run can be reported while it trains, after it was killed, or elsewhere; what is missing is left
out. Whatever a model or a user wrote is escaped where the templates are filled.
"""

import contextlib
import functools
import json
import platform
import re
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from markupsafe import Markup, escape

from grpo.core.errors import ArgumentParser, UserError, reason_of
from grpo.core.settings import as_list
from grpo.runs import charts, directory
from rewards import short_name

if TYPE_CHECKING:
    from jinja2 import Environment

# Settings that concern the machine and its user, not what was learned
NOT_ON_THE_CARD = (
    *("output_dir", "run_name", "report_to"),
    *("log_completions", "num_completions_to_print"),
)
REFRESH = 30  # seconds after which the page of a run that trains is reloaded, and at least between two versions of it

# --- Reading ------------------------------------------------------------------------------------------------------


def read_metrics(run: Path, key: str = "reward") -> list[dict[str, Any]]:
    """The logs of optimizer steps in order, the later one where a resumed run logged a step again.

    Args:
        key: what such a log holds: `eval/n` those of accuracy while training, `eval_reward` TRL's evaluations.
    """
    steps = {line["step"]: line for line in read_lines(run / "metrics.jsonl") if key in line}
    return [steps[step] for step in sorted(steps)]


def _read_curves(run: Path) -> dict[str, charts.Curve]:
    """A curve of every number that training and its evaluations logged, by its key in `metrics.jsonl`."""
    curves, measured = charts.read_curves(read_metrics(run)), charts.read_curves(read_metrics(run, "eval/n"))
    curves |= {key: curve for key, curve in measured.items() if key.startswith("eval/")}
    sampled = [
        {key.removeprefix("eval_"): value for key, value in line.items()} for line in read_metrics(run, "eval_reward")
    ]
    return curves | {f"eval_{key}": curve for key, curve in charts.read_curves(sampled).items()}


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The file's objects, one a line; none where there is no file."""
    # not splitlines(): a completion may hold U+2028. After the last newline is what a killed run has half written
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1] if path.is_file() else []
    objects = []
    for number, line in enumerate(lines, 1):
        found = _object(line)
        if found is None:
            raise UserError(f"{path}, line {number} is not a JSON object; remove the line")
        objects.append(found)
    return objects


def _read_object(path: Path) -> dict[str, Any]:
    """The file's JSON object; empty where there is no file."""
    found = _object(path.read_text(encoding="utf-8", errors="replace")) if path.is_file() else {}
    if found is None:
        raise UserError(f"{path} is not a JSON object; remove it to read the run without it")
    return found


def _object(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def read_facts(run: Path) -> dict[str, Any]:
    """What the templates show, from the files that are there; UserError where one is broken, or all are missing."""
    record, curves = _read_object(run / "run.json"), _read_curves(run)
    evaluations = {when: _read_object(run / f"eval_{when}.json") for when in ("before", "after", "only")}
    evaluations = {when: summary for when, summary in evaluations.items() if summary}
    if not (record or curves or evaluations):
        raise UserError(f"{str(run)!r} holds no run (no run.json, metrics.jsonl or eval_*.json)")
    settings = record.get("settings") or {}
    return {
        "name": settings.get("run_name") or run.resolve().name,
        "record": record,
        "settings": settings,
        "data_name": ", ".join(as_list(settings.get("dataset_name"))),
        "status": _status(run, record),
        "resume": record.get("resume") if any(run.glob("checkpoint-*")) else None,
        "curves": curves,
        "limits": _limits(record, settings, curves),
        "stages": record.get("stages") or [],
        "evaluations": evaluations,
        "earned": _earned(evaluations),
        "comparison": _read_object(run / "comparison.json"),
        "alarms": read_lines(run / "alarms.jsonl"),
    }


def _earned(evaluations: dict[str, dict[str, Any]]) -> list[tuple[str, str]]:
    """The rewards that evaluations without gold answers measured: their keys, and how people call them."""
    keys = dict.fromkeys(key for summary in evaluations.values() for key in summary if f"{key}_low" in summary)
    names = {key: short_name(key.removeprefix("rewards/")) for key in keys if key.startswith("reward")}
    return list((names | ({"reward": "Reward, weighted sum"} if "reward" in names else {})).items())


def _status(run: Path, record: dict[str, Any]) -> str:
    """How the run ended, or running; killed only where its own machine knows that nothing writes it any more."""
    status = record.get("status") or "running"
    here = (record.get("process") or {}).get("host") == platform.node()
    return "killed" if status == "running" and here and not directory.is_held(run) else status


def _limits(record: dict[str, Any], settings: dict[str, Any], curves: dict[str, charts.Curve]) -> dict[str, float]:
    """By the key of its curve: what a perfect answer earns, and the norm that gradients are clipped to."""
    perfect, names = record.get("perfect") or {}, settings.get("reward_funcs") or []
    limits = {f"rewards/{name}/mean": value for name, value in perfect.items()}
    if len(perfect) == len(names) > 0 and not (record.get("stages") or settings.get("adaptive_rewards")):
        weights = settings.get("reward_weights") or [1.0] * len(names)
        limits["reward"] = sum(weight * value for weight, value in zip(weights, perfect.values(), strict=True))
    norm = settings.get("max_grad_norm") or 0
    if "grad_norm" in curves and 0 < norm < 4 * max(curves["grad_norm"].values):  # farther away it would flatten these
        limits["grad_norm"] = norm
    return limits


def _examples(run: Path) -> dict[str, list[tuple[dict[str, Any], dict[str, Any]]]]:
    """The questions that were fixed, broken and never right (leniently), as records before and after.

    Without gold answers: those whose answers earn more, less and the same, the largest differences first.
    """
    before, after = (read_lines(run / f"completions_{when}.jsonl") for when in ("before", "after"))
    # an evaluation that was killed while it wrote has fewer
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


# --- Writing ------------------------------------------------------------------------------------------------------


def draw_curves(run: Path) -> Path:
    """Write `curves.png`, the rewards while training beside the answers before and after, and return its path."""
    facts = read_facts(run)
    drawn = ("curves", "evaluations", "stages", "limits")
    return charts.draw_curves(run / "curves.png", *(facts[name] for name in drawn))


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    if minutes > 59:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _markdown(value: Any) -> str:
    """Text that stays text: one line, with a backslash before all that Markdown or HTML could take for markup."""
    if hasattr(value, "__html__"):  # the template says that it is safe
        return str(value)
    markup = r"[\\`*\[\]{}#|~>&$@]|<(?! )|:(?=//)|(?<=www)\.|(?<![^\W_])_|_(?![^\W_])"
    return re.sub(markup, r"\\\g<0>", re.sub(r"\s+", " ", str(value)))


def _code(value: Any) -> Markup:
    """A code span in Markdown, in a table too."""
    text = " ".join(str(value).split()).replace("`", "'").replace("|", "¦")
    return Markup(f"`{text or '(empty)'}`")


def _setting(value: Any) -> Any:
    """A setting's value; whole numbers without `.0`, where a setting could be a ratio, too (save_steps)."""
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else value


def _command(text: str) -> Markup:
    """A command in the page, its flags in elements that no line breaks."""
    return Markup(re.sub(r"(?<!\S)--\w{1,40}\b", r'<span class="flag">\g<0></span>', str(escape(text))))


def _python(text: str) -> Markup:
    """A string of Python, in a fenced block of Markdown."""
    return Markup(json.dumps(text, ensure_ascii=False).replace("`", r"\x60"))


@functools.cache
def _environment(html: bool) -> "Environment":
    """Of the page, which escapes what it is filled with, or of the model card, which does so for Markdown."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=html,
        finalize=None if html else _markdown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals |= {"svg": charts.svg}
    environment.filters |= {"number": charts.number, "duration": _duration, "short_name": short_name}
    environment.filters |= {"code": _code, "python": _python, "setting": _setting, "command": _command}
    return environment


def fill(template: str, path: Path, facts: dict[str, Any]) -> Path:
    """Write the page or the card that the template makes of these facts, and return its path."""
    text = _environment(path.suffix == ".html").get_template(template).render(facts)
    part = path.with_name(f".{path.name}.part")  # a browser may load the page while it is written
    try:
        part.write_text(text + "\n", encoding="utf-8", errors="replace")  # a lone surrogate cannot be encoded
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)  # what a full disk has cut short
    return path


def write(run: Path) -> Path:
    """Write `report.html`, and `curves.png` where the run has trained, and return the report's path."""
    facts = read_facts(run)
    if facts["curves"]:
        draw_curves(run)
    return fill("report.html.j2", run / "report.html", facts | {"examples": _examples(run), "live": None})


def refresh(run: Path, steps: int = 0) -> str:
    """Write `report.html` without `curves.png`: while its run trains, the page reloads itself.

    Args:
        steps: optimizer steps of the whole run.

    Returns:
        why it could not be written, empty if it was: no run ends for its report.
    """
    try:
        facts = read_facts(run)
        now = {"every": REFRESH, "at": time.strftime("%H:%M:%S"), "steps": steps}
        live = now if facts["status"] == "running" else None
        fill("report.html.j2", run / "report.html", facts | {"examples": _examples(run), "live": live})
    except Exception as error:
        return reason_of(error)
    return ""


def write_model_card(run: Path, **names: Any) -> Path:
    """Write the model card, `README.md` beside the model; TRL's names for model and data are in `run.json` already."""
    facts = read_facts(run) | {"adapter": (run / "adapter_config.json").is_file()}
    facts["model_name_or_path"] = _hub_id(str(facts["settings"].get("model_name_or_path")))
    facts["datasets"] = list(filter(None, map(_hub_id, as_list(facts["settings"].get("dataset_name")))))
    facts |= {"license": _license(facts), "directory": run.resolve().name, "unimportant": NOT_ON_THE_CARD}
    return fill("model_card.md.j2", run / "README.md", facts)


def _hub_id(name: str) -> str | None:
    """The Hub id that a name is, without a data set's configuration; None for a file, a directory or a text."""
    pattern = r"([a-zA-Z0-9][\w.-]*(/[\w.-]+)?)(?<!\.jsonl|.\.json|..\.csv|arquet)(:[\w.-]+)?"
    found = re.fullmatch(pattern, name, re.ASCII)
    return found[1] if found and not Path(name).exists() else None


def _license(facts: dict[str, Any]) -> dict[str, str]:
    """The license's keys in a model card's front matter: the base model's where its card is on this machine."""
    base, hub_id = Path(str(facts["settings"].get("model_name_or_path"))), facts["model_name_or_path"]
    with contextlib.suppress(OSError, ValueError):
        head = (base / "README.md").read_text(encoding="utf-8").split("---\n", 2)[1:2]
        found = yaml.safe_load(head[0]) if head else None
        if isinstance(found, dict) and isinstance(found.get("license"), str):
            return {key: str(found[key]) for key in ("license", "license_name", "license_link") if key in found}
    named = {"license": "other", "license_name": "as-the-base-model"}
    return named | ({"license_link": f"https://huggingface.co/{hub_id}"} if hub_id else {})


def main(argv: list[str] | None = None) -> int:
    """`python -m grpo report`; its exit status."""
    parser = ArgumentParser(prog="python -m grpo report", description="Write a run's report.html and curves.png.")
    parser.add_argument("run", metavar="RUN_DIR", type=Path, help="the directory of a run, finished or not")
    try:
        report = write(parser.parse_args(argv).run)
    except (UserError, OSError) as error:  # OSError: a directory that cannot be written
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(*[path for path in (report, report.with_name("curves.png")) if path.exists()], sep="\n")
    return 0
