"""Model family of a weights file: as the file states, else by the name under which it is published.

Weights do not tell how many latent frames a block has and how many steps it takes: all families on
Wan 2.1 have the same tensors. Wan 2.2 TI2V-5B has other latents, and one family.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ..errors import HeadForcingError
from ..model.latents import WAN22
from ..rollout.schedule import AUTO_FAMILY, SCHEDULES, known_family
from ..weights.checkpoint import stated_family
from ..weights.layouts import SPEECH_CHANNELS
from .options import RenderOptions

_FRAMEWISE = "causal_forcing_framewise"
# in the name of a file, as the authors and repackagers call them; the first that is found counts
_NAMES = (
    (r"self-?gradient.*frame-?wise|frame-?wise.*self-?gradient", "self_gradient_forcing_framewise"),
    (r"self-?gradient", "self_gradient_forcing"),
    (r"frame-?wise.*\b1-?step|\b1-?step.*frame-?wise", f"{_FRAMEWISE}_1_step"),
    (r"frame-?wise.*\b2-?step|\b2-?step.*frame-?wise", f"{_FRAMEWISE}_2_steps"),
    (r"frame-?wise", _FRAMEWISE),
    (r"causal-?forcing", "causal_forcing_chunkwise"),
    (r"long-?live-?2", "longlive2"),
    (r"long-?live", "longlive"),
    (r"\braven\b", "raven"),
    (r"\bkrea\b", "krea_14b"),
    (r"self-?forcing", "self_forcing"),
)


def family_of_file(path: Path) -> tuple[str, str] | None:
    """The model family of a weights file and what says so; None if nothing does."""
    with suppress(HeadForcingError):  # told when it is loaded
        family, frames_per_block, channels = stated_family(path)
        if family in SCHEDULES:
            return family, "stated in the file"
        if frames_per_block == 1:
            return _FRAMEWISE, "stated in the file: blocks of 1 latent frame"
        if channels == WAN22.channels:
            return "longlive2", f"by its {WAN22.channels} latent channels"
        if channels == SPEECH_CHANNELS:
            return "livetalk", f"by its {SPEECH_CHANNELS} input channels"
    words = _words(path.stem)
    if re.search(r"causal-?forcing", words):  # framewise/causal_forcing.pt
        words = f"{_words(path.parent.name)}-{words}"
    for pattern, family in _NAMES:
        if re.search(pattern, words):
            return family, f"by the name of {path.name}"
    return None


def _words(name: str) -> str:
    return re.sub(r"[\W_]+", "-", name.lower())


def family_for(chosen: str, path: str | Path | None) -> tuple[str, str]:
    """The model family of a render, and a line on it for the report, empty for none.

    It is that of a weights file in place of `auto`, and of a family whose latents are not those of
    the file. The line also says where a family that was chosen is not that of the file in another
    way.
    """
    found = None if path is None else family_of_file(Path(path))
    if found is None and chosen != AUTO_FAMILY:
        return chosen, ""
    family, why = found or (known_family(AUTO_FAMILY), "nothing names another")
    if chosen == AUTO_FAMILY:
        return family, f"model family {family} ({why})"
    if not SCHEDULES[family].fits_models_of(SCHEDULES[chosen]):
        return family, f"model family {family} ({why}), not {chosen}, whose models differ"
    if SCHEDULES[family].frames_per_block != SCHEDULES[chosen].frames_per_block:
        return (
            chosen,
            f"note: the model family is {chosen} as chosen; that of the file is {family} ({why})",
        )
    return chosen, ""


def with_family(options: RenderOptions, path: str | Path | None) -> tuple[RenderOptions, str]:
    """The options with the family of `family_for`, and its line."""
    family, line = family_for(options.model_family, path)
    return replace(options, model_family=family), line
