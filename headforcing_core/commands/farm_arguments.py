"""The arguments of commands whose videos may be made at the same time, see `distributed/farm.py`."""

from __future__ import annotations

import argparse

from ..distributed.choose_farm import farm_named
from ..distributed.farm import Farm


def add_farm_arguments(sub: argparse.ArgumentParser) -> None:
    """Add the arguments of a farm."""
    sub.add_argument(
        "--farm",
        help="make videos at the same time with Ray: local starts it on this machine, auto finds the cluster that this "
        "machine belongs to, ray://HOST:PORT reaches another; all machines need the same files at the same paths",
    )
    sub.add_argument(
        "--farm-gpus", type=float, help="GPUs for each video, 0.5 for two videos on one; default: 1 if there are any"
    )
    sub.add_argument(
        "--farm-workers", type=int, help="with --farm local: videos at a time; default: one for each GPU, or core"
    )


def farm_of(args: argparse.Namespace) -> Farm:
    """The farm that the arguments of `add_farm_arguments` name."""
    return farm_named(args.farm, args.farm_gpus, args.farm_workers)
