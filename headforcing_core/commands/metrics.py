"""The arguments of metrics with models of their own."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..errors import HeadForcingError
from ..report.learned.base import Panel
from ..report.learned.registry import load_panel
from .values import Kept, pick_device

_panels = Kept()


def panel_of(args: argparse.Namespace, device_name: str | None = None) -> Panel | None:
    """The metrics that the arguments ask for, loaded once in a process; None if they ask for none.

    `device_name` replaces that of the arguments.
    """
    given = vars(args)
    folder: Path | None = given.get("metric_models")
    if folder is None:
        for name in ("metrics", "aesthetic_head"):
            if given.get(name):
                raise HeadForcingError(f"--{name.replace('_', '-')} needs --metric-models FOLDER")
        return None
    if not folder.is_dir():
        raise HeadForcingError(f"--metric-models must name a folder, got {str(folder)!r}")
    device = pick_device(device_name or args.metric_device, "--metric-device")
    chosen = folder, args.metrics, device, args.aesthetic_head
    return _panels.get((folder.absolute(), *map(str, chosen)), lambda: load_panel(*chosen))
