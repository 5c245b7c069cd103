"""The bytes of live tensors at the peak of a training step, beside what grpo/policy/memory.py estimates.

    python benchmarks/bench_memory.py             Qwen2.5-1.5B's shape; a minute

The 1.5B is computed on fake tensors: sizes without numbers, through the model's own forward, TRL's head, the backward
and autograd, for the second of two packs, when the gradients of the first are there. Three things are put in the place
of what a GPU runs as one kernel: attention (FlashAttention keeps queries, keys, values, output and a number a row),
the folding of the head's tiles (Triton's, in place), and dropout (a mask of one byte). Every position of a pack is
scored, where a run scores completions only.

estimate, counted   GB beside weights, gradients and optimizer, whose sizes are exact; and in all. What an allocator
                    keeps unused, and the CUDA context, come on top on a GPU.
"""

import weakref
from types import SimpleNamespace
from typing import Any

import bench_common  # noqa: F401  # puts the project on the path
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from grpo.config.check_cases import model_config
from grpo.policy import memory

LORA = ["q_proj", "k_proj", "v_proj", "o_proj", "up_proj", "down_proj", "gate_proj"]
# tokens, dtype of the weights, autocast, checkpointing, adapter
CASES = [
    (2048, "bfloat16", True, True, False),
    (8192, "bfloat16", True, True, False),
    (16384, "bfloat16", True, True, False),
    (2048, "bfloat16", True, False, False),
    (8192, "bfloat16", True, False, False),
    (8192, "float32", True, True, False),
    (2048, "float32", True, False, False),
    (2048, "float32", False, True, False),
    (8192, "bfloat16", True, True, True),
    (2048, "bfloat16", True, False, True),
]


class Counter(TorchDispatchMode):
    """Counts the bytes of the storages that operations make, while they live."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.alive: dict[int, weakref.ref] = {}

    def add(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self.alive:
            return

        def gone(_: Any) -> None:
            del self.alive[key]
            self.now -= size

        self.alive[key] = weakref.ref(storage, gone)
        self.now += size
        self.peak = max(self.peak, self.now)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = function(*args, **(kwargs or {}))
        for leaf in tree_leaves(output):
            if isinstance(leaf, torch.Tensor):
                self.add(leaf)
        return output


class _Flash(torch.autograd.Function):
    """The memory of FlashAttention, and nothing of what it computes."""

    @staticmethod
    def forward(ctx: Any, query: Any, key: Any, value: Any) -> Any:
        output = torch.empty_like(query)
        ctx.save_for_backward(query, key, value, output, query.new_empty(query.shape[:3], dtype=torch.float32))
        return output

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        return tuple(torch.empty_like(tensor) for tensor in ctx.saved_tensors[:3])


def _flash(module: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> tuple[Any, None]:
    tensors = [tensor.transpose(1, 2).contiguous() for tensor in (query, key, value)]
    if torch.is_autocast_enabled("cpu"):
        tensors = [tensor.to(torch.bfloat16) for tensor in tensors]
    return _Flash.apply(*tensors), None


def stand_in() -> None:
    """Replace what a GPU does in one kernel; see the docstring."""
    from transformers import AttentionInterface
    from trl.kernels import chunked_logprob

    AttentionInterface.register("stand_in", _flash)
    chunked_logprob._forward_tile = chunked_logprob._backward_tile = lambda *args, **kwargs: None
    chunked_logprob._addmm_fp32 = lambda *args: None
    torch.nn.Dropout.forward = lambda self, x: torch.native_dropout(x, self.p, self.training)[0]


def faked(tokens: int, dtype: str, autocast: bool, checkpointing: bool, adapter: bool) -> dict:
    """Bytes of the weights, of the gradients, and beside them at the peak of the second pack."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM
    from trl.trainer.utils import add_fused_lm_head

    stand_in()
    with torch.device("meta"):
        base = AutoModelForCausalLM.from_config(
            model_config("1.5B"), dtype=getattr(torch, dtype), attn_implementation="stand_in"
        )
        add_fused_lm_head(base, outputs=("log_probs", "entropy"))
        lora = LoraConfig(r=16, lora_alpha=64, lora_dropout=0.05, target_modules=LORA)
        model = get_peft_model(base, lora) if adapter else base
    if checkpointing:
        base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    with FakeTensorMode():
        made: dict[int, Any] = {}  # by the weight's id: the head may be the embedding
        old = list(model.parameters())
        for part in model.modules():
            for key, weight in part._parameters.items():
                if weight is not None and id(weight) not in made:
                    fake = torch.nn.Parameter(torch.empty(weight.shape, dtype=weight.dtype), weight.requires_grad)
                    made[id(weight)] = made[id(fake)] = fake
                part._parameters[key] = weight if weight is None else made[id(weight)]
            for key, buffer in part._buffers.items():
                part._buffers[key] = torch.empty(buffer.shape, dtype=buffer.dtype)
        del old
        if adapter and checkpointing:
            base.enable_input_require_grads()
        model.train()
        ids = torch.zeros(1, tokens, dtype=torch.long)
        positions, counter = torch.arange(tokens)[None], Counter()
        for weight in model.parameters():
            counter.add(weight)
        weights = counter.now
        for _ in range(2):
            counter.peak = counter.now
            with counter:
                with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                    output = model(input_ids=ids, position_ids=positions, shift_labels=ids, fused_lm_head=True)
                    loss = output.log_probs.sum()
                loss.backward()
                del loss, output
        gradients = sum(
            weight.grad.untyped_storage().nbytes() for weight in model.parameters() if weight.requires_grad
        )
    return {"weights": weights, "gradients": gradients, "step": counter.peak - weights - gradients}


def estimated(tokens: int, dtype: str, autocast: bool, checkpointing: bool, adapter: bool) -> dict:
    from peft import LoraConfig

    model = SimpleNamespace(
        dtype=dtype, load_in_4bit=False, load_in_8bit=False, lora_dropout=0.05, attn_implementation="flash_attention_2"
    )
    training = SimpleNamespace(
        bf16=autocast, fp16=False, use_cpu=False, gradient_checkpointing=checkpointing, optim="adamw_torch_fused"
    )
    shape = memory.shape(model_config("1.5B"), LoraConfig(r=16, target_modules=LORA) if adapter else None)
    weights, gradients, _ = memory.weight_bytes(shape, training, model)
    step = memory.training_step(shape, training, model, tokens)
    return {"weights": weights, "gradients": gradients, "step": step}


HEADINGS = (
    "tokens", "weights", "autocast", "checkpointing", "adapter",
    "estimate", "counted", "ratio", "in all",
)  # fmt: skip


def main() -> None:
    print("|", " | ".join(HEADINGS), "|\n|" + "---|" * len(HEADINGS))
    for case in CASES:
        one, other = estimated(*case), faked(*case)
        assert one["weights"] == other["weights"] and one["gradients"] == other["gradients"], (one, other)
        cells = [str(cell) if not isinstance(cell, bool) else "yes" if cell else "no" for cell in case]
        cells += [f"{one['step'] / 1e9:.2f}", f"{other['step'] / 1e9:.2f}", f"{one['step'] / other['step']:.2f}"]
        print("|", " | ".join([*cells, f"{sum(one.values()) / sum(other.values()):.2f}"]), "|", flush=True)


if __name__ == "__main__":
    main()
