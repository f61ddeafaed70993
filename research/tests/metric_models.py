"""Tiny random models in the layouts of the published files that the metrics read, and video frames
to measure.
"""

import json
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional


def tiny_models(folder: Path) -> Path:
    """DINO, two CLIPs with a tokenizer and an aesthetic head of 24 features; no RAFT, which has one
    size.
    """
    from transformers import CLIPConfig, CLIPModel, ViTConfig, ViTModel

    torch.manual_seed(0)
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    ViTModel(ViTConfig(**sizes, image_size=32, patch_size=8)).save_pretrained(
        folder / "dino-vitb16"
    )
    words = vocabulary()
    for name in ("clip-vit-base-patch32", "clip-vit-large-patch14"):
        text = {
            **sizes,
            "vocab_size": len(words),
            "max_position_embeddings": 20,
            "projection_dim": 24,
        }
        text |= {
            "bos_token_id": len(words) - 2,
            "eos_token_id": 2,
            "pad_token_id": 1,
        }  # as in the published file
        vision = {**sizes, "image_size": 32, "patch_size": 8, "projection_dim": 24}
        CLIPModel(
            CLIPConfig(text_config=text, vision_config=vision, projection_dim=24)
        ).save_pretrained(folder / name)
        (folder / name / "vocab.json").write_text(json.dumps(words), encoding="utf-8")
        (folder / name / "merges.txt").write_text("#version: 0.2\nb a\n", encoding="utf-8")
    head = {"weight": torch.randn(1, 24), "bias": torch.randn(1)}
    torch.save(head, folder / "sa_0_4_vit_l_14_linear.pth")
    return folder


def vocabulary() -> dict[str, int]:
    """Letters, letters that end a word, one merge, and the two special tokens, which are the last
    as in CLIP's.
    """
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    ends = (f"{letter}</w>" for letter in letters)
    words = [
        "!",
        "#",
        "$",
        *letters,
        *ends,
        "ba",
        "<|startoftext|>",
        "<|endoftext|>",
    ]
    return {word: number for number, word in enumerate(words)}


HEIGHT = 40
WIDTH = 56  # awkward: neither square nor whole patches


def frames(count: int, seed: int = 0, size: tuple[int, int] = (HEIGHT, WIDTH)) -> np.ndarray:
    """Noise that changes slowly."""
    rng = np.random.default_rng(seed)
    a = rng.integers(0, 256, (*size, 3))
    b = rng.integers(0, 256, (*size, 3))
    return np.stack([(a + (b - a) * i / max(count - 1, 1)).astype(np.uint8) for i in range(count)])


def consistency_in_a_loop(features: torch.Tensor) -> float:
    total = 0.0
    for i in range(1, len(features)):
        before = max(
            0.0,
            functional.cosine_similarity(features[i - 1 : i], features[i : i + 1]).item(),
        )
        first = max(
            0.0,
            functional.cosine_similarity(features[:1], features[i : i + 1]).item(),
        )
        total += (before + first) / 2
    return total / (len(features) - 1)
