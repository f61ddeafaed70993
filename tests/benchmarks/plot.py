"""The rows of a benchmark as bars, an SVG file: `python tests/benchmarks/plot.py RESULTS.json`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

WIDTH, BAR, GAP, LEFT, RIGHT = 760, 20, 8, 280, 70
PARTS = (("denoise", "#4f7cac"), ("clean", "#90b4ce"), ("cache", "#e07a5f"), ("vae", "#c9c9c9"))


def svg(results: dict[str, Any]) -> str:
    """Milliseconds of a block by stage, one bar for every row that was measured."""
    rows = [row for row in results["rows"] if "ms_per_block" in row]
    longest = max((_total(row) for row in rows), default=1.0)
    scale = (WIDTH - LEFT - RIGHT) / longest
    where = results["environment"]
    lines = [_text(LEFT, 18, f"ms per block of 12 video frames, {where['device']}, {where['dtype']}")]
    for place, row in enumerate(rows):
        top, x = 32 + place * (BAR + GAP), float(LEFT)
        lines.append(_text(LEFT - 8, top + BAR - 5, f"{row['row']}  {row['title']}", "end"))
        for stage, colour in PARTS:
            if stage in row["ms_per_block"]:
                length = row["ms_per_block"][stage]["median"] * scale
                lines.append(f'<rect x="{x:.1f}" y="{top}" width="{length:.1f}" height="{BAR}" fill="{colour}"/>')
                x += length
        lines.append(_text(x + 6, top + BAR - 5, f"{_total(row):.4g}"))
    height = 32 + len(rows) * (BAR + GAP) + 26
    x = LEFT
    for stage, colour in PARTS:
        lines += [
            f'<rect x="{x}" y="{height - 20}" width="12" height="12" fill="{colour}"/>',
            _text(x + 16, height - 10, stage),
        ]
        x += 90
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" font-family="sans-serif"'
    return "\n".join(
        [f'{head} font-size="12">', '<rect width="100%" height="100%" fill="white"/>', *lines, "</svg>", ""]
    )


def _total(row: dict[str, Any]) -> float:
    return sum(row["ms_per_block"][stage]["median"] for stage, _ in PARTS if stage in row["ms_per_block"])


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'


def main(arguments: Sequence[str]) -> None:
    """Write the plot beside the results."""
    for name in arguments:
        path = Path(name)
        path.with_suffix(".svg").write_text(svg(json.loads(path.read_text(encoding="utf-8"))), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
