"""grpo/preflight/room.py: what fits, whether gradients are checkpointed, and how large a step could be."""

from functools import cached_property
from types import SimpleNamespace

import pytest
from helpers_runs import DEMO

from grpo.policy import memory
from grpo.preflight import plan as plans
from grpo.preflight import preflight, room
from grpo.preflight.plan import Device, TrainingPlan
from lean_grpo.attention import Kernel


@pytest.fixture
def device(monkeypatch):
    """Let the run's device have this memory."""

    def has(total, kind="cuda", free=None):
        device = cached_property(
            lambda plan: Device(kind, "an A100", int(0.99 * total if free is None else free), total)
        )
        device.__set_name__(TrainingPlan, "device")
        monkeypatch.setattr(TrainingPlan, "device", device)

    return has


def decided(plan):
    """The decision about gradient checkpointing, and its line; "" if there is none."""
    (line,) = [check.finding for check in preflight.outcomes(plan) if check.name == "checkpointing"] or [""]
    return plan.run.args.gradient_checkpointing, line


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_checkpointing_is_on_only_where_memory_asks_for_it(kind, plan, device):
    needed = sum(room.estimate(plan(), gradient_checkpointing=False).values())
    for total, on in ((1.12 * needed, False), (1.10 * needed, True)):  # a tenth is left
        device(int(total), kind)
        asked = plan()
        assert asked.config.training.gradient_checkpointing is True  # until it is decided
        found, line = decided(asked)
        assert found is on and line.startswith(f"gradient checkpointing {'on' if on else 'off'}: without it ")
        assert line.endswith("can be used on an A100")
        recorded = asked.run.settings()
        assert recorded["gradient_checkpointing"] is on and recorded.get("activation_checkpointing", on) is on
        assert asked.config.origin["gradient_checkpointing"] == "machine"


@pytest.mark.parametrize("asked", [True, False])
def test_what_the_user_says_about_checkpointing_is_done(asked, plan, device):
    for total in (10**12, 10**6):
        device(total)
        assert decided(plan(gradient_checkpointing=str(asked).lower())) == (asked, "")


def test_memory_that_others_use_is_not_counted_on(plan, device):
    device(10**12, free=10**6)
    assert decided(plan())[0] is True


def test_the_memory_line_is_of_the_decided_run(plan, device):
    steps = []
    for total in (10**12, 10**6):
        device(total)
        asked = plan()
        decided(asked)
        steps.append(room.estimate(asked)["training step"])
    assert steps[0] > steps[1]


def test_a_model_of_unknown_size_is_checkpointed(plan, device, monkeypatch):
    def refuse(*args):
        raise RuntimeError("cannot be built on the meta device")

    device(10**12)
    monkeypatch.setattr(memory, "shape", refuse)
    assert decided(plan()) == (
        True, "gradient checkpointing on: how much memory this model takes is known only once it is loaded"
    )  # fmt: skip


def test_an_adapter_quantized_weights_and_vllm_are_estimated_with_their_own_numbers(plan, device):
    """Each may change the decision: the least total at which checkpointing is off differs."""
    device(10**12)
    needed = {}
    for name, flags in {
        "all": {}, "LoRA": {"use_peft": "true"}, "no packs": {"packed": "false", "per_device_train_batch_size": "64"},
    }.items():  # fmt: skip
        needed[name] = sum(room.estimate(plan(**flags), gradient_checkpointing=False).values())
    assert needed["no packs"] > needed["all"] != needed["LoRA"]
    asked = plan()
    asked.run.args.use_vllm, asked.run.args.vllm_gpu_memory_utilization = True, 0.3
    asked.run.args.vllm_enable_sleep_mode = False
    assert room.estimate(asked)["vLLM"] == pytest.approx(3e11)


def test_deepspeed_computes_a_micro_batch_at_once(plan, device, monkeypatch):
    device(10**12)
    flags = {"per_device_train_batch_size": "64"}
    packed = room.estimate(plan(**flags), gradient_checkpointing=False)
    asked = plan(**flags)
    asked.run.args.deepspeed_plugin = SimpleNamespace(zero_stage=2)
    assert room.estimate(asked, gradient_checkpointing=False)["training step"] > packed["training step"]


@pytest.mark.parametrize(("own", "others"), [((8, 10), (6, 10)), ((6, 10), (8, 10)), ((8, 10), (8, 5))])
def test_all_processes_decide_by_the_least_memory(own, others, plan, monkeypatch):
    answers = {-mine: max(-mine, -other) for mine, other in zip(own, others, strict=True)}
    monkeypatch.setattr(plans, "largest", answers.__getitem__)
    found = SimpleNamespace(available=own[0], total=own[1])
    monkeypatch.setattr(plans.psutil, "virtual_memory", lambda: found)
    device = plan().device
    assert (device.free, device.total) == tuple(map(min, own, others))


def test_processes_on_a_cpu_share_its_memory(plan, monkeypatch):
    monkeypatch.setattr(plans.psutil, "virtual_memory", lambda: SimpleNamespace(available=80, total=100))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert plan().device[2:] == (20, 25) and "4 processes" in plan().device.name


# --- Larger steps


def larger_steps(plan):
    return {check.name: check for check in preflight.outcomes(plan)}.get("larger steps")


def test_a_larger_step_that_fits_is_one_line(plan, device):
    device(10**12)
    line = larger_steps(plan(per_device_train_batch_size="16", gradient_accumulation_steps="4"))
    assert line.status == "ok" and not line.remedy
    assert "--per_device_train_batch_size 64 (256 completions a step) would fit" in line.finding
    assert "256 rows takes 1.3 times as long as 64" in line.finding


@pytest.mark.parametrize(
    ("flags", "suggested"),
    [
        ({"per_device_train_batch_size": "64"}, 256),
        ({"per_device_train_batch_size": "48"}, 192),  # doubled, never beyond what was measured
        ({"per_device_train_batch_size": "128"}, 256),
        ({"per_device_train_batch_size": "144"}, None),  # not even twice as many rows were measured
        ({"per_device_train_batch_size": "16", "steps_per_generation": "8", "gradient_accumulation_steps": "4"}, 32),
        ({"per_device_train_batch_size": "64", "generation_batch_size": "64"}, None),
    ],
)
def test_a_larger_step_keeps_whole_groups(flags, suggested, plan, device):
    device(10**12)
    line = larger_steps(plan(**flags))
    assert (line is None) == (suggested is None)
    if line:
        assert f"--per_device_train_batch_size {suggested} " in line.finding
        plan(**{**flags, "per_device_train_batch_size": str(suggested)})  # is a geometry


def test_no_larger_step_is_suggested_where_it_would_not_fit(plan, device):
    flags = {"per_device_train_batch_size": "16", "gradient_accumulation_steps": "4", "packed": "false"}
    asked = plan(**flags, gradient_checkpointing="false")
    device(10**12)
    twice, four = (
        sum(room.estimate(asked, times, per_device_train_batch_size=16 * times).values()) for times in (2, 4)
    )
    for total, suggested in ((four, "64 (256"), (twice, "32 (128"), (0.9 * twice, None)):
        device(int(1.12 * total))
        line = larger_steps(plan(**flags, gradient_checkpointing="false"))
        assert (suggested is None and line is None) or f"train_batch_size {suggested} " in line.finding


def test_larger_steps_are_a_gpus_and_a_chosen_batch_is_routine(plan, device):
    device(10**12, "cpu")
    assert larger_steps(plan()) is None
    device(10**12)
    assert larger_steps(plan()).routine  # set by a flag
    assert not larger_steps(plan(per_device_train_batch_size=None)).routine
    resumed = plan()
    resumed.run.checkpoint = DEMO
    assert room.larger_batch(resumed) and not list(preflight.model_checks.about_larger_steps(resumed))


# --- Packs


def of_packs(packed=True, chosen=None):
    script = SimpleNamespace(packed=packed, pack_tokens=chosen)
    training = SimpleNamespace(num_generations=16)
    return SimpleNamespace(config=SimpleNamespace(script=script, training=training, completion_limit=786))


def test_the_largest_pack_is_known_before():
    flash, masked = Kernel("FlashAttention 2", 8192), Kernel("sdpa", 2048, by_segment=False)
    assert room.largest_pack(of_packs(), flash, 256) == 8192
    assert room.largest_pack(of_packs(), flash, 1000) == 1000 + 16 * 786  # dividing a group may cost a tenth
    assert room.largest_pack(of_packs(), masked, 1000) == 2048
    assert room.largest_pack(of_packs(chosen=4096), flash, 1000) == 4096
    assert room.largest_pack(of_packs(packed=False, chosen=4096), flash, 256) is None
