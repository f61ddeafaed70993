"""Lists of static and dynamic heads that Forcing-KV publishes, as head profiles: the bundled ones are made of them.

`python -m headforcing.research.forcing_kv_heads ../shared` writes those of `profiles/` again.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..headforcing_core.cache.roles import HeadRole
from ..headforcing_core.errors import HeadForcingError
from ..headforcing_core.head_profiles.profile import BUNDLED_FOLDER, HeadProfile

UNSTATED = "not stated; half of each layer is static"
NOTE = (
    "Imported two-way split, NOT the paper's three-way measurement. Forcing-KV's static heads take the anchor "
    "policy (its 7-frame cache contains the local one), its dynamic heads the memory policy. The list has no "
    "attention shares, so the thresholds cannot be changed; a measured profile can replace it."
)


def import_forcing_kv(
    data: Mapping[str, Any] | Sequence[Mapping[str, Any]], name: str, families: Sequence[str] = (), remark: str = ""
) -> HeadProfile:
    """A fallback profile from a parsed head list of Forcing-KV (its custom2 object, or its bare list of layers).

    Static heads take the anchor policy, whose 7-frame cache contains the local one; dynamic heads the memory policy.
    """
    listed: Mapping[str, Any] = data if isinstance(data, Mapping) else {"layers": data, "description": UNSTATED}
    rows = []
    for index, layer in enumerate(listed["layers"]):
        static, dynamic = set(layer["static_head"]), layer["dynamic_head"]
        count = len(layer["static_head"]) + len(dynamic)
        if layer["layer_idx"] != index or sorted([*layer["static_head"], *dynamic]) != list(range(count)):
            raise HeadForcingError(f"layer {index} of the Forcing-KV list must name every head once, in layer order")
        rows.append(tuple(HeadRole("anchor" if head in static else "memory") for head in range(count)))
    provenance = {
        "source": "https://github.com/zju-jiyicheng/Forcing-KV",
        "licence": "Apache-2.0",
        "criterion": listed.get("description", ""),
        "note": f"{NOTE} {remark}".strip(),
    }
    heads = len(rows[0]) if rows else 0
    return HeadProfile(name, len(rows), heads, tuple(rows), families=tuple(families), provenance=provenance)


SAME_LIST = "Forcing-KV ships the identical list for Self Forcing, so this one is reused or extremely stable."
FORCING_KV = {  # name: (list, families, remark)
    "self_forcing": ("selfforcing", ["self_forcing"], ""),
    "causal_forcing": ("causalforcing", ["causal_forcing_chunkwise"], SAME_LIST),
    "longlive": ("longlive", ["longlive"], ""),
    "raven": ("raven", ["raven"], SAME_LIST),
    "krea_14b": ("realtime_14b", ["krea_14b"], "For Krea Realtime 14B."),
}


def shipped_profiles(shared: Path) -> dict[str, HeadProfile]:
    """The imported ones of the bundled profiles, made from their sources."""
    made = {}
    for name, (stem, families, remark) in FORCING_KV.items():
        data = json.loads((shared / "heads" / f"forcingkv_heads_{stem}.json").read_text())
        made[name] = import_forcing_kv(data, name, families, remark)
    return made


if __name__ == "__main__":
    for profile in shipped_profiles(Path(sys.argv[1])).values():
        profile.save(BUNDLED_FOLDER / f"{profile.name}.json")
