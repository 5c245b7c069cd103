"""grpo/training/micro_batches.py: processes have as many packs as each other, and one in the last micro-step.

A plan's sum is TRL's sum: test_fuzz_packs.py.
"""

import torch

from grpo.training import micro_batches


def micro_batch(lengths, advantages, first=5):
    """Completions of these lengths after a prompt of three tokens, the first of them padded."""
    width, rows = max(max(lengths), 1), len(lengths)
    mask = torch.tensor([[int(place < length) for place in range(width)] for length in lengths])
    return {
        "prompt_ids": torch.tensor([[0, 1, 2, 3]] * rows),
        "prompt_mask": torch.tensor([[0, 1, 1, 1]] * rows),
        "completion_ids": (torch.arange(rows * width).view(rows, width) + first) * mask,
        "completion_mask": mask,
        "advantages": torch.tensor(advantages),
        "num_items_in_batch": mask.sum(),
    }


BATCHES = [micro_batch([4, 2, 4], [1.0, 0.0, -1.0]), micro_batch([4, 3, 1], [0.5, 0.5, 0.0])]


def planned(batches=BATCHES, loss_type="dapo", drops=True, budget=8, most=lambda count: max(count, 1)):
    return micro_batches.plan(batches, loss_type, drops, budget, most)


def test_the_last_micro_step_always_has_a_pack():
    """Its backward is the one that processes add their gradients up in."""
    for budget in (4, 8, 100):
        assert planned(budget=budget).packs_of_micro_batch[-1]
    assert [len(turn) for turn in planned(budget=100).packs_of_micro_batch] == [0, 1]


def test_without_any_advantage_one_pack_moves_nothing():
    plan = planned([micro_batch([3, 2], [0.0, 0.0]), micro_batch([3, 1], [0.0, 0.0])])
    assert plan.packs_of_micro_batch[0] == [] and [pack for pack, _ in plan.packs_of_micro_batch[1]] == [[]]


def test_as_many_packs_as_the_process_that_has_most():
    plan = planned(most=lambda count: count + 3)
    packs = [pack for turn in plan.packs_of_micro_batch for pack, _ in turn]
    assert packs.count([]) == 3 and len(packs) == 3 + len([pack for pack in packs if pack])
