"""The head profiles that are bundled with the pack."""

from __future__ import annotations

from pathlib import Path

BUNDLED_FOLDER = Path(__file__).parents[2] / "profiles"


def bundled_profiles() -> dict[str, Path]:
    """Paths of the profiles bundled with the pack, by name."""
    return {path.stem: path for path in sorted(BUNDLED_FOLDER.glob("*.json"))}
