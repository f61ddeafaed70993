"""Weights in equal shares on all ranks (FSDP2): a layer is whole only while it is computed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import torch
import torch.distributed as dist

from ..model.wan import WanModel
from .peers import losing_peers


class GatheredLayers:
    """The layers of a sharded model as `wan.forward_block` iterates over them.

    Each is gathered from all ranks before it is handed out, while the one before it is computed,
    and freed after it.
    """

    def __init__(self, layers: Any):
        self._layers = list(layers)

    def __len__(self) -> int:
        return len(self._layers)

    def __getitem__(self, layer: int) -> Any:
        """A layer as it lies here, of which only the modulation is whole."""
        return self._layers[layer]

    def __iter__(self) -> Iterator[Any]:
        with losing_peers():
            coming = self._layers[0].unshard(async_op=True)
        try:
            for number, layer in enumerate(self._layers):
                with losing_peers():
                    coming.wait()
                    if number + 1 < len(self._layers):
                        coming = self._layers[number + 1].unshard(async_op=True)
                yield layer
                layer.reshard()
        finally:  # the clean pass leaves the last layer early
            for layer in self._layers:
                layer.reshard()


class ShardedModel:
    """Parts of a `WanModel` that `wan.forward_block` uses: its layers are sharded, all else is
    whole on every rank.
    """

    def __init__(self, model: WanModel):
        self.whole = model
        self.blocks = GatheredLayers(model.blocks)
        self.patch_size = model.patch_size
        self.num_heads = model.num_heads
        self.freq_dim = model.freq_dim
        self.text_len = model.text_len
        self.text_embedding = model.text_embedding
        self.time_embedding = model.time_embedding
        self.time_projection = model.time_projection
        self.patch_embedding = model.patch_embedding
        self.head = model.head


def weight_bytes(model: Any) -> int:
    """Bytes of a model's weights on this rank, between two layers."""
    from torch.distributed.tensor import DTensor

    whole = model.whole if isinstance(model, ShardedModel) else model
    weights = (*whole.parameters(), *whole.buffers())  # buffers hold those in 8 bits
    return sum(
        (weight.to_local() if isinstance(weight, DTensor) else weight).nbytes for weight in weights
    )


def shard(model: WanModel, device: torch.device) -> ShardedModel:
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
    return ShardedModel(model)
