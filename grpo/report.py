"""The run directory → `curves.png`: what the policy earned while it trained, and what it answered before and after.

    python -m grpo.report RUN_DIR

Reads files only, so a run can be drawn while it trains or on another machine.
"""

import json
import sys
from pathlib import Path
from typing import Any

from rewards import short_name

SHARES = {
    "accuracy_strict": "strict\naccuracy",
    "accuracy_lenient": "lenient\naccuracy",
    "format_strict": "strict\nformat",
}
BEFORE, AFTER = "#b8c4ce", "#2a6f97"


def read_metrics(run: Path) -> list[dict[str, Any]]:
    """The logs of training steps, the later one where a resumed run logged a step again."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    steps = {line["step"]: line for line in lines if "reward" in line}
    return [steps[step] for step in sorted(steps)]


def draw_curves(run: Path) -> Path:
    """Write `curves.png` into the run directory and return its path."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    metrics = read_metrics(run)
    names = [key for key in metrics[0] if key.startswith("rewards/") and key.endswith("/mean")]
    pyplot.rcParams.update({"axes.spines.top": False, "axes.spines.right": False, "font.size": 10})
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4), width_ratios=(3, 2), layout="constrained")

    steps = [line["step"] for line in metrics]
    left.plot(steps, [line["reward"] for line in metrics], color="black", linewidth=2, label="all rewards")
    for index, name in enumerate(names):
        values = [float("nan") if line.get(name) is None else line[name] for line in metrics]
        # dashed, each in its turn: rewards that lie on each other stay visible
        left.plot(steps, values, dashes=(4, 2 * index), label=short_name(name.split("/")[1]))
    left.set(xlabel="optimizer step", ylabel="mean reward of a completion", title="While it trains")
    left.set_ylim(bottom=min(0, left.get_ylim()[0]))
    left.grid(axis="y", alpha=0.3)
    left.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3)

    for offset, when, color in ((-0.2, "before", BEFORE), (0.2, "after", AFTER)):
        path = run / f"eval_{when}.json"
        if not path.exists():
            continue
        summary = json.loads(path.read_text(encoding="utf-8"))
        heights = [100 * summary[key] for key in SHARES]
        errors = [
            [100 * (summary[key] - summary[f"{key}_low"]) for key in SHARES],
            [100 * (summary[f"{key}_high"] - summary[key]) for key in SHARES],
        ]
        places = [index + offset for index in range(len(SHARES))]
        bars = right.bar(places, heights, 0.38, yerr=errors, color=color, label=when, error_kw={"alpha": 0.5})
        right.bar_label(bars, fmt="%.0f", label_type="center", color="white" if when == "after" else "black")
        right.set_title(f"{summary['n']} held-out questions, greedy")
    right.set_xticks(range(len(SHARES)), SHARES.values())
    right.set(ylabel="per cent, with 95 % intervals", ylim=(0, 105))
    right.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2)

    figure.savefig(run / "curves.png", dpi=130)
    pyplot.close(figure)
    return run / "curves.png"


def main(argv: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if argv is None else argv
    if len(arguments) != 1 or not (Path(arguments[0]) / "metrics.jsonl").is_file():
        print("error: usage: python -m grpo.report RUN_DIR (a run's directory, with metrics.jsonl)", file=sys.stderr)
        return 2
    print(draw_curves(Path(arguments[0])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
