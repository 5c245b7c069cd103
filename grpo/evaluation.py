"""Honest evaluation: one greedy completion for each held-out question, scored strictly and leniently."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from datasets import Dataset
from rich.console import Console
from rich.table import Table
from tqdm.auto import tqdm
from transformers import GenerationConfig

from rewards import extract_xml_answer, has_soft_format, has_strict_format, is_numerically_correct

from .prompts import questions, tokenize

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


def eos_ids(model: Any, tokenizer: Any) -> list[int]:
    """Every token that ends a completion: the tokenizer's and all that the model declares (TRL does the same)."""
    declared = model.generation_config.eos_token_id
    declared = [] if declared is None else [declared] if isinstance(declared, int) else list(declared)
    return list(dict.fromkeys([tokenizer.eos_token_id, *declared]))


@torch.no_grad()
def generate_greedy(
    model: Any, tokenizer: Any, prompts: Sequence[list[int]], max_new_tokens: int, batch_size: int
) -> list[tuple[list[int], bool]]:
    """One greedy completion per prompt, in order: its token ids up to its end, and whether it was cut off.

    Prompts are token ids; they are batched by length, so little of the work is padding. All processes share the
    prompts among them, and all of them get all the completions.
    """
    state = PartialState()
    ends = eos_ids(model, tokenizer)
    config = GenerationConfig(
        max_new_tokens=max_new_tokens,
        do_sample=False,
        # model repositories ship sampling defaults (Qwen2.5's repetition_penalty is 1.1): not ours
        num_beams=1,
        repetition_penalty=1.0,
        temperature=1.0,
        top_p=1.0,
        top_k=50,
        eos_token_id=ends,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
    )
    order = sorted(range(len(prompts)), key=lambda index: -len(prompts[index]))
    order = order[state.process_index :: state.num_processes]
    batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    training, completions = model.training, []
    model.eval()
    for batch in tqdm(batches, desc="evaluate", disable=not state.is_main_process):
        inputs = {"input_ids": [prompts[index] for index in batch]}
        padded = tokenizer.pad(inputs, padding_side="left", return_tensors="pt")
        output = model.generate(**padded.to(model.device), generation_config=config)
        for index, row in zip(batch, output[:, padded["input_ids"].shape[1] :].tolist(), strict=True):
            end = next((position for position, token in enumerate(row) if token in ends), None)
            completions.append((index, row[:end], end is None))
    model.train(training)
    return [(ids, cut) for _, ids, cut in sorted(gather_object(completions))]


def evaluate(
    model: Any,
    tokenizer: Any,
    rows: Dataset,
    max_new_tokens: int,
    batch_size: int = 64,
    chat_template_kwargs: dict[str, Any] | None = None,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Greedy pass@1 on rows with `prompt` and `answer`.

    Returns:
        The summary, flat (`n`; shares in [0, 1] with 95 % Wilson intervals as `…_low` and `…_high`; `mean_length`
        in tokens; `seconds`), and one record per question, in the order of the rows.
    """
    start = time.perf_counter()
    prompts = tokenize(rows["prompt"], tokenizer, chat_template_kwargs)
    completions = generate_greedy(model, tokenizer, prompts, max_new_tokens, batch_size)
    records = []
    for question, gold, (ids, cut) in zip(questions(rows), rows["answer"], completions, strict=True):
        text = tokenizer.decode(ids, skip_special_tokens=True)
        extracted = extract_xml_answer(text)
        records.append(
            {
                "question": question,
                "answer": gold,
                "completion": text,
                "extracted": extracted,
                "strict": extracted == gold,
                "lenient": is_numerically_correct(text, gold),
                "format_strict": has_strict_format(text),
                "format_soft": has_soft_format(text),
                "truncated": cut,
                "length": len(ids),
            }
        )
    return {**summarize(records), "seconds": round(time.perf_counter() - start, 2)}, records


def summarize(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Shares and intervals over the records of `evaluate`."""
    n = len(records)
    summary: dict[str, Any] = {"n": n}
    for share, column in SHARES.items():
        count = sum(record[column] for record in records)
        summary[share] = count / n
        summary[f"{share}_low"], summary[f"{share}_high"] = wilson(count, n)
    summary["mean_length"] = sum(record["length"] for record in records) / n
    return summary


def save(directory: Path, when: str, summary: dict[str, Any], records: Sequence[dict[str, Any]]) -> None:
    """Write `eval_<when>.json` and `completions_<when>.jsonl`."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"eval_{when}.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    (directory / f"completions_{when}.jsonl").write_text(lines, encoding="utf-8")


def print_side_by_side(before: dict[str, Any], after: dict[str, Any]) -> None:
    """The two summaries beside each other, shares in per cent with their 95 % intervals."""
    table = Table(
        title=f"{after['n']} held-out questions, greedy, in per cent (95 % interval)",
        caption="strict: the answer tag holds exactly the gold answer; lenient: the right number, wherever it stands",
        title_justify="left",
        caption_justify="left",
    )
    for heading in ("", "before", "after", "change"):
        table.add_column(heading, justify="right" if heading else "left")

    def cell(summary: dict[str, Any], key: str) -> str:
        return f"{100 * summary[key]:.1f} ({100 * summary[f'{key}_low']:.0f}-{100 * summary[f'{key}_high']:.0f})"

    for key in SHARES:
        cells = cell(before, key), cell(after, key)
        table.add_row(key.replace("_", ", "), *cells, f"{100 * (after[key] - before[key]):+.1f}")
    lengths = before["mean_length"], after["mean_length"]
    table.add_row("mean length, tokens", *(f"{length:.1f}" for length in lengths), f"{lengths[1] - lengths[0]:+.1f}")
    Console().print(table)
