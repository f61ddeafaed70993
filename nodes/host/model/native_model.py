"""Make a native MODEL of ComfyUI from weights, and the embedded toy model as native MODEL, CLIP and
VAE.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

import comfy.latent_formats
import comfy.model_patcher
import comfy.sd
import comfy.supported_models
import torch
from comfy import model_management
from torch import Tensor, nn
from torch.nn import functional

from ....headforcing_core.demo import word_hash
from ....headforcing_core.demo.assets import SIZE, TOY_CONFIG, load_picture_decoder, model_path
from ....headforcing_core.demo.picture_decoder import SCALE, PictureStreamingDecoder, decoding_bytes
from ....headforcing_core.demo.rooms_autoencoder import (
    PREVIEW_BIAS,
    PREVIEW_FACTORS,
    RoomsStreamingDecoder,
)
from ....headforcing_core.errors import HeadForcingError
from ....headforcing_core.files import Fields
from ....headforcing_core.model.latents import WAN21
from ....headforcing_core.model.speech import audio_tensors
from ....headforcing_core.rollout.schedule import LIVETALK
from ....headforcing_core.weights.checkpoint import load_state_dict
from ....headforcing_core.weights.layouts import SPEECH_CHANNELS
from .loaded_model import SAME_NAMES, computed_dtype, wan_config
from .model_contents import AUDIO


def reloadable(load: Callable[..., Any], *args: Any) -> Any:
    """The MODEL of `load(*args, disable_dynamic=...)`, which ComfyUI can load once more, such as on
    another device.
    """
    model = load(*args)
    model.cached_patcher_init = (load, args)  # read by Select Model Device and MultiGPU CFG Split
    return model


def native_model(
    state_dict: dict[str, Tensor], dtype: torch.dtype | None, disable_dynamic: bool = False
) -> Any:
    """A native MODEL from original Wan names, marked as autoregressive where this ComfyUI knows
    such models. Audio tensors, which ComfyUI leaves out, are attached to it.
    """
    audio = audio_tensors(state_dict)
    for name in audio:
        del state_dict[name]
    channels = state_dict["patch_embedding.weight"].shape[1]
    metadata = {}
    if channels in (WAN21.channels, SPEECH_CHANNELS):  # only those are known as autoregressive
        metadata["config"] = json.dumps({"transformer": {"causal_ar": True}})
    more = {}
    if disable_dynamic:  # an argument that older versions lack
        more["disable_dynamic"] = True
    model = comfy.sd.load_diffusion_model_state_dict(
        state_dict, model_options={"dtype": dtype}, metadata=metadata, **more
    )
    if model is None:
        raise HeadForcingError("ComfyUI does not recognise these weights as a Wan model")
    cast_to_16_bits(model.model)
    if audio:
        model.set_attachments(AUDIO, audio)
    return model


def cast_to_16_bits(inner: Any) -> None:
    """Cast float32 weights that ComfyUI would cast to 16 bits each time it copies them to the
    device, to the same bits.

    This is so with dynamic VRAM, where half of the bytes then need to be copied. Weights stay as
    they are if ComfyUI
    stores them in one dtype and computes in another: it casts small ones to the second only. Small
    weights that a LoRA patches are rounded to 16 bits, as without dynamic VRAM.
    """
    if inner.manual_cast_dtype is not None:
        return
    for module in inner.diffusion_model.modules():
        for name, held in list(module.named_parameters(recurse=False)):
            dtype = computed_dtype(module, name, held)
            if held.dtype == torch.float32 and dtype in (torch.float16, torch.bfloat16):
                setattr(module, name, nn.Parameter(held.to(dtype), requires_grad=False))


class ToyLatentFormat(comfy.latent_formats.Wan21):
    """Toy latents are normalised as they are; the factors give the live preview its colours."""

    def __init__(self) -> None:
        super().__init__()
        self.latent_rgb_factors = [list(row) for row in PREVIEW_FACTORS]
        self.latent_rgb_factors_bias = list(PREVIEW_BIAS)
        self.taesd_decoder_name = None

    def process_in(self, latent: Tensor) -> Tensor:
        return latent

    def process_out(self, latent: Tensor) -> Tensor:
        return latent


class ToyTokenizer:
    """Passes the text on: the toy encoder reads words, not tokens."""

    def __init__(self, **_: Any):
        pass

    def tokenize_with_weights(self, text: str, *_: Any, **__: Any) -> Fields:
        return {"toy": [[(text, 1.0)]]}

    def state_dict(self) -> Fields:
        return {}


class ToyTextEncoder(nn.Module):
    """The word-hash encoder with the methods `comfy.sd.CLIP` calls."""

    def __init__(self, **_: Any):
        super().__init__()
        self.dtypes = {torch.float32}

    def encode_token_weights(self, tokens: Fields) -> tuple[Tensor, None]:
        [[(text, _)]] = tokens["toy"]
        return word_hash.encode(text)[None], None

    def set_clip_options(self, options: Fields) -> None:
        pass

    def reset_clip_options(self) -> None:
        pass


class _ToyClipTarget:
    params: Fields = {}
    clip = ToyTextEncoder
    tokenizer = ToyTokenizer


class ToyFirstStage(nn.Module):
    """The toy autoencoder with the methods that `comfy.sd.VAE` calls on its network; video frames
    in -1..1.
    """

    def __init__(self) -> None:
        super().__init__()
        self.decoder = load_picture_decoder()

    def decode(self, z: Tensor, **_: Any) -> Tensor:
        """`[videos, 16, frames, h, w]` -> `[videos, 3, video frames, 32h, 32w]`."""
        video_frames = torch.stack([self.decoder.decode(video) for video in z.transpose(1, 2)])
        return video_frames.movedim(-1, 1) * 2 - 1

    def encode(self, x: Tensor, **_: Any) -> Tensor:
        """`[videos, 3, video frames, 8h, 8w]` -> `[videos, 16, frames, h, w]`; frames in the size
        of the decoder's are made smaller first.
        """
        if x.shape[-1] == SCALE * SIZE[0]:
            x = functional.avg_pool3d(x, (1, SCALE, SCALE))
        videos = (x.movedim(1, -1) + 1) / 2
        return torch.stack([self.decoder.autoencoder.encode(video) for video in videos]).transpose(
            1, 2
        )

    def streaming_decoder(self) -> Any:
        return PictureStreamingDecoder(self.decoder)

    def source_decoder(self) -> Any:
        """For video frames that are encoded again."""
        return RoomsStreamingDecoder(self.decoder.autoencoder)


class ToyVAE(comfy.sd.VAE):
    """A native VAE around the toy autoencoder."""

    def __init__(self) -> None:
        # sets every attribute to a default and then warns that it found no weights, which is what
        # is wanted here
        logging.disable(logging.WARNING)
        try:
            super().__init__(sd={})
        finally:
            logging.disable(logging.NOTSET)
        self.first_stage_model = ToyFirstStage().eval()
        self.latent_channels = 16
        self.latent_dim = 3
        side = 8 * SCALE
        self.upscale_ratio = (lambda frames: max(0, frames * 4 - 3), side, side)
        self.downscale_ratio = (lambda video_frames: max(0, (video_frames + 3) // 4), 8, 8)
        self.upscale_index_formula = (4, side, side)
        self.downscale_index_formula = (4, 8, 8)
        self.memory_used_decode = lambda shape, dtype: decoding_bytes(*shape[2:])
        self.memory_used_encode = lambda shape, dtype: 64 * 2**20
        self.device = model_management.vae_device()
        self.vae_dtype = torch.float32
        self.output_device = model_management.intermediate_device()
        self.patcher = comfy.model_patcher.ModelPatcher(
            self.first_stage_model,
            load_device=self.device,
            offload_device=model_management.vae_offload_device(),
        )


def load_toy_model(disable_dynamic: bool = False) -> Any:
    """The toy transformer as a native MODEL, whose heads are narrower than ComfyUI's detection
    expects.
    """
    state_dict, _ = load_state_dict(model_path(), num_heads=TOY_CONFIG.num_heads)
    supported = comfy.supported_models
    config = {name: getattr(TOY_CONFIG, name) for name in ("num_layers", "patch_size", *SAME_NAMES)}
    config |= {
        "image_model": "wan2.1",
        "model_type": "t2v",
        "qk_norm": True,
        "cross_attn_norm": True,
    }
    model_config = getattr(supported, "WAN21_CausalAR_T2V", supported.WAN21_T2V)(config)
    model_config.latent_format = ToyLatentFormat()
    model_config.set_inference_dtype(torch.float32, None)
    offload_device = model_management.unet_offload_device()
    model = model_config.get_model(state_dict, "", device=offload_device)
    plain = comfy.model_patcher.ModelPatcher
    patcher_class = plain
    if not disable_dynamic:
        patcher_class = getattr(comfy.model_patcher, "CoreModelPatcher", plain)
    patcher = patcher_class(
        model, load_device=model_management.get_torch_device(), offload_device=offload_device
    )
    model.load_model_weights(state_dict, "")
    return patcher


def load_toy_clip() -> Any:
    """The word-hash encoder as a native CLIP."""
    return comfy.sd.CLIP(_ToyClipTarget())


def is_toy_model(model: Any) -> bool:
    """Whether a MODEL is the toy world's."""
    return isinstance(model.model.latent_format, ToyLatentFormat)


def size_for(model: Any, width: int, height: int) -> tuple[int, int]:
    """Width and height in pixels, where 0 is replaced by what the model was made for."""
    config = wan_config(model)
    made_for = config.latents.size
    if is_toy_model(model):
        made_for = SIZE
    if config.is_driven and LIVETALK.size is not None:
        made_for = LIVETALK.size
    return width or made_for[0], height or made_for[1]


def is_toy_clip(clip: Any) -> bool:
    """Whether a CLIP is the toy world's."""
    return isinstance(getattr(clip, "cond_stage_model", None), ToyTextEncoder)
