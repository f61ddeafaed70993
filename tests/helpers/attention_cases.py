"""Attention of a whole layer in plain torch, to stand in for kernels that need a GPU."""

import torch
from headforcing.headforcing_core.model.attention_backends import (
    LayerAttention,
    Span,
    explicit,
    head_table,
    varlen,
)
from headforcing.kernels.attend import attend_reference
from torch import Tensor


def sequence_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_starts: Tensor,
    k_starts: Tensor,
    longest_q: int,
    longest_k: int,
) -> Tensor:
    """What `flash_attn_varlen_func` and `varlen_attn` compute, and what they ask of their
    arguments.
    """
    assert q.shape[1:] == k.shape[1:] == v.shape[1:] == (1, q.shape[2])
    out = torch.empty_like(q)
    for starts, x, longest in ((q_starts, q, longest_q), (k_starts, k, longest_k)):
        assert starts.dtype == torch.int32 and starts.ndim == 1 and starts.is_contiguous()
        assert starts[0] == 0 and starts[-1] == len(x), "tokens that belong to no sequence"
        assert 0 <= int(starts.diff().min()) and int(starts.diff().max()) <= longest
    assert len(q_starts) == len(k_starts)
    for (q0, q1), (k0, k1) in zip(
        q_starts.unfold(0, 2, 1).tolist(), k_starts.unfold(0, 2, 1).tolist(), strict=True
    ):
        if q1 > q0:
            out[q0:q1] = explicit(
                *(x.transpose(0, 1) for x in (q[q0:q1], k[k0:k1], v[k0:k1]))
            ).transpose(0, 1)
    return out


def _by_tables(q: Tensor, k: Tensor, v: Tensor, spans: tuple[Span, ...]) -> Tensor:
    return attend_reference(q, k, v, head_table(spans, q.device)).transpose(0, 1)


# the two ways in which kernels are told where a layer's heads lie
WHOLE_LAYER = {"sequences": varlen(sequence_attention), "tables": LayerAttention(_by_tables)}
