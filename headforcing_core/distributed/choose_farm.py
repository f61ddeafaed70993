"""The choice of a command's farm."""

from __future__ import annotations

import importlib.util
import logging
import re

from ..errors import HeadForcingError
from .farm import Farm
from .ray_farm import INSTALL, LOCAL, RayFarm

log = logging.getLogger(__name__)


def farm_named(name: str | None, gpus: float | None = None, workers: int | None = None) -> Farm:
    """The farm of `--farm`: None is this process alone; else as for `RayFarm`.

    Without Ray `local` is this process, too, and says so; a cluster cannot be reached without it.
    """
    if name is None:
        if gpus is not None or workers is not None:
            raise HeadForcingError("--farm-gpus and --farm-workers go with --farm: add --farm local")
        return Farm()
    if name not in (LOCAL, "auto") and not re.fullmatch(r"ray://[^\s/]+:\d{1,5}", name):
        raise HeadForcingError(f"--farm must be local, auto or ray://HOST:PORT, got {name!r}")
    if gpus is not None and not 0 <= gpus <= 64:
        raise HeadForcingError(f"--farm-gpus must be from 0 to 64, got {gpus}")
    if workers is not None and not 1 <= workers <= 1024:
        raise HeadForcingError(f"--farm-workers must be from 1 to 1024, got {workers}")
    if workers is not None and name != LOCAL:
        raise HeadForcingError("--farm-workers goes with --farm local: a cluster knows its own size")
    if importlib.util.find_spec("ray") is not None:
        return RayFarm(name, gpus, workers)
    if name != LOCAL:
        raise HeadForcingError(f"--farm {name} needs Ray, which is not installed: {INSTALL}")
    log.warning("Head Forcing: Ray is not installed (%s), so everything is made one after the other", INSTALL)
    return Farm()
