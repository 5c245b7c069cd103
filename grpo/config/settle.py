"""Choose the run's directory and the checkpoint to resume from. This needs the prompt and the rewards."""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from grpo.core.checklist import Check
from grpo.core.processes import say
from grpo.core.settings import LENGTH, Config, about, given_by
from grpo.rewarding.registry import Rewards
from grpo.runs import directory, resume, source
from grpo.task import prompts
from grpo.task.task import Task


def settle(config: Config, task: Task, rewards: Rewards) -> bool:
    """Set directory, run name and checkpoint to resume from in `config`. Writes nothing.

    Returns:
        False if there is nothing to do: the run has finished, and this command changes nothing of it.
    """
    training = config.training
    functions, inline = functions_of(config, task, rewards), given_by(config.origin, "script")
    config.source_files, config.code, hashes = source.read(
        Path(config.script_file), functions, config.recipe, inline & config.functions.keys()
    )
    config.sources = prompts.hashes(task.prompt, task.shots) | hashes
    differences = partial(resume.differences, settings=config.settings(), sources=config.sources)
    asked = training.resume_from_checkpoint
    named = None if config.origin["output_dir"] == "machine" else training.output_dir
    claim = directory.claim(named, config.default_dir, asked, differences)
    config.notes += claim.notes
    if re.fullmatch(rf"{re.escape(config.default_dir)}-\d+", claim.output_dir):
        config.move(Path(claim.output_dir))
    training.output_dir, training.resume_from_checkpoint = claim.output_dir, claim.checkpoint
    if named or asked:
        config.default_dir = ""
    if claim.checkpoint:
        checkpoint, world_size = Path(claim.checkpoint), config.geometry.world_size
        config.resumed_with = resume.changed_since(checkpoint, config.settings(), config.sources)
        config.notes += resume.note_changes(checkpoint, config.settings(), world_size, config.sources)
        changed = resume.changed_since_the_end(checkpoint, config.output, config.settings(), config.sources)
        if changed == []:
            say(f"{config.output} has finished, and nothing has changed since; a larger max_steps trains on")
            return config.script.dry_run
        if changed and not any(about(key).change is LENGTH for key in changed):
            finding = f"the run has finished, so it is only evaluated and saved again ({', '.join(changed)} changed)"
            config.notes.append(Check("ok", "finished", finding))
    return True


def functions_of(config: Config, task: Task, rewards: Rewards) -> dict[str, Callable[..., Any]]:
    """Return the run's rewards, judge and `prepare` by label, without the parameters that settings bind."""
    functions = {
        name: config.functions["reward_funcs"].get(name) or source.innermost(rewards[name]) for name in rewards
    }
    functions |= {f"the judge {task.judge_name}": task.judge} if task.judge else {}
    return functions | ({"prepare": task.prepare} if task.prepare else {})
