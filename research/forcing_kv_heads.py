"""Lists of static and dynamic heads that Forcing-KV publishes, as head profiles: the bundled ones
are made of them.

`python -m headforcing.research.forcing_kv_heads ../shared` writes those of `profiles/` again.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..headforcing_core.cache.roles import HeadRole
from ..headforcing_core.head_profiles.profile import BUNDLED_FOLDER, HeadProfile

UNSTATED = "not stated; half of each layer is static"
NOTE = (
    "Imported two-way split, NOT the paper's three-way measurement. Forcing-KV's static heads take "
    "the anchor policy (its 7-frame cache contains the local one), its dynamic heads the memory "
    "policy. The list has no attention shares, so the thresholds cannot be changed; a measured "
    "profile can replace it."
)
SAME_LIST = (
    "Forcing-KV ships the identical list for Self Forcing, so this one is reused or extremely "
    "stable."
)
FORCING_KV = {  # name: (list, family, remark)
    "forcing_kv_self_forcing": ("selfforcing", "self_forcing", ""),
    "causal_forcing": ("causalforcing", "causal_forcing_chunkwise", SAME_LIST),
    "longlive": ("longlive", "longlive", ""),
    "raven": ("raven", "raven", SAME_LIST),
    "krea_14b": ("realtime_14b", "krea_14b", "For Krea Realtime 14B."),
}


def shipped_profiles(shared: Path) -> dict[str, HeadProfile]:
    """The imported ones of the bundled profiles, made from their sources: custom2 objects or bare
    lists of layers.
    """
    made = {}
    for name, (stem, family, remark) in FORCING_KV.items():
        data: Any = json.loads((shared / "heads" / f"forcingkv_heads_{stem}.json").read_text())
        listed: Mapping[str, Any] = (
            data if isinstance(data, Mapping) else {"layers": data, "description": UNSTATED}
        )
        rows = tuple(
            _roles(layer["static_head"], layer["dynamic_head"]) for layer in listed["layers"]
        )
        provenance = {
            "source": "https://github.com/zju-jiyicheng/Forcing-KV",
            "licence": "Apache-2.0",
            "criterion": listed.get("description", ""),
            "note": f"{NOTE} {remark}".strip(),
        }
        made[name] = HeadProfile(
            name, len(rows), len(rows[0]), rows, families=(family,), provenance=provenance
        )
    return made


def _roles(static: Sequence[int], dynamic: Sequence[int]) -> tuple[HeadRole, ...]:
    """The roles of a layer's heads, in which every head is listed once."""
    roles = dict.fromkeys(static, HeadRole.ANCHOR) | dict.fromkeys(dynamic, HeadRole.MEMORY)
    return tuple(roles[head] for head in range(len(static) + len(dynamic)))


if __name__ == "__main__":
    for profile in shipped_profiles(Path(sys.argv[1])).values():
        profile.save(BUNDLED_FOLDER / f"{profile.name}.json")
