"""Model files: memory-mapped reading of .safetensors and .pt, by content, streamed writing of
.safetensors.

Files are untrusted: pickles go through torch's `weights_only` loader, numbers and lengths of names
are limited.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import pickle
import shutil
import struct
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from ..errors import HeadForcingError
from ..files import Fields, check_regular, check_writable, not_allowed, reason, replacing
from .shards import NAMES, shard_files

Weights = dict[str, Tensor]  # by name
Groups = dict[tuple[str, ...], Weights]
"""Tensors by the keys of the dicts that they are in: () for those that are in none."""
Metadata = Mapping[str, str]  # of a file
_MAX_HEADER_BYTES = 8_000_000  # a 14B model's header is 0.15 MB
# three copies of a 14B model have 0.6 MB; a byte can become an object of 64 bytes
_MAX_PICKLE_BYTES = 2_000_000
_MAX_TENSORS = 20_000  # three copies of a 14B model have 3,300
_MOST_LEVELS = 6  # of dicts in dicts that are looked at
_MAX_NAME = 250  # characters; a model's longest name has about 100
# how many times the file's bytes its tensors may have together; a model's weights have 1
_MAX_SHARING = 4
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
WRITABLE = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}


def read_groups(path: Path) -> tuple[Groups, Metadata]:
    """Memory-map a model file, or all files of a model in several, see `shards`.

    Returns the tensors and the metadata (empty for .pt). Raises HeadForcingError for anything that
    is not a readable model file.
    """
    groups: Groups = {}
    metadata: Metadata = {}
    for file in _model_files(path):
        found, stated = _read_file(file)
        metadata = metadata or stated
        for place, tensors in found.items():
            group = groups.setdefault(place, {})
            for name in group.keys() & tensors.keys():
                raise HeadForcingError(
                    f"{file.name} holds {name} again: keep the files of one model in a folder"
                )
            group |= tensors
    return groups, metadata


def read_weights(path: Path) -> tuple[Weights, Metadata]:
    """Memory-map the tensors of a file that has them by name, maybe in one dict such as
    `state_dict`, with its metadata.

    Raises HeadForcingError as `read_groups`.
    """
    groups, metadata = read_groups(path)
    if len(groups) == 1:
        return next(iter(groups.values())), metadata
    return groups.get((), {}), metadata


def read_tensors(path: Path) -> Weights:
    """The tensors of `read_weights`."""
    return read_weights(path)[0]


def _model_files(path: Path) -> list[Path]:
    """The files of a model, mostly one."""
    several = NAMES.search(path.name) or os.path.isdir(path)
    return shard_files(path) if several else [path]


def file_bytes(path: Path) -> int:
    """Size of a model on the disk, of all its files."""
    return sum(file.stat().st_size for file in _model_files(path))


def _read_file(path: Path) -> tuple[Groups, Metadata]:
    check_regular(path)
    metadata: Metadata = {}
    try:
        with open(path, "rb") as file:
            start = file.read(16)
        if start[8:9] == b"{":
            tensors, metadata = _read_safetensors(path)
            return _grouped(tensors, path), metadata
        if start.startswith(b"PK\x03\x04"):
            return _grouped(_read_pt(path), path), metadata
        raise _other_format(path, start)
    except HeadForcingError:
        raise
    except PermissionError as error:
        raise not_allowed(path, error) from error
    except Exception as error:  # a damaged file can fail in any way
        why = f"{reason(error):.200}"
        raise HeadForcingError(
            f"{path.name} is damaged or cannot be read ({why}): download it again"
        ) from error


def tensor_of(
    tensors: Weights, name: str, shape: torch.Size, unfit: str, advice: str = ""
) -> Tensor:
    """The tensor of this name and shape; raises HeadForcingError, which begins with `unfit`, where
    there is none.
    """
    found = tensors.get(name)
    if found is None or found.shape != shape:
        state = "missing" if found is None else f"of shape {list(found.shape)}"
        raise HeadForcingError(f"{unfit}: {name} is {state}, expected {list(shape)}{advice}.")
    return found


def _other_format(path: Path, start: bytes) -> HeadForcingError:
    what = "is no model file, neither safetensors nor PyTorch's: download the model file itself"
    if start.startswith(b"GGUF"):
        what = (
            "is a GGUF file: in ComfyUI load it with ComfyUI-GGUF's Unet Loader, whose MODEL works "
            "with the sampler, or CLIPLoader (GGUF); elsewhere give a .safetensors file, such as "
            "umt5_xxl_fp8_e4m3fn_scaled or wan_2.1_vae"
        )
    elif start.startswith(b"\x80"):
        what = (
            "is a bare pickle, which can run code and is not opened: save it again with a current "
            "PyTorch"
        )
    return HeadForcingError(f"{path.name} {what}")


def _read_safetensors(path: Path) -> tuple[Weights, Metadata]:
    """Map the tensors. The library's own reserve the file's size, so it maps no file larger than
    the memory.
    """
    with open(path, "rb") as file:
        # copy-on-write, because torch warns about tensors on read-only memory
        how: dict[str, int] = {"access": mmap.ACCESS_COPY}
        if sys.platform == "linux":
            # Python names MAP_NORESERVE only in newer versions
            how = {"flags": mmap.MAP_PRIVATE | 0x4000, "prot": mmap.PROT_READ | mmap.PROT_WRITE}
        data = mmap.mmap(file.fileno(), 0, **how)
    start = 8 + int.from_bytes(data[:8], "little")
    if start > _MAX_HEADER_BYTES:
        raise ValueError("its header is too large")
    # refuses shapes and places that do not agree with the file
    with safe_open(path, "np") as checked:
        metadata = checked.metadata() or {}
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    if len(header) > _MAX_TENSORS:
        raise ValueError("its header has too many tensors")
    keys = ("dtype", "shape", "data_offsets")
    tensors = {
        name: _mapped(data, start, *(entry[key] for key in keys)) for name, entry in header.items()
    }
    return tensors, metadata


def _mapped(
    data: mmap.mmap, start: int, dtype: str, shape: list[int], data_offsets: list[int]
) -> Tensor:
    begin, end = data_offsets
    # packed formats of quantised files: only the name is used, to reject the file
    if dtype not in _DTYPES:
        dtype = "U8"
        shape = [end - begin]
    numbers = _DTYPES[dtype]
    if begin == end:
        return torch.empty(shape, dtype=numbers)
    count = (end - begin) // numbers.itemsize
    return torch.frombuffer(data, dtype=numbers, count=count, offset=start + begin).view(shape)


def _read_pt(path: Path) -> object:
    with zipfile.ZipFile(path) as archive:
        _check_archive(archive.infolist())
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        raise HeadForcingError(
            f"{path.name} holds things other than tensors, which could run code, so it was not "
            "opened: use a .safetensors file or one with tensors only"
        ) from error


def _check_archive(files: list[zipfile.ZipInfo]) -> None:
    """Refuse an archive that PyTorch does not write: it maps the numbers of tensors as they lie
    there, and reads all other files into memory, whatever size they state.
    """
    if len(files) > 2 * _MAX_TENSORS:
        raise ValueError("it has too many parts")
    for file in files:
        _, _, name = file.filename.partition("/")
        if name == "constants.pkl":
            raise ValueError("it is a program of TorchScript, not a dict of weights")
        if file.compress_type != zipfile.ZIP_STORED:
            raise ValueError("it was compressed by another program")
        if not name.startswith("data/") and file.file_size > _MAX_PICKLE_BYTES:
            raise ValueError(f"its part {name:.40} is too large")


def _grouped(content: object, path: Path) -> Groups:
    """The tensors of a file's dict, and of dicts in it; raises ValueError for what no model has.

    A pickle can describe a tensor of any size by repeating one number, and tensors can share their
    bytes: later steps copy them.
    """
    if not isinstance(content, Mapping):
        raise HeadForcingError(
            f"{path.name} holds a {type(content).__name__}, not a dict of weights: choose a "
            "checkpoint"
        )
    groups: Groups = {}
    room = _MAX_SHARING * path.stat().st_size
    for count, (place, name, value) in enumerate(_items(content)):
        if count == _MAX_TENSORS or len(name) > _MAX_NAME:
            raise ValueError(
                f"it has more than {_MAX_TENSORS:,} tensors, or a name of more than {_MAX_NAME} "
                "characters"
            )
        if not isinstance(value, Tensor):
            continue
        room -= value.numel() * value.dtype.itemsize
        plain = value.layout == torch.strided and value.device.type == "cpu"
        if room < 0 or not plain or value.is_quantized:
            raise ValueError(
                f"not all numbers of {name} are stored, {list(value.shape)} of the layout "
                f"{value.layout} on {value.device}"
            )
        groups.setdefault(place, {})[name] = value.detach()
    return groups


def _items(
    level: Mapping[object, object], place: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], str, object]]:
    """The keys that lead to it, the name, and the value of all items of dicts in dicts."""
    for key, value in level.items():
        name = str(key)
        yield place, name, value
        if isinstance(value, Mapping) and len(place) < _MOST_LEVELS:
            yield from _items(value, (*place, name))


def write_safetensors(
    out: Path,
    tensors: Weights,
    dtype: torch.dtype,
    metadata: Metadata,
    *,
    value: Callable[[str], Tensor],
    on_progress: Callable[[int, int], None] = lambda written, total: None,
) -> None:
    """Write tensors one at a time (the safetensors library would need a second copy of all of them
    in memory).

    `value` returns the tensor of a name in `dtype`. Raises HeadForcingError if the disk has too
    little free space.
    """
    header: Fields = {"__metadata__": {"format": "pt", **metadata}}
    names = sorted(tensors)
    total = 0
    for name in names:
        shape = list(tensors[name].shape)
        end = total + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": WRITABLE[dtype], "shape": shape, "data_offsets": (total, end)}
        total = end
    encoded = json.dumps(header).encode()
    # readers map the data in place, which needs 8-byte alignment
    encoded += b" " * (-len(encoded) % 8)
    check_writable(out)
    if shutil.disk_usage(out.parent).free < total:
        raise HeadForcingError(
            f"{out.name} needs {total / 1e9:.3g} GB, more than is free in {out.parent}: make room "
            "there"
        )
    with replacing(out) as temporary, open(temporary, "wb") as file:
        file.write(struct.pack("<Q", len(encoded)))
        file.write(encoded)
        written = 0
        for name in names:
            flat = value(name).contiguous().view(-1)
            written += file.write(flat.view(torch.uint8).numpy().data)
            on_progress(written, total)


def all_finite(values: Tensor) -> bool:
    """Whether no value is NaN or infinite."""
    if not values.is_floating_point():
        return True
    # PyTorch has no such test for float8
    values = values.float() if values.dtype.itemsize == 1 else values
    return bool(torch.isfinite(values).all())


def first_not_finite(tensors: Iterable[tuple[str, Tensor]]) -> str | None:
    """The name of the first tensor that holds NaN or infinity; tensors without data are passed
    over.
    """
    for name, tensor in tensors:
        if not tensor.is_meta and not all_finite(tensor.detach()):
            return name
    return None
