"""Clips and numbers of ID-Forcing's own scripts, a video that turns and stops, and a scene that
changes.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

Recording = tuple[dict[str, Any], dict[str, np.ndarray]]


def recordings(repo_root: Path, shared_dir: Path | None) -> list[Recording]:
    """Settings and tensors of the clips in the repository and, if they lie beside it, of all of
    them.
    """
    found = []
    for place in (repo_root / "tests", shared_dir):
        if place is not None:
            folder = place / "golden" / "metrics_id_forcing"
            found.append(
                (
                    json.loads((folder / "config.json").read_text()),
                    load_file(folder / "golden.safetensors"),
                )
            )
    return found


def turning_red_to_green() -> np.ndarray:
    """Ten seconds at 16 frames a second; after five the colour changes and the motion stops."""
    frames = np.zeros((160, 16, 24, 3), np.uint8)
    for i in range(160):
        frames[i, :, :, 0 if i < 80 else 1] = 200
        frames[i, :, : 1 + min(i, 80) % 20] = 40 * (min(i, 80) % 3)
    return frames


def scene(i: int) -> np.ndarray:
    """A square going round, on a floor whose colour changes at frames 81 and 165, `[64, 96, 3]`."""
    picture = np.zeros((64, 96, 3), np.uint8)
    picture[:] = ((200, 40, 40), (40, 40, 120), (30, 160, 90))[(i >= 81) + (i >= 165)]
    x = int(40 + 30 * np.cos(i / 64 * 2 * np.pi))
    y = int(24 + 16 * np.sin(i / 64 * 2 * np.pi))
    picture[y : y + 14, x : x + 14] = 240
    return picture
