"""The imported ones of the bundled profiles, made from Forcing-KV's head lists."""

from collections.abc import Mapping, Sequence
from typing import Any

from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.head_profiles.profile import HeadProfile


def import_forcing_kv(
    data: Mapping[str, Any] | Sequence[Mapping[str, Any]], name: str, families: Sequence[str] = (), remark: str = ""
) -> HeadProfile:
    """A fallback profile from a parsed head list of Forcing-KV (its custom2 object, or its bare list of layers).

    Static heads take the anchor policy, whose 7-frame cache contains the local one; dynamic heads the memory policy.
    """
    layers = data["layers"] if isinstance(data, Mapping) else data
    rows = []
    for index, layer in enumerate(layers):
        static, dynamic = layer["static_head"], layer["dynamic_head"]
        if layer["layer_idx"] != index or sorted([*static, *dynamic]) != list(range(len(static) + len(dynamic))):
            raise HeadForcingError(f"layer {index} of the Forcing-KV list must name every head once, in layer order")
        rows.append(tuple("anchor" if head in set(static) else "memory" for head in range(len(static) + len(dynamic))))
    note = (
        "Imported two-way split, NOT the paper's three-way measurement. Forcing-KV's static heads take the anchor "
        "policy (its 7-frame cache contains the local one), its dynamic heads the memory policy. The list has no "
        "attention shares, so the thresholds cannot be changed; a measured profile can replace it."
    )
    criterion = data.get("description", "") if isinstance(data, Mapping) else "not stated; half of each layer is static"
    return HeadProfile(
        name=name,
        num_layers=len(rows),
        num_heads=len(rows[0]) if rows else 0,
        roles=tuple(rows),
        families=tuple(families),
        provenance={
            "source": "https://github.com/zju-jiyicheng/Forcing-KV",
            "licence": "Apache-2.0",
            "criterion": criterion,
            "note": f"{note} {remark}".strip(),
        },
    )
