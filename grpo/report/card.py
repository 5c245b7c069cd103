"""Append a section to TRL's model card: results, data, rewards, prompt and a link to the report.

Names and texts of users, models, data and files are shown as they are written, whatever Markdown or HTML they contain.
"""

import contextlib
import os
import re
import textwrap
from pathlib import Path

from huggingface_hub import ModelCard
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id

from grpo.core.jsonfiles import write_text
from grpo.core.text import printable, short_name
from grpo.report import charts
from grpo.report.files import RunFiles, read_run
from grpo.results.summary import HEADINGS

NO_BASE = "[None](https://huggingface.co/None)"  # what TRL writes for a base model that is a local directory
PROMPT_NOTE = "Ask it with the prompt of its training, which is below.\n\n## Training procedure"
FOOTER = "Curves, settings and the code of the rewards: [report.html](report.html)."
# Characters with a meaning in Markdown, HTML or formulas, "_" beside a word, and marks at the start of a line
MARKS = re.compile(r"[\\`*\[\]<>&|~$]|(?<![^\W_])_|_(?![^\W_])|^[-+](?=[-+\s]|$)|^#(?=[#\s]|$)|^=")
WORDS = re.compile(r"[^\s\"'`()\[\]<>|,;]+")
LINK = re.compile(r"://|@|www\.|[^\W_]\.[^\W\d_]{2}", re.IGNORECASE)  # in words that renderers turn into links


def complete(directory: Path, step: int) -> None:
    """Append results and training of the run to TRL's model card, `README.md`, without paths of this machine.

    In TRL's part, name a base model that is a local directory, escape the run's name, and refer to the prompt.

    Args:
        step: the optimizer step of the weights, not always that of the last log.
    """
    run, card = read_run(directory), ModelCard.load(directory / "README.md")
    if (directory / "adapter_config.json").exists():
        card.data.library_name = "peft"
    lines = [*_results(run), *_training(run, step), FOOTER]
    text = card.text.rstrip("\n").replace(NO_BASE, code_span(_public(str(run.settings.get("model_name_or_path")))))
    base, name = card.data.get("base_model"), str(card.data.get("model_name") or "")
    if base and not is_hub_id(base):  # a directory that is elsewhere now
        text = text.replace(f"[{base}](https://huggingface.co/{base})", code_span(_public(base)), 1)
        card.data.base_model = None
    text = text.replace(f"# Model Card for {name}", f"# Model Card for {markdown(name)}", 1)
    card.text = "\n".join([text.replace("## Training procedure", PROMPT_NOTE, 1), "", *lines])
    write_text(directory / "README.md", str(card))


def _results(run: RunFiles) -> list[str]:
    """Return the verdict and the table of results, as lines of Markdown."""
    if not run.evaluations:
        return []
    columns = [HEADINGS[when] for when in run.evaluations] + ["Change"] * (len(run.evaluations) == 2)
    lines = ["## Results", ""]
    if "sentence" in run.comparison:
        causes = [f"- Likely cause: {markdown(cause)}." for cause in run.comparison.get("diagnosis") or []]
        lines += [f"**{markdown(run.comparison['sentence'])}**", "", *causes, *([""] if causes else [])]
    count = next(iter(run.evaluations.values()))["n"]
    lines += [f"{count} held-out questions, one greedy completion each. Shares in per cent, 95 % intervals.", ""]
    lines += [f"| | {' | '.join(columns)} |", "| :-- |" + " --: |" * len(columns)]
    for name, cells in run.results.values():
        texts = [f"{value} ({interval})" if interval else value for value, interval in cells]
        lines.append(f"| {markdown(name)} | {' | '.join(map(markdown, texts))} |")
    return [*lines, ""]


def _training(run: RunFiles, step: int) -> list[str]:
    """Return model, data, steps, rewards with their weights, and the prompt, as lines of Markdown."""
    settings, prompt = run.settings, run.record.prompt
    lines = ["## Training data and rewards", ""]
    if model := settings.get("model_name_or_path"):
        where = ", a local directory" if os.path.isdir(model) else ""
        lines.append(f"- Base model: {code_span(_public(model))}{where}")
    if data := settings.get("dataset_name"):
        lines.append(f"- Data: {code_span(_public(data))}")
    if step:
        lines.append(f"- Optimizer steps: {step} ({markdown(run.status)})")
    if run.record.weights_of_best:
        lines.append(f"- These are the {markdown(run.record.weights_of_best)}")
    lines += [f"- Changed {markdown(change)}" for change in run.record.changes]
    names = settings.get("reward_funcs") or []
    weights = settings.get("reward_weights") or [1.0] * len(names)
    parts = [
        f"{code_span(short_name(name))} × {charts.number(value)}" for name, value in zip(names, weights, strict=True)
    ]
    lines.append(f"- Rewards: {', '.join(parts)}")
    if prompt:
        texts = {"Prompt": prompt["system"] if prompt["chat"] else prompt["opening"], "Question": prompt["question"]}
        texts["A perfect completion"] = prompt["completion"]
        lines += [line for name, text in texts.items() if text for line in ("", f"{name}:", "", _indented(text))]
    return [*lines, ""]


def markdown(text: object) -> str:
    r"""Return a text as Markdown of one line that shows it without links, images, HTML and formatting.

    What would become a link is shown as code.

    >>> print(markdown("learning_rate is *5e-6*, see <b>http://127.0.0.1/p.png</b>; #1"))
    learning_rate is \*5e-6\*, see \<b\>`http://127.0.0.1/p.png`\</b\>; #1
    """
    line = printable(" ".join(str(text).split()))
    parts, end = [], 0
    for word in WORDS.finditer(line):
        if LINK.search(word[0]):
            parts += [_escaped(line[end : word.start()]), code_span(word[0])]
            end = word.end()
    return "".join([*parts, _escaped(line[end:])])


def _escaped(text: str) -> str:
    text = re.sub(r"^(\d+)([.)])(?=\s|$)", r"\1\\\2", MARKS.sub(r"\\\g<0>", text))
    return text.replace("\\\\", "&#92;")  # which the Hub takes for a formula before "("


def code_span(text: str) -> str:
    """Return a text as Markdown of one line that shows it as code, whatever backticks it contains.

    >>> code_span("int"), code_span("a `b`")
    ('`int`', '`` a `b` ``')
    """
    line = printable(" ".join(text.split())) or " "
    fence = "`" * (1 + max(map(len, re.findall("`+", line)), default=0))
    space = " " if "`" in (line[0], line[-1]) else ""
    return f"{fence}{space}{line}{space}{fence}"


def of_repository(text: str, repository: str) -> str:
    """Return a card whose quick start, which TRL wrote before anybody published, loads this repository.

    >>> of_repository('pipeline("text-generation", model="your-name/run", device_map="auto")', "me/x")
    'pipeline("text-generation", model="me/x", device_map="auto")'
    """
    loads = re.compile(r'(pipeline\("text-generation", model=")[^"\n]*(?=")')
    return loads.sub(lambda head: head[1] + repository, text, count=1)


def is_hub_id(name: str) -> bool:
    """True if a repository of the Hub may have this name."""
    with contextlib.suppress(HFValidationError):
        validate_repo_id(name)
        return True
    return False


def hub_name(name: str) -> str:
    """Return a name for a repository of the Hub, made of that of a directory.

    >>> hub_name("Qwen-1.5B-GRPO"), hub_name('my "runs"')
    ('Qwen-1.5B-GRPO', 'my-runs')
    """
    return re.sub(r"[^A-Za-z0-9_.]+", "-", name).strip("-.") or "model"


def _public(value: str) -> str:
    """Return the name of a model or of data; of a path on this machine only its last part."""
    return Path(value).name if os.path.isabs(value) or os.path.exists(value) else value


def _indented(text: str) -> str:
    """Indent a text as a code block, so that no line of it ends the block."""
    return textwrap.indent(text.strip("\n"), "    ", lambda line: True)
