"""Is LeanGRPOTrainer's gradient stock TRL's: for random settings, for PEFT's methods?

    python benchmarks/bench_exactness.py settings [--count 100]     random settings of those that change the loss
    python benchmarks/bench_exactness.py peft [NAME ...]            PEFT's methods

Each case runs in a process of its own, within a time limit: one optimizer step of GRPOTrainer and of LeanGRPOTrainer
on the same completions, in float32 on a CPU. A case ends as

packed       computed in packs, and the gradients are equal
fell back    left to TRL's own step, and the gradients are equal
refused      stock TRL cannot train it either
not built    no such adapter could be made here, so nothing is known
random, quantile   equal but for random draws, or for a token on the threshold of top_entropy_quantile that rounding
             moves across it
DIFFERS      anything else; the exit status is then 1

difference   the largest of a parameter's gradient, relative to its norm (or to a thousandth of the whole gradient's,
             where that is more); equal means below 1e-3. Rounding leaves 1e-6 to 1e-4
"""

import argparse
import functools
import multiprocessing
import random
import sys
import tempfile
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
LIMIT, WORDS = 1e-3, 500
COLUMNS = ("case", "outcome", "difference", "note")
Result = dict[str, Any]

# --- One step of both trainers


def completions(seed: int, longest: int = 24) -> Callable[..., tuple[list[list[int]], None]]:
    """Replaces TRL's sampling: the same random completions for the same seed, of many lengths."""
    chance = random.Random(seed)

    def sample(prompt_ids: list[list[int]], *args: Any, **kwargs: Any) -> tuple[list[list[int]], None]:
        lengths = [min(longest, max(1, int(chance.lognormvariate(1.8, 0.9)))) for _ in prompt_ids]
        return [[chance.randrange(5, WORDS) for _ in range(length - 1)] + [2] for length in lengths], None

    return sample


def reward(completion_ids: list[list[int]], prompts: list[str], **kwargs: Any) -> list[float]:
    """A quarter of the groups have one reward for all: their completions have no gradient."""
    dead = [sum(map(ord, prompt)) % 4 == 0 for prompt in prompts]
    return [0.5 if same else float(sum(ids) % 7) for ids, same in zip(completion_ids, dead, strict=True)]


def step(kind: str, model: Any, equal_prompts: bool = True, peft: Any = None, **settings: Any) -> tuple[dict, Any]:
    """The gradients of a run's first optimizer steps by parameter, and the trainer; `kind` is stock or lean."""
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from grpo.training.trainer import LeanGRPOTrainer

    class Gradients(TrainerCallback):
        found: dict[str, Any] = {}  # noqa: RUF012

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            self.found |= {
                f"{state.global_step} {name}": weight.grad.clone()
                for name, weight in model.named_parameters()
                if weight.grad is not None
            }

    defaults = {
        "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "num_generations": 4, "max_steps": 1,
        "max_completion_length": 24, "learning_rate": 0.05, "lr_scheduler_type": "constant", "optim": "sgd",
        "max_grad_norm": 0.0, "use_cpu": True, "bf16": False, "gradient_checkpointing": False, "report_to": "none",
        "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True,
    }  # fmt: skip
    words = [f"What is {10 + n} + {20 + n}?" for n in range(30)]
    prompts = words if equal_prompts else [word + " x" * (n % 4) for n, word in enumerate(words)]
    gradients = Gradients()
    gradients.found = {}
    torch.manual_seed(0)  # of a new adapter
    trainer = {"stock": GRPOTrainer, "lean": LeanGRPOTrainer}[kind](
        model=model,
        reward_funcs=reward,
        args=GRPOConfig(output_dir=tempfile.mkdtemp(), **{**defaults, **settings}),
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in prompts]),
        processing_class=AutoTokenizer.from_pretrained(ROOT / "assets" / "demo" / "model", padding_side="left"),
        peft_config=peft,
        callbacks=[gradients],
    )
    trainer._generate_single_turn = completions(3)
    if peft is not None:
        noise(trainer.model, trained_only=True)  # a new adapter changes nothing, and half of it has no gradient
    trainer.train()
    return gradients.found, trainer


def noise(model: Any, size: float = 0.05, trained_only: bool = False) -> None:
    """So that no weight is zero or one: what is dropped, then, is seen."""
    import torch

    torch.manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.is_floating_point() and (weight.requires_grad or not trained_only):
                weight.add_(size * torch.randn_like(weight))


def difference(stock: dict[str, Any], lean: dict[str, Any]) -> float:
    """The largest of a parameter's gradient; see `difference` at the top. Infinite where one side has none."""
    import torch

    if stock.keys() != lean.keys() or not stock:
        return float("inf")
    whole = torch.stack([gradient.norm() for gradient in stock.values()]).norm()
    if not whole.isfinite() or whole == 0:
        return float("nan")
    floor = 1e-3 * whole
    return max(((lean[name] - one).norm() / max(one.norm(), floor)).item() for name, one in stock.items())


def compared(build: Callable[[], Any], **options: Any) -> Result:
    """Both trainers' first step, and how that case ended."""
    try:
        stock, _ = step("stock", build(), **options)
    except Exception as error:
        return {"outcome": "refused", "note": one_line(error)}
    lean, trainer = step("lean", build(), **options)
    worst = difference(stock, lean)
    if worst != worst:
        return {"outcome": "refused", "note": "stock's gradient is zero, or not finite"}
    outcome = ("fell back" if trainer.kernel is None else "packed") if worst < LIMIT else "DIFFERS"
    return {"outcome": outcome, "difference": worst, "trainer": trainer}


def one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:160]


# --- Settings and adapters


def small_qwen() -> Any:
    """A toy on the disk: with beta, TRL loads the reference model from there."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=512, num_hidden_layers=2, **sizes))
    noise(model)
    directory = tempfile.mkdtemp()
    model.save_pretrained(directory)
    return Qwen2ForCausalLM.from_pretrained(directory, dtype=torch.float32)


CHOICES: dict[str, list[Any]] = {
    "loss_type": ["grpo", "dapo", "dr_grpo", "bnpo", "cispo", "sapo", "luspo", "vespo"],
    "beta": [0.0, 0.0, 0.1],
    "use_bias_correction_kl": [False, True],
    "num_iterations": [1, 1, 2],
    "steps_per_generation": [None, 1, 2, 4],
    "gradient_accumulation_steps": [1, 2, 4],
    "per_device_train_batch_size": [4, 8],
    "num_generations": [2, 4],
    "importance_sampling_level": ["token", "token", "sequence"],
    "epsilon": [0.2, 0.01],
    "epsilon_high": [None, 0.3],
    "delta": [None, 1.5],
    "scale_rewards": ["group", "batch", "none"],
    "multi_objective_aggregation": ["sum_then_normalize", "normalize_then_sum"],
    "mask_truncated_completions": [False, True],
    "off_policy_mask_threshold": [None, None, 0.01],
    "top_entropy_quantile": [1.0, 1.0, 1.0, 0.5],
    "entropy_coef": [0.0, 0.0, 0.0, 0.01],
    "temperature": [1.0, 0.7],
    "gradient_checkpointing": [False, True],
    "disable_dropout": [False, True],
}


def drawn(number: int) -> dict[str, Any]:
    """The random settings with this number."""
    chance = random.Random(number)
    found = {key: chance.choice(values) for key, values in CHOICES.items()}
    return {"max_steps": 3 if found["num_iterations"] > 1 else 2, **{k: v for k, v in found.items() if v is not None}}


def setting(number: str) -> Result:
    chosen = drawn(int(number))
    found = compared(small_qwen, equal_prompts=False, **chosen)
    found.pop("trainer", None)
    if found["outcome"] == "DIFFERS" and chosen["top_entropy_quantile"] < 1:
        found["note"] = "top_entropy_quantile: a token on the threshold flips by rounding"
        found["outcome"] = "quantile"
    elif found["outcome"] == "DIFFERS":
        found["note"] = str(chosen)
    return found


def adapters() -> dict[str, Callable[[], Any]]:
    """PEFT's configurations for causal models, by name."""
    import peft
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(ROOT / "assets" / "demo" / "model")
    targets = ["q_proj", "v_proj", "down_proj"]
    lora = {
        "plain": {}, "dora": {"use_dora": True}, "rslora": {"use_rslora": True}, "bias": {"lora_bias": True},
        "all-linear": {"target_modules": "all-linear"}, "embedding": {"target_modules": ["q_proj", "embed_tokens"]},
        "modules_to_save": {"modules_to_save": ["lm_head"]}, "pissa": {"init_lora_weights": "pissa"},
        "tokens": {"trainable_token_indices": [5, 6, 7]}, "bias all": {"bias": "all"},
        "pattern": {"rank_pattern": {"q_proj": 2}},
        "activated": {"alora_invocation_tokens": tokenizer("What").input_ids},
    }  # fmt: skip
    found: dict[str, Callable[[], Any]] = {
        f"LORA {name}": (
            lambda more=more: peft.LoraConfig(task_type="CAUSAL_LM", r=4, **{"target_modules": targets, **more})
        )
        for name, more in lora.items()
    }
    special = {
        "IA3": {"target_modules": [*targets], "feedforward_modules": ["down_proj"]},
        "ADALORA": {"total_step": 10, "target_modules": targets},
        "C3A": {"target_modules": ["q_proj"], "block_size": 8},
        "FOURIERFT": {"target_modules": targets, "n_frequency": 50},
        "MISS": {"target_modules": targets, "r": 8},
        "PSOFT": {"target_modules": targets, "r": 8},
        "POLY": {"target_modules": targets, "n_tasks": 1},
        "OFT": {"target_modules": ["q_proj"], "oft_block_size": 8, "r": 0},
        "BOFT": {"target_modules": ["q_proj"], "boft_block_size": 4},
        "ADAPTION_PROMPT": {"adapter_len": 4, "adapter_layers": 1, "target_modules": "self_attn"},
    }
    virtual = {"num_virtual_tokens": 4}
    for kind, made in sorted(peft.mapping.PEFT_TYPE_TO_CONFIG_MAPPING.items()):
        name = str(getattr(kind, "value", kind))
        if name == "LORA":
            continue
        own = special.get(name) or (virtual if issubclass(made, peft.PromptLearningConfig) else None)
        found[name] = functools.partial(made, task_type="CAUSAL_LM", **(own or {"target_modules": targets}))
    return found


def adapter(name: str) -> Result:
    make = adapters()[name]
    try:
        make()
    except Exception as error:
        return {"outcome": "not built", "note": one_line(error)}
    found = compared(small_qwen, peft=make())
    found.pop("trainer", None)
    if name == "PVERA" and found["outcome"] == "DIFFERS":
        found |= {"outcome": "random", "note": "it draws noise while training, as dropout does"}
    return found


# --- All cases, each in a process of its own


def isolated(function: Callable[[str], Result], case: str, seconds: float) -> Result:
    context = multiprocessing.get_context("fork")  # what is imported once is there for all
    ours, theirs = context.Pipe(duplex=False)

    def work() -> None:
        sys.stdout = sys.stderr = open("/dev/null", "w")  # noqa: SIM115
        try:
            found = function(case)
        except BaseException as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            found = {"outcome": "DIFFERS", "note": f"{one_line(error)} ({Path(where.filename).name}:{where.lineno})"}
        theirs.send(found)

    process = context.Process(target=work)
    process.start()
    theirs.close()
    try:
        found = ours.recv() if ours.poll(seconds) else {"outcome": "DIFFERS", "note": f"not done in {seconds:.0f} s"}
    except EOFError:
        found = {"outcome": "DIFFERS", "note": "the process died"}
    process.kill()
    process.join()
    return {"case": case, **found}


def results(function: Callable[[str], Result], cases: list[str], seconds: float) -> Iterator[Result]:
    for case in cases:
        found = isolated(function, case, seconds)
        cells = [found.get(column) for column in COLUMNS]
        shown = ["" if cell is None else f"{cell:.0e}" if isinstance(cell, float) else str(cell) for cell in cells]
        print("  ".join(f"{cell:<{width}}" for cell, width in zip(shown, (26, 9, 10, 0), strict=True)), flush=True)
        yield found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("what", choices=["settings", "peft"])
    parser.add_argument("cases", nargs="*", help="only these")
    parser.add_argument("--count", type=int, default=100, help="of random settings")
    parser.add_argument("--seconds", type=float, default=180, help="time limit of a case")
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    import torch
    from transformers.utils import logging

    import grpo.training.trainer  # noqa: F401, before the fork

    torch.set_num_threads(1)
    logging.set_verbosity_error()
    function, cases = {
        "settings": (setting, [str(number) for number in range(options.count)]),
        "peft": (adapter, list(adapters()) if options.what == "peft" else []),
    }[options.what]
    found = list(results(function, options.cases or cases, options.seconds))
    counts = Counter(one["outcome"] for one in found)
    print("\n" + ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common()))
    return int(counts["DIFFERS"] > 0)


if __name__ == "__main__":
    sys.exit(main())
