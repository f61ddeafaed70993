"""The statistics of a model's queries in a head profile: as numbers of its JSON file, and as tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..cache.query_score import QueryStatistics

# queries[layer][head]: for every pair of channels the real parts of the mean query, its imaginary parts, mean sizes
Queries = tuple[tuple[tuple[float, ...], ...], ...]


def stored_queries(sums: Tensor | None, counts: Tensor) -> Queries | None:
    """The statistics for a profile, averaged over steps and blocks, then prompts, with four significant digits.

    None where a measured prompt has none.

    Args:
        sums: `[prompts, layers, heads, 3, head_dim / 2]`.
        counts: measured passes `[prompts, ...]`.
    """
    passes = counts.flatten(1).sum(dim=1)
    used = passes > 0
    if sums is None or not sums[used].flatten(1).any(dim=1).all():
        return None
    means = (sums[used] / passes[used].view(-1, 1, 1, 1, 1)).mean(dim=0).flatten(-2)
    return tuple(tuple(tuple(float(f"{x:.4g}") for x in head) for head in layer) for layer in means.tolist())


def query_statistics(queries: Sequence[Sequence[Sequence[float]]]) -> QueryStatistics:
    """The statistics as tensors."""
    real, imaginary, size = torch.tensor(queries).unflatten(-1, (3, -1)).unbind(2)
    return QueryStatistics(torch.complex(real, imaginary), size.contiguous())
