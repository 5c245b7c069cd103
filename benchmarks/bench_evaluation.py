"""Questions per second of the evaluation against a plain loop of `model.generate` over unsorted batches.

    python benchmarks/bench_evaluation.py MODEL QUESTIONS.jsonl [--count 64] [--batch_size 16] [--max_new_tokens 512]

Both sides answer the same prompts greedily in float32 with the same batch size; the answers must be the same ones. The
plain loop is what most scripts do: batches in the order of the file, each computed until its longest answer ends.
Seconds are processor time on a CPU.
"""

import argparse
from statistics import median

import torch
from bench_common import clock, device, load, print_table, prompt_ids

from grpo.policy import generation


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
    given = parser.parse_args()
    model, tokenizer = load(given.model)
    model.eval()
    ids = prompt_ids(given.questions, tokenizer, given.count, given.num_shots)
    sides = {"plain loop": plain_loop, "ours": generation.generate}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    answers = {}
    for _ in range(given.rounds):
        for name, answer in sides.items():
            start = clock(device())
            answers[name] = answer(model, tokenizer, ids, given.max_new_tokens, given.batch_size)
            seconds[name].append(clock(device()) - start)

    lengths = sorted(len(tokens) for tokens, _ in answers["ours"])
    title = f"{given.count} questions in batches of {given.batch_size}, {device()}, float32; answers: median "
    title += f"{median(lengths):.0f}, longest {lengths[-1]} tokens, {sum(cut for _, cut in answers['ours'])} cut off"
    reference = median(seconds["plain loop"])
    rows = []
    for name, times in seconds.items():
        spent = median(times)
        rows.append([name, f"{spent:.1f}", f"{given.count / spent:.2f}", f"{reference / spent:.2f}"])
    print_table(title, ["", "seconds", "questions per second", "ratio"], rows)
    same = sum(mine == plain for mine, plain in zip(answers["ours"], answers["plain loop"], strict=True))
    print(f"{same} of {given.count} answers are the same, token by token")


if __name__ == "__main__":
    main()
