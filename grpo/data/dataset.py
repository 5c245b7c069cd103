"""Turn rows into training and held-out prompts with gold answers, and count dropped rows."""

import dataclasses
import hashlib
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import datasets
from accelerate import PartialState
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from grpo.core.checklist import Check
from grpo.core.errors import UserError, one_line, users_code
from grpo.core.processes import say
from grpo.core.settings import Config
from grpo.core.text import counted, listed
from grpo.data.columns import TextColumn
from grpo.data.files import Row, Splits, parsed
from grpo.data.findings import (
    ASKED,
    RESERVED,
    RowCounts,
    Table,
    Tables,
    about_held_out,
    about_kinds,
    about_lengths,
    about_overlap,
    asked_in,
)
from grpo.data.remedies import reason_without_rows, require_columns, require_held_out_column
from grpo.data.sources import NOT_ARROW, as_dataset, load_source, native, take_split
from grpo.task.gold import (
    lacks_mark,
    read_column,
    reasoning_before,
)
from grpo.task.prompts import Message, last_text, tokenized
from grpo.task.task import Task
from grpo.task.wrong import wrong_answer

# Messages as text: `[{"role": …, "content": …}]`, or with `from` and `value`, in any order
ONE_MESSAGE = re.compile(r"""\s*\{\s*['"](?:role|content)['"]\s*:.*['"](?:content|role)['"]\s*:.*\}\s*$""", re.DOTALL)
TALK = re.compile(
    r"""\s*\[\s*\{\s*['"](?:role['"]\s*:|(?:content|value)['"]\s*:.*['"](?:role|from)['"]\s*:"""
    r"""|from['"]\s*:.*['"]value['"]\s*:).*\}\s*\]\s*$""",
    re.DOTALL,
)
MANY_PROMPTS = 20_000  # they take seconds
REASONING = "__reasoning"  # a temporary column: the gold solution without its answer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Questions:
    """The held-out questions, and what the loader has found.

    Attributes:
        held_out: columns `question`, `prompt`, `answer` and the data's other ones.
        cut_off: True if the held-out rows were cut off the training rows.
        lengths: tokens of the prompts of `rows`, and of those dropped for their length.
        tokens: a hash of the tokens of the held-out prompts, else of those of `rows`, and of the end token.
        reasoning: text before the answer in each row's gold solution; "" where it has none.
        dropped: counts of dropped rows by their reason: `unusable` lack a question or a gold answer.
        findings: preflight's lines about the rows.
        marks: where the gold answers are, in words.
        texts: the columns with text.
        question_column: the one that was read.
    """

    held_out: Dataset
    cut_off: bool
    lengths: list[int]
    tokens: str
    reasoning: list[str]
    dropped: dict[str, int]
    findings: list[Check]
    marks: str
    texts: list[TextColumn]
    question_column: str

    @property
    def rows(self) -> Dataset:
        """The rows that preflight describes: the training rows, or without training the held-out ones."""
        return self.held_out

    @property
    def has_golds(self) -> bool:
        """True if every held-out question has a gold answer."""
        return None not in self.held_out["answer"][:]

    @property
    def wrong_answer(self) -> str:
        """A wrong answer to the first row, from other rows' gold answers; "" if it has no gold answer."""
        golds = self.rows["answer"][:1000]
        return wrong_answer(golds[0], golds[1:]) if golds[0] else ""

    def counts(self) -> dict[str, int]:
        """Count rows, for run.json."""
        return {"held_out": len(self.held_out), **self.dropped}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data(Questions):
    """The training and held-out rows of a run. No question is in both.

    Attributes:
        train: columns as in `held_out`; `dropped` has `overlap`, with a held-out question, and `too_long`, too.
    """

    train: Dataset

    @property
    def rows(self) -> Dataset:
        return self.train

    def counts(self) -> dict[str, int]:
        return {"train": len(self.train), **super().counts()}


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
    tables = _read_tables(config, task, tokenizer, {"training": training, "evaluation": evaluation}, needs_gold)
    train, held_out = _hold_out(tables, script.eval_samples)
    findings, dropped = tables.findings, {"unusable": tables.unusable}
    train, dropped["overlap"] = drop_overlap(train, held_out)
    findings.append(about_overlap(dropped["overlap"], tables.cut_off))
    findings += [about_held_out(tables, len(held_out)), *about_kinds(script.eval_by, held_out)]
    lengths, tokens = _measured(config, tokenizer, len(train), train, held_out)
    short, dropped["too_long"] = drop_long(train, lengths, script.max_prompt_length)
    findings.append(about_lengths(tables, lengths, dropped["too_long"]))
    return Data(
        train=short.remove_columns([REASONING, ASKED]),
        held_out=held_out.remove_columns([REASONING, ASKED]),
        cut_off=tables.cut_off,
        lengths=lengths,
        tokens=tokens,
        reasoning=short[REASONING][:],
        dropped=dropped,
        findings=findings,
        marks=tables.marks,
        texts=tables.texts,
        question_column=tables.question_column,
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
    tables = _read_tables(config, task, tokenizer, {"training": training, "evaluation": evaluation}, needs_gold)
    _, held_out = _hold_out(tables, script.eval_samples)
    lengths, tokens = _measured(config, tokenizer, len(held_out), held_out)
    return Questions(
        held_out=held_out.remove_columns([REASONING, ASKED]),
        cut_off=tables.cut_off,
        lengths=lengths,
        tokens=tokens,
        reasoning=held_out[REASONING][:],
        dropped={"unusable": tables.unusable},
        findings=[
            *tables.findings,
            about_held_out(tables, len(held_out)),
            *about_kinds(script.eval_by, held_out),
            about_lengths(tables, lengths),
        ],
        marks=tables.marks,
        texts=tables.texts,
        question_column=tables.question_column,
    )


def _read_tables(
    config: Config,
    task: Task,
    tokenizer: PreTrainedTokenizerBase,
    raw_tables: Mapping[str, list[Row] | None],
    needs_gold: Sequence[str],
) -> Tables:
    """Make the prompts of the tables (None: there is none). `datasets` shows no progress bars from then on."""
    datasets.disable_progress_bars()  # the rest is fast
    script = config.script
    for key in ("question_column", "answer_column") if task.prepare else ():
        if f"{getattr(script, key)}_column" != key:
            raise UserError(f"{key}: `prepare` calls them question and answer; drop {key}, or prepare")
    by_kind, looked_at = dict[str, Table](), set[str]()
    question = script.question_column
    for kind, raw in raw_tables.items():
        if raw is None:
            continue
        name = script.eval_dataset_name if kind == "evaluation" and script.eval_dataset_name else script.dataset_name
        label = f"{kind} data {name!r}"
        rows: list[Row | None] = list(raw)
        if task.prepare:
            rows, looked_at = _prepared(raw, task.prepare, label)
        usable = [row for row in rows if row is not None]
        question = question_column_of(column_names(usable), script.question_column)
        made, reading = make_prompts(usable, task, needs_gold, script.question_column, script.answer_column, label)
        by_kind[kind] = Table(label, raw, rows, made, reading)
    if script.eval_by is not None and script.eval_samples != 0:
        table = by_kind.get("evaluation") or by_kind["training"]  # which the held-out rows are cut off
        columns = [name for name in table.made.column_names if name not in ("prompt", REASONING, ASKED)]
        require_held_out_column(script.eval_by, columns, table.name, script.prepare if task.prepare else None)
    return Tables(config, task, tokenizer, by_kind, question, script.answer_column, looked_at)


def _hold_out(tables: Tables, count: int | None) -> tuple[Dataset, Dataset]:
    """Return training and held-out rows: a sample of the evaluation's table, or cut off the training rows."""
    made = {kind: table.made for kind, table in tables.by_kind.items()}
    if tables.cut_off:
        return split_held_out(made["training"], count)
    return made.get("training", Dataset.from_dict({})), draw_rows(made["evaluation"], count)


def _measured(
    config: Config, tokenizer: PreTrainedTokenizerBase, count: int, *tables: Dataset
) -> tuple[list[int], str]:
    """Return the lengths of the first `count` prompts of these tables, and a hash of the others, else of these.

    The hash includes the end token.
    """
    if (prompts := sum(map(len, tables))) >= MANY_PROMPTS:
        say(f"tokenizing {prompts:,} prompts")
    with one_line("prompts: the chat template refuses the messages of a row (", "); rewrite them in a `prepare`"):
        asked = itertools.chain.from_iterable(rows["prompt"] for rows in tables)
        lengths, tokens = lengths_and_hash(tokenized(asked, tokenizer, config.template_kwargs), count)
    return lengths, hashlib.sha256(f"{tokens} {tokenizer.eos_token_id}".encode()).hexdigest()


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


class _Row(dict[str, Any]):
    """A row for `prepare` that notes which columns it reads one by one."""

    def __init__(self, cells: Row, looked_at: set[str]) -> None:
        super().__init__(cells)
        self.looked_at = looked_at

    def __getitem__(self, name: str) -> Any:
        self.looked_at.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.looked_at.add(name)
        return super().get(name, default)

    def pop(self, name: str, *default: Any) -> Any:
        self.looked_at.add(name)
        return super().pop(name, *default)


def prepared(rows: Sequence[Row], prepare: Callable[[Row], Row | None], label: str) -> list[Row]:
    """Apply the user's `prepare` to each row, and drop rows for which it returns None."""
    return [row for row in _prepared(rows, prepare, label)[0] if row is not None]


def _prepared(
    rows: Sequence[Row], prepare: Callable[[Row], Row | None], label: str
) -> tuple[list[Row | None], set[str]]:
    """Apply the user's `prepare` to each row. Return its results, and the columns that it reads one by one.

    Raises:
        UserError: `prepare` raises, or returns neither a dictionary nor None. Names the row and the user's line.
    """
    missing, looked_at = dict.fromkeys(column_names(rows)), set[str]()
    made: list[Row | None] = []
    for number, row in enumerate(rows, 1):
        where = f"prepare: row {number} of {label}"
        with users_code(where, f"; the row has {listed(list(row))}"):
            result = prepare(_Row(missing | row, looked_at))
        if result is None:
            made.append(None)
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
    if not any(row is not None for row in made):
        raise UserError(f"prepare: it drops all {len(rows)} rows of {label}; return `question` and `answer` for some")
    return made, looked_at


# --- Prompts and gold answers -------------------------------------------------------------------------------------


def make_prompts(
    rows: Sequence[Row],
    task: Task,
    needs_gold: Sequence[str],
    question_column: str = "question",
    answer_column: str = "answer",
    label: str = "dataset",
) -> tuple[Dataset, RowCounts]:
    """Add the columns `question`, `prompt`, `answer` (the gold answer), REASONING and ASKED. Drop those in RESERVED.

    A question is text or a list of messages, of which the last one becomes the `question`.

    Args:
        label: the name of these rows in errors.
        needs_gold: rewards and settings that need gold answers; if empty, `answer` is None in rows without one.

    Returns:
        The rows with a question and, if needed, a gold answer; and the counts of all rows.
    """
    columns = column_names(rows)
    question_column = question_column_of(columns, question_column)
    require_columns(rows, columns, question_column, answer_column, label, needs_gold)
    asked = [
        _question(row.get(question_column), f"question_column: row {number} of {label} (column {question_column!r})")
        for number, row in enumerate(rows, 1)
    ]
    texts = list(map(last_text, asked))
    cells = [row.get(answer_column) for row in rows]
    mark, golds = read_column(cells, task.prompt.pattern)
    places = [index for index, text in enumerate(texts) if text.strip() and (golds[index] or not needs_gold)]
    if not places:
        raise UserError(reason_without_rows(rows, question_column, answer_column, label, needs_gold))
    made: dict[str, list[Any]] = {
        "question": [texts[index] for index in places],
        "prompt": [task.ask(asked[index]) for index in places],
        "answer": [golds[index] for index in places],
        REASONING: [reasoning_before(cells[index]) if mark else "" for index in places],
        ASKED: asked_in([asked[index] for index in places]),
    }
    others = [name for name in columns if name not in (*made, *RESERVED)]
    try:
        result = as_dataset({name: [rows[index].get(name) for index in places] for name in others} | made)
    except UnicodeError:
        raise UserError(f"dataset: {_half_a_sign(rows, label)}; correct it, or drop the row") from None
    except (*NOT_ARROW, TypeError) as error:
        raise UserError(f"dataset: {label} cannot be used: {error}; use texts, numbers, lists, dictionaries") from None
    dropped = set(range(len(rows))).difference(places)
    unmarked = sum(bool(texts[index].strip()) and lacks_mark(cells[index], mark) for index in dropped)
    with_gold = sum(gold is not None for gold in golds)
    return result, RowCounts(len(rows), mark, with_gold, len(dropped), unmarked)


def _half_a_sign(rows: Sequence[Row], label: str) -> str:
    """Name the first cell with half of a surrogate pair, which no file in UTF-8 can hold."""
    for number, row in enumerate(rows, 1):
        for name, cell in row.items():
            if half := re.search("[\ud800-\udfff]", str(cell)):
                near = str(cell)[max(0, half.start() - 20) : half.start()]
                where = f"row {number} of {label} (column {name!r})"
                return f"{where} has half of an emoji or other sign, {half[0]!r}, after {near!r}"
    return f"{label} has half of an emoji or other sign"


def question_column_of(columns: Sequence[str], name: str) -> str:
    """Return the column of the questions: `prompt`, TRL's own name for it, in data without `question`."""
    return "prompt" if name == "question" and "question" not in columns and "prompt" in columns else name


def _question(cell: Any, where: str) -> str | list[Message]:
    """Return the question in a cell: text, or a conversation up to the user's last message; "" without one.

    A CSV file has a conversation as text. A single message needs no list.
    """
    if isinstance(cell, str) and (TALK.match(cell) or ONE_MESSAGE.match(cell)):
        try:
            cell = parsed(cell)
        except ValueError as error:
            if ONE_MESSAGE.match(cell):
                return cell
            raise UserError(f"{where}: {error}; write the messages as a list") from None
    if isinstance(cell, dict) and isinstance(cell.get("role"), str) and isinstance(cell.get("content"), str):
        cell = [cell]
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


def lengths_and_hash(prompts: Iterable[list[int]], count: int) -> tuple[list[int], str]:
    """Return the lengths of the first `count` prompts in tokens, and a hash of the others, or of these without others.

    Keep none of the tokens.
    """
    lengths, first, others = list[int](), hashlib.sha256(), hashlib.sha256()
    has_others = False
    for ids in prompts:
        has_others = len(lengths) == count
        (others if has_others else first).update(repr(ids).encode())
        lengths += [] if has_others else [len(ids)]
    return lengths, (others if has_others else first).hexdigest()


def drop_long(rows: Dataset, lengths: Sequence[int], max_prompt_length: int | None) -> tuple[Dataset, int]:
    """Drop rows whose rendered prompt is longer than `max_prompt_length` tokens. Return the others, and the count.

    Prompts are never cut: cutting from the left, as in 2025, removed the system prompt.
    """
    if max_prompt_length is None:
        return rows, 0
    places = [index for index, length in enumerate(lengths) if length <= max_prompt_length]
    if not places:
        raise UserError(
            f"max_prompt_length: all {len(rows)} prompts are longer than {max_prompt_length} tokens (the shortest has "
            f"{min(lengths)}); raise it, shorten the questions, or lower num_shots if it is above 0"
        )
    return rows.select(places), len(rows) - len(places)


# --- Held-out questions -------------------------------------------------------------------------------------------


def drawn_indices(rows: Dataset, size: Callable[[int], int]) -> list[int]:
    """Draw rows with different questions by the questions' hashes, independent of the seed and the prompt.

    After rows are added, most of the drawn questions stay the same.

    Args:
        size: returns how many to draw of so many different questions.
    """
    first: dict[str, int] = {}
    asked = rows[ASKED][:]
    for index, question in enumerate(asked):
        first.setdefault(question, index)

    def drawn_by(index: int) -> tuple[bytes, int]:
        return hashlib.sha256(asked[index].encode("utf-8", errors="replace")).digest(), index

    return sorted(sorted(first.values(), key=drawn_by)[: size(len(first))])


def draw_rows(rows: Dataset, count: int | None) -> Dataset:
    """Draw at most `count` rows with different questions, in their order; all of them if `count` is None."""
    return rows.select(drawn_indices(rows, lambda different: different if count is None else min(count, different)))


def split_held_out(rows: Dataset, count: int | None) -> tuple[Dataset, Dataset]:
    """Split the rows by their questions: (training, held out).

    Of the different questions at most `count` are held out: a tenth, or a quarter up to 100, since a tenth of 300
    would show only huge changes. Other rows with such a question stay for `drop_overlap`.
    """
    if count == 0:
        return rows, rows.select([])

    def size(different: int) -> int:
        if different < 2:
            raise UserError(
                f"dataset: {counted(len(rows), 'row')} with {counted(different, 'different question')} cannot be "
                "split into training and evaluation; add more rows, use another question_column, or a `prepare` that "
                "makes whole questions (docs/your-own-task.md)"
            )
        most = max(1, different // 10, min(100, different // 4))
        return most if count is None else min(count, most)

    held_out = drawn_indices(rows, size)
    rest = set(range(len(rows))).difference(held_out)
    return rows.select(sorted(rest)), rows.select(held_out)


def drop_overlap(rows: Dataset, held_out: Dataset) -> tuple[Dataset, int]:
    """Drop training rows with a held-out question (text or conversation). Return the others, and the count."""
    taken, asked = set(held_out[ASKED][:]), rows[ASKED][:]
    places = [index for index, question in enumerate(asked) if question not in taken]
    if not places:
        different = counted(len(set(asked)), "different question")
        raise UserError(
            f"dataset: every training question is among the held-out ones ({counted(len(rows), 'row')}, {different}); "
            "use other training rows, another question_column or eval_dataset_name, or a `prepare` that makes whole "
            "questions (docs/your-own-task.md)"
        )
    return rows.select(places), len(rows) - len(places)
