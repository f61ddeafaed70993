"""Container formats of model files: memory-mapped reading of .safetensors and .pt, streamed writing of .safetensors.

Files are untrusted input: pickles go through torch's `weights_only` loader, sizes of headers and names are limited, and
every tensor must lie inside the file. The format is detected from the content.
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
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..errors import HeadForcingError
from ..files import check_regular, replacing

_MAX_HEADER_BYTES = 8 << 20  # a 14B model's header is 0.15 MB
_MAX_PICKLE_BYTES = 2 << 20  # three copies of a 14B model have 0.6 MB; a byte can become an object of 64 bytes
_MAX_TENSORS = 20_000  # three copies of a 14B model have 3,300
_MAX_NAME = 250  # characters; a model's longest name has about 100
_MAX_SHARING = 4  # how many times the file's bytes its tensors may have together; a model's weights have 1
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


def read_weights(path: Path) -> tuple[str, Mapping[object, object], dict[str, str]]:
    """Memory-map a model file.

    Returns the container ("safetensors" or "pt"), the top-level names with their tensors or dicts of tensors, and the
    metadata (empty for .pt). Raises HeadForcingError for anything that is not a readable model file.
    """
    if os.path.isdir(path):
        raise HeadForcingError(f"{path.name} is a folder: choose the .safetensors or .pt file inside it")
    check_regular(path)
    try:
        with open(path, "rb") as file:
            start = file.read(512)
    except OSError as error:
        raise HeadForcingError(f"{path.name} cannot be read ({error.strerror}): check its permissions") from error
    if not start:
        raise HeadForcingError(f"{path.name} is empty (0 bytes): download it again")
    if start.startswith(b"GGUF"):
        raise HeadForcingError(
            f"{path.name} is a GGUF file: load it with ComfyUI-GGUF's Unet Loader, whose MODEL works with the sampler"
        )
    if start.startswith(b"PK\x03\x04"):
        tree = _read_pt(path)
        _check_tensors(path, tree)
        return "pt", tree, {}
    if start[8:9] == b"{" or len(start) < 9:
        tensors, metadata = _read_safetensors(path, start)
        _check_tensors(path, tensors)
        return "safetensors", tensors, metadata
    if start.startswith(b"\x80"):
        raise HeadForcingError(
            f"{path.name} is a bare pickle, which can run code and is not opened: use a .safetensors file, or save it "
            "again with a current PyTorch"
        )
    is_text = all(byte >= 32 or byte in b"\t\r\n" for byte in start)
    what = "a text or web page" if is_text else "neither a safetensors nor a PyTorch file"
    raise HeadForcingError(f"{path.name} is {what}, not model weights: download the model file itself")


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Memory-map the tensors of a file that has them by name; raises HeadForcingError as `read_weights`."""
    return {str(name): tensor for name, tensor in read_weights(path)[1].items() if isinstance(tensor, Tensor)}


def _read_safetensors(path: Path, start: bytes) -> tuple[Mapping[object, object], dict[str, str]]:
    length = struct.unpack("<Q", start[:8])[0] if len(start) >= 9 else path.stat().st_size
    if length > _MAX_HEADER_BYTES:
        raise HeadForcingError(
            f"{path.name} is damaged: its header claims {length / 1e6:,.0f} MB where a model needs less than 1 MB; "
            "download it again"
        )
    try:
        with safe_open(path, "np") as file:  # refuses shapes and places that do not agree with the file
            metadata = file.metadata() or {}
        data = _map(path)
        header = json.loads(data[8 : 8 + length])
        header.pop("__metadata__", None)
        _check_count(path, len(header))
        return {name: _mapped_tensor(data, 8 + length, **entry) for name, entry in header.items()}, metadata
    except (OSError, ValueError, TypeError, RuntimeError, SafetensorError) as error:
        raise _unreadable(path, error) from error


def _map(path: Path) -> mmap.mmap:
    """Map a file copy-on-write: nothing is read yet, and no memory is reserved whatever the file's size.

    The safetensors library's tensors reserve the file's size on Linux and cannot be had of files larger than memory.
    Copy-on-write, not read-only, because torch warns about tensors on read-only memory. Windows counts the file's size
    against its page file as long as tensors of it are in use.
    """
    with open(path, "rb") as file:
        if os.name == "nt":
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        no_reserve = 0x4000 if sys.platform == "linux" else 0  # Python names MAP_NORESERVE only in newer versions
        return mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE | no_reserve, prot=mmap.PROT_READ | mmap.PROT_WRITE)


def _mapped_tensor(data: mmap.mmap, start: int, dtype: str, shape: list[int], data_offsets: list[int]) -> Tensor:
    begin, end = data_offsets
    if dtype not in _DTYPES:  # packed formats of quantised files: only the name is used, to reject the file
        dtype, shape = "U8", [end - begin]
    if begin == end:
        return torch.empty(shape, dtype=_DTYPES[dtype])
    count = (end - begin) // _DTYPES[dtype].itemsize
    return torch.frombuffer(data, dtype=_DTYPES[dtype], count=count, offset=start + begin).view(shape)


def _check_count(path: Path, count: int) -> None:
    if count > _MAX_TENSORS:
        raise HeadForcingError(
            f"{path.name} has {count:,} tensors, more than any model ({_MAX_TENSORS:,}): choose another file"
        )


def _check_tensors(path: Path, tree: Mapping[object, object]) -> None:
    """Refuse names of any length and tensors larger than what the file stores: later steps copy and search them.

    A pickle can describe a tensor of any size by repeating one number, and tensors can share their bytes.
    """
    total = 0
    levels = (tree, *(value for value in tree.values() if isinstance(value, Mapping)))
    _check_count(path, sum(map(len, levels)))
    for name, tensor in (item for level in levels for item in level.items()):
        if isinstance(name, str) and len(name) > _MAX_NAME:
            raise HeadForcingError(f"{path.name} is damaged: a name has {len(name):,} characters; download it again")
        if not isinstance(tensor, Tensor):
            continue
        if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
            kind = f"{tensor.device.type} tensor, layout {tensor.layout}"
            raise HeadForcingError(f"{path.name} holds {name} as a {kind}, not as plain numbers: choose another file")
        size = tensor.numel() * tensor.dtype.itemsize
        total += size
        if size > tensor.untyped_storage().nbytes():
            raise HeadForcingError(
                f"{path.name} is damaged: {name} has the shape {list(tensor.shape)} but fewer numbers are stored; "
                "download it again"
            )
    if total > _MAX_SHARING * path.stat().st_size:
        raise HeadForcingError(
            f"{path.name} is damaged: its tensors would take {total / 1e9:.3g} GB, the file has "
            f"{path.stat().st_size / 1e9:.3g}; download it again"
        )


def _read_pt(path: Path) -> Mapping[object, object]:
    try:
        with zipfile.ZipFile(path) as archive:
            pickles = [entry for entry in archive.infolist() if entry.filename.endswith("data.pkl")]
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise _unreadable(path, error) from error
    if len(pickles) != 1 or pickles[0].file_size > _MAX_PICKLE_BYTES:
        raise HeadForcingError(f"{path.name} is a zip archive without a PyTorch checkpoint: choose the .pt file itself")
    try:
        tree = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        blocked = re.search(r"GLOBAL (\S+)", str(error))
        what = f"{blocked[1]} objects, which could run code" if blocked else "things other than tensors"
        raise HeadForcingError(
            f"{path.name} holds {what}, so it was not opened: use a .safetensors file or one with tensors only"
        ) from error
    except Exception as error:  # a damaged pickle can fail in any way
        raise _unreadable(path, error) from error
    if not isinstance(tree, Mapping):
        raise HeadForcingError(f"{path.name} holds a {type(tree).__name__}, not a dict of weights: choose a checkpoint")
    return tree


def _unreadable(path: Path, error: Exception) -> HeadForcingError:
    reason = str(error).strip().split("\n")[0][:200]
    if "mmap" in reason or "allocate memory" in reason:
        size = path.stat().st_size / 1e9
        return HeadForcingError(f"{path.name} ({size:.3g} GB) does not fit into memory: enlarge the swap or page file")
    return HeadForcingError(f"{path.name} is damaged or cut short ({reason}): download it again")


def write_safetensors(
    out: Path,
    shapes: Mapping[str, tuple[int, ...]],
    dtype: torch.dtype,
    metadata: dict[str, str],
    value: Callable[[str], Tensor],
    on_progress: Callable[[int, int], None] | None,
) -> None:
    """Write tensors one at a time (the safetensors library would need a second copy of all of them in memory).

    `value` returns the tensor of a name in `dtype`. Raises HeadForcingError if the disk has too little free space.
    """
    header: dict[str, object] = {"__metadata__": metadata}
    total = 0
    for name, shape in shapes.items():
        end = total + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": WRITABLE[dtype], "shape": shape, "data_offsets": (total, end)}
        total = end
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)  # readers map the data in place, which needs 8-byte alignment
    folder = next(parent for parent in out.resolve().parents if parent.exists())
    if shutil.disk_usage(folder).free < total:
        raise HeadForcingError(f"{out.name} needs {total / 1e9:.3g} GB, more than is free in {folder}: make room there")
    with replacing(out) as temporary, open(temporary, "wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        written = 0
        for name in shapes:
            written += file.write(value(name).contiguous().view(-1).view(torch.uint8).numpy().data)
            if on_progress:
                on_progress(written, total)
