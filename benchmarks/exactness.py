"""Is LeanGRPOTrainer's gradient stock TRL's: for random settings, for architectures, for PEFT's methods?

For architectures and adapters: does its sampler complete as `generate` does?

    python benchmarks/exactness.py settings [--count 100]      random settings of those that change the loss
    python benchmarks/exactness.py architectures [NAME ...]    the causal models of transformers, at toy size
    python benchmarks/exactness.py peft [NAME ...]             PEFT's methods

Each case runs in a process of its own, within a time limit: the first optimizer steps of GRPOTrainer and of
LeanGRPOTrainer on the same completions, in float32 on a CPU. A case ends as

packed       computed in packs, and the gradients are equal
fell back    computed by TRL's own step, and the gradients are equal
refused      stock TRL cannot train it either
not built    no such toy or adapter could be made, so nothing is known
random       equal but for the noise that this adapter draws while training
quantile     equal but for a token on the threshold of top_entropy_quantile, which rounding moves across it
DIFFERS      anything else; the exit status is then 1

difference   the largest of a parameter's gradient, relative to its norm (or to a thousandth of the whole gradient's,
             where that is more); equal means below 1e-3. Rounding leaves 1e-7 to 1e-5
padded       the same where prompts have different lengths, so that stock pads them on the left. A large value there
             means that stock counts the padding as positions
sampling     ours where our sampler's greedy completions are those of `generate`, generate where that samples anyway
"""

import argparse
import functools
import multiprocessing
import os
import random
import sys
import tempfile
import warnings
from collections.abc import Callable
from statistics import median
from typing import Any

import common
import peft
import torch
from datasets import Dataset
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    Qwen2Config,
    Qwen2ForCausalLM,
    TrainerCallback,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import logging
from trl import GRPOConfig, GRPOTrainer

from grpo.core.errors import UserError, did_you_mean
from grpo.policy.answering import complete_by_generate
from lean_grpo import LeanGRPOTrainer, sampling

sys.path.insert(0, str(common.ROOT / "tests" / "helpers"))
from helpers_settings import CHOICES

LIMIT = 1e-3
COLUMNS = {"case": 26, "outcome": 9, "difference": 10, "padded": 6, "sampling": 8, "note": 0}  # and their widths
TOKENIZER = AutoTokenizer.from_pretrained(common.DEMO / "model", padding_side="left")
Result = dict[str, Any]

# --- One step of both trainers


class Gradients(TrainerCallback):
    """Gradients of all parameters, as the optimizer takes them."""

    def __init__(self) -> None:
        self.found: dict[str, torch.Tensor] = {}

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        for name, weight in model.named_parameters():
            if weight.grad is not None:
                self.found[f"{state.global_step} {name}"] = weight.grad.clone()


def completions(seed: int, longest: int = 24) -> Callable[..., tuple[list[list[int]], None]]:
    """Replaces TRL's sampling: the same random completions for the same seed, of many lengths."""
    chance = random.Random(seed)

    def sample(prompt_ids: list[list[int]], *args: Any, **kwargs: Any) -> tuple[list[list[int]], None]:
        lengths = [min(longest, max(1, int(chance.lognormvariate(1.8, 0.9)))) for _ in prompt_ids]
        return [[chance.randrange(5, 500) for _ in range(length - 1)] + [2] for length in lengths], None

    return sample


def reward(completion_ids: list[list[int]], prompts: list[str], **kwargs: Any) -> list[float]:
    """A quarter of the groups have one reward for all: their completions have no gradient."""
    dead = [sum(map(ord, prompt)) % 4 == 0 for prompt in prompts]
    return [0.5 if same else float(sum(ids) % 7) for ids, same in zip(completion_ids, dead, strict=True)]


def step(
    trainer_class: type[GRPOTrainer], model: Any, equal_prompts: bool = True, peft_config: Any = None, **settings: Any
) -> tuple[dict[str, torch.Tensor], Any]:
    """The gradients of a run's first optimizer steps by step and parameter, and the trainer."""
    defaults = {
        "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2, "num_generations": 4, "max_steps": 1,
        "max_completion_length": 24, "learning_rate": 0.05, "lr_scheduler_type": "constant", "optim": "sgd",
        "max_grad_norm": 0.0, "use_cpu": True, "bf16": False, "gradient_checkpointing": False, "report_to": "none",
        "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True,
    }  # fmt: skip
    words = [f"What is {10 + n} + {20 + n}?" for n in range(30)]
    prompts = words if equal_prompts else [word + " x" * (n % 4) for n, word in enumerate(words)]
    gradients = Gradients()
    torch.manual_seed(0)  # of a new adapter
    trainer: Any = trainer_class(
        model=model,
        reward_funcs=reward,
        args=GRPOConfig(output_dir=tempfile.mkdtemp(), **{**defaults, **settings}),
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=TOKENIZER,
        peft_config=peft_config,
        callbacks=[gradients],
    )
    trainer._generate_single_turn = completions(3)
    if peft_config is not None:
        noise(trainer.model, trained_only=True)  # a new adapter changes nothing, and half of it has no gradient
    trainer.train()
    return gradients.found, trainer


def noise(model: Any, trained_only: bool = False, size: float = 0.05) -> None:
    """Add noise, so that no weight is zero or one: an ignored one then shows."""
    torch.manual_seed(1)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.is_floating_point() and (weight.requires_grad or not trained_only):
                weight.add_(size * torch.randn_like(weight))


def difference(stock: dict[str, torch.Tensor], lean: dict[str, torch.Tensor]) -> float:
    """The largest of a parameter's gradient; see `difference` at the top. Infinite where one side has none."""
    if stock.keys() != lean.keys() or not stock:
        return float("inf")
    whole = torch.stack([gradient.norm() for gradient in stock.values()]).norm()
    if not whole.isfinite() or whole == 0:
        return float("nan")
    floor = 1e-3 * whole
    return max(((lean[name] - one).norm() / max(one.norm(), floor)).item() for name, one in stock.items())


def compared(build: Callable[[], Any], **options: Any) -> Result:
    """Both trainers' first steps, and how that case ended."""
    try:
        stock, _ = step(GRPOTrainer, build(), **options)
    except Exception as error:
        return {"outcome": "refused", "note": one_line(error)}
    lean, trainer = step(LeanGRPOTrainer, build(), **options)
    worst = difference(stock, lean)
    if worst != worst:
        return {"outcome": "refused", "note": "stock's gradient is zero, or not finite"}
    outcome = ("fell back" if trainer.kernel is None else "packed") if worst < LIMIT else "DIFFERS"
    return {"outcome": outcome, "difference": worst}


def one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:160]


# --- Settings


def small_qwen() -> Any:
    """A toy on the disk: with beta, TRL loads the reference model from there."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=512, num_hidden_layers=2, **sizes))
    noise(model)
    directory = tempfile.mkdtemp()
    model.save_pretrained(directory)
    return Qwen2ForCausalLM.from_pretrained(directory, dtype=torch.float32)


def drawn(number: int) -> dict[str, Any]:
    """The random settings with this number."""
    chance = random.Random(number)
    found = {key: chance.choice(values) for key, values in CHOICES.items()}
    return {"max_steps": 3 if found["num_iterations"] > 1 else 2, **{k: v for k, v in found.items() if v is not None}}


def setting(number: str) -> Result:
    chosen = drawn(int(number))
    found = compared(small_qwen, equal_prompts=False, **chosen)
    if found["outcome"] != "DIFFERS":
        return found
    if chosen["top_entropy_quantile"] < 1:
        return found | {"outcome": "quantile"}
    return found | {"note": str(chosen)}


# --- Architectures

SIZES = {
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input", "bpe_vocab_size"), 512),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim", "word_embed_proj_dim", "embedding_size"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers", "encoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("decoder_attention_heads", "encoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "n_head_kv"), 2),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "d_inner", "dff", "ffn_hidden_size"), 64),
    **dict.fromkeys(("decoder_ffn_dim", "encoder_ffn_dim", "dim_ff", "shared_intermediate_size"), 64),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size"), 32),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx", "max_target_positions"), 64),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "top_k_experts", "moe_k"), 2),
    **dict.fromkeys(("n_group", "topk_group"), 1),
    **dict.fromkeys(("head_dim", "dim_head", "attention_head_dim", "kv_channels", "global_head_dim"), 8),
    **dict.fromkeys(("window_size", "sliding_window", "attention_window_size", "local_attention"), 8),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim", "index_head_dim"), 8),
    **dict.fromkeys(("kv_lora_rank", "q_lora_rank", "qk_head_dim", "mamba_d_head", "mamba_head_dim"), 16),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads", "index_n_heads", "rotary_dim"), 4),
    **dict.fromkeys(("mamba_d_state", "mamba_chunk_size", "state_size", "ssm_state_size", "chunk_size"), 8),
    **dict.fromkeys(("linear_num_key_heads", "linear_num_value_heads"), 2),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim"), 8),
    **dict.fromkeys(("mamba_n_groups", "n_groups", "first_k_dense_replace"), 1),
    **dict.fromkeys(("num_kv_shared_layers", "hidden_size_per_layer_input", "embd_layer_norm"), 0),
    "mamba_d_ssm": 64,
    "encoder_hash_byte_group_vocab": 100,
    "index_topk": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    **dict.fromkeys(("eos_token_id", "decoder_start_token_id"), 2),
    **dict.fromkeys(("is_decoder", "causal"), True),
    **dict.fromkeys(("router_jitter_noise", "input_jitter_noise", "router_aux_loss_coef"), 0.0),
}
# What the names above do not say
ROUTED = {"n_routed_experts": 4, "num_experts_per_tok": 2}
INDEXER = {"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 8}
SPECIAL: dict[str, dict[str, Any]] = {
    "bailing_hybrid": {"num_expert_group": 1, "n_group": 1, "num_experts_per_token": 2, "linear_num_heads": 4},
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}},
    "deepseek_v2": ROUTED,
    "dory": {
        **{"num_hidden_layers": 3, "n_input_layers": 1, "n_recurrent_layers": 1, "n_output_layers": 1},
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    },
    "dots1": {**ROUTED, "num_local_experts": 4, "n_group": 1, "topk_group": 1},
    "dots3_note_text": {"per_layer_config": {}, "num_key_value_heads": 4},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8, "num_experts": 4, "moe_topk": 2},
    "kimi_linear": {"num_experts_per_token": 2, "linear_num_heads": 4, "linear_head_dim": 8},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"num_heads": 4, "head_dim": 16},
    "ministral": {"head_dim": 8},
    "nemotron": {"num_key_value_heads": 2},
    "qwen4_exp_text": {**INDEXER, "indexer_budget": 64, "indexer_compress_ratio": 4},
    "reformer": {"axial_pos_embds_dim": [16, 16], "axial_pos_shape": [8, 8]},
    "xmod": {"default_language": "en_XX"},
    "zaya": {"num_experts_per_tok": 1},
}


def toy(name: str) -> Any:
    """A randomly initialised model of this model type, as small as its configuration allows."""
    small = shrunk(AutoConfig.for_model(name))
    if "qk_rope_head_dim" in small and "num_key_value_heads" in small:
        small["num_key_value_heads"] = small["num_attention_heads"]  # latent attention shares no heads
    config = AutoConfig.for_model(name, **{**small, **SPECIAL.get(name, {})})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    count = sum(weight.numel() for weight in model.parameters())
    if count > 4e7:
        raise ValueError(f"the toy has {count / 1e6:.0f}M parameters")
    noise(model)
    return model


def shrunk(config: Any) -> dict[str, Any]:
    """The settings of a configuration at toy size, its inner configurations included."""
    layers = 2
    found: dict[str, Any] = {}
    for key, value in config.to_dict().items():
        if key in config.sub_configs and getattr(config, key, None) is not None:
            found[key] = shrunk(getattr(config, key))
        elif key in SIZES and value is not None:
            found[key] = SIZES[key]
        elif "drop" in key and isinstance(value, float):
            found[key] = 0.0
        elif key in ("layer_types", "mlp_layer_types", "layers_block_type") and isinstance(value, list):
            found[key] = list(dict.fromkeys(value))[:layers]
            found[key] += found[key][-1:] * (layers - len(found[key]))
    return found


def architecture(name: str) -> Result:
    try:
        toy(name)(input_ids=torch.tensor([[5, 6, 7, 8]]), use_cache=False)
    except Exception as error:
        return {"outcome": "not built", "note": one_line(error)}
    found = compared(lambda: toy(name))
    if found["outcome"] == "packed":
        found["padded"] = compared(lambda: toy(name), equal_prompts=False).get("difference")
    if found["outcome"] in ("packed", "fell back"):
        found |= sampled(toy(name))
    return found


def sampled(model: Any) -> Result:
    """True if our sampler's greedy completions are those of `generate`, token by token."""
    if sampling.reason_against(model):
        return {"sampling": "generate"}
    inputs = (model, TOKENIZER, [[5, 6, 7], [8, 9, 10, 11, 12], [5, 6, 7]], [2], 5)
    with sampling.sampling_mode(model):
        if sampling.complete(*inputs) == complete_by_generate(*inputs):
            return {"sampling": "ours"}
    return {"sampling": "DIFFERS", "outcome": "DIFFERS", "note": "our sampler's completions are not generate's"}


# --- Adapters


def adapters() -> dict[str, Callable[[], Any]]:
    """PEFT's configurations for causal models, by name."""
    targets = ["q_proj", "v_proj", "down_proj"]
    lora = {
        "plain": {}, "dora": {"use_dora": True}, "rslora": {"use_rslora": True}, "bias": {"lora_bias": True},
        "all-linear": {"target_modules": "all-linear"}, "embedding": {"target_modules": ["q_proj", "embed_tokens"]},
        "modules_to_save": {"modules_to_save": ["lm_head"]}, "pissa": {"init_lora_weights": "pissa"},
        "tokens": {"trainable_token_indices": [5, 6, 7]}, "bias all": {"bias": "all"},
        "pattern": {"rank_pattern": {"q_proj": 2}},
        "activated": {"alora_invocation_tokens": TOKENIZER("What").input_ids},
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
    found = compared(small_qwen, peft_config=make())
    if name == "PVERA" and found["outcome"] == "DIFFERS":
        found |= {"outcome": "random"}
    if found["outcome"] in ("packed", "fell back", "random"):
        torch.manual_seed(0)
        model = peft.get_peft_model(small_qwen(), make())
        noise(model, trained_only=True, size=0.3)  # enough for other tokens than the base model's
        found |= sampled(model)
    return found


# --- All cases, each in a process of its own


def isolated(function: Callable[[str], Result], case: str, seconds: float) -> Result:
    with multiprocessing.get_context("fork").Pool(1, silence) as pool:  # forks share the imported libraries
        try:
            return pool.apply_async(function, [case]).get(seconds)
        except multiprocessing.TimeoutError:
            return {"outcome": "DIFFERS", "note": f"not done in {seconds:.0f} s"}
        except Exception as error:
            return {"outcome": "DIFFERS", "note": one_line(error)}


def silence() -> None:
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def line(found: Result) -> str:
    cells = [found.get(column) for column in COLUMNS]
    shown = ["" if cell is None else f"{cell:.0e}" if isinstance(cell, float) else str(cell) for cell in cells]
    return "  ".join(f"{cell:<{width}}" for cell, width in zip(shown, COLUMNS.values(), strict=True)).rstrip()


def summary(results: list[Result]) -> str:
    """Count the cases by how they ended, with the median and the largest difference."""
    lines = []
    for outcome in sorted({found["outcome"] for found in results}):
        those = [found for found in results if found["outcome"] == outcome]
        values = [found["difference"] for found in those if "difference" in found]
        figures = f", difference: median {median(values):.1e}, largest {max(values):.1e}" if values else ""
        lines.append(f"{len(those)} {outcome}{figures}")
    shifted = [found["case"] for found in results if (found.get("padded") or 0) > LIMIT]
    if shifted:
        lines.append(f"stock counts padding on the left as positions: {', '.join(shifted)}")
    samplers = [found["sampling"] for found in results if "sampling" in found]
    lines += [f"sampled by {name}: {samplers.count(name)}" for name in sorted(set(samplers))]
    return "\n".join(lines)


CASES: dict[str, tuple[Callable[[str], Result], Callable[[int], list[str]]]] = {
    "settings": (setting, lambda count: [str(number) for number in range(count)]),
    # xlm fills masks; a run refuses it
    "architectures": (architecture, lambda _: [name for name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if name != "xlm"]),
    "peft": (adapter, lambda _: list(adapters())),
}


def exactness(options: argparse.Namespace) -> int:
    function, cases_of = CASES[options.what]
    cases = cases_of(options.count)
    if unknown := [case for case in options.cases if case not in cases]:
        raise UserError(f"{unknown[0]} is not one of the {options.what}{did_you_mean(unknown[0], cases)}")
    warnings.simplefilter("ignore")
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    results = []
    print(line({column: column for column in COLUMNS}))
    for case in options.cases or cases:
        results.append({"case": case, **isolated(function, case, options.seconds)})
        print(line(results[-1]), flush=True)
    print("\n" + summary(results))
    return int(any(found["outcome"] == "DIFFERS" for found in results))


def main(argv: list[str] | None = None) -> int:
    parser = common.parser(__doc__)
    parser.add_argument("what", choices=CASES)
    parser.add_argument("cases", nargs="*", help="only these")
    parser.add_argument("--count", type=common.at_least(1), default=100, help="of random settings")
    parser.add_argument("--seconds", type=common.at_least(1), default=180, help="time limit of a case")
    return common.main(exactness, parser, argv)


if __name__ == "__main__":
    sys.exit(main())
