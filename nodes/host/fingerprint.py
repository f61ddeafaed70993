"""A fingerprint of the weights of a MODEL, so that blocks of one model are not reused for another."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

_WEIGHTS = ("self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o", "cross_attn.q", "ffn.0", "ffn.2")
_SAMPLED_BYTES = 4096


def fingerprint(model: Any) -> str:
    """Names the weights of a MODEL and the patches (LoRA) on it, from a few numbers of every layer.

    The same whether the model is loaded or not: where a LoRA was merged into a loaded weight, the original counts.
    """
    net = model.model.diffusion_model
    digest = hashlib.blake2b(digest_size=8)
    for parameter in (net.head.modulation, *(block.modulation for block in net.blocks)):
        digest.update(parameter.detach().to(device="cpu", dtype=torch.float32).numpy().tobytes())
    for layer, block in enumerate(net.blocks):
        for name in _WEIGHTS:
            original = model.backup.get(f"diffusion_model.blocks.{layer}.{name}.weight") or block.get_submodule(name)
            for part in _weight_numbers(getattr(original, "weight", None)):
                digest.update(part)
    for name, patches in sorted(model.patches.items()):
        digest.update(repr((name, [(patch[0], _few_numbers(patch[1])) for patch in patches])).encode())
    return digest.hexdigest()


def _weight_numbers(weight: Any) -> Iterator[bytes]:
    """What tells a weight from another: its first numbers; of a quantised one its type and a sample of its bytes."""
    if not isinstance(weight, Tensor) or weight.is_meta:
        return
    if type(weight) in (Tensor, torch.nn.Parameter):
        yield repr(weight.detach().flatten()[:4].float().tolist()).encode()
        return
    kind = getattr(weight, "tensor_type", "")  # of ComfyUI-GGUF
    yield f"{type(weight).__name__} {kind}".encode()
    for part in _parts(weight):
        held = part.detach().contiguous().flatten().view(torch.uint8)
        count = min(len(held), _SAMPLED_BYTES)
        spread = torch.arange(count, device=held.device) * len(held) // max(1, count)
        yield held[spread].cpu().numpy().tobytes()


def _parts(weight: Tensor) -> Iterator[Tensor]:
    """The plain tensors that a tensor of another type is made of."""
    if hasattr(weight, "__tensor_flatten__"):
        for name in weight.__tensor_flatten__()[0]:
            yield from _parts(getattr(weight, name))
    else:
        yield weight.detach().as_subclass(Tensor)


def _few_numbers(patch: Any) -> list[Any]:
    """The first numbers of every tensor in a patch: a weight adapter, or tuples of tensors and settings."""
    parts = getattr(patch, "weights", patch)
    if isinstance(parts, Tensor):
        return parts.detach().flatten()[:4].float().tolist()
    return [_few_numbers(part) for part in parts] if isinstance(parts, (list, tuple)) else []
