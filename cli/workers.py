"""Many videos of one command: the workers that make them, and the model that a worker keeps from
one job to the next.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from ..headforcing_core.distributed.ray_farm import farm_named
from ..headforcing_core.distributed.workers import Job, Outcome, Shared, Value, Workers
from ..headforcing_core.render.measured_roles import with_found_roles
from ..headforcing_core.render.result import RenderResult
from .roles import with_roles
from .source import Source


class LastValue:
    """The last value that was made, under the key of what it was made from."""

    def __init__(self) -> None:
        self._key: Any = None
        self._value: Any = None

    def get(self, key: Any, make: Callable[[], Any]) -> Any:
        """The value of this key; makes it, after the last one is let go, if it is another."""
        if not self.has(key):
            self._value = make()
            self._key = key
        return self._value

    def has(self, key: Any) -> bool:
        """Whether the value is of this key; another one is let go, since two models may not fit
        into memory.
        """
        if key != self._key:
            self.drop()
        return self._key is not None

    def drop(self) -> None:
        """Let the value go."""
        self._key = None
        self._value = None


_models = LastValue()
Embeds = Mapping[str, Shared[Tensor]]
"""Text embeddings by text, as workers get them."""


def workers_of(args: Namespace) -> Workers:
    """The workers that the arguments of `FARM_OPTIONS` name."""
    return farm_named(args.farm, args.farm_gpus, args.farm_workers)


def run_jobs(
    workers: Workers,
    function: Callable[[Job], Value],
    jobs: Mapping[str, Job],
    *,
    unit: str,
    quiet: bool,
) -> Iterator[Outcome[Value]]:
    """The outcomes of jobs, with a bar if they are made at the same time; a job in this process has
    its own.
    """
    with tqdm(total=len(jobs), unit=unit, disable=quiet or not workers.parallel) as bar:
        for outcome in workers.run(function, jobs):
            yield outcome
            bar.set_postfix_str(outcome.name, refresh=False)
            bar.update()


def make_all(
    workers: Workers,
    function: Callable[[Job], Value],
    sources: Mapping[str, Source],
    job_of: Callable[[str, Embeds], Job],
    *,
    quiet: bool,
) -> Iterator[Outcome[Value]]:
    """Make the videos of these sources by name, and yield their outcomes as they come; `job_of`
    makes the job of a name and the embeddings of its texts."""
    if not sources:
        return
    encoded = _encode(sources.values())
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()  # workers on this machine need the room of the encoder
    with workers:
        shared = {}
        for encoder, embeds in encoded.items():
            shared[encoder] = {text: workers.share(embed) for text, embed in embeds.items()}
        del encoded
        jobs = {}
        for name, source in sources.items():
            known = shared[source.files.encoder]
            jobs[name] = job_of(name, {text: known[text] for text in source.request.timeline.texts})
        yield from run_jobs(workers, function, jobs, unit="video", quiet=quiet)


def _encode(sources: Iterable[Source]) -> dict[Any, dict[str, Tensor]]:
    """The embeddings of all texts, by text encoder and text; each text encoder is loaded once."""
    texts: dict[Any, dict[str, Source]] = {}
    for source in sources:
        known = texts.setdefault(source.files.encoder, {})
        known.update(dict.fromkeys(source.request.timeline.texts, source))
    encoded = {}
    for encoder, by_text in texts.items():
        embeds = next(iter(by_text.values())).encode(list(by_text))
        encoded[encoder] = {text: embed.cpu() for text, embed in embeds.items()}
    return encoded


def render_one(
    source: Source,
    embeds: Embeds,
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
    job = with_found_roles(job.with_request(patience=patience), source.roles_folders)
    decodes = video is not None
    encodes = encodes or job.plan.vae_use is not None
    devices = (str(machine.device), str(machine.vae_device))
    key = (source.files, source.info.fingerprint, devices, machine.dtype, decodes, encodes)
    needs = source.check_needs(job.plan, video, loaded=_models.has(key))
    loaded = _models.get(key, lambda: source.load(decodes, encodes))
    loaded = replace(loaded, machine=machine, scale=source.scale)
    job, about_roles = with_roles(job, loaded, needs, source.roles_folders)
    result = loaded.render(job, needs, video, latents)
    return replace(result, notes=[about_roles])
