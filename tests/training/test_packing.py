"""Packs hold every token that must be computed, once, and nothing else."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from grpo.training import packing

PROMPTS = [(7,), (1, 2, 3), (1, 2, 4)]
ROWS = st.lists(
    st.tuples(st.sampled_from(PROMPTS), st.lists(st.integers(5, 9), max_size=12).map(tuple)), min_size=1, max_size=12
)


def padded(rows):
    """The batch that TRL's trainer would make of the rows."""
    longest = [max(len(row[side]) for row in rows) for side in (0, 1)]
    ids, mask = [], []
    for prompt, completion in rows:
        left, right = longest[0] - len(prompt), longest[1] - len(completion)
        ids.append([0] * left + [*prompt, *completion] + [0] * right)
        mask.append([0] * left + [1] * (len(prompt) + len(completion)) + [0] * right)
    return torch.tensor(ids), torch.tensor(mask), longest[1]


@given(ROWS)
def test_the_rows_of_a_padded_batch_come_back(rows):
    assert packing.rows_of(*padded(rows)) == rows


def test_a_completion_that_is_masked_out_is_empty():
    ids, mask, width = padded([((1, 2), (5, 6)), ((1, 2), (7,))])
    mask[0, -width:] = 0
    assert packing.rows_of(ids, mask, width) == [((1, 2), ()), ((1, 2), (7,))]


@settings(deadline=None)
@given(ROWS, st.integers(1, 40), st.booleans())
@example([((1, 2, 4), (5,)), ((1, 2, 4), (5,) * 11), ((1, 2, 4), (5,) * 6), ((7,), (5,) * 10)], 12, True)
def test_every_completion_is_in_one_pack_within_the_budget(rows, budget, share):
    packs = packing.divide(rows, budget, share)
    assert sorted(row for pack in packs for row in pack) == [row for row in range(len(rows)) if rows[row][1]]
    costs = [packing.cost([rows[row] for row in pack], share) for pack in packs]
    assert all(cost <= budget or len(pack) == 1 for cost, pack in zip(costs, packs, strict=True))
    assert costs == sorted(costs, reverse=True)


def test_a_group_stays_together_where_the_budget_allows():
    rows = [((1, 2, 3), (5,) * 4), ((7,), (5,) * 8), ((1, 2, 3), (5,) * 2), ((7,), (5,) * 1)]
    assert [sorted(pack) for pack in packing.divide(rows, 9)] == [[1, 3], [0, 2]]
    assert packing.cost(rows) == (2 + 6) + (0 + 9)
    assert packing.cost(rows, share=False) == (2 + 4) + 8 + (2 + 2) + 1


def test_a_group_beyond_the_budget_is_divided_evenly():
    rows = [((1, 2, 3), (5,) * length) for length in (10, 2, 9, 3)]
    assert [sorted(pack) for pack in packing.divide(rows, 16)] == [[0, 1], [2, 3]]


def test_a_completion_over_budget_does_not_scatter_its_group():
    rows = [((1,) * 500, (5,) * length) for length in (2000, *(100,) * 8)]
    packs = packing.divide(rows, 2048)
    assert [packing.cost([rows[row] for row in pack]) for pack in packs] == [2499, 1299]


@settings(deadline=None)
@given(ROWS, st.booleans())
def test_a_pack_predicts_each_token_from_what_precedes_it(rows, share):
    """Following what a position sees gives back the prompt and the completion up to it, whatever surrounds them."""
    width = max(len(completion) for _, completion in rows) or 1
    for chosen in packing.divide(rows, 30, share):
        pack = packing.lay_out(rows, chosen, width, share=share)
        ids, labels = pack.input_ids[0].tolist(), pack.labels[0].tolist()
        seen, positions = packing.visible(pack), pack.position_ids[0].tolist()
        scored = [place for place, label in enumerate(labels) if label != packing.IGNORED]
        assert len(scored) == len(pack.cells) and len(set(pack.cells.tolist())) == len(scored)
        assert len(ids) == packing.cost([rows[row] for row in chosen], share) == sum(pack.sizes)
        for place, cell in zip(scored, pack.cells.tolist(), strict=True):
            (prompt, completion), column = rows[cell // width], cell % width
            context = sorted(seen[place].nonzero().flatten().tolist(), key=lambda index: positions[index])
            assert [ids[index] for index in context] == [*prompt, *completion[:column]]
            assert [positions[index] for index in context] == list(range(len(prompt) + column))
            assert labels[place] == completion[column]


@pytest.mark.parametrize("share", [True, False])
def test_without_rows_there_is_one_position_that_is_not_scored(share):
    pack = packing.lay_out([((1, 2), ())], [], 4, share=share)
    assert pack.input_ids.shape == (1, 1) and pack.labels.tolist() == [[packing.IGNORED]] and not len(pack.cells)
    assert packing.divide([((1, 2), ())], 10, share) == []
