"""Packs and plans of any micro-batches: each token once, after what precedes it, and a sum that is TRL's sum."""

import pytest
import torch
from helpers_runs import examples
from hypothesis import given
from hypothesis import strategies as st

from lean_grpo import micro_batches as schedule
from lean_grpo import packing


@st.composite
def batches(draw):
    """Padded prompts and completions, of any lengths and with any of them masked out, some prompts alike."""
    prompts = draw(st.lists(st.lists(st.integers(1, 3), min_size=1, max_size=6).map(tuple), min_size=1, max_size=3))
    rows = draw(
        st.lists(
            st.tuples(st.sampled_from(prompts), st.lists(st.integers(5, 9), max_size=9).map(tuple)),
            min_size=1,
            max_size=10,
        )
    )
    widths = [max(len(row[side]) for row in rows) + draw(st.integers(0, 2)) for side in (0, 1)]
    kept = draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
    ids, mask = [], []
    for (prompt, completion), keep in zip(rows, kept, strict=True):
        left, right = widths[0] - len(prompt), widths[1] - len(completion)
        ids.append([0] * left + [*prompt, *completion] + [0] * right)
        mask.append([0] * left + [1] * len(prompt) + [int(keep)] * len(completion) + [0] * right)
    rows = [(prompt, completion if keep else ()) for (prompt, completion), keep in zip(rows, kept, strict=True)]
    return rows, torch.tensor(ids), torch.tensor(mask), widths[1]


def seen_by(pack, place):
    """The tokens that a position sees, in the order of their positions."""
    positions = pack.position_ids[0].tolist()
    places = packing.visible(pack)[place].nonzero().flatten().tolist()
    assert sorted(positions[one] for one in places) == list(range(len(places))), "a token seen twice, or one missing"
    return [pack.input_ids[0, one].item() for one in sorted(places, key=positions.__getitem__)]


@examples(100)
@given(batches(), st.integers(4, 16) | st.integers(1, 40))
def test_packs_hold_each_token_once_after_what_precedes_it(batch, pack_tokens):
    rows, ids, mask, width = batch
    assert packing.rows_of(ids, mask, width) == rows
    result = torch.full((len(rows), max(width, 1)), -1)
    packs = packing.make_packs(rows, pack_tokens)
    costs = [packing.cost([rows[row] for row in chosen]) for chosen in packs]
    assert costs == sorted(costs, reverse=True)
    for chosen, cost in zip(packs, costs, strict=True):
        pack = packing.lay_out(rows, chosen, max(width, 1))
        size = pack.input_ids.shape[1]
        assert size == sum(pack.sizes) == cost
        assert cost <= pack_tokens or len(chosen) == 1
        own, parent = packing.segments(pack)
        assert own.shape == parent.shape == (size,) and (parent <= own).all()
        labels = pack.labels[0]
        scored = (labels != packing.IGNORED).nonzero().flatten()
        assert len(scored) == len(pack.cells)
        for place, cell in zip(scored.tolist(), pack.cells.tolist(), strict=True):
            (prompt, completion), column = rows[cell // max(width, 1)], cell % max(width, 1)
            assert seen_by(pack, place) == [*prompt, *completion[:column]] and cell // max(width, 1) in chosen
        assert (result.view(-1)[pack.cells] == -1).all(), "a cell is written twice"
        result.view(-1)[pack.cells] = labels[scored]
        prompts = {rows[row][0] for row in chosen}
        # each prompt but its last token once, and only for identical ones
        assert cost == sum(len(prompt) - 1 for prompt in prompts) + sum(len(rows[row][1]) for row in chosen)
    for row, (_, completion) in enumerate(rows):
        assert result[row].tolist() == [*completion, *[-1] * (result.shape[1] - len(completion))]


def packs_of_a_few_lines(rows, pack_tokens):
    """What make_packs did at first, counting every pack anew for every part."""

    def size(numbers):
        return packing.cost([rows[number] for number in numbers])

    def parts_of(group):
        for count in range(1, len(group) + 1):
            parts = [[] for _ in range(count)]
            for number in sorted(group, key=lambda number: -len(rows[number][1])):
                min(parts, key=lambda part: sum(len(rows[row][1]) for row in part)).append(number)
            if max(map(size, parts)) <= pack_tokens:
                return parts

    groups, packs = {}, []
    for number, row in enumerate(rows):
        if size([number]) > pack_tokens:
            packs.append([number])
        elif row[1]:
            groups.setdefault(row[0], []).append(number)
    alone = len(packs)
    parts = [part for group in groups.values() for part in parts_of(group)]
    for part in sorted(parts, key=size, reverse=True):
        fitting = (index for index in range(alone, len(packs)) if size(packs[index] + part) <= pack_tokens)
        index = next(fitting, len(packs))
        packs += [[]] * (index == len(packs))
        packs[index] = packs[index] + part
    return sorted(packs, key=size, reverse=True)


@st.composite
def lengths_of_groups(draw):
    """Rows of groups of a few lengths around a pack's, so that most of them have to be divided."""
    prompts = [(number,) * draw(st.integers(1, 30)) for number in range(draw(st.integers(1, 5)))]
    groups = [(prompt, draw(st.lists(st.integers(0, 60), min_size=1, max_size=12))) for prompt in prompts]
    rows = [(prompt, (5,) * length) for prompt, lengths in groups for length in lengths]
    return draw(st.permutations(rows))


@examples(300)
@given(lengths_of_groups(), st.integers(20, 200))
def test_no_pack_more_and_no_position_more_than_by_the_plain_rule(rows, pack_tokens):
    found, plain = packing.make_packs(rows, pack_tokens), packs_of_a_few_lines(rows, pack_tokens)
    costs, plain_costs = ([packing.cost([rows[row] for row in pack]) for pack in packs] for packs in (found, plain))
    assert len(found) < len(plain) or found == plain
    assert sum(costs) <= sum(plain_costs) and costs == sorted(costs, reverse=True)
    assert all(cost <= pack_tokens or len(pack) == 1 for pack, cost in zip(found, costs, strict=True))
    assert sorted(row for pack in found for row in pack) == [number for number, row in enumerate(rows) if row[1]]


@st.composite
def micro_batches(draw, most=3):
    count, size, width = draw(st.integers(1, most)), draw(st.integers(1, 4)), draw(st.integers(1, 5))
    found = []
    for _ in range(count):
        lengths = draw(st.lists(st.integers(0, width), min_size=size, max_size=size))
        advantages = draw(st.lists(st.sampled_from([0.0, 0.0, 1.0, -0.5]), min_size=size, max_size=size))
        completion_mask = torch.tensor([[int(place < length) for place in range(width)] for length in lengths])
        prompts = torch.tensor([draw(st.sampled_from([[0, 1, 2], [3, 1, 2]])) for _ in range(size)])
        found.append(
            {
                "prompt_ids": prompts, "prompt_mask": (prompts > 0).long(), "completion_mask": completion_mask,
                "completion_ids": completion_mask * 7, "advantages": torch.tensor(advantages),
                "old_per_token_logps": None,
            }
        )  # fmt: skip
    return found


@examples(200)
@given(micro_batches(), st.sampled_from(["grpo", "dr_grpo", "sapo", "luspo", "dapo", "cispo", "vespo", "bnpo"]),
       st.booleans(), st.integers(1, 30), st.integers(0, 3))  # fmt: skip
def test_a_plan_adds_up_to_what_trl_adds_up(given_batches, loss_type, drops, budget, more):
    """Each completion has a value, which is 0 without an advantage; TRL's sum of micro-batches is the packs' sum."""
    if loss_type in schedule.TOKEN_MEANS:
        given_batches = given_batches[:1]

    def make_packs(rows, padded):
        assert padded == given_batches[0]["completion_ids"].numel() + given_batches[0]["prompt_ids"].numel()
        packs = packing.make_packs(rows, budget) or [[]]
        return packs + [[]] * more

    plan = schedule.plan(given_batches, loss_type, drops, make_packs)
    mask, advantages = (
        torch.cat([batch[key] for batch in given_batches]) for key in ("completion_mask", "advantages")
    )
    tokens = mask.sum(1).double()
    # per completion: the mean of its tokens' values for MEANS, their sum for the others
    values = advantages.double() * torch.arange(1, len(mask) + 1).double() * (tokens > 0)
    if loss_type not in schedule.MEANS:
        values = values * tokens

    def loss(rows):
        if not len(rows):
            return 0.0
        of = values[torch.as_tensor(rows)].sum().item()
        if loss_type in schedule.MEANS:
            return of / len(rows)
        return of / max(tokens[torch.as_tensor(rows)].sum().item(), 1) if loss_type in schedule.TOKEN_MEANS else of

    size = len(given_batches[0]["advantages"])
    expected = sum(loss(range(start, start + size)) for start in range(0, len(mask), size))
    packs = [pack for turn in plan.packs_of_micro_batch for pack in turn]
    assert sum(factor * loss(rows) for rows, factor in packs) == pytest.approx(expected, abs=1e-9)
    computed = sorted(row for rows, _ in packs for row in rows)
    assert len(packs) == max(sum(1 for rows, _ in packs if rows), 1) + more  # as many as the process that has most
    assert computed == [row for row in range(len(mask)) if tokens[row] and (advantages[row] or not drops)]
    assert (
        len(plan.packs_of_micro_batch) == len(given_batches)
        and plan.packs_of_micro_batch[-1]
        and all(factor >= 0 for _, factor in packs)
    )
    if loss_type in schedule.MEANS and not drops and tokens.all():
        assert sum(factor for _, factor in packs) == pytest.approx(len(given_batches))
    assert plan.log_probs.shape == plan.entropies.shape == mask.shape and "old_per_token_logps" not in plan.rows
