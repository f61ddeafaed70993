"""Measurements as numbers to compare: one JSON object and one Markdown page."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from headforcing.headforcing_core.render.describe import format_bytes

from .case import VIDEO_FRAMES
from .measure import Measurement

STAGES = ("denoise", "clean", "cache", "block")
STEPS = ("open", "write", "attend", "commit", "total")
DASH = "–"
TIMES = [
    "row", "", "denoise ms", "clean ms", "cache update ms", "block ms (p95)", "FPS", "VAE ms", "FPS with VAE",
    "TFLOP/s (of matmul)",
]  # fmt: skip
MEMORY = ["row", "cache by formula", "cache measured", "peak memory", "difference after 1 block", "after 10 blocks"]
HANDLING = ["row", *STEPS, "with attention", "attention"]


def summary(result: Measurement, matmul: float, reference: Measurement | None) -> dict[str, Any]:
    """A row's numbers; `reference` made the latents that its own are compared with."""
    row: dict[str, Any] = {"row": result.row, "title": result.title}
    if result.reason:
        return row | {"not_available": result.reason} | ({"traceback": result.traceback} if result.traceback else {})
    stages = {name: [times[name] for times in result.blocks] for name in STAGES}
    if result.decoding:
        stages["vae"] = result.decoding
    ms = {name: {"median": median(t), "p95": _p95(t), "fastest": min(t)} for name, t in stages.items()}
    with_vae = ms["block"]["median"] + ms["vae"]["median"] if "vae" in ms else None
    speed = result.flops / ms["block"]["median"] * 1000
    return row | {
        "timed_blocks": len(result.blocks),
        "ms_per_block": ms,
        "fps": 1000 * VIDEO_FRAMES / ms["block"]["median"],
        "fps_with_vae": 1000 * VIDEO_FRAMES / with_vae if with_vae else None,
        "tflops": speed / 1e12,
        "share_of_matmul": speed / matmul,
        "attention_backend": result.backend,
        "cache_handling_ms": result.handling,
        "cache_and_attention_ms": result.with_attention,
        "cache_formula_bytes": result.cache_formula_bytes,
        "cache_bytes": result.cache_bytes,
        "peak_bytes": result.peak_bytes,
        "difference_after_1_block": _difference(result, reference, 1),
        "difference_after_10_blocks": _difference(result, reference, 10),
        "warm_up_ms": [times["block"] for times in result.warm_up],
    }


def _p95(times: Sequence[float]) -> float:
    return float(torch.tensor(times, dtype=torch.float64).quantile(0.95))


def _difference(result: Measurement, reference: Measurement | None, blocks: int) -> float | None:
    if reference is None or len(reference.latents) < blocks:
        return None
    pairs = zip(result.latents[:blocks], reference.latents[:blocks], strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs)


def ratios(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """How many times as long every row takes as the fastest of ours, all of one run.

    By their fastest blocks, which a machine that does other things, too, disturbs least.
    """
    rows = [row for row in rows if "not_available" not in row]
    ours = [row for row in rows if row["row"].startswith("B")]
    if not ours:
        return {}
    best = min(ours, key=_block_ms)

    def beside(value: Callable[[dict[str, Any]], float]) -> dict[str, float]:
        return {row["row"]: value(row) / value(best) for row in rows}

    return {
        "compared_with": best["row"],
        "block": beside(_block_ms),
        "cache_handling": beside(lambda row: row["cache_handling_ms"]["total"]),
        "cache_and_attention": beside(lambda row: row["cache_and_attention_ms"]),
    }


def _block_ms(row: dict[str, Any]) -> float:
    return row["ms_per_block"]["block"]["fastest"]


def markdown(results: dict[str, Any]) -> str:
    """The page that people read."""
    rows = results["rows"]
    present = [row for row in rows if "not_available" not in row]
    parts = ["# Benchmark", facts(results)]
    if results["ratios"]:
        best = results["ratios"]["compared_with"]
        parts += [f"## Times as long as {best}, by the fastest blocks of this run", _ratio_table(results)]
    tables: tuple[tuple[str, list[str], Any, Any], ...] = (
        ("Steady state", TIMES, _time_row, rows),
        ("Memory, and the largest difference of latents to V1", MEMORY, _memory_row, present),
        ("The cache alone, without attention, ms per block", HANDLING, _handling_row, present),
        ("Warm-up, ms per block", ["row", "blocks", "first", "second", "last"], _warm_up_row, present),
    )
    for title, head, line, measured in tables:
        parts += [f"## {title}", table(head, map(line, measured))]
    return "\n\n".join(parts) + "\n"


def facts(results: dict[str, Any]) -> str:
    """What was measured, and on what."""
    case, where = results["case"], results["environment"]
    lines = [
        f"{case['width']}x{case['height']} ({case['frame_tokens']} tokens a frame), {case['layers']} layers of "
        f"{case['heads']} heads, random weights, {where['dtype']}, four denoising passes and a clean one per block.",
        f"{where['device']}, {where['threads']} thread(s), {where['clock']}, torch {where['torch']}, "
        f"CUDA {where['cuda']}, triton {where['triton']}.",
    ]
    if "matmul_tflops" in results:
        lines.append(f"A matrix product reaches {results['matmul_tflops']:.3g} TFLOP/s. VAE: {results['vae']}.")
    return "  \n".join(lines)


def _ratio_table(results: dict[str, Any]) -> str:
    titles = {row["row"]: row["title"] for row in results["rows"]}
    found = [results["ratios"][what] for what in ("block", "cache_and_attention", "cache_handling")]
    rows = [[name, titles[name], *(f"{ratio[name]:.2f}" for ratio in found)] for name in found[0]]
    return table(["row", "", "block", "self-attention with its cache", "the cache alone"], rows)


def _time_row(row: dict[str, Any]) -> list[str]:
    if "not_available" in row:
        return [row["row"], row["title"], f"not available: {row['not_available']}"]
    ms = {name: f"{times['median']:.4g}" for name, times in row["ms_per_block"].items()}
    return [
        row["row"], row["title"], ms["denoise"], ms["clean"], ms["cache"],
        f"{ms['block']} ({row['ms_per_block']['block']['p95']:.4g})", f"{row['fps']:.3g}", ms.get("vae", DASH),
        _number(row["fps_with_vae"]), f"{row['tflops']:.3g} ({row['share_of_matmul']:.0%})",
    ]  # fmt: skip


def _memory_row(row: dict[str, Any]) -> list[str]:
    sizes = [row["cache_formula_bytes"], row["cache_bytes"], row["peak_bytes"]]
    differences = [row["difference_after_1_block"], row["difference_after_10_blocks"]]
    return [row["row"], *(DASH if size is None else format_bytes(size) for size in sizes), *map(_number, differences)]


def _handling_row(row: dict[str, Any]) -> list[str]:
    steps = (f"{row['cache_handling_ms'][step]:.3g}" for step in STEPS)
    return [row["row"], *steps, f"{row['cache_and_attention_ms']:.4g}", row["attention_backend"]]


def _warm_up_row(row: dict[str, Any]) -> list[str]:
    ms = row["warm_up_ms"]
    return [row["row"], str(len(ms)), *(f"{ms[place]:.4g}" for place in (0, 1, -1))]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; short rows are filled up."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join([*line, *[""] * (len(head) - len(line))]) + " |" for line in lines)


def _number(value: float | None) -> str:
    return DASH if value is None else f"{value:.3g}"


def write(folder: Path, name: str, results: dict[str, Any], page: str) -> None:
    """Both files, replacing what an earlier row left."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    (folder / f"{name}.md").write_text(page, encoding="utf-8")
