"""Stored runs, by the names in the nodes' lists."""

from __future__ import annotations

import comfy.latent_formats
import torch

from ...headforcing_core.errors import HeadForcingError
from ...headforcing_core.runs.stored import StoredVideo, stored_videos
from . import folders


def run_names() -> list[str]:
    """Names of all stored runs for a list widget, the newest first."""
    return [_label(video) for video in _videos()]


def find_run(name: str) -> StoredVideo:
    """The run of that name; raises HeadForcingError if it does not exist any more."""
    video = next((video for video in _videos() if _label(video) == name), None)
    if video is None:
        raise HeadForcingError(f"run: {name[:120]!r} is not in ComfyUI/output/head_forcing any more; choose another")
    return video


def finished_blocks(name: str) -> int:
    """Number of finished blocks of a run; 0 if there is none of that name."""
    return next((video.finished for video in _videos() if _label(video) == name), 0)


def to_latent(video: StoredVideo, latents: torch.Tensor) -> torch.Tensor:
    """Stored latents `[frames, 16, h, w]`, which are normalised for the model, in the scale of a LATENT."""
    if video.about.get("latent_format") != comfy.latent_formats.Wan21.__name__:
        return latents  # the toy world's are the same in a LATENT
    return comfy.latent_formats.Wan21().process_out(latents.transpose(0, 1)[None])[0].transpose(0, 1)


def _videos() -> list[StoredVideo]:
    return stored_videos(folders.runs_folder())


def _label(video: StoredVideo) -> str:
    prompts = video.about.get("prompts") or [""]
    return f"{video.name} {video.about.get('size', '')} {str(prompts[0])[:60]}"
