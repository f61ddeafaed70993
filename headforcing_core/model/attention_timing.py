"""Time the attention backends at the sizes of a render, and store the result for this device and
these versions.

Which one is fastest depends on GPU, driver, versions and numbers of keys; no rule of thumb holds
for all of them.
"""

from __future__ import annotations

import ctypes
import json
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch
from torch import Tensor

from ..errors import HeadForcingError, first_sentence
from ..files import cache_folder, replacing
from ..hashing import digest
from .attention_backends import (
    AttentionFunction,
    Operands,
    Span,
    Spans,
    attend_layer,
    load_attention,
)

log = logging.getLogger(__name__)

REPETITIONS = 5  # the fastest counts: a hiccup of the host makes single calls slow
ENOUGH_SECONDS = 0.4  # of a backend's calls; after that there are no more than two
# whose versions decide, too
_PACKAGES = ("flash-attn", "flash_attn_3", "flash-attn-4", "triton", "triton-windows")


@dataclass(frozen=True)
class LayerSizes:
    """Sizes of one self-attention of a render: queries per head, and `(heads, keys)` of each group,
    longest first.
    """

    queries: int
    groups: tuple[tuple[int, int], ...]

    @property
    def spans(self) -> Spans:
        """The groups one after another in full buffers."""
        spans = []
        first = 0
        for heads, keys in self.groups:
            spans.append(Span(heads, first, keys, keys))
            first += heads * keys
        return tuple(spans)


def fastest(names: Sequence[str], sizes: LayerSizes, operands: Operands) -> dict[str, float]:
    """Milliseconds per layer of those of `names` that work, the fastest first.

    They are read from the cache folder where they are known.
    """
    file = _file(names, sizes, operands)
    known = {} if file is None else _read(file)
    left = [name for name in names if name not in known]
    if left:
        try:
            # the weights leave no room for keys and values of a layer: nothing is timed
            with suppress(torch.OutOfMemoryError):
                _time_all(left, sizes, operands, known)
        finally:
            if known and file is not None:
                # a folder that cannot be written: timed anew
                with suppress(HeadForcingError), replacing(file) as temporary:
                    temporary.write_text(json.dumps(known), encoding="utf-8")
    working = [(ms, name) for name, ms in known.items() if name in names and ms is not None]
    return {name: ms for ms, name in sorted(working)}


def describe(times: Mapping[str, float]) -> str:
    """The result in a few words: `torch_varlen (timed: 0.8 ms a layer; sdpa 1.21 times as
    long)`.
    """
    (best, shortest), *others = times.items()
    parts = [f"timed: {shortest:.3g} ms a layer"]
    if others:
        parts.append(
            ", ".join(f"{name} {time / shortest:.2f} times as long" for name, time in others)
        )
    return f"{best} ({'; '.join(parts)})"


def _now(device: torch.device) -> float:
    """Seconds, once the device has done its work."""
    torch.cuda.synchronize(device)
    return time.perf_counter()


def _time_all(
    names: Sequence[str],
    sizes: LayerSizes,
    operands: Operands,
    known: dict[str, float | None],
) -> None:
    """Put into `known` the milliseconds of every backend; None for one that does not work.

    A backend that runs out of memory gets no entry: there may be more of it when the program is
    started again.
    """
    inputs = _inputs(sizes, operands)
    for name in names:
        # raises if the backend before has left the device unusable: the next program leaves it out
        _now(operands.device)
        try:
            attention = load_attention(name, operands)
            known[name] = _milliseconds(attention, sizes.spans, inputs)
        except torch.OutOfMemoryError:
            log.info(
                "Head Forcing: attention %s was not timed: it needs more memory than is free", name
            )
            if operands.device.type == "cuda":
                torch.cuda.empty_cache()
        except Exception as error:  # not installed, not for this device, inaccurate
            log.info("Head Forcing: attention %s was not timed: %s", name, first_sentence(error))
            known[name] = None


def _milliseconds(attention: AttentionFunction, spans: Spans, inputs: Sequence[Tensor]) -> float:
    """Of the fastest of a few calls, after one that loads, compiles, plans and allocates."""
    q, k, v = inputs
    attend_layer(attention, q, k, v, spans=spans)
    times: list[float] = []
    while len(times) < 2 or (len(times) < REPETITIONS and sum(times) < ENOUGH_SECONDS):
        begun = _now(q.device)
        attend_layer(attention, q, k, v, spans=spans)
        times.append(_now(q.device) - begun)
    return 1000 * min(times)


@torch.no_grad()
def _inputs(sizes: LayerSizes, operands: Operands) -> list[Tensor]:
    heads = sum(count for count, _ in sizes.groups)
    rows = sum(count * keys for count, keys in sizes.groups)
    device = operands.device
    generator = torch.Generator(device).manual_seed(0)
    width = operands.head_dim
    return [
        torch.randn(shape, generator=generator, device=device, dtype=operands.dtype)
        for shape in ((heads, sizes.queries, width), (rows, width), (rows, width))
    ]


# ------------------------------------------------------------------------------- the files of times


def driver_version() -> str:
    """The version of NVIDIA's driver, as its own library says; of other drivers and without the
    library the version of CUDA that the driver knows, which many drivers share.
    """
    for name in ("libnvidia-ml.so.1", "nvml.dll"):
        with suppress(OSError, AttributeError):
            library = ctypes.CDLL(name)
            version = ctypes.create_string_buffer(80)
            if library.nvmlInit_v2() == 0:
                found = library.nvmlSystemGetDriverVersion(version, len(version)) == 0
                library.nvmlShutdown()
                if found:
                    return version.value.decode("ascii", "replace")
    # not in every build of PyTorch
    return str(getattr(torch._C, "_cuda_getDriverVersion", lambda: None)())


def _file(names: Sequence[str], sizes: LayerSizes, operands: Operands) -> Path | None:
    """A file of its own for everything that a time depends on; None without a cache folder."""
    folder = cache_folder()
    if folder is None:
        return None
    facts: list[object] = [torch.__version__, operands.dtype, operands.head_dim, names]
    facts += [sizes.queries, sizes.groups]
    if operands.device.type == "cuda":
        name = torch.cuda.get_device_name(operands.device)
        facts += [name, driver_version(), torch.backends.cudnn.version()]
    for package in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            facts.append((package, metadata.version(package)))
    return folder / "attention" / f"{digest(facts)}.json"


def _read(file: Path) -> dict[str, float | None]:
    """The times in a file; none of a damaged one."""
    with suppress(OSError, ValueError, TypeError, AttributeError, RecursionError):
        times: dict[str, float | None] = json.loads(file.read_text(encoding="utf-8"))
        if all(milliseconds is None or milliseconds > 0 for milliseconds in times.values()):
            return times
    return {}
