"""Rows → the prompts and gold answers that are trained on and evaluated with, and what was dropped."""

import dataclasses
import functools
import random
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import datasets
import pandas as pd
from accelerate import PartialState
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from grpo.core.errors import UserError
from grpo.core.settings import IN_MEMORY, Config, ScriptArguments, as_list
from grpo.core.text import counted
from grpo.data import prompts
from grpo.data.gold import gold_answers, gold_mark, gold_solution
from grpo.data.prompts import Message, Prompt, PromptFormat, Shot, messages_of
from grpo.data.sources import Splits, join, load_source, load_sources, on_hub, take_split

# keyword arguments of a reward, and what makes TRL take prompts for those of a vision model
TRLS_OWN = {"prompts", "completions", "trainer_state", "log_extra", "log_metric", "image", "images"}

NEED_GOLD = ("correctness_reward_func",)  # of a caller that does not say what needs gold answers


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
    notes: list[str] = dataclasses.field(default_factory=list)  # on how rows were read, for preflight
    perfect: dict[str, float] = dataclasses.field(default_factory=dict)  # by reward: what preflight finds

    @property
    def has_golds(self) -> bool:
        """Whether every held-out question has a gold answer."""
        return None not in self.held_out["answer"][:]

    def facts(self) -> dict[str, Any]:
        """For run.json: how prompts are made, and rows by what became of them."""
        names = ("unusable", "overlap", "too_long")
        dropped = {name: getattr(self, name) for name in names}
        rows = {"train": len(self.train), "held_out": len(self.held_out), **dropped, "duplicates": self.duplicates}
        prompt = dataclasses.asdict(self.prompt_format)
        return {"prompt": prompt, "shots": list(self.shots), "data": rows, "perfect": self.perfect}


def load_data(
    config: Config,
    tokenizer: PreTrainedTokenizerBase,
    prompt_format: PromptFormat,
    exemplars: Sequence[Shot],
    rows: pd.DataFrame | Dataset | None = None,
    needs_gold: Sequence[str] = NEED_GOLD,
) -> Data:
    """Training and held-out rows, both with `prompt` and `answer`, sharing no question.

    Args:
        exemplars: worked examples; `num_shots` takes the first so many.
        rows: to be used instead of those that `dataset_name` names.
        needs_gold: the rewards and settings that need gold answers; where it is empty, rows may lack them.
    """
    script = config.script
    if script.num_shots > len(exemplars):
        raise UserError(f"num_shots: {script.num_shots} is more than there are exemplars; use 0 to {len(exemplars)}")
    names, other, source = as_list(script.dataset_name), as_list(script.eval_dataset_name), {}
    with PartialState().main_process_first():  # the others find the main process' download in the cache
        if rows is not None:
            source = {IN_MEMORY: load_source(rows)}
        elif not (script.eval_only and other):  # then nothing else is needed
            source = load_sources(names, script.dataset_config)
        # a configuration belongs to the training data, if these are of the Hub
        own = any(map(on_hub, names)) and not set(other) <= set(names)
        eval_source = load_sources(other, None if own else script.dataset_config, "eval_dataset_name")
    datasets.disable_progress_bars()  # of what takes no time from here on
    tokenize = functools.partial(prompts.tokenize, tokenizer=tokenizer, kwargs=config.template_kwargs)
    shots = exemplars[: script.num_shots]
    typed, seed = config.typed, config.training.seed
    return prepare(source, eval_source, script, prompt_format, shots, tokenize, seed, typed, needs_gold)


def prepare(
    source: Mapping[str, Splits],
    eval_source: Mapping[str, Splits],
    script: ScriptArguments,
    prompt_format: PromptFormat,
    shots: Sequence[Shot],
    tokenize: Callable[[Sequence[Prompt]], list[list[int]]],
    seed: int,
    typed: Container[str] = (),
    needs_gold: Sequence[str] = NEED_GOLD,
) -> Data:
    """Training and held-out rows; for an evaluation alone, the held-out ones are both.

    Of several data sets each holds out what it would alone, `eval_samples` and `max_samples` divided between them.

    Args:
        source: the splits of each data set of `dataset_name`; empty where an evaluation alone does without.
        eval_source: those of `eval_dataset_name`, empty where that is unset.
        shots: worked examples for each prompt.
        tokenize: prompts to token ids.
        typed: settings of the command line; with `eval_split`, nothing is cut from training rows instead.
        needs_gold: as in `build`.
    """
    columns = script.question_column, script.answer_column
    make_prompt = functools.partial(prompt_format.prompt, shots=shots)
    raw: dict[str, Dataset] = {}  # as they were read, by label; the training rows, where there are some
    unusable, several = 0, len(source) > 1 or len(eval_source) > 1

    def ask(label: str, rows: Dataset, kind: str, names: str | list[str] | None) -> Dataset:
        nonlocal unusable
        called = f"{kind} data {names if isinstance(names, str) else label!r}"
        raw[label] = rows
        asked, dropped = make_prompts(rows, make_prompt, *columns, called, needs_gold, prompt_format.pattern)
        unusable += dropped
        return with_source(asked, label) if several else asked

    split = script.eval_split.partition("[")[0]
    held: dict[str, Dataset] = {}
    for label, splits in (eval_source or source).items():
        if eval_source and len(splits) == 1:  # a file has no split names: its rows are what was asked for
            splits = {split: next(iter(splits.values()))}
        if eval_source or split in splits or "eval_split" in typed:
            rows = take_split(splits, script.eval_split, "eval_split")
            held[label] = ask(label, rows, "evaluation", script.eval_dataset_name or script.dataset_name)
    # an evaluation alone needs the training rows of those alone that have no others
    needed = [label for label in source if not script.eval_only or not (eval_source or label in held)]
    taken = {label: take_split(source[label], script.dataset_split) for label in needed}
    counts = divide(script.max_samples, [len(rows) for rows in taken.values()])
    train = {
        label: ask(label, rows.select(range(count)), "training", script.dataset_name)
        for (label, rows), count in zip(taken.items(), counts, strict=True)
    }
    cut = [] if eval_source else [label for label in train if label not in held]
    available = sum(map(len, held.values())) + sum(len(train[label]) // 10 for label in cut)
    sizes = [len(rows) for rows in held.values()] + [max(1, len(train[label]) // 10) for label in cut]
    for label, count in zip([*held, *cut], divide(script.eval_samples, sizes), strict=True):
        if label in held:
            held[label] = sample(held[label], count, seed)
        elif count == 0:  # more data sets than eval_samples
            held[label] = train[label].select([])
        else:
            train[label], held[label] = split_held_out(train[label], count, seed)
    held_out = join({label: held[label] for label in eval_source or source})
    overlap, limit = 0, None
    if script.eval_only:
        rows = held_out
    else:
        rows, overlap = drop_overlap(join(train), held_out)
        limit = script.max_prompt_length
    answers: dict[str, set[str | None]] = {}
    for question, answer in zip(rows["question"], rows["answer"], strict=True):
        answers.setdefault(canonical(question), set()).add(answer)
    lengths = [len(ids) for ids in tokenize(rows["prompt"])]
    kept, too_long = drop_long(rows, lengths, limit)
    return Data(
        prompt_format=prompt_format,
        shots=shots,
        train=kept,
        held_out=held_out,
        available=available,
        unusable=unusable,
        overlap=overlap,
        duplicates=len(rows) - len(answers),
        contradictory=sum(len(golds) > 1 for golds in answers.values()),
        lengths=lengths,
        too_long=too_long,
        solutions=_solutions([raw[label] for label in train or held], *columns, prompt_format.pattern),
        notes=_notes([raw[label] for label in train or held], prompt_format, script.question_column, typed),
    )


def _solutions(
    tables: Sequence[Dataset], question_column: str, answer_column: str, pattern: str
) -> dict[str, tuple[str, str]]:
    """Gold solutions by question, of at most a thousand rows: what comes before the marked answer, and the answer."""
    found = {}
    for rows in tables:
        some = rows.select(range(min(1000 // len(tables), len(rows))))
        asked = some[column_of(some, question_column)][:]
        solutions = some[answer_column][:] if answer_column in some.column_names else []
        mark = gold_mark(solutions, pattern)
        for question, solution in zip(asked, solutions, strict=False):
            text = question[-1]["content"] if isinstance(question, list) and question else question
            if isinstance(text, str) and (parts := gold_solution(solution, mark)):
                found[canonical(text)] = parts
    return found


def _notes(
    tables: Sequence[Dataset], prompt_format: PromptFormat, question_column: str, typed: Container[str]
) -> list[str]:
    """What was decided for the user, for preflight; UserError for a template that was typed and is not used."""
    found = []
    if any(column_of(rows, question_column) != question_column for rows in tables):
        found.append(f"the questions are in 'prompt', where there is no column {question_column!r}")
    asked = [rows[column_of(rows, question_column)][:] for rows in tables]
    lists = [cell for cells in asked if cells and not isinstance(cells[0], str) for cell in cells]
    chats = [messages for cell in lists if (messages := messages_of(cell))]
    if chats and len(chats) == sum(map(len, tables)) and "question_template" in typed:
        raise UserError("question_template: it has no effect on messages, which are used as they are; drop it")
    if chats:
        added = sum(map(prompt_format.adds_system, chats))
        prompt = "system prompt" if prompt_format.chat else "opening"
        with_ours = f"the run's {prompt} goes before {added:,}, which neither have one nor show the format"
        found.append(
            f"{counted(len(chats), 'prompt')} as messages, used as they are" + (f"; {with_ours}" if added else "")
        )
    return found


# --- Prompts and gold answers -------------------------------------------------------------------------------------


def column_of(rows: Dataset, question_column: str) -> str:
    """The column of questions: `prompt`, TRL's own name for it, where there is no `question`."""
    names = rows.column_names
    return (
        "prompt"
        if question_column == "question" and "question" not in names and "prompt" in names
        else question_column
    )


def make_prompts(
    rows: Dataset,
    make_prompt: Callable[[str | list[Message]], Prompt],
    question_column: str = "question",
    answer_column: str = "answer",
    label: str = "dataset",
    needs_gold: Sequence[str] = NEED_GOLD,
    pattern: str = "xml",
) -> tuple[Dataset, int]:
    """Add the columns `question`, `prompt` and `answer` (the gold answer); other columns stay.

    A question is text, or a list of messages, whose last one is then the `question`.

    Args:
        label: what errors call these rows.
        needs_gold: as in `build`; where nothing needs gold answers, `answer` is None in rows without one.
        pattern: the run's answer pattern, which gold answers may have, too.

    Returns:
        The rows that have a question and, if needed, a gold answer, and how many were dropped because they lack one.
    """
    question_column, have = column_of(rows, question_column), ", ".join(rows.column_names)
    without = f", or do without {' and '.join(needs_gold)}" if needs_gold and needs_gold != NEED_GOLD else ""
    if question_column not in rows.column_names:
        raise UserError(
            f"question_column: {label} has no column {question_column!r}; it has {have}: name one with "
            "--question_column"
        )
    if answer_column not in rows.column_names and (needs_gold or answer_column != "answer"):
        raise UserError(
            f"answer_column: {label} has no column {answer_column!r}; it has {have}: name one with "
            f"--answer_column{without}"
        )
    if question_column == answer_column:  # each prompt would contain its gold answer
        raise UserError(
            f"answer_column: {answer_column!r} is the question_column, too, and would be in the prompts; name another"
        )
    if reserved := [name for name in rows.column_names if name in TRLS_OWN]:
        raise UserError(f"{label}: TRL reserves these column names: {', '.join(reserved)}; rename the columns")
    # A list: indexing a column selects it anew for every row, which for a thousand rows takes half a second
    asked = [
        _question(cell, f"question_column: row {number} of {label} (column {question_column!r})")
        for number, cell in enumerate(rows[question_column][:], 1)
    ]
    answers = gold_answers(rows[answer_column], pattern) if answer_column in rows.column_names else [None] * len(rows)
    texts = [cell if isinstance(cell, str) else cell[-1]["content"] for cell in asked]
    kept = [index for index, text in enumerate(texts) if text.strip() and (answers[index] or not needs_gold)]
    if not kept:
        gold = (
            f" and a gold answer in {answer_column!r} (`… #### 72`, `\\boxed{72}`, or 72 alone)" if needs_gold else ""
        )
        raise UserError(
            f"{'answer' if needs_gold else 'question'}_column: none of the {len(rows)} rows of {label} has a question "
            f"in {question_column!r} (as text){gold}; name other columns, or fix the rows{without}"
        )
    made = {
        "question": [texts[index] for index in kept],
        "prompt": [make_prompt(asked[index]) for index in kept],
        "answer": [answers[index] for index in kept],
    }
    result = Dataset.from_dict(made)
    others = rows.select(kept).remove_columns([name for name in made if name in rows.column_names])
    if others.column_names:
        result = datasets.concatenate_datasets([others.flatten_indices(), result], axis=1)
    return result, len(rows) - len(kept)


def _question(cell: Any, where: str) -> str | list[Message]:
    """What a cell asks; an empty text where it asks nothing."""
    if isinstance(cell, str):
        return cell
    try:
        return messages_of(cell) or ""
    except ValueError as error:
        raise UserError(f"{where}: {error}") from None


def with_source(rows: Dataset, label: str) -> Dataset:
    """The rows with the column `source`: which data set they are of, where they do not say it themselves."""
    own = rows["source"][:] if "source" in rows.column_names else [None] * len(rows)
    texts = [label if value is None or not str(value).strip() else str(value) for value in own]
    rest = rows.remove_columns("source") if "source" in rows.column_names else rows
    return datasets.concatenate_datasets([rest.flatten_indices(), Dataset.from_dict({"source": texts})], axis=1)


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


def divide(total: int | None, sizes: Sequence[int]) -> list[int]:
    """`total` in proportion to the sizes, 1 of each at least where it is enough; all of them where it is None.

    >>> divide(10, [60, 30, 1]), divide(None, [3, 4]), divide(1, [5, 9])
    ([6, 3, 1], [3, 4], [0, 1])
    """
    if total is None or total >= sum(sizes):
        return list(sizes)
    exact = [total * size / sum(sizes) for size in sizes]
    found = [max(int(share), int(total >= len(sizes))) for share in exact]
    while sum(found) < total:  # the largest remainders
        found[max(range(len(sizes)), key=lambda at: exact[at] - found[at])] += 1
    while sum(found) > total:
        found[found.index(max(found))] -= 1
    return found


def sample(rows: Dataset, count: int | None, seed: int) -> Dataset:
    """A seeded sample of at most `count` rows, in their order; all of them where `count` is None."""
    if count is None or count >= len(rows):
        return rows
    return rows.select(sorted(random.Random(seed).sample(range(len(rows)), count)))


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
