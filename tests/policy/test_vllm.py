"""grpo/policy/vllm.py: vLLM is one that TRL can use, its server answers, and it samples with the policy's weights."""

import importlib.metadata
import json
import re
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from helpers_runs import DEMO
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.generation import vllm_client, vllm_generation

from grpo.core.errors import UserError
from grpo.policy import vllm
from grpo.training.trainer import LeanGRPOTrainer


def installed(monkeypatch, version, requires=()):
    """As if this vLLM were installed; what TRL says of it is TRL's own."""
    real = importlib.metadata.version
    monkeypatch.setattr(
        importlib.import_module("trl.import_utils"),
        "_is_package_available",
        lambda name, return_version=False: (version is not None, version),
    )
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: list(requires))
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version if name == "vllm" else real(name))


@pytest.mark.parametrize(
    ("version", "requires", "message"),
    [
        (None, (), r"vLLM is not installed; pip install -r requirements-cuda.txt .*--use_vllm false"),
        ("0.21.0", (), r"versions from 0.22.0 to 0.31.0. You have version 0.21.0 installed. pip install"),
        ("0.32.1+cu129", (), r"from 0.22.0 to 0.31.0. You have version 0.32.1\+cu129"),
        ("0.31.0", ("transformers<5", "numpy"), r"vLLM 0.31.0 needs transformers<5, and 5.\S+ is installed; pip"),
        ("0.30.0", ("torch==2.5.0; platform_machine == 'none'",), None),
        ("0.30.0+cu129", ("torch>=2", "transformers>=4"), None),
    ],
)
def test_a_vllm_that_does_not_fit_is_one_line_with_the_command(version, requires, message, monkeypatch):
    installed(monkeypatch, version, requires)
    if message is None:
        return vllm.check_installed()
    with pytest.raises(UserError, match=message):
        vllm.check_installed()


class Answers(BaseHTTPRequestHandler):
    """Of a server: to each path JSON, a text, or a status."""

    def do_GET(self):
        self.answer(self.server.answers.get(self.path.partition("?")[0], 404))

    def answer(self, value):
        status, value = (value, "") if isinstance(value, int) else (200, value)
        body = (value if isinstance(value, str) else json.dumps(value)).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture
def start():
    """Starts a server that answers so."""
    servers = []

    def start(answers, handler=Answers, **facts):
        server = HTTPServer(("127.0.0.1", 0), handler)
        vars(server).update(answers=answers, **facts)
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return server

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def serve(start):
    """Starts a server that answers so, and gives its settings for TRL."""
    return lambda answers: SimpleNamespace(
        vllm_server_base_url=None, vllm_server_host="127.0.0.1", vllm_server_port=start(answers).server_port,
        vllm_server_timeout=3.0,
    )  # fmt: skip


def info(mode="processed_logprobs", transfer="nccl"):
    transfer = transfer and {"backend": transfer}
    return {"vllm_config": {"model_config": {"logprobs_mode": mode}, "weight_transfer_config": transfer}}


UP = {"/health": "", "/v1/models": {"data": [{"id": "some/model"}]}, "/server_info": info()}


@pytest.mark.parametrize(
    ("answers", "status", "finding"),
    [
        (UP, "ok", "some/model at http://127.0.0.1"),
        ({**UP, "/health": 503}, "error", "no vLLM server answers.*503"),
        ({**UP, "/health": "<html>"}, "error", "no vLLM server answers"),
        ({**UP, "/server_info": 404}, "error", "answers 404 to .*server_info.*takes no weights"),
        (
            {**UP, "/server_info": info("raw_logprobs")},
            "error",
            "before the temperature .raw_logprobs",
        ),
        (
            {**UP, "/server_info": info(transfer=None)},
            "error",
            "without --weight-transfer-config: it takes no weights",
        ),
        ({**UP, "/v1/models": {"data": []}}, "error", "is not a vLLM server"),
    ],
)
def test_a_server_must_answer_as_trl_needs_it(answers, status, finding, serve):
    check = vllm.about_server(serve(answers), "some/model", wait=False)
    assert check.status == status
    assert re.search(finding, check.finding)
    if status == "error":
        assert 'VLLM_SERVER_DEV_MODE=1 vllm serve some/model --weight-transfer-config \'{"backend"' in check.remedy


def test_a_missing_server_is_waited_for_before_training(serve, monkeypatch):
    training = serve({})
    training.vllm_server_base_url = "http://127.0.0.1:9/"  # nobody's port
    slept, now = [], [0.0]
    monkeypatch.setattr(vllm.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(vllm.time, "sleep", lambda some: (slept.append(some), now.__setitem__(0, now[0] + some)))
    check = vllm.about_server(training, "some/model", wait=True)
    assert check.status == "error" and "http://127.0.0.1:9 after 3 s" in check.finding and len(slept) == 2
    slept.clear()
    assert vllm.about_server(training, "some/model", wait=False).status == "error" and not slept


class FakeVLLM:
    """Replaces TRL's VLLMGeneration: samples with a copy of the model, which `sync_weights` may renew."""

    syncing, noise, unknown = True, 0.0, True

    def __init__(self, model, temperature, max_completion_length, processing_class, **settings):
        self.trained, self.copy, self.syncs = (
            model,
            type(model)(model.config),
            0,
        )  # a deep copy would call TRL's forward
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
        if self.unknown:
            logps[0][0] = [None]  # what TRL makes of a NaN of vLLM's
        return prompts, completions, logps, None


class Trainer(GRPOTrainer):
    def _generate_and_score_completions(self, inputs):
        output = super()._generate_and_score_completions(inputs)
        self.found.append(self.sync_check(self, output))
        return output


@pytest.fixture
def train(monkeypatch, tmp_path):
    def run(learning_rate=2e-3, syncing=True, noise=0.0, **settings):
        monkeypatch.setattr("trl.trainer.grpo_trainer.VLLMGeneration", FakeVLLM)
        monkeypatch.setattr(FakeVLLM, "syncing", syncing)
        monkeypatch.setattr(FakeVLLM, "noise", noise)
        config = GRPOConfig(
            output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to="none", use_vllm=True, max_steps=3,
            per_device_train_batch_size=8, num_generations=4, max_completion_length=12, learning_rate=learning_rate,
            temperature=1.2, gradient_checkpointing=False, lr_scheduler_type="constant", save_strategy="no",
            logging_strategy="no", disable_tqdm=True, seed=1, **settings,
        )  # fmt: skip
        trainer = Trainer(
            AutoModelForCausalLM.from_pretrained(DEMO / "model", dtype=torch.float32),
            lambda completions, **_: [float(hash(text) % 7) for text in map(str, completions)],
            config,
            Dataset.from_list([{"prompt": [{"role": "user", "content": f"What is 3 + {n}?"}]} for n in range(8)]),
            processing_class=AutoTokenizer.from_pretrained(DEMO / "model"),
        )
        trainer.found, trainer.sync_check = [], vllm.SyncCheck()
        trainer.train()
        return trainer

    return run


def test_synchronised_weights_pass_in_every_rollout(train):
    trainer = train()
    assert len(trainer.found) == trainer.vllm_generation.syncs == 3 and max(trainer.found) < 1e-4


def test_without_trls_correction_two_rollouts_are_compared(train):
    found = train(vllm_importance_sampling_correction=False).found
    assert max(found[:2]) < 1e-4 and found[2:] == [None]


@pytest.mark.parametrize("correction", [True, False])
def test_weights_that_stay_behind_end_the_run_after_a_step(correction, train):
    with pytest.raises(UserError, match="does not hold the policy's weights: after optimizer step 1 "):
        train(syncing=False, vllm_importance_sampling_correction=correction)


def test_another_model_ends_the_run_in_the_first_rollout(train):
    with pytest.raises(UserError, match="weights: in the first rollout"):
        train(syncing=False, noise=1.0)


class Model(Answers):
    """The routes of a vLLM server that TRL asks for text and for weights, over a model of its own."""

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "{}")
        self.server.posted.append((self.path, asked))
        self.answer(self.complete(asked) if self.path == "/v1/completions" else {"success": True})

    def complete(self, asked):
        prompts = [ids for ids in asked["prompt"] for _ in range(asked["n"])]
        sampler = self.server.sampler
        sampler.temperature, sampler.limit = asked["temperature"], asked["max_tokens"]
        _, completions, logps, _ = sampler.generate(prompts, None, 1, None)
        return {"choices": [
            {
                "prompt_token_ids": prompt, "token_ids": ids,
                "logprobs": {
                    "tokens": [f"token_id:{token}" for token in ids],
                    "token_logprobs": [value for (value,) in logp],
                    "top_logprobs": [None] * len(ids),
                },
            }
            for prompt, ids, logp in zip(prompts, completions, logps, strict=True)
        ]}  # fmt: skip


class Client(vllm_client.VLLMClient):
    """TRL's, whose tensors travel without NCCL."""

    server = None

    def init_communicator(self, device=0):
        assert self.get_server_info()["weight_transfer_config"] == {"backend": "nccl"} and self.get_world_size() == 1

    def update_named_params(self, metadata, named_params):
        self._post(f"{self.base_url}/update_weights", json={"names": [name for name, *_ in metadata]})
        self.server.sampler.copy.load_state_dict(dict(named_params), strict=False)


def test_the_lean_trainer_samples_from_a_server(start, monkeypatch, tmp_path):
    for module in (vllm_client, vllm_generation):
        monkeypatch.setattr(module, "is_vllm_available", lambda *_, **__: True)
    monkeypatch.setattr(vllm_generation, "VLLMClient", Client)
    tokenizer = AutoTokenizer.from_pretrained(DEMO / "model")
    model = AutoModelForCausalLM.from_pretrained(DEMO / "model", dtype=torch.float32)
    monkeypatch.setattr(FakeVLLM, "unknown", False)  # JSON has no NaN
    monkeypatch.setattr(FakeVLLM, "noise", 1.0)  # what it was started with is not the policy
    answers = UP | {"/get_world_size": {"world_size": 1}}
    server = start(answers, Model, sampler=FakeVLLM(model, 1.0, 8, tokenizer), posted=[])
    monkeypatch.setattr(Client, "server", server)
    config = GRPOConfig(
        output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to="none", use_vllm=True, vllm_mode="server",
        vllm_server_host="127.0.0.1", vllm_server_port=server.server_port, max_steps=2, max_completion_length=8,
        per_device_train_batch_size=8, num_generations=4, learning_rate=2e-3, gradient_checkpointing=False,
        save_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    trainer = LeanGRPOTrainer(
        model,
        lambda completions, **_: [float(len(str(text)) % 7) for text in completions],
        config,
        Dataset.from_list([{"prompt": [{"role": "user", "content": f"What is 3 + {n}?"}]} for n in range(8)]),
        processing_class=tokenizer,
    )
    trainer.train()
    paths = [path for path, _ in server.posted]
    assert paths == 2 * ["/update_weights", "/reset_prefix_cache", "/v1/completions"]
    asked = server.posted[2][1]
    assert (len(asked["prompt"]), asked["n"], asked["max_tokens"]) == (2, 4, 8)  # each prompt once


def test_settings_that_change_logprobs_are_noted_not_compared(train, capsys):
    assert train(top_p=0.5).found == 3 * [None]
    assert capsys.readouterr().out.count("not verified, because top_p changes its log-probabilities") == 1
