"""Honest evaluation: held-out questions, answered greedily and, if asked, k times more by sampling, scored two ways.

*Strict* is what the reward sees: the extracted answer is the gold answer, character by character. *Lenient* is what
the run's judge says (rewarding/judge.py): the right answer counts however it is written and wherever it is.
"""

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from rich.panel import Panel
from rich.table import Table

from grpo.core.out_of_memory import EVALUATION, phase
from grpo.core.processes import show
from grpo.core.redaction import for_rich
from grpo.core.settings import Config
from grpo.data.dataset import Data
from grpo.data.prompts import tokenize
from grpo.policy.generation import Sampling, generate, training_autocast
from grpo.rewarding.judge import Judge
from rewards import has_soft_format, has_strict_format

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Evaluation = tuple[dict[str, Any], list[dict[str, Any]]]  # the summary, and a record of each question
SHARES = {  # key in eval_*.json: its column in the records
    "accuracy_strict": "strict",
    "accuracy_lenient": "lenient",
    "format_strict": "format_strict",
    "format_soft": "format_soft",
    "truncated": "truncated",
}


def wilson(successes: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a share (E. B. Wilson, 1927): (low, high), both in [0, 1].

    >>> tuple(round(bound, 4) for bound in wilson(8, 10))
    (0.4902, 0.9433)
    """
    if n == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    share = successes / n
    center = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * (share * (1 - share) / n + z * z / (4 * n * n)) ** 0.5
    return max(0.0, center - half), min(1.0, center + half)


def majority(texts: Sequence[str], judge: Judge) -> str | None:
    """The first completion that gives the most frequent answer; of equally frequent ones, the one sampled first.

    Answers are the same if the judge's rule finds them equal; a completion without an answer has no vote.
    """
    votes: dict[str, int] = {}  # by the first completion that gives an answer
    for text in filter(judge.extract, texts):
        first = next((other for other in votes if judge.same(text, other)), text)
        votes[first] = votes.get(first, 0) + 1
    return max(votes, key=lambda text: votes[text], default=None)  # insertion order decides between equals


def judge_samples(texts: Sequence[str], judge: Judge, row: Mapping[str, Any]) -> dict[str, Any]:
    """Several completions of one question, as a record keeps them."""
    chosen = majority(texts, judge)
    right = [judge.is_right(text, row) for text in texts]
    majority_right = chosen is not None and judge.is_right(chosen, row)
    return {"samples": list(texts), "samples_right": right, "majority_right": majority_right}


def measure(config: Config, model: "PreTrainedModel", tokenizer: Any, data: Data, judge: Judge) -> Evaluation:
    """Greedy pass@1 on the held-out questions; with `eval_num_samples` k > 1 also maj@k and pass@k.

    It computes in training's number format; samples are drawn like rollouts.

    Returns:
        The summary, flat (`n`; shares in [0, 1] with 95 % Wilson intervals as `…_low` and `…_high`; `mean_length`
        in tokens; `seconds`), and one record per question, in the order of the rows.
    """
    start = time.perf_counter()
    training, k, template = config.training, config.script.eval_num_samples, data.prompt_format.completion
    prefill = data.prompt_format.prefill
    prompts = tokenize(data.held_out["prompt"], tokenizer, config.template_kwargs)
    limit, batch_size = config.completion_limit, training.per_device_eval_batch_size
    engine = config.script.generation
    drawn: list[tuple[list[int], bool]] = []
    with phase(EVALUATION), training_autocast(training, model):
        greedy = generate(model, tokenizer, prompts, limit, batch_size, engine=engine)
        if k > 1:
            many = [prompt for prompt in prompts for _ in range(k)]
            drawn = generate(model, tokenizer, many, limit, batch_size, Sampling.like(training), engine=engine)
    records = []
    rows = data.held_out.to_list()
    for row, (ids, cut) in zip(rows, greedy, strict=True):
        text = prefill + tokenizer.decode(ids, skip_special_tokens=True)
        records.append(
            {
                "question": row["question"],
                "answer": row["answer"],
                "completion": text,
                "extracted": judge.extract(text),
                "strict": judge.is_exact(text, row, template),
                "lenient": judge.is_right(text, row),
                "format_strict": has_strict_format(text, template),
                "format_soft": has_soft_format(text, template),
                "truncated": cut,
                "length": len(ids),
            }
        )
    for record, row, start_at in zip(records, rows, range(0, len(drawn), k), strict=bool(drawn)):
        texts = [prefill + tokenizer.decode(ids, skip_special_tokens=True) for ids, _ in drawn[start_at:][:k]]
        record |= judge_samples(texts, judge, row)
    return {**summarize(records), "seconds": round(time.perf_counter() - start, 2)}, records


def summarize(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Shares and intervals over the records of `measure`.

    Where the records hold k samples, by the lenient rule too: `maj_k` (the majority is right), `pass_k` (one of them
    is) and `pass_1` (the mean share of them that is).
    """
    n = len(records)
    counts = {share: sum(record[column] for record in records) for share, column in SHARES.items()}
    others: dict[str, Any] = {"mean_length": sum(record["length"] for record in records) / n}
    if "samples" in records[0]:
        k = len(records[0]["samples"])
        right = [sum(record["samples_right"]) for record in records]
        counts["maj_k"] = sum(record["majority_right"] for record in records)
        counts["pass_k"] = sum(correct > 0 for correct in right)
        others |= {"k": k, "pass_1": sum(right) / (n * k)}
    summary: dict[str, Any] = {"n": n}
    for share, count in counts.items():
        summary[share] = count / n
        summary[f"{share}_low"], summary[f"{share}_high"] = wilson(count, n)
    return {**summary, **others}


def save(directory: Path, when: str, summary: dict[str, Any], records: Sequence[dict[str, Any]]) -> None:
    """Write `eval_<when>.json` and `completions_<when>.jsonl`."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"eval_{when}.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    (directory / f"completions_{when}.jsonl").write_text(lines, encoding="utf-8")


def print_answers(when: str, records: Sequence[dict[str, Any]], count: int = 2) -> None:
    """The first held-out questions, always the same ones, with their greedy completions."""
    for record in records[:count]:
        text = f"[bold]{for_rich(record['question'])}[/bold]\n\n{for_rich(record['completion'].strip()[:1200])}\n\n"
        mark = "[green]right[/green]" if record["lenient"] else "[red]wrong[/red]"
        read = record["extracted"] if record["extracted"] != record["completion"].strip() else ""
        gold = "" if record["answer"] is None else f", gold: {for_rich(record['answer'])}"
        text += f"answer read: {for_rich(read[:80]) or 'none'}{gold}, {mark}"
        show(Panel(text, title=f"a held-out question, {when}", title_align="left"))


def print_evaluations(evaluations: dict[str, dict[str, Any]], verdict: str = "", style: str = "bold") -> None:
    """Summaries beside each other (`before` and `after`, or one alone), shares in per cent with their intervals.

    Args:
        verdict: a sentence below them, printed in this style.
    """
    summaries = list(evaluations.values())
    table = Table(
        title=f"{summaries[0]['n']} held-out questions, greedy, in per cent (95 % interval)",
        caption="strict: exactly the gold answer, where it is asked for; lenient: the right answer anywhere",
        title_justify="left",
        min_width=64,  # for the title
        caption_justify="left",
    )
    table.add_column("")
    for heading in [*evaluations, *(["change"] if len(summaries) == 2 else [])]:
        table.add_column(for_rich(heading), justify="right")

    def row(name: str, cells: list[str], values: list[float]) -> None:
        table.add_row(name, *cells, *([f"{values[1] - values[0]:+.1f}"] if len(values) == 2 else []))

    k = summaries[0].get("k")
    sampled = {"maj_k": f"maj@{k}, sampled", "pass_k": f"pass@{k}, sampled"} if k else {}
    for key, name in {**{key: key.replace("_", ", ") for key in SHARES}, **sampled}.items():
        cells = [f"{100 * s[key]:.1f} ({100 * s[f'{key}_low']:.0f}-{100 * s[f'{key}_high']:.0f})" for s in summaries]
        row(name, cells, [100 * summary[key] for summary in summaries])
    lengths = [summary["mean_length"] for summary in summaries]
    row("mean length, tokens", [f"{length:.1f}" for length in lengths], lengths)
    show(table)
    if verdict:
        show(for_rich(verdict), style=style)
