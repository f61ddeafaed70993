"""What a block costs as the video grows, with more pixels, and with more episodic memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from headforcing.headforcing_core.cache.policy import preset
from headforcing.headforcing_core.render.describe import format_bytes
from headforcing.kernels import dispatch

from . import report
from .apart import tell
from .case import Case, warm_up_blocks
from .environment import environment
from .measure import timed_blocks
from .rows import ADMIT_ALL, HEAD_FORCING, Row
from .stopwatch import tensor_bytes

MARKS = (40, 100, 200, 300, 400)
AROUND = 12  # a time is that of so many blocks up to a mark: whole cycles of episodic memory's updates
EPISODIC_FRAMES = (2, 5, 8, 12)

Line = dict[str, Any]


def run(case: Case, folder: Path, marks: tuple[int, ...] = MARKS) -> dict[str, Any]:
    """Write `scaling.json` and `scaling.md`, anew after every line."""
    results: dict[str, Any] = {
        "environment": environment(case.device, case.dtype),
        "case": case.describe(),
        "tables": {"Length": [], "Resolution": [], "Episodic memory": []},
    }
    with dispatch.using("auto"), torch.no_grad():
        for name, lines in (
            ("Resolution", _resolutions(case)),
            ("Episodic memory", _episodic(case)),
            ("Length", _lengths(case, marks)),
        ):
            for line in lines:
                results["tables"][name].append(line)
                report.write(folder, "scaling", results, page(results))
                tell(f"{line['what']}: {line['ms_per_block']:.4g} ms per block, cache {line['cache_bytes']} bytes")
    return results


def lengths(case: Case, marks: tuple[int, ...]) -> list[Line]:
    """The times of blocks of one video, around these blocks."""
    with dispatch.using("auto"), torch.no_grad():
        return list(_lengths(case, marks))


def _lengths(case: Case, marks: tuple[int, ...]) -> Iterator[Line]:
    """The same video, block after block."""
    times = []
    for index, (stages, _, cache) in enumerate(timed_blocks(case, _row(5), marks[-1])):
        times.append(stages["block"])
        if index + 1 in marks:
            yield {"what": f"block {index + 1}", **_times(times[-AROUND:]), "cache_bytes": tensor_bytes(cache)}


def _resolutions(case: Case) -> Iterator[Line]:
    larger = (1280, 720) if (case.width, case.height) == (832, 480) else (case.width * 3 // 2, case.height * 3 // 2)
    for width, height in ((case.width, case.height), larger):
        yield _line(f"{width}x{height}", replace(case, width=width, height=height), _row(5))


def _episodic(case: Case) -> Iterator[Line]:
    for frames in EPISODIC_FRAMES:
        yield _line(f"{frames} episodic frames", case, _row(frames))


def _row(episodic_frames: int) -> Row:
    policy = preset("head_forcing").with_memory(episodic_frames, 3, ADMIT_ALL, HEAD_FORCING.episodic.update_interval)
    return Row("ours", "the engine as it comes", kernels="auto", policy=policy)


def _line(what: str, case: Case, row: Row) -> Line:
    warm_up = warm_up_blocks(row.policy)
    times = []
    held = 0
    for stages, _, cache in timed_blocks(case, row, warm_up + case.timed_blocks):
        times.append(stages["block"])
        held = tensor_bytes(cache)
    shape = case.shape(row.policy, warm_up + case.timed_blocks)
    return {
        "what": what,
        **_times(times[warm_up:]),
        "cache_bytes": held,
        "tokens_per_frame": case.frame_tokens,
        "frame_slots": shape.frame_slots,
    }


def _times(blocks: list[float]) -> Line:
    return {"ms_per_block": median(blocks), "fastest_ms": min(blocks)}


def page(results: dict[str, Any]) -> str:
    """Every line beside the first of its table, by the fastest blocks: other work on a machine disturbs them least."""
    parts = ["# Scaling", report.facts(results)]
    for name, lines in results["tables"].items():
        if lines:
            first = lines[0]
            rows = [
                [
                    line["what"],
                    f"{line['ms_per_block']:.4g}",
                    f"{line['fastest_ms']:.4g}",
                    f"{line['fastest_ms'] / first['fastest_ms']:.2f}",
                    format_bytes(line["cache_bytes"]),
                    f"{line['cache_bytes'] / first['cache_bytes']:.2f}",
                ]
                for line in lines
            ]
            head = ["", "ms per block", "fastest block", "beside the first", "cache", "beside the first"]
            parts += [f"## {name}", report.table(head, rows)]
    return "\n\n".join(parts) + "\n"
