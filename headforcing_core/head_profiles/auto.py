"""Automatic head profile: the roles are measured before the first render of a model, and kept for
all later ones.
"""

from __future__ import annotations

import logging
import math
import os
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from ..errors import HeadForcingError
from .profile import ANCHOR_FRACTION, LOCAL_FRACTION, HeadProfile, classify, load_profile
from .rules import with_rule

log = logging.getLogger(__name__)

MEASURE_SECONDS = 60.0


@dataclass(frozen=True)
class AutoProfile:
    """Requests roles that are measured on the weights that render, by a rule of `names.RULES`; in
    place of a head profile.

    Attributes:
        measure_seconds: the longest that measuring may take; else a bundled list is used.
    """

    anchor_fraction: float = ANCHOR_FRACTION
    local_fraction: float = LOCAL_FRACTION
    rule: str = "auto"
    measure_seconds: float = MEASURE_SECONDS

    def __post_init__(self) -> None:
        if not 0 < self.measure_seconds < math.inf:
            raise HeadForcingError(
                f"measure_seconds must be a number of seconds above 0, got {self.measure_seconds:g}"
            )

    def expected(self, num_layers: int, num_heads: int) -> HeadProfile:
        """Roles in the right numbers but for arbitrary heads, the same in every layer where that is
        possible, to compute cache sizes before the measurement.
        """
        shares = [(1 - head / num_heads, 0.0, head / num_heads) for head in range(num_heads)]
        roles = classify([shares] * num_layers, self.anchor_fraction, self.local_fraction)
        return HeadProfile("to be measured", num_layers, num_heads, roles)

    def of(self, profile: HeadProfile) -> HeadProfile:
        """The roles that are asked for, from a measured profile."""
        return with_rule(profile, self.rule, self.anchor_fraction, self.local_fraction)


ProfileChoice = HeadProfile | AutoProfile | None
"""Known roles, those to be measured, or what fits the model."""


def found_profile_path(folder: Path, fingerprint: str) -> Path:
    """The file with the roles of a model, by the fingerprint of its weights."""
    return folder / f"{fingerprint}.json"


def store_found_profile(path: Path, profile: HeadProfile) -> HeadProfile:
    """Keep a profile that was measured for a model; the profile under the name of its file."""
    source = f"measured on {date.today().isoformat()} at {profile.measured['size']}"
    provenance = profile.provenance | {"source": f"{source} before a render"}
    named = replace(profile, name=source, provenance=provenance)
    named.save(path)
    return named


def load_found_profile(path: Path, auto: AutoProfile) -> HeadProfile | None:
    """The roles that were measured for this model earlier, with the wanted thresholds; None without
    an intact file.
    """
    if not os.path.exists(path):  # nor in a folder that the user may not read
        return None
    try:
        return auto.of(load_profile(path))
    except HeadForcingError as error:
        log.warning("Head Forcing: roles are measured again, %s", error)
        return None
