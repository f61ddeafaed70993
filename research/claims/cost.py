"""Cost of `check-claim`, estimated before it begins from a few seconds of video that are made and scored."""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ...headforcing_core.commands.arguments import changed
from ...headforcing_core.commands.compared_video import (
    ComparedJob,
    ComparedVideo,
    compared_source,
    planned_video,
    render_compared,
)
from ...headforcing_core.commands.farm_arguments import farm_of
from ...headforcing_core.commands.kept import kept_model, let_go
from ...headforcing_core.commands.metrics import panel_of
from ...headforcing_core.distributed.farm import Farm
from ...headforcing_core.files import replacing
from ...headforcing_core.render.resources import Needs
from ..videos import ScoredVideo

CALIBRATION_SECONDS = 81 / 16  # 21 latent frames: at its end the longest window is full


def calibrate(args: argparse.Namespace, videos: Sequence[ScoredVideo], metrics: Iterable[str], farm: Farm) -> float:
    """Seconds that a second of video takes, made and scored by a worker; kept in `calibration.json`.

    The row with the largest cache is made, from an empty prompt. What is done only once, such as compiling a kernel,
    counts, too.
    """
    largest = max(videos, key=lambda each: each.video.plan.shape.frame_slots)
    made_from = {"row": largest.video.entry.key, "metrics": sorted(metrics), "where": _where(args, farm)}
    made_from |= {k: v for k, v in largest.made_from.items() if k in ("weights", "vae", "width", "height", "dtype")}
    path: Path = args.out / "calibration.json"
    try:
        stored = json.loads(path.read_text("utf-8"))
        if stored["made_from"] == made_from and float(stored["seconds"]) > 0:
            return float(stored["seconds"]) / CALIBRATION_SECONDS
    except (OSError, ValueError, KeyError, TypeError):
        pass
    with farm:
        job = _job(args, largest, farm)
        (outcome,) = farm.run(timed, {"calibration": job})
        seconds = outcome.get()
    let_go()  # text encoder and profiler need the room
    shutil.rmtree(args.out / "calibration", ignore_errors=True)
    with replacing(path) as temporary:
        temporary.write_text(json.dumps({"made_from": made_from, "seconds": seconds}, indent=1), encoding="utf-8")
    return seconds / CALIBRATION_SECONDS


def _job(args: argparse.Namespace, largest: ScoredVideo, farm: Farm) -> ComparedJob:
    folder = args.out / "calibration"
    args = changed(args, prompts="calibration", seconds=CALIBRATION_SECONDS, out=folder, runs=None)
    video = ComparedVideo.of(compared_source(args), largest.video.entry, args.seed, folder)
    embed = farm.share(torch.zeros(1, video.source.info.config.text_dim))
    return video.job(args, [embed], farm)


def timed(job: ComparedJob) -> float:
    """Seconds that a job takes when model and metrics are loaded; to be called in any process."""
    video = planned_video(job)
    kept_model(video.source, encodes=job.encodes)
    panel_of(job.args)
    begun = time.monotonic()
    render_compared(job)
    return time.monotonic() - begun


def _where(args: argparse.Namespace, farm: Farm) -> str:
    if farm.parallel:
        return f"one worker of the farm {args.farm}"
    return f"this machine, {device_name(args)}"


def device_name(args: argparse.Namespace) -> str:
    """The name of the device that makes the videos."""
    if args.device.startswith("cuda") or (args.device == "auto" and torch.cuda.is_available()):
        return torch.cuda.get_device_name(None if args.device == "auto" else args.device)
    return "processor" if args.device in ("auto", "cpu") else str(args.device)


@dataclass(frozen=True)
class Cost:
    """The estimate.

    Attributes:
        rate: seconds that a second of video takes; 0 if no video is to be made.
        profile_seconds: of video that the head profile is measured on; 0 if it is there.
        unmade: videos that are not made yet, each with so many `seconds`.
        unscored: videos that are made and only scored.
        needs: memory of the largest row, and disk of all; None if all videos are made.
        parallel: whether a farm makes several at a time.
    """

    rate: float
    profile_seconds: float
    unmade: int
    unscored: int
    seconds: float
    needs: Needs | None
    where: str
    parallel: bool

    @property
    def hours(self) -> float:
        """Hours of all, one after the other. Scoring alone is less than making and scoring, for which it is taken."""
        return self.rate * (self.profile_seconds + (self.unmade + self.unscored) * self.seconds) / 3600

    @classmethod
    def of(
        cls,
        args: argparse.Namespace,
        rate: float,
        profile_seconds: float,
        counts: tuple[int, int],
        needs: Needs | None,
    ) -> Cost:
        farm = farm_of(args)
        return cls(rate, profile_seconds, *counts, args.seconds, needs, _where(args, farm), farm.parallel)

    def text(self) -> str:
        """Lines for people."""
        if not self.unmade + self.unscored:
            return "all videos are made and scored"
        if not self.rate:
            return f"scores   {self.unscored} finished videos, nothing else is to be done"
        profile, videos = (self.rate * s / 3600 for s in (self.profile_seconds, self.unmade * self.seconds))
        lines = [
            f"estimate, from {CALIBRATION_SECONDS:.1f} s of video made and scored by {self.where}: "
            f"{self.rate:.3g} s for a second of video (of the row with the largest cache: others take less)"
        ]
        if self.profile_seconds:
            lines.append(f"profile  {self.profile_seconds:g} s of video: at most {_time(profile)}")
        lines.append(f"videos   {self.unmade} of {self.seconds:g} s to make: about {_time(videos)}")
        if self.unscored:
            lines.append(f"scores   {self.unscored} finished videos: less than {_time(self.hours - profile - videos)}")
        lines.append(f"together about {_time(self.hours)}" + (", divided by the workers" if self.parallel else ""))
        return "\n".join([*lines, *([] if self.needs is None else [self.needs.describe()])])

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers."""
        return {
            "calibrated_on": self.where,
            "seconds_per_second_of_video": self.rate,
            "profile_seconds_of_video": self.profile_seconds,
            "videos_to_make": self.unmade,
            "videos_to_score": self.unscored,
            "seconds_of_a_video": self.seconds,
            "hours": self.hours,
            "memory_bytes": self.needs and self.needs.memory,
            "disk_bytes": self.needs and self.needs.disk,
        }


def _time(hours: float) -> str:
    if hours >= 1:
        return f"{hours:.1f} h"
    return f"{60 * hours:.0f} min" if hours * 60 >= 1 else f"{3600 * hours:.0f} s"
