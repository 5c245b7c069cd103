"""On a GPU packs have TRL's gradient by both kernels, samples are generate's, and the demo trains.

In half a minute: python -m pytest -n 0 tests/gpu
"""

import importlib.util
import json
import re
import warnings
from pathlib import Path

import pytest
import torch
from helpers_runs import DEMO, flags
from helpers_trainer import largest_difference, make_trainer, rewards_by_sum, trained
from peft import LoraConfig, get_peft_model
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from trl import GRPOTrainer

import train_grpo
from grpo.policy.answering import Policy, end_tokens
from grpo.training.run_trainer import RunTrainer
from lean_grpo import LeanGRPOTrainer, attention, gpu, norms, sampling
from lean_grpo.compiling import OptimizerSteps, TokenSteps
from lean_grpo.decoding import Graphs
from lean_grpo.sampling import Sampling

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
PACKAGE = pytest.mark.skipif(importlib.util.find_spec("flash_attn") is None, reason="needs flash-attn")


@pytest.fixture(autouse=True)
def _without_cudnns_attention():
    """Stock runs come first, and would have its NaN gradients."""
    gpu.prepare()


def demo():
    return AutoModelForCausalLM.from_pretrained(DEMO / "model", dtype=torch.float32)


def sliding(kind, **options):
    """A toy that attends to 8 positions, fewer than its prompts have."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes |= {"vocab_size": 512, "num_hidden_layers": 2, "sliding_window": 8, "initializer_range": 0.1}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **sizes, **tokens, **options))
    model.tokenizer_of = DEMO / "model"
    return model


def mistral():
    return sliding("mistral", head_dim=16)


def gemma():
    """Heads of 256, and a layer that sees all positions."""
    return sliding("gemma3_text", head_dim=256, layer_types=["sliding_attention", "full_attention"])


MODELS = pytest.mark.parametrize("build", [demo, mistral, gemma])


@MODELS
@pytest.mark.parametrize("asked", ["sdpa", pytest.param("flash_attention_2", marks=PACKAGE)])
def test_packs_have_trls_gradient_in_bf16(asked, build, tmp_path):
    """Both round, each in shapes of its own: as far from each other as from float32."""
    settings = {"use_cpu": False, "reward": rewards_by_sum}
    exact, _, _ = trained(GRPOTrainer, build(), tmp_path, **settings)
    stock, _, _ = trained(GRPOTrainer, build(), tmp_path, bf16=True, **settings)
    own = {"attn_implementation": asked}
    lean, _, trainer = trained(LeanGRPOTrainer, build(), tmp_path, bf16=True, own=own, **settings)
    package = "the package flash-attn" if asked == "flash_attention_2" else "torch's own"
    assert trainer.kernel is not None and trainer.kernel.name == f"FlashAttention 2 ({package})"
    assert largest_difference(exact, lean) < max(0.05, 2 * largest_difference(exact, stock))
    assert 0 < largest_difference(stock, lean) < 0.1


class Operations(TorchDispatchMode):
    """Lists operations by name."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("width", [64, 896, 4096])
def test_a_norm_is_one_kernel_with_the_exact_gradient(width):
    """Under autocast, too; as near to float64 as 16 bits allow."""
    norm = LlamaRMSNorm(width, eps=1e-6).to("cuda", torch.bfloat16)
    torch.nn.init.normal_(norm.weight)
    norms.replace(norm)
    numbers, gradient = torch.randn(2, 1, 3000, width, dtype=torch.bfloat16, device="cuda")
    numbers.requires_grad_()
    with torch.autocast("cuda", torch.bfloat16), Operations() as forward:
        found = norm(numbers)
    assert [name for name in forward.names if name != "detach"] == ["_fused_rms_norm"]
    wide, weight = (part.detach().double().requires_grad_() for part in (numbers, norm.weight))
    exact = torch.nn.functional.rms_norm(wide, (width,), weight, 1e-6)
    found = [found, *torch.autograd.grad(found, [numbers, norm.weight], gradient)]
    for one, other in zip([exact, *torch.autograd.grad(exact, [wide, weight], gradient.double())], found, strict=True):
        assert other.dtype == torch.bfloat16 and (one - other).norm() < 2**-8 * one.norm()


def test_a_packs_loss_waits_in_trls_head_only(tmp_path):
    """And a run's norms are the kernel."""
    model = AutoModelForCausalLM.from_pretrained(DEMO / "model", dtype=torch.bfloat16)
    settings = {"use_cpu": False, "bf16": True, "reward": rewards_by_sum}
    _, _, trainer = trained(LeanGRPOTrainer, model, tmp_path, **settings)
    assert "forward" in vars(trainer.model.model.norm)
    rows = [row for turn in trainer._plan.packs_of_micro_batch for rows, _ in turn for row in rows]
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            trainer._loss_of(trainer.model, trainer._plan, rows)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    waits = [warning for warning in caught if "synchronizing" in str(warning.message)]
    assert waits and {Path(warning.filename).parts[-3:] for warning in waits} == {("trl", "trainer", "utils.py")}


def test_without_flash_attention_2_packs_are_exact(tmp_path):
    """In float32, under a block mask."""
    stock, _, _ = trained(GRPOTrainer, str(DEMO / "model"), tmp_path, use_cpu=False)
    lean, _, trainer = trained(LeanGRPOTrainer, str(DEMO / "model"), tmp_path, use_cpu=False)
    assert trainer.kernel.name == "sdpa" and largest_difference(stock, lean) < 1e-4


def test_without_flash_attention_2_windows_take_trls_own_step(tmp_path, capsys):
    _, _, trainer = trained(LeanGRPOTrainer, mistral(), tmp_path, use_cpu=False)
    assert trainer.kernel is None and "sliding windows in packs need FlashAttention 2" in capsys.readouterr().out


def test_gradients_of_a_shared_prompt_are_added_up_in_float32():
    """In bfloat16, one by one, a sum of ones ends at 256; no public function shows it, and on a CPU it never does."""
    tensor = torch.zeros(1, 1, 8, dtype=torch.bfloat16, device="cuda", requires_grad=True)
    attention._Gather.apply(tensor, torch.zeros(1000, dtype=torch.long, device="cuda")).sum().backward()
    assert (tensor.grad == 1000).all()


@MODELS
def test_greedy_answers_are_those_of_generate(build, tokenizer):
    model = build().cuda().eval()
    asked = [f"What is {a} + {b}?" for a in range(3, 7) for b in range(2, 6)]
    chats = [[{"role": "user", "content": text}] for text in asked]
    ids = [tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"] for chat in chats]
    ends = end_tokens(model.generation_config, tokenizer)
    for prompt, done in zip(ids, Policy(model, tokenizer, 40, 8).complete(ids), strict=True):
        given = torch.tensor([prompt], device="cuda")
        output = model.generate(given, attention_mask=torch.ones_like(given), do_sample=False, max_new_tokens=40,
                                eos_token_id=ends, pad_token_id=tokenizer.pad_token_id)  # fmt: skip
        assert output[0, len(prompt) :].tolist() == done.ids


def sampled(model, tokenizer, drawn=None):
    prompts = [tokenizer(f"What is {a} + {b}?")["input_ids"] for a in range(3, 7) for b in range(2, 6)]
    torch.manual_seed(0)
    with sampling.sampling_mode(model):
        return sampling.complete(
            model, tokenizer, 4 * prompts, end_tokens(model.generation_config, tokenizer), 200, drawn
        )


@MODELS
def test_replayed_steps_sample_what_eager_ones_do(build, tokenizer, capsys):
    model = build().cuda().eval()
    replayed = [sampled(model, tokenizer)]
    before = torch.cuda.memory_allocated()  # libraries have set themselves up
    replayed.append(sampled(model, tokenizer, Sampling(temperature=1.5)))
    assert Graphs.verdicts[model] == "" and not capsys.readouterr().out
    assert torch.cuda.memory_allocated() - before < 2**20  # nothing of a rollout
    Graphs.verdicts[model] = "a test says so"
    assert replayed == [sampled(model, tokenizer), sampled(model, tokenizer, Sampling(temperature=1.5))]


@pytest.mark.parametrize("numbers", ["float32", "bfloat16", "float32 under autocast"])
@pytest.mark.parametrize("adapter", [False, True])
@MODELS
def test_compiled_layers_replay_and_change_no_weight(build, adapter, numbers, tokenizer, capsys):
    base = model = build().to("cuda", torch.bfloat16 if numbers == "bfloat16" else torch.float32)
    if adapter:
        torch.manual_seed(0)
        model = get_peft_model(base, LoraConfig(target_modules=["q_proj", "up_proj"], init_lora_weights=False))
    before = [(weight.data_ptr(), weight.detach().clone()) for weight in model.parameters()]
    with torch.autocast("cuda", torch.bfloat16, enabled=numbers.endswith("autocast")):
        plain = sampled(model, tokenizer)
        TokenSteps.planned[base] = TokenSteps.worth
        compiled = [sampled(model, tokenizer), sampled(model, tokenizer)]
        drawn = [sampled(model, tokenizer, Sampling(temperature=1.5)) for _ in range(2)]
    assert base in TokenSteps.verified and not capsys.readouterr().out
    assert compiled[0] == compiled[1] and drawn[0] == drawn[1]
    same = [one == other for one, other in zip(plain, compiled[0], strict=True)]
    assert all(same) if numbers == "float32" else sum(same) > len(same) / 2  # 16 bits round otherwise
    for weight, (address, value) in zip(model.parameters(), before, strict=True):
        assert weight.data_ptr() == address and torch.equal(weight, value)


@MODELS
def test_compiled_packs_have_trls_gradient_in_bf16(build, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(OptimizerSteps, "worth", 1)
    settings = {"use_cpu": False, "reward": rewards_by_sum}
    exact, _, _ = trained(GRPOTrainer, build(), tmp_path, **settings)
    stock, _, _ = trained(GRPOTrainer, build(), tmp_path, bf16=True, **settings)
    lean, _, trainer = trained(LeanGRPOTrainer, build(), tmp_path, bf16=True, **settings)
    assert trainer._layers is not None and "not compiled for optimizer steps" not in capsys.readouterr().out
    assert largest_difference(exact, lean) < max(0.05, 2 * largest_difference(exact, stock))


@pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is None, reason="needs bitsandbytes")
def test_4_bit_weights_are_replayed(tokenizer, capsys):
    quantized = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_compute_dtype=torch.bfloat16)
    model = AutoModelForCausalLM.from_pretrained(DEMO / "model", quantization_config=quantized, device_map="cuda")
    sampled(model, tokenizer)
    assert Graphs.verdicts[model] == "" and not capsys.readouterr().out


@pytest.mark.parametrize("kind", ["waits", "refuses"])
def test_what_cannot_be_recorded_is_sampled_eagerly(kind, tokenizer, capsys):
    """The random state survives a recording that fails."""
    model = demo().cuda().eval()
    plain = sampled(model, tokenizer, Sampling())
    capsys.readouterr()

    def hook(module, inputs, output):
        if kind == "waits" or torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize() if kind == "refuses" else output.sum().item()

    again = demo().cuda().eval()
    again.model.layers[0].register_forward_hook(hook)
    assert sampled(again, tokenizer, Sampling()) == plain
    said = capsys.readouterr().out
    assert said.startswith("note: decoding steps are not replayed as CUDA graphs") and said.count("\n") == 1


@pytest.mark.parametrize("ways", [("adamw_torch", "adamw_torch_fused"), ("adamw_torch_fused", "adamw_torch")])
def test_fused_adamw_and_the_other_resume_each_other(ways, tmp_path):
    """Fused, the counters of steps are on the GPU."""
    for optim, steps, checkpoint in ((ways[0], 1, None), (ways[1], 2, str(tmp_path / "checkpoint-1"))):
        settings = {"max_steps": steps, "save_strategy": "steps", "save_steps": 1, "lengths": 3, "use_cpu": False}
        trainer = make_trainer(RunTrainer, str(DEMO / "model"), tmp_path, optim=optim, **settings)
        trainer.train(resume_from_checkpoint=checkpoint)
        counters = [state["step"] for state in trainer.optimizer.state.values()]
        assert {counter.is_cuda for counter in counters} == {optim == "adamw_torch_fused"}
        assert {int(counter) for counter in counters} == {steps}


def test_two_steps_of_the_demo(capfd):
    given = {"use_cpu": "false", "dtype": "bfloat16", "bf16": "true", "use_vllm": "false", "max_steps": "2"}
    given |= {"logging_steps": "1", "eval_samples": "16", "output_dir": "run"}
    assert train_grpo.main(["--config", "demo", *flags(**given)]) == 0
    said = " ".join(capfd.readouterr().out.split())  # preflight names the kernel, too, before it is tried
    assert re.search(r"Training step: packs of [\d,]+ tokens, FlashAttention 2 \(", said), said
    lines = [json.loads(line) for line in Path("run/metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "loss" in line]
    assert len(steps) == 2 and all(line["grad_norm"] > 0 for line in steps)
    assert Path("run/model.safetensors").exists()
