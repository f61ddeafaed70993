"""The networks of the Wan 2.2 VAE of TI2V-5B: 48 latent channels, 4 video frames and 16x16 pixels
each.

Made of the layers of the Wan 2.1 VAE. Three things differ: pixels are taken in cells of 2x2, stages
have a shortcut around all their layers, and enlarging keeps the number of channels. Modules have
the names of Wan's own file.
"""

from __future__ import annotations

from einops import rearrange
from torch import Tensor, nn

from ..model.latents import WAN22
from . import wan_encoder
from .wan_decoder import (
    BLOCKS,
    DOUBLES_FRAMES,
    Activations,
    Features,
    Upsample,
    WanDecoder,
    residual_blocks,
    through,
)
from .wan_encoder import HALVES_FRAMES, Downsample, WanEncoder


class UpStage(nn.Module):
    """Residual blocks, enlarging, and a shortcut that repeats the stage's input; the last stage has
    only the blocks.
    """

    def __init__(self, inputs: int, outputs: int, doubles_frames: bool | None):
        super().__init__()
        self.upsamples = nn.ModuleList(residual_blocks(inputs, outputs, BLOCKS))
        self.frames = 0  # that one frame becomes
        if doubles_frames is not None:
            self.upsamples.append(Upsample(outputs, doubles_frames, outputs))
            self.frames = 1 + doubles_frames

    def forward(self, x: Activations, features: Features) -> Activations:
        if not self.frames:
            return through(self.upsamples, x, features)
        before = x.total()
        made = through(self.upsamples, x, features).total()
        _add_repeated(made, before, self.frames)
        return Activations(made)


class DownStage(nn.Module):
    """Residual blocks, halving, and a shortcut that averages the stage's input; the last stage
    halves nothing.
    """

    def __init__(self, inputs: int, outputs: int, halves_frames: bool | None):
        super().__init__()
        self.downsamples = nn.ModuleList(residual_blocks(inputs, outputs, wan_encoder.BLOCKS))
        self.cell = (1, 1)  # frames, and pixels of a side
        if halves_frames is not None:
            self.downsamples.append(Downsample(outputs, halves_frames))
            self.cell = (1 + halves_frames, 2)

    def forward(self, x: Activations, features: Features) -> Activations:
        before = x.total()
        made = through(self.downsamples, x, features).total()
        made += _averaged(before, *self.cell, made.shape[-1])
        return Activations(made)


def _add_repeated(made: Tensor, x: Tensor, frames: int) -> None:
    """Add to `made [t * frames, 2H, 2W, outputs]` the channels of `x [t, H, W, C]`, repeated and
    spread over its cells.

    Of a video's first latent frame `made` has one frame, which gets the last of the repeated ones.
    """
    t, height, width, channels = x.shape
    outputs = made.shape[-1]
    repeats = 4 * frames * outputs // channels
    cells = made.view(t, -1, height, 2, width, 2, outputs)
    # a repeated channel is the same in all columns, then in all rows, then in all frames
    columns = 2 if repeats == 1 else 1
    rows = 2 if repeats <= 2 else 1
    sources = rearrange(
        x,
        "t h w (c frames rows columns) -> t frames h rows w columns c",
        c=outputs,
        rows=rows,
        columns=columns,
    )
    cells += sources[:, -cells.shape[1] :]


def _averaged(x: Tensor, frames: int, side: int, outputs: int) -> Tensor:
    """Means of `x [t, H, W, C]` over cells of `frames x side x side` and neighbouring channels."""
    # a frame of zeros goes before an odd one, so that the first of a video counts by half
    if len(x) % frames:
        x = nn.functional.pad(x, (0, 0, 0, 0, 0, 0, 1, 0))
    cells = rearrange(
        x,
        "(t frames) (h rows) (w columns) c -> t h w (c frames rows columns)",
        frames=frames,
        rows=side,
        columns=side,
    )
    return cells.unflatten(-1, (outputs, -1)).mean(-1)


class Wan22Decoder(WanDecoder):
    latents = WAN22
    colours = 12
    base = 256

    def levels(self, widths: list[int]) -> list[nn.Module]:
        return list(map(UpStage, (widths[0], *widths), widths, (*DOUBLES_FRAMES, None)))

    def forward(self, z: Tensor, features: Features) -> Tensor:
        made = super().forward(z, features)
        spread = "t h w (colours columns rows) -> t (h rows) (w columns) colours"
        return rearrange(made, spread, rows=2, columns=2)


class Wan22Encoder(WanEncoder):
    latents = WAN22
    colours = 12
    base = 160

    def levels(self, widths: list[int]) -> list[nn.Module]:
        return list(map(DownStage, (widths[0], *widths), widths, (*HALVES_FRAMES, None)))

    def _next(self, clip: Tensor, features: Features) -> Tensor:
        gathered = "t (h rows) (w columns) colours -> t h w (colours columns rows)"
        cells = rearrange(clip, gathered, rows=2, columns=2)
        return super()._next(cells.contiguous(), features)
