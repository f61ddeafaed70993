"""The files of a model that a command names, and the embeddings of prompts by its text encoder."""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass, fields, replace
from pathlib import Path

import torch

from ..errors import HeadForcingError
from ..hashing import digest, file_hash
from ..render.resources import room_on
from ..weights.checkpoint import CheckpointInfo, inspect_checkpoint, load_state_dict


@dataclass(frozen=True)
class ModelFiles:
    """The files of a model given by `--weights` and the arguments that go with it."""

    weights: Path
    num_heads: int | None = None
    lora: Path | None = None
    text_encoder: Path | None = None
    embeddings: Path | None = None
    vae: Path | None = None
    decoder: str = "auto"
    park_features: bool = False

    @classmethod
    def of(cls, args: argparse.Namespace) -> ModelFiles:
        """Take the fields from the arguments of the same names, as far as the command has them."""
        given = vars(args)
        return cls(**{file.name: given[file.name] for file in fields(cls) if file.name in given})

    def inspect(self) -> CheckpointInfo:
        """Describe the weights file; the fingerprint includes the LoRA, if one is given."""
        info = inspect_checkpoint(self.weights, num_heads=self.num_heads)
        lora = self.lora
        if lora is None:
            return info
        return replace(info, identify=lambda: digest(info.fingerprint, file_hash(lora))[:16])

    def check_text(self) -> None:
        """Refuse files that do not say from what prompts are encoded."""
        if (self.text_encoder is None) == (self.embeddings is None):
            raise HeadForcingError("give either --text-encoder (a umT5-xxl file) or --embeddings (precomputed)")

    def encode(self, texts: list[str], device: torch.device) -> list[torch.Tensor]:
        """Text embeddings from `--embeddings` or `--text-encoder`, one per text."""
        from ..weights.umt5 import load_embeddings

        self.check_text()
        if self.text_encoder is not None:
            return encode_texts(self.text_encoder, texts, device)
        assert self.embeddings is not None
        stored = load_embeddings(self.embeddings)
        return [stored[text] for text in texts]

    def load(self) -> dict[str, torch.Tensor]:
        """The weights under Wan names, LoRA merged."""
        return load_state_dict(self.weights, num_heads=self.num_heads, lora=self.lora)[0]


def encode_texts(text_encoder: Path, texts: list[str], device: torch.device) -> list[torch.Tensor]:
    """One text embedding per text, computed on `device` if the encoder fits there now, else on the CPU."""
    from ..weights.umt5 import load_text_encoder

    place = device if text_encoder_bytes(text_encoder, device) else torch.device("cpu")
    if place != device:
        sys.stderr.write(f"note: prompts are encoded on the CPU, {text_encoder.name} does not fit on {device}\n")
    return load_text_encoder(text_encoder, place).encode(texts)


def text_encoder_bytes(text_encoder: Path, device: torch.device) -> int:
    """Memory in bytes of encoding prompts on `device`; 0 where the encoder does not fit there now."""
    from ..weights.umt5 import encoder_bytes

    needed, room = encoder_bytes(text_encoder), room_on(device)
    return needed if device.type == "cpu" or room is None or needed <= room else 0
