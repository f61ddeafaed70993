"""Where the time of a block goes, kernel by kernel: `torch.profiler` over blocks in a full
cache.
"""

from __future__ import annotations

from typing import Any

import torch
from headforcing.tests.helpers.kernel_choice import using
from torch.profiler import ProfilerActivity, profile

from .case import Case, warm_up_blocks
from .decoder import random_decoder
from .measure import timed_blocks
from .rows import BY_NAME
from .stopwatch import synchronize

MOST = 25  # kernels that are listed


def blocks(case: Case) -> dict[str, Any]:
    """A steady block and one after which episodic memory merges: milliseconds by kernel, launches,
    host time.
    """
    row = BY_NAME["B3" if case.device.type == "cuda" else "B1"]
    warm_up = warm_up_blocks(row.method)
    found: dict[str, Any] = {"row": row.name}
    with using(row.kernels), torch.no_grad():
        made = timed_blocks(case, row, warm_up + 6)
        for _ in range(warm_up):
            next(made)
        for _ in range(6):
            with _profiler(case) as kept:
                _, block, _ = next(made)
            merging = block.event is not None and block.event.merged
            found["merging" if merging else "steady"] = _by_kernel(case, kept)
    return found


@torch.no_grad()
def decoding(case: Case) -> dict[str, Any]:
    """Three latent frames through the VAE, by kernel."""
    decoder = random_decoder(case)
    latents = torch.randn(3, 16, case.height // 8, case.width // 8, device=case.device)
    for _ in range(2):
        decoder.decode(latents)
    with _profiler(case) as kept:
        decoder.decode(latents)
        synchronize(case.device)
    return _by_kernel(case, kept)


def _profiler(case: Case) -> profile:
    gpu = [ProfilerActivity.CUDA] if case.device.type == "cuda" else []
    return profile(activities=[ProfilerActivity.CPU, *gpu])


def _by_kernel(case: Case, kept: profile) -> dict[str, Any]:
    spent_ms = "self_device_time_total" if case.device.type == "cuda" else "self_cpu_time_total"
    found = (
        (getattr(event, spent_ms) / 1000, event.count, event.key[:120])
        for event in kept.key_averages()
    )
    rows = sorted((row for row in found if row[0]), reverse=True)
    return {
        "ms": sum(spent for spent, _, _ in rows),
        "calls": sum(count for _, count, _ in rows),
        "kernels": [
            {"ms": round(spent, 3), "calls": count, "name": name}
            for spent, count, name in rows[:MOST]
        ],
    }
