"""Frames that scenes keep lie in few large pieces of main memory, which the estimate counts and a
render without room for them is refused."""

import math
from itertools import chain

import pytest
import torch
from headforcing.headforcing_core import devices
from headforcing.headforcing_core.devices import download_together, in_pieces, pinned_bytes
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.methods.head_forcing import PRESETS
from headforcing.headforcing_core.plan.resources import Needs, check_scenes

# heads by layer: the paper's 198 memory and 90 anchor heads of 30 layers
HEADS = {"memory": [7] * 18 + [6] * 12, "anchor": [3] * 30}
SIZES = {"832x480": 1560, "1280x704": 3520}  # tokens of a latent frame


def frame_of(heads_of_layers: list[int], tokens: int) -> list[torch.Tensor]:
    """The keys and values of one frame without memory of its own, `[heads, tokens, 128]` a layer."""
    layers = [
        torch.empty(h, tokens, 128, dtype=torch.bfloat16, device="meta") for h in heads_of_layers
    ]
    return [*layers, *layers]


def rounded(pieces: list[list[torch.Tensor]]) -> int:
    """What PyTorch's allocator of pinned memory takes for these pieces."""
    taken = 0
    for piece in pieces:
        size = sum(part.nbytes for part in piece)
        taken += 2 ** math.ceil(math.log2(size))
    return taken


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("role", HEADS)
def test_pinned_memory_of_a_frame_is_at_most_a_quarter_more_than_its_bytes(size, role):
    parts = frame_of(HEADS[role], SIZES[size])
    pieces = in_pieces(parts)
    assert list(map(id, chain(*pieces))) == list(map(id, parts))
    counted = sum(part.nbytes for part in parts)
    assert counted <= rounded(pieces) <= pinned_bytes(counted)
    assert len(pieces) <= counted / (devices.PIECE_BYTES / 2) + 1


def test_copies_have_the_numbers_and_the_shapes_of_the_tensors():
    parts = [torch.randn(3, 5, 8), torch.randn(2, 5, 8)[:, 1:], torch.randn(0, 5, 8)]
    copies = download_together(parts)
    for part, copy in zip(parts, copies, strict=True):
        assert torch.equal(part, copy) and copy.data_ptr() != part.data_ptr() or not part.numel()
    assert download_together([]) == []


NOT_PINNED = (
    "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported",
    "HIP error: out of memory",
    "CUDA error: OS call failed or operation not supported on this OS",
)


@pytest.mark.parametrize("said", NOT_PINNED, ids=lambda said: said[:20])
def test_memory_that_cannot_be_pinned_is_pageable(monkeypatch, said: str):
    refuse_pinning(monkeypatch, said)
    assert devices.host_memory(torch.ones(2, 3)).shape == (2, 3)


def test_another_error_of_the_gpu_is_not_taken_for_memory_that_cannot_be_pinned(monkeypatch):
    refuse_pinning(monkeypatch, "CUDA error: device-side assert triggered")
    with pytest.raises(RuntimeError, match="device-side assert"):
        devices.host_memory(torch.ones(2, 3))


def test_memory_that_the_driver_does_not_have_is_out_of_memory():
    assert devices.is_out_of_memory(RuntimeError(NOT_PINNED[0]))
    assert not devices.is_out_of_memory(RuntimeError("CUDA error: an illegal memory access"))


def refuse_pinning(monkeypatch, said: str) -> None:
    make = torch.empty

    def refusing(*size, pin_memory=False, **options):
        if pin_memory:
            raise RuntimeError(said)
        return make(*size, **options)

    monkeypatch.setattr(torch, "empty", refusing)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


def test_a_render_without_room_for_its_scenes_is_refused_with_what_to_change():
    needs = Needs(1, cache=1, activations=1, prompt=1, scenes=3_000_000_000)
    check_scenes(needs, None)
    check_scenes(needs, 3_000_000_000)
    with pytest.raises(HeadForcingError, match="they take 3.00 GB, 2.00 GB is free.*scenes=off"):
        check_scenes(needs, 2_000_000_000)
    assert "main memory  about 3.00 GB for frames of scenes" in needs.describe()
    assert PRESETS["head_forcing"].kept_scenes == 0
