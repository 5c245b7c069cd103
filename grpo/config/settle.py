"""Choose the run's directory, and what it resumes from, once its prompt and rewards are known."""

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from grpo.config.configure import find_recipe
from grpo.core import fingerprint
from grpo.core.settings import Config
from grpo.data.prompts import PromptFormat, Shot
from grpo.rewarding.judge import Judge
from grpo.rewarding.registry import Rewards
from grpo.runs import directory, resume, source

# What a script defines that is compared by itself
IN_SCRIPT = ("HYPERPARAMETERS", "SYSTEM_PROMPT", "PROMPT_FORMATS", "EXEMPLARS")


def settle(
    config: Config, prompt_format: PromptFormat, exemplars: Sequence[Shot], rewards: Rewards, judge: Judge
) -> None:
    """Set the run's directory and name, and the checkpoint that it resumes from, in `config`; write nothing.

    Raises:
        UserError: there is nothing to resume from, another run would be overwritten, or what was changed makes the
            checkpoint unusable.
    """
    training = config.training
    functions = code_by_label(config, rewards, judge)
    config.source_files = source.read_files(Path(config.script_file), functions.values(), _recipe(config.argv))
    config.code = source.code_of(functions)
    config.sources = sources(config, prompt_format, exemplars, rewards, judge)
    differences = partial(resume.differences, settings=config.settings(), sources=config.sources)
    named, asked = config.named_dir, training.resume_from_checkpoint
    claim = directory.claim(named, config.default_dir, asked, differences)
    training.output_dir, training.resume_from_checkpoint = claim.output_dir, claim.checkpoint
    config.notes += claim.notes
    if claim.output_dir.startswith(f"{config.default_dir}-"):
        config.move(Path(claim.output_dir))
    if named or asked:
        config.default_dir = config.default_run = ""
    if claim.checkpoint:
        checkpoint, world_size = Path(claim.checkpoint), config.geometry.world_size
        config.resumed_with = resume.changed_since(checkpoint, config.settings(), config.sources)
        config.notes += resume.compare(checkpoint, config.settings(), world_size, config.sources)


def sources(
    config: Config, prompt_format: PromptFormat, exemplars: Sequence[Shot], rewards: Rewards, judge: Judge
) -> dict[str, str]:
    """A hash for each part of the experiment that no setting names, by what people call it."""
    shots = exemplars[: config.script.num_shots]
    found = {
        "system prompt": fingerprint.of_text(prompt_format.system, prompt_format.opening),
        "question template": fingerprint.of_text(prompt_format.question),
        "completion template": fingerprint.of_text(prompt_format.completion),
        "exemplars": fingerprint.of_text(*(text for shot in shots for text in shot)),
    }
    for label, function in code_by_label(config, rewards, judge).items():
        found[f"code of {label}"] = fingerprint.of_code(function)
    script = Path(config.script_file)
    if script.suffix == ".py" and script.is_file():
        found[fingerprint.REST] = fingerprint.of_script(script, {*IN_SCRIPT, *rewards, judge.name})
    return found


def code_by_label(config: Config, rewards: Rewards, judge: Judge) -> dict[str, Callable[..., Any]]:
    """The run's own functions, without the parameters that settings give them, which are compared by themselves."""
    listed = config.reward_functions
    functions = {name: listed.get(name) or _without_parameters(reward) for name, reward in rewards.items()}
    return functions | ({f"the judge {judge.name}": judge.function} if judge.function else {})


def _without_parameters(reward: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(reward, partial):
        reward = reward.func
    return reward


def _recipe(argv: Sequence[str]) -> Path | None:
    """The recipe that a command line names."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config")
    name = parser.parse_known_args(argv)[0].config
    return find_recipe(name) if name else None
