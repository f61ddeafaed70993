"""Decode a long video in constant memory with a VAE that ComfyUI loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import comfy.ldm.wan.vae
import comfy.ldm.wan.vae2_2
import comfy.sd
import comfy.taesd.taehv
import comfy.utils
import torch
from comfy import model_management
from comfy.cli_args import PerformanceFeature, args
from torch import Tensor

from ....headforcing_core.demo.picture_decoder import SCALE
from ....headforcing_core.errors import HeadForcingError
from ....headforcing_core.files import Fields
from ....headforcing_core.model.latents import WAN21, WAN22, LatentFormat, latent_format
from ....headforcing_core.plan.plan import RenderPlan
from ....headforcing_core.video.advice import eight_bit_attention, faster_decoding, tiny_names
from ....headforcing_core.video.memory import DecoderMemory
from ....headforcing_core.video.restarts import FrameCodec
from ....headforcing_core.video.stream import StreamingDecoder
from ....headforcing_core.video.tiny_decoder import TinyDecoder, TinyVideoDecoder, tiny_sizes
from ....headforcing_core.video.wan22 import Wan22Decoder
from ....headforcing_core.video.wan_decoder import CHUNK_FRAMES, WanDecoder
from ....headforcing_core.video.wan_vae import WanVideoDecoder
from .. import folders
from .memory import is_dynamic

_WAN_VAES = (comfy.ldm.wan.vae.WanVAE, comfy.ldm.wan.vae2_2.WanVAE)


class WanStreamingDecoder:
    """The native Wan VAE, decoding a video chunk by chunk with its causal feature cache carried
    along (exact).

    For a VAE that somebody changed; any other is decoded by `WanVideoDecoder` with ComfyUI's
    weights.
    """

    def __init__(self, vae: Any):
        self.vae = vae
        self.net = vae.first_stage_model
        # the counting function was renamed between the supported versions
        wan_vae = comfy.ldm.wan.vae
        count = getattr(wan_vae, "count_cache_layers", None) or wan_vae.count_conv3d
        self._cache_slots = count(self.net.decoder)
        self.reset()

    def reset(self) -> None:
        self._cache: list[Any] = [None] * self._cache_slots

    def decode(self, latents: Tensor) -> Tensor:
        """`[frames, channels, h, w]` -> `[video frames, H, W, 3]` in 0..1."""
        return _decoded(self.vae, latents, self._run)

    def _run(self, z: Tensor) -> Tensor:
        out = self.net.decoder(self.net.conv2(z), feat_cache=self._cache, feat_idx=[0])
        if isinstance(out, list):
            return torch.cat(out, dim=2)
        return out


class TinyStreamingDecoder(TinyVideoDecoder):
    """The network of TAEHV, the tiny decoder for drafts, with ComfyUI's weights, which decodes
    every latent frame once. `scale` is what ComfyUI does with latents before it decodes.
    """

    def __init__(self, network: TinyDecoder, scale: Callable[[Tensor], Tensor]):
        super().__init__(network, normalised=False)
        self._scale = scale

    def _decode(self, latents: Tensor) -> Tensor:
        return super()._decode(self._scale(latents))


class OverlapDecoder:
    """A TAEHV that somebody changed: each chunk is decoded together with a few latent frames before
    it.

    Exact, because its memory goes back 5.25 frames. Its network is called directly: ComfyUI's
    `VAE.decode` would make room on the GPU, and take it from the model that is sampling.
    """

    OVERLAP_FRAMES = 6

    def __init__(self, vae: Any):
        self.vae = vae
        self.reset()

    def reset(self) -> None:
        self._before: Tensor | None = None

    def decode(self, latents: Tensor) -> Tensor:
        joined = latents if self._before is None else torch.cat([self._before, latents])
        video_frames = _decoded(self.vae, joined, self.vae.first_stage_model.decode)
        self._before = joined[-self.OVERLAP_FRAMES :]
        return video_frames[-4 * len(latents) :]  # of a video's first latent frame there are fewer


def _decoded(vae: Any, latents: Tensor, network: Callable[[Tensor], Tensor]) -> Tensor:
    """`[frames, channels, h, w]` -> `[video frames, H, W, 3]` in 0..1, by this part of a VAE's
    network.
    """
    z = latents.transpose(0, 1)[None].to(device=vae.device, dtype=vae.vae_dtype)
    with _current(vae.device):
        out = network(z)
    return vae.process_output(out.to(dtype=torch.float32, copy=True))[0].movedim(0, -1)


def _current(device: torch.device) -> AbstractContextManager[Any]:
    """Make a GPU the current one: ComfyUI streams weights to a layer on the current device's
    stream.
    """
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def check_vae(vae: Any, latents: LatentFormat | None = None) -> None:
    """Refuse what is not a VAE for these latents, by default for those of Wan 2.1 or 2.2."""
    vae.throw_exception_if_invalid()
    net = vae.first_stage_model
    known = isinstance(net, (*_WAN_VAES, comfy.taesd.taehv.TAEHV)) or is_of_demo(vae)
    expected = latents or latent_format(vae.latent_channels)
    if not known or vae.latent_dim != 3 or vae.latent_channels != expected.channels:
        kind = "video" if vae.latent_dim == 3 else "image"
        wanted = latents or WAN21
        raise HeadForcingError(
            f"vae: expected the {wanted.vae}, which has {wanted.channels} latent channels, got "
            f"{type(net).__name__}, one for {kind}s with {vae.latent_channels} latent channels; "
            f"load {wanted.vae_file}"
        )


def is_of_demo(vae: Any) -> bool:
    """Whether it is the autoencoder of the demo model."""
    return hasattr(vae.first_stage_model, "streaming_decoder")


def decoder_memory(vae: Any, latent_size: Sequence[int]) -> DecoderMemory:
    """Bytes that a render's decoder takes, for latents of `(h, w)`."""
    height, width = latent_size
    weights = int(vae.patcher.model_size())
    kind = decoder_kind(vae)
    network: Any = None
    if kind is WanStreamingDecoder:  # ComfyUI's own network takes less
        network = _empty_network(vae)
    elif kind is OverlapDecoder and _is_unchanged(vae):
        network = _empty_tiny_network(vae)
    if network is not None:
        held, peak = network.to(vae.vae_dtype).memory((height, width), vae.vae_dtype)
        copied = 0  # ours has a copy of the weights then, see `own_network`
        if kind is OverlapDecoder or _streams_weights(vae.patcher):
            copied = sum(weight.nbytes for weight in network.parameters())
        return DecoderMemory(weights, held=held + copied, peak=peak + copied)
    frames = CHUNK_FRAMES
    if kind is OverlapDecoder:
        frames += OverlapDecoder.OVERLAP_FRAMES
    shape = (1, vae.latent_channels, frames, height, width)
    return DecoderMemory(weights, peak=int(vae.memory_used_decode(shape, vae.vae_dtype)))


@dataclass(frozen=True)
class HostCodec(FrameCodec):
    """A VAE; takes and gives latents as a LATENT holds them, but between rollouts as a model of
    this format sees them.
    """

    latent_format: Any = None

    def reencode(self, latents: Tensor) -> Tensor:
        found = super().reencode(to_latent(self.latent_format, latents))
        return to_model(self.latent_format, found.to(latents))


def codec_of(vae: Any, latent_format: Any = None) -> HostCodec:
    """Make a codec of this VAE, see `HostCodec`. Its weights must be in place."""
    net = vae.first_stage_model
    return HostCodec(
        partial(_new_decoder, vae),
        net,
        partial(_encode, vae),
        dtype=vae.vae_dtype,
        new_source_decoder=net.source_decoder if is_of_demo(vae) else None,
        latent_format=latent_format,
    )


def decoder_fingerprint(vae: Any) -> str:
    """A hash by which what decodes is known again: of a tiny decoder without its encoder, whose
    weights are any if the file holds none.
    """
    codec = codec_of(vae)
    if is_draft(vae):
        codec = replace(codec, network=codec.network.get_submodule("decoder"))
    return codec.fingerprint()


def picture_scale(vae: Any) -> int:
    """A side of the VAE's decoded video frames, in sides of the render's."""
    return SCALE if is_of_demo(vae) else 1


def picture_size(vae: Any, plan: RenderPlan) -> tuple[int, int]:
    """Width and height of the video that the VAE makes of a render, in pixels."""
    scale = picture_scale(vae)
    return plan.width * scale, plan.height * scale


def to_model(latent_format: Any, latents: Tensor) -> Tensor:
    """`[frames, channels, h, w]` as a LATENT holds them to the same as a model of this format sees
    them.
    """
    return latent_format.process_in(latents.transpose(0, 1)[None])[0].transpose(0, 1)


def to_latent(latent_format: Any, latents: Tensor) -> Tensor:
    """`[frames, channels, h, w]` as a model of this format sees them to the same as a LATENT holds
    them.
    """
    return latent_format.process_out(latents.transpose(0, 1)[None])[0].transpose(0, 1)


def _new_decoder(vae: Any) -> StreamingDecoder:
    """Ours where it can be used. Only now, since under dynamic VRAM it takes memory of the GPU."""
    if (own := own_network(vae)) is not None:
        return WanVideoDecoder(own, normalised=False)
    if (tiny := own_tiny_network(vae)) is not None:
        return TinyStreamingDecoder(tiny, vae.first_stage_model.process_in)
    if vae.latent_channels == WAN22.channels and not is_draft(vae):
        raise HeadForcingError(
            "vae: another node has changed the Wan 2.2 VAE or where its weights lie, and only the "
            "unchanged one is decoded block by block; connect Load VAE directly"
        )
    kind = decoder_kind(vae)
    return vae.first_stage_model.streaming_decoder() if kind is None else kind(vae)


def own_network(vae: Any) -> WanDecoder | None:
    """The decoder of ours on the weights that ComfyUI loaded; None if ComfyUI is to decode.

    ComfyUI decodes what is not a plain VAE of Wan: with patches or hooks, or with modules or
    results that another pack changed. If weights are moved or cast when they are used, as all are
    under dynamic VRAM, ours has a copy.
    """
    net = vae.first_stage_model
    if type(net) not in _WAN_VAES or not _is_unchanged(vae):
        return None
    weights = _weights(net, ("decoder.", "conv2."))
    place = (vae.device, vae.vae_dtype)
    copied = is_dynamic(vae.patcher)
    copied |= any((weight.device, weight.dtype) != place for weight in weights.values())
    own = _empty_network(vae)
    if not _fill(own, {name: w.to(*place, copy=copied) for name, w in weights.items()}):
        return None
    return own.prepare(rearrange=copied)  # ComfyUI's own weights stay as they are


def own_tiny_network(vae: Any) -> TinyDecoder | None:
    """The tiny decoder of ours with a copy of the weights that ComfyUI loaded; None if ComfyUI is
    to decode, as for `own_network`.
    """
    if not is_draft(vae) or not _is_unchanged(vae):
        return None
    own = _empty_tiny_network(vae)
    weights = _weights(vae.first_stage_model, ("decoder.",))
    if own is None or not _fill(
        own, {name: w.to(vae.device, vae.vae_dtype, copy=True) for name, w in weights.items()}
    ):
        return None
    return own.prepare()


def _weights(net: Any, prefixes: tuple[str, ...]) -> dict[str, Tensor]:
    """The weights of a network whose names begin so."""
    return {
        name: weight.detach()
        for name, weight in net.named_parameters()
        if name.startswith(prefixes)
    }


def _fill(network: torch.nn.Module, weights: dict[str, Tensor]) -> bool:
    """Whether a network without weights has these layers; it takes the tensors then."""
    try:
        network.load_state_dict(weights, assign=True)
    except RuntimeError:
        return False
    network.requires_grad_(False)
    return True


def _empty_tiny_network(vae: Any) -> TinyDecoder | None:
    """Our tiny decoder in the size of a TAEHV, without weights; None if it is of something else."""
    sizes = tiny_sizes(_weights(vae.first_stage_model, ("decoder.",)))
    if sizes is None:
        return None
    with torch.device("meta"):
        return TinyDecoder(*sizes).requires_grad_(False)


def _streams_weights(patcher: Any) -> bool:
    """Whether ComfyUI brings all weights to the GPU only as their layers run."""
    state = model_management.VRAMState.NO_VRAM
    return is_dynamic(patcher) or model_management.vram_state == state


def _empty_network(vae: Any) -> WanDecoder:
    """Our decoder in the size of a VAE of Wan, without weights."""
    network = WanDecoder if vae.latent_channels == WAN21.channels else Wan22Decoder
    with torch.device("meta"):
        return network(len(vae.first_stage_model.decoder.head[0].gamma)).requires_grad_(False)


def _is_unchanged(vae: Any) -> bool:
    """Whether the VAE's patcher, the modules of its decoder and what it does with video frames are
    ComfyUI's own.
    """
    net = vae.first_stage_model
    patcher = vae.patcher
    if patcher.patches or getattr(patcher, "object_patches", None):
        return False
    tiny = isinstance(net, comfy.taesd.taehv.TAEHV)
    parts = [net, *net.decoder.modules()]
    if not tiny:
        parts.append(net.conv2)
    for module in parts:
        changes = (
            module._forward_hooks,
            module._forward_pre_hooks,
            getattr(module, "weight_function", None),
            getattr(module, "bias_function", None),
            "forward" in module.__dict__,
        )
        own_code = type(module).forward.__module__.startswith(("comfy.", "torch."))
        if any(changes) or not own_code:
            return False
    values = torch.tensor([-2.0, -1.0, 0.0, 0.5, 3.0])
    expected = values if tiny else ((values + 1) / 2).clamp(0, 1)
    return bool(torch.equal(vae.process_output(values.clone()), expected))


@torch.no_grad()
def _encode(vae: Any, video_frames: Tensor) -> Tensor:
    """Encode a video `[4(n-1)+1, H, W, 3]` in 0..1 to latents `[n, channels, h, w]`.

    The network is called directly: ComfyUI's `VAE.encode` would make room, and take it from the
    model that samples.
    """
    pixels = vae.process_input(video_frames).to(device=vae.device, dtype=vae.vae_dtype)
    with _current(vae.device):
        latents = vae.first_stage_model.encode(pixels.permute(3, 0, 1, 2)[None])
    return latents[0].transpose(0, 1).float()


def decoder_kind(vae: Any) -> type[WanStreamingDecoder] | type[OverlapDecoder] | None:
    """Kind of this pack's decoder that decodes it; None where the network brings its own, as the
    demo's does.
    """
    if is_of_demo(vae):
        return None
    return WanStreamingDecoder if isinstance(vae.first_stage_model, _WAN_VAES) else OverlapDecoder


def is_draft(vae: Any) -> bool:
    """Whether a VAE is a tiny decoder for drafts, whose file may hold no encoder."""
    return decoder_kind(vae) is OverlapDecoder


def draft_decoder(latents: LatentFormat, vae: Any) -> Any:
    """A tiny decoder for drafts of these latents, where ComfyUI has one; else `vae`, None where
    none is connected.
    """
    path = None if vae is None else folders.tiny_decoder_file(tiny_names(latents))
    return vae if path is None else comfy.sd.VAE(sd=comfy.utils.load_torch_file(str(path)))


def advice(vae: Any, sampling: torch.device, dtype: torch.dtype = torch.bfloat16) -> str:
    """A line on faster decoding than by this VAE, and on options of ComfyUI, for models that are
    sampled there in this dtype.
    """
    if is_of_demo(vae):
        return ""
    decoding = vae.device
    tiny = None
    if is_draft(vae):
        decoding = torch.device("cpu")  # as fast on the GPU that samples
    else:
        tiny = folders.tiny_decoder_file(tiny_names(latent_format(vae.latent_channels)))
    return faster_decoding(
        sampling=sampling,
        decoding=decoding,
        tiny=None if tiny is None else tiny.name,
        second_gpu="Select VAE Device, and decode_in_background on the sampler",
        others=_faster_options(sampling, dtype),
    )


def _faster_options(sampling: torch.device, dtype: torch.dtype) -> list[str]:
    """Options of ComfyUI, in words, that round more and are not given."""
    ways = []
    if not args.use_sage_attention:
        ways += eight_bit_attention(sampling, "start ComfyUI with --use-sage-attention")
    # PyTorch has the switch since 2.7; it does nothing to bf16
    switch = getattr(torch.backends.cuda.matmul, "allow_fp16_accumulation", True)
    features = getattr(PerformanceFeature, "Fp16Accumulation", None)
    if sampling.type == "cuda" and dtype == torch.float16 and features and not switch:
        ways.append("fp16 sums in linear layers (start ComfyUI with --fast fp16_accumulation)")
    return ways


def load_decoder(vae: Any, latent_size: Sequence[int], about: Fields | None = None) -> Any:
    """Check a VAE, load its weights and room for one chunk of latents of `(h, w)`, and give its
    streaming decoder.

    `about` as for `FrameCodec.decoder`.
    """
    check_vae(vae)
    needed = decoder_memory(vae, latent_size).peak
    model_management.load_models_gpu([vae.patcher], memory_required=needed)
    return codec_of(vae).decoder(about)
