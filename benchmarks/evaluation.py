"""Questions per second of the evaluation against a plain loop of `model.generate` over unsorted batches.

    python benchmarks/evaluation.py MODEL QUESTIONS.jsonl [--count 64] [--batch_size 16] [--max_new_tokens 512]

Both sides answer the same prompts greedily in float32 with the same batch size; the answers must be the same ones. The
plain loop is what most scripts do: batches in the order of the file, each computed until its longest answer ends.
"""

import argparse
import sys
import time
from pathlib import Path
from statistics import median

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, AutoTokenizer

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from grpo.data import prompts, sources
from grpo.policy import generation
from train_grpo import EXEMPLARS, PROMPT_FORMATS


@torch.no_grad()
def plain_loop(model, tokenizer, ids, limit, batch_size):
    ends, found = generation.eos_ids(model, tokenizer), []
    for start in range(0, len(ids), batch_size):
        batch = tokenizer.pad({"input_ids": ids[start : start + batch_size]}, padding_side="left", return_tensors="pt")
        output = model.generate(
            **batch.to(model.device), max_new_tokens=limit, do_sample=False, repetition_penalty=1.0,
            eos_token_id=ends, pad_token_id=tokenizer.pad_token_id,
        )  # fmt: skip
        for row in output[:, batch["input_ids"].shape[1] :].tolist():
            end = next((place for place, token in enumerate(row) if token in ends), None)
            found.append((row[:end], end is None))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", help="a local directory or a Hub id")
    parser.add_argument("questions", help="rows with `question` and `answer`")
    parser.add_argument("--count", type=int, default=64)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--max_new_tokens", type=int, default=512)
    parser.add_argument("--num_shots", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1, help="the sides take turns; medians are compared")
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32).to(device).eval()
    tokenizer = AutoTokenizer.from_pretrained(arguments.model, padding_side="left")
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    rows = sources.load_source(arguments.questions)["train"].select(range(arguments.count))
    style, shots = PROMPT_FORMATS["xml"], EXEMPLARS[: arguments.num_shots]
    ids = prompts.tokenize([style.prompt(row["question"], shots) for row in rows], tokenizer)

    sides = {"plain loop": plain_loop, "ours": generation.generate}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    answers = {}
    for _ in range(arguments.rounds):
        for name, answer in sides.items():
            start = time.perf_counter()
            answers[name] = answer(model, tokenizer, ids, arguments.max_new_tokens, arguments.batch_size)
            seconds[name].append(time.perf_counter() - start)

    lengths = sorted(len(tokens) for tokens, _ in answers["ours"])
    table = Table(
        title=f"{arguments.count} questions in batches of {arguments.batch_size}, {device}, float32; answers: median "
        f"{median(lengths):.0f}, longest {lengths[-1]} tokens, {sum(cut for _, cut in answers['ours'])} cut off"
    )
    for heading in ("", "seconds", "questions per second", "ratio"):
        table.add_column(heading, justify="right" if heading else "left")
    reference = median(seconds["plain loop"])
    for name, times in seconds.items():
        spent = median(times)
        table.add_row(name, f"{spent:.1f}", f"{arguments.count / spent:.2f}", f"{reference / spent:.2f}")
    Console().print(table)
    same = sum(mine == plain for mine, plain in zip(answers["ours"], answers["plain loop"], strict=True))
    print(f"{same} of {arguments.count} answers are the same, token by token")


if __name__ == "__main__":
    main()
