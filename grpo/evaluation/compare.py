"""Put several runs side by side in a table: accuracies before and after, gains, and what differs between them.

A run's gain is paired: the same questions before and after. So is the comparison of two runs after training, where
both were asked the same questions and judged alike. The mean gain over runs of one experiment, which differ in the
seed alone, has Student's interval, since with two or three of them the normal one is far too narrow.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from grpo.core.errors import ArgumentParser, UserError
from grpo.core.fingerprint import without_rest
from grpo.core.processes import show
from grpo.core.text import counted, for_rich, shorten
from grpo.evaluation import comparison
from grpo.evaluation.comparison import mean_interval
from grpo.runs import report

# A measure's key in comparison.json and in eval_*.json; rewards are there where gold answers are not
MEASURES = {"lenient": "accuracy_lenient", "strict": "accuracy_strict", "reward": "reward"}
# They name a run, or change what is seen and kept of it: not what is trained
NOT_TRAINED = {
    *("output_dir", "run_name", "report_to", "project", "hub_model_id", "logging_dir", "resume_from_checkpoint"),
    *("save_strategy", "save_steps", "save_total_limit", "save_only_model"),
    *("eval_every", "logging_steps", "log_completions", "num_completions_to_print"),
}
SEEDS = {"seed", "data_seed"}  # may differ between runs of one experiment
OF_REWARDS = ("reward_funcs", "reward_weights", "reward_args", "stages", "judge")


def read(run: Path) -> dict[str, Any]:
    """The run's facts, as its report has them; UserError where it holds no settings or no evaluation."""
    facts = report.read_facts(run)
    if not (facts["settings"] and facts["evaluations"]):
        raise UserError(f"{str(run)!r} holds no evaluation (run.json and eval_*.json); train or evaluate it first")
    after = "after" in facts["evaluations"]
    return facts | {"answers": report.read_lines(run / "completions_after.jsonl") if after else []}


def gains(runs: Sequence[dict[str, Any]], measure: str) -> list[float]:
    """The paired gain of each run that was evaluated before and after, in points or rewards."""
    unit = 1 if measure == "reward" else 100
    found = [(run["comparison"].get(measure) or {}).get("difference") for run in runs]
    return [unit * difference for difference in found if difference is not None]


# Texts that sources have a hash of
OF_THE_PROMPT = {"system_prompt", "prompt_format", "answer_pattern"}


def differing_sources(runs: Sequence[dict[str, Any]]) -> list[str]:
    """What no setting names and is not the same in all runs that have it: the prompt, code, training rows."""
    known: dict[str, set[str]] = {}
    for run in runs:
        rows = (run["record"].get("data") or {}).get("fingerprint")
        for label, value in {**(run["record"].get("sources") or {}), "training rows": rows}.items():
            known.setdefault(label, set()).update([value] if value else [])
    return without_rest(label for label, values in known.items() if len(values) > 1)


def differing(runs: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    """Settings and commit that are not the same in all runs, names aside: the values by run."""
    known = [{**run["settings"], "commit": run["record"].get("commit")} for run in runs]
    hashed = all(run["record"].get("sources") for run in runs)  # a recipe may spell out the script's own prompt
    without = NOT_TRAINED | (OF_THE_PROMPT if hashed else set())
    keys = dict.fromkeys(key for each in known for key in each if key not in without)
    values = {key: [each.get(key) for each in known] for key in keys}
    return {key: found for key, found in values.items() if any(value != found[0] for value in found)}


def print_runs(names: Sequence[str], runs: Sequence[dict[str, Any]]) -> None:
    """Print the table, and below it the settings that differ."""
    measures = {name: key for name, key in MEASURES.items() if any(key in run["results"] for run in runs)}
    show("Before -> after, and the paired gain (95 % interval); accuracies in per cent", soft_wrap=True)
    table = Table(box=SIMPLE_HEAD)
    table.add_column("run", overflow="fold")
    for measure in measures:
        table.add_column(measure, justify="right", overflow="fold")
    for name, run in zip(names, runs, strict=True):
        status = "" if run["status"] == "finished" else f"\n({run['status']})"
        table.add_row(for_rich(name + status), *(_cell(run, key) for key in measures.values()))
    differ, others = differing(runs), differing_sources(runs)
    unknown = [name for name, run in zip(names, runs, strict=True) if not run["record"].get("sources")]
    turns = [f"{name} was resumed, {turn}" for name, run in zip(names, runs, strict=True) for turn in run["turns"]]
    if differ.keys() <= SEEDS and not (others or unknown or turns):
        table.add_section()
        table.add_row("mean gain", *(_mean(gains(runs, measure), measure) for measure in measures))
    show(table)
    for line in after_training(names, runs):
        show(for_rich(line), soft_wrap=True)
    if unknown:
        text = f"Of {', '.join(unknown)}, prompt and rewards' code are unknown: an earlier version recorded neither"
        show(for_rich(text), soft_wrap=True)
    for line in turns:
        show(for_rich(line), soft_wrap=True)
    if differ or others:
        show("What differs:")
    elif not (unknown or turns):
        show("All settings are the same: one experiment, counted several times")
    if others:
        text = ", ".join(f"other {label.replace('code of', 'code in')}" for label in others)
        show(for_rich(f"  {text[0].upper()}{text[1:]}"), soft_wrap=True)
    for key, values in differ.items():
        show(
            f"  {for_rich(key)}: {for_rich(' | '.join(shorten(str(value), 200) for value in values))}", soft_wrap=True
        )


def after_training(names: Sequence[str], runs: Sequence[dict[str, Any]]) -> list[str]:
    """A line for each later run against the first, by their answers after training to the same questions."""
    lines = []
    for name, run in zip(names[1:], runs[1:], strict=True):
        first, other = runs[0]["answers"], run["answers"]
        if not (first and other):
            continue
        asked = [[(row["question"], row.get("answer")) for row in answers] for answers in (first, other)]
        if asked[0] != asked[1]:
            lines.append(f"{name} was not asked {names[0]}'s questions: their gains are over different ones")
            continue
        compared = comparison.compare(first, other)
        measures = [measure for measure in MEASURES if measure in compared and measure != "reward"]
        if measures and not _are_judged_alike(runs[0], run):
            lines.append(f"{names[0]} and {name} are not judged alike: their accuracies cannot be compared")
            continue
        if not measures and _are_paid_alike(runs[0], run):
            measures = ["reward"] if compared["reward"]["n"] > 1 else []
        if measures:
            parts = ", ".join(_paired(measure, compared[measure]) for measure in measures)
            pairs = counted(len(first), "question")
            lines.append(f"After training, on the same {pairs}, {name} against {names[0]}: {parts}")
    return lines


def _are_judged_alike(first: dict[str, Any], other: dict[str, Any]) -> bool:
    judges = [run["evaluations"]["after"].get("judge") for run in (first, other)]
    return judges[0] == judges[1] and f"code of the judge {judges[0]}" not in differing_sources([first, other])


def _are_paid_alike(first: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether the same answers earn the same in both runs."""
    known = all(run["record"].get("sources") for run in (first, other))
    settings = all(first["settings"].get(key) == other["settings"].get(key) for key in OF_REWARDS)
    code = any(label.startswith("code of") for label in differing_sources([first, other]))
    return known and settings and not code


def _paired(measure: str, found: dict[str, Any]) -> str:
    """A paired difference with its interval, in words."""
    unit, places, points = (1, 2, "") if measure == "reward" else (100, 1, " points")
    numbers = [f"{unit * found[key]:+z.{places}f}" for key in ("difference", "difference_low", "difference_high")]
    counts = "" if measure == "reward" else f"; {found['fixed']} better, {found['broken']} worse"
    return f"{measure} {numbers[0]}{points} (95 % interval {numbers[1]} to {numbers[2]}{counts})"


def _cell(run: dict[str, Any], key: str) -> str:
    """Before -> after, and below the gain with its interval; an unfinished run has one of these."""
    _, cells = run["results"].get(key, ("", []))
    lines = [" -> ".join(value for value, _ in cells[:2])]
    return "\n".join(lines + [f"{value}\n({interval})" if interval else value for value, interval in cells[2:]])


def _mean(found: Sequence[float], measure: str) -> str:
    places = 2 if measure == "reward" else 1
    mean, low, high = mean_interval(found) if found else (0.0, None, None)
    if low is None:
        return "–"
    return f"{mean:+.{places}f}\n({low:+.{places}f} to {high:+.{places}f})".replace("-", "−")


def main(argv: list[str]) -> int:
    """`python -m grpo compare`; its exit status."""
    parser = ArgumentParser(prog="python -m grpo compare", description=__doc__)
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="directories of runs")
    paths = parser.parse_args(argv).runs
    if len({path.resolve() for path in paths}) < max(2, len(paths)):
        raise UserError("compare: name at least two runs, each once")
    print_runs([str(path) for path in paths], [read(path) for path in paths])
    return 0
