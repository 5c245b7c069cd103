"""Rows → the prompts and gold answers that are trained on and evaluated with, and what was dropped."""

import dataclasses
import functools
import random
from collections.abc import Callable, Sequence
from typing import Any

import datasets
import pandas as pd
from accelerate import PartialState
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from grpo.core.checklist import counted
from grpo.core.errors import UserError
from grpo.core.settings import Config, ScriptArguments
from grpo.data import prompts
from grpo.data.gold import gold_answers
from grpo.data.prompts import Prompt, PromptFormat, Shot
from grpo.data.sources import load_source, take_split
from rewards import extract_hash_answer

# keyword arguments of a reward, and what makes TRL take prompts for those of a vision model
TRLS_OWN = {"prompts", "completions", "trainer_state", "log_extra", "log_metric", "image", "images"}


@dataclasses.dataclass(frozen=True)
class Data:
    """What a run trains on and is measured with, and the counts that preflight reports."""

    prompt_format: PromptFormat
    shots: Sequence[Shot]
    train: Dataset  # with `question`, `prompt` and `answer`, as has `held_out`; they share no question
    held_out: Dataset
    available: int  # questions that could be held out, without eval_samples
    unusable: int  # rows of either that had no question or no gold answer
    overlap: int  # training rows dropped because they ask a held-out question
    duplicates: int  # training rows that ask a question again
    contradictory: int  # questions among them with different gold answers
    lengths: list[int]  # tokens of every training prompt, those that were dropped for it included
    too_long: int
    solutions: dict[str, tuple[str, str]]  # question: (reasoning, answer), of at most a thousand gold solutions
    picking: Dataset | None = None  # other held-out questions, which pick the best checkpoint (keep_best)
    too_hard: int = 0  # training rows below and above filter_pass_rate
    too_easy: int = 0
    perfect: dict[str, float] = dataclasses.field(default_factory=dict)  # by reward: what preflight finds

    def facts(self) -> dict[str, Any]:
        """For run.json: how prompts are made, and rows by what became of them."""
        names = ("unusable", "overlap", "too_long", "too_hard", "too_easy")
        dropped = {name: getattr(self, name) for name in names}
        rows = {"train": len(self.train), "held_out": len(self.held_out), **dropped, "duplicates": self.duplicates}
        rows["picking"] = len(self.picking or ())
        prompt = dataclasses.asdict(self.prompt_format)
        return {"prompt": prompt, "shots": list(self.shots), "data": rows, "perfect": self.perfect}


def build(
    config: Config,
    tokenizer: PreTrainedTokenizerBase,
    prompt_format: PromptFormat,
    exemplars: Sequence[Shot],
    rows: pd.DataFrame | Dataset | None = None,
) -> Data:
    """Training and held-out rows, both with `prompt` and `answer`, sharing no question.

    Args:
        exemplars: worked examples; `num_shots` takes the first so many.
        rows: to be used instead of those that `dataset_name` names.
    """
    script = config.script
    if script.num_shots > len(exemplars):
        raise UserError(f"num_shots: {script.num_shots} is more than there are exemplars; use 0 to {len(exemplars)}")
    with PartialState().main_process_first():  # the others find the main process' download in the cache
        other = script.eval_dataset_name
        alone = script.eval_only and other  # then nothing else is needed
        name = script.dataset_name if rows is None else rows
        source = {} if alone else load_source(name, script.dataset_config)
        eval_source = load_source(other, script.dataset_config, "eval_dataset_name") if other else None
    datasets.disable_progress_bars()  # of what takes no time from here on
    tokenize = functools.partial(prompts.tokenize, tokenizer=tokenizer, kwargs=config.template_kwargs)
    shots = exemplars[: script.num_shots]
    typed = "eval_split" in config.typed
    return prepare(source, eval_source, script, prompt_format, shots, tokenize, config.training.seed, typed)


def prepare(
    source: dict[str, Dataset],
    eval_source: dict[str, Dataset] | None,
    script: ScriptArguments,
    prompt_format: PromptFormat,
    shots: Sequence[Shot],
    tokenize: Callable[[Sequence[Prompt]], list[list[int]]],
    seed: int,
    must_exist: bool = False,
) -> Data:
    """Training and held-out rows; for an evaluation alone, the held-out ones are both.

    Args:
        source: the splits of `dataset_name`; empty where an evaluation alone does without.
        eval_source: those of `eval_dataset_name`, None where that is unset.
        shots: worked examples for each prompt.
        tokenize: prompts to token ids.
        must_exist: `eval_split` is not cut from the training rows where the source lacks it.
    """
    columns = script.question_column, script.answer_column
    make_prompt = functools.partial(prompt_format.prompt, shots=shots)
    split = script.eval_split.partition("[")[0]
    if eval_source and len(eval_source) == 1:  # a file has no split names: its rows are what was asked for
        eval_source = {split: next(iter(eval_source.values()))}
    unusable, given, picking = 0, None, None
    if eval_source or split in source or must_exist:
        raw = take_split(eval_source or source, script.eval_split, "eval_split")
        label = f"evaluation data {(script.eval_dataset_name or script.dataset_name)!r}"
        given, unusable = make_prompts(raw, make_prompt, *columns, label=label)
        available = len(given)
        all_given, given = given, sample(given, script.eval_samples, seed)
        picking = sample_others(all_given, given, seed) if script.keep_best else None
    if given is not None and script.eval_only:
        rows = held_out = given
    else:
        raw = take_split(source, script.dataset_split)
        raw = raw.select(range(min(script.max_samples or len(raw), len(raw))))
        rows, more = make_prompts(raw, make_prompt, *columns, label=f"training data {script.dataset_name!r}")
        unusable += more
        if given is None:
            available = len(rows) // 10
            rows, held_out = split_held_out(rows, script.eval_samples or len(rows), seed)
            if script.keep_best and available >= 2 * len(held_out):
                rows, more_held_out = split_held_out(rows, len(held_out), seed)
                picking, _ = drop_overlap(more_held_out, held_out)
        else:
            held_out = given
    overlap, limit = 0, None
    if script.eval_only:
        rows = held_out
    else:
        rows, overlap = drop_overlap(rows, held_out)
        if picking:
            rows, more = drop_overlap(rows, picking)
            overlap += more
        limit = script.max_prompt_length
    answers: dict[str, set[str]] = {}
    for question, answer in zip(rows["question"], rows["answer"], strict=True):
        answers.setdefault(canonical(question), set()).add(answer)
    lengths = [len(ids) for ids in tokenize(rows["prompt"])]
    train, too_long = drop_long(rows, lengths, limit)
    return Data(
        prompt_format=prompt_format,
        shots=shots,
        train=train,
        held_out=held_out,
        picking=picking,
        available=available,
        unusable=unusable,
        overlap=overlap,
        duplicates=len(rows) - len(answers),
        contradictory=sum(len(golds) > 1 for golds in answers.values()),
        lengths=lengths,
        too_long=too_long,
        solutions=_solutions(raw.select(range(min(1000, len(raw)))), *columns),
    )


def _solutions(rows: Dataset, question_column: str, answer_column: str) -> dict[str, tuple[str, str]]:
    """Gold solutions by question: what comes before `####`, and the answer."""
    pairs = zip(rows[question_column], rows[answer_column], strict=True)
    return {
        canonical(question): (solution.partition("####")[0].strip(), answer)
        for question, solution in pairs
        if isinstance(question, str) and isinstance(solution, str) and (answer := extract_hash_answer(solution))
    }


# --- Prompts and gold answers -------------------------------------------------------------------------------------


def make_prompts(
    rows: Dataset,
    make_prompt: Callable[[str], Prompt],
    question_column: str = "question",
    answer_column: str = "answer",
    label: str = "dataset",
) -> tuple[Dataset, int]:
    """Add the columns `question`, `prompt` and `answer` (the gold answer); other columns stay.

    Args:
        label: what errors call these rows.

    Returns:
        The rows that have a question and a gold answer, and how many were dropped because they lack one.
    """
    for key, column in (("question_column", question_column), ("answer_column", answer_column)):
        if column not in rows.column_names:
            have = ", ".join(rows.column_names)
            raise UserError(f"{key}: {label} has no column {column!r}; it has {have}: name one with --{key}")
    if question_column == answer_column:  # each prompt would contain its gold answer
        raise UserError(
            f"answer_column: {answer_column!r} is the question_column, too, and would be in the prompts; name another"
        )
    if reserved := [name for name in rows.column_names if name in TRLS_OWN]:
        raise UserError(f"{label}: TRL reserves these column names: {', '.join(reserved)}; rename the columns")
    # A list: indexing a column selects it anew for every row, which for a thousand rows takes half a second
    asked, answers = rows[question_column][:], gold_answers(rows[answer_column])
    kept = [
        index
        for index, (question, answer) in enumerate(zip(asked, answers, strict=True))
        if answer and isinstance(question, str) and question.strip()
    ]
    if not kept:
        raise UserError(
            f"answer_column: none of the {len(rows)} rows of {label} has a question in {question_column!r} (as text) "
            f"and a gold answer in {answer_column!r} (`… #### 72`, or 72 alone); name other columns, or fix the rows"
        )
    made = {
        "question": [asked[index] for index in kept],
        "prompt": [make_prompt(asked[index]) for index in kept],
        "answer": [answers[index] for index in kept],
    }
    result = Dataset.from_dict(made)
    others = rows.select(kept).remove_columns([name for name in made if name in rows.column_names])
    if others.column_names:
        result = datasets.concatenate_datasets([others.flatten_indices(), result], axis=1)
    return result, len(rows) - len(kept)


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


# --- Held-out questions -------------------------------------------------------------------------------------------


def sample(rows: Dataset, count: int | None, seed: int) -> Dataset:
    """A seeded sample of at most `count` rows, in their order; all of them where `count` is None."""
    if count is None or count >= len(rows):
        return rows
    return rows.select(sorted(random.Random(seed).sample(range(len(rows)), count)))


def sample_others(rows: Dataset, taken: Dataset, seed: int) -> Dataset | None:
    """As many other questions as are taken, a seeded sample in their order; None where there are fewer."""
    known = set(map(canonical, taken["question"]))
    free = [index for index, question in enumerate(rows["question"]) if canonical(question) not in known]
    if len(free) < len(taken):
        return None
    return rows.select(sorted(random.Random(seed).sample(free, len(taken))))


def split_held_out(rows: Dataset, count: int, seed: int) -> tuple[Dataset, Dataset]:
    """Cut a seeded slice of `count` rows, at most a tenth, off the training rows: (training, held out)."""
    if len(rows) < 2:
        raise UserError(
            f"dataset: {counted(len(rows), 'row')} cannot be split into training and evaluation; add more rows"
        )
    held_out = set(random.Random(seed).sample(range(len(rows)), max(1, min(count, len(rows) // 10))))
    training = [index for index in range(len(rows)) if index not in held_out]
    return rows.select(training), rows.select(sorted(held_out))


def drop_overlap(rows: Dataset, held_out: Dataset) -> tuple[Dataset, int]:
    """Training rows whose question is not among the held-out ones, and how many were dropped."""
    taken = set(map(canonical, held_out["question"]))
    kept = [index for index, question in enumerate(rows["question"]) if canonical(question) not in taken]
    if not kept:
        raise UserError(
            "dataset: every training question is among the held-out ones; use other training rows, or another "
            "eval_dataset_name"
        )
    return rows.select(kept), len(rows) - len(kept)
