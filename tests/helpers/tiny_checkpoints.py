"""Small random model files that ComfyUI's own loaders accept, and stand-ins for the one model that
cannot be shrunk.
"""

import math
from itertools import product
from pathlib import Path
from typing import Any

import torch
from headforcing.headforcing_core.head_profiles.profile import HeadProfile
from headforcing.headforcing_core.video.tiny_decoder import TinyDecoder
from safetensors.torch import save_file

Weights = dict[str, torch.Tensor]


def wan_t2v_weights(
    dim: int = 256, ffn: int = 512, layers: int = 2, seed: int = 0, channels: int = 16
) -> Weights:
    """A Wan T2V state dict with original names; dim // 128 heads, text width 4096, patches of 16 or
    48 channels.
    """
    make = _Random(seed)
    make.conv("patch_embedding", dim, channels, 1, 2, 2)
    for name, outs, ins in (
        ("text_embedding.0", dim, 4096),
        ("text_embedding.2", dim, dim),
        ("time_embedding.0", dim, 256),
        ("time_embedding.2", dim, dim),
        ("time_projection.1", 6 * dim, dim),
        ("head.head", 4 * channels, dim),
    ):
        make.conv(name, outs, ins)
    make.normal("head.modulation", 1, 2, dim, std=dim**-0.5)
    for block in (f"blocks.{i}" for i in range(layers)):
        make.normal(f"{block}.modulation", 1, 6, dim, std=dim**-0.5)
        for attention in (f"{block}.self_attn", f"{block}.cross_attn"):
            for name in "qkvo":
                make.conv(f"{attention}.{name}", dim, dim)
            make.scale(f"{attention}.norm_q.weight", dim)
            make.scale(f"{attention}.norm_k.weight", dim)
        make.scale(f"{block}.norm3.weight", dim)
        make.normal(f"{block}.norm3.bias", dim, std=0.02)
        make.conv(f"{block}.ffn.0", ffn, dim)
        make.conv(f"{block}.ffn.2", dim, ffn)
    return make.weights


def livetalk_weights(
    dim: int = 256, layers: int = 4, features: int = 14 * 768, hidden: int = 8, seed: int = 6
) -> Weights:
    """A model that speech drives, in the released layout: 33 input channels and audio tensors, read
    before the layers from the third to the middle.
    """
    weights = wan_t2v_weights(dim, layers=layers, seed=seed)
    make = _Random(seed)
    make.conv("patch_embedding", dim, 33, 1, 2, 2)
    make.conv("audio_proj.proj", hidden, 4 * features)
    make.scale("audio_proj.norm_out.weight", hidden)
    make.normal("audio_proj.norm_out.bias", hidden, std=0.02)
    for place in range(layers // 2 - 1):
        make.conv(f"audio_cond_projs.{place}", dim, hidden)
    return weights | make.weights


def wav2vec2(path: Path, width: int = 768, seed: int = 7) -> Path:
    """Write a wav2vec2 encoder of the base size in 16 bits (190 MB): ComfyUI loads no smaller
    one. Of another width it is that of the large encoder, cut to one layer.
    """
    import transformers  # none of ComfyUI's environment

    torch.manual_seed(seed)
    config = transformers.Wav2Vec2Config()
    if width != config.hidden_size:
        config = transformers.Wav2Vec2Config(
            hidden_size=width,
            num_hidden_layers=1,
            num_attention_heads=16,
            intermediate_size=4 * width,
            feat_extract_norm="layer",
            conv_bias=True,
            do_stable_layer_norm=True,
        )
    weights = transformers.Wav2Vec2Model(config).state_dict()
    save_file({name: tensor.half() for name, tensor in weights.items()}, path)
    return path


def wan_t2v(
    path: Path, dim: int = 256, ffn: int = 512, layers: int = 2, seed: int = 0, layout: str = "bare"
) -> Path:
    """Write a tiny DiT (13 MB by default).

    `bare` is a flat state dict, .safetensors or .pt by the file name; `generator_ema` is the layout
    in which the
    Self Forcing authors publish: a .pt file with {"generator_ema": {"model.<name>": ...}}.
    """
    weights = wan_t2v_weights(dim, ffn, layers, seed)
    if path.suffix == ".safetensors":
        save_file(weights, path)
        return path
    published = {"generator_ema": {f"model.{name}": tensor for name, tensor in weights.items()}}
    torch.save(published if layout == "generator_ema" else weights, path)
    return path


def wan_lora(
    path: Path, dim: int = 256, layers: int = 2, rank: int = 4, seed: int = 1, strength: float = 0.1
) -> Path:
    """Write a LoRA on every self-attention q and v of the tiny DiT; `strength` is the size of the
    change it makes.
    """
    make = _Random(seed)
    for layer, name in product(range(layers), "qv"):
        target = f"diffusion_model.blocks.{layer}.self_attn.{name}"
        make.normal(f"{target}.lora_A.weight", rank, dim, std=dim**-0.5)
        make.normal(f"{target}.lora_B.weight", dim, rank, std=strength * rank**-0.5)
        make.weights[f"{target}.alpha"] = torch.tensor(float(rank))
    save_file(make.weights, path)
    return path


def published_lora(
    path: Path, dim: int = 256, ffn: int = 512, layers: int = 2, rank: int = 4, seed: int = 5
) -> Path:
    """Write a LoRA as LongLive's is published: PEFT's names, every linear layer, under a training
    key.
    """
    make = _Random(seed)
    sizes = {f"{kind}_attn.{part}": (dim, dim) for kind, part in product(("self", "cross"), "qkvo")}
    sizes |= {"ffn.0": (ffn, dim), "ffn.2": (dim, ffn)}
    for layer in range(layers):
        for module, (out, into) in sizes.items():
            name = f"base_model.model.blocks.{layer}.{module}"
            make.normal(f"{name}.lora_A.weight", rank, into, std=into**-0.5)
            make.normal(f"{name}.lora_B.weight", out, rank, std=0.1 * rank**-0.5)
    critic = {name: tensor.flip(0) for name, tensor in make.weights.items()}
    torch.save({"generator_lora": make.weights, "critic_lora": critic}, path)
    return path


def wan22_vae(
    path: Path, decoder: int = 4, encoder: int = 4, dtype: torch.dtype = torch.float32
) -> Path:
    """Write a Wan 2.2 VAE of these base widths; the released one has 256 and 160, and ComfyUI loads
    no other.
    """
    torch.manual_seed(5)
    # programs in ComfyUI's environment import this module, too
    from headforcing.headforcing_core.video.wan22 import Wan22Decoder, Wan22Encoder

    weights = Wan22Decoder(decoder).state_dict() | Wan22Encoder(encoder).state_dict()
    save_file(
        {
            name: (torch.ones_like(t) if "gamma" in name else t).to(dtype)
            for name, t in weights.items()
        },
        path,
    )
    return path


def wan_vae(path: Path, dim: int = 8, seed: int = 2) -> Path:
    """Write a Wan 2.1 VAE with base width `dim` (3.7 MB at 8; the released one has 96). ComfyUI
    0.3.75 and newer.
    """
    from headforcing.headforcing_core.video.wan_decoder import WanDecoder
    from headforcing.headforcing_core.video.wan_encoder import WanEncoder

    make = _Random(seed)
    with torch.device("meta"):
        shapes = WanEncoder(dim).state_dict() | WanDecoder(dim).state_dict()
    for name, empty in shapes.items():
        if name.endswith("gamma"):
            make.scale(name, *empty.shape)
        else:
            make.normal(
                name, *empty.shape, std=0.02 if name.endswith("bias") else empty[0].numel() ** -0.5
            )
    save_file(make.weights, path)
    return path


def upscaler(path: Path, scale: int = 2, width: int = 4, seed: int = 3) -> Path:
    """Write a Real-ESRGAN Compact model, which spandrel knows by its names: nearest pixels and
    small random detail.
    """
    make = _Random(seed)
    make.conv("body.0", width, 3, 3, 3)
    make.scale("body.1.weight", width)
    make.conv("body.2", width, width, 3, 3)
    make.scale("body.3.weight", width)
    make.conv("body.4", 3 * scale**2, width, 3, 3)
    make.weights["body.4.weight"] *= 0.2
    make.weights["body.4.bias"] *= 0.2
    save_file(make.weights, path)
    return path


def interpolator(path: Path, width: int = 8, seed: int = 4) -> Path:
    """Write a RIFE model as ComfyUI's Load Frame Interpolation Model reads it, from 0.30.0 on or a
    little earlier.
    """
    make = _Random(seed)
    head = 4
    make.conv("encode.cnn0", 16, 3, 3, 3)
    make.conv("encode.cnn1", 16, 16, 3, 3)
    make.conv("encode.cnn2", 16, 16, 3, 3)
    make.transposed("encode.cnn3", 16, head)
    for block in range(5):
        name = f"blocks.{block}"
        ins = 7 + 2 * head if block == 0 else 20 + 2 * head
        make.conv(f"{name}.conv0.0.0", width // 2, ins, 3, 3)
        make.conv(f"{name}.conv0.1.0", width, width // 2, 3, 3)
        for layer in range(8):
            make.conv(f"{name}.convblock.{layer}.conv", width, width, 3, 3)
            make.weights[f"{name}.convblock.{layer}.beta"] = torch.ones(1, width, 1, 1)
        make.transposed(f"{name}.lastconv.0", width, 52)
    save_file(make.weights, path)
    return path


class _Random:
    """Collects named random tensors whose sizes keep activations near one."""

    def __init__(self, seed: int):
        self.weights: Weights = {}
        self._generator = torch.Generator().manual_seed(seed)

    def normal(self, name: str, *shape: int, std: float) -> None:
        self.weights[name] = torch.randn(shape, generator=self._generator) * std

    def scale(self, name: str, *shape: int) -> None:
        self.weights[name] = 1 + 0.1 * torch.randn(shape, generator=self._generator)

    def conv(self, name: str, outs: int, *ins: int) -> None:
        self.normal(f"{name}.weight", outs, *ins, std=math.prod(ins) ** -0.5)
        self.normal(f"{name}.bias", outs, std=0.02)

    def transposed(self, name: str, ins: int, outs: int) -> None:
        self.normal(f"{name}.weight", ins, outs, 4, 4, std=(4 * ins) ** -0.5)
        self.normal(f"{name}.bias", outs, std=0.02)


FAKE_NODES_FILE = "headforcing_test_fakes.py"
FAKE_COND_NODE = (Path(__file__).parents[1] / "comfy" / "programs" / "fake_nodes.py").read_text(
    "utf-8"
)


def tiny_decoder(path: Path) -> None:
    """A TAEHV decoder for drafts, whose values neither vanish nor explode."""
    torch.manual_seed(0)
    weights = TinyDecoder().state_dict()
    save_file(
        {
            name: torch.randn_like(weight) * weight[0].numel() ** -0.5
            for name, weight in weights.items()
        },
        path,
    )


def native_files(server: Any) -> None:
    """Small files in a ComfyUI server's models: model (two layouts), VAE, head profile."""
    profile = server.model_path("head_profiles", "hf_tiny_2x2.json")
    if profile.exists():
        return
    wan_t2v(server.model_path("diffusion_models", "hf_tiny.safetensors"))
    wan_t2v(server.model_path("diffusion_models", "hf_tiny_published.pt"), layout="generator_ema")
    wan_vae(server.model_path("vae", "hf_tiny_vae.safetensors"))
    roles = (("local", "anchor"), ("memory", "memory"))
    profile.write_text(HeadProfile("tiny", 2, 2, roles).to_json())
