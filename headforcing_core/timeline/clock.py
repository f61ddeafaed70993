"""Conversion between seconds, video frames, latent frames and blocks; formatting of times."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import HeadForcingError

# video frames per latent frame of the causal VAE; the first latent frame of a video holds one
TEMPORAL_STRIDE = 4
VIDEO_FPS = 16
MAX_SECONDS = 36_000.0


def video_frames_of(latent_frames: int) -> int:
    """Number of video frames that `latent_frames` decode to, 4(n-1)+1: 0, 1, 5, 9 ..."""
    return TEMPORAL_STRIDE * (latent_frames - 1) + 1 if latent_frames > 0 else 0


@dataclass(frozen=True)
class BlockClock:
    """Converts between seconds, video frames at `fps` and blocks of `frames_per_block` latent
    frames.

    n blocks decode to 4(n * frames_per_block - 1) + 1 video frames; where they `continue` start
    frames, to 3 more. Raises HeadForcingError for values out of range.
    """

    frames_per_block: int = 3
    fps: float = VIDEO_FPS
    continues: bool = False

    def __post_init__(self) -> None:
        if type(self.frames_per_block) is not int or not 1 <= self.frames_per_block <= 1000:
            raise HeadForcingError(
                f"frames_per_block must be a whole number in 1-1000, got {self.frames_per_block!r}"
            )
        if not is_finite(self.fps) or not 0 < self.fps <= 1000:
            raise HeadForcingError(f"fps must be above 0 and at most 1000, got {self.fps!r}")

    @property
    def block_seconds(self) -> float:
        """Duration of every block but the first, in seconds."""
        return TEMPORAL_STRIDE * self.frames_per_block / self.fps

    def video_frames(self, blocks: int) -> int:
        """Number of video frames that the first `blocks` blocks decode to: the index of the first
        one of the block after them.
        """
        if blocks == 0:
            return 0
        return TEMPORAL_STRIDE * blocks * self.frames_per_block - self._missing

    @property
    def _missing(self) -> int:
        """Number of video frames by which the first latent frame is shorter than the others."""
        return 0 if self.continues else TEMPORAL_STRIDE - 1

    def start_seconds(self, block: int) -> float:
        """Time of the first video frame of a 0-based block."""
        return self.video_frames(block) / self.fps

    def blocks_for(self, seconds: float) -> int:
        """The smallest number of blocks, at least one, whose video frames last `seconds` or
        longer.
        """
        # 1e-6: a length such as 9 / 16 s must not need one more frame because of rounding
        video_frames = math.ceil(self._position(seconds) - 1e-6)
        per_block = TEMPORAL_STRIDE * self.frames_per_block
        return max(1, -(-(video_frames + self._missing) // per_block))

    def block_at(self, seconds: float) -> int:
        """The 0-based block whose start is nearest to `seconds`; the earlier of two equally near
        ones.
        """
        position = self._position(seconds)
        block = int((position + self._missing) // (TEMPORAL_STRIDE * self.frames_per_block))
        before = position - self.video_frames(block)
        after = self.video_frames(block + 1) - position
        if after < before:
            block += 1
        return block

    def _position(self, seconds: float) -> float:
        """`seconds` as a fractional number of video frames."""
        if not is_finite(seconds) or not 0 <= seconds <= 1e9:
            raise HeadForcingError(
                f"a time must be a number of seconds from 0 to 1e9, got {seconds!r}"
            )
        return seconds * self.fps


def format_time(seconds: float) -> str:
    """Seconds as `m:ss.mmm`, truncated to the millisecond."""
    minutes, milliseconds = divmod(math.floor(seconds * 1000 + 1e-6), 60_000)
    return f"{minutes}:{milliseconds // 1000:02}.{milliseconds % 1000:03}"


def short_time(seconds: float) -> str:
    """Seconds as `m:ss.mmm` without zeros at the end."""
    return format_time(seconds).rstrip("0").removesuffix(".")


def plain_time(seconds: float) -> str:
    """Seconds as `m:ss`, truncated."""
    return format_time(seconds).partition(".")[0]


def cut_to_millisecond(seconds: float) -> float:
    """Seconds truncated to the millisecond; not rounded, so that a duration never extends into one
    more block.
    """
    return math.floor(seconds * 1000 + 1e-6) / 1000


def is_finite(value: object) -> bool:
    try:
        return not isinstance(value, bool) and math.isfinite(value)  # type: ignore[arg-type]
    except (TypeError, OverflowError):
        return False
