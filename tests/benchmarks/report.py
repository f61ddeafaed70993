"""Measurements as numbers to compare: one JSON object and one Markdown page, whose columns are keys
of the JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from headforcing.headforcing_core.plan.describe import format_bytes
from torch import Tensor

Measured = dict[str, Any]

# by their fastest blocks, which a machine that does other things, too, disturbs least
TIMES = {
    "times_block": "fastest_ms",
    "times_with_attention": "with_attention_ms",
    "times_cache_alone": "alone_ms",
}
STEADY = (
    "row title denoise_ms clean_ms cache_ms block_ms p95_ms fps vae_ms fps_with_vae tflops "
    "of_matmul"
)
MEMORY = (
    "row cache_by_formula_bytes cache_bytes peak_bytes difference_after_1_block "
    "difference_after_10_blocks"
)
ALONE = "row open_ms write_ms attend_ms commit_ms alone_ms with_attention_ms attention"
SCALING = "what block_ms fastest_ms times_as_long cache_bytes times_as_large"


def better(a: Measured, b: Measured) -> Measured:
    """Of two repetitions of a row the one with the fastest block."""
    return (
        a
        if "not_available" in a or "not_available" in b
        else min(a, b, key=lambda row: row["fastest_ms"])
    )


def compared(row: Measured, matmul_tflops: float, reference: Sequence[Tensor]) -> Measured:
    """A row beside a matrix product and, in place of its latents, their difference from those of
    `reference`.
    """
    if "not_available" in row:
        return row
    row = dict(row)
    pairs = zip(row.pop("latents"), reference, strict=False)
    apart = [float((found - expected).abs().max()) for found, expected in pairs]
    for blocks, key in ((1, "difference_after_1_block"), (10, "difference_after_10_blocks")):
        row[key] = max(apart[:blocks]) if len(apart) >= blocks else None
    return row | {"of_matmul": row["tflops"] / matmul_tflops}


def with_times(rows: Sequence[Measured]) -> list[Measured]:
    """The rows, and how many times as long each takes as the fastest of ours, all of one run."""
    ours = [row for row in rows if row["row"].startswith("B") and "not_available" not in row]
    if not ours:
        return list(rows)
    best = min(ours, key=lambda row: row["fastest_ms"])
    found = []
    for row in rows:
        times = {name: row[key] / best[key] for name, key in TIMES.items() if key in row}
        found.append(row | times)
    return found


def page(results: Measured) -> str:
    """The page that people read: of rows, or of what a block costs as something grows."""
    case = results["case"]
    where = results["environment"]
    of_rows = "rows" in results
    facts = [
        f"{case['width']}x{case['height']} ({case['frame_tokens']} tokens a frame), "
        f"{case['layers']} layers of {case['heads']} heads, random weights, {where['dtype']}, four "
        "denoising passes and a clean one per block.",
        f"{where['device']}, {where['threads']} thread(s), {where['clock']}, torch "
        f"{where['torch']}, CUDA {where['cuda']}, triton {where['triton']}.",
    ]
    if of_rows:
        facts.append(
            f"A matrix product reaches {results['matmul_tflops']:.3g} TFLOP/s. VAE: "
            f"{results['vae']}."
        )
    parts = ["# Benchmark" if of_rows else "# Scaling", "  \n".join(facts)]
    for title, keys, lines in (
        _of_rows(results["rows"]) if of_rows else _of_scaling(results["tasks"])
    ):
        parts += [f"## {title}", table(keys, lines)]
    return "\n\n".join(parts) + "\n"


def _of_rows(rows: list[Measured]) -> Iterator[tuple[str, str, list[Measured]]]:
    present = [row for row in rows if "not_available" not in row]
    for best in (
        row["row"] for row in present if row["row"].startswith("B") and row["times_block"] == 1
    ):
        title = f"Times as long as {best}, by the fastest blocks of this run"
        yield title, " ".join(["row title", *TIMES]), present
    yield "Steady state", STEADY, rows
    yield "Memory, and the largest difference of latents to V1", MEMORY, present
    yield "The cache alone, without attention", ALONE, present


def _of_scaling(tasks: Measured) -> Iterator[tuple[str, str, list[Measured]]]:
    for name, lines in tasks.items():
        if isinstance(lines, list):  # else why there are none
            grows = {"times_as_long": "fastest_ms", "times_as_large": "cache_bytes"}
            rows = []
            for line in lines:
                rows.append(line | {to: line[key] / lines[0][key] for to, key in grows.items()})
            yield name, SCALING, rows


def table(keys: str, lines: Iterable[Measured]) -> str:
    """A Markdown table, with a dash for what is missing."""
    columns = keys.split()
    rows = [
        [key.removesuffix("_bytes").replace("_", " ") for key in columns],
        ["---"] * len(columns),
    ]
    for line in lines:
        cells = [_written(key, line.get(key)) for key in columns]
        if "not_available" in line:
            cells[2:] = [f"not available: {line['not_available']}", *[""] * (len(columns) - 3)]
        rows.append(cells)
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _written(key: str, value: Any) -> str:
    if value is None:
        return "–"
    if key.endswith("_bytes"):
        return format_bytes(value)
    return (
        value
        if isinstance(value, str)
        else f"{value:.2f}"
        if key.startswith("times_")
        else f"{value:.4g}"
    )


def write(folder: Path, name: str, results: Measured) -> None:
    """The numbers, and their page where they have one, in place of what an earlier measurement
    left.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if "rows" in results or name == "scaling":
        (folder / f"{name}.md").write_text(page(results), encoding="utf-8")
