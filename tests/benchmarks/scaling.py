"""What a block costs as the video grows, with more pixels, and with more episodic memory."""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from typing import Any

import torch
from headforcing.tests.helpers.kernel_choice import using

from .case import Case, warm_up_blocks
from .measure import timed_blocks
from .rows import ADMIT_ALL, HEAD_FORCING, Row, with_memory
from .stopwatch import tensor_bytes

MARKS = (40, 100, 200, 300, 400)
# a time is that of so many blocks up to a mark: whole cycles of episodic memory's updates
AROUND = 12
EPISODIC_FRAMES = (2, 5, 8, 12)

Line = dict[str, Any]


def lengths(case: Case, marks: tuple[int, ...] = MARKS) -> list[Line]:
    """The times of blocks of one video, around these blocks."""
    return _lines(case, 5, marks=marks)


def resolutions(case: Case) -> list[Line]:
    """The case's size, and one with 2.25 times as many pixels."""
    larger = replace(case, width=case.width * 3 // 2, height=case.height * 3 // 2)
    lines = []
    for sized in (case, larger):
        lines += _lines(sized, 5, f"{sized.width}x{sized.height}")
    return lines


def episodic(case: Case) -> list[Line]:
    """By the number of frames that episodic memory holds."""
    lines = []
    for frames in EPISODIC_FRAMES:
        lines += _lines(case, frames, f"{frames} episodic frames")
    return lines


def _lines(
    case: Case, episodic_frames: int, what: str = "", marks: tuple[int, ...] = ()
) -> list[Line]:
    """A line for the last blocks up to each mark of a video, or else for the timed blocks after the
    warm-up.
    """
    method = with_memory(episodic_frames, 3, ADMIT_ALL, HEAD_FORCING.episodic.update_interval)
    row = Row("ours", "the engine as it comes", kernels="auto", method=method)
    ends = {mark: f"block {mark}" for mark in marks} or {
        warm_up_blocks(method) + case.timed_blocks: what
    }
    count = AROUND if marks else case.timed_blocks
    shape = case.shape(method, max(ends))
    times = list[float]()
    lines = list[Line]()
    with using(row.kernels), torch.no_grad():
        for index, (stages, _, cache) in enumerate(timed_blocks(case, row, max(ends)), 1):
            times.append(stages["block"])
            if index in ends:
                lines.append(
                    {
                        "what": ends[index],
                        "block_ms": median(times[-count:]),
                        "fastest_ms": min(times[-count:]),
                        "cache_bytes": tensor_bytes(cache),
                        "tokens_per_frame": case.frame_tokens,
                        "frame_slots": shape.frame_slots,
                    }
                )
    return lines
