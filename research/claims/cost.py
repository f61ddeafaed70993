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

from ...headforcing_core.commands.compare import (
    ComparedJob,
    ComparedVideo,
    compared_source,
    planned_video,
    render_compared,
)
from ...headforcing_core.commands.farms import kept_model, let_go
from ...headforcing_core.commands.report import panel_of
from ...headforcing_core.commands.values import changed
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
    made_from = {"row": largest.video.entry.key, "metrics": sorted(metrics), "where": place_of(args, farm)}
    made_from |= {k: v for k, v in largest.made_from.items() if k in ("weights", "vae", "width", "height", "dtype")}
    path: Path = args.out / "calibration.json"
    try:
        stored = json.loads(path.read_text("utf-8"))
        if stored["made_from"] == made_from and float(stored["seconds"]) > 0:
            return float(stored["seconds"]) / CALIBRATION_SECONDS
    except (OSError, ValueError, KeyError, TypeError):
        pass
    folder = args.out / "calibration"
    given = changed(args, prompts="calibration", seconds=CALIBRATION_SECONDS, out=folder, runs=None)
    video = ComparedVideo.of(compared_source(given), largest.video.entry, args.seed, folder)
    with farm:
        embed = farm.share(torch.zeros(1, video.source.info.config.text_dim))
        (outcome,) = farm.run(timed, {"calibration": video.job(given, [embed], farm)})
        seconds = outcome.get()
    let_go()  # text encoder and profiler need the room
    shutil.rmtree(folder, ignore_errors=True)
    with replacing(path) as temporary:
        temporary.write_text(json.dumps({"made_from": made_from, "seconds": seconds}, indent=1), encoding="utf-8")
    return seconds / CALIBRATION_SECONDS


def timed(job: ComparedJob) -> float:
    """Seconds that a job takes when model and metrics are loaded; to be called in any process."""
    video = planned_video(job)
    kept_model(video.source, encodes=job.encodes)
    panel_of(job.args)
    begun = time.monotonic()
    render_compared(job)
    return time.monotonic() - begun


def place_of(args: argparse.Namespace, farm: Farm) -> str:
    """The name of what makes the videos."""
    return f"one worker of the farm {args.farm}" if farm.parallel else f"this machine, {device_name(args)}"


def device_name(args: argparse.Namespace) -> str:
    """The name of the device that makes the videos."""
    if args.device.startswith("cuda") or (args.device == "auto" and torch.cuda.is_available()):
        return torch.cuda.get_device_name(None if args.device == "auto" else args.device)
    return "processor" if args.device in ("auto", "cpu") else str(args.device)


@dataclass(frozen=True)
class Cost:
    """The estimate; `needs` are the memory of the largest row and the disk of all, None if all videos are made."""

    calibrated_on: str
    seconds_per_second_of_video: float  # 0 if no video is to be made
    profile_seconds_of_video: float  # 0 if the head profile is there
    videos_to_make: int
    videos_to_score: int  # that are made
    seconds_of_a_video: float
    needs: Needs | None
    parallel: bool

    @property
    def parts(self) -> tuple[float, float, float]:
        """Hours of the profile, the videos and the scores, each taken for making and scoring, one after the other."""
        lengths = (
            self.profile_seconds_of_video,
            self.videos_to_make * self.seconds_of_a_video,
            self.videos_to_score * self.seconds_of_a_video,
        )
        profile, videos, scores = (self.seconds_per_second_of_video * seconds / 3600 for seconds in lengths)
        return profile, videos, scores

    def text(self) -> str:
        """Lines for people."""
        make, score, each = self.videos_to_make, self.videos_to_score, self.seconds_of_a_video
        if not make + score:
            return "all videos are made and scored"
        if not self.seconds_per_second_of_video:
            return f"scores   {score} finished videos, nothing else is to be done"
        profile, videos, scores = map(_time, self.parts)
        given = f"profile  {self.profile_seconds_of_video:g} s of video: at most {profile}"
        lines = [
            f"estimate, from {CALIBRATION_SECONDS:.1f} s of video made and scored by {self.calibrated_on}: "
            f"{self.seconds_per_second_of_video:.3g} s for a second of video (of the row with the largest cache: "
            "others take less)",
            given if self.profile_seconds_of_video else "",
            f"videos   {make} of {each:g} s to make: about {videos}",
            f"scores   {score} finished videos: less than {scores}" if score else "",
            f"together about {_time(sum(self.parts))}" + (", divided by the workers" if self.parallel else ""),
            "" if self.needs is None else self.needs.describe(),
        ]
        return "\n".join(filter(None, lines))

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers."""
        plain = {name: value for name, value in vars(self).items() if name not in ("needs", "parallel")}
        memory, disk = (None, None) if self.needs is None else (self.needs.memory, self.needs.disk)
        return {**plain, "hours": sum(self.parts), "memory_bytes": memory, "disk_bytes": disk}


def _time(hours: float) -> str:
    if hours >= 1:
        return f"{hours:.1f} h"
    return f"{60 * hours:.0f} min" if hours * 60 >= 1 else f"{3600 * hours:.0f} s"
