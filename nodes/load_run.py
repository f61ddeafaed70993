"""Load Head Forcing Run: the stored latents of an earlier render, finished or not."""

from comfy_api.latest import io

from ..headforcing_core.render.result import report_stored, report_text
from ..headforcing_core.report.latents_plot import run_picture
from ..headforcing_core.timeline.clock import video_frames_of
from .host.browser.runs import find_run, finished_blocks, take_names, to_latent
from .host.graph import images, schema

NONE = "no runs yet"


class LoadHeadForcingRun(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema.node_schema(
            "HeadForcingLoadRun",
            "Load Head Forcing Run",
            "video",
            aliases="resume, continue, restore, recover, earlier render, takes",
            inputs=[io.Combo.Input("run", options=take_names() or [NONE])],
            outputs={
                "latents": io.Latent,
                "report": io.String,
                "picture": io.Image,
            },
        )

    @classmethod
    def validate_inputs(cls, run: str | None = None) -> bool | str:
        """Take the names of older lists and of unfinished runs that have grown, too."""
        return schema.refusal(find_run, run)

    @classmethod
    def fingerprint_inputs(cls, run: str) -> int:
        """Changes when more blocks are stored, so that ComfyUI loads them."""
        return finished_blocks(run)

    @classmethod
    @schema.shows_errors
    def execute(cls, run: str) -> io.NodeOutput:
        video = find_run(run)
        latents = to_latent(video, video.latents())[None].transpose(1, 2)
        frames = latents.shape[2]
        report = report_stored(video)
        lines = [
            f"{video.finished} of {len(video.keys)} blocks, {frames} latent frames",
            *map(str, video.about["prompts"]),
            "",
            report_text(report, video.about),
            *(f"damaged: {problem}" for problem in video.reader.problems),
        ]
        about_samples = {
            "video_frames": min(video.about["video_frames"], video_frames_of(frames)),
            "frames": frames,
            "about": video.about,
        }
        picture = images.picture_or_nothing(
            lambda: run_picture(report, "dark", video.about.get("novelty_threshold"))
        )
        return io.NodeOutput(
            {"samples": latents, "head_forcing": about_samples}, "\n".join(lines), picture
        )
