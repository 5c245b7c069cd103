"""Two processes, with whole weights (DDP) and with sharded ones (FSDP2, ZeRO), have the gradient of one process.

They have unequal work: other lengths, other numbers of packs, or no completion that can move the policy.
"""

import pytest
import torch
from accelerate.utils import is_deepspeed_available
from helpers_programs import PROGRAMS, ZERO1, ZERO2, ZERO3, run_on_two, run_sharded_on_two
from helpers_runs import DEMO
from helpers_trainer import largest_difference
from safetensors.torch import load_file
from steps_of_two_processes import step
from trl import GRPOTrainer
from weights_of_two_processes import NAMES, THEN, resumed, weights

from lean_grpo import LeanGRPOTrainer

pytestmark = pytest.mark.slow
MODEL = str(DEMO / "model")
PROGRAM = PROGRAMS / "steps_of_two_processes.py"
AS_ONE = ("dapo", "reference", "adapter", "mostly dead", "bf16")  # others average over a micro-batch


@pytest.mark.parametrize("launch", [run_on_two, run_sharded_on_two], ids=["DDP", "FSDP2"])
def test_two_processes_are_as_one(launch, tmp_path):
    """One test: another worker would have to launch them again."""
    launch(PROGRAM, MODEL, str(tmp_path))
    found = [torch.load(tmp_path / f"{rank}.pt", weights_only=False) for rank in (0, 1)]
    assert {one["distributed"] for one in found} == {"FSDP" if launch is run_sharded_on_two else "MULTI_CPU"}
    check_against_one_process(found[0], tmp_path)
    check_refilled(found[0], tmp_path)
    for one in found:
        check_against_each_other(one)
    without_advantage, _ = found[0]["all dead", "LeanGRPOTrainer"]
    assert without_advantage[0] and not any(gradient.any() for gradient in without_advantage[0].values())
    # a step that one process spoils both skip, and after three in a row both ask for the end
    assert [(one["unchanged"], one["asked"]) for one in found] == [([2, 3, 4], [4])] * 2
    written = (tmp_path / "watched/alarms.jsonl").read_text().splitlines()
    assert sum("nonfinite_gradient" in line for line in written) == 1  # both have seen it
    if "rounded" in found[0]:
        check_rounded(*(one["rounded"] for one in found))


@pytest.mark.skipif(not is_deepspeed_available(), reason="DeepSpeed is not installed")
@pytest.mark.parametrize("file", [ZERO1, ZERO2, ZERO3], ids=["ZeRO-1", "ZeRO-2", "ZeRO-3"])
def test_two_processes_of_deepspeed_train_to_the_same_weights(file, tmp_path):
    """Its gradients are its own affair; a second step also shows that it steps where it should."""
    run_sharded_on_two(PROGRAMS / "weights_of_two_processes.py", MODEL, str(tmp_path), file=file)
    found = torch.load(tmp_path / "weights.pt", weights_only=False)
    assert found.pop("trained by") == ("DEEPSPEED", True)  # packs, not TRL's own step
    first, moved = load_file(f"{MODEL}/model.safetensors"), 0.0
    for name in NAMES:
        expected, _ = weights(GRPOTrainer, name, MODEL, tmp_path, batch=16)
        assert expected.keys() <= found[name].keys()  # a tied head may be there twice
        for key, weight in expected.items():
            assert (found[name][key] - weight).abs().max() < 1e-6, (name, key)
            moved = max(moved, (weight - first.get(key, weight)).abs().max())
    assert moved > 1e-3
    check_options_of_a_resumed_run(*found["resumed"], tmp_path)


def check_options_of_a_resumed_run(weights, options, tmp_path):
    """Those of its settings, not of its checkpoint, and its step is made with them."""
    expected, of_one = resumed(MODEL, tmp_path / "one", batch=16)
    assert options == of_one and options[0] == {"lr": 2e-3, "betas": (0.1, 0.9), "weight_decay": 0.5}
    unchanged, _ = resumed(MODEL, tmp_path / "unchanged", {"learning_rate": THEN["learning_rate"]}, batch=16)
    changed, wrong = (
        torch.stack([(other[key] - weight).abs().mean() for key, weight in expected.items()]).max()
        for other in (unchanged, weights)
    )
    assert changed > 1e-4 and wrong < 1e-2 * changed


def check_rounded(one, other):
    """Both copies are the same, and not those of before."""
    first = load_file(f"{MODEL}/model.safetensors")
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert all((one[name] != weight).any() for name, weight in first.items() if weight.dim() == 2)


def check_against_one_process(found, tmp_path):
    for name in AS_ONE:
        expected, _, _ = step(GRPOTrainer, "dapo" if name == "bf16" else name, MODEL, tmp_path, batch=16)
        for kind in ("GRPOTrainer", "LeanGRPOTrainer"):
            wrong = largest_difference(expected, found[name, kind][0])
            if name == "bf16":  # which rounds, in shapes of its own
                assert 1e-4 < wrong < 0.05, kind
            else:
                assert wrong < 1e-5, (name, kind)


def check_refilled(found, tmp_path):
    for name in ("refilled", "refilled groups of both"):
        expected, of_one, _ = step(LeanGRPOTrainer, name, MODEL, tmp_path, batch=16)
        gradients, log = found[name, "LeanGRPOTrainer"]
        assert largest_difference(expected, gradients) < 1e-5, name
        keys = [key for key in of_one if key.startswith("dynamic_sampling/")]
        assert len(keys) == 3 and {key: log[key] for key in keys} == {key: of_one[key] for key in keys}
        assert log["dynamic_sampling/rounds"] > 0 and log["dynamic_sampling/live"] == 1, name


def check_against_each_other(found):
    for name in ("bnpo", "quantile", "dapo", "reference"):
        (stock, stock_log), (lean, log) = (found[name, kind] for kind in ("GRPOTrainer", "LeanGRPOTrainer"))
        assert largest_difference(stock, lean) < 1e-5, name
        for key in {"loss", "reward", "clip_ratio/region_mean", "kl"} & stock_log.keys():
            assert log[key] == pytest.approx(stock_log[key], abs=1e-5), (name, key)
