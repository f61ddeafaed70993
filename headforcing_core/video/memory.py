"""The memory that the decoder of a video takes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DecoderMemory:
    """Bytes that a decoder takes on its device, by estimate."""

    weights: int = 0  # of the decoder, and of the encoder where it is loaded, too
    held: int = 0  # what is kept of the video between two blocks
    peak: int = 0  # most while a chunk is decoded, what is held included, weights left out

    def after(self, draft: DecoderMemory) -> DecoderMemory:
        """The memory of both decoders of a render: `draft` decodes its blocks, and this one does so
        again when all of them are made.
        """
        return DecoderMemory(
            self.weights + draft.weights, held=draft.held, peak=max(self.peak, draft.peak)
        )
