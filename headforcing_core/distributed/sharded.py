"""Weights in equal shares on all ranks (FSDP2): a layer is whole only while it is computed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn

from ..model.wan import WanModel
from .peers import losing_peers


class GatheredLayers(nn.ModuleList):
    """The sharded layers of a model as `wan.forward_block` iterates over them.

    Each is gathered from all ranks before it is handed out, while the one before it is computed,
    and freed after it. By number, a layer is as it lies here: of it only the modulation is whole.
    """

    def __iter__(self) -> Iterator[Any]:
        layers: list[Any] = list(super().__iter__())
        with losing_peers():
            coming = layers[0].unshard(async_op=True)
        try:
            for number, layer in enumerate(layers):
                with losing_peers():
                    coming.wait()
                    if number + 1 < len(layers):
                        coming = layers[number + 1].unshard(async_op=True)
                yield layer
                layer.reshard()
        finally:  # the clean pass leaves the last layer early
            for layer in layers:
                layer.reshard()


def weight_bytes(model: Any) -> int:
    """Bytes of a model's weights on this rank, between two layers."""
    from torch.distributed.tensor import DTensor

    weights = (*model.parameters(), *model.buffers())  # buffers hold those in 8 bits
    return sum(
        (weight.to_local() if isinstance(weight, DTensor) else weight).nbytes for weight in weights
    )


def shard(model: WanModel, device: torch.device) -> None:
    """Keep on `device` this rank's share of each layer of `model`, which may be on the CPU, and
    everything else.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for layer in model.blocks:
        # read for all layers at once, and small: a buffer is not divided
        modulation = cast(torch.Tensor, layer.modulation).to(device)
        del layer.modulation
        layer.register_buffer("modulation", modulation)
        fully_shard(layer, mesh=mesh, reshard_after_forward=True)
    for name, module in model.named_children():
        if name != "blocks":
            module.to(device)
    model.blocks = GatheredLayers(model.blocks)
