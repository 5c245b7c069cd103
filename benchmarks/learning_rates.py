"""Which learning rate, for all weights and for LoRA? The same run at each of several, and a chart of what they learn.

    python benchmarks/learning_rates.py --seeds 1 2
    python benchmarks/learning_rates.py --output DIRECTORY --arms lora-1e-4 lora-2e-4 -- --config recipes/smollm2.yaml
    python benchmarks/learning_rates.py --output DIRECTORY --arms      trains nothing: table and chart of what is there
    python benchmarks/learning_rates.py --draw                          the chart alone, from the results that are kept

The flags after `--` are those of every run (recipes/demo.yaml, where there are none): the same number of steps, the
same schedule. Finished runs are written to benchmarks/learning_rates.json (`--results`) under the model's name, beside
those of other models, and docs/learning-rates.svg (`--chart`) has a panel for each.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any

import bench_runs
from bench_common import ROOT, print_table

from grpo.config import compare
from grpo.core.errors import UserError
from grpo.core.settings import data_label
from grpo.evaluation.side_by_side import Run
from grpo.runs import charts

RATES = {
    "all": ("5e-6", "1e-5", "2e-5", "5e-5", "1e-4"),
    "lora": ("5e-6", "2e-5", "5e-5", "1e-4", "2e-4", "5e-4", "1e-3"),
}
LABELS = {"all": "all weights", "lora": "LoRA"}
ARMS = {
    f"{what}-{rate}": ["--learning_rate", rate, "--use_peft", str(what == "lora").lower()]
    for what, rates in RATES.items()
    for rate in rates
}


def results(found: Mapping[str, Mapping[int, Run]]) -> dict[str, Any]:
    """What the chart of one model needs: per cent, by `all` and `lora` a list of finished runs in order of rate."""
    first = next(run for runs in found.values() for run in runs.values())
    points: dict[str, list[dict[str, float]]] = {what: [] for what in RATES}
    for name, runs in found.items():
        what, _, rate = name.partition("-")
        for seed, run in runs.items():
            after = run.after["lenient"]
            known = {"rate": float(rate), "seed": seed, "after": after.value, "low": after.low, "high": after.high}
            points[what].append({key: round(value, 8) for key, value in known.items()})
    return {"steps": first.steps, "questions": first.n, "before": first.before["lenient"].value, **points}


def kept(path: Path) -> dict[str, Any]:
    """The results in the file by model; none where there is no file, UserError where it holds something else."""
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except ValueError as error:
        raise UserError(f"results: {str(path)!r} is no JSON ({error}); set --results to another file") from None


def refuse_other(path: Path, model: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """UserError where the runs have other numbers of steps or questions than those kept under the model's name."""
    for key in ("steps", "questions"):
        if new.get(key, old[key]) != old[key]:
            raise UserError(
                f"results: {str(path)!r} holds runs of {model} with {old[key]} {key}, these have {new[key]}; "
                "set --name or --results"
            )


def keep(path: Path, model: str, new: dict[str, Any]) -> dict[str, Any]:
    """Add one model's results to the file, beside its other runs; UserError if those are of another length."""
    every = kept(path)
    if old := every.get(model):
        refuse_other(path, model, old, new)
        for what in RATES:
            added = {(point["rate"], point["seed"]) for point in new[what]}
            new[what] += [point for point in old[what] if (point["rate"], point["seed"]) not in added]
    for what in RATES:
        new[what].sort(key=lambda point: (point["rate"], point["seed"]))
    every[model] = new
    path.write_text(json.dumps(every, indent=1) + "\n", encoding="utf-8")
    return every


def draw(every: Mapping[str, dict[str, Any]], path: Path) -> None:
    """Final lenient accuracy against the rate: a panel per model, a point per run, lines through their means.

    The band is the mean of the runs' own 95 % intervals: that of the questions, not of the seeds.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({**charts.STYLE, "svg.fonttype": "path"}):
        figure = Figure(figsize=(1 + 4.2 * len(every), 3.6), layout="constrained", facecolor="white")
        panels = figure.subplots(1, len(every), squeeze=False)[0]
        for axes, (model, found) in zip(panels, every.items(), strict=True):
            axes.set_title(f"{model}, {found['steps']} steps", loc="left", color=charts.COLORS["ink"])
            axes.axhline(found["before"], color=charts.COLORS["earlier"], linestyle=(0, (4, 3)), linewidth=1)
            axes.annotate("before training", (0.99, found["before"]), (0, -2), xycoords=("axes fraction", "data"),
                          textcoords="offset points", va="top", ha="right", color=charts.COLORS["soft"])  # fmt: skip
            for what, name, marker, dashes in (("all", "line-1", "o", ()), ("lora", "line-2", "s", (4, 1.5))):
                color, points = charts.COLORS[name], found[what]
                groups = [(rate, list(runs)) for rate, runs in groupby(points, key=lambda point: point["rate"])]
                rates = [rate for rate, _ in groups]
                mean, low, high = (
                    [fmean(run[key] for run in runs) for _, runs in groups] for key in ("after", "low", "high")
                )
                axes.fill_between(rates, low, high, color=color, alpha=0.13, linewidth=0)
                axes.plot(rates, mean, color=color, linestyle=(0, dashes), label=LABELS[what])
                axes.plot([run["rate"] for run in points], [run["after"] for run in points], marker, color=color,
                          markersize=3.5)  # fmt: skip
            axes.set_xscale("log")
            ticks = sorted({point["rate"] for what in RATES for point in found[what]})
            axes.set_xticks(ticks, [f"{tick:.0e}".replace("e-0", "e-") for tick in ticks])
            axes.minorticks_off()
            axes.set_ylim(0, min(102, 1.1 * max(run["high"] for what in RATES for run in found[what])))
            axes.set_xlabel("learning rate", color=charts.COLORS["soft"])
            axes.legend(loc="best", frameon=False, labelcolor="linecolor", handlelength=2.8)
        panels[0].set_ylabel("lenient accuracy, per cent", color=charts.COLORS["soft"])
        figure.savefig(path, metadata={"Date": None})


def run(args: argparse.Namespace, flags: list[str]) -> None:
    if args.draw:
        if not args.results.is_file():
            raise UserError(f"results: {str(args.results)!r} does not exist; train some arms first")
        draw(kept(args.results), args.chart)
        return
    every, chosen = kept(args.results), bench_runs.choose(ARMS, args.arms)
    if chosen:
        planned = compare.resolve(flags)
        if old := every.get(model_name(args, planned)):
            refuse_other(args.results, model_name(args, planned), old, {"steps": planned["max_steps"]})
    bench_runs.train(flags, chosen, args.seeds, args.output)
    found = bench_runs.read(ARMS, args.seeds, args.output)
    rows = [[name, *bench_runs.accuracies(runs.values(), "lenient"), str(len(runs))] for name, runs in found.items()]
    title = f"Accuracy in per cent, gains in points, with 95 % intervals: {bench_runs.sample(found)}"
    print_table(title, ["rate", *bench_runs.headings("lenient"), "runs"], rows)
    bench_runs.warn(found)
    settings = next(run.settings for runs in found.values() for run in runs.values())
    draw(keep(args.results, model_name(args, settings), results(found)), args.chart)


def model_name(args: argparse.Namespace, settings: Mapping[str, Any]) -> str:
    """Under which the results are kept."""
    return args.name or data_label(settings["model_name_or_path"].removesuffix("/model"))


def parser() -> argparse.ArgumentParser:
    made = bench_runs.parser(__doc__)
    made.add_argument("--name", help="the model's name in results and chart (default: of its directory)")
    made.add_argument("--draw", action="store_true", help="draw the chart of the results, and nothing else")
    made.add_argument("--results", type=Path, default=ROOT / "benchmarks" / "learning_rates.json")
    made.add_argument("--chart", type=Path, default=ROOT / "docs" / "learning-rates.svg")
    return made


if __name__ == "__main__":
    sys.exit(bench_runs.start(parser(), run))
