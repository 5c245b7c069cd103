"""Preflight's check of the held-out questions: are there enough to show a change?"""

from collections.abc import Iterator

from grpo.core.checklist import Check, warn_if
from grpo.core.text import counted
from grpo.data.checks import Plan
from grpo.evaluation.comparison import FEWEST

ENOUGH = 100  # held-out questions; they can show a change of 6 points, not a smaller one


def about_held_out(plan: Plan) -> Iterator[Check]:
    """Report the number of held-out questions, and the smallest change that they can show."""
    script, data, count = plan.config.script, plan.data, len(plan.data.held_out)
    if script.eval_samples == 0:
        yield Check("ok", "held out", "eval_samples 0: no evaluation before and after training")
        return
    finding = counted(count, "held-out question")
    if data.cut_off:
        share = count / (sum(reading.rows for reading in data.readings) - data.unusable)
        finding += f", {100 * share:.0f} % of the rows, which have no split {script.eval_split!r}"
    remedy = "raise eval_samples or max_samples, add rows, or use another eval_dataset_name"
    few = f"this many cannot show a change below {100 * FEWEST / max(count, FEWEST):.1f} points"
    yield warn_if(count < ENOUGH, "held out", finding, f"{few}; {remedy}")
