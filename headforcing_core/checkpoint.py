"""Checkpoints: what is in a .safetensors or .pt file, its weights under Wan names, and a clean one-copy conversion.

Files are recognised by their content, never by their name. Weights are memory-mapped, and pickles are read with
torch's `weights_only` loader, so a hostile file can run nothing.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import mmap
import os
import pickle
import re
import shutil
import struct
import sys
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import weights_layout as layouts
from .errors import HeadForcingError
from .files import replacing
from .lora import LoraPatch, check_strength, read_patches
from .wan import WanConfig

log = logging.getLogger(__name__)

CONVERTER_VERSION = 1
_MAX_HEADER_BYTES = 16 << 20  # a 14B model's header is 0.15 MB
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
_WRITABLE = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32"}
_FAMILIES = {(1536, 8960, 30): "wan2.1-t2v-1.3b", (5120, 13824, 40): "wan2.1-t2v-14b"}  # by dim, ffn_dim, num_layers


@dataclass(frozen=True)
class CheckpointInfo:
    """What a checkpoint holds. `causal_ar` and `frames_per_block` are None when the file does not say."""

    path: Path
    container: str  # "safetensors" | "pt"
    layout: str  # the wrapper the weights were read from: "generator_ema", "generator", ..., "bare"
    naming: str  # "wan" | "diffusers"
    available: tuple[str, ...]  # every wrapper that holds a model
    config: WanConfig
    family: str
    parameters: int
    dtype: str
    bytes: int  # of the file
    fingerprint: str  # of the values as bf16: the same for every container, layout and naming
    causal_ar: bool | None = None
    frames_per_block: int | None = None
    lora: str | None = None  # file names of merged LoRAs
    metadata: dict[str, str] = field(default_factory=dict)

    def summary(self) -> str:
        """One line for a log or a node."""
        also = [name for name in self.available if name != self.layout]
        causal = {True: "causal", False: "not causal", None: "causal not stated"}[self.causal_ar]
        parts = (
            f"{self.path.name}: {self.family}",
            f"{self.config.num_layers} layers x {self.config.num_heads} heads",
            f"{self.parameters / 1e9:.3g} B parameters in {self.dtype}",
            f"{self.bytes / 1e9:.3g} GB {self.container}",
            f"{self.naming} names under {self.layout}" + (f" (also: {', '.join(also)})" if also else ""),
            causal,
            f"{self.frames_per_block} frames per block" if self.frames_per_block else "",
            f"with LoRA {self.lora}" if self.lora else "",
            f"fingerprint {self.fingerprint}",
        )
        return ", ".join(part for part in parts if part)


def inspect_checkpoint(path: str | Path, weights: str = "auto", num_heads: int | None = None) -> CheckpointInfo:
    """Say what a checkpoint holds, reading its header and a few rows; raise `HeadForcingError` if it cannot be used.

    `weights` names the wrapper to read ("generator_ema", "generator", "bare", ...); "auto" prefers the EMA.
    `num_heads` is needed only when heads are not 128 wide and the file does not say.
    """
    return _open(path, weights, num_heads)[1]


def load_state_dict(
    path: str | Path,
    weights: str = "auto",
    num_heads: int | None = None,
    lora: str | Path | None = None,
    lora_strength: float = 1.0,
    dtype: torch.dtype | None = None,
) -> tuple[dict[str, Tensor], CheckpointInfo]:
    """Load weights under their original Wan names, memory-mapped where neither a LoRA nor `dtype` changes them.

    `dtype` None keeps what is stored (plain fp8 becomes bf16, which no computation could use otherwise).
    """
    tensors, info, patches = _open_patched(path, weights, num_heads, lora, lora_strength)
    state = {name: _value(tensors[name], patches.get(name), lora_strength, dtype) for name in tensors}
    return state, replace(info, fingerprint=_fingerprint(state, state.__getitem__)) if patches else info


def convert(
    path: str | Path,
    out: str | Path,
    weights: str = "auto",
    dtype: torch.dtype = torch.bfloat16,
    lora: str | Path | None = None,
    lora_strength: float = 1.0,
    num_heads: int | None = None,
    frames_per_block: int | None = None,
    causal: bool = True,
    on_progress: Callable[[int, int], None] | None = None,
) -> CheckpointInfo:
    """Write one copy of the weights as a safetensors file with bare Wan names that ComfyUI knows to be autoregressive.

    Streams tensor by tensor, so memory stays at about one tensor. `on_progress(written_bytes, total_bytes)`.
    """
    path, out = Path(path), Path(out)
    _check_output(out, [path] if lora is None else [path, Path(lora)])
    if dtype not in _WRITABLE:
        raise HeadForcingError(f"dtype is {dtype}, but must be torch.bfloat16, torch.float16 or torch.float32")
    if frames_per_block is not None and frames_per_block < 1:
        raise HeadForcingError(
            f"frames_per_block is {frames_per_block}, but must be at least 1 (usually 3, framewise 1)"
        )
    tensors, info, patches = _open_patched(path, weights, num_heads, lora, lora_strength)

    def value(name: str) -> Tensor:
        return _value(tensors[name], patches.get(name), lora_strength, dtype)

    history = {
        "converter_version": CONVERTER_VERSION,
        "source": path.name,
        "source_layout": info.layout,
        "lora": info.lora,
        "lora_strength": lora_strength if lora else None,
        "frames_per_block": frames_per_block or info.frames_per_block,
        "fingerprint": _fingerprint(tensors, value),
    }
    transformer: dict[str, object] = {"causal_ar": causal, "num_heads": info.config.num_heads}
    if info.config.text_len != WanConfig.text_len:
        transformer["text_len"] = info.config.text_len
    metadata = {
        "format": "pt",
        "config": json.dumps({"transformer": transformer}),
        "head_forcing": json.dumps({key: entry for key, entry in history.items() if entry is not None}),
    }
    shapes = {name: tuple(tensors[name].shape) for name in sorted(tensors)}
    _write_safetensors(out, shapes, dtype, metadata, value, on_progress)
    return inspect_checkpoint(out)


def _open(path: str | Path, weights: str, num_heads: int | None) -> tuple[dict[str, Tensor], CheckpointInfo]:
    """Map a checkpoint and check it completely; the tensors have Wan names and are exactly the model's."""
    path = Path(path)
    container, tree, metadata = _read(path)
    found = layouts.find_layouts(tree)
    layout = layouts.choose_layout(found, weights, path.name)
    tensors = layouts.rename_all(found[layout], path.name)
    layouts.reject_look_alikes(tensors, path.name)
    transformer, history = _stated(metadata, "config").get("transformer"), _stated(metadata, "head_forcing")
    transformer = transformer if isinstance(transformer, dict) else {}
    plain_heads = metadata.get("num_heads", "")
    stated_heads = _integer(transformer.get("num_heads")) or (int(plain_heads) if plain_heads.isdecimal() else None)
    config = layouts.infer_config(
        tensors, stated_heads if num_heads is None else num_heads, _integer(transformer.get("text_len")), path.name
    )
    extra = layouts.check_complete(tensors, config, path.name)
    if extra:
        log.warning("%s: ignoring %d tensors that are not part of the model (%s, ...)", path.name, len(extra), extra[0])
        tensors = {name: tensor for name, tensor in tensors.items() if name not in set(extra)}
    causal, merged = transformer.get("causal_ar"), history.get("lora")
    info = CheckpointInfo(
        path=path,
        container=container,
        layout=layout,
        naming="diffusers" if layouts.is_diffusers(found[layout]) else "wan",
        available=tuple(name for name in found if layouts.looks_like_wan(found[name])),
        config=config,
        family=_FAMILIES.get((config.dim, config.ffn_dim, config.num_layers), "wan2.1-t2v-custom"),
        parameters=sum(tensor.numel() for tensor in tensors.values()),
        dtype=str(layouts.storage_dtype(tensors)).removeprefix("torch."),
        bytes=path.stat().st_size,
        fingerprint=_fingerprint(tensors, tensors.__getitem__),
        causal_ar=causal if isinstance(causal, bool) else None,
        frames_per_block=_integer(history.get("frames_per_block")),
        lora=merged if isinstance(merged, str) else None,
        metadata=metadata,
    )
    return tensors, info


def _open_patched(
    path: str | Path, weights: str, num_heads: int | None, lora: str | Path | None, strength: float
) -> tuple[dict[str, Tensor], CheckpointInfo, dict[str, LoraPatch]]:
    """`_open`, and the patches of a LoRA that have been checked to fit it."""
    check_strength(strength)
    tensors, info = _open(path, weights, num_heads)
    if lora is None:
        return tensors, info, {}
    lora = Path(lora)
    found = layouts.find_layouts(_read(lora)[1])
    adapters = next((found[name] for name in found if layouts.is_lora(found[name])), None)
    if adapters is None:
        raise HeadForcingError(f"{lora.name} is not a LoRA: give a LoRA file, or load it as the checkpoint")
    patches = read_patches(tensors, adapters, lora.name)
    names = f"{info.lora} + {lora.name}" if info.lora else lora.name
    return tensors, replace(info, lora=names), patches


def _value(stored: Tensor, patch: LoraPatch | None, strength: float, dtype: torch.dtype | None) -> Tensor:
    if dtype is None:
        dtype = torch.bfloat16 if stored.dtype.itemsize == 1 else stored.dtype
    return (patch.apply(stored, strength) if patch else stored).to(dtype)


def _fingerprint(tensors: Mapping[str, Tensor], value: Callable[[str], Tensor]) -> str:
    """Hash all names and shapes, the small tensors at both ends, and a row of each matrix in the outer layers.

    The rows make a merged LoRA change the fingerprint; values count as bf16, so storage dtype does not matter.
    """
    digest = hashlib.blake2b(digest_size=8)
    digest.update(repr([(name, tuple(tensors[name].shape)) for name in sorted(tensors)]).encode())
    last = max(int(match[1]) for name in tensors if (match := re.match(r"blocks\.(\d+)\.", name)))
    ends = ("head.", "patch_embedding.", "blocks.0.", f"blocks.{last}.")
    for name in sorted(name for name in tensors if name.startswith(ends)):
        tensor = value(name)
        row = tensor[0] if tensor.ndim >= 2 else tensor
        digest.update(row.to(torch.bfloat16).contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _stated(metadata: Mapping[str, str], key: str) -> dict[str, Any]:
    """A JSON object in the metadata; other programs' metadata may hold anything, which counts as saying nothing."""
    try:
        value = json.loads(metadata.get(key, "{}"))
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


# ---- containers -----------------------------------------------------------------------------------------------------


def _read(path: Path) -> tuple[str, Mapping[object, object], dict[str, str]]:
    """Map a file by its content: container, its top-level names with tensors or dicts of tensors, metadata."""
    if os.path.isdir(path):
        raise HeadForcingError(f"{path.name} is a folder: choose the .safetensors or .pt file inside it")
    if not os.path.isfile(path):  # False for impossible names, too
        raise HeadForcingError(f"{path.name} was not found at {path}: check the name and folder")
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
        return "pt", _read_pt(path), {}
    if start[8:9] == b"{" or len(start) < 9:
        tensors, metadata = _read_safetensors(path, start)
        return "safetensors", tensors, metadata
    if start.startswith(b"\x80"):
        raise HeadForcingError(
            f"{path.name} is a bare pickle, which can run code and is not opened: use a .safetensors file, or save it "
            "again with a current PyTorch"
        )
    what = "a text or web page" if _is_text(start) else "neither a safetensors nor a PyTorch file"
    raise HeadForcingError(f"{path.name} is {what}, not model weights: download the model file itself")


def _is_text(start: bytes) -> bool:
    return all(byte >= 32 or byte in b"\t\r\n" for byte in start)


def _read_safetensors(path: Path, start: bytes) -> tuple[Mapping[object, object], dict[str, str]]:
    size = path.stat().st_size
    length = struct.unpack("<Q", start[:8])[0] if len(start) >= 9 else size
    if length > _MAX_HEADER_BYTES:
        raise HeadForcingError(
            f"{path.name} is damaged: its header claims {length / 1e6:,.0f} MB where a model needs less than 1 MB; "
            "download it again"
        )
    try:
        data = _map(path)
        header = json.loads(data[8 : 8 + length])
        metadata = header.pop("__metadata__", None) or {}
        tensors = {name: _mapped_tensor(data, 8 + length, **entry) for name, entry in header.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, RuntimeError) as error:
        raise _unreadable(path, error) from error
    return tensors, {str(key): str(value) for key, value in metadata.items()} if isinstance(metadata, dict) else {}


def _map(path: Path) -> mmap.mmap:
    """Map a file copy-on-write: nothing is read yet, and no memory is reserved however large the file is."""
    with open(path, "rb") as file:
        if os.name == "nt":
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        no_reserve = 0x4000 if sys.platform == "linux" else 0  # Python names MAP_NORESERVE only in newer versions
        return mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE | no_reserve, prot=mmap.PROT_READ | mmap.PROT_WRITE)


def _mapped_tensor(data: mmap.mmap, start: int, dtype: str, shape: list[int], data_offsets: list[int]) -> Tensor:
    begin, end = (start + int(offset) for offset in data_offsets)
    if not start <= begin <= end <= len(data):
        raise ValueError(f"it has {len(data):,} bytes and should have {end:,}")
    if dtype not in _DTYPES:  # packed formats of quantised files are only looked at by name
        dtype, shape = "U8", [end - begin]
    count = math.prod(shape)
    if count * _DTYPES[dtype].itemsize != end - begin or min(shape, default=0) < 0:
        raise ValueError(f"{end - begin} bytes cannot hold the shape {shape} in {dtype}")
    if count == 0:
        return torch.empty(shape, dtype=_DTYPES[dtype])
    return torch.frombuffer(data, dtype=_DTYPES[dtype], count=count, offset=begin).view(shape)


def _read_pt(path: Path) -> Mapping[object, object]:
    try:
        with zipfile.ZipFile(path) as archive:
            pickles = [entry for entry in archive.infolist() if entry.filename.endswith("data.pkl")]
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise _unreadable(path, error) from error
    if len(pickles) != 1 or pickles[0].file_size > _MAX_HEADER_BYTES:
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


def _check_output(out: Path, inputs: Iterable[Path]) -> None:
    if out.suffix != ".safetensors" or out.is_dir():
        raise HeadForcingError(f"The output is {out.name}, but must be a file name that ends in .safetensors")
    for path in inputs:
        if out.resolve() == path.resolve() or (out.exists() and path.exists() and out.samefile(path)):
            raise HeadForcingError(f"The output {out.name} is the input itself: choose another name")


def _write_safetensors(
    out: Path,
    shapes: Mapping[str, tuple[int, ...]],
    dtype: torch.dtype,
    metadata: dict[str, str],
    value: Callable[[str], Tensor],
    on_progress: Callable[[int, int], None] | None,
) -> None:
    """Write tensors one at a time (the library's writer would need a second copy of all of them in memory)."""
    header: dict[str, object] = {"__metadata__": metadata}
    total = 0
    for name, shape in shapes.items():
        end = total + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": _WRITABLE[dtype], "shape": shape, "data_offsets": (total, end)}
        total = end
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)  # aligned data can be memory-mapped
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
