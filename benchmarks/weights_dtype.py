"""bfloat16 weights, plain or with Kahan summation, against float32 master weights: the same run, three times.

    python benchmarks/weights_dtype.py --config recipes/demo.yaml --learning_rate 2e-5 --max_steps 60
    python benchmarks/weights_dtype.py --config recipes/smollm2.yaml --max_steps 200     on a CUDA GPU

The flags are train_grpo.py's, but all weights are trained and attention is sdpa. All three compute in bfloat16, with
the same seed, prompts and steps, and are asked the held-out questions before and after; nothing is written. At a
learning rate like the inline one plain AdamW rounds most of its steps away on bfloat16 weights; bf16_updates.py shows
the same on made-up gradients.

strict, lenient   per cent after training, with 95 % intervals
reward            mean of the last tenth of the steps
moved             mean distance of a weight from where it began, relative to float32 weights
s/step            all of a step, sampling included
"""

import dataclasses
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
import train_grpo
from benchmarks.measured_run import clean
from grpo.core.errors import UserError
from grpo.data import dataset

SIDES = (  # weights, optimizer
    ("float32", "adamw_torch"),
    ("bfloat16", "stable_adamw"),
    ("bfloat16", "adamw_torch"),
)


def measure(argv: list[str], dtype: str, optim: str) -> dict[str, Any]:
    """One run: its summaries before and after, the mean of its last rewards, its weights' way, its seconds a step."""
    from transformers import AutoModelForCausalLM

    from grpo.config.resolve import resolve
    from grpo.data.prompts import choose
    from grpo.evaluation import evaluate
    from grpo.policy import loading
    from grpo.rewarding import registry
    from grpo.training.trainer import trainer_class

    with tempfile.TemporaryDirectory() as directory:
        config = resolve(train_grpo.HYPERPARAMETERS, [*argv, "--output_dir", directory, "--report_to", "none"])
        if config.model.use_peft:
            raise UserError("use_peft: True trains an adapter, and here formats of all weights are compared; drop it")
        style = choose(train_grpo.PROMPT_FORMATS, config.script)
        rewards = registry.of_run(config, style)
        tokenizer, style = loading.load_tokenizer(config, style)
        data = dataset.build(config, tokenizer, style, train_grpo.EXEMPLARS)
        changes = dict(bf16=True, optim=optim, save_strategy="no", generation_batch_size=None)
        training = dataclasses.replace(config.training, **changes)
        training.log_completions = False
        config = dataclasses.replace(config, training=training)
        model = AutoModelForCausalLM.from_pretrained(
            config.model.model_name_or_path, dtype=dtype, attn_implementation="sdpa"
        ).to(training.device)
        began = [weight.detach().float().cpu().clone() for weight in model.parameters()]
        before, _ = evaluate.measure(config, model, tokenizer, data)
        trainer = trainer_class(config.script)(
            model=model,
            reward_funcs=list(rewards.values()),
            args=training,
            train_dataset=data.train,
            processing_class=tokenizer,
        )
        start = time.perf_counter()
        trainer.train()
        seconds = (time.perf_counter() - start) / trainer.state.global_step
        after, _ = evaluate.measure(config, model, tokenizer, data)
        ended = [weight.detach().float().cpu() for weight in model.parameters()]
        moved = sum((one - other).abs().sum() for one, other in zip(ended, began, strict=True))
        rewarded = [log["reward"] for log in trainer.state.log_history if "reward" in log]
    last = rewarded[-max(1, len(rewarded) // 10) :]
    return {"before": before, "after": after, "reward": fmean(last), "moved": moved.item(), "seconds": seconds}


def share(summary: dict[str, Any], key: str) -> str:
    low, high = (round(100 * summary[f"{key}_{end}"]) for end in ("low", "high"))
    return f"{100 * summary[key]:.1f} ({low}-{high})"


def main(argv: list[str]) -> int:
    import torch
    from rich.console import Console
    from rich.table import Table

    if not {"-h", "--help"}.isdisjoint(argv):
        print(__doc__)
        return 0
    table = Table(title="After training, on the same held-out questions")
    for column in ("weights", "optim", "strict", "lenient", "reward", "moved", "s/step"):
        table.add_column(column, justify="left" if column in ("weights", "optim") else "right")
    reference = None
    try:
        for dtype, optim in SIDES:
            found = measure(argv, dtype, optim)
            clean("cuda" if torch.cuda.is_available() else "cpu")
            if reference is None:
                reference = found["moved"]
                whole = found["before"]
                table.add_row("before", "", share(whole, "accuracy_strict"), share(whole, "accuracy_lenient"))
            values = [share(found["after"], key) for key in ("accuracy_strict", "accuracy_lenient")]
            values += [f"{found['reward']:.2f}", f"{found['moved'] / reference:.2f}", f"{found['seconds']:.2f}"]
            table.add_row(dtype, optim, *values)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    Console(width=100).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
