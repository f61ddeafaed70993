"""Videos that a farm makes: the farm of a command, and the model that a worker keeps from one job to the next."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from torch import Tensor

from ..distributed.farm import Farm, Shared
from ..distributed.ray_farm import farm_named
from ..errors import HeadForcingError
from ..render.plan import RenderPlan
from ..render.request import RenderJob
from ..render.result import RenderResult
from .source import Source
from .values import Kept

PATIENCE_SECONDS = 120.0  # of a worker of a farm: a network disk may keep a dead machine's lock for so long

_models = Kept()


def farm_of(args: argparse.Namespace) -> Farm:
    """The farm that the arguments of `add_farm_arguments` name."""
    return farm_named(args.farm, args.farm_gpus, args.farm_workers)


def check_roles(jobs: Mapping[str, RenderJob], farm: Farm) -> None:
    """Refuse videos at the same time that would each find head roles: one after the other all use the first's."""
    if not farm.parallel or len(jobs) == 1:
        return
    for name, job in jobs.items():
        if job.with_found_roles().plan.auto is not None and not job.finished_blocks:
            raise HeadForcingError(
                f"{name}: the roles of this model's heads are not known yet, and videos made at the same time would "
                "each find their own: make one video first, measure them with `headforcing profile`, or give a profile"
            )


def render_one(
    source: Source,
    plan: RenderPlan,
    embeds: Mapping[str, Shared[Tensor]],
    video: Path | None,
    latents: Path | None = None,
    *,
    encodes: bool = False,
    patience: float = 0.0,
) -> tuple[RenderJob, RenderResult]:
    """Render one of many videos with the model of the last one, if it is the same; another is let go first.

    Args:
        encodes: whether a video of any of these jobs needs the VAE's encoder.
        patience: seconds to wait for another process that writes to the run folder.
    """
    read = {text: embed() for text, embed in embeds.items()}
    job = source.job(plan, read).with_request(patience=patience).with_found_roles()
    decodes, encodes, machine = video is not None, encodes or bool(job.plan.restart_frames), source.machine
    devices = str(machine.device), str(machine.vae_device)
    key = source.files, source.info.fingerprint, devices, machine.dtype, decodes, encodes
    source.check_needs(job.plan, video, loaded=_models.has(key))
    loaded = replace(_models.get(key, lambda: source.load(decodes, encodes)), machine=machine, scale=source.scale)
    return job, loaded.render(job, video, latents)
