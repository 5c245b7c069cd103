"""Turn rows into training and held-out prompts with gold answers, and count dropped rows."""

import dataclasses
import hashlib
import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import datasets
from accelerate import PartialState
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from exact_answers import same_answer
from grpo.core.errors import UserError, one_line, users_code
from grpo.core.settings import Config
from grpo.core.text import counted, listed, visible
from grpo.data.files import Row, Splits, parsed
from grpo.data.remedies import reason_without_rows, require_columns
from grpo.data.sources import NOT_ARROW, as_dataset, load_source, native, take_split
from grpo.task.gold import (
    alternatives,
    lacks_mark,
    mark_name,
    read_column,
    reasoning_before,
    where_marked,
)
from grpo.task.prompts import Message, Prompt, last_text, tokenized
from grpo.task.task import Task
from grpo.task.wrong import wrong_answer
from rewards import Gold

# Columns to drop: names of TRL's own arguments of rewards, a column that TRL never passes on, and columns that make
# it expect a vision model
RESERVED = (
    *("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric"),
    *("completion", "image", "images"),
)
# Messages as text: `[{"role": …, "content": …}]`, or with `from` and `value`, in any order
TALK = re.compile(
    r"""\s*\[\s*\{\s*['"](?:role['"]\s*:|(?:content|value)['"]\s*:.*['"](?:role|from)['"]\s*:"""
    r"""|from['"]\s*:.*['"]value['"]\s*:).*\}\s*\]\s*$""",
    re.DOTALL,
)
# What stands for an image in the questions of vision models
PLACEHOLDER = re.compile(r"<(?:image|video|audio)(?:_?\d+)?>|<\|(?:image|video|audio|vision)\w*\|>")
MEDIA = ("image", "images", "video", "videos", "audio", "audios")  # columns that a text model does not get
REASONING = "__reasoning"  # a temporary column: the gold solution without its answer


class Reading(NamedTuple):
    """Counts of a table's rows: read, with gold answers, dropped."""

    rows: int
    mark: str | None  # of the gold answers
    golds: int
    dropped: int  # without a question or a gold answer
    unmarked: int  # dropped rows whose answer lacks the others' mark


@dataclasses.dataclass(frozen=True, kw_only=True)
class Questions:
    """The held-out questions, and what preflight reports of their data."""

    held_out: Dataset  # columns `question`, `prompt`, `answer` and the data's other ones
    readings: list[Reading]  # of the tables that were read
    cut_off: bool  # True if the held-out rows were cut off the training rows
    lengths: list[int]  # tokens of the prompts of `rows`, and of those dropped for their length
    tokens: str  # a hash of the tokens of these prompts, and of the end token
    too_long: int = 0  # training rows dropped for their length
    reasoning: list[str]  # text before the answer in the first thousand gold solutions of `rows`
    reserved: list[str]  # columns dropped because TRL uses their names
    media: list[str]  # columns with images, videos or sound, which the model does not get
    placeholders: list[str]  # of the questions with one, `<image>` or the like
    columns: list[str]  # of the rows as they were read, before `prepare`
    question_column: str  # the one that was read

    @property
    def rows(self) -> Dataset:
        """The rows that preflight describes: the training rows, or without training the held-out ones."""
        return self.held_out

    @property
    def unusable(self) -> int:
        """The number of rows dropped because they lack a question or a gold answer."""
        return sum(reading.dropped for reading in self.readings)

    def unmarked(self) -> dict[str, int]:
        """Count, for each mark of gold answers, the rows dropped because their answer lacks it."""
        counts = Counter[str]()
        for reading in self.readings:
            if reading.mark and reading.unmarked:
                counts[mark_name(reading.mark)] += reading.unmarked
        return counts

    def where_golds_are(self) -> str:
        """Describe where the rows have their gold answers, such as `after #### in 300 of 300 rows`."""
        golds, rows = Counter[str](), Counter[str]()
        for reading in self.readings:
            golds[where_marked(reading.mark)] += reading.golds
            rows[where_marked(reading.mark)] += reading.rows
        return ", ".join(f"{mark} in {golds[mark]:,} of {counted(rows[mark], 'row')}" for mark in rows)

    @property
    def has_golds(self) -> bool:
        """True if every held-out question has a gold answer."""
        return None not in self.held_out["answer"][:]

    @property
    def wrong_answer(self) -> str:
        """A wrong answer to the first row, from other rows' gold answers; "" if it has no gold answer."""
        golds = self.rows["answer"][:1000]
        return wrong_answer(golds[0], golds[1:]) if golds[0] else ""

    def counts(self) -> dict[str, Any]:
        """Count rows, for run.json."""
        return {"held_out": len(self.held_out), "unusable": self.unusable}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data(Questions):
    """The training and held-out rows of a run. No question is in both."""

    train: Dataset  # columns as in `held_out`
    overlap: int  # training rows dropped for their held-out question
    conflicts: list[tuple[str, Gold, Gold]]  # training questions with two different gold answers, and both

    @property
    def rows(self) -> Dataset:
        return self.train

    def counts(self) -> dict[str, Any]:
        dropped = {name: getattr(self, name) for name in ("unusable", "overlap", "too_long")}
        return {"train": len(self.train), "held_out": len(self.held_out), **dropped}


def load_data(config: Config, task: Task, tokenizer: PreTrainedTokenizerBase, needs_gold: Sequence[str]) -> Data:
    """Load training and held-out rows with `prompt` and `answer`. No question is in both.

    Args:
        needs_gold: rewards and settings that need gold answers; if empty, rows may lack them.
    """
    script = config.script
    with PartialState().main_process_first():  # other processes read its cache
        splits = read_source(config)
        evaluation = read_held_out(config, splits)
        training = take_split(splits, script.dataset_split, limit=script.max_samples)
    made, found = _make_tables(config, task, {"training": training, "evaluation": evaluation}, needs_gold)
    train, held_out = _hold_out(made, script.eval_samples)
    train, overlap = drop_overlap(train, held_out)
    lengths, tokens = _measured(config, tokenizer, len(train), train, held_out)
    kept, too_long = drop_long(train, lengths, script.max_prompt_length)
    return Data(
        train=kept.remove_columns(REASONING),
        held_out=held_out.remove_columns(REASONING),
        cut_off=evaluation is None,
        overlap=overlap,
        tokens=tokens,
        lengths=lengths,
        too_long=too_long,
        reasoning=kept[REASONING][:1000],
        placeholders=placeholders(kept, held_out),
        conflicts=conflicts(made["training"]),
        **found,
    )


def load_questions(
    config: Config, task: Task, tokenizer: PreTrainedTokenizerBase, needs_gold: Sequence[str]
) -> Questions:
    """Load the held-out questions alone: those of a run with these settings.

    Training rows are read only if the held-out ones are cut off them.
    """
    script = config.script
    with PartialState().main_process_first():
        splits = None if script.eval_dataset_name else read_source(config)
        evaluation = read_held_out(config, splits)
        training = None
        if splits and evaluation is None:
            training = take_split(splits, script.dataset_split, limit=script.max_samples)
    made, found = _make_tables(config, task, {"training": training, "evaluation": evaluation}, needs_gold)
    _, held_out = _hold_out(made, script.eval_samples)
    lengths, tokens = _measured(config, tokenizer, len(held_out), held_out)
    return Questions(
        held_out=held_out.remove_columns(REASONING),
        cut_off=evaluation is None,
        lengths=lengths,
        tokens=tokens,
        reasoning=held_out[REASONING][:1000],
        placeholders=placeholders(held_out),
        **found,
    )


def _make_tables(
    config: Config, task: Task, tables: Mapping[str, list[Row] | None], needs_gold: Sequence[str]
) -> tuple[dict[str, Dataset], dict[str, Any]]:
    """Make the prompts of the tables (None: there is none). Return them, and what `Questions` notes of them."""
    datasets.disable_progress_bars()  # the rest is fast
    script = config.script
    for key in ("question_column", "answer_column") if task.prepare else ():
        if f"{getattr(script, key)}_column" != key:
            raise UserError(f"{key}: `prepare` calls them question and answer; drop {key}, or prepare")
    of_columns = {script.question_column, script.answer_column}
    made, readings = dict[str, Dataset](), list[Reading]()
    media, columns, as_read = dict[str, None](), set[str](), list[str]()
    for kind, table in tables.items():
        if table is None:
            continue
        as_read = as_read or column_names(table)
        name = script.eval_dataset_name if kind == "evaluation" and script.eval_dataset_name else script.dataset_name
        label = f"{kind} data {name!r}"
        if task.prepare:
            table = prepared(table, task.prepare, label)
        columns.update(column_names(table))
        media |= {name: None for name in MEDIA for row in table if row.get(name)}
        made[kind], reading = make_prompts(
            table, task, needs_gold, script.question_column, script.answer_column, label
        )
        readings.append(reading)
    return made, {
        "readings": readings,
        "reserved": [name for name in RESERVED if name in columns - of_columns],
        "media": [name for name in media if name not in of_columns],
        "columns": as_read,
        "question_column": "question" if task.prepare else question_column_of(as_read, script.question_column),
    }


def _hold_out(made: Mapping[str, Dataset], count: int | None) -> tuple[Dataset, Dataset]:
    """Return training and held-out rows: a sample of the evaluation's table, or cut off the training rows."""
    if "evaluation" in made:
        return made.get("training", Dataset.from_dict({})), draw_rows(made["evaluation"], count)
    return split_held_out(made["training"], count)


def _measured(
    config: Config, tokenizer: PreTrainedTokenizerBase, count: int, *tables: Dataset
) -> tuple[list[int], str]:
    """Measure the first `count` prompts of these tables: their lengths, and a hash of them and of the end token."""
    with one_line("prompts: the chat template refuses the messages of a row (", "); rewrite them in a `prepare`"):
        asked = itertools.chain.from_iterable(rows["prompt"] for rows in tables)
        lengths, tokens = lengths_and_hash(tokenized(asked, tokenizer, config.template_kwargs), count)
    return lengths, hashlib.sha256(f"{tokens} {tokenizer.eos_token_id}".encode()).hexdigest()


def placeholders(*tables: Dataset) -> list[str]:
    """Return the placeholders of images and the like, the first of each question with one."""
    questions = [question for rows in tables for question in rows["question"][:]]
    return [found[0] for question in questions if (found := PLACEHOLDER.search(question))]


# --- Rows as they are read ----------------------------------------------------------------------------------------


def read_source(config: Config) -> Splits:
    """Read the splits of the training data."""
    if config.rows is not None:
        return load_source(config.rows)
    return load_source(config.script.dataset_name, config.script.dataset_config)


def read_held_out(config: Config, splits: Splits | None) -> list[Row] | None:
    """Read the held-out rows from `eval_dataset_name`, or from the data's `splits`; None: to be cut off training."""
    script = config.script
    eval_name, split = script.eval_dataset_name, script.eval_split.partition("[")[0]
    if eval_name:
        # the configuration belongs to the training data
        of_it = script.dataset_config if eval_name == script.dataset_name else None
        splits = load_source(eval_name, of_it, "eval_dataset_name")
        if len(splits) == 1:  # a file has no split names
            splits = {split: next(iter(splits.values()))}
    elif not splits or (split not in splits and config.origin.get("eval_split") != "flag"):
        return None
    return take_split(splits, script.eval_split, "eval_split")


def column_names(rows: Iterable[Row]) -> list[str]:
    """Return the names of all cells; rows may have different ones."""
    return list(dict.fromkeys(name for row in rows for name in row))


def prepared(rows: Sequence[Row], prepare: Callable[[Row], Row | None], label: str) -> list[Row]:
    """Apply the user's `prepare` to each row, and drop rows for which it returns None.

    Raises:
        UserError: `prepare` raises, or returns neither a dictionary nor None. Names the row and the user's line.
    """
    made, missing = [], dict.fromkeys(column_names(rows))
    for number, row in enumerate(rows, 1):
        where = f"prepare: row {number} of {label}"
        with users_code(where, f"; the row has {listed(list(row))}"):
            result = prepare(missing | row)
        if result is None:
            continue
        if not isinstance(result, Mapping) or "question" not in result:
            raise UserError(
                f"{where}: it returned {str(result)[:80]!r}; return a dictionary with `question` and `answer`, or "
                "None to drop the row"
            )
        if odd := [key for key in result if not isinstance(key, str)]:
            raise UserError(f"{where}: {odd[0]!r} is not a column's name; use texts")
        try:
            made.append(native(result))
        except TypeError as error:
            raise UserError(f"{where}: {error}; return texts, numbers, lists and dictionaries") from None
    if not made:
        raise UserError(f"prepare: it drops all {len(rows)} rows of {label}; return `question` and `answer` for some")
    return made


# --- Prompts and gold answers -------------------------------------------------------------------------------------


def make_prompts(
    rows: Sequence[Row],
    task: Task,
    needs_gold: Sequence[str],
    question_column: str = "question",
    answer_column: str = "answer",
    label: str = "dataset",
) -> tuple[Dataset, Reading]:
    """Add the columns `question`, `prompt`, `answer` (the gold answer) and REASONING. Drop those in RESERVED.

    A question is text or a list of messages, of which the last one becomes the `question`.

    Args:
        label: the name of these rows in errors.
        needs_gold: rewards and settings that need gold answers; if empty, `answer` is None in rows without one.

    Returns:
        The rows with a question and, if needed, a gold answer; and the counts of all rows.
    """
    columns = column_names(rows)
    question_column = question_column_of(columns, question_column)
    require_columns(columns, question_column, answer_column, label, needs_gold)
    asked = [
        _question(row.get(question_column), f"question_column: row {number} of {label} (column {question_column!r})")
        for number, row in enumerate(rows, 1)
    ]
    texts = list(map(last_text, asked))
    cells = [row.get(answer_column) for row in rows]
    mark, golds = read_column(cells, task.prompt.pattern)
    kept = [index for index, text in enumerate(texts) if text.strip() and (golds[index] or not needs_gold)]
    if not kept:
        raise UserError(reason_without_rows(rows, question_column, answer_column, label, needs_gold))
    made: dict[str, list[Any]] = {
        "question": [texts[index] for index in kept],
        "prompt": [task.ask(asked[index]) for index in kept],
        "answer": [golds[index] for index in kept],
        REASONING: [reasoning_before(cells[index]) if mark else "" for index in kept],
    }
    others = [name for name in columns if name not in (*made, *RESERVED)]
    try:
        result = as_dataset({name: [rows[index].get(name) for index in kept] for name in others} | made)
    except (*NOT_ARROW, TypeError, UnicodeError) as error:
        raise UserError(f"dataset: {label} cannot be used: {error}; use texts, numbers, lists, dictionaries") from None
    dropped = set(range(len(rows))).difference(kept)
    unmarked = sum(bool(texts[index].strip()) and lacks_mark(cells[index], mark) for index in dropped)
    with_gold = sum(gold is not None for gold in golds)
    return result, Reading(len(rows), mark, with_gold, len(dropped), unmarked)


def question_column_of(columns: Sequence[str], name: str) -> str:
    """Return the column of the questions: `prompt`, TRL's own name for it, in data without `question`."""
    return "prompt" if name == "question" and "question" not in columns and "prompt" in columns else name


def _question(cell: Any, where: str) -> str | list[Message]:
    """Return the question in a cell: text, or a conversation up to the user's last message; "" without one.

    A CSV file has a conversation as text.
    """
    if isinstance(cell, str) and TALK.match(cell):
        try:
            cell = parsed(cell)
        except ValueError as error:
            raise UserError(f"{where}: {error}; write the messages as a list") from None
    if not isinstance(cell, list) or not cell:
        return cell if isinstance(cell, str) else ""
    for message in cell:
        if not isinstance(message, dict) or not all(isinstance(message.get(key), str) for key in ("role", "content")):
            remedy = "write {role: user, content: text}, or a `prepare`"
            raise UserError(f"{where}: {str(message)[:60]!r} is not a message; {remedy}")
    if (role := cell[-1]["role"]) != "user":
        raise UserError(
            f"{where}: the last message has the role {role!r}, and the model would continue; end with the user's, or "
            "write a `prepare` such as from_sharegpt in examples/rows.py (docs/your-own-task.md)"
        )
    return [{"role": message["role"], "content": message["content"]} for message in cell]


def canonical(question: str) -> str:
    """Return a question without differences in spaces, invisible characters and letter case."""
    return " ".join(visible(question).split()).casefold()


def lengths_and_hash(prompts: Iterable[list[int]], count: int) -> tuple[list[int], str]:
    """Return the lengths of the first `count` prompts in tokens, and a hash of them. Keep none of the tokens."""
    lengths, digest = list[int](), hashlib.sha256()
    for ids in prompts:
        if len(lengths) < count:
            lengths.append(len(ids))
            digest.update(repr(ids).encode())
    return lengths, digest.hexdigest()


def drop_long(rows: Dataset, lengths: Sequence[int], max_prompt_length: int | None) -> tuple[Dataset, int]:
    """Drop rows whose rendered prompt is longer than `max_prompt_length` tokens. Return the others, and the count.

    Prompts are never cut: cutting from the left, as in 2025, removed the system prompt.
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


def drawn_indices(questions: Sequence[str], count: int) -> set[int]:
    """Draw the indices of `count` questions by their hashes, independent of the seed and the prompt.

    After rows are added, most of the drawn questions stay the same.
    """
    hashes = [hashlib.sha256(canonical(text).encode("utf-8", errors="replace")).digest() for text in questions]
    return set(sorted(range(len(questions)), key=lambda index: (hashes[index], index))[:count])


def draw_rows(rows: Dataset, count: int | None) -> Dataset:
    """Draw at most `count` rows by their questions, in their order; all if `count` is None."""
    if count is None or count >= len(rows):
        return rows
    return rows.select(sorted(drawn_indices(rows["question"][:], count)))


def split_held_out(rows: Dataset, count: int | None) -> tuple[Dataset, Dataset]:
    """Split the rows by their questions: (training, held out).

    At most `count` rows are held out: a tenth, or a quarter up to 100 rows, since a tenth of 300 rows would show
    only huge changes.
    """
    if count == 0:
        return rows, rows.select([])
    if len(rows) < 2:
        raise UserError(
            f"dataset: {counted(len(rows), 'row')} cannot be split into training and evaluation; add more rows"
        )
    size = max(1, len(rows) // 10, min(100, len(rows) // 4))
    held_out = drawn_indices(rows["question"][:], size if count is None else min(count, size))
    training = [index for index in range(len(rows)) if index not in held_out]
    return rows.select(training), rows.select(sorted(held_out))


def _asked(prompt: Prompt) -> str:
    return canonical(
        prompt
        if isinstance(prompt, str)
        else "\n".join(message["content"] for message in prompt if message["role"] != "system")
    )


def drop_overlap(rows: Dataset, held_out: Dataset) -> tuple[Dataset, int]:
    """Drop training rows with a held-out question (text or conversation). Return the others, and the count."""
    taken = set(map(_asked, held_out["prompt"]))
    kept = [index for index, prompt in enumerate(rows["prompt"]) if _asked(prompt) not in taken]
    if not kept:
        different = counted(len(set(map(_asked, rows["prompt"]))), "different question")
        raise UserError(
            f"dataset: every training question is among the held-out ones ({counted(len(rows), 'row')}, {different}); "
            "use other training rows, another question_column or eval_dataset_name, or a `prepare` that makes whole "
            "questions (docs/your-own-task.md)"
        )
    return rows.select(kept), len(rows) - len(kept)


def conflicts(rows: Dataset) -> list[tuple[str, Gold, Gold]]:
    """Find questions of several rows whose gold answers share no value."""
    first: dict[str, Gold] = {}
    found: dict[str, tuple[str, Gold, Gold]] = {}
    if len(rows) == 0:
        return []
    for question, prompt, gold in zip(rows["question"][:], rows["prompt"][:], rows["answer"][:], strict=True):
        key = _asked(prompt)
        other = first.setdefault(key, gold) if gold is not None else None
        if other is None or other == gold:
            continue
        if not any(same_answer(one, two) for one in alternatives(gold) for two in alternatives(other)):
            found.setdefault(key, (question, other, gold))
    return list(found.values())
