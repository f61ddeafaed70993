"""The decoder network of the Wan 2.1 VAE, latent frame by latent frame. Modules have the names of
Wan's own file.

Activations are `[frames, height, width, channels]`, contiguous, so that convolutions read the
channels of a pixel side by side. A causal convolution reads a frame and the two before it, zeros at
the beginning of a video, else kept features. Layers that double the frames leave the first latent
frame as it is, so it gives 1 video frame, others 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...kernels.feature_frames import PAST_FRAMES, feature_frames
from ..devices import host_memory
from ..model.latents import WAN21, LatentFormat

LEVELS = (4, 4, 2, 1)  # channels from latents to video frames, as multiples of the base width
# after these levels; height and width are doubled after each but the last
DOUBLES_FRAMES = (True, True, False)
BLOCKS = 3  # residual blocks of a level
CHUNK_FRAMES = 4  # latent frames in the longest chunk: a block of three, and one that was held back
LONG_CHUNK_FRAMES = 9  # the same of blocks of eight, which models on Wan 2.2 make
# A 3x3 convolution of an image whose pixels were each repeated 2x2 is a transposed convolution with
# 4x4 weights, which are sums of the nine: 4 products an output pixel instead of 9, and no enlarged
# image. Row: which of the 3 are summed.
_SPREAD = ((0, 0, 1), (0, 1, 1), (1, 1, 0), (1, 0, 0))


class Features:
    """State of a video between latent frames: the last two input frames of every causal
    convolution.
    """

    def __init__(self) -> None:
        self.begun = False  # the first latent frame is done
        self.kept: dict[nn.Module, Tensor] = {}
        self._parked: dict[nn.Module, Tensor] = {}

    def past(self, conv: CausalConv, x: Tensor) -> Tensor:
        """The frames `[2, H, W, C]` before `x`, the input of `conv`; zeros at first. Changed in
        place by callers.
        """
        if conv not in self.kept:
            self.kept[conv] = x.new_zeros(PAST_FRAMES, *x.shape[1:])
        return self.kept[conv]

    def before(self, conv: CausalConv, x: Tensor) -> Tensor:
        """`x` `[t, H, W, C]` with the two frames before it, `[2 + t, H, W, C]`; its last two are
        kept.
        """
        past = self.past(conv, x)
        frames = torch.cat([past, x])
        past.copy_(frames[-PAST_FRAMES:])
        return frames

    def park(self) -> None:
        """Move them from a GPU to memory of the host, in the order of the CUDA stream: nothing
        waits if that memory is pinned.
        """
        for conv, frames in self.kept.items():
            if conv not in self._parked:
                self._parked[conv] = host_memory(frames)
            self._parked[conv].copy_(frames, non_blocking=True)
        self.kept.clear()

    def fetch(self, device: torch.device) -> None:
        """Bring back what is parked; the memory of the host is kept for the next time."""
        if not self.kept:
            self.kept = {
                conv: frames.to(device, non_blocking=True, copy=True)
                for conv, frames in self._parked.items()
            }


@dataclass
class Activations:
    """The output `[t, H, W, C]` of a layer, with a bias and a residual that the next norm adds in
    its own pass.
    """

    x: Tensor
    bias: Tensor | None = None
    residual: Tensor | None = None

    def normed(self, norm: Norm, conv: CausalConv, features: Features) -> Tensor:
        """The input `[2 + t, H, W, C]` of `conv`: the frames before, then `silu(norm(sum))`."""
        past = features.past(conv, self.x)
        frames = feature_frames(self.x, past, norm.gamma.flatten(), self.bias, self.residual)
        self.bias = self.residual = None
        return frames

    def total(self) -> Tensor:
        """The sum itself."""
        for term in (self.bias, self.residual):
            if term is not None:
                self.x += term
        self.bias = self.residual = None
        return self.x


class Norm(nn.Module):
    """The weight of a norm that divides a pixel by the root mean square of its channels."""

    def __init__(self, dim: int, axes: int = 3):
        super().__init__()
        self.gamma = nn.Parameter(torch.empty(dim, *(1,) * axes))


class CausalConv(nn.Conv3d):
    """A convolution over space and over a frame and the two before it. Its bias is left to what
    follows.
    """

    def __init__(self, inputs: int, outputs: int, side: int = 3):
        super().__init__(
            inputs, outputs, (PAST_FRAMES + 1, side, side), padding=(0, side // 2, side // 2)
        )

    def rearrange(self) -> None:
        """Order the weights as they are read, with inputs side by side, and add outputs of zeros up
        to a multiple of 8, because tensor cores compute them in eights.
        """
        padded = F.pad(self.weight.data, (0,) * 9 + (-len(self.weight) % 8,))
        self.weight.data = padded.contiguous(memory_format=torch.channels_last_3d)

    def forward(self, frames: Tensor) -> Tensor:
        """`[2 + t, H, W, C]` -> `[t, H, W, outputs]`."""
        # batched first: only so do the strides say channels last, and cuDNN reads the memory as it
        # is
        x = frames[None].permute(0, 4, 1, 2, 3)
        if has_cudnn(x):
            # called directly: PyTorch 2.9 takes another, slow convolution for three dimensions in
            # half precision
            cudnn = torch.backends.cudnn
            padding: Any = self.padding
            sizes = padding, self.stride, self.dilation, 1
            y = torch.cudnn_convolution(
                x, self.weight, *sizes, cudnn.benchmark, False, cudnn.allow_tf32
            )
        else:
            y = F.conv3d(x, self.weight, None, padding=self.padding)
        return y[0, : self.out_channels].permute(1, 2, 3, 0).contiguous()


class ResidualBlock(nn.Module):
    """Norm, SiLU and causal convolution, twice, added to the input."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.residual: Any = nn.ModuleDict(
            {
                "0": Norm(inputs),
                "2": CausalConv(inputs, outputs),
                "3": Norm(outputs),
                "6": CausalConv(outputs, outputs),
            }
        )
        self.shortcut = nn.Conv3d(inputs, outputs, 1) if inputs != outputs else None

    def forward(self, x: Activations, features: Features) -> Activations:
        norm_1, conv_1, norm_2, conv_2 = self.residual.values()
        # nested, so that nothing is in memory for longer than it is read
        hidden = conv_2(
            Activations(conv_1(x.normed(norm_1, conv_1, features)), conv_1.bias).normed(
                norm_2, conv_2, features
            )
        )
        residual = x.total()
        if self.shortcut is not None:
            residual = pointwise(self.shortcut, residual)
        return Activations(hidden, conv_2.bias, residual)


class FrameAttention(nn.Module):
    """Attention within each frame, with one head, added to the input."""

    def __init__(self, dim: int):
        super().__init__()
        self.norm = Norm(dim, axes=2)
        self.to_qkv = nn.Conv2d(dim, 3 * dim, 1)
        self.proj = nn.Conv2d(dim, dim, 1)

    def forward(self, x: Activations, features: Features) -> Activations:
        total = x.total()  # [t, H, W, C]
        pixels = (
            F.normalize(total.float(), dim=-1)
            * total.shape[-1] ** 0.5
            * self.norm.gamma.flatten().float()
        )
        # [t, 1, H W, 3 C]
        qkv = pointwise(self.to_qkv, pixels.to(total.dtype)).flatten(1, 2)[:, None]
        q, k, v = qkv.chunk(3, dim=-1)
        attended = F.scaled_dot_product_attention(q, k, v).view(total.shape)
        return Activations(pointwise(self.proj, attended), residual=total)


class DoublingConv(nn.Conv2d):
    """A 3x3 convolution of images that are enlarged to twice their size. Its bias is left to what
    follows.
    """

    spread: Tensor

    def __init__(self, inputs: int, outputs: int, bias: bool = True):
        super().__init__(inputs, outputs, 3, bias=bias)
        self.register_buffer("spread", None, persistent=False)

    def prepare(self) -> None:
        """Make the weight `[in, out, 4, 4]` of the transposed convolution, stride 2, that does
        both.
        """
        weight = self.weight.data
        # of which only the size is asked; einsum there imports sympy first, 0.7 s
        if weight.is_meta:
            self.spread = weight.new_empty(weight.shape[1], weight.shape[0], 4, 4)
            return
        of = torch.tensor(_SPREAD, dtype=torch.float32, device=weight.device)
        spread = torch.einsum("oikl,ak,bl->ioab", weight.float(), of, of)
        self.spread = spread.to(weight.dtype).contiguous(memory_format=torch.channels_last)

    def forward(self, images: Tensor) -> Tensor:
        """`[n, C, H, W]` -> `[n, outputs, 2H, 2W]`."""
        if has_cudnn(images):
            # called directly: PyTorch would allow algorithms whose sums differ from run to run
            cudnn = torch.backends.cudnn
            sizes = (1, 1), (0, 0), (2, 2), (1, 1), 1
            return torch.cudnn_convolution_transpose(
                images, self.spread, *sizes, cudnn.benchmark, True, cudnn.allow_tf32
            )
        return F.conv_transpose2d(images, self.spread, None, stride=2, padding=1)


class Upsample(nn.Module):
    """Doubles height and width, and from the second latent frame on the number of frames."""

    def __init__(self, dim: int, doubles_frames: bool, outputs: int):
        super().__init__()
        self.time_conv = CausalConv(dim, 2 * dim, side=1) if doubles_frames else None
        self.resample: Any = nn.ModuleDict({"1": DoublingConv(dim, outputs)})

    def in_time(self, frames: Tensor, features: Features) -> Tensor:
        """Twice as many frames, or as many."""
        if self.time_conv is None or not features.begun:
            return frames
        pairs = self.time_conv(features.before(self.time_conv, frames)) + self.time_conv.bias
        return pairs.unflatten(-1, (2, -1)).movedim(-2, 1).flatten(0, 1)

    def forward(self, x: Activations, features: Features) -> Activations:
        conv = self.resample["1"]
        enlarged = conv(self.in_time(x.total(), features).permute(0, 3, 1, 2))
        return Activations(enlarged.permute(0, 2, 3, 1).contiguous(), conv.bias)


class WanDecoder(nn.Module):
    """The decoder's weights, by default in the base width of the released model."""

    latents = WAN21
    colours = 3
    base = 96

    def __init__(self, base: int = 0):
        super().__init__()
        self.base = base = base or self.base
        widths = [base * multiple for multiple in LEVELS]
        channels = self.latents.channels
        self.conv2 = nn.Conv3d(channels, channels, 1)
        self.decoder = nn.ModuleDict(
            {
                "conv1": CausalConv(channels, widths[0]),
                "middle": middle(widths[0]),
                "upsamples": nn.ModuleList(self.levels(widths)),
                "head": nn.ModuleDict({"0": Norm(base), "2": CausalConv(base, self.colours)}),
            }
        )

    def levels(self, widths: list[int]) -> list[nn.Module]:
        """The layers from the widest level to the narrowest."""
        layers = []
        for level, width in enumerate(widths):
            layers += residual_blocks(widths[level - 1] // 2 if level else width, width, BLOCKS)
            if level < len(DOUBLES_FRAMES):
                layers.append(Upsample(width, DOUBLES_FRAMES[level], width // 2))
        return layers

    def prepare(self, rearrange: bool = True) -> WanDecoder:
        """Make what is computed from the weights, which are in place; `rearrange` them as their
        device reads them, in copies. Without that only those of the last layer, the smallest.
        """
        last = self.get_submodule("decoder.head.2")
        for layer in self.modules():
            if isinstance(layer, DoublingConv):
                layer.prepare()
            if isinstance(layer, CausalConv) and (rearrange or layer is last):
                layer.rearrange()
        return self.requires_grad_(False).eval()

    def memory(self, latent_size: tuple[int, int], dtype: torch.dtype) -> tuple[int, int]:
        """Bytes of a video's features, and the most while a chunk of latents of `(h, w)` is
        decoded, these included.

        The peak is in the last level, at the 4 video frames of a latent frame: input, output and
        residual, and the input of a convolution with the two frames before. What libraries take for
        themselves is not counted.
        """
        # channels per pixel of the latents, and at the last level; pixels for one
        features = 0
        inputs = 0
        scale = 1
        for layer in self.modules():
            if isinstance(layer, CausalConv):
                features += layer.in_channels * scale
            elif isinstance(layer, DoublingConv):
                inputs = layer.out_channels
                scale *= 4
        pixels = latent_size[0] * latent_size[1]
        held = PAST_FRAMES * features * pixels * dtype.itemsize
        activations = scale * (4 * self.base + (4 + 4 + PAST_FRAMES) * inputs) * dtype.itemsize
        return held, held + pixels * (activations + made_bytes(self.latents))

    def forward(self, z: Tensor, features: Features) -> Tensor:
        """Decode the next latent frame `[h, w, 16]` of a video to `[1 if it is the first, else 4,
        8h, 8w, 3]`.
        """
        return run_parts(self.decoder, pointwise(self.conv2, z)[None], features)


def residual_blocks(inputs: int, width: int, count: int) -> list[nn.Module]:
    """Blocks of one width after each other."""
    return [ResidualBlock(width if block else inputs, width) for block in range(count)]


def middle(width: int) -> nn.ModuleList:
    """The layers where images are smallest."""
    return nn.ModuleList(
        [ResidualBlock(width, width), FrameAttention(width), ResidualBlock(width, width)]
    )


def run_parts(parts: Any, x: Tensor, features: Features) -> Tensor:
    """Run a network's first convolution, its lists of layers and its head on `[t, H, W, C]`."""
    conv, *layers, head = parts.values()
    norm, last = head.values()
    hidden = Activations(conv(features.before(conv, x)), conv.bias)
    for part in layers:
        hidden = through(part, hidden, features)
    features.begun = True
    return last(hidden.normed(norm, last, features)) + last.bias


def through(layers: Any, x: Activations, features: Features) -> Activations:
    """Run layers one after another."""
    for layer in layers:
        x = layer(x, features)
    return x


def pointwise(conv: nn.Conv2d | nn.Conv3d, x: Tensor) -> Tensor:
    """A convolution that reads one pixel at a time, of `[..., C]`."""
    return F.linear(x, conv.weight.flatten(1), conv.bias)


def has_cudnn(x: Tensor) -> bool:
    """Whether cuDNN can compute convolutions of this tensor."""
    return x.is_cuda and torch.version.hip is None and torch.backends.cudnn.enabled


def made_bytes(latents: LatentFormat) -> int:
    """Bytes per pixel of the latents of the video frames that are made of a chunk."""
    frames = CHUNK_FRAMES if latents is WAN21 else LONG_CHUNK_FRAMES
    return 4 * frames * 3 * torch.float32.itemsize * latents.stride**2
