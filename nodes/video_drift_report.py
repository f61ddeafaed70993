"""Video Drift Report: how a video changes over its length."""

from collections.abc import Callable
from typing import Any

import comfy.utils
from comfy_api.latest import InputImpl, io

from ..headforcing_core.errors import HeadForcingError
from ..headforcing_core.report.drift import DriftReport, report_frames, report_video
from ..headforcing_core.report.drift_plot import drift_picture
from ..headforcing_core.video.writer import to_uint8
from .host.browser.progress import stop_where_asked
from .host.graph import images, schema, video_files

CHUNK_VIDEO_FRAMES = 16


class VideoDriftReport(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema.node_schema(
            "HeadForcingVideoDriftReport",
            "Video Drift Report",
            "research",
            aliases="drift, flicker, video quality, metrics, evaluate",
            inputs=[io.Video.Input("video"), schema.theme_input()],
            outputs={
                "picture": io.Image,
                "report": io.String,
            },
        )

    @classmethod
    @schema.shows_errors
    def execute(cls, video: Any, theme: str = "dark") -> io.NodeOutput:
        progress: list[Any] = []

        def on_progress(done: int, expected: int) -> None:
            stop_where_asked()
            if not progress:
                progress.append(comfy.utils.ProgressBar(expected or video.get_frame_count()))
            progress[0].update_absolute(done)

        report = _measure(video, on_progress)
        picture = images.picture_or_nothing(lambda: drift_picture(report, theme))
        return io.NodeOutput(picture, report.text())


def _measure(video: Any, on_progress: Callable[[int, int], None]) -> DriftReport:
    # already in memory: no need to encode it first
    if isinstance(video, InputImpl.VideoFromComponents):
        parts = video.get_components()
        if not parts.images.isfinite().all():
            raise HeadForcingError("video holds NaN or infinity, which would be measured as black")
        chunks = (
            to_uint8(chunk[..., :3]).cpu().numpy()
            for chunk in parts.images.split(CHUNK_VIDEO_FRAMES)
        )
        return report_frames(
            chunks,
            float(parts.frame_rate),
            on_progress=on_progress,
            expected=len(parts.images),
        )
    start, duration = video_files.window_of(video)
    return report_video(
        video.get_stream_source(),
        on_progress=on_progress,
        start_seconds=start,
        duration_seconds=duration,
    )
