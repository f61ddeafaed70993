"""Measurements as numbers to compare: one JSON object and one Markdown page."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from headforcing.headforcing_core.render.describe import format_bytes
from torch import Tensor

STEPS = ("open", "write", "attend", "commit", "total")
DASH = "–"

Measured = dict[str, Any]
Columns = Mapping[str, Callable[[Measured], str]]


# ---------------------------------------------------------------------------------------------------- rows


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
    latents = row.pop("latents")
    differences = [float((found - expected).abs().max()) for found, expected in zip(latents, reference, strict=False)]
    for blocks in (1, 10):
        plural = "blocks" if blocks > 1 else "block"
        enough = len(differences) >= blocks
        row[f"difference_after_{blocks}_{plural}"] = max(differences[:blocks]) if enough else None
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


# ---------------------------------------------------------------------------------------------------- pages


def _number(key: str) -> Callable[[Measured], str]:
    return lambda row: DASH if row[key] is None else f"{row[key]:.3g}"


def _bytes(key: str) -> Callable[[Measured], str]:
    return lambda row: DASH if row[key] is None else format_bytes(row[key])


def _ms(stage: str) -> Callable[[Measured], str]:
    return lambda row: f"{row['ms_per_block'][stage]['median']:.4g}" if stage in row["ms_per_block"] else DASH


def _step(step: str) -> Callable[[Measured], str]:
    return lambda row: f"{row['cache_handling_ms'][step]:.3g}"


NAME: Columns = {"row": lambda row: row["row"]}
TITLE: Columns = {"": lambda row: row["title"]}
TABLES: dict[str, Columns] = {
    "Steady state": {
        **NAME,
        **TITLE,
        "denoise ms": _ms("denoise"),
        "clean ms": _ms("clean"),
        "cache update ms": _ms("cache"),
        "block ms (p95)": lambda row: f"{_ms('block')(row)} ({row['ms_per_block']['block']['p95']:.4g})",
        "FPS": _number("fps"),
        "VAE ms": _ms("vae"),
        "FPS with VAE": _number("fps_with_vae"),
        "TFLOP/s (of matmul)": lambda row: f"{row['tflops']:.3g} ({row['share_of_matmul']:.0%})",
    },
    "Memory, and the largest difference of latents to V1": {
        **NAME,
        "cache by formula": _bytes("cache_formula_bytes"),
        "cache measured": _bytes("cache_bytes"),
        "peak memory": _bytes("peak_bytes"),
        "difference after 1 block": _number("difference_after_1_block"),
        "after 10 blocks": _number("difference_after_10_blocks"),
    },
    "The cache alone, without attention, ms per block": {
        **NAME,
        **{step: _step(step) for step in STEPS},
        "with attention": lambda row: f"{row['cache_and_attention_ms']:.4g}",
        "attention": lambda row: row["attention_backend"],
    },
    "Warm-up, ms per block": {
        **NAME,
        "blocks": lambda row: str(len(row["warm_up_ms"])),
        "first": lambda row: f"{row['warm_up_ms'][0]:.4g}",
        "second": lambda row: f"{row['warm_up_ms'][1]:.4g}",
        "last": lambda row: f"{row['warm_up_ms'][-1]:.4g}",
    },
}


def page(results: Measured) -> str:
    """The page that people read: of rows, or of what a block costs as something grows."""
    return _rows_page(results) if "rows" in results else _tables_page(results)


def _rows_page(results: Measured) -> str:
    rows, beside = results["rows"], results["ratios"]
    parts = ["# Benchmark", _facts(results)]
    if beside:
        ratio = {
            **NAME,
            **TITLE,
            "block": lambda row: f"{beside['block'][row['row']]:.2f}",
            "self-attention with its cache": lambda row: f"{beside['cache_and_attention'][row['row']]:.2f}",
            "the cache alone": lambda row: f"{beside['cache_handling'][row['row']]:.2f}",
        }
        title = f"Times as long as {beside['compared_with']}, by the fastest blocks of this run"
        parts += [f"## {title}", _table(ratio, [row for row in rows if row["row"] in beside["block"]])]
    present = [row for row in rows if "not_available" not in row]
    for title, columns in TABLES.items():
        parts += [f"## {title}", _table(columns, rows if title == "Steady state" else present)]
    return "\n\n".join(parts) + "\n"


def _tables_page(results: Measured) -> str:
    """Every line beside the first of its table, by the fastest blocks: other work on a machine disturbs them least."""
    parts = ["# Scaling", _facts(results)]
    for name, lines in results["tasks"].items():
        first, head = lines[0], ["", "ms per block", "fastest block", "beside the first", "cache", "beside the first"]
        cells = [
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
        parts += [f"## {name}", table(head, cells)]
    return "\n\n".join(parts) + "\n"


def _facts(results: Measured) -> str:
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


def _table(columns: Columns, rows: Iterable[Measured]) -> str:
    cells = []
    for row in rows:
        if "not_available" in row:
            cells.append([row["row"], row["title"], f"not available: {row['not_available']}"])
        else:
            cells.append([column(row) for column in columns.values()])
    return table(list(columns), cells)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; short rows are filled up."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join([*line, *[""] * (len(head) - len(line))]) + " |" for line in lines)


def write(folder: Path, name: str, results: Measured) -> None:
    """The numbers, and their page where they have one, in place of what an earlier measurement left."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if "rows" in results or results.get("part") == "scaling":
        (folder / f"{name}.md").write_text(page(results), encoding="utf-8")
