"""Rows are divided into packs; test_fuzz_packs.py shows that a pack is right for any rows."""

import torch

from grpo.training import packing


def test_a_group_stays_together_where_a_pack_allows():
    rows = [((1, 2, 3), (5,) * 4), ((7,), (5,) * 8), ((1, 2, 3), (5,) * 2), ((7,), (5,) * 1)]
    assert [sorted(pack) for pack in packing.make_packs(rows, 9)] == [[1, 3], [0, 2]]
    assert packing.cost(rows) == (2 + 6) + (0 + 9)


def test_a_group_beyond_a_pack_is_divided_evenly():
    rows = [((1, 2, 3), (5,) * length) for length in (10, 2, 9, 3)]
    assert [sorted(pack) for pack in packing.make_packs(rows, 16)] == [[0, 1], [2, 3]]


def test_a_completion_longer_than_a_pack_does_not_scatter_its_group():
    rows = [((1,) * 500, (5,) * length) for length in (2000, *(100,) * 8)]
    packs = packing.make_packs(rows, 2048)
    assert [packing.cost([rows[row] for row in pack]) for pack in packs] == [2499, 1299]


def test_the_keys_of_a_segment_are_what_its_last_query_sees():
    pack = packing.lay_out([((1, 2, 3), (5, 6)), ((7,), (8,)), ((1, 2, 3), (9,))], [0, 1, 2], 4)
    keys, seen = packing.keys(pack), packing.visible(pack)
    assert pack.sizes == [2, 2, 1, 1] and keys.ends_q.tolist() == [0, 2, 4, 5, 6]
    spans = keys.index.split(keys.ends_k.diff().tolist())
    assert [span.tolist() for span in spans] == [[0, 1], [0, 1, 2, 3], [0, 1, 4], [5]]
    assert (keys.longest_q, keys.longest_k) == (2, 4) and keys.ends_q.dtype == keys.ends_k.dtype == torch.int32
    for span, last in zip(spans, keys.ends_q[1:] - 1, strict=True):
        assert torch.equal(span, seen[last].nonzero().flatten())


def test_a_pack_of_single_positions_does_not_look_like_decoding():
    assert packing.keys(packing.lay_out([((7,), (8,))], [0], 4)).longest_q == 2
