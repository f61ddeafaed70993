"""A stand-in for CUDA devices on a machine without one: tensors that say they are on a GPU, and
`torch.cuda` for them.

    python stand_in_gpu.py PROGRAM [ARGUMENT ...]        runs a Python program on it
    pytest -p stand_in_gpu ...                           runs tests on it

Every tensor of device `cuda` holds an ordinary CPU tensor, on which each operator runs; so results
are those of a CPU, while code takes the paths that it takes on a GPU. As on a GPU, operators refuse
tensors of different devices, memory of a GPU is not readable by NumPy, and only copies from and to
pinned memory need not wait. What waits for the device is counted in `waits`, by the line of the
project that caused it.

The bytes of a device's tensors are counted, views once: `torch.cuda.memory_allocated` and the peak.

What it cannot show: kernels (Triton's are refused, so their references run), CUDA graphs, streams
that run beside each other, speed, and what operators and PyTorch's allocator take besides. A list as an index ends in an internal error of
PyTorch; on a GPU it is copied, and waited for. It needs Linux, g++ and a PyTorch that is built for
the CPU: one built for CUDA has operators of its own for the device.
"""

from __future__ import annotations

import ctypes
import gc
import math
import runpy
import shutil
import subprocess
import sys
import tempfile
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import contextmanager, nullcontext
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.utils._device import _device_constructors

DEVICES = 2
MEMORY = 24 << 30
PACKAGE = Path(__file__).parents[3]

# PyTorch built for the CPU has no code that answers which CUDA device is current.
GUARD = """
#include <c10/core/impl/DeviceGuardImplInterface.h>
using namespace c10;
namespace {
thread_local DeviceIndex current = 0;
struct StandIn final : impl::DeviceGuardImplInterface {
  DeviceType type() const override { return DeviceType::CUDA; }
  Device getDevice() const override { return {DeviceType::CUDA, current}; }
  Device exchangeDevice(Device d) const override { auto before = getDevice(); current = d.index(); return before; }
  void setDevice(Device d) const override { current = d.index(); }
  void uncheckedSetDevice(Device d) const noexcept override { current = d.index(); }
  Stream getStream(Device d) const noexcept override { return Stream(Stream::DEFAULT, d); }
  Stream exchangeStream(Stream s) const noexcept override { return Stream(Stream::DEFAULT, s.device()); }
  DeviceIndex deviceCount() const noexcept override { return DEVICES; }
};
const StandIn guard;
const impl::DeviceGuardImplRegistrar registrar(DeviceType::CUDA, &guard);
}
extern "C" int current_device() { return current; }
extern "C" void set_device(int index) { current = static_cast<DeviceIndex>(index); }
"""

aten = torch.ops.aten
# their results have a size or a value that only the device knows
_READ = {
    aten._local_scalar_dense.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten.equal.default,
    aten.unique_dim.default,
    aten._unique2.default,
    aten.is_nonzero.default,
    aten.unique_consecutive.default,
    aten.repeat_interleave.Tensor,
    aten.bincount.default,
    aten.allclose.default,
}

# they call these or a copy between devices; in inference mode they arrive before they are taken
# apart
_COMPOSITE = {"aten::item", "aten::is_nonzero", "aten::to", "aten::type_as", "aten::argwhere"}

# take or set elements by their second argument
_INDEXED = ("aten::index", "aten::index_put_", "aten::index_put")

waits: Counter[str] = Counter()
# by address, with the kind of device that each was made for
generators: dict[int, tuple[Any, str]] = {}
pinned: dict[int, Any] = {}  # storages by address, kept so that no other takes the address
pinnable = math.inf  # bytes that this process can still pin


class Memory:
    """Bytes of the tensors on one device, and the most of them at a time since `reset`."""

    def __init__(self) -> None:
        self.used = self.peak = 0
        self._tensors: Counter[int] = Counter()  # of each storage, by address
        self._sizes: dict[int, int] = {}
        self._lock = threading.RLock()  # a tensor may be freed while another is counted

    def count(self, tensor: Tensor) -> None:
        """Count a new tensor, until it is freed."""
        storage = tensor.inner.untyped_storage()
        address = storage._cdata
        with self._lock:
            if not self._tensors[address]:
                self._sizes[address] = storage.nbytes()
                self.used += storage.nbytes()
                self.peak = max(self.peak, self.used)
            self._tensors[address] += 1
        weakref.finalize(tensor, self._free, address)

    def _free(self, address: int) -> None:
        with self._lock:
            self._tensors[address] -= 1
            if not self._tensors[address]:
                del self._tensors[address]
                self.used -= self._sizes.pop(address)

    def reset(self) -> None:
        """Forget the peak."""
        self.peak = self.used


memory = [Memory() for _ in range(DEVICES)]


class StandInTensor(Tensor):
    """A tensor of a CUDA device; `inner` is the CPU tensor with its numbers."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor, device: torch.device) -> StandInTensor:
        made: Any = Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            device=device,
        )
        made.inner = inner
        memory[device.index].count(made)
        return made

    @classmethod
    def __torch_dispatch__(
        cls, operator: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return run(operator, args, kwargs or {})

    def tolist(self) -> Any:
        wait("tolist")
        return self.inner.tolist()

    def untyped_storage(self) -> Any:
        return self.inner.untyped_storage()

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError("can't convert cuda device type tensor to numpy. Use Tensor.cpu() first.")

    def __repr__(self, **_: Any) -> str:
        return f"StandInTensor({tuple(self.shape)}, {self.dtype}, {self.device})"


def missing() -> str | None:
    """Why there can be no stand-in here, None where there can."""
    if torch.cuda.is_available():
        return "there is a GPU: no stand-in is needed"
    if torch.backends.cuda.is_built():
        return "this PyTorch is built for CUDA, so it has operators of its own for the device"
    return (
        None
        if sys.platform == "linux" and shutil.which("g++")
        else "the stand-in for a GPU needs Linux and g++"
    )


def wait(what: str) -> None:
    """Count that the host waits for the device, under the innermost line of the package."""
    frame = sys._getframe(1)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if PACKAGE in path.resolve().parents and path.name != Path(__file__).name:
            waits[f"{path.resolve().relative_to(PACKAGE)}:{frame.f_lineno} {what}"] += 1
            return
        frame = frame.f_back
    waits[f"elsewhere {what}"] += 1


def run(operator: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """An operator on the CPU tensors within its arguments, with the results on the device where
    they belong.
    """
    if operator.namespace == "aten" and operator._schema.name in _COMPOSITE:
        return operator.decompose(*args, **kwargs)
    tensors: list[Tensor] = []
    _mapped(tensors.append, (args, tuple(kwargs.values())))
    on_gpu = [x for x in tensors if isinstance(x, StandInTensor)]
    assert all(x.is_cuda == isinstance(x, StandInTensor) for x in tensors), operator
    device = kwargs.get("device")
    device = (
        torch.device(device)
        if device is not None
        else on_gpu[0].device
        if on_gpu
        else torch.device("cpu")
    )
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", _library().current_device())
    if device.type == "cuda" and device.index >= DEVICES:
        raise RuntimeError("CUDA error: invalid device ordinal")
    drawn_by = kwargs.get("generator")
    if drawn_by is not None and generators.get(drawn_by._cdata, (None, "cpu"))[1] != device.type:
        raise RuntimeError(f"Expected a '{device.type}' device type for generator, got another one")
    by = args[1] if operator._schema.name in _INDEXED else ()
    if operator in _READ or any(
        isinstance(x, StandInTensor) and x.dtype in (torch.bool, torch.uint8) for x in by
    ):
        wait(operator.__name__)
    if operator is aten._to_copy.default:
        _count_copy(
            tensors[0],
            device,
            None if tensors[0].is_cuda else tensors[0],
            kwargs.get("non_blocking", False),
        )
    elif operator is aten.copy_.default:
        target, source = tensors
        _count_copy(
            source,
            target.device,
            source if target.is_cuda else target,
            args[2] if len(args) > 2 else False,
        )
    elif on_gpu and operator.name() != "aten::_has_compatible_shallow_copy_type":
        _check_devices(operator, tensors)
    kwargs = {
        name: "cpu" if name == "device" and x is not None else x for name, x in kwargs.items()
    }
    kwargs.pop("pin_memory", None)
    operator = _EMULATED.get(operator.name(), operator)
    inner = partial(_mapped, lambda x: x.inner if isinstance(x, StandInTensor) else x)
    out = operator(*inner(tuple(args)), **{name: inner(x) for name, x in kwargs.items()})
    if device.type != "cuda":
        return out
    known = {id(x.inner): x for x in on_gpu}
    return _mapped(lambda x: known[id(x)] if id(x) in known else StandInTensor(x, device), out)


def _mapped(function: Callable[[Tensor], Any], values: Any) -> Any:
    """The values with every tensor in them, also within lists and tuples, replaced; PyTorch's own
    takes long.
    """
    if isinstance(values, Tensor):
        return function(values)
    if isinstance(values, (list, tuple)):
        return type(values)([_mapped(function, value) for value in values])
    return values


def _count_copy(
    source: Tensor, device: torch.device, host: Tensor | None, non_blocking: bool
) -> None:
    """Count a copy between host and device that waits: all but those from and to pinned memory that
    need not.

    `host` is the side in the memory of the host; None if that is made by the copy.
    """
    if source.is_cuda == (device.type == "cuda"):
        return
    if not (non_blocking and host is not None and host.untyped_storage().data_ptr() in pinned):
        wait("to the host" if source.is_cuda else "to the device")


def _check_devices(operator: Any, tensors: list[Tensor]) -> None:
    """Refuse tensors of different devices, but for single numbers and for indices, which are
    copied.
    """
    devices = {x.device for x in tensors if x.dim() or x.is_cuda}
    if len(devices) < 2:
        return
    if operator._schema.name.startswith(("aten::index", "aten::_index_put", "aten::_unsafe_index")):
        target = tensors[0].device
        if target.type == "cuda" and all(
            x.device in (target, torch.device("cpu")) for x in tensors[1:]
        ):
            if operator._schema.name not in (
                "aten::index_select",
                "aten::index_copy_",
                "aten::index_add_",
            ):
                wait("indices from the host")
                return
    raise RuntimeError(
        f"Expected all tensors to be on the same device, but found at least two devices, "
        f"{' and '.join(sorted(map(str, devices)))}! ({operator})"
    )


# --------------------------------------------------------------- operators that a CPU does not have


def _sequences(q: Tensor, k: Tensor, v: Tensor, q_starts: Tensor, k_starts: Tensor) -> Tensor:
    """Attention of each sequence `[tokens, heads, d]` to its own keys."""
    out = torch.zeros_like(q)
    bounds = zip(q_starts[:-1], q_starts[1:], k_starts[:-1], k_starts[1:], strict=True)
    for first, last, first_key, last_key in (map(int, bound) for bound in bounds):
        if last > first:
            parts = (
                x.transpose(0, 1).float()
                for x in (q[first:last], k[first_key:last_key], v[first_key:last_key])
            )
            attended = torch.nn.functional.scaled_dot_product_attention(*parts)
            out[first:last] = attended.transpose(0, 1).to(q.dtype)
    return out


def _log_sums(q: Tensor, k: Tensor) -> Tensor:
    return (q.float() @ k.float().mT / q.shape[-1] ** 0.5).logsumexp(dim=-1)


def _efficient_attention(q: Tensor, k: Tensor, v: Tensor, *rest: Any, **options: Any) -> Any:
    """The sums have more rows than there are queries, as on a GPU."""
    sums = torch.nn.functional.pad(_log_sums(q, k), (0, -q.shape[2] % 32))
    beside = sums, q.new_empty(0), q.new_empty(0)
    return torch.nn.functional.scaled_dot_product_attention(q, k, v), *beside


def _dense_attention(q: Tensor, k: Tensor, v: Tensor, *rest: Any, **options: Any) -> Any:
    beside = [q.new_empty(0) for _ in range(8)]
    beside[0] = _log_sums(q, k)[..., None]
    beside[3:5] = [0, 0]
    return torch.nn.functional.scaled_dot_product_attention(q, k, v), *beside


def _attention(*beside: Any) -> Callable[..., Any]:
    """An operator of attention to sequences, which returns all this beside."""

    def operator(
        q: Tensor, k: Tensor, v: Tensor, q_starts: Any, k_starts: Any, *rest: Any, **options: Any
    ) -> Any:
        if q_starts is None:
            raise NotImplementedError("only sequences of different lengths")
        return _sequences(q, k, v, q_starts, k_starts), *(
            q.new_empty(0) if x is None else x for x in beside
        )

    return operator


def _convolution(transposed: bool) -> Callable[..., Tensor]:
    def operator(x: Tensor, weight: Tensor, padding: Any, *rest: Any) -> Tensor:
        more = rest[0] if transposed else [0] * len(padding)
        stride, dilation, groups = rest[transposed : transposed + 3]
        return aten.convolution(
            x, weight, None, stride, padding, dilation, transposed, more, groups
        )

    return operator


_EMULATED = {
    "aten::cudnn_convolution": _convolution(False),
    "aten::cudnn_convolution_transpose": _convolution(True),
    "aten::_flash_attention_forward": _attention(None, None, None, None),
    "aten::_scaled_dot_product_cudnn_attention": _dense_attention,
    "aten::_scaled_dot_product_efficient_attention": _efficient_attention,
    "torch_attn::_varlen_attn": _attention(None, None),
    # data of a wrapped tensor cannot be exchanged
    "aten::_has_compatible_shallow_copy_type": lambda x, y: False,
}


# --------------------------------------------------------------------------------------- torch.cuda


class Stream:
    """A stream of a device; work runs at once, in the order of the program."""

    def __init__(self, device: Any = None, *_: Any, **__: Any):
        self.device = (
            torch.device("cuda", _library().current_device())
            if device is None
            else torch.device(device)
        )

    def wait_stream(self, other: Stream) -> None:
        assert isinstance(other, Stream)

    def synchronize(self) -> None:
        wait("stream")


class Event:
    def __init__(self, *_: Any, **__: Any): ...

    record = wait = synchronize = lambda self, stream=None: None
    query = staticmethod(lambda: True)
    elapsed_time = staticmethod(lambda other: 1.0)


def capture(*_: Any, **__: Any) -> None:
    raise RuntimeError("the stand-in captures no CUDA graph")


def install() -> None:
    """Make this process believe in its CUDA devices."""
    library = _library()

    @contextmanager
    def on_device(device: Any) -> Any:
        before = library.current_device()
        library.set_device(before if device is None else _index(device))
        try:
            yield
        finally:
            library.set_device(before)

    current: Any = threading.local()
    nothing = (
        "_lazy_init",
        "empty_cache",
        "ipc_collect",
        "set_sync_debug_mode",
    )

    def memory_of(device: Any) -> Memory:
        return memory[library.current_device() if device is None else _index(device)]

    fakes: dict[str, Any] = {
        **dict.fromkeys(nothing, lambda *_: None),
        **dict.fromkeys(
            ("memory_reserved", "memory_allocated"), lambda device=None: memory_of(device).used
        ),
        "max_memory_allocated": lambda device=None: memory_of(device).peak,
        "reset_peak_memory_stats": lambda device=None: memory_of(device).reset(),
        **dict.fromkeys(
            ("is_available", "is_initialized", "is_bf16_supported"), lambda *_, **__: True
        ),
        "device_count": lambda: DEVICES,
        # PyTorch keeps it in a dict, and ctypes' cannot be hashed
        "current_device": lambda: library.current_device(),
        "set_device": lambda device: library.set_device(_index(device)),
        "device": on_device,
        "stream": nullcontext,
        "Stream": Stream,
        "Event": Event,
        "current_stream": lambda device=None: current.__dict__.setdefault(
            str(device), Stream(device)
        ),
        "synchronize": lambda device=None: wait("synchronize"),
        "mem_get_info": lambda device=None: (MEMORY, MEMORY),
        "memory_stats": lambda device=None: Counter(),
        "get_device_properties": lambda device=None: SimpleNamespace(
            name="stand-in", major=8, minor=9, total_memory=MEMORY, multi_processor_count=1
        ),
        "get_device_name": lambda device=None: "stand-in",
        "get_device_capability": lambda device=None: (8, 9),
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": lambda state, device=None: torch.set_rng_state(state),
        "CUDAGraph": capture,
    }
    for name, fake in fakes.items():
        setattr(torch.cuda, name, fake)
    _patch_tensors()
    _patch_attention()
    operators = torch.library.Library("_", "IMPL")
    operators.fallback(lambda operator, *args, **kwargs: run(operator, args, kwargs), "CUDA")
    install.kept = operators


def _index(device: Any) -> int:
    return device if isinstance(device, int) else torch.device(device).index or 0


@cache
def _library() -> Any:
    """The compiled answer to which device is current."""
    root = Path(torch.__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder, "guard.so")
        command = [
            "g++",
            "-shared",
            "-fPIC",
            "-std=c++20",
            f"-DDEVICES={DEVICES}",
            f"-I{root / 'include'}",
        ]
        command += ["-x", "c++", "-", "-o", str(built), f"-L{root / 'lib'}", "-lc10"]
        subprocess.run(command, input=GUARD, text=True, check=True)
        return ctypes.CDLL(str(built))


def _patch_tensors() -> None:
    """What the C++ side of PyTorch does without asking the operators of a device."""
    from_numbers = torch.tensor
    numbered = torch.arange
    _device_constructors()  # remembers the functions as they are now

    def tensor(
        data: Any, *, dtype: Any = None, device: Any = None, pin_memory: bool = False, **rest: Any
    ) -> Tensor:
        made = from_numbers(data, dtype=dtype, device="cpu", **rest)
        return made.pin_memory() if pin_memory else made.to(device or torch.empty(0).device)

    def arange(*bounds: Any, device: Any = None, pin_memory: bool = False, **rest: Any) -> Tensor:
        # the operator makes an empty tensor longer, which a wrapped one cannot become
        made = numbered(*bounds, device="cpu", **rest)
        place = torch.empty(0, device=device).device
        if place.type == "cuda":
            return StandInTensor(made, place)
        return made.pin_memory() if pin_memory else made

    def as_tensor(data: Any, dtype: Any = None, device: Any = None) -> Tensor:
        made = data if isinstance(data, Tensor) else tensor(data, dtype=dtype, device=device)
        return made.to(device or made.device, dtype or made.dtype)

    def new_tensor(
        self: Tensor, data: Any, *, dtype: Any = None, device: Any = None, **_: Any
    ) -> Tensor:
        return tensor(data, dtype=dtype or self.dtype, device=device or self.device)

    def pin_memory(self: Tensor, device: Any = None) -> Tensor:
        if self.is_cuda:
            raise RuntimeError(
                "cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned"
            )
        global pinnable
        if self.nbytes > pinnable:
            raise RuntimeError("CUDA error: out of memory")
        pinnable -= self.nbytes
        copy = self.clone()
        pinned[copy.untyped_storage().data_ptr()] = copy.untyped_storage()
        return copy

    def pinning(factory: Any) -> Any:
        def make(*args: Any, pin_memory: bool = False, **kwargs: Any) -> Tensor:
            made = factory(*args, **kwargs)
            return made.pin_memory() if pin_memory else made

        return make

    own_data = torch.Tensor.data

    def set_data(self: Tensor, value: Tensor) -> None:
        """Data of a wrapped tensor cannot be exchanged: modules get another parameter."""
        if not isinstance(self, StandInTensor) and not isinstance(value, StandInTensor):
            own_data.__set__(self, value)
            return
        other = torch.nn.Parameter(value, requires_grad=self.requires_grad)
        for holder in gc.get_referrers(self):
            if isinstance(holder, dict):
                holder.update({name: other for name, held in holder.items() if held is self})

    def is_pinned(self, device=None):
        return not self.is_cuda and self.untyped_storage().data_ptr() in pinned

    generator = torch.Generator

    class Generator(generator):
        """Of the CPU, whatever device is asked for, which is remembered."""

        def __new__(cls, device: Any = "cpu") -> Generator:
            made = super().__new__(cls, "cpu")
            generators[made._cdata] = made, torch.device(device).type
            return made

    torch.tensor = tensor
    torch.arange = arange
    torch.as_tensor = as_tensor
    torch.Tensor.new_tensor = new_tensor
    torch.Tensor.pin_memory = pin_memory
    torch.Tensor.is_pinned = is_pinned
    torch.Tensor.data = property(own_data.__get__, set_data)
    torch.Generator = Generator
    # data of a wrapped tensor cannot be exchanged
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    for name in ("empty", "empty_like", "zeros", "ones", "full", "rand", "randn"):
        setattr(torch, name, pinning(getattr(torch, name)))


def _patch_attention() -> None:
    """Attention in one operator, as on a GPU: PyTorch built for the CPU would write all scores
    there.
    """
    fused = torch.nn.functional.scaled_dot_product_attention

    def attention(q: Tensor, k: Tensor, v: Tensor, *rest: Any, **options: Any) -> Tensor:
        if not isinstance(q, StandInTensor):
            return fused(q, k, v, *rest, **options)
        if not q.device == k.device == v.device:
            raise RuntimeError(f"q, k and v are on {q.device}, {k.device} and {v.device}")
        return StandInTensor(fused(q.inner, k.inner, v.inner, *rest, **options), q.device)

    torch.nn.functional.scaled_dot_product_attention = attention


def pytest_configure(config: Any) -> None:
    install()


def main(program: str, *arguments: str) -> None:
    """Run a program, such as ComfyUI's main.py.

    ComfyUI calls `torch.device(torch.cuda.current_device())`, which refuses a number where PyTorch
    has no CUDA.
    """
    install()
    torch.cuda.current_device = lambda: torch.device("cuda", _library().current_device())
    sys.argv, sys.path[0] = [program, *arguments], str(Path(program).resolve().parent)
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    sys.modules["stand_in_gpu"] = sys.modules["__main__"]
    main(*sys.argv[1:])
