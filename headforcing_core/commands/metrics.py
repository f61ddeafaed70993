"""The arguments of metrics with models of their own."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from ..errors import HeadForcingError
from ..report.learned.base import Panel
from ..report.learned.registry import METRICS, load_panel
from .arguments import pick_device
from .kept import Kept
from .paths import READ, folder_read

_panels = Kept()


def add_metric_arguments(sub: argparse.ArgumentParser) -> None:
    """Add the arguments of metrics that have models of their own."""
    sub.add_argument(
        "--metric-models",
        type=folder_read("*", "*/*"),
        metavar="FOLDER",
        help="models of further metrics, see docs/metrics.md; nothing is downloaded (extra `metrics`)",
    )
    sub.add_argument(
        "--metrics",
        nargs="+",
        choices=METRICS,
        default=(),
        metavar="METRIC",
        help=f"which of them: {', '.join(METRICS)} (those that have their files in the folder)",
    )
    sub.add_argument("--aesthetic-head", type=READ, metavar="FILE", help="LAION's linear head, if not in the folder")
    sub.add_argument("--metric-device", default="auto", help="where they run: auto, cpu, cuda, mps (auto)")


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
    key = folder.absolute(), tuple(args.metrics), device, args.aesthetic_head
    return _panels.get(key, lambda: _load(args, device))


def _load(args: argparse.Namespace, device: torch.device) -> Panel:
    return load_panel(args.metric_models, args.metrics, device, args.aesthetic_head)
