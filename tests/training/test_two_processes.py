"""Two processes, with whole weights (DDP) and with sharded ones (FSDP2), have the gradient that one process has.

They have unequal work: other lengths, other numbers of packs, or no completion that can move the policy.
"""

import pytest
import torch
from helpers_programs import PROGRAMS, run_on_two, run_sharded_on_two
from helpers_runs import DEMO
from helpers_trainer import largest_difference
from steps_of_two_processes import step
from trl import GRPOTrainer

pytestmark = pytest.mark.slow
MODEL = str(DEMO / "model")
PROGRAM = PROGRAMS / "steps_of_two_processes.py"
AS_ONE = ("dapo", "reference", "adapter", "mostly dead", "bf16")  # others average over a micro-batch


@pytest.fixture(scope="module", params=[run_on_two, run_sharded_on_two], ids=["DDP", "FSDP2"])
def found(request, tmp_path_factory):
    """What each process has found."""
    directory = tmp_path_factory.mktemp("two")
    request.param(PROGRAM, MODEL, str(directory))
    both = [torch.load(directory / f"{rank}.pt", weights_only=False) for rank in (0, 1)]
    assert {one["distributed"] for one in both} == {"FSDP" if request.param is run_sharded_on_two else "MULTI_CPU"}
    return both


def test_two_processes_have_the_gradient_of_one(found, tmp_path):
    for name in AS_ONE:
        expected, _, _ = step(GRPOTrainer, "dapo" if name == "bf16" else name, MODEL, tmp_path, batch=16)
        for kind in ("GRPOTrainer", "LeanGRPOTrainer"):
            wrong = largest_difference(expected, found[0][name, kind][0])
            if name == "bf16":  # which rounds, in shapes of its own
                assert 1e-4 < wrong < 0.05, kind
            else:
                assert wrong < 1e-5, (name, kind)


@pytest.mark.parametrize("name", ["bnpo", "quantile", "dapo", "reference"])
def test_both_trainers_have_one_gradient_and_one_log(found, name):
    for one in found:
        (stock, stock_log), (lean, log) = (one[name, kind] for kind in ("GRPOTrainer", "LeanGRPOTrainer"))
        assert largest_difference(stock, lean) < 1e-5
        for key in {"loss", "reward", "clip_ratio/region_mean", "kl"} & stock_log.keys():
            assert log[key] == pytest.approx(stock_log[key], abs=1e-5), key


def test_without_any_advantage_the_gradient_is_zero(found):
    gradients, _ = found[0]["all dead", "LeanGRPOTrainer"]
    assert gradients[0] and not any(gradient.any() for gradient in gradients[0].values())


def test_a_step_that_one_process_spoils_all_skip(found):
    """And after three in a row both ask for the end."""
    assert [(one["unchanged"], one["asked"]) for one in found] == [([2, 3, 4], [4])] * 2
