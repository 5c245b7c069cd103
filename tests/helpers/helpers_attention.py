"""What torch's variable-length attention computes, for a CPU, which has no kernel of it."""

import torch


def variable_length(
    query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, *, scale=None, window_size=(-1, -1), enable_gqa=True
):
    """What torch's varlen_attn computes from its arguments, in any number format, and what its kernels ask of them."""
    assert window_size == (-1, 0) and query.dtype == key.dtype == value.dtype
    assert query.shape[2] == key.shape[2] and key.shape == value.shape and query.shape[1] % key.shape[1] == 0
    assert all(tensor.stride(-1) == 1 for tensor in (query, key, value))
    for ends, longest, total in ((cu_seq_q, max_q, len(query)), (cu_seq_k, max_k, len(key))):
        assert ends.dtype == torch.int32 and ends.is_contiguous() and longest > 0
        assert ends[0] == 0 and ends[-1] == total and ends.diff().max() <= longest
    key, value = (tensor.repeat_interleave(query.shape[1] // key.shape[1], 1) for tensor in (key, value))
    parts = [tensor.split(cu_seq_q.diff().tolist()) for tensor in (query,)]
    parts += [tensor.split(cu_seq_k.diff().tolist()) for tensor in (key, value)]
    outputs = []
    for q, k, v in zip(*parts, strict=True):
        scores = torch.einsum("qhd,khd->hqk", q, k) * (scale or q.shape[-1] ** -0.5)
        seen = torch.ones(len(q), len(k), dtype=torch.bool).tril(len(k) - len(q))  # aligned to the bottom right
        outputs.append(torch.einsum("hqk,khd->qhd", scores.masked_fill(~seen, -torch.inf).softmax(-1), v))
    return torch.cat(outputs)
