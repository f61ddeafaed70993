"""Files of random weights at real size, in the layouts in which models are published."""

from __future__ import annotations

import io
import json
import struct
from pathlib import Path

import torch
from torch import Tensor

PROMPTS = ["a red fox runs through deep snow, morning light", "the fox stops and looks back"]
NAMES = {
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float32: "F32",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.uint8: "U8",
}


def numbers(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Random numbers by the gigabyte, a million that are drawn, again and again; ones for a
    norm.
    """
    if len(shape) == 1:
        return torch.ones(shape, dtype=dtype)
    drawn = (torch.randn(1 << 20) * (64.0 if dtype.itemsize == 1 else 4096**-0.5)).to(dtype)
    filled = torch.empty(shape, dtype=dtype)
    for part in filled.view(-1).split(len(drawn)):
        part.copy_(drawn[: len(part)])
    return filled


def write_umt5(path: Path, scaled: bool) -> None:
    """umT5-xxl's encoder as ComfyUI publishes it: bf16, or matrices in fp8 with a scale each and
    the rest in fp16.

    Tensor by tensor: all of them do not fit into memory twice.
    """
    from transformers import UMT5Config, UMT5EncoderModel

    sizes = dict(d_model=4096, d_ff=10240, d_kv=64, num_heads=64, num_layers=24, vocab_size=256384)
    with torch.device("meta"):
        weights = UMT5EncoderModel(UMT5Config(**sizes, feed_forward_proj="gated-gelu")).state_dict()
    del weights["encoder.embed_tokens.weight"]  # the same as shared.weight
    rest = torch.float16 if scaled else torch.bfloat16
    small: dict[str, Tensor] = {
        "spiece_model": torch.frombuffer(bytearray(_tokenizer()), dtype=torch.uint8)
    }
    for name, weight in weights.items():
        matrix = not name.endswith(("norm.weight", "shared.weight", "bias.weight"))
        weights[name] = weight.to(torch.float8_e4m3fn if scaled and matrix else rest)
        if scaled and matrix:
            small[f"{name.removesuffix('.weight')}.scale_weight"] = torch.tensor(4096**-0.5 / 64)
    small |= {"scaled_fp8": torch.zeros(0, dtype=torch.float8_e4m3fn)} if scaled else {}
    header = {}
    end = 0
    for name, tensor in (weights | small).items():
        begin = end
        end = end + tensor.nbytes
        header[name] = {
            "dtype": NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, tensor in (weights | small).items():
            drawn = tensor if name in small else numbers(tensor.shape, tensor.dtype)
            file.write(drawn.view(-1).view(torch.uint8).numpy().data)


def _tokenizer() -> bytes:
    """A sentencepiece model of the prompts' words, with umT5's special tokens."""
    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(PROMPTS * 8),
        model_writer=model,
        vocab_size=60,
        hard_vocab_limit=False,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=2,
    )
    return model.getvalue()


def write_model(path: Path, family: str, top: str) -> None:
    """A .pt as it is published, in the default dtype."""
    from headforcing.cli.cards import MODELS
    from tiny_checkpoints import wan_t2v_weights

    config = MODELS[family]
    sizes = dict(
        dim=config.dim,
        ffn=config.ffn_dim,
        layers=config.num_layers,
        channels=config.latents.channels,
    )
    torch.save(
        {top: {f"model.{name}": tensor for name, tensor in wan_t2v_weights(**sizes).items()}}, path
    )
