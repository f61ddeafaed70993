"""Measurements as numbers to compare: one JSON object and one Markdown page."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from headforcing.headforcing_core.render.describe import format_bytes
from torch import Tensor

Measured = dict[str, Any]
Column = tuple[str, str, Callable[[Any], str]]  # its head, where its value lies in a line, and how that is written

MS, NUMBER, RATIO = "{:.4g}".format, "{:.3g}".format, "{:.2f}".format
ROW: list[Column] = [("row", "row", str)]
TITLED: list[Column] = [*ROW, ("", "title", str)]
RATIOS: list[Column] = [
    *TITLED,
    ("block", "ratio/block", RATIO),
    ("self-attention with its cache", "ratio/cache_and_attention", RATIO),
    ("the cache alone", "ratio/cache_handling", RATIO),
]
STEADY: list[Column] = [
    *TITLED,
    ("denoise ms", "ms_per_block/denoise/median", MS),
    ("clean ms", "ms_per_block/clean/median", MS),
    ("cache update ms", "ms_per_block/cache/median", MS),
    ("block ms", "ms_per_block/block/median", MS),
    ("p95", "ms_per_block/block/p95", MS),
    ("FPS", "fps", NUMBER),
    ("VAE ms", "ms_per_block/vae/median", MS),
    ("FPS with VAE", "fps_with_vae", NUMBER),
    ("TFLOP/s", "tflops", NUMBER),
    ("of matmul", "share_of_matmul", "{:.0%}".format),
]
OTHER_TABLES: dict[str, list[Column]] = {
    "Memory, and the largest difference of latents to V1": [
        *ROW,
        ("cache by formula", "cache_formula_bytes", format_bytes),
        ("cache measured", "cache_bytes", format_bytes),
        ("peak memory", "peak_bytes", format_bytes),
        ("difference after 1 block", "difference_after_1_block", NUMBER),
        ("after 10 blocks", "difference_after_10_blocks", NUMBER),
    ],
    "The cache alone, without attention, ms per block": [
        *ROW,
        *((step, f"cache_handling_ms/{step}", NUMBER) for step in ("open", "write", "attend", "commit", "total")),
        ("with attention", "cache_and_attention_ms", MS),
        ("attention", "attention_backend", str),
    ],
    "Warm-up, ms per block": [
        *ROW,
        ("blocks", "warm_up_ms", lambda times: str(len(times))),
        *((name, f"warm_up_ms/{place}", MS) for name, place in (("first", 0), ("second", 1), ("last", -1))),
    ],
}
LINES: list[Column] = [
    ("", "what", str),
    ("ms per block", "ms_per_block", MS),
    ("fastest block", "fastest_ms", MS),
    ("beside the first", "ratio/fastest_ms", RATIO),
    ("cache", "cache_bytes", format_bytes),
    ("beside the first", "ratio/cache_bytes", RATIO),
]


def block_ms(row: Measured) -> float:
    """Milliseconds of a row's fastest block."""
    return row["ms_per_block"]["block"]["fastest"]


def better(a: Measured, b: Measured) -> Measured:
    """Of two repetitions of a row the one with the fastest block, and the fastest of the cache alone."""
    if "not_available" in a or "not_available" in b:
        return a
    handling = min(a["cache_handling_ms"], b["cache_handling_ms"], key=lambda steps: steps["total"])
    with_attention = min(a["cache_and_attention_ms"], b["cache_and_attention_ms"])
    return min(a, b, key=block_ms) | {"cache_handling_ms": handling, "cache_and_attention_ms": with_attention}


def compared(row: Measured, matmul_tflops: float, reference: Sequence[Tensor]) -> Measured:
    """A row beside a matrix product and, in place of its latents, their difference from those of `reference`."""
    if "not_available" in row:
        return row
    row = dict(row)
    pairs = zip(row.pop("latents"), reference, strict=False)
    apart = [float((found - expected).abs().max()) for found, expected in pairs]
    for blocks, key in ((1, "difference_after_1_block"), (10, "difference_after_10_blocks")):
        row[key] = max(apart[:blocks]) if len(apart) >= blocks else None
    return row | {"share_of_matmul": row["tflops"] / matmul_tflops}


def ratios(rows: Iterable[Measured]) -> dict[str, Any]:
    """How many times as long every row takes as the fastest of ours, all of one run.

    By their fastest blocks, which a machine that does other things, too, disturbs least.
    """
    rows = [row for row in rows if "not_available" not in row]
    ours = [row for row in rows if row["row"].startswith("B")]
    if not ours:
        return {}
    best = min(ours, key=block_ms)

    def beside(value: Callable[[Measured], float]) -> dict[str, float]:
        return {row["row"]: value(row) / value(best) for row in rows}

    return {
        "compared_with": best["row"],
        "block": beside(block_ms),
        "cache_handling": beside(lambda row: row["cache_handling_ms"]["total"]),
        "cache_and_attention": beside(lambda row: row["cache_and_attention_ms"]),
    }


def page(results: Measured) -> str:
    """The page that people read: of rows, or of what a block costs as something grows."""
    case, where = results["case"], results["environment"]
    facts = [
        f"{case['width']}x{case['height']} ({case['frame_tokens']} tokens a frame), {case['layers']} layers of "
        f"{case['heads']} heads, random weights, {where['dtype']}, four denoising passes and a clean one per block.",
        f"{where['device']}, {where['threads']} thread(s), {where['clock']}, torch {where['torch']}, "
        f"CUDA {where['cuda']}, triton {where['triton']}.",
    ]
    if "rows" in results:
        facts.append(f"A matrix product reaches {results['matmul_tflops']:.3g} TFLOP/s. VAE: {results['vae']}.")
    parts = ["# Benchmark" if "rows" in results else "# Scaling", "  \n".join(facts)]
    for title, columns, lines in _tables(results):
        parts += [f"## {title}", table(columns, lines)]
    return "\n\n".join(parts) + "\n"


def _tables(results: Measured) -> Iterable[tuple[str, list[Column], list[Measured]]]:
    for name, lines in results.get("tasks", {}).items():
        # by the fastest blocks: other work on a machine disturbs them least
        yield name, LINES, [line | {"ratio": {key: line[key] / lines[0][key] for key in _GROWS}} for line in lines]
    if "rows" not in results:
        return
    beside, present = dict(results["ratios"]), [row for row in results["rows"] if "not_available" not in row]
    if beside:
        title = f"Times as long as {beside.pop('compared_with')}, by the fastest blocks of this run"
        yield title, RATIOS, [row | {"ratio": {key: beside[key][row["row"]] for key in beside}} for row in present]
    yield "Steady state", STEADY, results["rows"]
    for title, columns in OTHER_TABLES.items():
        yield title, columns, present


_GROWS = ("fastest_ms", "cache_bytes")


def table(columns: Sequence[Column], lines: Iterable[Measured]) -> str:
    """A Markdown table, with a dash for what is missing."""
    rows = [[head for head, _, _ in columns], ["---"] * len(columns)]
    for line in lines:
        cells = [_cell(line, *column) for column in columns]
        if "not_available" in line:
            cells[2:] = [f"not available: {line['not_available']}", *[""] * (len(columns) - 3)]
        rows.append(cells)
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cell(line: Any, head: str, place: str, written: Callable[[Any], str]) -> str:
    for key in place.split("/"):
        if isinstance(line, list):
            line = line[int(key)]
        else:
            line = None if line is None else line.get(key)
    return "–" if line is None else written(line)


def write(folder: Path, name: str, results: Measured) -> None:
    """The numbers, and their page where they have one, in place of what an earlier measurement left."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if "rows" in results or name == "scaling":
        (folder / f"{name}.md").write_text(page(results), encoding="utf-8")
