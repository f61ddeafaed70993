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

import torch
from torch import Tensor

from ..errors import HeadForcingError
from .containers import Metadata

_CONFIG = "adapter_config.json"  # beside `adapter_model.safetensors`
_MAX_CONFIG_BYTES = 8_000_000
_HEADER = "lora_adapter_metadata"


@dataclass(frozen=True)
class StatedAlpha:
    """The alpha that a file states for all its layers, and for some of them.

    Attributes:
        patterns: by a pattern of the ends of layers' names.
        by_root: the scale is alpha by the square root of the rank (rsLoRA), not by the rank.
    """

    alpha: float
    by_root: bool = False
    patterns: Mapping[str, float] = field(default_factory=dict)

    def of(self, module: str, rank: int) -> Tensor:
        """The alpha of a layer, as a tensor of the file would state it."""
        alpha = self.alpha
        for pattern, own in self.patterns.items():
            if module == pattern or module.endswith(f".{pattern}"):
                alpha = own
        return torch.tensor(alpha * math.sqrt(rank) if self.by_root else alpha, dtype=torch.float64)


def stated_alpha(path: Path, metadata: Metadata, names: Iterable[str]) -> StatedAlpha | None:
    """The alpha of a LoRA file by its header or by PEFT's config beside it; None if neither states
    one.

    `names` are those of its tensors: kohya's alpha counts with kohya's names only. Converters keep
    its header where they have multiplied alpha into renamed tensors.

    Raises HeadForcingError for two that disagree, and for values that are no numbers.
    """
    found: dict[str, StatedAlpha | None] = {}
    if _HEADER in metadata:
        found["its header"] = _of_peft(metadata[_HEADER], f"the header of {path.name}")
    kohya = metadata.get("ss_network_alpha", "")
    if re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,6})?", kohya) and any(".lora_down" in n for n in names):
        found["ss_network_alpha"] = StatedAlpha(float(kohya))
    config = path.with_name(_CONFIG)
    if path.stem == "adapter_model" and config.is_file():
        if config.stat().st_size > _MAX_CONFIG_BYTES:
            raise HeadForcingError(f"{config.name} is too large for a LoRA's: download it again")
        found[config.name] = _of_peft(config.read_bytes(), config.name)
    stated = {place: alpha for place, alpha in found.items() if alpha is not None}
    if len(set(map(repr, stated.values()))) > 1:
        both = " and ".join(f"{place} states alpha {one.alpha:g}" for place, one in stated.items())
        raise HeadForcingError(f"{path.name}: {both}; correct one of them")
    return next(iter(stated.values()), None)


def _of_peft(text: str | bytes, name: str) -> StatedAlpha | None:
    """The alpha of PEFT's config, or of a header, where a pipeline's part stands before each name:
    of several parts, that of the first but text encoders. None if it states none.
    """
    try:
        fields = json.loads(text)
        if not isinstance(fields, dict):
            return None
        named = [key for key in fields if key.endswith("lora_alpha") and "text_encoder" not in key]
        first = min(named, default="lora_alpha")
        if fields.get(first) is None:
            return None
        alpha = float(fields[first])
        part = first.removesuffix("lora_alpha")
        patterns = {
            layer: float(one) for layer, one in (fields.get(f"{part}alpha_pattern") or {}).items()
        }
        if not all(map(math.isfinite, (alpha, *patterns.values()))):
            raise ValueError("it is not a number")
        return StatedAlpha(alpha, bool(fields.get(f"{part}use_rslora")), patterns)
    except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise HeadForcingError(
            f"{name} is damaged: the alpha of a LoRA cannot be read ({error}); download it again"
        ) from error
