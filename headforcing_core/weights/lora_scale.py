"""The alpha of a LoRA where a file states it other than by tensors: in PEFT's config or in the
header.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..errors import HeadForcingError
from ..files import Fields
from .containers import Metadata

_CONFIG = "adapter_config.json"  # beside `adapter_model.safetensors`
_HEADER = "lora_adapter_metadata"
_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class StatedAlpha:
    """The alpha that a file states for all its layers, and for some of them.

    Attributes:
        patterns: by a pattern of the ends of layers' names.
        by_root: the scale is alpha by the square root of the rank (rsLoRA).
    """

    alpha: float
    by_root: bool = False
    patterns: Mapping[str, float] = field(default_factory=dict)

    def scale(self, module: str, rank: int) -> float:
        """The factor of `up @ down` of a layer."""
        alpha = self.alpha
        for pattern, own in self.patterns.items():
            if module == pattern or module.endswith(f".{pattern}"):
                alpha = own
        return alpha / math.sqrt(rank) if self.by_root else alpha / rank


def stated_alpha(path: Path, metadata: Metadata, names: Iterable[str]) -> StatedAlpha | None:
    """The alpha of a LoRA file by its header or by PEFT's config beside it; None if neither states
    one.

    `names` are those of its tensors: kohya's alpha counts with kohya's names only. Converters keep
    its header where they have multiplied alpha into renamed tensors.

    Raises HeadForcingError for two that disagree, and for values that are no numbers.
    """
    found = {}
    kohya_names = any(".lora_down" in name for name in names)
    header = _from_header(path, metadata, kohya_names)
    if header is not None:
        found["its header"] = header
    config = path.with_name(_CONFIG)
    if path.stem == "adapter_model" and config.is_file():
        fields = _read(config.read_bytes(), config.name)
        stated = _from_fields(fields, config.name, "")
        if stated is not None:
            found[config.name] = stated
    if len(set(map(repr, found.values()))) > 1:
        both = " and ".join(
            f"{place} states alpha {stated.alpha:g}" for place, stated in found.items()
        )
        raise HeadForcingError(f"{path.name}: {both}; correct one of them")
    return next(iter(found.values()), None)


def _from_header(path: Path, metadata: Metadata, kohya_names: bool) -> StatedAlpha | None:
    text = metadata.get(_HEADER)
    if text is not None:
        fields = _read(text.encode(), f"the header of {path.name}")
        for name in sorted(fields):
            if name.endswith("lora_alpha") and "text_encoder" not in name:
                return _from_fields(fields, path.name, name.removesuffix("lora_alpha"))
    kohya = metadata.get("ss_network_alpha", "")
    if kohya_names and re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", kohya):
        return StatedAlpha(float(kohya))
    return None


def _from_fields(fields: Fields, name: str, prefix: str) -> StatedAlpha | None:
    alpha = fields.get(f"{prefix}lora_alpha")
    if alpha is None:
        return None
    patterns = fields.get(f"{prefix}alpha_pattern") or {}
    if not isinstance(patterns, dict):
        patterns = {"": None}
    for value in (alpha, *patterns.values()):
        if not isinstance(value, (int, float)) or not math.isfinite(value):
            raise HeadForcingError(f"{name} is damaged: its alpha is not a number")
    return StatedAlpha(float(alpha), bool(fields.get(f"{prefix}use_rslora")), patterns)


def _read(data: bytes, name: str) -> Fields:
    try:
        fields = json.loads(data[:_MOST_BYTES])
    except (ValueError, RecursionError) as error:
        raise HeadForcingError(f"{name} is damaged: it is no JSON; download it again") from error
    return fields if isinstance(fields, dict) else {}
