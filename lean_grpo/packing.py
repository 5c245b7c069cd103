"""Rollouts without padding: each prompt once, followed by its completions.

Each completion's segment starts with a copy of the prompt's last token, which predicts the completion's first token,
and omits the completion's own last token. It attends to the rest of its prompt and to itself. A pack has one position
per completion token, and one per prompt token except the last.
"""

import heapq
import itertools
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

Row = tuple[tuple[int, ...], tuple[int, ...]]  # the token ids of a prompt and of a completion
COSTLY = 0.1  # largest share of positions that dividing a group may add; above it the group gets larger packs
IGNORED = -100  # the label of positions that are not scored, as in transformers


def rows_of(input_ids: torch.Tensor, attention_mask: torch.Tensor, logits_to_keep: int) -> list[Row]:
    """Extract prompts and completions from a padded batch of TRL's trainer.

    Args:
        input_ids: (rows, P + C), prompts padded on the left, completions on the right.
        attention_mask: (rows, P + C), 0 in padding and in completions that are masked out; of any number format.
        logits_to_keep: C.
    """
    ids, counts = (
        input_ids.tolist(),
        attention_mask.bool().split([input_ids.shape[1] - logits_to_keep, logits_to_keep], 1),
    )
    prompts, completions = torch.stack([count.sum(1) for count in counts]).tolist()
    start = input_ids.shape[1] - logits_to_keep
    return [
        (tuple(row[start - prompt : start]), tuple(row[start : start + completion]))
        for row, prompt, completion in zip(ids, prompts, completions, strict=True)
    ]


def has_gaps(attention_mask: torch.Tensor, logits_to_keep: int) -> bool:
    """True if a prompt is padded elsewhere than on the left, or a completion elsewhere than on the right."""
    seen = attention_mask.bool()
    prompts, completions = seen[:, :-logits_to_keep], seen[:, -logits_to_keep:]
    gaps = (prompts[:, :-1] & ~prompts[:, 1:]).any() | (~completions[:, :-1] & completions[:, 1:]).any()
    return bool(gaps)


def cost(rows: Sequence[Row]) -> int:
    """Count the positions of these rows in one pack; empty completions take none."""
    rows = [row for row in rows if row[1]]
    prompts = {prompt for prompt, _ in rows}
    return sum(len(prompt) - 1 for prompt in prompts) + sum(len(completion) for _, completion in rows)


def make_packs(rows: Sequence[Row], pack_tokens: int, most: int = 0) -> list[list[int]]:
    """Divide rows into packs. Return the row numbers of each pack.

    Rows with the same prompt stay together where they fit in a pack. The largest packs come first, and empty
    completions are dropped. A row longer than a pack gets a pack to itself. A longer group is divided evenly, or into
    full packs and a rest that shares one, if that takes fewer packs. If its prompt is so long that computing it in
    each part would be COSTLY, the group gets larger packs to itself.

    Args:
        pack_tokens: most positions in a pack.
        most: most positions in such a larger pack.
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
    """Upper bound of a pack's positions for these lengths, whatever `most` is; single longer rows are not counted.

    Args:
        prompt: tokens of the longest prompt.
        completions: completions in a group.
        limit: tokens of the longest completion.
    """
    group = prompt + completions * limit
    # parts of a divided group are at least half full of completions, beside the prompt
    costly = 2 * prompt > COSTLY * (pack_tokens - prompt)
    return group if group > pack_tokens and costly else pack_tokens


@dataclass
class _Open:
    """A pack with room for more: row numbers, number of positions, and prompts."""

    rows: list[int]
    size: int
    prompts: set[tuple[int, ...]]


def _first_fit(rows: Sequence[Row], parts: Sequence[list[int]], pack_tokens: int) -> list[_Open]:
    """Put parts of groups into packs, the largest part first, each into the first pack with room for it."""
    lengths = [sum(len(rows[number][1]) for number in part) for part in parts]
    prompts = [rows[part[0]][0] for part in parts]
    sizes = [length + len(prompt) - 1 for length, prompt in zip(lengths, prompts, strict=True)]
    times = Counter(prompts)  # a part takes less in a pack that has its prompt
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
        if pack.size + least > pack_tokens:  # no part fits any more
            open_packs.remove(pack)
    return packs


def _evenly(rows: Sequence[Row], group: Sequence[int], pack_tokens: int) -> list[list[int]]:
    """Divide a group of one prompt (longest row first, none too long) into as few parts of similar size as fit."""
    lengths = [len(rows[number][1]) for number in group]
    room = pack_tokens - len(rows[group[0]][0]) + 1
    # the first n completions are at least as long as the nth, and a part holds room // length of that length
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
    """Divide a group of one prompt, the longest row first, filling one part after the other."""
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
    """Rows as one sequence of T positions, in segments.

    Attributes:
        input_ids: (1, T).
        position_ids: (1, T), counted from 0 in each row.
        labels: (1, T), the token that each position predicts; IGNORED in prompts.
        sizes: positions of each segment, in order; they add up to T.
        parents: for each segment, the number of its prompt's segment, or its own if it has none.
        scored: (S,) positions with a label, stored so that the GPU need not be synchronized.
        cells: (S,) index of each scored position in the flattened (rows, C) result.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    labels: torch.Tensor
    sizes: list[int]
    parents: list[int]
    scored: torch.Tensor
    cells: torch.Tensor


def to_device(device: torch.device | str, values: Sequence[int], dtype: torch.dtype = torch.long) -> torch.Tensor:
    """Copy numbers to a device without waiting for it, which takes pinned memory."""
    # torch takes eight times as long to read a list, and reads no empty buffer
    tensor = torch.frombuffer(array("q", values), dtype=torch.long) if values else torch.zeros(0, dtype=torch.long)
    tensor = tensor.to(dtype)
    tensor = tensor.pin_memory() if torch.device(device).type == "cuda" else tensor
    return tensor.to(device, non_blocking=True)


def lay_out(rows: Sequence[Row], chosen: Sequence[int], width: int, device: torch.device | str = "cpu") -> Pack:
    """Build the pack of these rows.

    Without rows: one dummy position that is not scored, so that all processes run the same number of forwards.

    Args:
        chosen: row numbers; each row has a completion.
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

    holder: dict[tuple[int, ...], int | None] = {}  # each prompt's segment; a prompt of one token has none
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
    scored = [position for position, label in enumerate(labels) if label != IGNORED]
    input_ids, position_ids, targets, *places = (
        to_device(device, values) for values in (ids, positions, labels, scored, cells)
    )
    return Pack(input_ids[None], position_ids[None], targets[None], sizes, parents, *places)


def segments(pack: Pack) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the number of each position's segment and of that segment's parent, both (T,)."""
    own = [segment for segment, size in enumerate(pack.sizes) for _ in range(size)]
    device = pack.input_ids.device
    return to_device(device, own), to_device(device, [pack.parents[segment] for segment in own])


def visible(pack: Pack) -> torch.Tensor:
    """Return the mask (T, T), True where a position (row) attends to another one (column)."""
    own, parent = segments(pack)
    return (own == own[:, None]).logical_or_(own == parent[:, None]).tril_()


@dataclass(frozen=True)
class Keys:
    """Keys of each segment for variable-length attention: its parent's positions, then its own.

    A segment's last query attends to all of its keys, the query before it to all but the last, and so on: a causal
    mask aligned to the bottom right, as in FlashAttention since 2.1.

    Attributes:
        index: (K,) positions in the pack, segment by segment.
        ends_q, ends_k: (segments + 1,) int32, cumulative numbers of queries and of keys, from 0 (`cu_seqlens`).
        longest_q, longest_k: largest number of queries and of keys in a segment; `longest_q` is at least 2.
    """

    index: torch.Tensor
    ends_q: torch.Tensor
    ends_k: torch.Tensor
    longest_q: int
    longest_k: int


def keys(pack: Pack) -> Keys:
    """Collect the keys of each segment, on the pack's device."""
    device = pack.input_ids.device
    starts = [0, *itertools.accumulate(pack.sizes)]
    index: list[int] = []
    ends = [0]
    for segment, parent in enumerate(pack.parents):
        for seen in dict.fromkeys((parent, segment)):
            index.extend(range(starts[seen], starts[seen + 1]))
        ends.append(len(index))
    return Keys(
        to_device(device, index),
        to_device(device, starts, torch.int32),
        to_device(device, ends, torch.int32),
        # with one query per segment kernels assume decoding, which lacks a proper backward
        max(2, *pack.sizes),
        max(end - start for start, end in itertools.pairwise(ends)),
    )
