"""Videos that a farm makes: the farm of a command, and the model that a worker keeps from one job to the next."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..distributed.farm import Farm
from ..distributed.ray_farm import farm_named
from ..errors import HeadForcingError
from ..render.job import RenderJob
from .loaded import LoadedModel
from .source import Source
from .values import Kept

PATIENCE_SECONDS = 120.0  # of a worker of a farm: a network disk may keep a dead machine's lock for so long

_models = Kept()


def farm_of(args: argparse.Namespace) -> Farm:
    """The farm that the arguments of `add_farm_arguments` name."""
    return farm_named(args.farm, args.farm_gpus, args.farm_workers)


def check_roles(videos: Mapping[str, tuple[RenderJob, Source]], farm: Farm) -> None:
    """Refuse videos at the same time that would each find head roles: one after the other all use the first's."""
    if not farm.parallel or len(videos) == 1:
        return
    for name, (job, source) in videos.items():
        if job.take_found_roles(source.plan).auto is not None and not job.finished_blocks:
            raise HeadForcingError(
                f"{name}: the roles of this model's heads are not known yet, and videos made at the same time would "
                "each find their own: make one video first, measure them with `headforcing profile`, or give a profile"
            )


def kept_model(source: Source, decodes: bool = True, encodes: bool = False) -> LoadedModel:
    """The model of a source as `Source.load` loads it, or the one that is there from the last job."""
    loaded = _models.get(_key(source, decodes, encodes), lambda: source.load(decodes, encodes))
    return replace(loaded, machine=source.machine, scale=source.scale)


def has_model(source: Source, decodes: bool = True, encodes: bool = False) -> bool:
    """Whether `kept_model` has it already; another model is let go, so that its memory is free."""
    return _models.has(_key(source, decodes, encodes))


def _key(source: Source, decodes: bool, encodes: bool) -> Any:
    machine = source.machine
    devices = str(machine.device), str(machine.vae_device)
    return source.files, source.info.fingerprint, devices, machine.dtype, decodes, encodes
