"""Choose the run's directory, and what it resumes from, once its prompt and rewards are known."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from grpo.core import fingerprint
from grpo.core.settings import Config
from grpo.data.prompts import PromptFormat, Shot
from grpo.rewarding.judge import Judge
from grpo.rewarding.registry import Rewards
from grpo.runs import directory, resume

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
    config.sources = sources(config, prompt_format, exemplars, rewards, judge)
    differences = partial(resume.differences, settings=config.settings(), sources=config.sources)
    asked = training.resume_from_checkpoint
    named = None if config.origin["output_dir"] == "machine" else training.output_dir
    claim = directory.claim(named, config.default_dir, asked, differences)
    config.notes += claim.notes
    if claim.output_dir.startswith(f"{config.default_dir}-"):
        config.move(Path(claim.output_dir))
    training.output_dir, training.resume_from_checkpoint = claim.output_dir, claim.checkpoint
    if named or asked:
        config.default_dir = ""
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
    listed = config.reward_functions
    for name, reward in rewards.items():
        found[f"code of {name}"] = fingerprint.of_code(listed.get(name) or _innermost(reward))
    if judge.function:
        found[f"code of the judge {judge.name}"] = fingerprint.of_code(judge.function)
    script = Path(config.script_file)
    if script.suffix == ".py" and script.is_file():
        found[fingerprint.REST] = fingerprint.of_script(script, {*IN_SCRIPT, *rewards, judge.name})
    return found


def _innermost(reward: Callable[..., Any]) -> Callable[..., Any]:
    """The function without the parameters that the settings give it, which are compared by themselves."""
    while isinstance(reward, partial):
        reward = reward.func
    return reward
