"""Draw a run's page, `report.html`."""

import functools
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template

from grpo.core import commands
from grpo.core.errors import reason_of
from grpo.core.jsonfiles import write_text
from grpo.core.text import reward_key, rewarded, short_name
from grpo.report import charts
from grpo.report.curves import is_a_rewards_own
from grpo.report.files import RunFiles, read_run
from grpo.results.comparison import change_of
from grpo.results.measures import LENIENT, of_reward
from grpo.results.summary import HEADINGS
from grpo.scoring.sample import Sample
from grpo.task.given import Share, distribution, repeat

MOST_SHOWN = 6  # evaluations of a watched question, besides that of "after"
REFRESH = 30  # least seconds between two versions of the page while a run trains


def refresh(directory: Path, steps: int = 0) -> str:
    """Write `report.html` of a run with this many steps while it trains; the page reloads itself.

    Returns:
        The reason why it could not be written, or "". A failing report does not end a run.
    """
    try:
        run = read_run(directory)
        live = {"every": REFRESH, "at": time.strftime("%H:%M:%S"), "steps": steps}
        write_page(run, live if run.status == "running" else None)
    except Exception as error:
        return reason_of(error)
    return ""


def limits(run: RunFiles) -> dict[str, float]:
    """Return limits by the key of their curve: the reward of a perfect answer, and the norm for clipping."""
    perfect, names = run.record.perfect or {}, run.settings.get("reward_funcs") or []
    limits = {reward_key(name): value for name, value in perfect.items()}
    weights = run.settings.get("reward_weights") or [1.0] * len(names)
    if len(perfect) == len(names) == len(weights) > 0:
        limits["reward"] = sum(weight * value for weight, value in zip(weights, perfect.values(), strict=True))
    norm = run.settings.get("max_grad_norm") or 0
    # a distant limit would flatten the curve
    if "grad_norm" in run.curves and 0 < norm < 4 * max(run.curves["grad_norm"].values):
        limits["grad_norm"] = norm
    return limits


def _selected(steps: Sequence[int], after: int | None) -> list[int]:
    """Return a few of these optimizer steps, evenly spaced, with the first and the last one, and that of "after".

    >>> _selected(range(0, 210, 10), 200), _selected([0, 10, 20], 10), _selected([], None)
    ([0, 40, 80, 120, 160, 200], [0, 10, 20], [])
    """
    last = len(steps) - 1
    evenly = (
        {steps[round(at * last / (MOST_SHOWN - 1))] for at in range(MOST_SHOWN)} if last >= MOST_SHOWN else {*steps}
    )
    return sorted(evenly | {step for step in steps if step == after})


def _watched(run: RunFiles) -> tuple[list[dict[str, Sample]], int]:
    """Return the answers to the watched questions by what is above them, and the number of evaluations."""
    answers, after = run.watched(), run.evaluations.get("after", {}).get("step")
    steps = sorted({step for of_question in answers for step in of_question})
    titles = {step: f"Step {step}" for step in _selected(steps, after)}
    titles |= {
        step: f"{HEADINGS[when]}, step {step}" for when, step in (("before", 0), ("after", after)) if step in titles
    }
    shown = [
        {title: of_question[step] for step, title in titles.items() if step in of_question} for of_question in answers
    ]
    return shown, len(steps)


def _paid(sample: Sample) -> str:
    """Say what an answer earned: the weighted sum, and each reward that is not 0; "" if it was not scored."""
    if sample.rewards is None:
        return ""
    total = "nothing, as a reward failed" if sample.reward is None else charts.number(sample.reward)
    parts = [f"{short_name(name)} {charts.number(value)}" for name, value in sample.rewards.items() if value]
    return f"{total} ({', '.join(parts)})" if parts else total


def _examples(run: RunFiles, seen: Collection[Any]) -> dict[str, tuple[int, list[tuple[Sample, Sample]]]]:
    """Return fixed, broken and never right questions (by the lenient rule): their number, and some answers.

    Args:
        seen: questions that are shown already.
    """
    # a kill while writing leaves fewer
    pairs = list(zip(run.samples("before"), run.samples("after"), strict=False))
    kinds = {"fixed": (False, True), "broken": (True, False), "never right": (False, False)}
    found = {}
    for kind, wanted in kinds.items():
        of_kind = [(old, new) for old, new in pairs if (old.verdict.lenient, new.verdict.lenient) == wanted]
        found[kind] = len(of_kind), [(old, new) for old, new in of_kind if old.question not in seen][:3]
    return found


def _distribution(run: RunFiles) -> tuple[list[Share], Share | None]:
    """Return the shares of the answers where gold answers repeat, and the share of the most frequent gold answer.

    Only evaluations with the same questions in the same order are counted.
    """
    answers = {when: samples for when in run.evaluations if (samples := run.samples(when))}
    golds: list[Any] = [sample.gold for sample in next(iter(answers.values()), [])]
    if not repeat(golds):
        return [], None
    read = {
        when: [sample.verdict.read for sample in of_evaluation]
        for when, of_evaluation in answers.items()
        if [sample.gold for sample in of_evaluation] == golds
    }
    shares = distribution(golds, read)
    return shares, max((share for share in shares if not share.others), key=lambda share: share.gold)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    if minutes > 59:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


@functools.cache
def _template() -> Template:
    folder = FileSystemLoader(Path(__file__).with_name("templates"))
    rules: Any = {"autoescape": True, "undefined": StrictUndefined, "trim_blocks": True, "lstrip_blocks": True}
    page = Environment(loader=folder, **rules)  # escapes markup that models write
    page.filters |= {
        "number": charts.number,
        "duration": _duration,
        "short_name": short_name,
        "rewarded": rewarded,
        "paid": _paid,
    }
    return page.get_template("report.html.j2")


def write_page(run: RunFiles, live: dict[str, Any] | None = None, public: bool = False) -> Path:
    """Write `report.html` and return its path.

    Args:
        live: if given, the page reloads itself.
        public: without commands for this machine.
    """
    again = None if public else commands.tool("report", str(run.directory.resolve()), anywhere=True)
    answers, most_frequent = _distribution(run)
    watched, evaluations = _watched(run)
    values = {
        "run": run,
        "watched": watched,
        "evaluations_made": evaluations,
        "limits": limits(run),
        "examples": _examples(run, [answer.question for answers in watched for answer in answers.values()]),
        "live": live,
        "headings": HEADINGS,
        "again": again,
        "of_reward": of_reward,
        "pattern": run.record.pattern,
        "lenient": change_of(LENIENT, run.comparison),
        "kinds": run.kinds_by(run.settings.get("eval_by")),
        "answers": answers,
        "most_frequent": most_frequent,
    }
    text = _template().render(values | {"image": charts.image, "is_a_rewards_own": is_a_rewards_own})
    path = run.directory / "report.html"
    write_text(path, text + "\n")  # a browser may load the page at any moment
    return path
