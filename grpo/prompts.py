"""Rows of any source → the prompts and gold answers that are trained on and evaluated with."""

import json
import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import datasets
import pandas as pd
from datasets import Dataset, DatasetDict, ReadInstruction

from rewards import extract_hash_answer

from . import UserError

Message = dict[str, str]
FILE_TYPES = (".jsonl", ".csv", ".parquet")
TRLS_OWN = {"prompts", "completions", "trainer_state", "log_extra", "log_metric"}  # keyword arguments of a reward

# --- Sources ------------------------------------------------------------------------------------------------------


def load_source(name: str, config: str | None = None) -> dict[str, Dataset]:
    """All splits of a data source: a file, a directory written by `save_to_disk`, or a Hub id.

    A file and a saved Dataset have one split, `train`. UserError where there is nothing to be read.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return _load_saved(path)
    if path.suffix in FILE_TYPES:
        rows = _READERS[path.suffix](path)
        if not rows:
            raise UserError(f"dataset {name!r} holds no rows")
        return {"train": rows if isinstance(rows, Dataset) else _from_rows(rows, name)}
    if path.exists():
        raise UserError(f"dataset {name!r} is no {', '.join(FILE_TYPES)} file; convert it to one of these")
    if path.is_absolute() or name.startswith(".") or name.count("/") > 1:
        raise UserError(f"dataset {name!r} does not exist; give a file, a saved dataset's directory or a Hub id")
    try:
        return dict(datasets.load_dataset(name, config))
    except (OSError, ValueError) as error:
        reason = str(error).strip().split("\n")[0]
        raise UserError(
            f"dataset {name!r} (configuration {config}) cannot be loaded from the Hub: {reason}; give a local .jsonl, "
            ".csv or .parquet file with --dataset_name to work without it"
        ) from None


def _load_saved(path: Path) -> dict[str, Dataset]:
    try:
        saved = datasets.load_from_disk(str(path))
    except (OSError, ValueError) as error:
        reason = str(error).strip().split("\n")[0]
        raise UserError(f"dataset {str(path)!r} is a directory, but no saved dataset ({reason})") from None
    return dict(saved) if isinstance(saved, DatasetDict) else {"train": saved}


def _open_text(path: Path) -> list[str]:
    try:
        # split("\n"), not splitlines(): JSON strings may hold U+2028 and its like
        return path.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise UserError(f"dataset {str(path)!r} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"dataset {str(path)!r} is not UTF-8 text (byte {error.start})") from None


def _read_jsonl(path: Path) -> list[dict[str, Any]]:
    rows = []
    for number, line in enumerate(_open_text(path), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"dataset {str(path)!r}, line {number}: broken JSON ({error.msg})") from None
        if not isinstance(row, dict):
            raise UserError(f"dataset {str(path)!r}, line {number}: a JSON object is needed, not {line[:40]!r}")
        rows.append(row)
    return rows


def _read_csv(path: Path) -> list[dict[str, Any]]:
    _open_text(path)
    try:
        # as text: a column of answers must not turn 18 into 18.0
        return pd.read_csv(path, dtype=str, keep_default_na=False).to_dict("records")
    except (ValueError, pd.errors.ParserError) as error:
        raise UserError(f"dataset {str(path)!r} is no valid CSV: {error}") from None


def _read_parquet(path: Path) -> Dataset:
    try:
        return Dataset.from_pandas(pd.read_parquet(path), preserve_index=False)
    except (OSError, ValueError) as error:
        raise UserError(f"dataset {str(path)!r} is no valid Parquet file: {error}") from None


def _from_rows(rows: list[dict[str, Any]], name: str) -> Dataset:
    columns = {key: None for row in rows for key in row}  # rows may lack keys
    try:
        return Dataset.from_dict({key: [row.get(key) for row in rows] for key in columns})
    except (ValueError, TypeError, OverflowError) as error:  # pyarrow's errors are among these
        raise UserError(f"dataset {name!r} mixes types within a column: {error}") from None


_READERS: dict[str, Callable[[Path], Any]] = {".jsonl": _read_jsonl, ".csv": _read_csv, ".parquet": _read_parquet}


def take_split(source: dict[str, Dataset], spec: str) -> Dataset:
    """One split, or a slice of one in datasets' notation: `train`, `train[:1000]`, `train[10%:20%]`."""
    try:
        parts = ReadInstruction.from_spec(spec).to_absolute({name: len(rows) for name, rows in source.items()})
    except (ValueError, AssertionError) as error:
        raise UserError(
            f"split {spec!r} cannot be taken: {error}; there is {', '.join(source)}; slice it as train[:1000]"
        ) from None
    slices = [(source[part.splitname], slice(part.from_, part.to)) for part in parts]
    rows = datasets.concatenate_datasets([split.select(list(range(len(split))[cut])) for split, cut in slices])
    if len(rows) == 0:
        sizes = ", ".join(f"{name} has {len(split)} rows" for name, split in source.items())
        raise UserError(f"split {spec!r} holds no rows; {sizes}")
    return rows


# --- Prompts ------------------------------------------------------------------------------------------------------


def render(question: str, system_prompt: str, shots: Iterable[tuple[str, str]] = ()) -> list[Message]:
    """A chat prompt: system message, worked examples as turns, and the question."""
    turns = [(role, text) for shot in shots for role, text in zip(("user", "assistant"), shot, strict=True)]
    messages = [("system", system_prompt), *turns, ("user", question)]
    return [{"role": role, "content": text} for role, text in messages]


def make_prompts(
    rows: Dataset,
    make_prompt: Callable[[str], list[Message]],
    question_column: str = "question",
    answer_column: str = "answer",
) -> tuple[Dataset, int]:
    """Add the columns `prompt` and `answer` (what follows `####`); other columns stay.

    Returns:
        The rows that have a question and a gold answer, and how many were dropped because they lack one.
    """
    for key, column in (("question_column", question_column), ("answer_column", answer_column)):
        if column not in rows.column_names:
            have = ", ".join(rows.column_names)
            raise UserError(f"{key}: the dataset has no column {column!r}; it has {have}: name one with --{key}")
    for name in TRLS_OWN & set(rows.column_names):
        raise UserError(f"dataset: the column {name!r} has a name that TRL passes to rewards itself; rename it")
    kept, prompts, answers = [], [], []
    for index, (question, solution) in enumerate(zip(rows[question_column], rows[answer_column], strict=True)):
        answer = extract_hash_answer(solution) if isinstance(solution, str) else None
        if answer and isinstance(question, str) and question.strip():
            kept.append(index)
            prompts.append(make_prompt(question))
            answers.append(answer)
    if not kept:
        raise UserError(
            f"answer_column: none of the {len(rows)} rows has a question in {question_column!r} and a gold answer "
            f"after `####` in {answer_column!r}"
        )
    result = rows.select(kept).add_column("new prompt", prompts).add_column("new answer", answers)
    result = result.remove_columns([name for name in ("prompt", "answer") if name in result.column_names])
    result = result.rename_columns({"new prompt": "prompt", "new answer": "answer"})
    return result, len(rows) - len(kept)


def questions(rows: Dataset) -> list[str]:
    """The questions of rows that `make_prompts` made: what the user says last."""
    return [prompt[-1]["content"] for prompt in rows["prompt"]]


def drop_long(rows: Dataset, lengths: Sequence[int], max_prompt_length: int | None) -> tuple[Dataset, int]:
    """Rows whose rendered prompt has at most `max_prompt_length` tokens, and how many were dropped.

    Prompts are never cut: the old left truncation cut off the system prompt.
    """
    if max_prompt_length is None:
        return rows, 0
    kept = [index for index, length in enumerate(lengths) if length <= max_prompt_length]
    if not kept:
        raise UserError(
            f"max_prompt_length: all {len(rows)} prompts are longer than {max_prompt_length} tokens (the shortest has "
            f"{min(lengths)}); raise it or lower num_shots"
        )
    return rows.select(kept), len(rows) - len(kept)


def tokenize(prompts: Sequence[list[Message]], tokenizer: Any, kwargs: dict | None = None) -> list[list[int]]:
    """Token ids of chat prompts, up to where the assistant begins: the same ids that TRL generates from.

    `kwargs` are GRPOConfig's `chat_template_kwargs`.
    """
    return tokenizer.apply_chat_template(
        list(prompts), add_generation_prompt=True, tokenize=True, return_dict=True, **(kwargs or {})
    )["input_ids"]


# --- Held-out questions -------------------------------------------------------------------------------------------


def sample(rows: Dataset, count: int | None, seed: int) -> Dataset:
    """A seeded sample of at most `count` rows, in their order; all of them where `count` is None."""
    if count is None or count >= len(rows):
        return rows
    return rows.select(sorted(random.Random(seed).sample(range(len(rows)), count)))


def split_held_out(rows: Dataset, count: int, seed: int) -> tuple[Dataset, Dataset]:
    """Cut a seeded slice of `count` rows, at most a tenth, off the training rows: (training, held out)."""
    if len(rows) < 2:
        raise UserError(f"dataset: {len(rows)} row(s) cannot be split into training and evaluation; give more rows")
    held_out = set(random.Random(seed).sample(range(len(rows)), max(1, min(count, len(rows) // 10))))
    training = [index for index in range(len(rows)) if index not in held_out]
    return rows.select(training), rows.select(sorted(held_out))


def drop_overlap(rows: Dataset, held_out: Dataset) -> tuple[Dataset, int]:
    """Training rows whose question is not among the held-out ones, and how many were dropped."""
    taken = {" ".join(question.split()) for question in questions(held_out)}
    kept = [index for index, question in enumerate(questions(rows)) if " ".join(question.split()) not in taken]
    if not kept:
        raise UserError("dataset: every training question is among the held-out ones; give another eval_dataset_name")
    return rows.select(kept), len(rows) - len(kept)
