"""Seconds of one rollout by each way of sampling it, side by side with stock TRL's `generate`.

    python benchmarks/generation.py MODEL QUESTIONS.jsonl [--mean_length 120] [--max_completion_length 400]

Every side is a GRPOTrainer of the same settings that samples the same prompts with the same seeds. `--mean_length`
makes every token the last one with the same chance, so that lengths are long-tailed whatever the model: a geometric
distribution, cut at max_completion_length. Without it the model ends its completions itself. Since the sides draw
other lengths, they are compared by tokens per second; by CPU time, too, which a busy machine changes less.
"""

import argparse
import copy
import math
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from datasets import Dataset
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging
from trl import GRPOConfig, GRPOTrainer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from grpo.core.errors import UserError
from grpo.data import prompts, sources
from grpo.policy import engines, vllm
from grpo.policy.generation import eos_ids
from grpo.training import rollouts
from train_grpo import EXEMPLARS, PROMPT_FORMATS


def end_by_chance(model: torch.nn.Module, ends: list[int], mean_length: float) -> None:
    """From now on, each token is the first of `ends` with the chance of 1 in `mean_length`, and none of the others."""
    head = model.get_output_embeddings()
    # a buffer: it goes where the model goes, and code that was compiled reads it anew
    head.register_buffer("log_odds", torch.empty((), device=head.weight.device), persistent=False)
    set_mean_length(model, mean_length)

    def hook(module: torch.nn.Module, _inputs: tuple, logits: torch.Tensor) -> torch.Tensor:
        others = logits.clone()
        for end in ends:  # one by one: a list would be copied to the device, which waits for it
            others[..., end] = -math.inf
        chance = others.float().logsumexp(-1) - module.log_odds
        others[..., ends[0]] = chance.to(logits.dtype)
        return others

    head.register_forward_hook(hook)


def set_mean_length(model: torch.nn.Module, mean_length: float) -> None:
    """Another one, after `end_by_chance`."""
    model.get_output_embeddings().log_odds.fill_(math.log(mean_length - 1))


def end_vllm_by_chance(trainer: GRPOTrainer) -> None:
    """As `end_by_chance`, which comes before it, for vLLM's own copy of the model, where there is no hook to hang on.

    Each request is told its length, drawn from the same distribution.
    """
    llm, head = trainer.vllm_generation.llm, trainer.model.get_output_embeddings()
    generate = llm.generate

    def with_lengths(prompts: list, sampling_params: Any, **kwargs: Any) -> list:
        drawn = torch.empty(len(prompts)).geometric_(torch.sigmoid(-head.log_odds).item())
        each = []
        for length in drawn.long().tolist():
            each.append(copy.copy(sampling_params))
            each[-1].max_tokens = min(length, sampling_params.max_tokens)
            each[-1].ignore_eos = True
        return generate(prompts, sampling_params=each, **kwargs)

    llm.generate = with_lengths


def make_trainer(arguments: argparse.Namespace, tokenizer: object, directory: str, **own: object) -> GRPOTrainer:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32, attn_implementation="sdpa")
    if arguments.mean_length:
        end_by_chance(model, eos_ids(model, tokenizer), arguments.mean_length)
    config = GRPOConfig(
        output_dir=directory,
        use_cpu=device == "cpu",
        bf16=False,
        report_to="none",
        per_device_train_batch_size=arguments.rows,
        num_generations=arguments.num_generations,
        max_completion_length=arguments.max_completion_length,
        gradient_checkpointing=False,
        **own,
    )
    rows = Dataset.from_list([{"prompt": "1 + 1"}] * arguments.rows)
    return GRPOTrainer(
        model, lambda completions, **_: [0.0] * len(completions), config, rows, processing_class=tokenizer
    )


def settings_of(engine: str) -> dict[str, bool]:
    """What a GRPOConfig has to say for this engine; UserError where it cannot be had here."""
    own = {engines.SWITCH_OF[engine]: True} if engine in engines.SWITCH_OF else {}
    if own.get("use_vllm"):
        vllm.check_installed()
    return own


def sampler(trainer: GRPOTrainer, engine: str, group: int, rows: int | None = None) -> Callable[[list], list]:
    """A function from prompts' ids to completions' ids, as the trainer would sample them with this engine.

    Args:
        group: completions of a prompt, which stand one after another.
        rows: at once, with lean; None: all.

    Raises:
        UserError: this model or these settings do not go with it.
    """
    chosen = rollouts.choose(trainer, engine)
    if chosen is not None:
        return lambda prompt_ids: chosen(trainer, prompt_ids, rows)
    if engine == "lean" or (engine == "compiled" and trainer.generation_config.disable_compile):
        raise UserError("see the note above")
    return lambda prompt_ids: trainer._generate_single_turn(prompt_ids, None, {}, group)[0]


def prepare(arguments: argparse.Namespace, tokenizer: object, engine: str) -> Callable[[list[list[int]]], list]:
    """A function that samples one rollout with this engine; UserError where it cannot be had here."""
    with tempfile.TemporaryDirectory() as directory:
        trainer = make_trainer(arguments, tokenizer, directory, **settings_of(engine))
    if engine == "vllm" and arguments.mean_length:
        end_vllm_by_chance(trainer)
    return sampler(trainer, engine, arguments.num_generations, arguments.lean_rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", help="a local directory or a Hub id")
    parser.add_argument("questions", help="rows with `question` and `answer`")
    parser.add_argument("--rows", type=int, default=64, help="completions of one rollout")
    parser.add_argument("--num_generations", type=int, default=8)
    parser.add_argument("--max_completion_length", type=int, default=400)
    parser.add_argument("--mean_length", type=float, default=None, help="tokens; unset: as the model ends them")
    parser.add_argument("--num_shots", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3, help="rollouts that are timed, after one that is not")
    parser.add_argument("--lean_rows", type=int, default=None, help="rows at once; unset: as lean does by itself")
    parser.add_argument(
        "--engines",
        nargs="+",
        default=["hf", "hf, twice the rows", "lean", "compiled", "continuous", "vllm"],
        help="the first is what the others are compared with",
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    logging.set_verbosity_error()
    tokenizer = AutoTokenizer.from_pretrained(arguments.model, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    questions = sources.load_source(arguments.questions)["train"].select(
        range(2 * arguments.rows // arguments.num_generations)
    )
    style, shots = PROMPT_FORMATS["xml"], EXEMPLARS[: arguments.num_shots]
    ids = prompts.tokenize([style.prompt(row["question"], shots) for row in questions], tokenizer)

    table = Table(
        title=f"{Path(arguments.model).name}: rollouts of {arguments.rows} completions in groups of "
        f"{arguments.num_generations}, cut at {arguments.max_completion_length} tokens, "
        f"{'CUDA' if torch.cuda.is_available() else 'CPU'}, float32; medians of {arguments.rounds}"
    )
    for heading in (
        "engine",
        "seconds",
        "first rollout",
        "mean length",
        "cut off",
        "tokens per second",
        "ratio",
        "by CPU time",
    ):
        table.add_column(heading, justify="right" if heading != "engine" else "left")
    wanted = [prompt for prompt in ids for _ in range(arguments.num_generations)]
    sides, missing = {}, {}
    for name in arguments.engines:
        try:
            sides[name] = prepare(arguments, tokenizer, name.partition(",")[0])
        except UserError as error:
            missing[name] = str(error)
    seconds, lengths, cpu = ({name: [] for name in sides} for _ in range(3))
    for seed in range(arguments.rounds + 1):  # the first one warms up, and compiles; the sides take turns
        for name, sample in sides.items():
            rows = wanted if name.endswith("twice the rows") else wanted[: arguments.rows]
            torch.manual_seed(seed)
            start, worked = time.perf_counter(), time.process_time()
            found = sample(rows)
            seconds[name].append(time.perf_counter() - start)
            cpu[name].append(time.process_time() - worked)
            lengths[name].append([len(tokens) for tokens in found])

    def rate(name: str, spent: dict[str, list[float]]) -> float:
        return sum(map(sum, lengths[name][1:])) / sum(spent[name][1:])

    first = arguments.engines[0]
    for name in arguments.engines:
        if name in missing:
            continue
        drawn = [length for rollout in lengths[name][1:] for length in rollout]
        cut = fmean(length == arguments.max_completion_length for length in drawn)
        table.add_row(
            name,
            f"{median(seconds[name][1:]):.1f}",
            f"{seconds[name][0]:.1f}",
            f"{fmean(drawn):.0f}",
            f"{100 * cut:.1f} %",
            f"{rate(name, seconds):.0f}",
            f"{rate(name, seconds) / rate(first, seconds):.2f}",
            f"{rate(name, cpu) / rate(first, cpu):.2f}",
        )
    Console(width=120).print(table)
    for name, reason in missing.items():
        print(f"{name}: not available: {reason}")


if __name__ == "__main__":
    main()
