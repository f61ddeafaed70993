"""Load Head Forcing Run: what an earlier render left, finished or not."""

import comfy.latent_formats
import torch
from comfy_api.latest import io

from ..headforcing_core.clock import pictures_of
from ..headforcing_core.errors import HeadForcingError
from ..headforcing_core.plot_run import run_picture
from ..headforcing_core.stored_runs import StoredVideo, stored_videos
from . import folders, node_helpers

NONE = "no runs yet"


class LoadHeadForcingRun(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="HeadForcingLoadRun",
            display_name="Load Head Forcing Run",
            category=node_helpers.CATEGORY,
            description=(
                "The latents of an earlier render, as far as it came: to decode a video whose render was stopped or "
                "whose decoding failed. To go on with a render, queue its graph again."
            ),
            inputs=[
                io.Combo.Input(
                    "run",
                    options=run_names() or [NONE],
                    tooltip="Renders kept in ComfyUI/output/head_forcing, the newest first. Press R to refresh.",
                )
            ],
            outputs=[
                io.Latent.Output(display_name="latents"),
                io.String.Output(display_name="report"),
                io.Image.Output(display_name="picture", tooltip="Drift of the latents, and what memory found new."),
            ],
        )

    @classmethod
    def fingerprint_inputs(cls, run: str) -> int:
        """Load again when more blocks are there."""
        return finished_blocks(run)

    @classmethod
    def execute(cls, run: str) -> io.NodeOutput:
        video = find_run(run)
        latents = to_latent(video, video.latents())[None].transpose(1, 2)
        frames = latents.shape[2]
        report = video.report()
        lines = [
            f"{video.finished} of {len(video.keys)} blocks, {frames} latent frames",
            *map(str, video.about["prompts"]),
            "",
            report.text(),
            *(f"damaged: {problem}" for problem in video.run.problems),
        ]
        pictures = min(video.about["pictures"], pictures_of(frames))
        trim = {"pictures": pictures, "frames": frames, "restart_frames": video.about.get("restart_frames", [])}
        samples = {"samples": latents, "head_forcing": {**trim, "about": video.about}}
        picture = node_helpers.picture_or_nothing(
            lambda: run_picture(report, "dark", video.about.get("novelty_threshold"))
        )
        return io.NodeOutput(samples, "\n".join(lines), picture)


def run_names() -> list[str]:
    """What a person chooses from, the newest first."""
    return [_label(video) for video in _videos()]


def find_run(name: str) -> StoredVideo:
    """The run of that name, or an error when it is gone."""
    video = next((video for video in _videos() if _label(video) == name), None)
    if video is None:
        raise HeadForcingError(f"run: {name[:120]!r} is not in ComfyUI/output/head_forcing any more; choose another")
    return video


def finished_blocks(name: str) -> int:
    """How far a run has come; 0 when there is none of that name."""
    return next((video.finished for video in _videos() if _label(video) == name), 0)


def to_latent(video: StoredVideo, latents: torch.Tensor) -> torch.Tensor:
    """Stored frames `[frames, 16, h, w]` as a LATENT holds them: they are stored as the model sees them."""
    if video.about.get("latent_format") != comfy.latent_formats.Wan21.__name__:
        return latents  # the toy world's are the same in a LATENT
    return comfy.latent_formats.Wan21().process_out(latents.transpose(0, 1)[None])[0].transpose(0, 1)


def _videos() -> list[StoredVideo]:
    return stored_videos(folders.runs_folder())


def _label(video: StoredVideo) -> str:
    prompts = video.about.get("prompts") or [""]
    return f"{video.name} {video.about.get('size', '')} {str(prompts[0])[:60]}"
