"""Between latents and pictures where a video is made of several rollouts, see `methods/causvid.py`.

To the VAE each rollout after the first is a video of its own: its first frame is the last picture of a finished one,
encoded anew. It takes that picture's place, so a video has as many as any other of its length, `4(n-1)+1`, and its
prompts start where they always do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..errors import HeadForcingError
from ..hashing import digest
from .stream import Chunks, StreamingDecoder


@dataclass(frozen=True)
class FrameCodec:
    """A VAE in both directions.

    Attributes:
        new_decoder: gives a streaming decoder in its first state.
        network: what holds the weights.
        encode: from a picture `[H, W, 3]` in 0..1 to the first frame of a video, `[1, 16, h, w]`; None where only the
            decoder was loaded, which is enough for a video of one rollout.
    """

    new_decoder: Callable[[], StreamingDecoder]
    network: nn.Module
    encode: Callable[[Tensor], Tensor] | None = None

    def decoder(self, restart_frames: Sequence[int] = ()) -> StreamingDecoder:
        """A decoder for one video, whose rollouts after the first begin with these frames."""
        decoder = self.new_decoder()
        return RestartingDecoder(decoder, self._encode, restart_frames) if restart_frames else decoder

    def reencode(self, latents: Tensor) -> Tensor:
        """The last picture of `[frames, 16, h, w]`, which begin a video, as the first frame of one, `[1, 16, h, w]`."""
        decoder, chunks = self.new_decoder(), Chunks()
        pieces = latents.split(3)  # to hold a few pictures at a time
        for chunk in (*(chunk for piece in pieces for chunk in chunks.add(piece)), *chunks.rest()):
            video_frames = decoder.decode(chunk)
        return self._encode(video_frames[-1])

    @property
    def _encode(self) -> Callable[[Tensor], Tensor]:
        if self.encode is None:
            raise HeadForcingError("this VAE was loaded without its encoder, which videos of several rollouts need")
        return self.encode

    def fingerprint(self) -> str:
        """Names the weights, from a few numbers of each."""
        return digest(*(weight.detach().flatten()[:4] for weight in self.network.parameters() if not weight.is_meta))


class RestartingDecoder:
    """A `video.StreamingDecoder` of a video of several rollouts.

    A frame of `restart_frames`, counted from the beginning of the video, is decoded as the end of a rollout, and its
    last picture, encoded anew, as the beginning of the next. Chunks come as `Chunks` cuts them, and none has a single
    frame behind such a one: of blocks of 1 or 3 frames none has, where rollouts overlap by 3 frames or 6.
    """

    def __init__(self, decoder: StreamingDecoder, encode: Callable[[Tensor], Tensor], restart_frames: Sequence[int]):
        self._decoder, self._encode, self._restarts = decoder, encode, set(restart_frames)
        self.reset()

    def reset(self) -> None:
        """The next chunk starts a new video."""
        self._decoder.reset()
        self._frames = 0

    def decode(self, latents: Tensor) -> Tensor:
        """Next `[frames, 16, h, w]` to `[pictures, H, W, 3]`: 4 a frame, 1 for the video's first."""
        restart = next((i for i in range(len(latents)) if self._frames + i in self._restarts), None)
        until = len(latents) if restart is None else restart + 1
        video_frames, rest = self._decoder.decode(latents[:until]), latents[until:]
        self._frames += until
        if restart is not None:
            self._decoder.reset()
            video_frames = torch.cat([video_frames[:-1], self._decoder.decode(self._encode(video_frames[-1]))])
        return torch.cat([video_frames, self.decode(rest)]) if len(rest) else video_frames
