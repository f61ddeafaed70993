"""Share of attention that each part of a context receives, computed without an attention map."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable

import torch
from torch import Tensor

from .attention import AttentionFunction, explicit

log = logging.getLogger(__name__)

# attention together with the log-sum-exp of every query's scores, [heads, queries] float32
LseFunction = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def with_shares(
    attention: AttentionFunction, q: Tensor, k: Tensor, v: Tensor, first_tokens: int, last_tokens: int
) -> tuple[Tensor, Tensor]:
    """Attention, and the share of it that the first, the middle and the last keys receive (paper, Eq. 1).

    No attention map is stored. Where a kernel returns the log-sum-exp of the scores, the share of a part is
    `exp(lse(part) - lse(all))`. Otherwise a second attention call has one-hot vectors of the parts as values, padded to
    head_dim because fast kernels need values as wide as keys.

    Args:
        q: `[heads, queries, d]`.
        k, v: `[heads, keys, d]`.
        first_tokens, last_tokens: number of keys in the first and in the last part.

    Returns:
        the output `[heads, queries, d]` and the shares `[heads, 3]`, averaged over the queries, float64 where the
        device supports it.
    """
    lse_attention = lse_backend(q.device.type, q.dtype, q.shape[-1])
    if lse_attention is not None:
        out, whole = lse_attention(q, k, v)
        first, last = (
            _mean((lse_attention(q, k[:, keys], v[:, keys])[1] - whole).exp(), dim=-1)
            for keys in (slice(0, first_tokens), slice(k.shape[1] - last_tokens, None))
        )
        middle = (1 - first - last).clamp(min=0)  # rounding can make an empty middle slightly negative
        return out, _normalised(torch.stack((first, middle, last), dim=-1))
    bucket = torch.ones(k.shape[1], dtype=torch.long, device=k.device)
    bucket[:first_tokens], bucket[k.shape[1] - last_tokens :] = 0, 2
    columns = torch.eye(k.shape[2], dtype=k.dtype, device=k.device)[bucket]
    shares = _mean(attention(q, k, columns[None].expand_as(k))[..., :3], dim=1)
    return attention(q, k, v), _normalised(shares)


def frame_shares(attention: AttentionFunction, q: Tensor, k: Tensor, frame_tokens: int) -> Tensor:
    """Share of attention that each latent frame of the keys receives, `[heads, frames]`, averaged over the queries.

    One attention call with one-hot vectors of the frames as values, therefore at most head_dim frames.
    """
    frames = k.shape[1] // frame_tokens
    columns = torch.eye(k.shape[2], dtype=k.dtype, device=k.device)[:frames].repeat_interleave(frame_tokens, dim=0)
    return _normalised(_mean(attention(q, k, columns[None].expand_as(k))[..., :frames], dim=1))


def _mean(shares: Tensor, dim: int) -> Tensor:
    """Mean in the highest precision of the device (mps has no float64)."""
    precise = torch.float64 if shares.device.type in ("cpu", "cuda") else torch.float32
    return shares.to(precise).mean(dim=dim)


def _normalised(shares: Tensor) -> Tensor:
    """Shares scaled to sum to 1: in bfloat16 each has an error of up to 0.2 %, too much for a head profile."""
    return shares / shares.sum(dim=-1, keepdim=True)


@functools.cache
def lse_backend(device: str, dtype: torch.dtype, head_dim: int) -> LseFunction | None:
    """A kernel that also returns the log-sum-exp, selected by a test on 64 tokens; None where there is none."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 64, head_dim, generator=generator).to(device=device, dtype=dtype) for _ in range(3))
    expected = torch.logsumexp(q.float() @ k.float().transpose(1, 2) / head_dim**0.5, dim=-1)
    for kernel in (_lse_cpu, _lse_flash, _lse_efficient):
        try:
            out, lse = kernel(q, k, v)
            if (lse - expected).abs().max() < 1e-2 and (out.float() - explicit(q, k, v).float()).abs().max() < 2e-2:
                return kernel
        except (RuntimeError, AttributeError, NotImplementedError, TypeError) as error:
            log.debug("%s cannot be used on %s: %s", kernel.__name__, device, error)
    return None


def _lse_cpu(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q[None], k[None], v[None])[:2]
    return out[0], lse[0].float()


def _lse_flash(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention(q[None], k[None], v[None])[:2]
    return out[0], lse[0].float()


def _lse_efficient(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    out, lse = torch.ops.aten._scaled_dot_product_efficient_attention(q[None], k[None], v[None], None, True)[:2]
    return out[0], lse[0, :, : q.shape[1]].float()
