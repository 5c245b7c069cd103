"""Honest evaluation: held-out questions, answered greedily and, if asked, k times more by sampling, scored two ways.

*Strict* is what the reward sees: the extracted answer is the gold answer, character by character. *Lenient* is what
the run's judge says (rewarding/judge.py): the right answer counts however it is written and wherever it is.
"""

import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from rich.panel import Panel
from rich.table import Table

from grpo.core.processes import show
from grpo.core.settings import Config
from grpo.core.text import for_rich
from grpo.data.dataset import Data
from grpo.data.prompts import tokenize
from grpo.evaluation.comparison import mean_interval, rewards_of
from grpo.policy.sampling import Completion, Sampling, answer, training_autocast
from grpo.rewarding import probe, registry
from grpo.rewarding.judge import Judge
from grpo.rewarding.registry import Rewards
from rewards import has_soft_format, has_strict_format, short_name

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

    A completion without an answer has no vote.
    """
    votes: dict[str, list[str]] = {}
    for text in texts:
        votes.setdefault(judge.extract(text), []).append(text)
    votes.pop("", None)
    return max(votes.values(), key=len)[0] if votes else None


def judge_samples(texts: Sequence[str], judge: Judge, row: Mapping[str, Any]) -> dict[str, Any]:
    """Several completions of one question, as a record keeps them."""
    chosen = majority(texts, judge)
    right = [judge.verdict(text, row) for text in texts]
    majority_right = chosen is not None and right[list(texts).index(chosen)]
    return {"samples": list(texts), "samples_right": right, "majority_right": majority_right}


def measure(
    config: Config, model: "PreTrainedModel", tokenizer: Any, data: Data, judge: Judge, rewards: Rewards
) -> Evaluation:
    """Greedy pass@1 on the held-out questions; with `eval_num_samples` k > 1 also maj@k and pass@k.

    It computes in training's number format; samples are drawn like rollouts. Where right and wrong cannot be told,
    because there are no gold answers, the run's rewards are measured instead.

    Returns:
        The summary, flat (`n`; shares in [0, 1] with 95 % Wilson intervals as `…_low` and `…_high`; `mean_length`
        in tokens; `seconds`), and one record per question, in the order of the rows.
    """
    start = time.perf_counter()
    training, k, template = config.training, config.script.eval_num_samples, data.prompt_format.completion
    prefill, chat = data.prompt_format.prefill, data.prompt_format.chat
    prompts = tokenize(data.held_out["prompt"], tokenizer, config.template_kwargs)
    limit, batch_size = config.completion_limit, training.per_device_eval_batch_size
    drawn: list[Completion] = []
    with training_autocast(training, model):
        greedy = answer(model, tokenizer, prompts, limit, batch_size)
        if k > 1:
            many = [prompt for prompt in prompts for _ in range(k)]
            drawn = answer(model, tokenizer, many, limit, batch_size, Sampling.of(training), training.seed)
    records = []
    rows = data.held_out.to_list()
    for row, (ids, cut) in zip(rows, greedy, strict=True):
        text = prefill + tokenizer.decode(ids, skip_special_tokens=True)
        lenient, strict = judge.verdict(text, row), judge.extract(text) == row["answer"]
        if judge.function is not None:  # which knows no gold answer
            strict = lenient and has_strict_format(text, template)
        known = judge.function is not None or row["answer"] is not None
        records.append(
            {
                "question": row["question"],
                "answer": row["answer"],
                **({"source": row["source"]} if isinstance(row.get("source"), str) else {}),
                "completion": text,
                "extracted": judge.extract(text),
                **({"strict": strict, "lenient": lenient} if known else {}),
                "format_strict": has_strict_format(text, template),
                "format_soft": has_soft_format(text, template),
                "truncated": cut,
                "length": len(ids),
            }
        )
    if not all("lenient" in record for record in records):
        columns = probe.columns_of(rows, [r["completion"] for r in records], [ids for ids, _ in greedy], chat)
        _add_rewards(records, probe.scores(rewards, columns), registry.weights_of(config, rewards))
    for record, row, start_at in zip(records, rows, range(0, len(drawn), k), strict=bool(drawn)):
        texts = [prefill + tokenizer.decode(ids, skip_special_tokens=True) for ids, _ in drawn[start_at:][:k]]
        record |= judge_samples(texts, judge, row)
    own = {"judge": judge.name} if judge.function else {}
    return {**summarize(records), **own, "seconds": round(time.perf_counter() - start, 2)}, records


def _add_rewards(
    records: Sequence[dict[str, Any]], scores: dict[str, list[float | None]], weights: dict[str, float]
) -> None:
    """Write each record's `rewards`, and their weighted sum as its `reward`: None where one failed, as in training."""
    for index, record in enumerate(records):
        record["rewards"] = {name: values[index] for name, values in scores.items()}
        known = [weights[name] * value for name, value in record["rewards"].items() if value is not None]
        record["reward"] = math.fsum(known) if known else None


def summarize(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Shares and intervals over the records of `measure`; no accuracy where some of them have no verdict.

    Where the records hold k samples, by the lenient rule too: `maj_k` (the majority is right), `pass_k` (one of them
    is) and `pass_1` (the mean share of them that is). Where they hold rewards, their means: `reward`, the weighted
    sum, and `rewards/<name>`.
    """
    n = len(records)
    known = {share: column for share, column in SHARES.items() if all(column in record for record in records)}
    counts = {share: sum(record[column] for record in records) for share, column in known.items()}
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
    for name in rewards_of(records[0]):
        values = [value for record in records if (value := rewards_of(record)[name]) is not None]
        if values:
            summary[name], summary[f"{name}_low"], summary[f"{name}_high"] = mean_interval(values)
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
        read = record["extracted"] if record["extracted"] != record["completion"].strip() else ""
        parts = [f"answer read: {for_rich(read[:80]) or 'none'}"]
        if record["answer"] is not None:
            parts.append(f"gold: {for_rich(record['answer'])}")
        if "lenient" in record:
            parts.append("[green]right[/green]" if record["lenient"] else "[red]wrong[/red]")
        elif record.get("reward") is not None:
            parts.append(f"reward {record['reward']:.2f}")
        show(Panel(text + ", ".join(parts), title=f"a held-out question, {when}", title_align="left"))


def print_evaluations(evaluations: dict[str, dict[str, Any]], verdict: str = "", style: str = "bold") -> None:
    """Summaries beside each other (`before` and `after`, or one alone), with their intervals.

    Args:
        verdict: a sentence below them, printed in this style.
    """
    summaries = list(evaluations.values())
    k = summaries[0].get("k")
    sampled = {"maj_k": f"maj@{k}, sampled", "pass_k": f"pass@{k}, sampled"} if k else {}
    earned = [key for key in summaries[0] if key.startswith("reward") and f"{key}_low" in summaries[0]]
    names = {key: short_name(key.removeprefix("rewards/")) for key in earned}
    names |= {key: key.replace("_", ", ") for key in SHARES} | sampled
    caption = "strict: exactly the gold answer; lenient: however it is written"
    if "accuracy_lenient" not in summaries[0]:
        caption = "no accuracy without gold answers; reward: the weighted sum, not in per cent"
    elif judge := summaries[0].get("judge"):
        caption = f"lenient: right by {judge}; strict: that, and exactly the format"
    title = f"{summaries[0]['n']} held-out questions, greedy, in per cent (95 % interval)"
    table = Table(title=title, caption=caption, title_justify="left", min_width=64, caption_justify="left")
    table.add_column("")
    for heading in [*evaluations, *(["change"] if len(evaluations) == 2 else [])]:
        table.add_column(for_rich(heading), justify="right")
    _add_rows(table, summaries, names | {"mean_length": "mean length, tokens"})
    show(table)
    if verdict:
        show(for_rich(verdict), style=style)


def _add_rows(table: Table, summaries: Sequence[dict[str, Any]], names: dict[str, str]) -> None:
    """A row of each of these keys that all summaries have: shares in per cent, other values as they are."""
    for key, name in names.items():
        if not all(key in summary for summary in summaries):
            continue
        reward = key.startswith("reward")
        factor, digits, between = (1, 2, " to ") if reward else (1, 1, "") if key == "mean_length" else (100, 1, "-")
        cells = [f"{factor * summary[key]:.{digits}f}" for summary in summaries]
        for at, summary in enumerate(summaries):
            if (low := summary.get(f"{key}_low")) is not None:
                ends = [f"{factor * end:.{2 if reward else 0}f}" for end in (low, summary[f"{key}_high"])]
                cells[at] += f" ({between.join(ends)})"
        if len(summaries) == 2:
            cells.append(f"{factor * (summaries[1][key] - summaries[0][key]):+.{digits}f}")
        table.add_row(for_rich(name), *cells)
