"""Rollouts without padding: completions laid out one after another, their prompt once before them.

A completion's own part begins with a copy of its prompt's last token, which predicts its first one, and ends before
its last token, which predicts nothing that is asked for. It sees the rest of its prompt and itself. So a position is
computed for every completion token and for every prompt token but the last, and for nothing else.
"""

import heapq
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

Row = tuple[tuple[int, ...], tuple[int, ...]]  # the token ids of a prompt and of a completion
COSTLY = 0.1  # the share of a group's positions that dividing it may add; above it the group gets larger packs
IGNORED = -100  # the label of a position that is not scored, as everywhere in transformers


def rows_of(input_ids: torch.Tensor, attention_mask: torch.Tensor, logits_to_keep: int) -> list[Row]:
    """The prompts and completions of a padded batch, as TRL's trainer holds it.

    Args:
        input_ids: (rows, P + C), prompts padded on the left, completions on the right.
        attention_mask: (rows, P + C), 0 where padding is, and on all of a completion that is masked out.
        logits_to_keep: C.
    """
    ids, counts = input_ids.tolist(), attention_mask.split([input_ids.shape[1] - logits_to_keep, logits_to_keep], 1)
    prompts, completions = torch.stack([count.sum(1) for count in counts]).tolist()
    start = input_ids.shape[1] - logits_to_keep
    return [
        (tuple(row[start - prompt : start]), tuple(row[start : start + completion]))
        for row, prompt, completion in zip(ids, prompts, completions, strict=True)
    ]


def cost(rows: Sequence[Row]) -> int:
    """Count the positions that the rows take in one pack, empty completions none."""
    rows = [row for row in rows if row[1]]
    prompts = {prompt for prompt, _ in rows}
    return sum(len(prompt) - 1 for prompt in prompts) + sum(len(completion) for _, completion in rows)


def make_packs(rows: Sequence[Row], pack_tokens: int, most: int = 0) -> list[list[int]]:
    """Divide rows among packs, and return the numbers of each pack's rows.

    Rows with the same prompt stay together where they fit in a pack. The largest packs come first, and empty
    completions are dropped. A row longer than a pack gets a pack to itself. A longer group is divided evenly, or into
    full packs and a rest that shares one, if that takes fewer packs. If its prompt is so long that computing it in
    each part would be COSTLY, the group gets larger packs to itself.

    Args:
        pack_tokens: positions of a pack, at most.
        most: positions of such a larger pack, at most.
    """
    groups: dict[tuple[int, ...], list[int]] = {}
    alone: list[_Open] = []
    for number, (prompt, completion) in enumerate(rows):
        if len(prompt) - 1 + len(completion) > pack_tokens:
            if completion:
                alone.append(_Open([number], len(prompt) - 1 + len(completion), {prompt}))
        elif completion:
            groups.setdefault(prompt, []).append(number)
    for prompt, group in list(groups.items()):
        group.sort(key=lambda number: -len(rows[number][1]))
        copied, length = len(prompt) - 1, sum(len(rows[number][1]) for number in group)
        if pack_tokens < min(most, copied + length):
            parts = _evenly(rows, group, pack_tokens)
            if (len(parts) - 1) * copied > COSTLY * (copied + length):
                del groups[prompt]
                for part in _evenly(rows, group, most):
                    size = copied + sum(len(rows[number][1]) for number in part)
                    alone.append(_Open(part, size, {prompt}))
    even, filling = (
        [part for group in groups.values() for part in divide(rows, group, pack_tokens)]
        for divide in (_evenly, _filling)
    )
    packs = _first_fit(rows, even, pack_tokens)
    if filling != even:
        filled = _first_fit(rows, filling, pack_tokens)
        if len(filled) < len(packs) and sum(pack.size for pack in filled) <= sum(pack.size for pack in packs):
            packs = filled
    return [pack.rows for pack in sorted(alone + packs, key=lambda pack: pack.size, reverse=True)]


def largest_pack(pack_tokens: int, prompt: int, completions: int, limit: int) -> int:
    """Positions of the largest pack that `make_packs` may make, with any `most`, beside rows that are longer.

    Args:
        prompt: tokens of the longest prompt.
        completions: of a group.
        limit: tokens of the longest completion.
    """
    group = prompt + completions * limit
    # parts of a divided group are at least half full of completions, beside the prompt
    costly = 2 * prompt > COSTLY * (pack_tokens - prompt)
    return group if group > pack_tokens and costly else pack_tokens


@dataclass
class _Open:
    """A pack that is being filled: numbers of rows, its positions and its prompts."""

    rows: list[int]
    size: int
    prompts: set[tuple[int, ...]]


def _first_fit(rows: Sequence[Row], parts: Sequence[list[int]], pack_tokens: int) -> list[_Open]:
    """Packs of parts of groups, the largest first, each in the first pack that has room for it."""
    lengths = [sum(len(rows[number][1]) for number in part) for part in parts]
    prompts = [rows[part[0]][0] for part in parts]
    sizes = [length + len(prompt) - 1 for length, prompt in zip(lengths, prompts, strict=True)]
    times = Counter(prompts)  # beside its prompt a part takes less
    least = min((sizes[i] if times[prompt] == 1 else lengths[i] for i, prompt in enumerate(prompts)), default=0)
    packs: list[_Open] = []
    open_packs: list[_Open] = []
    for index in sorted(range(len(parts)), key=lambda index: -sizes[index]):
        prompt, size = prompts[index], sizes[index]
        for pack in open_packs:
            added = lengths[index] if prompt in pack.prompts else size
            if pack.size + added <= pack_tokens:
                break
        else:
            pack, added = _Open([], 0, set()), size
            packs.append(pack)
            open_packs.append(pack)
        pack.rows += parts[index]
        pack.size += added
        pack.prompts.add(prompt)
        if pack.size + least > pack_tokens:  # it takes no part any more
            open_packs.remove(pack)
    return packs


def _evenly(rows: Sequence[Row], group: Sequence[int], pack_tokens: int) -> list[list[int]]:
    """A group of one prompt, longest first and none too long, in as few parts of about the same size as fit."""
    lengths = [len(rows[number][1]) for number in group]
    room = pack_tokens - len(rows[group[0]][0]) + 1
    # the first n completions are at least as long as the nth, of which so many fit in a part
    least = max(-(-n // (room // length)) for n, length in enumerate(lengths, 1))
    for count in range(max(least, -(-sum(lengths) // room)), len(group) + 1):
        parts: list[list[int]] = [[] for _ in range(count)]
        sizes = [(0, index) for index in range(count)]  # a heap
        for number, length in zip(group, lengths, strict=True):
            size, smallest = sizes[0]
            heapq.heapreplace(sizes, (size + length, smallest))
            parts[smallest].append(number)
        if max(sizes)[0] <= room:
            break
    return parts


def _filling(rows: Sequence[Row], group: Sequence[int], pack_tokens: int) -> list[list[int]]:
    """A group of one prompt, longest first, in parts that are filled one after the other."""
    room = pack_tokens - len(rows[group[0]][0]) + 1
    parts: list[list[int]] = []
    left = list(group)
    while left:
        part: list[int] = []
        rest: list[int] = []
        size = 0
        for number in left:
            length = len(rows[number][1])
            fits = size + length <= room
            size += length * fits
            (part if fits else rest).append(number)
        parts.append(part)
        left = rest
    return parts


@dataclass(frozen=True)
class Pack:
    """Rows in one line of T positions, made of segments.

    Attributes:
        input_ids: (1, T).
        position_ids: (1, T), as each row would count them by itself.
        labels: (1, T), the token that each position predicts; IGNORED in prompts.
        sizes: positions of each segment, in order; they add up to T.
        parents: for each segment, the number of the one that it sees besides itself (its prompt's), or its own.
        scored: the positions with a label, which a GPU would have to be waited for to find.
        cells: (scored positions,) where each one's value goes in the flattened (rows, C) result.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    labels: torch.Tensor
    sizes: list[int]
    parents: list[int]
    scored: torch.Tensor
    cells: torch.Tensor


def on(device: torch.device | str, values: Sequence, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A tensor of these values, copied to a GPU without waiting for what it computes."""
    return torch.tensor(values, dtype=dtype).to(device, non_blocking=True)


def lay_out(rows: Sequence[Row], chosen: Sequence[int], width: int, device: torch.device | str = "cpu") -> Pack:
    """The pack of the chosen rows.

    Without any row it has a single position that is not scored: a forward pass that moves nothing, for a process that
    has to take part in what the others compute.

    Args:
        chosen: numbers of rows, each with a completion.
        width: C, the length of a row of the result.
    """
    ids: list[int] = []
    positions: list[int] = []
    labels: list[int] = []
    cells: list[int] = []
    sizes: list[int] = []
    parents: list[int] = []

    def add(tokens: Sequence[int], targets: Sequence[int], first: int, parent: int | None = None) -> None:
        ids.extend(tokens)
        labels.extend(targets)
        positions.extend(range(first, first + len(tokens)))
        parents.append(len(sizes) if parent is None else parent)
        sizes.append(len(tokens))

    holder: dict[tuple[int, ...], int | None] = {}  # the segment of each prompt; a prompt of one token has none
    for number in sorted(chosen, key=lambda number: rows[number][0]):
        prompt, completion = rows[number]
        cells.extend(range(number * width, number * width + len(completion)))
        if prompt not in holder:
            holder[prompt] = len(sizes) if len(prompt) > 1 else None
            if len(prompt) > 1:
                add(prompt[:-1], [IGNORED] * (len(prompt) - 1), 0)
        add([prompt[-1], *completion[:-1]], completion, len(prompt) - 1, holder[prompt])
    if not ids:
        add([0], [IGNORED], 0)
    input_ids, position_ids, targets = (on(device, [values]) for values in (ids, positions, labels))
    scored = [position for position, label in enumerate(labels) if label != IGNORED]
    scored_there, cells_there = (on(device, values, torch.long) for values in (scored, cells))
    return Pack(input_ids, position_ids, targets, sizes, parents, scored_there, cells_there)


def segments(pack: Pack) -> tuple[torch.Tensor, torch.Tensor]:
    """The number of each position's segment and of that segment's parent, both (T,)."""
    device, sizes = pack.input_ids.device, torch.tensor(pack.sizes)
    own = torch.repeat_interleave(torch.arange(len(sizes)), sizes)
    return own.to(device), torch.tensor(pack.parents)[own].to(device)


def visible(pack: Pack) -> torch.Tensor:
    """The mask (T, T), true where a position (row) sees another one (column)."""
    own, parent = segments(pack)
    return (own == own[:, None]).logical_or_(own == parent[:, None]).tril_()


@dataclass(frozen=True)
class Keys:
    """The keys of a pack's segments for variable-length attention: the parent's positions, then their own.

    A segment's last query sees all of its keys, the one before it all but the last, and so on: a causal mask that is
    aligned to the bottom right, as FlashAttention has it since 2.1.

    Attributes:
        index: (K,) positions of the pack, segment by segment.
        ends_q, ends_k: (segments + 1,) int32, 0 and where the queries and the keys of each segment end.
        longest_q, longest_k: the most queries and keys of a segment; the first is at least 2.
    """

    index: torch.Tensor
    ends_q: torch.Tensor
    ends_k: torch.Tensor
    longest_q: int
    longest_k: int


def keys(pack: Pack) -> Keys:
    """The keys of each segment, on the pack's device."""
    device = pack.input_ids.device
    starts = [0, *itertools.accumulate(pack.sizes)]
    index: list[int] = []
    ends = [0]
    for segment, parent in enumerate(pack.parents):
        for seen in dict.fromkeys((parent, segment)):
            index.extend(range(starts[seen], starts[seen + 1]))
        ends.append(len(index))
    return Keys(
        on(device, index),
        on(device, starts, torch.int32),
        on(device, ends, torch.int32),
        # kernels take a single query per segment for decoding, which has no backward to speak of
        max(2, *pack.sizes),
        max(end - start for start, end in itertools.pairwise(ends)),
    )
