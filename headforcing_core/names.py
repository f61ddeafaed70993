"""Names and numbers that a command line and menus offer, from a module that imports nothing heavy.

Names of things that are built elsewhere are those of the tables there, which a test compares.
"""

from __future__ import annotations

import platform
from pathlib import Path

VERSION = "0.1.0"  # of the pack; a test compares it with pyproject.toml
BUNDLED_FOLDER = Path(__file__).parents[1] / "profiles"
DEMO_MODEL = Path(__file__).parent / "demo" / "rooms_wan_4step_bf16.safetensors"
DEMO_AUTOENCODER = DEMO_MODEL.with_name("rooms_ae_bf16.safetensors")
DEMO_PICTURE_DECODER = DEMO_MODEL.with_name("rooms_picture_bf16.safetensors")


def versions() -> dict[str, str]:
    """The versions of this pack, of torch and of Python, for files that are written."""
    import torch

    return {
        "headforcing": VERSION,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
    }


def bundled_profiles() -> dict[str, Path]:
    """Paths of the head profiles bundled with the pack, by name."""
    return {path.stem: path for path in sorted(BUNDLED_FOLDER.glob("*.json"))}


BACKENDS = ("sdpa", "cudnn", "torch_varlen", "flash_attn", "triton", "explicit", "sage")
"""Of attention, see `model/attention_backends.py`."""
RENAMED_BACKENDS = {
    "flash_attn_2": "flash_attn",
    "flash_attn_3": "flash_attn",
    "flash_attn_4": "flash_attn",
}
ATTENTION_HELP = (
    "auto, the fastest of those that work here, by timing them on a GPU; sdpa, PyTorch's; cudnn, "
    "cuDNN's, where contexts are full; torch_varlen or flash_attn (the newest version that is "
    "installed), all heads of a layer in one call; triton, the pack's own kernel; explicit, slow "
    "and exact; sage, which rounds to 8 bits (auto)"
)


def backend_name(name: str) -> str:
    """The name that an attention backend has now."""
    return RENAMED_BACKENDS.get(name, name)


PRESETS = (
    "head_forcing no_rope_reencoding uniform_admission fifo_eviction random_tokens centered_keys "
    "pinned_first_entry no_episodic_memory uniform_memory self_forcing self_forcing_window_21 "
    "self_forcing_sink livetalk"
).split()
"""Methods that keep frames by role, see `methods/head_forcing.py`; all others are rows of
`methods/registry.py`.
"""

ALL = "all"  # for `compare`: every published method that the weights allow
COMPARED_METHODS = ("head_forcing", "self_forcing_window_21", "infinity_rope")

ROLE_ARRANGEMENTS = ("profile", "local_to_memory", "anchor_to_memory", "shuffled")
RULES = ("quota", "function", "auto")  # of head roles, see `head_profiles/rules.py`
DECODERS = ("auto", "wan", "taew2_1", "lighttaew2_1", "taew2_2")
DTYPES = ("bf16", "fp16", "fp32")
# of profiling: prompts, and seconds of each; None: as in `head_profiles.shares.measured_blocks`
BUDGETS: dict[str, tuple[int, float | None]] = {
    "full": (20, None),
    "quick": (4, None),
    "paper": (20, 30.0),
}
PARTS = ("last", "first")  # of a video that a new one begins with
DEFAULT_START_SECONDS = 4.0  # of that part; roles of heads can be found after this many
CARDS = (6, 8, 10, 12, 16, 24)  # GiB, that `headforcing memory` has a column for
LISTED_FAMILIES = ("self_forcing", "longlive2")  # by `headforcing memory` and `budget`
