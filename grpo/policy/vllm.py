"""vLLM as the engine of the rollouts: is it one that TRL can use, does its server answer, does it hold the weights."""

import importlib.metadata
import json
import time
import urllib.error
import urllib.request
import warnings
from typing import Any

import torch

from grpo.core.check import Check
from grpo.core.errors import UserError
from grpo.core.processes import say

OTHERWISE = "or give --generation auto --use_vllm false"
INSTALL = f"pip install -r requirements-cuda.txt --no-build-isolation, {OTHERWISE}"
SERVE = (
    'VLLM_SERVER_DEV_MODE=1 vllm serve {model} --weight-transfer-config \'{{"backend": "nccl"}}\' '
    "--logprobs-mode processed_logprobs"
)
# How far the log-probabilities of two engines with the same weights may be apart, mean over the sampled tokens: nats,
# and a multiple of the tokens' mean surprise. This is ten times what was measured between bfloat16 and float32
# arithmetic: 0.004 at a surprise of 0.12 (the demo's model), 0.03 to 0.04 at 1.88 (SmolLM2-135M). Weights of SmolLM2
# with noise of 3 % of their standard deviation are 0.21 away, those with 10 % 0.87.
FARTHEST = 0.02, 0.2
# After the first step of the run the weights have hardly moved: nats, and a multiple of the first rollout's distance.
FARTHER = 0.01, 3.0


def check_installed() -> None:
    """UserError where vLLM is missing, or is one that TRL or the libraries beside it do not work with."""
    from packaging.requirements import Requirement
    from trl.import_utils import is_vllm_available

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        available = is_vllm_available()
    if not available:
        raise UserError(f"generation: vLLM is not installed; {INSTALL}")
    if caught:  # TRL knows the range, warns and goes on
        raise UserError(f"generation: {str(caught[0].message).partition(' We ')[0]} {INSTALL}")
    for needed in map(Requirement, importlib.metadata.requires("vllm") or ()):
        if needed.name in ("torch", "transformers") and (needed.marker is None or needed.marker.evaluate()):
            found = importlib.metadata.version(needed.name)
            if not needed.specifier.contains(found.partition("+")[0], prereleases=True):
                version = importlib.metadata.version("vllm")
                raise UserError(f"generation: vLLM {version} needs {needed}, and {found} is installed; {INSTALL}")


def server_address(training: Any) -> str:
    url = training.vllm_server_base_url or f"http://{training.vllm_server_host}:{training.vllm_server_port}"
    return url.rstrip("/")


def _get(url: str) -> Any:
    """What is behind the address: JSON, or None where the answer is empty; OSError where there is no answer."""
    with urllib.request.urlopen(url, timeout=5) as response:
        return json.loads(response.read() or "null")


def about_server(training: Any, model: str, wait: bool) -> Check:
    """A line of preflight's table: whether the vLLM server is up and started so that TRL can use it.

    TRL waits for `vllm_server_timeout` seconds where nothing answers, for ever where something else does, and finds
    out after that what is wrong with it.

    Args:
        wait: for vllm_server_timeout seconds at most; otherwise ask once.
    """
    address, serve = server_address(training), SERVE.format(model=model)
    deadline = time.monotonic() + (training.vllm_server_timeout if wait else 0)
    while True:
        try:
            _get(f"{address}/health")
            break
        except (OSError, ValueError) as error:  # no JSON: something else answers
            if time.monotonic() >= deadline:
                waited = f" after {training.vllm_server_timeout:g} s" if wait else ""
                finding = f"no vLLM server answers at {address}{waited} ({error})"
                return Check("error", "vllm server", finding, f"start one: {serve}")
            time.sleep(2)
    try:
        served = _get(f"{address}/v1/models")["data"][0]["id"]
        info = _get(f"{address}/server_info?config_format=json")["vllm_config"]
        mode, transfer = info["model_config"]["logprobs_mode"], info["weight_transfer_config"]
    except urllib.error.HTTPError as error:
        finding = f"the server at {address} answers {error.code} to {error.url}: it takes no weights"
        return Check("error", "vllm server", finding, f"start it so: {serve}")
    except (OSError, ValueError, LookupError, TypeError) as error:
        finding = f"what answers at {address} is no vLLM server ({type(error).__name__}: {error})"
        return Check("error", "vllm server", finding, f"start one: {serve}")
    finding = f"{served} at {address}"
    if mode != "processed_logprobs":
        finding += f", whose log-probabilities are {mode}: those before the temperature"
        return Check("error", "vllm server", finding, f"start it so: {serve}")
    if transfer is None:
        finding += ", which was started without --weight-transfer-config: it takes no weights"
        return Check("error", "vllm server", finding, f"start it so: {serve}")
    return Check("ok", "vllm server", finding)


class SyncCheck:
    """Whether vLLM samples from the policy: its log-probabilities of the tokens it drew, held against the trainer's.

    TRL copies the weights before the first rollout and after each optimizer step, and does not look whether they
    arrive. The first rollout and the first after an optimizer step are always compared, and so is every other one
    whose log-probabilities TRL computes anyway: a step too small to be told from rounding adds up with the next ones.
    """

    def __init__(self) -> None:
        self.start: int | None = None  # the optimizer step of the first rollout
        self.distances: dict[bool, float] = {}  # of the first rollout, and of the first after a step
        self.said = False

    def __call__(self, trainer: Any, output: dict[str, Any]) -> float | None:
        """The mean distance over the tokens of all processes, nats; None where nothing was to be compared.

        Args:
            output: what `_generate_and_score_completions` returned.

        Raises:
            UserError: vLLM holds other weights, or answers with log-probabilities that are not those it samples with.
        """
        theirs = output.get("sampling_per_token_logps")
        if not trainer.use_vllm or theirs is None or not self._comparable(trainer):
            return None
        step = trainer.state.global_step
        self.start = step if self.start is None else self.start
        moved = step > self.start
        if "old_per_token_logps" not in output and moved in self.distances:
            return None
        ours = output.get("old_per_token_logps")
        ours = _own_logps(trainer, output) if ours is None else ours
        mask = output["completion_mask"] * output.get("tool_mask", 1)
        known = mask.bool() & ~theirs.isnan()  # NaN: vLLM has none for this token
        sums = torch.stack([(ours - theirs).abs()[known].sum(), -ours[known].sum(), known.sum()]).float()
        distance, surprise, count = trainer.accelerator.gather(sums).view(-1, 3).sum(0).tolist()
        distance, surprise = distance / max(count, 1), surprise / max(count, 1)
        limit = FARTHEST[0] + FARTHEST[1] * surprise
        if moved and True not in self.distances and False in self.distances:
            limit = min(limit, FARTHER[0] + FARTHER[1] * self.distances[False])
        if distance > limit:
            when = f"after optimizer step {step}" if moved else "in the first rollout"
            raise UserError(
                f"generation: vLLM does not hold the policy's weights: {when} its log-probabilities of the sampled "
                f"tokens are {distance:.3f} from the policy's on average, and rounding explains {limit:.3f} at most; "
                f"check that it serves this model in a version that TRL supports, {OTHERWISE}"
            )
        self.distances.setdefault(moved, distance)
        return distance

    def _comparable(self, trainer: Any) -> bool:
        """Where sampling leaves tokens out or penalises them, vLLM's log-probabilities are of what is left."""
        args = trainer.args
        changed = [key for key in ("top_p", "repetition_penalty") if getattr(args, key) != 1]
        changed += [
            key
            for key in ("top_k", "min_p", "generation_kwargs", "vllm_structured_outputs_regex")
            if getattr(args, key)
        ]
        if changed and not self.said:
            say(
                f"note: whether vLLM holds the policy's weights is not verified, because {changed[0]} changes its "
                "log-probabilities"
            )
            self.said = True
        return not changed


def _own_logps(trainer: Any, output: dict[str, Any]) -> torch.Tensor:
    """The policy's log-probabilities of the completions, (completions, tokens), where TRL had no use for them."""
    ids = torch.cat([output["prompt_ids"], output["completion_ids"]], dim=1)
    mask = torch.cat([output["prompt_mask"], output["completion_mask"]], dim=1)
    with torch.no_grad():
        return trainer._get_per_token_logps_and_entropies(
            trainer.model,
            ids,
            mask,
            output["completion_ids"].shape[1],
            batch_size=trainer.args.per_device_train_batch_size,
        )[0]
