"""The memory that the decoder of a video takes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DecoderMemory:
    """Bytes that a decoder takes on its device, by estimate."""

    weights: int = 0  # of the decoder, and of the encoder where it is loaded, too
    held: int = 0  # what is kept of the video between two blocks
    peak: int = 0  # most while a chunk is decoded, what is held included, weights left out
