"""Complete TRL's model card with what a run learned, from which data and rewards, and how to ask it."""

import pprint
import re
import textwrap
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard
from huggingface_hub.utils import HFValidationError, validate_repo_id

from grpo.core.text import short_name
from grpo.runs import charts, report

LONGEST = 300  # characters of a question that the card asks


def complete(run: Path, step: int | None = None) -> None:
    """Add to the card that TRL has written, `README.md`, what the run's files say; none of its paths.

    Args:
        step: the optimizer step of the weights, where the last log is older.
    """
    card, facts = ModelCard.load(run / "README.md"), report.read_facts(run)
    facts["steps"] = facts["steps"] if step is None else step
    name = facts["settings"].get("dataset_name") or ""
    card.data.datasets = [name.partition(":")[0]] if _is_hub_id(name) else None
    if (run / "adapter_config.json").exists():
        card.data.library_name = "peft"
    # TRL writes None for what has no Hub id
    text = card.text.replace("[None](https://huggingface.co/None)", "a local model")
    text = text.replace('model="None"', f'model="your-name/{run.resolve().name}"')
    opening, heading, rest = text.partition("## Quick start")
    if facts["record"].get("asked"):
        rest = re.sub(r"(?s)```python\n.*?\n```", lambda stock: _quick_start(run, facts, stock[0]), rest, count=1)
    card.text = "\n".join([opening.rstrip(), "", *_results(facts), *_training(facts), heading]) + rest
    card.save(run / "README.md")


def _is_hub_id(name: str) -> bool:
    """Whether a data set is the Hub's: `id` or `id:configuration`."""
    try:
        validate_repo_id(name.partition(":")[0])
    except HFValidationError:
        return False
    return not Path(name).exists()


def _results(facts: dict[str, Any]) -> list[str]:
    """The sentence and the table, as lines of Markdown."""
    evaluations, comparison = facts["evaluations"], facts["comparison"]
    if not evaluations:
        return []
    columns = [report.HEADINGS[when] for when in evaluations] + ["Change"] * (len(evaluations) == 2)
    lines = ["## Results", ""]
    if "sentence" in comparison:
        causes = [f"- Likely cause: {cause}." for cause in comparison.get("diagnosis") or []]
        lines += [f"**{comparison['sentence']}**", "", *causes, *([""] if causes else [])]
    asked = next(iter(evaluations.values()))["n"]
    lines += [f"{asked} held-out questions, one greedy completion each. Shares in per cent, 95 % intervals.", ""]
    lines += [f"| | {' | '.join(columns)} |", "| :-- |" + " --: |" * len(columns)]
    for name, cells in facts["results"].values():
        texts = [f"{value} ({interval})" if interval else value for value, interval in cells]
        lines.append(f"| {name} | {' | '.join(texts)} |")
    return [*lines, ""]


def _training(facts: dict[str, Any]) -> list[str]:
    """Data, steps, rewards with their weights, and the prompt, as lines of Markdown."""
    settings, prompt = facts["settings"], facts["record"].get("prompt") or {}
    lines = ["## Training data, rewards and prompt", ""]
    if name := settings.get("dataset_name"):
        lines.append(f"- Data: `{name if _is_hub_id(name) else Path(name).name}`")
    if facts["steps"]:
        lines.append(f"- Optimizer steps: {facts['steps']} ({facts['status']})")
    lines += [f"- Changed {turn}" for turn in facts["turns"]]
    for stage in facts["stages"] or [settings | {"name": "Rewards"}]:
        names = stage.get("reward_funcs") or []
        weights = stage.get("reward_weights") or [1.0] * len(names)
        parts = [f"`{short_name(name)}` × {charts.number(each)}" for name, each in zip(names, weights, strict=True)]
        lines.append(f"- {stage['name']}: {', '.join(parts)}")
    if text := prompt.get("system" if prompt.get("chat") else "opening"):
        shots = f", and with {settings['num_shots']} worked examples" if settings.get("num_shots") else ""
        lines += ["", f"Ask it as it was trained, with this prompt{shots}:", ""]
        lines.append(textwrap.indent(text.strip("\n"), "    "))
    if text := prompt.get("completion"):
        lines += ["", "A perfect completion:", "", textwrap.indent(text.strip("\n"), "    ")]
    return [*lines, ""]


def _quick_start(run: Path, facts: dict[str, Any], stock: str) -> str:
    """TRL's block of code, `stock`, with the run's prompt, and greedily, as it was evaluated."""
    settings, prompt = facts["settings"], facts["record"]["asked"]  # messages or a text, with {question} last
    *earlier, last = [{"content": prompt}] if isinstance(prompt, str) else prompt
    head, _, tail = last["content"].rpartition("{question}")
    asked = " + ".join([*([_code(head)] if head else []), "question", *([_code(tail)] if tail else [])])
    if earlier or not isinstance(prompt, str):
        lines = [*map(_code, earlier), f'{{"role": "user", "content": {asked}}}']
        asked = "\n".join(["[", *(textwrap.indent(f"{line},", "    ") for line in lines), "]"])
    options = [f"max_new_tokens={settings.get('max_completion_length') or 256}", "do_sample=False"]
    options.append("return_full_text=False")
    if kwargs := settings.get("chat_template_kwargs"):
        options.append(f"tokenizer_encode_kwargs={kwargs!r}")
    replaced = {
        "question = ": f"question = {_example(run, settings)!r}\nprompt = {asked}",
        "output = ": f"output = generator(prompt, {', '.join(options)})[0]",
    }
    return "\n".join(
        next((new for start, new in replaced.items() if line.startswith(start)), line) for line in stock.split("\n")
    )


def _code(value: Any) -> str:
    """Python's source of it, long texts over several lines."""
    text = pprint.pformat(value, width=100, sort_dicts=False)
    return f"({text})" if "\n" in text and not isinstance(value, dict) and not text.startswith("(") else text


def _example(run: Path, settings: dict[str, Any]) -> str:
    """A held-out question; only of data that anybody can read, since the card is published."""
    if not _is_hub_id(settings.get("dataset_name") or "") or settings.get("eval_dataset_name"):
        return "your question"
    records = [record for when in report.HEADINGS for record in report.read_lines(run / f"completions_{when}.jsonl")]
    return next((row["question"] for row in records if len(row["question"]) <= LONGEST), "your question")
