"""Rows → the prompts and gold answers that are trained on and evaluated with, and what was left out on the way."""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from datasets import Dataset

from rewards import extract_hash_answer

from . import UserError
from .sources import take_split

Message = dict[str, str]
TRLS_OWN = {"prompts", "completions", "trainer_state", "log_extra", "log_metric"}  # keyword arguments of a reward


@dataclass(frozen=True)
class Data:
    """What a run trains on and is measured with, and the counts that preflight reports."""

    train: Dataset  # with `prompt` (chat messages) and `answer`, as has `held_out`; they share no question
    held_out: Dataset
    unusable: int  # rows of either that had no question or no gold answer
    overlap: int  # training rows dropped because they ask a held-out question
    duplicates: int  # training rows that ask a question again
    contradictory: int  # questions among them with different gold answers
    lengths: list[int]  # tokens of every training prompt, those that were dropped for it included
    too_long: int
    solutions: dict[str, tuple[str, str]]  # question: (reasoning, answer), of at most a thousand gold solutions

    def counts(self) -> dict[str, int]:
        """Rows by what became of them, for run.json."""
        dropped = {"unusable": self.unusable, "overlap": self.overlap, "too_long": self.too_long}
        return {"train": len(self.train), "held_out": len(self.held_out), **dropped, "duplicates": self.duplicates}


def prepare(
    source: dict[str, Dataset],
    eval_source: dict[str, Dataset] | None,
    script: Any,
    make_prompt: Callable[[str], list[Message]],
    tokenize: Callable[[Sequence[list[Message]]], list[list[int]]],
    seed: int,
) -> Data:
    """Training and held-out rows; for an evaluation alone, only the held-out ones, in the place of both.

    Args:
        source: the splits of `dataset_name`; empty where an evaluation alone does without.
        eval_source: those of `eval_dataset_name`, None where that is unset.
        script: the ScriptArguments.
        tokenize: chat prompts to token ids.
    """
    columns = script.question_column, script.answer_column
    name = script.eval_split.partition("[")[0]
    if eval_source and len(eval_source) == 1:  # a file has no split names: its rows are what was asked for
        eval_source = {name: next(iter(eval_source.values()))}
    given = take_split(eval_source or source, script.eval_split) if eval_source or name in source else None
    if script.eval_only and given is not None:
        raw = given
    else:
        raw = take_split(source, script.dataset_split)
        raw = raw.select(range(min(script.max_samples or len(raw), len(raw))))
    rows, unusable = make_prompts(raw, make_prompt, *columns)
    if given is None:
        rows, held_out = split_held_out(rows, script.eval_samples or len(rows), seed)
    else:
        held_out, more = (rows, 0) if raw is given else make_prompts(given, make_prompt, *columns)
        held_out, unusable = sample(held_out, script.eval_samples, seed), unusable + more
    if script.eval_only:
        rows, overlap = held_out, 0
    else:
        rows, overlap = drop_overlap(rows, held_out)
    answers: dict[str, set[str]] = {}
    for question, answer in zip(questions(rows), rows["answer"], strict=True):
        answers.setdefault(canonical(question), set()).add(answer)
    lengths = [len(ids) for ids in tokenize(rows["prompt"])]
    duplicates = len(rows) - len(answers)
    rows, too_long = drop_long(rows, lengths, None if script.eval_only else script.max_prompt_length)
    contradictory = sum(len(golds) > 1 for golds in answers.values())
    solutions = _solutions(raw.select(range(min(1000, len(raw)))), *columns)
    return Data(rows, held_out, unusable, overlap, duplicates, contradictory, lengths, too_long, solutions)


def _solutions(rows: Dataset, question_column: str, answer_column: str) -> dict[str, tuple[str, str]]:
    """Gold solutions by question: what stands before `####`, and the answer."""
    pairs = zip(rows[question_column], rows[answer_column], strict=True)
    return {
        canonical(question): (solution.partition("####")[0].strip(), answer)
        for question, solution in pairs
        if isinstance(question, str) and isinstance(solution, str) and (answer := extract_hash_answer(solution))
    }


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


def canonical(question: str) -> str:
    """Questions that differ in spaces or letter case only are the same."""
    return " ".join(question.split()).casefold()


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
    taken = set(map(canonical, questions(held_out)))
    kept = [index for index, question in enumerate(questions(rows)) if canonical(question) not in taken]
    if not kept:
        raise UserError("dataset: every training question is among the held-out ones; give another eval_dataset_name")
    return rows.select(kept), len(rows) - len(kept)
