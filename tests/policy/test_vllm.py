"""grpo/policy/vllm.py: vLLM is one that TRL can use, its server answers, and it samples with the policy's weights."""

import contextlib
import importlib
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from helpers_runs import DEMO, ROOT
from packaging.requirements import Requirement
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig

from grpo.core.errors import UserError
from grpo.policy import vllm
from grpo.training.trainer import LeanGRPOTrainer


def installed(version, monkeypatch):
    """As if this vLLM were installed; what TRL says of it is TRL's own."""
    monkeypatch.setattr(vllm, "installed", lambda: version)
    monkeypatch.setattr(
        importlib.import_module("trl.import_utils"),
        "_is_package_available",
        lambda name, return_version=False: (version is not None, version),
    )


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (None, r"vLLM is not installed; pip install -r requirements-cuda.txt, .*--use_vllm false"),
        ("0.21.0", r"versions from 0.22.0 to 0.31.0. You have version 0.21.0 installed. pip install"),
        ("0.31.0+cu129", None),
        ("0.31.0+cpu", "vLLM 0.31.0.cpu is its build for CPUs; pip install -r requirements-cuda.txt"),
    ],
)
def test_a_vllm_that_trl_does_not_know_is_one_line(version, message, monkeypatch):
    installed(version, monkeypatch)
    if message is None:
        return vllm.check_installed(on_cpu=False)
    with pytest.raises(UserError, match=message):
        vllm.check_installed(on_cpu=False)


def test_the_requirements_take_what_trl_supports(monkeypatch):
    """And nothing that compiles, whose failure would take vLLM and bitsandbytes with it."""
    lines = (ROOT / "requirements-cuda.txt").read_text(encoding="utf-8").splitlines()
    wanted = [Requirement(line.partition("#")[0]) for line in lines if not line.startswith("#")]
    assert [each.name for each in wanted] == ["vllm", "bitsandbytes"]
    for minor in range(20, 35):
        installed(version := f"0.{minor}.0", monkeypatch)
        with contextlib.nullcontext() if version in wanted[0].specifier else pytest.raises(UserError):
            vllm.check_installed(on_cpu=False)


class Answer(BaseHTTPRequestHandler):
    """A server's one answer: JSON, a text, or a status."""

    def do_GET(self):
        value = self.server.answer if self.path.startswith("/server_info") else 404
        status, value = (value, "") if isinstance(value, int) else (200, value)
        body = (value if isinstance(value, str) else json.dumps(value)).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture
def serve():
    """Starts a server that answers so, and gives its settings for TRL."""
    servers = []

    def start(answer):
        server = HTTPServer(("127.0.0.1", 0), Answer)
        server.answer = answer
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return SimpleNamespace(
            vllm_server_base_url=None, vllm_server_host="127.0.0.1", vllm_server_port=server.server_port,
            vllm_server_timeout=3.0,
        )  # fmt: skip

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


INFO = {
    "vllm_config": {
        "model_config": {"logprobs_mode": "processed_logprobs"},
        "weight_transfer_config": {"backend": "nccl"},
    }
}


@pytest.mark.parametrize(
    ("answer", "status", "finding"),
    [
        (INFO, "ok", "takes weights at http://127.0.0.1"),
        (404, "error", "404"),  # it was started without VLLM_SERVER_DEV_MODE, or is another program
    ],
)
def test_a_server_must_answer_as_trl_needs_it(answer, status, finding, serve):
    check = vllm.about_server(serve(answer), "some/model", wait=True)
    assert check.status == status and finding in check.finding
    if status == "error":
        assert "vllm serve some/model" in check.remedy


class FakeVLLM:
    """Replaces TRL's VLLMGeneration: samples with a copy of the model, which `sync_weights` may renew."""

    syncing, noise = True, 0.0

    def __init__(self, model, temperature, max_completion_length, processing_class, **settings):
        self.trained, self.syncs = model, 0
        self.copy = type(model)(model.config)  # a deep copy would call TRL's forward
        self.copy.load_state_dict(model.state_dict())
        self.copy.eval()
        self.temperature, self.limit, self.eos = temperature, max_completion_length, processing_class.eos_token_id
        for weight in self.copy.parameters():
            weight.data += self.noise * weight.data.std() * torch.randn_like(weight)

    def sync_weights(self):
        self.syncs += 1
        if self.syncing:
            self.copy.load_state_dict(self.trained.state_dict())

    def generate(self, prompts, images, num_generations, profiler):
        length = len(prompts[0])  # all of them are as long
        output = self.copy.generate(
            torch.tensor(prompts), do_sample=True, temperature=self.temperature, top_k=0, top_p=1.0,
            max_new_tokens=self.limit, eos_token_id=self.eos, pad_token_id=0, return_dict_in_generate=True,
            output_scores=True,
        )  # fmt: skip
        scores, completions, logps = torch.stack(output.scores, dim=1).log_softmax(-1), [], []
        for row, ids in enumerate(output.sequences[:, length:].tolist()):
            ids = ids[: ids.index(self.eos) + 1] if self.eos in ids else ids
            completions.append(ids)
            logps.append([[scores[row, place, token].item()] for place, token in enumerate(ids)])
        logps[0][0] = [None]  # what TRL makes of a NaN of vLLM's
        return prompts, completions, logps, None


@pytest.fixture
def train(monkeypatch, tmp_path):
    """Trains three steps with FakeVLLM: the gap that was found in each rollout, and the trainer."""

    def run(syncing=True, noise=0.0, **settings):
        monkeypatch.setattr("grpo.policy.vllm_engine.Engine", FakeVLLM)
        monkeypatch.setattr(FakeVLLM, "syncing", syncing)
        monkeypatch.setattr(FakeVLLM, "noise", noise)
        config = GRPOConfig(
            output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to="none", use_vllm=True, max_steps=3,
            per_device_train_batch_size=8, num_generations=4, max_completion_length=12, learning_rate=2e-3,
            temperature=1.2, gradient_checkpointing=False, lr_scheduler_type="constant", save_strategy="no",
            logging_strategy="no", disable_tqdm=True, seed=1, **settings,
        )  # fmt: skip
        trainer = LeanGRPOTrainer(
            AutoModelForCausalLM.from_pretrained(DEMO / "model", dtype=torch.float32),
            lambda completions, **_: [float(len(str(text)) % 7) for text in completions],
            config,
            Dataset.from_list([{"prompt": [{"role": "user", "content": f"What is 3 + {n}?"}]} for n in range(8)]),
            processing_class=AutoTokenizer.from_pretrained(DEMO / "model"),
        )
        found, check = [], trainer._sync_check
        trainer._sync_check = lambda *given: found.append(check(*given))
        trainer.train()
        return found, trainer

    return run


def test_synchronised_weights_pass_in_every_rollout(train):
    found, trainer = train()
    assert trainer.backend is not None  # it trains in packs all the same
    assert len(found) == trainer.vllm_generation.syncs == 3 and max(found) < 1e-4


def test_another_model_ends_the_run_in_the_first_rollout(train):
    with pytest.raises(UserError, match="weights: in the first rollout"):
        train(syncing=False, noise=1.0)


@pytest.mark.slow
def test_settings_that_change_logprobs_are_noted_not_compared(train, capsys):
    assert train(top_p=0.5)[0] == 3 * [None]
    assert capsys.readouterr().out.count("not verified, because top_p changes its log-probabilities") == 1
