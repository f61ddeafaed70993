"""Where the blocks of a render go: an MP4, a file of latents that a later render can go on from, or memory."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from ..errors import HeadForcingError
from ..files import replacing
from ..video.background import BackgroundStream
from ..video.stream import StreamingDecoder, VideoInfo, VideoStream
from ..weights.containers import WRITABLE, read_weights
from .plan import LATENT_CHANNELS, RenderPlan
from .provenance import file_tags

log = logging.getLogger(__name__)


class Sink:
    """Where the blocks of a video go, start frames included; entered as a context manager before the first."""

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: Any) -> None:
        pass

    def add(self, latents: Tensor) -> None:
        """The next block, `[frames, 16, h, w]`, normalised."""

    def retold(self, plan: RenderPlan, about: Mapping[str, Any]) -> None:
        """The video goes on with another story, see `live_story`; `about` as in `RenderJob`."""

    def finish(self) -> Any:
        """All blocks are there."""


class KeptLatents(Sink):
    """Keeps all blocks in the host's memory: those of a long video would take gigabytes of a GPU's."""

    def __init__(self) -> None:
        self.blocks: list[Tensor] = []

    def add(self, latents: Tensor) -> None:
        self.blocks.append(latents.to("cpu"))


class Mp4File(VideoStream, Sink):
    """The video of a plan as an MP4, decoded block by block.

    Attributes:
        info: the finished file; None before.
    """

    def __init__(self, path: Path, plan: RenderPlan, decoder: StreamingDecoder, scale: int, metadata: dict[str, str]):
        fps = plan.timeline.clock.fps
        super().__init__(path, decoder, fps, plan.video_frames, scale, metadata, partial=partial_path(path))
        self.info: VideoInfo | None = None

    def retold(self, plan: RenderPlan, about: Mapping[str, Any]) -> None:
        self.metadata = {**self.metadata, **file_tags(about)}
        self.end_after(plan.video_frames)

    def finish(self) -> VideoInfo:
        self.info = super().finish()
        self.__exit__(None, None, None)  # which completes the file
        return self.info


class DecodedBeside(Sink):
    """Decodes the blocks of an `Mp4File` in a thread, on the device of its decoder, while the next are sampled."""

    def __init__(self, file: Mp4File, device: torch.device):
        self.file, self._stream = file, BackgroundStream(file, device)

    def __enter__(self) -> DecodedBeside:
        self._stream.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stream.__exit__(*error)

    def add(self, latents: Tensor) -> None:
        self._stream.add(latents)

    def retold(self, plan: RenderPlan, about: Mapping[str, Any]) -> None:
        self.file.retold(plan, about)

    def finish(self) -> Any:
        return self._stream.finish()


class LosableVideo(Sink):
    """An `Mp4File` beside which latents are kept: an error of decoder or disk ends the video, not the render.

    Attributes:
        failure: why the video ended early; None while all is well.
    """

    def __init__(self, video: Mp4File | DecodedBeside):
        self.video = video
        self.failure: str | None = None

    def __enter__(self) -> LosableVideo:
        self.video.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self.failure is None:
            self.video.__exit__(*error)

    def add(self, latents: Tensor) -> None:
        self._attempt(lambda: self.video.add(latents))

    def retold(self, plan: RenderPlan, about: Mapping[str, Any]) -> None:
        self._attempt(lambda: self.video.retold(plan, about))

    def finish(self) -> Any:
        self._attempt(self.video.finish)

    def _attempt(self, action: Callable[[], Any]) -> None:
        if self.failure is not None:
            return
        try:
            action()
        except Exception as error:
            self.failure = str(error).partition("\n")[0] or type(error).__name__
            log.warning("Head Forcing: sampling goes on without the video: %s", self.failure)
            with suppress(Exception):  # the first error is the one to report
                self.video.__exit__(type(error), error, error.__traceback__)


class LatentsFile(KeptLatents):
    """All latents `[frames, 16, h, w]`, float32, normalised, as safetensors; written when the last block is there."""

    def __init__(self, path: Path, plan: RenderPlan):
        super().__init__()
        self.path, self.plan = path, plan

    def retold(self, plan: RenderPlan, about: Mapping[str, Any]) -> None:
        self.plan = plan

    def finish(self) -> Any:
        about = {"pictures": self.plan.video_frames, "restart_frames": self.plan.restart_frames}
        latents = torch.cat(self.blocks).float().contiguous()
        with replacing(self.path) as temporary:
            temporary.write_bytes(save({"latents": latents}, {"head_forcing": json.dumps(about)}))


def partial_path(path: Path) -> Path:
    """Where a video grows until it is finished; it plays at any time."""
    name = path.stem if path.suffix == ".mp4" else path.name  # two targets never grow in one file
    return path.with_name(f"{name}.part.mp4")


def load_latents(path: Path, plan_size: tuple[int, int] | None = None) -> Tensor:
    """Latents `[frames, 16, h, w]` of a `LatentsFile`, checked against `(width, height)` in pixels.

    Raises HeadForcingError for another file, other shapes and types, and NaN and infinity.
    """
    try:
        latents = read_weights(Path(path))[1].get("latents")
    except HeadForcingError as error:
        raise HeadForcingError(f"{path} is not a latents file written by this program: {error}") from error
    if not isinstance(latents, Tensor):
        raise HeadForcingError(f"{path} is not a latents file written by this program: it holds no latents")
    if latents.ndim != 4 or latents.shape[1] != LATENT_CHANNELS or latents.numel() == 0:
        raise HeadForcingError(f"{path}: expected latents [frames, 16, h, w], got {list(latents.shape)}")
    if latents.dtype not in WRITABLE:
        raise HeadForcingError(f"{path}: expected latents in float32, float16 or bfloat16, got {latents.dtype}")
    if plan_size is not None:
        width, height = plan_size
        if tuple(latents.shape[-2:]) != (height // 8, width // 8):
            raise HeadForcingError(
                f"{path}: latents are for {latents.shape[-1] * 8}x{latents.shape[-2] * 8} frames, "
                f"the render is {width}x{height}"
            )
    if not torch.isfinite(latents).all():
        raise HeadForcingError(f"{path}: the latents hold NaN or infinity; write them again")
    return latents.clone()
