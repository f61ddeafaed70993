"""Files of random weights at real size, in the layouts in which models are published."""

from __future__ import annotations

import io
import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

Kinds = dict[str, tuple[torch.dtype, tuple[int, ...]]]  # dtype and shape of tensors by name
PROMPTS = ["a red fox runs through deep snow, morning light", "the fox stops and looks back"]
_NAMES = {
    torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32", torch.float8_e4m3fn: "F8_E4M3",
    torch.uint8: "U8",
}  # fmt: skip


class Numbers:
    """Random numbers by the gigabyte: one drawn block, read from another place for every tensor."""

    def __init__(self) -> None:
        self._block = torch.randn(1 << 24, generator=torch.Generator().manual_seed(0))
        self._at = 0

    def __call__(self, shape: tuple[int, ...], std: float, dtype: torch.dtype) -> Tensor:
        self._at = (self._at + 7919) % 65536
        drawn = (self._block[self._at :] * std).to(dtype)
        filled = torch.empty(shape, dtype=dtype)
        for part in filled.view(-1).split(len(drawn)):
            part.copy_(drawn[: len(part)])
        return filled


def write_tensors(path: Path, tensors: Iterator[tuple[str, Tensor]], kinds: Kinds) -> None:
    """Write a safetensors file tensor by tensor, in the order of `kinds`."""
    header, end = {}, 0
    for name, (dtype, shape) in kinds.items():
        begin, end = end, end + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, tensor in tensors:
            assert (tensor.dtype, tuple(tensor.shape)) == kinds[name], name
            file.write(tensor.contiguous().view(-1).view(torch.uint8).numpy().data)


def released_umt5(matrices: torch.dtype, others: torch.dtype) -> Kinds:
    """The weights of umT5-xxl's encoder under transformers' names."""
    dim, wide, heads, layers, vocabulary, buckets = 4096, 10240, 64, 24, 256384, 32
    shapes: dict[str, tuple[int, ...]] = {"shared.weight": (vocabulary, dim), "encoder.final_layer_norm.weight": (dim,)}
    for layer in range(layers):
        block = f"encoder.block.{layer}.layer."
        shapes |= {f"{block}0.SelfAttention.{name}.weight": (dim, dim) for name in "qkvo"}
        shapes |= {f"{block}1.DenseReluDense.{name}.weight": (wide, dim) for name in ("wi_0", "wi_1")}
        shapes[f"{block}1.DenseReluDense.wo.weight"] = (dim, wide)
        shapes[f"{block}0.SelfAttention.relative_attention_bias.weight"] = (buckets, heads)
        shapes |= {f"{block}{part}.layer_norm.weight": (dim,) for part in range(2)}
    rest = {
        name for name, shape in shapes.items() if len(shape) == 1 or name.endswith(("shared.weight", "bias.weight"))
    }
    return {name: (others if name in rest else matrices, shape) for name, shape in shapes.items()}


def write_umt5(path: Path, scaled: bool) -> None:
    """umT5-xxl's encoder as ComfyUI publishes it: bf16, or matrices in fp8 with a scale each and the rest in fp16."""
    rest = torch.float16 if scaled else torch.bfloat16
    kinds = released_umt5(torch.float8_e4m3fn if scaled else torch.bfloat16, rest)
    tokenizer, scale = torch.frombuffer(bytearray(_tokenizer()), dtype=torch.uint8), torch.tensor(4096**-0.5 / 64)
    small = {"spiece_model": tokenizer}
    if scaled:
        layers = (name.removesuffix(".weight") for name, (dtype, _) in kinds.items() if dtype.itemsize == 1)
        small |= {f"{layer}.scale_weight": scale for layer in layers}
        small["scaled_fp8"] = torch.zeros(0, dtype=torch.float8_e4m3fn)
    numbers = Numbers()

    def tensors() -> Iterator[tuple[str, Tensor]]:
        for name, (dtype, shape) in kinds.items():
            if len(shape) == 1:
                yield name, torch.ones(shape, dtype=dtype)
            else:
                yield name, numbers(shape, 64.0 if dtype.itemsize == 1 else 4096**-0.5, dtype)
        yield from small.items()

    write_tensors(path, tensors(), kinds | {name: (t.dtype, tuple(t.shape)) for name, t in small.items()})


def _tokenizer() -> bytes:
    """A sentencepiece model of the prompts' words, with umT5's special tokens."""
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(PROMPTS * 8), model_writer=model, vocab_size=60, hard_vocab_limit=False,
        pad_id=0, eos_id=1, unk_id=2, bos_id=-1, minloglevel=2,
    )  # fmt: skip
    return model.getvalue()


def write_model(path: Path, family: str = "self_forcing") -> None:
    """A .pt as it is published: the 1.3B model in float32 as `generator_ema`, LongLive 2.0's in bf16 as `generator`."""
    from headforcing.headforcing_core.model.wan import WanModel
    from headforcing.headforcing_core.render.cards import MODELS

    with torch.device("meta"):
        shapes = {name: tuple(tensor.shape) for name, tensor in WanModel(MODELS[family]).state_dict().items()}
    top, dtype = ("generator", torch.bfloat16) if family == "longlive2" else ("generator_ema", torch.float32)
    numbers = Numbers()

    def value(name: str, shape: tuple[int, ...]) -> Tensor:
        if name.endswith("weight") and len(shape) == 1:
            return torch.ones(shape, dtype=dtype)
        return numbers(shape, math.prod(shape[1:]) ** -0.5 if name.endswith("weight") else 0.02, dtype)

    torch.save({top: {f"model.{name}": value(name, shape) for name, shape in shapes.items()}}, path)


def write_vae(path: Path) -> None:
    """The Wan 2.1 VAE as ComfyUI publishes it."""
    from safetensors.torch import load_file, save_file
    from tiny_checkpoints import wan_vae

    wan_vae(path, dim=96)
    save_file({name: tensor.bfloat16() for name, tensor in load_file(path).items()}, path)
