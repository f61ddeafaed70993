"""Videos that a farm makes: the farm of a command, and the model that a worker keeps from one job
to the next.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from torch import Tensor
from tqdm import tqdm

from ..distributed.farm import Farm, Job, Outcome, Shared, Value
from ..distributed.ray_farm import farm_named
from ..render.result import RenderResult
from .source import Source
from .values import LastValue

_models = LastValue()


def farm_of(args: argparse.Namespace) -> Farm:
    """The farm that the arguments of `add_farm_arguments` name."""
    return farm_named(args.farm, args.farm_gpus, args.farm_workers)


def run_jobs(
    farm: Farm, function: Callable[[Job], Value], jobs: Mapping[str, Job], *, unit: str, quiet: bool
) -> Iterator[Outcome[Value]]:
    """The outcomes of jobs, with a bar if they are made at the same time; a job in this process has
    its own.
    """
    with tqdm(total=len(jobs), unit=unit, disable=quiet or not farm.parallel) as bar:
        for outcome in farm.run(function, jobs):
            yield outcome
            bar.set_postfix_str(outcome.name, refresh=False)
            bar.update()


def render_one(
    source: Source,
    embeds: Mapping[str, Shared[Tensor]],
    video: Path | None,
    latents: Path | None = None,
    *,
    encodes: bool = False,
    patience: float = 0.0,
) -> RenderResult:
    """Render one of many videos with the model of the last one, if it is the same; another is let
    go first.

    Args:
        encodes: whether a video of any of these jobs needs the VAE's encoder.
        patience: seconds to wait for another process that writes to the run folder.
    """
    machine = source.machine
    job = source.job(source.request.plan(), {text: embed() for text, embed in embeds.items()})
    job = job.with_request(patience=patience).with_found_roles()
    decodes = video is not None
    encodes = encodes or bool(job.plan.restart_frames)
    devices = (str(machine.device), str(machine.vae_device))
    key = (source.files, source.info.fingerprint, devices, machine.dtype, decodes, encodes)
    needs = source.check_needs(job.plan, video, loaded=_models.has(key))
    loaded = _models.get(key, lambda: source.load(decodes, encodes))
    loaded = replace(loaded, machine=machine, scale=source.scale)
    return loaded.render(job, needs, video, latents)
