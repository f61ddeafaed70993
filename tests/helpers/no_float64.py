"""A stand-in for devices without float64."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class RefuseFloat64(TorchDispatchMode):
    """Behaves like Apple GPUs, which have no float64: none may be made on the device (`meta` stands for it)."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(tensor, torch.Tensor) and (tensor.dtype, tensor.device.type) == (torch.float64, "meta"):
                raise TypeError(f"{func} made a float64 tensor on the device")
        return made
