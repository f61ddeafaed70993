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
import re
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
from ..files import Fields, check_regular, reason, replacing
from .shards import NAMES, shard_files

Tree = Mapping[object, object]
"""Names of a file with their tensors, or with dicts of tensors."""
Weights = dict[str, Tensor]  # by name
Metadata = Mapping[str, str]  # of a file
Content = tuple[Tree, Metadata]
_MAX_HEADER_BYTES = 8 << 20  # a 14B model's header is 0.15 MB
# three copies of a 14B model have 0.6 MB; a byte can become an object of 64 bytes
_MAX_PICKLE_BYTES = 2 << 20
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
_INSTEAD_OF_GGUF = {
    "model": "load it with ComfyUI-GGUF's Unet Loader, whose MODEL works with the sampler",
    "text encoder": (
        "give umt5_xxl_fp16.safetensors or umt5_xxl_fp8_e4m3fn_scaled.safetensors; in ComfyUI "
        "CLIPLoader (GGUF) reads it"
    ),
    "VAE": "give wan_2.1_vae.safetensors, or wan2.2_vae.safetensors for Wan 2.2 5B",
}
WRITABLE = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}


def read_weights(path: Path, kind: str = "model") -> Content:
    """Memory-map a model file, or all files of a model in several, see `shards`; `kind` is one of
    `_INSTEAD_OF_GGUF`.

    Returns the top-level names with their tensors or dicts of tensors, and the metadata (empty for
    .pt). Raises HeadForcingError for anything that is not a readable model file.
    """
    first, *others = _model_files(path)
    tree, metadata = _read_file(first, kind)
    joined = dict(tree)
    for part in others:
        tree, stated = _read_file(part, kind)
        for name in tree:
            if name in joined:
                raise HeadForcingError(
                    f"{part.name} holds {name} again: keep the files of one model in a folder"
                )
        joined |= tree
        metadata = metadata or stated
    return joined, metadata


def _model_files(path: Path) -> list[Path]:
    """The files of a model, mostly one."""
    several = NAMES.search(path.name) or os.path.isdir(path)
    return shard_files(path) if several else [path]


def file_bytes(path: Path) -> int:
    """Size of a model on the disk, of all its files."""
    return sum(file.stat().st_size for file in _model_files(path))


def _read_file(path: Path, kind: str) -> Content:
    check_regular(path)
    tree: Tree
    metadata: Metadata = {}
    try:
        with open(path, "rb") as file:
            start = file.read(16)
        if start[8:9] == b"{":
            tree, metadata = _read_safetensors(path)
        elif start.startswith(b"PK\x03\x04"):
            tree = _read_pt(path)
        else:
            raise _other_format(path, start, kind)
        _check_tensors(path, tree)
    except HeadForcingError:
        raise
    except Exception as error:  # a damaged file can fail in any way
        why = f"{reason(error):.200}"
        raise HeadForcingError(
            f"{path.name} is damaged or cannot be read ({why}): download it again"
        ) from error
    return tree, metadata


def read_tensors(path: Path, kind: str = "model") -> Weights:
    """Memory-map the tensors of a file that has them by name, maybe in one dict such as
    `state_dict`.

    Raises HeadForcingError as `read_weights`.
    """
    tree, _ = read_weights(path, kind)
    tensors = _tensors_of(tree)
    inner = [value for value in tree.values() if isinstance(value, Mapping)]
    if not tensors and len(inner) == 1:
        return _tensors_of(inner[0])
    return tensors


def _tensors_of(tree: Tree) -> Weights:
    return {str(name): tensor for name, tensor in tree.items() if isinstance(tensor, Tensor)}


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


def _other_format(path: Path, start: bytes, kind: str) -> HeadForcingError:
    what = "is no model file, neither safetensors nor PyTorch's: download the model file itself"
    if start.startswith(b"GGUF"):
        what = f"is a GGUF file: {_INSTEAD_OF_GGUF[kind]}"
    elif start.startswith(b"\x80"):
        what = (
            "is a bare pickle, which can run code and is not opened: save it again with a current "
            "PyTorch"
        )
    return HeadForcingError(f"{path.name} {what}")


def _read_safetensors(path: Path) -> Content:
    """Map the tensors. The library's own reserve the file's size, so it maps no file larger than
    the memory.
    """
    # refuses shapes and places that do not agree with the file
    with safe_open(path, "np") as checked:
        metadata = checked.metadata() or {}
    with open(path, "rb") as file:
        # copy-on-write, because torch warns about tensors on read-only memory
        how: dict[str, int] = {"access": mmap.ACCESS_COPY}
        if sys.platform == "linux":
            # Python names MAP_NORESERVE only in newer versions
            how = {"flags": mmap.MAP_PRIVATE | 0x4000, "prot": mmap.PROT_READ | mmap.PROT_WRITE}
        data = mmap.mmap(file.fileno(), 0, **how)
    start = 8 + int.from_bytes(data[:8], "little")
    if start > _MAX_HEADER_BYTES:
        raise HeadForcingError(
            f"{path.name} is no model file: its header has {start / 1e6:,.0f} MB"
        )
    header = json.loads(data[8:start])
    header.pop("__metadata__", None)
    return {name: _mapped(data, start, **entry) for name, entry in header.items()}, metadata


def _mapped(
    data: mmap.mmap, start: int, dtype: str, shape: list[int], data_offsets: list[int]
) -> Tensor:
    begin, end = data_offsets
    # packed formats of quantised files: only the name is used, to reject the file
    if dtype not in _DTYPES:
        dtype = "U8"
        shape = [end - begin]
    if begin == end:
        return torch.empty(shape, dtype=_DTYPES[dtype])
    count = (end - begin) // _DTYPES[dtype].itemsize
    return torch.frombuffer(data, dtype=_DTYPES[dtype], count=count, offset=start + begin).view(
        shape
    )


def _read_pt(path: Path) -> Tree:
    with zipfile.ZipFile(path) as archive:
        pickles = [entry for entry in archive.infolist() if entry.filename.endswith("data.pkl")]
    if len(pickles) != 1 or pickles[0].file_size > _MAX_PICKLE_BYTES:
        raise HeadForcingError(
            f"{path.name} is a zip archive without a PyTorch checkpoint: choose the .pt file itself"
        )
    try:
        tree = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        what = "things other than tensors"
        blocked = re.search(r"GLOBAL (\S+)", str(error))
        if blocked is not None:
            what = f"{blocked[1]} objects, which could run code"
        raise HeadForcingError(
            f"{path.name} holds {what}, so it was not opened: use a .safetensors file or one with "
            "tensors only"
        ) from error
    if not isinstance(tree, Mapping):
        raise HeadForcingError(
            f"{path.name} holds a {type(tree).__name__}, not a dict of weights: choose a checkpoint"
        )
    return tree


def _items(level: Tree, depth: int = 0) -> Iterator[tuple[object, object]]:
    """All items of dicts in dicts."""
    for name, value in level.items():
        yield name, value
        if isinstance(value, Mapping) and depth < _MOST_LEVELS:
            yield from _items(value, depth + 1)


def _check_tensors(path: Path, tree: Tree) -> None:
    """Refuse too many tensors and those that are larger than what the file stores: later steps copy
    them.

    A pickle can describe a tensor of any size by repeating one number, and tensors can share their
    bytes.
    """
    total = 0
    most = _MAX_SHARING * path.stat().st_size
    for count, (name, tensor) in enumerate(_items(tree)):
        if count == _MAX_TENSORS or len(str(name)) > _MAX_NAME:
            raise HeadForcingError(
                f"{path.name} is no model file: it has more than {_MAX_TENSORS:,} tensors, or a "
                f"name of more than {_MAX_NAME} characters"
            )
        if not isinstance(tensor, Tensor):
            continue
        if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
            kind = f"{tensor.device.type} tensor, layout {tensor.layout}"
            raise HeadForcingError(
                f"{path.name} holds {name} as a {kind}, not as plain numbers: choose another file"
            )
        total += tensor.numel() * tensor.dtype.itemsize
        if total > most:
            raise HeadForcingError(
                f"{path.name} is damaged: {name} has the shape {list(tensor.shape)} but fewer "
                "numbers are stored; download it again"
            )


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
    folder = out.resolve().parent
    while not folder.exists():
        folder = folder.parent
    if shutil.disk_usage(folder).free < total:
        raise HeadForcingError(
            f"{out.name} needs {total / 1e9:.3g} GB, more than is free in {folder}: make room there"
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
