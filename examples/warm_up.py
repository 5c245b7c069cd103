r"""A warm start before GRPO: supervised training on the data's own worked solutions, in the run's prompt and format.

    python examples/warm_up.py --config recipes/two_stage.yaml            with the flags of the run to come
    python examples/warm_up.py --script my_task.py --sft_steps 50         for a script of your own

It reads the run's settings, data and format as the script does, so that held-out questions stay held out, trains
`model_name_or_path` with TRL's SFTTrainer, and writes the model to `output_dir` (default: outputs/Qwen-1.5B-warm-up).
That directory is the run's next `model_name_or_path`; the command is printed. `--dry_run true` only counts the
solutions and shows one. docs/warm-up.md says when this helps, and when it only teaches the format.
"""

import dataclasses
import importlib
import math
import sys
from collections import Counter
from pathlib import Path
from typing import Any

if str(ROOT := Path(__file__).resolve().parent.parent) not in sys.path:
    sys.path.append(str(ROOT))
if __name__ == "__main__":
    from grpo.core.processes import let_idle_threads_sleep

    let_idle_threads_sleep()  # before torch

from datasets import Dataset
from transformers import TrainingArguments
from trl import SFTConfig, SFTTrainer

from grpo.config.configure import configure
from grpo.core import commands, folder_of
from grpo.core.directories import check_output
from grpo.core.errors import ArgumentParser, UserError, one_line, run_main
from grpo.core.processes import say
from grpo.core.settings import Config
from grpo.core.text import counted
from grpo.data.dataset import Data, load_data
from grpo.policy.loading import load_model, load_tokenizer
from grpo.policy.templates import fit_to_template
from grpo.preflight.preflight import print_example
from grpo.runs.resume import FOLLOW_A_METRIC
from grpo.scoring.registry import make_task
from grpo.scoring.sample import Sample
from grpo.scoring.scorer import Scorer
from grpo.task.gold import alternatives, readable
from grpo.task.prompts import tokenized
from grpo.task.task import Task

STEPS = 100  # of the run's per_device_train_batch_size * gradient_accumulation_steps solutions: 64
TIMES = 5  # the run's learning_rate, which suits its model or adapter; a solution says more than a reward
Solved = tuple[list[int], Sample]  # a prompt's tokens, and a solution
OF_THE_WARM_UP = ("model_name_or_path", "output_dir", "dry_run")  # the run gets others


def solutions(config: Config, task: Task, tokenizer: Any, data: Data) -> tuple[list[Solved], Counter[str]]:
    """Return the prompt and the solution of each training row that has one, and count the others by their reason.

    A prompt is its tokens, as the run samples from them; a solution is a completion that the run's judge accepts.
    """
    prefill, judge = task.prompt.prefill, Scorer(task, {}, {})
    asked = tokenized(data.train["prompt"], tokenizer, config.template_kwargs)
    found, dropped = list[Solved](), Counter[str]()
    for row, reasoning, prompt in zip(data.train, data.reasoning, asked, strict=True):
        if "{reasoning}" in task.prompt.completion and not reasoning:
            dropped["have no worked solution"] += 1
            continue
        text = task.perfect(reasoning, alternatives(row["answer"])[0]).removeprefix(prefill)
        ids = [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]
        (judged,) = judge.judge([Sample(row, prefill + tokenizer.decode(ids, skip_special_tokens=True), ids)])
        if len(ids) > config.completion_limit:
            dropped["are longer than max_completion_length"] += 1
        elif not judged.verdict.strict or judged.format.strict is False:
            dropped["do not count as right in the run's format"] += 1
        else:
            found.append((prompt, judged))
    return found, dropped


def warm_up(config: Config, steps: int, rate: float) -> None:
    """Train the run's model on the solutions of its training rows, and write it to a directory."""
    output = Path(str(config.training.output_dir))
    if config.origin["output_dir"] == "machine":
        output = Path(config.default_dir.replace("-GRPO", "-warm-up"))
    elif config.origin["output_dir"] != "flag":  # a recipe's or a script's is the run's
        output = output.with_name(f"{output.name}-warm-up")
    check_output(output)
    if output.is_dir() and any(output.iterdir()):
        raise UserError(f"output_dir: {str(output)!r} is not empty; use another name, or delete it")
    task, tokenizer = fit_to_template(make_task(config), load_tokenizer(config), config.template_kwargs)
    data = load_data(config, task, tokenizer, ["the warm-up"])
    solved, dropped = solutions(config, task, tokenizer, data)
    reasons = "".join(f"; {count:,} {reason}" for reason, count in dropped.items())
    line = f"{counted(len(solved), 'solution')} in {len(data.train):,} training rows{reasons}"
    if not solved:
        raise UserError(
            f"answer_column: {config.script.answer_column!r} has {line}; name a column with solutions that end in "
            r"their answer (#### 72, \boxed{72}), and see if a dry run of train_grpo.py has warnings"
        )
    say(f"{line}; {counted(len(data.held_out), 'question')} held out")
    prompt, solution = solved[0]
    print_example(str(tokenizer.decode([*prompt, *solution.ids])), readable(solution.gold))
    if config.script.dry_run:
        return
    of_the_run = {field.name: getattr(config.training, field.name) for field in dataclasses.fields(TrainingArguments)}
    own = {"output_dir": str(output), "max_steps": steps, "learning_rate": rate, "max_length": None}
    off: dict[str, Any] = {
        "eval_strategy": "no",
        "save_strategy": "no",
        "load_best_model_at_end": False,
        "push_to_hub": False,
    }
    if config.training.lr_scheduler_type in FOLLOW_A_METRIC:  # of evaluations
        off |= {"lr_scheduler_type": "linear", "lr_scheduler_kwargs": None}
    settings: dict[str, Any] = {**of_the_run, **own, **off, "report_to": "none", "disable_tqdm": True}
    rows = [{"input_ids": [*ids, *it.ids], "labels": [-100] * len(ids) + [*it.ids]} for ids, it in solved]
    model, peft_config = load_model(config)
    with one_line(kinds=(ValueError, NotImplementedError, ImportError, OSError)):  # TRL's refusals
        table, arguments = Dataset.from_list(rows), SFTConfig(**settings)
        trainer = SFTTrainer(model, arguments, None, table, processing_class=tokenizer, peft_config=peft_config)
    trainer.train()
    trainer.accelerator.unwrap_model(trainer.model).save_pretrained(output)
    tokenizer.save_pretrained(output)
    words = [*commands.without(config.argv, OF_THE_WARM_UP), "--model_name_or_path", str(output)]
    say(f"Saved in {output}. The run: {commands.line('python', config.program, words)}")


def main(argv: list[str] | None = None) -> int:
    """Warm up the model of a run with these flags. Return the exit status; a mistake is one line and 2."""
    return run_main(lambda: run(sys.argv[1:] if argv is None else argv))


def run(argv: list[str]) -> int:
    about, others = (__doc__ or "").partition("\n")[0], "All other flags are those of the run."
    parser = ArgumentParser(prog="warm_up.py", description=about, epilog=others)
    parser.add_argument("--script", default="train_grpo.py", help="has the HYPERPARAMETERS; default: %(default)s")
    parser.add_argument("--sft_steps", type=int, default=STEPS, help="optimizer steps; default: %(default)s")
    parser.add_argument("--sft_learning_rate", type=float, help=f"default: {TIMES} times the run's learning_rate")
    own, flags = parser.parse_known_args(argv)
    if not (folder := folder_of(own.script)):
        raise UserError(f"script: {own.script!r} does not exist; name the script of the run")
    file = (folder / own.script).resolve()
    sys.path.insert(0, str(file.parent))
    config = configure(importlib.import_module(file.stem).HYPERPARAMETERS, flags, None, str(file))
    rate = TIMES * config.training.learning_rate if own.sft_learning_rate is None else own.sft_learning_rate
    if own.sft_steps < 1 or not 0 < rate < math.inf:
        raise UserError(f"sft_steps {own.sft_steps}, sft_learning_rate {rate:g}: both must be above 0")
    if config.script.eval_only or config.training.resume_from_checkpoint or config.geometry.world_size > 1:
        raise UserError("warm_up: it trains from the start in one process: no eval_only, no resume, no launcher")
    warm_up(config, own.sft_steps, rate)
    return 0


if __name__ == "__main__":
    sys.exit(main())
