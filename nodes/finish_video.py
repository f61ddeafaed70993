"""Finish Video: a video through an upscale and a frame interpolation model into an MP4, a few
frames at a time.
"""

import math
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from hashlib import sha256
from io import BytesIO
from typing import Any

import av
import comfy.utils
import torch
from comfy_api.latest import InputImpl, io
from PIL import Image
from torch import Tensor

from ..headforcing_core.errors import HeadForcingError
from ..headforcing_core.hashing import digest
from ..headforcing_core.timeline.clock import plain_time
from ..headforcing_core.video.reader import MAX_PIXELS
from ..headforcing_core.video.section import Footage
from ..headforcing_core.video.sound import sound_of_samples
from ..headforcing_core.video.writer import VideoSettings, VideoWriter, to_uint8
from .host import folders
from .host.browser import player
from .host.browser.progress import stop_where_asked
from .host.graph import schema, video_files
from .host.graph.sound import soundtrack_of
from .host.sentences import Sentence, joined

BYTES_AT_ONCE = 256 << 20  # of frames before and after each model, about
MOST_AT_ONCE = 16  # frames of the video


class FinishVideo(schema.FileNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema.node_schema(
            "HeadForcingFinishVideo",
            "Finish Video",
            "video",
            aliases="upscale video, interpolate video, RIFE, FILM, super resolution, 4K",
            inputs=[
                io.Video.Input("video"),
                io.UpscaleModel.Input("upscale_model", optional=True),
                io.Custom("INTERP_MODEL").Input("interp_model", optional=True),
                io.Int.Input("multiplier", default=2, min=2, max=16),
                io.String.Input("filename_prefix", default="video/Finished"),
                io.Audio.Input("audio", optional=True),
                schema.crf_input(),
            ],
            advanced="crf",
            outputs={"video": io.Video},
            makes_video=True,
        )

    @classmethod
    @player.shows_errors
    def execute(
        cls,
        video: Any,
        multiplier: int,
        filename_prefix: str,
        upscale_model: Any = None,
        interp_model: Any = None,
        audio: Any = None,
        crf: int = 18,
    ) -> io.NodeOutput:
        if upscale_model is None and interp_model is None:
            raise HeadForcingError(
                "upscale_model, interp_model: none is connected, and the video would stay as it "
                "is; connect Load Upscale Model, Load Frame Interpolation Model, or both"
            )
        footage, key = _footage(video)
        models = _Models(upscale_model, interp_model, 1 if interp_model is None else multiplier)
        width, height = models.size_of(footage)
        fps = footage.fps * models.multiplier
        key = _name_of_part(key, models, crf)
        soundtrack = soundtrack_of(audio)
        sound = footage.sound if soundtrack is None else soundtrack.from_second(0.0)
        with (
            folders.growing_file(filename_prefix, key, width, height, lasting=True) as growing,
            ExitStack() as stack,
        ):
            tags = video_files.tags_of(cls.hidden)
            settings = VideoSettings(growing.path, fps, tags, crf, partial=growing.path)
            writer = VideoWriter(settings, width, height, goes_on=True, sound=sound)
            stack.enter_context(writer)
            total = (footage.video_frames - 1) * models.multiplier + 1
            progress = _Progress(
                cls.hidden, growing, writer.video_frames, total, has_sound=sound is not None
            )
            try:
                for video_frames in models.finish(footage, writer.video_frames):
                    writer.write(video_frames)
                    progress.add(video_frames)
                # numbered now, not at the beginning: others may have come since
                with folders.output_file(filename_prefix, width, height) as file:
                    writer.settings = replace(settings, path=file.path)
                    stack.close()
            except BaseException:
                where = Sentence("stopped at frame %1 of %2", progress.done + 1, total)
                kept = Sentence("the video so far is %1", growing.place)
                ways = Sentence("Run goes on from there")
                progress.show("stopped", joined([where, joined([kept, ways], ", ")], "; "))
                raise
        wrote = Sentence("wrote %1", file.place)
        size = Sentence("%1 frames, %2 at %3 fps", total, f"{width}x{height}", f"{fps:g}")
        progress.show("done", joined([wrote, size], " - "))
        return io.NodeOutput(
            InputImpl.VideoFromFile(str(file.path)), ui=progress.player.output([file])
        )


def _footage(video: Any) -> tuple[Footage, str]:
    """The frames of a VIDEO with its sound, and a hash by which the same video is known again."""
    if isinstance(video, InputImpl.VideoFromComponents):  # in memory already
        parts = video.get_components()
        images = parts.images[..., :3]
        sound = None
        if parts.audio is not None:
            sound = sound_of_samples(parts.audio["waveform"][0], parts.audio["sample_rate"])
        fps = float(parts.frame_rate)
        return Footage.of_images(images, fps, sound), digest(fps, *images)
    source = video.get_stream_source()
    window = video_files.window_of(video)
    if isinstance(source, BytesIO):
        about: Any = sha256(source.getbuffer()).hexdigest()
    else:
        found = os.stat(source)
        about = (str(source), found.st_size, found.st_mtime_ns)
    return Footage.of_file(source, window), digest(about, window)


@dataclass(frozen=True)
class _Models:
    """The models for frames, run by ComfyUI's own nodes, which know its memory and every kind of
    model.

    Frames are added first: motion is found at the size that interpolation models are made for, with
    less memory.
    """

    upscale: Any
    interpolation: Any
    multiplier: int

    @property
    def key(self) -> str:
        """A hash of the models, with all their weights."""
        parts: list[Any] = [self.multiplier]
        for model in (self.upscale, self.interpolation):
            if model is not None:
                parts.append(type(model.model).__name__)
                parts += model.model.state_dict().values()
        return digest(*parts)

    @property
    def scale(self) -> float:
        return 1 if self.upscale is None else self.upscale.scale

    def size_of(self, footage: Footage) -> tuple[int, int]:
        """Width and height of the finished video, even, as H.264 has them."""
        width = round(footage.width * self.scale) // 2 * 2
        height = round(footage.height * self.scale) // 2 * 2
        if width * height > MAX_PIXELS:
            raise HeadForcingError(
                f"upscale_model: the video would be {width}x{height}, expected at most 8192x4320; "
                f"use a model with a smaller scale than {self.scale:g}"
            )
        return width, height

    def finish(self, footage: Footage, first: int) -> Iterator[Tensor]:
        """The finished frames from this one on, a few at a time, `[n, height, width, 3]`, uint8."""
        width, height = self.size_of(footage)
        frame_bytes = footage.width * footage.height * 3 * 4
        length = min(MOST_AT_ONCE, math.ceil(BYTES_AT_ONCE / (frame_bytes * self.multiplier)))
        at_once = math.ceil(BYTES_AT_ONCE / (frame_bytes * self.scale**2))
        begin, known = divmod(first, self.multiplier)
        for images in footage.chunks(begin, length):
            for few in self._interpolate(images)[known:].split(at_once):
                between = _checked(few, "video" if self.interpolation is None else "interp_model")
                enlarged = _checked(self._enlarge(between), "upscale_model")
                yield to_uint8(enlarged[:, :height, :width])
            known = 1  # of later chunks: the last frame of the one before

    def _interpolate(self, images: Tensor) -> Tensor:
        if self.interpolation is None:
            return images
        from comfy_extras.nodes_frame_interpolation import FrameInterpolate  # newer than 0.3.75

        return _run(FrameInterpolate, self.interpolation, images, self.multiplier)

    def _enlarge(self, images: Tensor) -> Tensor:
        if self.upscale is None:
            return images
        from comfy_extras.nodes_upscale_model import ImageUpscaleWithModel

        return _run(ImageUpscaleWithModel, self.upscale, images)


def _name_of_part(footage: str, models: _Models, crf: int) -> str:
    """A short hash of all that half a finished video depends on; its sound is added anew."""
    return digest(footage, models.key, crf, av.__version__)[:8]


def _checked(images: Tensor, model: str) -> Tensor:
    """Refuse NaN and infinity, which a video would show as black."""
    if not torch.isfinite(images).all():
        raise HeadForcingError(
            f"{model} gives NaN or infinity for these frames: use another model, or float32"
        )
    return images


def _run(node: Any, *inputs: Any) -> Tensor:
    """The images of another node, which does not move this one's progress bar, and still stops on
    cancel.
    """
    hook = comfy.utils.PROGRESS_BAR_HOOK
    comfy.utils.set_progress_bar_global_hook(stop_where_asked)
    try:
        return node.execute(*inputs).args[0]
    finally:
        comfy.utils.set_progress_bar_global_hook(hook)


@dataclass
class _Progress:
    """Progress bar, player and status line of the node; counts the frames of the finished video."""

    hidden: Any
    growing: folders.OutputFile
    first: int
    total: int
    has_sound: bool

    def __post_init__(self) -> None:
        self.done = self.first
        self.player = player.NodePlayer(self.hidden)
        self.bar = comfy.utils.ProgressBar(self.total)
        self.id = uuid.uuid4().hex
        self.begun = time.perf_counter()

    def add(self, video_frames: Tensor) -> None:
        stop_where_asked()
        self.done += len(video_frames)
        self.bar.update_absolute(self.done)
        per_second = (self.done - self.first) / (time.perf_counter() - self.begun)
        left = plain_time((self.total - self.done) / per_second)
        preview = None if self.player.grows else Image.fromarray(video_frames[-1].cpu().numpy())
        place = Sentence("frame %1 of %2", self.done, self.total)
        speed = joined([Sentence("%1 fps", f"{per_second:.1f}"), Sentence("%1 left", left)], ", ")
        self.show("running", joined([place, speed], " - "), preview)

    def show(self, state: str, text: str, preview: Any = None) -> None:
        video = None
        if self.done > self.first:
            video = player.growing(self.growing, self.id, self.has_sound)
        self.player.show(state, text, video, preview)
