"""Rows are divided into packs; test_fuzz_packs.py shows that a pack is right for any rows."""

import random

import pytest
import torch

from lean_grpo import packing


def test_a_group_stays_together_where_a_pack_allows():
    rows = [((1, 2, 3), (5,) * 4), ((7,), (5,) * 8), ((1, 2, 3), (5,) * 2), ((7,), (5,) * 1)]
    assert [sorted(pack) for pack in packing.make_packs(rows, 9)] == [[1, 3], [0, 2]]
    assert packing.cost(rows) == (2 + 6) + (0 + 9)


def test_a_group_beyond_a_pack_is_divided_evenly():
    rows = [((1, 2, 3), (5,) * length) for length in (10, 2, 9, 3)]
    assert [sorted(pack) for pack in packing.make_packs(rows, 16)] == [[0, 1], [2, 3]]


def test_groups_beyond_a_pack_fill_packs_where_that_takes_fewer():
    """Groups of 1.4 packs: even halves would leave every pack 70 % full."""
    rows = [((group, 2, 3), (5,) * 20) for group in range(6) for _ in range(7)]
    packs = packing.make_packs(rows, 102)
    assert [packing.cost([rows[row] for row in pack]) for pack in packs] == [102] * 6 + [84] * 3


def test_a_group_with_a_long_prompt_is_not_divided():
    """Unless it is larger than packs may become; groups of short prompts, whose copies are cheap, are."""

    def positions(most, *prompts):
        rows = [((group, *range(prompt - 1)), (5,) * 100) for group, prompt in enumerate(prompts) for _ in range(16)]
        packs = packing.make_packs(rows, 2048, most)
        assert sorted(row for pack in packs for row in pack) == list(range(len(rows)))
        return [packing.cost([rows[row] for row in pack]) for pack in packs]

    assert positions(9000, 1000, 1000) == [2599, 2599]
    assert positions(0, 1000, 1000) == positions(2048, 1000, 1000) == 4 * [999 + 800]  # 1.38 times as many
    assert positions(2300, 1000) == 2 * [999 + 800]
    assert positions(9000, 1000, 101, 101) == [2599, 1700, 1700]
    assert positions(9000, 501) == [2100]


def test_no_pack_is_larger_than_was_said_before():
    dice, larger = random.Random(0), 0
    for _ in range(300):
        usual, prompt, limit = dice.choice([512, 2048]), dice.randrange(1, 400), dice.randrange(1, 1000)
        rows = [((7,) * prompt, (5,) * dice.randint(1, limit)) for _ in range(8)]
        packs = packing.make_packs(rows, usual, most=10**6)
        largest = max(packing.cost([rows[row] for row in pack]) for pack in packs)
        assert largest <= max(packing.largest_pack(usual, prompt, 8, limit), prompt + limit), (usual, prompt, limit)
        larger += largest > usual
    assert larger > 50


@pytest.mark.parametrize("rows_of_a_prompt", [1, 16, 4096])
def test_the_work_grows_with_the_rows_and_not_with_their_square(rows_of_a_prompt):
    """Each row's length is asked for a few times, and each part meets only packs that have room."""
    asked = 0

    class Completion(tuple):
        def __len__(self):
            nonlocal asked
            asked += 1
            return super().__len__()

    rows = [((row // rows_of_a_prompt, 2), Completion((5,) * (40 + row % 7))) for row in range(4096)]
    packs = packing.make_packs(rows, 2048)
    assert len(packs) <= 128 and asked < 4096 * 100


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
