"""What operations take and make, on tensors without data (`meta`): real sizes, on any machine."""

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class CountsMemory(TorchDispatchMode):
    """The most bytes that the results of all operations took together, without those of `tensors`
    known before, on tensors without data or those of another kind of device.
    """

    def __init__(self, tensors, device="meta"):
        super().__init__()
        self.device = device
        self.known = {tensor.untyped_storage()._cdata for tensor in tensors}
        self.alive: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            storage = (
                tensor.untyped_storage()
                if isinstance(tensor, Tensor) and tensor.device.type == self.device
                else None
            )
            if storage is not None and storage._cdata not in self.known:
                self.alive[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.alive = {key: kept for key, kept in self.alive.items() if not kept[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self.alive.values()))
        return result


class CountsTraffic(TorchDispatchMode):
    """The bytes that all operations read and write, and how many operations: their arguments and
    results, but for views and allocations.
    """

    def __init__(self):
        super().__init__()
        self.bytes = 0
        self.launches = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        name = function.overloadpacket.__name__
        read = tree_leaves((args[1:] if name == "copy_" else args, {**kwargs, "out": None}))
        given = [x for x in read if isinstance(x, Tensor)]
        made = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
        known = {x.untyped_storage()._cdata for x in given}
        is_view = not function._schema.is_mutable and all(
            x.untyped_storage()._cdata in known for x in made
        )
        if not is_view and "empty" not in name:
            self.bytes += sum(x.nbytes for x in (*given, *made))
            self.launches += 1
        return result


class NoLaunch:
    """In place of a Triton kernel: its wrapper allocates as always, and nothing runs."""

    def __getitem__(self, grid):
        return lambda *arguments, **options: None


class RefuseFloat64(TorchDispatchMode):
    """Behaves like Apple GPUs, which have no float64: none may be made on the device (`meta` stands
    for it).
    """

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(tensor, torch.Tensor) and (tensor.dtype, tensor.device.type) == (
                torch.float64,
                "meta",
            ):
                raise TypeError(f"{func} made a float64 tensor on the device")
        return made
