"""Append a section to TRL's model card: results, data, rewards, prompt and a link to the report."""

import os
import textwrap
from pathlib import Path

from huggingface_hub import ModelCard

from grpo.core.jsonfiles import write_text
from grpo.core.text import short_name
from grpo.report import charts
from grpo.report.files import RunFiles, read_run
from grpo.results.summary import HEADINGS

LINK = "[None](https://huggingface.co/None)"  # what TRL writes for a base model that is a local directory
PROMPT_NOTE = "Ask it with the prompt of its training, which is below.\n\n## Training procedure"
FOOTER = "Curves, settings and the code of the rewards: [report.html](report.html)."


def complete(directory: Path, step: int) -> None:
    """Append results and training of the run to TRL's model card, `README.md`, without paths of this machine.

    In TRL's part, name a base model that is a local directory, and refer to the prompt.

    Args:
        step: the optimizer step of the weights, not always that of the last log.
    """
    run, card = read_run(directory), ModelCard.load(directory / "README.md")
    if (directory / "adapter_config.json").exists():
        card.data.library_name = "peft"
    lines = [*_results(run), *_training(run, step), FOOTER]
    text = card.text.rstrip("\n").replace(LINK, f"`{_public(str(run.settings.get('model_name_or_path')))}`")
    card.text = "\n".join([text.replace("## Training procedure", PROMPT_NOTE, 1), "", *lines])
    write_text(directory / "README.md", str(card))


def _results(run: RunFiles) -> list[str]:
    """Return the verdict and the table of results, as lines of Markdown."""
    if not run.evaluations:
        return []
    columns = [HEADINGS[when] for when in run.evaluations] + ["Change"] * (len(run.evaluations) == 2)
    lines = ["## Results", ""]
    if "sentence" in run.comparison:
        causes = [f"- Likely cause: {cause}." for cause in run.comparison.get("diagnosis") or []]
        lines += [f"**{run.comparison['sentence']}**", "", *causes, *([""] if causes else [])]
    count = next(iter(run.evaluations.values()))["n"]
    lines += [f"{count} held-out questions, one greedy completion each. Shares in per cent, 95 % intervals.", ""]
    lines += [f"| | {' | '.join(columns)} |", "| :-- |" + " --: |" * len(columns)]
    for name, cells in run.results.values():
        texts = [f"{value} ({interval})" if interval else value for value, interval in cells]
        lines.append(f"| {name} | {' | '.join(texts)} |")
    return [*lines, ""]


def _training(run: RunFiles, step: int) -> list[str]:
    """Return model, data, steps, rewards with their weights, and the prompt, as lines of Markdown."""
    settings, prompt = run.settings, run.record.get("prompt") or {}
    lines = ["## Training data and rewards", ""]
    if model := settings.get("model_name_or_path"):
        lines.append(f"- Base model: `{_public(model)}`{', a local directory' if os.path.isdir(model) else ''}")
    if data := settings.get("dataset_name"):
        lines.append(f"- Data: `{_public(data)}`")
    if step:
        lines.append(f"- Optimizer steps: {step} ({run.status})")
    if run.weights:
        lines.append(f"- These are the {run.weights}")
    lines += [f"- Changed {change}" for change in run.changes]
    names = settings.get("reward_funcs") or []
    weights = settings.get("reward_weights") or [1.0] * len(names)
    parts = [f"`{short_name(name)}` × {charts.number(value)}" for name, value in zip(names, weights, strict=True)]
    lines.append(f"- Rewards: {', '.join(parts)}")
    if prompt:
        texts = {"Prompt": prompt["system"] if prompt["chat"] else prompt["opening"], "Question": prompt["question"]}
        texts["A perfect completion"] = prompt["completion"]
        lines += [line for name, text in texts.items() if text for line in ("", f"{name}:", "", _indented(text))]
    return [*lines, ""]


def _public(value: str) -> str:
    """Return the name of a model or of data; of a path on this machine only its last part."""
    return Path(value).name if os.path.isabs(value) or os.path.exists(value) else value


def _indented(text: str) -> str:
    """Indent a text as a code block, so that no line of it ends the block."""
    return textwrap.indent(text.strip("\n"), "    ", lambda line: True)
