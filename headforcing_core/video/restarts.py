"""VAE decoding and encoding for videos of several rollouts, see `methods/causvid.py`.

For the VAE, each rollout after the first is a separate video. Its first latent frame is the
encoding of the last video frame of the rollout before, which it replaces. The number of video
frames, `4(n-1)+1` for n latent frames, and the times of the prompts are therefore the same as in a
video of one rollout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, nn

from ..errors import HeadForcingError
from ..files import Fields
from ..hashing import digest
from .stream import Chunks, StreamingDecoder

# in the notes on a video: first latent frame of every rollout after the first
RESTARTS = "restart_frames"


def needs_encoder(about: Fields) -> bool:
    """Whether a video with these notes is made of several rollouts, so that decoding it takes the
    VAE's encoder, too.
    """
    return bool(about.get(RESTARTS))


def checked(about: Fields, frames: float = math.inf) -> Fields:
    """The notes on the rollouts of so many latent frames, none on a single one; raises ValueError,
    TypeError or OverflowError for what are no frames of them.
    """
    restarts = tuple(map(int, about.get(RESTARTS, ())))
    if not all(0 <= frame < frames for frame in restarts):
        raise ValueError("of another video")
    return {RESTARTS: restarts} if restarts else {}


@dataclass(frozen=True)
class FrameCodec:
    """The decoder and the encoder of a VAE."""

    new_decoder: Callable[[], StreamingDecoder]  # creates a streaming decoder in its initial state
    network: nn.Module
    # see `encode_video`; None if only the decoder was loaded
    encode: Callable[[Tensor], Tensor] | None = None
    # of the weights in the fingerprint, where some are cast only when they are used
    dtype: torch.dtype | None = None
    # for video frames that are encoded again; None where those of `new_decoder` are
    new_source_decoder: Callable[[], StreamingDecoder] | None = None
    # a faster one, by which a video grows until it is decoded by this one
    preview: FrameCodec | None = None

    def decoder(self, about: Fields | None = None) -> StreamingDecoder:
        """A decoder for one video with these notes, None for one of one rollout; the video frames
        of several are encoded again.
        """
        try:
            restarts = checked(about or {}).get(RESTARTS)
        except (ValueError, TypeError, OverflowError) as error:
            raise HeadForcingError(
                f"the notes on this video do not say with which latent frames its rollouts begin "
                f"({RESTARTS}): render it again"
            ) from error
        if restarts:
            return RestartingDecoder(self.source_decoder(), self.encode_video, restarts)
        return self.new_decoder()

    def source_decoder(self) -> StreamingDecoder:
        """A decoder whose video frames can be encoded again."""
        return (self.new_source_decoder or self.new_decoder)()

    def reencode(self, latents: Tensor) -> Tensor:
        """Decode a video `[frames, channels, h, w]` and encode its last video frame as one latent
        frame `[1, 16, h, w]`.
        """
        decoder = self.source_decoder()
        chunks = Chunks()
        pieces = latents.split(3)  # so that few video frames are in memory at a time
        for chunk in chain(*map(chunks.add, pieces), chunks.rest()):
            video_frames = decoder.decode(chunk)
        return self.encode_video(video_frames[-1:])

    def encode_video(self, video_frames: Tensor) -> Tensor:
        """Encode a video `[4(n-1)+1, H, W, 3]` in 0..1 to latents `[n, 16, h, w]`."""
        if self.encode is None:
            raise HeadForcingError(
                "this VAE was loaded without its encoder, which start frames and videos of several "
                "rollouts need"
            )
        return self.encode(video_frames)

    def fingerprint(self) -> str:
        """A hash of the first four values of each weight, which identifies the VAE."""
        weights = [weight for weight in self.network.parameters() if not weight.is_meta]
        return digest(*(weight.detach().flatten()[:4].to(dtype=self.dtype) for weight in weights))


@dataclass
class RestartingDecoder:
    """A `stream.StreamingDecoder` for a video of several rollouts.

    Each latent frame in `restart_frames` (indices in the video) is decoded as the last one of a
    rollout; its last video frame is encoded as the first latent frame of the next. No chunk of
    `Chunks` may have exactly one latent frame after a restart, which holds for blocks of 1 or 3
    with rollouts that overlap by 3 or 6.
    """

    decoder: StreamingDecoder
    encode: Callable[[Tensor], Tensor]
    restart_frames: Sequence[int]

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.decoder.reset()
        self._frames = 0

    def decode(self, latents: Tensor) -> Tensor:
        """Decode the next `[frames, channels, h, w]` to `[video frames, H, W, 3]`: 4 per latent
        frame, 1 for the first.
        """
        restarts = [i for i in range(len(latents)) if self._frames + i in self.restart_frames]
        until = restarts[0] + 1 if restarts else len(latents)
        video_frames = self.decoder.decode(latents[:until])
        rest = latents[until:]
        self._frames += until
        if restarts:
            self.decoder.reset()
            video_frames = torch.cat(
                [video_frames[:-1], self.decoder.decode(self.encode(video_frames[-1:]))]
            )
        return torch.cat([video_frames, self.decode(rest)]) if len(rest) else video_frames
