"""The embedded toy model as native MODEL, CLIP and VAE of ComfyUI."""

import logging
from typing import Any

import comfy.latent_formats
import comfy.model_management
import comfy.model_patcher
import comfy.sd
import torch

from ...headforcing_core.demo import word_hash
from ...headforcing_core.demo.assets import TOY_CONFIG, load_autoencoder, model_path
from ...headforcing_core.demo.rooms_autoencoder import PREVIEW_BIAS, PREVIEW_FACTORS, RoomsStreamingDecoder
from ...headforcing_core.weights.checkpoint import load_state_dict
from . import native_model


class ToyLatentFormat(comfy.latent_formats.Wan21):
    """Toy latents are normalised as they are; the factors give the live preview its colours."""

    def __init__(self) -> None:
        super().__init__()
        self.latent_rgb_factors = [list(row) for row in PREVIEW_FACTORS]
        self.latent_rgb_factors_bias = list(PREVIEW_BIAS)
        self.taesd_decoder_name = None

    def process_in(self, latent: torch.Tensor) -> torch.Tensor:
        return latent

    def process_out(self, latent: torch.Tensor) -> torch.Tensor:
        return latent


class ToyTokenizer:
    """Passes the text on: the toy encoder reads words, not tokens."""

    def __init__(self, embedding_directory: Any = None, tokenizer_data: Any = None):
        pass

    def tokenize_with_weights(self, text: str, return_word_ids: bool = False, **_: Any) -> dict[str, list]:
        return {"toy": [[(text, 1.0)]]}

    def untokenize(self, tokens: Any) -> Any:
        return tokens

    def state_dict(self) -> dict:
        return {}


class ToyTextEncoder(torch.nn.Module):
    """The word-hash encoder with the methods `comfy.sd.CLIP` calls."""

    def __init__(self, dtype: Any = None, device: Any = None, model_options: Any = None):
        super().__init__()
        self.dtypes = {torch.float32}

    def encode_token_weights(self, tokens: dict[str, list]) -> tuple[torch.Tensor, None]:
        [[(text, _)]] = tokens["toy"]
        return word_hash.encode(text)[None], None

    def set_clip_options(self, options: dict) -> None:
        pass

    def reset_clip_options(self) -> None:
        pass

    def memory_estimation_function(self, *_: Any, **__: Any) -> int:
        return 0

    def load_sd(self, sd: dict) -> tuple[list, list]:
        return [], []


class _ToyClipTarget:
    params: dict[str, Any] = {}
    clip = ToyTextEncoder
    tokenizer = ToyTokenizer


class ToyFirstStage(torch.nn.Module):
    """The toy autoencoder with the methods that `comfy.sd.VAE` calls on its network; video frames in -1..1."""

    def __init__(self) -> None:
        super().__init__()
        self.autoencoder = load_autoencoder()

    def decode(self, z: torch.Tensor, **_: Any) -> torch.Tensor:
        """`[videos, 16, frames, h, w]` -> `[videos, 3, video frames, H, W]`."""
        video_frames = torch.stack([self.autoencoder.decode(video) for video in z.transpose(1, 2)])
        return video_frames.movedim(-1, 1) * 2 - 1

    def encode(self, x: torch.Tensor, **_: Any) -> torch.Tensor:
        """`[videos, 3, video frames, H, W]` -> `[videos, 16, frames, h, w]`."""
        videos = (x.movedim(1, -1) + 1) / 2
        return torch.stack([self.autoencoder.encode(video) for video in videos]).transpose(1, 2)

    def streaming_decoder(self) -> Any:
        return RoomsStreamingDecoder(self.autoencoder)


class ToyVAE(comfy.sd.VAE):
    """A native VAE around the toy autoencoder."""

    def __init__(self) -> None:
        # sets every attribute to a default and then warns that it found no weights, which is what is wanted here
        logging.disable(logging.WARNING)
        try:
            super().__init__(sd={})
        finally:
            logging.disable(logging.NOTSET)
        self.first_stage_model = ToyFirstStage().eval()
        self.latent_channels, self.latent_dim, self.output_channels = 16, 3, 3
        self.upscale_ratio = (lambda frames: max(0, frames * 4 - 3), 8, 8)
        self.downscale_ratio = (lambda video_frames: max(0, (video_frames + 3) // 4), 8, 8)
        self.upscale_index_formula = self.downscale_index_formula = (4, 8, 8)
        self.memory_used_decode = self.memory_used_encode = lambda shape, dtype: 64 * 2**20
        self.device = comfy.model_management.vae_device()
        self.vae_dtype = torch.float32
        self.output_device = comfy.model_management.intermediate_device()
        self.patcher = comfy.model_patcher.ModelPatcher(
            self.first_stage_model, load_device=self.device, offload_device=comfy.model_management.vae_offload_device()
        )


def load_model(disable_dynamic: bool = False) -> Any:
    """The toy transformer as a native MODEL."""
    state_dict, _ = load_state_dict(model_path(), num_heads=TOY_CONFIG.num_heads)
    return native_model.native_model_of_any_size(state_dict, TOY_CONFIG, ToyLatentFormat(), disable_dynamic)


def load_clip() -> Any:
    """The word-hash encoder as a native CLIP."""
    return comfy.sd.CLIP(_ToyClipTarget())


def is_toy_model(model: Any) -> bool:
    """Whether a MODEL is the toy world's."""
    return isinstance(model.model.latent_format, ToyLatentFormat)


def is_toy(clip: Any) -> bool:
    """Whether a CLIP is the toy world's."""
    return isinstance(getattr(clip, "cond_stage_model", None), ToyTextEncoder)
