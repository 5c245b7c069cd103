"""Choose the run's directory, and what it resumes from, once its prompt and rewards are known."""

from functools import partial
from pathlib import Path

from grpo.core import fingerprint
from grpo.core.settings import Config
from grpo.rewarding.registry import Rewards, innermost
from grpo.runs import directory, resume
from grpo.task.task import Task

# What a script defines that is compared by itself
IN_SCRIPT = ("HYPERPARAMETERS", "SYSTEM_PROMPT", "PROMPT_FORMATS", "EXEMPLARS")


def settle(config: Config, task: Task, rewards: Rewards) -> None:
    """Set the run's directory and name, and the checkpoint that it resumes from, in `config`; write nothing.

    Raises:
        UserError: there is nothing to resume from, another run would be overwritten, or what was changed makes the
            checkpoint unusable.
    """
    training = config.training
    config.sources = sources(config, task, rewards)
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


def sources(config: Config, task: Task, rewards: Rewards) -> dict[str, str]:
    """A hash for each part of the experiment that no setting names, by what people call it."""
    prompt = task.prompt
    hashes = {
        "system prompt": fingerprint.of_text(prompt.system, prompt.opening),
        "question template": fingerprint.of_text(prompt.question),
        "completion template": fingerprint.of_text(prompt.completion, prompt.pattern),
        "exemplars": fingerprint.of_text(*(text for shot in task.shots for text in shot)),
    }
    code = {f"code of {name}": config.reward_functions.get(name) or innermost(rewards[name]) for name in rewards}
    code |= {f"code of the judge {task.judge_name}": task.judge} if task.judge else {}
    code |= {"code of prepare": task.prepare} if task.prepare else {}
    hashes |= {label: fingerprint.of_code(function) for label, function in code.items()}
    script = Path(config.script_file)
    if script.suffix == ".py" and script.is_file():
        compared = {*IN_SCRIPT, *rewards, task.judge_name, getattr(task.prepare, "__name__", "")}
        hashes[fingerprint.REST] = fingerprint.of_script(script, compared)
    return hashes
