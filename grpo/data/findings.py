"""Say what is found in rows, as lines of preflight's table: `FINDINGS`, functions of the tables that were read."""

import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from exact_answers import same_answer
from exact_answers.verdict import kind_of
from grpo.core.checklist import Check, warn_if
from grpo.core.settings import Config
from grpo.core.text import counted, listed, shorten, visible
from grpo.data.columns import TextColumn, text_columns
from grpo.data.files import Row
from grpo.data.sources import about_files
from grpo.results.by_kind import MOST, counts_of, value_of
from grpo.results.comparison import FEWEST
from grpo.task.gold import alternatives, mark_name, readable, where_marked
from grpo.task.prompts import SYSTEM, Message
from grpo.task.task import Task
from rewards import Gold

ASKED = "__asked"  # a temporary column: `asked_in`
# Columns to drop: names of TRL's own arguments of rewards, a column that TRL never passes on, and columns that make
# it expect a vision model
RESERVED = (
    *("prompts", "completions", "completion_ids", "trainer_state", "log_extra", "log_metric"),
    *("completion", "image", "images"),
)
# What stands for an image in the questions of vision models
PLACEHOLDER = re.compile(r"<(?:image|video|audio)(?:_?\d+)?>|<\|(?:image|video|audio|vision)\w*\|>")
MEDIA = ("image", "images", "video", "videos", "audio", "audios")  # columns that a text model does not get
# Marks of chat templates: those of special tokens, and of Llama 2, Gemma, DeepSeek, Alpaca and Vicuna
TEMPLATE = re.compile(
    r"<[|｜][^\s<>]{1,40}[|｜]>|\[\|(?:Human|AI|User|Assistant|System|Bot)\|\]|\[/?(?:INST|SYSTEM_PROMPT)\]|\[gMASK\]"
    r"|<</?SYS>>|<(?:start|end)_of_turn>|^#{2,3} ?(?:Response|Assistant):?\s*\Z|\b(?:ASSISTANT|Assistant): *\Z",
    re.MULTILINE,
)
TAG = re.compile(r"</?\w+>")  # a special token that may be a tag
TAGS = re.compile(r"\A\s*<(?:s|user|system)>|(?:</s>|<assistant>:?)\s*\Z")  # those of templates
PAIR = re.compile(r"<(s|user|system|assistant)>.*?</\1>", re.DOTALL)  # of HTML or XML
ENOUGH = 100  # held-out questions; they can show a change of 6 points, not a smaller one
MOST_COMPARED = 1000  # gold answers of questions that repeat: a comparison takes milliseconds
OFTEN = 0.05  # share of texts with such a mark, from which it is none by chance
SPLITS = {
    "train",
    "training",
    "test",
    "testing",
    "val",
    "valid",
    "validation",
    "dev",
    "eval",
    "evaluation",
}  # as cells
RULE = re.compile(r":?[-=]+:?")  # a cell below the header of a table in Markdown
STRAY = 0.02  # least share of the gold answers of a text that stands for no answer
# What is no answer: an error of a spreadsheet; and, where gold answers are no labels, signs and names of nothing
ERROR = re.compile(r"#(?:N/A|[A-Z/0]+[!?])", re.IGNORECASE)
NOTHING = re.compile(r"[\W_]+|n/?a|nan|null|none|tbd|todo", re.IGNORECASE)


class RowCounts(NamedTuple):
    """Counts of a table's rows: read, with gold answers, dropped."""

    rows: int
    mark: str | None  # of the gold answers
    golds: int
    dropped: int  # without a question or a gold answer
    unmarked: int  # dropped rows whose answer lacks the others' mark


@dataclass(frozen=True)
class Table:
    """A table that was read.

    Attributes:
        name: its source, as in errors.
        raw: the rows as they were read.
        rows: what `prepare` made of each, None for those that it dropped; without it the same rows.
        made: those with a question and, if needed, a gold answer, with their prompts.
        reading: the counts of the prepared rows.
    """

    name: str
    raw: Sequence[Row]
    rows: Sequence[Row | None]
    made: Dataset
    reading: RowCounts

    @property
    def columns(self) -> list[str]:
        """The names of the prepared rows' columns."""
        return list(dict.fromkeys(name for row in self.rows if row is not None for name in row))


@dataclass(frozen=True)
class Tables:
    """The rows that were read, and what makes prompts of them.

    Attributes:
        by_kind: the tables, `training`, `evaluation`, or both.
        question_column, answer_column: of the prepared rows.
        looked_at: the columns that `prepare` has read one by one.
    """

    config: Config
    task: Task
    tokenizer: PreTrainedTokenizerBase
    by_kind: Mapping[str, Table]
    question_column: str
    answer_column: str
    looked_at: Collection[str]

    @property
    def all(self) -> list[Table]:
        """The tables."""
        return list(self.by_kind.values())

    @property
    def raw(self) -> list[Row]:
        """The rows of all tables, as they were read."""
        return [row for table in self.all for row in table.raw]

    @property
    def golds(self) -> list[Gold]:
        """The gold answers of all tables."""
        return [gold for table in self.all for gold in table.made["answer"][:] if gold is not None]

    @property
    def cut_off(self) -> bool:
        """True if the held-out rows are cut off the training rows."""
        return "evaluation" not in self.by_kind

    @property
    def unusable(self) -> int:
        """The number of rows dropped because they lack a question or a gold answer."""
        return sum(table.reading.dropped for table in self.all)

    @property
    def findings(self) -> list[Check]:
        """The lines about them."""
        return [check for about in FINDINGS for check in about(self)]

    @property
    def marks(self) -> str:
        """The place of gold answers in the rows, such as `after #### in 300 of 300 rows`."""
        golds, rows = Counter[str](), Counter[str]()
        for reading in (table.reading for table in self.all):
            golds[where_marked(reading.mark)] += reading.golds
            rows[where_marked(reading.mark)] += reading.rows
        return ", ".join(f"{mark} in {golds[mark]:,} of {counted(rows[mark], 'row')}" for mark in rows)

    @property
    def texts(self) -> list[TextColumn]:
        """The columns with text of the first table."""
        first = self.all[0]
        columns = text_columns(first.raw, first.rows, self.question_column, self.answer_column, self.looked_at)
        return [column for column in columns if column.path[0] not in (*RESERVED, *MEDIA)]


Finding = Callable[[Tables], Iterator[Check]]
FINDINGS: list[Finding] = []


def finding(function: Finding) -> Finding:
    """Add a function to FINDINGS, in the order of the table's lines, and return it."""
    FINDINGS.append(function)
    return function


def canonical(question: str) -> str:
    """Return a question without differences in spaces, invisible characters and letter case."""
    return " ".join(visible(question).split()).casefold()


def asked_in(questions: Sequence[str | list[Message]]) -> list[str]:
    """Return what makes each question of a table the same one: its text, or all its messages.

    A system message that all of them share is none of the question.

    >>> asked_in(["2 + 2 ?", [{"role": "user", "content": "A  or B?"}]])
    ['2 + 2 ?', 'a or b?']
    """
    talks = [
        [{"role": "user", "content": question}] if isinstance(question, str) else question for question in questions
    ]
    systems = {"\n".join(message["content"] for message in talk if message["role"] in SYSTEM) for talk in talks}
    left_out = SYSTEM if len(systems) == 1 else ()
    return [
        canonical("\n".join(message["content"] for message in talk if message["role"] not in left_out))
        for talk in talks
    ]


# --- Files and rows


@finding
def about_directories(tables: Tables) -> Iterator[Check]:
    """Name files that are missing or not read."""
    names = {}
    if "training" in tables.by_kind and tables.config.rows is None:
        names[tables.config.script.dataset_name] = "dataset_name"
    if tables.config.script.eval_dataset_name:
        names.setdefault(tables.config.script.eval_dataset_name, "eval_dataset_name")
    for name, setting in names.items():
        yield from about_files(name, setting)


@finding
def about_schema(tables: Tables) -> Iterator[Check]:
    """Report the columns that were read, and rows that were dropped."""
    needed = tables.question_column + (f" and {tables.answer_column}" if tables.golds else "")
    line, remedies = f"columns {needed}", []
    if tables.task.prepare:
        columns = dict.fromkeys(name for row in tables.all[0].raw for name in row)
        line = f"{needed} by {tables.config.script.prepare}, from the columns {shorten(', '.join(columns), 120)}"
    rows, left = len(tables.raw), sum(row is not None for table in tables.all for row in table.rows)
    if rows > left:
        line += f"; `prepare` dropped {rows - left:,} of {counted(rows, 'row')}"
        remedies += ["check where `prepare` returns None"] * (left < rows / 2)
    unmarked = Counter[str]()
    for table in tables.all:
        if table.reading.mark and table.reading.unmarked:
            unmarked[mark_name(table.reading.mark)] += table.reading.unmarked
    if empty := left - sum(len(table.made) for table in tables.all) - sum(unmarked.values()):
        line += f"; dropped {counted(empty, 'row')} without a question{' or a gold answer' * bool(tables.golds)}"
        remedies.append(f"{needed} are needed in every row")
    for mark, count in unmarked.items():
        line += f"; dropped {counted(count, 'row')} without the mark {mark} that the others have"
        remedies.append(f"put {mark} in all gold answers, or in none")
    yield warn_if(remedies, "schema", line, "; ".join(remedies), routine=True)


@finding
def about_reserved_columns(tables: Tables) -> Iterator[Check]:
    """List columns that are dropped because TRL uses their names, and refuse questions about images.

    Images without such questions, and such questions alone, are warned of.
    """
    used = {tables.question_column, tables.answer_column}
    columns = {name for table in tables.all for name in table.columns} - used
    rows = [row for table in tables.all for row in table.rows if row is not None]
    media = [name for name in MEDIA if name in columns and any(row.get(name) for row in rows)]
    if reserved := [name for name in RESERVED if name in columns and name not in media]:
        yield Check("ok", "columns", f"dropped {', '.join(reserved)}: TRL uses these names")
    texts = [text for table in tables.all for text in table.made["question"][:]]
    placeholders = [sign[0] for text in texts if (sign := PLACEHOLDER.search(text))]
    if placeholders or media:
        line = f"{counted(len(placeholders), 'question')} with {placeholders[0]}" if placeholders else ""
        line += " and " * bool(placeholders and media) + f"the column {listed(media)}" * bool(media)
        remedy = "keep the rows that can be answered without, in a `prepare` (docs/your-own-task.md)"
        status = "error" if placeholders and media else "warning"
        yield Check(status, "images", f"{line}: the model gets text only", remedy)


@finding
def about_rows_of_a_file(tables: Tables) -> Iterator[Check]:
    """Warn of rows that are no data: the header once more, or the rule of a table in Markdown."""
    rows = tables.raw

    def is_no_row(row: Row) -> bool:
        cells = {name: cell for name, cell in row.items() if cell not in (None, "")}
        texts = [str(cell).strip() for cell in cells.values()]
        is_header = texts == [name.strip() for name in cells] and len(texts) > 1
        return bool(texts) and (is_header or all(map(RULE.fullmatch, texts)))

    if odd := [row for row in rows if is_no_row(row)]:
        shown = " | ".join(str(cell).strip() for cell in odd[0].values())
        finding = f"{counted(len(odd), 'row')} with the header once more or a line of a table: {shorten(shown, 60)}"
        yield Check("warning", "rows", finding, "delete these lines of the file")


@finding
def about_splits_in_a_column(tables: Tables) -> Iterator[Check]:
    """Warn of a column that says which rows are for training and which for a test."""
    for kind, table in tables.by_kind.items():
        for name in dict.fromkeys(name for row in table.raw[:1000] for name in row):
            cells: list[Any] = [row.get(name) for row in table.raw]
            if not all(isinstance(cell, str) and cell.strip().lower() in SPLITS for cell in cells):
                continue
            counts = Counter(cell.strip() for cell in cells)
            if len(counts) > 1:
                line = f"the column {name} has " + ", ".join(f"{n:,} {split}" for split, n in counts.items())
                line += f"; all are {'trained on, or held out' if kind == 'training' else 'held-out questions'}"
                remedy = "write each split to a file of its own (train.jsonl, test.jsonl in one directory)"
                yield Check("warning", "splits", line, remedy)


# --- Questions


@finding
def about_repeats(tables: Tables) -> Iterator[Check]:
    """Report rows whose question is that of another row. Held-out questions are different ones."""
    for kind, table in tables.by_kind.items():
        different = len(set(table.made[ASKED][:]))
        if repeated := len(table.made) - different:
            line = f"{repeated:,} of {counted(len(table.made), f'{kind} row')} repeat a question of another row; "
            yield Check("ok", "repeats", f"{line}{different:,} are different, and each counts once where held out")


@finding
def about_conflicts(tables: Tables) -> Iterator[Check]:
    """Warn of questions of several rows whose gold answers share no value."""
    for kind, table in tables.by_kind.items():
        if conflicting := _conflicts(table.made):
            question, gold, other_gold = conflicting[0]
            noun = "training question" if kind == "training" else "held-out question"
            line = "at least " * (len(conflicting) >= MOST_COMPARED // 2)
            line += f"{counted(len(conflicting), noun)} with different gold answers, such as "
            line += f'"{shorten(question)}": {shorten(readable(gold))}, and {shorten(readable(other_gold))}'
            yield Check("warning", "conflicts", line, "keep the right row of each")


def _conflicts(rows: Dataset) -> list[tuple[str, Gold, Gold]]:
    first: dict[str, Gold] = {}
    conflicts: dict[str, tuple[str, Gold, Gold]] = {}
    compared = 0
    for question, key, gold in zip(rows["question"][:], rows[ASKED][:], rows["answer"][:], strict=True):
        earlier = first.setdefault(key, gold) if gold is not None else None
        if earlier is None or earlier == gold or key in conflicts:
            continue
        compared += 1
        values, others = alternatives(gold), alternatives(earlier)
        if not any(same_answer(value, other, computed=False) for value in values for other in others):
            conflicts[key] = question, earlier, gold
        if compared == MOST_COMPARED:
            break
    return list(conflicts.values())


@finding
def about_templates(tables: Tables) -> Iterator[Check]:
    """Warn of questions and gold answers that have marks of a chat template already."""
    own: Any = getattr(tables.tokenizer, "all_special_tokens", [])
    special = [re.escape(token) for token in own if re.search(r"\W", token) and not TAG.fullmatch(token)]
    marks = re.compile("|".join([*special, TEMPLATE.pattern]), TEMPLATE.flags)
    for column, noun in (("question", "question"), ("answer", "gold answer")):
        texts = [text for table in tables.all for cell in table.made[column][:] for text in alternatives(cell)]
        plain = [PLACEHOLDER.sub("", text) for text in texts]
        signs = [sign[0] for text in plain if (sign := marks.search(text) or TAGS.search(PAIR.sub("", text)))]
        if signs and len(signs) >= OFTEN * len(texts):
            line = f"{len(signs):,} of {counted(len(texts), noun)} with the mark {signs[0].strip()} of a chat template"
            remedy = "take the text out of it in a `prepare`" + (
                ": the run writes questions in the model's own template" if column == "question" else ""
            )
            yield Check("warning", "templates", line, remedy)


# --- Gold answers


@finding
def about_missing_golds(tables: Tables) -> Iterator[Check]:
    """Name gold answers that may stand for none, such as `-` or `unknown`, while the others hardly repeat.

    Signs and words that say nothing are warned of; other texts, such as `no solution`, may be what is meant.
    """
    for kind, table in tables.by_kind.items():
        golds = [alternatives(gold)[0] for gold in table.made["answer"][:] if gold is not None]
        counts = Counter(gold.casefold() for gold in golds)
        are_labels = len(counts) <= len(golds) / 4
        stand_for_none = [
            gold for gold in counts if ERROR.fullmatch(gold) or (NOTHING.fullmatch(gold) and not are_labels)
        ]
        status = "warning" if stand_for_none else "ok"
        if golds and not are_labels and (most := _stray(golds, counts)) not in ("", *stand_for_none):
            stand_for_none.append(most)
        if stand_for_none and len(stand_for_none) < len(counts):
            written = {gold.casefold(): gold for gold in golds}
            shown = ", ".join(f'"{shorten(written[gold])}" {counts[gold]:,}' for gold in stand_for_none[:3])
            count = sum(counts[gold] for gold in stand_for_none)
            line = f"{count:,} of {counted(len(golds), 'gold answer')}"
            line += f" of the {'training' if kind == 'training' else 'held-out'} rows" * (len(tables.by_kind) > 1)
            line += f" may stand for none: {shown}{', or do they mean it?' * (status == 'ok')}"
            yield Check(status, "no answer", line, "return None for these rows in a `prepare`, unless they mean it")


def _stray(golds: Sequence[str], counts: Counter[str]) -> str:
    """Return the most frequent gold answer if it is a text unlike the others, which hardly repeat; or ""."""
    (most, count), *second = counts.most_common(2)
    is_text = kind_of(most) == "text" and not re.search(r"\d", most) and most not in ("yes", "no", "true", "false")
    others = [gold for gold in golds if gold.casefold() != most]
    few = count < max(3, STRAY * len(golds)) or (second and 3 * second[0][1] > count)
    numbers = sum(kind_of(gold) != "text" for gold in others[:200]) > 0.5 * len(others[:200])
    return most if is_text and not few and (numbers or len(counts) > 0.8 * len(others)) else ""


# --- Rows that are held out, dropped or kept


def about_overlap(dropped: int, cut_off: bool) -> Check:
    """Warn of training rows that were dropped for their held-out question.

    Args:
        cut_off: True if the held-out rows are cut off the training rows, so that they only repeat a question.
    """
    line = f"dropped {counted(dropped, 'training row')} with a held-out question"
    remedy = "use training rows that are not in the evaluation"
    return warn_if(dropped and not cut_off, "overlap", line, remedy, routine=True)


def about_held_out(tables: Tables, count: int) -> Check:
    """Report the number of held-out questions, and the smallest change that they can show."""
    script = tables.config.script
    if script.eval_samples == 0:
        return Check("ok", "held out", "eval_samples 0: no evaluation before and after training")
    line = counted(count, "held-out question")
    if tables.cut_off:
        share = count / (sum(table.reading.rows for table in tables.all) - tables.unusable)
        line += f", {100 * share:.0f} % of the rows, which have no split {script.eval_split!r}"
    remedy = "raise eval_samples or max_samples, add rows, or use another eval_dataset_name"
    few = f"this many cannot show a change below {100 * FEWEST / max(count, FEWEST):.1f} points"
    return warn_if(count < ENOUGH, "held out", line, f"{few}; {remedy}")


def about_kinds(column: str | None, held_out: Dataset) -> Iterator[Check]:
    """Count the held-out questions by the values of the column `eval_by`, and refuse one that tells each question."""
    if column is None or not len(held_out):
        return
    kinds = Counter(map(value_of, held_out[column]))
    counts = counts_of(kinds.elements())
    shown = ", ".join(f"{shorten(name, 40)} {count:,}" for name, count in counts.items())
    line, remedy = f"{counted(len(kinds), 'kind')} by {column}: {shown}", "make fewer kinds of them in a `prepare`"
    if len(kinds) == len(held_out) > MOST:
        line = f"each of the {counted(len(held_out), 'held-out question')} has another {column}, such as "
        line += ", ".join(shorten(name, 40) for name in [*kinds][:2])
        yield Check("error", "eval_by", line, f"name a column that many rows share, or {remedy}")
        return
    yield warn_if(len(kinds) > MOST, "eval_by", line, f"the {MOST - 1} largest have a row each; {remedy}")


def about_lengths(tables: Tables, lengths: Sequence[int], dropped: int | None = None) -> Check:
    """Compare the lengths of prompts with their limit.

    Args:
        lengths: tokens of each prompt, also of the dropped ones.
        dropped: training rows above the limit; None: held-out ones, which have none.
    """
    line, limit = spread(lengths), tables.config.script.max_prompt_length
    line += f"; limit {limit}" if limit and dropped is not None else ""
    line += f"; dropped {counted(dropped, 'training row')} above it" if dropped else ""
    remedy = "raise max_prompt_length" + " or lower num_shots" * bool(tables.task.shots)
    return warn_if((dropped or 0) > 0.05 * len(lengths), "prompt length", line, remedy, routine=True)


def spread(lengths: Sequence[int]) -> str:
    """Describe lengths by those of rows, without values between them."""
    ranked = sorted(lengths)
    middle, most = (ranked[math.ceil(share * len(ranked)) - 1] for share in (0.5, 0.95))
    return f"median {middle}, 95 % up to {most}, longest {counted(ranked[-1], 'token')}"
