"""Video Drift Report: how a video changes over its length; with models in `models/metrics` their metrics, too."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import comfy.model_management
import comfy.utils
from comfy_api.latest import InputImpl, io

from ..headforcing_core.errors import HeadForcingError
from ..headforcing_core.report.drift import DriftReport, report_frames, report_video
from ..headforcing_core.report.drift_plot import drift_picture
from ..headforcing_core.report.learned.base import Panel
from ..headforcing_core.report.learned.registry import found_metrics, load_panel
from ..headforcing_core.video.writer import to_uint8
from .host import folders, helpers

log = logging.getLogger(__name__)

CHUNK_VIDEO_FRAMES = 16
METRIC_MODELS_BYTES = 4 << 30  # of all metrics' models and what they compute at once, generously


class VideoDriftReport(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return helpers.schema(
            "HeadForcingVideoDriftReport",
            "Video Drift Report",
            "analysis",
            aliases="drift, flicker, video quality, metrics, evaluate",
            inputs=[io.Video.Input("video"), helpers.theme_input()],
            outputs=[io.Image.Output(display_name="picture"), io.String.Output(display_name="report")],
        )

    @classmethod
    def fingerprint_inputs(cls, **_: Any) -> str:
        """Measure again when models of metrics were added."""
        return repr([(str(folder), names) for folder, names in _find_models()])

    @classmethod
    @helpers.shows_errors
    def execute(cls, video: Any, theme: str = "dark") -> io.NodeOutput:
        progress: list[Any] = []

        def on_progress(done: int, expected: int) -> None:
            comfy.model_management.throw_exception_if_processing_interrupted()
            if not progress:
                progress.append(comfy.utils.ProgressBar(expected or video.get_frame_count()))
            progress[0].update_absolute(done)

        report = _measure(video, on_progress, _panel())
        picture = helpers.picture_or_nothing(lambda: drift_picture(report, theme))
        return io.NodeOutput(picture, report.text())


def _find_models() -> list[tuple[Path, list[str]]]:
    """The folders with models of metrics, and which metrics they have the files for."""
    return [(folder, names) for folder in folders.metric_folders() if (names := found_metrics(folder))]


def _panel() -> Panel | None:
    """The metrics of the first folder with models for any; without those that cannot be loaded the report goes on."""
    if not (found := _find_models()):
        return None
    device = comfy.model_management.get_torch_device()
    comfy.model_management.free_memory(METRIC_MODELS_BYTES, device)
    try:
        return load_panel(found[0][0], device=device)
    except HeadForcingError as error:
        log.warning("Video Drift Report: %s", error)
        return Panel({}, [str(error)])


def _measure(video: Any, on_progress: Callable[[int, int], None], panel: Panel | None) -> DriftReport:
    if isinstance(video, InputImpl.VideoFromComponents):  # already in memory: no need to encode it first
        parts = video.get_components()
        chunks = (to_uint8(chunk[..., :3]).cpu().numpy() for chunk in parts.images.split(CHUNK_VIDEO_FRAMES))
        return report_frames(chunks, float(parts.frame_rate), None, None, on_progress, len(parts.images), panel=panel)
    start, duration = helpers.window_of(video)
    return report_video(
        video.get_stream_source(), on_progress=on_progress, start_seconds=start, duration_seconds=duration, panel=panel
    )
