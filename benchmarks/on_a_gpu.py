"""All that RESULTS.md wants to know of a GPU, in the order of worth, in as many minutes as there are.

    python benchmarks/on_a_gpu.py SMOLLM2 --gsm8k DIRECTORY --minutes 28 --output outputs/gpu
    python benchmarks/on_a_gpu.py SMOLLM2 --parts check random-stock random-graphs

    check            what works here and how fast (python -m grpo check)
    random-ENGINE    a default run for a few steps, for time alone: a random Qwen2 of 1.5B parameters whose completions
                     end by chance, after 200 tokens on average. ENGINE is stock (TRL's own step and sampling), graphs
                     (`continuous`) or vllm, where it is installed
    smollm2-ENGINE   the same with SmolLM2-135M-Instruct
    sums, sums-float32   200 steps of recipes/smollm2_sums.yaml with weights in bfloat16 and in float32
    gsm8k            100 steps of recipes/smollm2.yaml on GSM8K (`--gsm8k`: a directory with train.jsonl and others)

Each part is a process of its own and stops at its share of the minutes: runs that learn with a checkpoint. What ends
is written to OUTPUT/results.json at once; the same command again reuses what is finished and resumes what is not. The
table comes last. Flags after `--` are added to those of every run.
"""

import argparse
import importlib.util
import json
import multiprocessing
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bench_runs
from bench_common import ROOT, print_table

from grpo.config import check, check_cases, plan
from grpo.core.errors import UserError
from grpo.evaluation import side_by_side
from grpo.runs import report
from grpo.runs.directory import holds_run, recorded

MEAN = 200  # tokens of a random model's completion
GRACE = 60  # seconds for a rollout to end and a checkpoint to be written
TEST = 1319  # questions of GSM8K's test; fewer where the file has fewer
ENGINES = {
    "stock": ["--packed", "false", "--generation", "hf"],
    "graphs": ["--generation", "continuous"],
    "vllm": ["--generation", "vllm"],
}
TIMED = ["--reward_funcs", "benchmarks.random_reward.random_reward", "--allow_custom_rewards", "true",
         "--max_steps", "5", "--eval_samples", "16", "--save_strategy", "no"]  # fmt: skip
SUMS = ["--config", str(ROOT / "recipes" / "smollm2_sums.yaml"), "--max_steps", "200", "--save_steps", "100",
        "--eval_every", "none"]  # fmt: skip
EVERY = ["--logging_steps", "1", "--report_to", "none"]


@dataclass(frozen=True)
class Part:
    """What is run, at most how long (it is not started for less than half of that), and what it needs."""

    flags: list[str]
    minutes: float
    prepare: Callable[[], object] = lambda: None

    @property
    def grace(self) -> float:
        """Seconds to end in; a run that measures time alone has no checkpoint to write."""
        return 0 if "random_reward" in " ".join(self.flags) else GRACE


def parts(model: Path, gsm8k: Path | None, output: Path) -> dict[str, Part]:
    """By name, in the order of worth; of `check` the flags are its own, of the others those of train_grpo.py."""
    demo = ["--dataset_name", str(ROOT / "assets" / "demo" / "train.jsonl"), "--eval_dataset_name",
            str(ROOT / "assets" / "demo" / "test.jsonl")]  # fmt: skip
    questions = demo
    if gsm8k:
        held_out = sorted(gsm8k.glob("test*.jsonl"))
        if not (gsm8k / "train.jsonl").is_file() or not held_out:
            raise UserError(f"gsm8k: {str(gsm8k)!r} lacks train.jsonl or test*.jsonl; use the directory of both")
        questions = ["--dataset_name", str(gsm8k / "train.jsonl"), "--eval_dataset_name", str(held_out[0])]
    engines = [name for name in ENGINES if name != "vllm" or importlib.util.find_spec("vllm")]
    found, smollm2 = {"check": Part(["--output", str(output / "check.json")], 6)}, ["--model_name_or_path", str(model)]
    drawn = output / "random"
    for name in engines:
        flags = ["--model_name_or_path", str(drawn), *questions, *TIMED, *ENGINES[name]]
        found[f"random-{name}"] = Part(flags, 5, lambda: apart(make_random, drawn, model))
    for name in engines:
        flags = ["--config", str(ROOT / "recipes" / "smollm2.yaml"), *smollm2, *questions, *TIMED, *ENGINES[name]]
        found[f"smollm2-{name}"] = Part(flags, 3)
    for name, dtype in {"sums": "bfloat16", "sums-float32": "float32"}.items():
        found[name] = Part([*SUMS, *smollm2, *demo, "--dtype", dtype], 10)
    if gsm8k:
        steps = ["--max_steps", "100", "--eval_samples", str(TEST)]
        found["gsm8k"] = Part(["--config", str(ROOT / "recipes" / "smollm2.yaml"), *smollm2, *questions, *steps], 12)
    return found


def make_random(target: Path, tokenizer: Path) -> None:
    """Save a model with random weights that samples texts of about MEAN tokens: so many of its tokens end one."""
    import torch

    if target.exists():
        return
    size, device = ("1.5B", "cuda") if torch.cuda.is_available() else ("9M", "cpu")
    model, known = check_cases.load_model(size, device, "bfloat16"), check_cases.load_tokenizer(str(tokenizer))
    vocabulary = model.config.vocab_size
    if len(known) > vocabulary:  # toy size
        model.resize_token_embeddings(vocabulary := len(known), mean_resizing=False)
    ends = [known.eos_token_id, *range(vocabulary - vocabulary // MEAN, vocabulary)]
    model.generation_config.eos_token_id = ends
    model.generation_config.pad_token_id = known.pad_token_id
    model.config.eos_token_id, model.config.pad_token_id = known.eos_token_id, known.pad_token_id
    unfinished = target.with_name(f"{target.name}-unfinished")
    model.save_pretrained(unfinished)
    known.save_pretrained(unfinished)
    unfinished.rename(target)


def apart(function: Callable[..., Any], *args: Any) -> Any:
    """Its result, from a process of its own, which takes its GPU memory with it."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *args).result()


def carry_out(command: list[str], log: Path, seconds: float, grace: float) -> str:
    """Run it until it ends or its time is over, with its output in `log`; how it ended, in words.

    It is asked to end, and has `grace` seconds for it.
    """
    with log.open("ab") as file:
        process = subprocess.Popen([sys.executable, *command], cwd=ROOT, stdout=file, stderr=subprocess.STDOUT)
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.terminate()
            try:
                process.wait(grace)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            return "out of time"
        except BaseException:
            process.terminate()
            process.wait()
            raise
    return "finished" if status == 0 else f"failed ({status}), see {log.name}"


def train(name: str, own: list[str], part: Part, output: Path, limit: float) -> str:
    """Run a part, or resume it; how it ended. A run that is finished needs no more than to be read."""
    if name == "check":
        command = ["-m", "grpo", "check", "--minutes", f"{limit / 60:.2f}", *part.flags]
        return carry_out(command, output / "check.txt", limit + part.grace, 0)
    if recorded(output / name, "status") == "finished":
        return "finished"
    resume = ["--resume_from_checkpoint", "auto"] if part.grace and holds_run(output / name) else []
    again = resume or ["--overwrite_run", "true"]
    return carry_out(["train_grpo.py", *own, *again], output / f"{name}.txt", limit, part.grace)


def of_check(path: Path) -> dict[str, Any]:
    """Rows that failed, and the fastest step and engine."""
    found = json.loads(path.read_text(encoding="utf-8"))
    failed = sum(bool(row["error"]) for row in found["rows"])
    step, engine = check.choose(found)
    words = [f"{len(found['rows'])} cases, {failed} failed"]
    words += [f"{row['name']}: {row['seconds']:.2f} s" for row in (step, engine) if row]
    return {"note": "; ".join(words)}


def of_run(directory: Path, flags: list[str]) -> dict[str, Any]:
    """What a run took in a step after its first, its peak in GB, both beside the plan's, and what was learned.

    The plan is of this GPU as its data sheet has it, for completions as long as the run's were.
    """
    steps = report.read_metrics(directory, "step_time")
    if not steps:
        return {}
    after = steps[1:] or steps  # the first one compiles, captures graphs and warms up

    def median(value: Callable[[dict[str, Any]], float]) -> float:
        return statistics.median(map(value, after))

    rows = recorded(directory, "geometry", "per_device_train_batch_size") or 1
    rows *= recorded(directory, "geometry", "gradient_accumulation_steps") or 1
    length = median(lambda step: step["completions/mean_length"])
    found = {
        "steps": steps[-1]["step"],
        "step": median(lambda step: step["step_time"]),
        "generation": median(lambda step: step["time/generation"]),
        "training": median(lambda step: step["step_time"] - step["time/generation"] - step["time/rewards"]),
        "tokens": length,
        "tokens_per_second": rows * length / median(lambda step: step["step_time"]),
    }
    if peaks := [step["memory/peak_gb"] for step in steps if "memory/peak_gb" in step]:
        found["gb"] = max(peaks)
    if recorded(directory, "hardware", "gpus"):
        found |= apart(planned, flags, length)
    if recorded(directory, "status") == "finished" and "random_reward" not in " ".join(flags):
        run = side_by_side.read_run(directory, directory.name)
        found |= {"before": run.before["lenient"].value, "after": run.after["lenient"].value}
        found["gain"] = side_by_side.signed(run.gains["lenient"])
    return {key: round(value, 3) if isinstance(value, float) else value for key, value in found.items()}


def planned(flags: list[str], length: float) -> dict[str, Any]:
    """Seconds of a step, best and worst, and GB of live tensors, by `python -m grpo plan`; `plan` is why not."""
    try:
        _, made = plan.read([*flags, "--mean_completion_length", str(max(length, 1))])
        cases = [sum(made.seconds(case)[part] for part in ("generation", "training")) for case in (0, 1)]
    except UserError as error:
        return {"plan": str(error)}
    live = sum(size for part, size in made.memory().items() if part not in ("allocator", "CUDA context"))
    return {"planned_step": [seconds / made.steps for seconds in cases], "planned_gb": live / 1e9}


def table(results: Mapping[str, dict[str, Any]]) -> None:
    """A row for each part that was tried; times stock's where stock's is known."""
    rows = []
    for name, found in results.items():
        stock = results.get(f"{name.partition('-')[0]}-stock", {}).get("step")
        cells = [f"{found[key]:.2f}" if key in found else "" for key in ("step", "generation", "training")]
        cells.append(f"{stock / found['step']:.2f}" if stock and "step" in found else "")
        cells.append("-".join(f"{value:.2f}" for value in found.get("planned_step", [])))
        cells.append(f"{found['tokens_per_second']:,.0f}" if "step" in found else "")
        cells += [f"{found[key]:.1f}" if key in found else "" for key in ("gb", "planned_gb")]
        learned = f"{found['before']:.1f} → {found['after']:.1f} ({found['gain']})" if "before" in found else ""
        rows.append([name, *cells, learned or found.get("note") or found.get("plan", ""), found["ended"]])
    headings = ["part", "s a step", "sampling", "training", "× stock", "planned", "tokens/s", "GB", "planned",
                "lenient", "ended"]  # fmt: skip
    print_table("Medians of the steps after the first, without the optimizer's own", headings, rows, 160)
    print(f"Planned: for prompts of {plan.PROMPT} tokens and completions as long as the run's were")


def run(args: argparse.Namespace, flags: list[str]) -> None:
    if not args.minutes > 0:
        raise UserError(f"minutes: {args.minutes:g} is not a time; use a number above 0")
    if not (args.model / "config.json").is_file():
        raise UserError(f"model: {str(args.model)!r} holds no config.json; use the directory of SmolLM2-135M-Instruct")
    model, output = args.model.resolve(), args.output.resolve()
    gsm8k = args.gsm8k.resolve() if args.gsm8k else None
    chosen = bench_runs.choose(parts(model, gsm8k, output), args.parts, "parts")
    end, kept = time.monotonic() + 60 * args.minutes, output / "results.json"
    results = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    for name, part in chosen.items():
        own = [*part.flags, *EVERY, "--output_dir", str(output / name), *flags]
        if results.get(name, {}).get("flags") != own:
            results[name] = {"flags": own, "ended": "not run"}
        if results[name]["ended"] != "finished":
            try:
                part.prepare()
                left = end - time.monotonic() - part.grace
                if left < 30 * part.minutes:
                    results[name]["ended"] = "no time left"
                    continue
                limit = min(left, 60 * part.minutes)
                print(f"{name}: at most {limit / 60:.1f} minutes", flush=True)
                results[name]["ended"] = train(name, own, part, output, limit)
                results[name] |= of_check(output / "check.json") if name == "check" else of_run(output / name, own)
            except Exception as error:  # the next part may succeed
                results[name]["ended"] = f"failed ({type(error).__name__}: {error})"
            print(f"  {results[name]['ended']}", flush=True)
            kept.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    table(results)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("model", type=Path, help="directory of SmolLM2-135M-Instruct")
    made.add_argument("--gsm8k", type=Path, help="directory with train.jsonl and test.jsonl; unset: the demo's sums")
    made.add_argument("--minutes", type=float, default=28, help="of all parts together (default 28)")
    made.add_argument("--output", type=Path, default=ROOT / "outputs" / "gpu", help="default: outputs/gpu")
    made.add_argument("--parts", nargs="+", help="only these")
    return made


if __name__ == "__main__":
    sys.exit(bench_runs.start(parser(), run, default=[]))
