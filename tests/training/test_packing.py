"""How rows are divided into packs; that a pack is right for any rows is test_fuzz_packs.py's."""

import pytest

from grpo.training import packing


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


@pytest.mark.parametrize("share", [True, False])
def test_without_rows_there_is_one_position_that_is_not_scored(share):
    pack = packing.lay_out([((1, 2), ())], [], 4, share=share)
    assert pack.input_ids.shape == (1, 1) and pack.labels.tolist() == [[packing.IGNORED]] and not len(pack.cells)
    assert packing.divide([((1, 2), ())], 10, share) == []
