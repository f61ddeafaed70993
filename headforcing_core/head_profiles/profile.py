"""Head profiles: the role (`local`, `anchor` or `memory`) of every attention head of a model,
stored as JSON.

A measured profile includes every head's attention shares, so that other thresholds need no new
measurement. An imported profile has roles only. A third kind has the labels of Pyramid Forcing, and
roles translated from them.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from ..cache.roles import HeadRole, Roles
from ..errors import HeadForcingError
from ..files import Fields, check_regular, replacing
from ..methods.pyramid_labels import OF_ROLES, HeadLabel
from ..names import BUNDLED_FOLDER as BUNDLED_FOLDER
from ..names import bundled_profiles as bundled_profiles

FORMAT_VERSION = 1
ROLES: tuple[str, ...] = tuple(HeadRole)
ANCHOR_FRACTION = 0.25
LOCAL_FRACTION = 0.20
MAX_FILE_BYTES = 16 << 20
# bundled profiles for families without their own
FALLBACKS = (
    "self_forcing",
    "forcing_kv_self_forcing",
    "pyramid_self_forcing",
    "krea_14b",
    "toy_world",
)
SINK, MIDDLE, CURRENT = range(3)  # parts of a head's shares

Head = tuple[int, int]  # its layer and its number there
# shares[layer][head] = sink, middle, current
Shares = Sequence[Sequence[Sequence[float]]]
Rows = Sequence[Sequence[Any]]
RoleRows = tuple[tuple[HeadRole, ...], ...]


@dataclass(frozen=True)
class HeadProfile:
    """The role of every head of one model; construction raises HeadForcingError for invalid values.

    Attributes:
        roles: `roles[layer][head]`; names of roles become `HeadRole`s here, the only place that
            checks them.
        shares: `[layer][head]` = fractions of attention to (sink frame, middle, current block),
            with sum 1.
        anchor_fraction, local_fraction: fractions of all heads classified as anchor and local; None
            without shares.
        families: model families (keys of `rollout.schedule.SCHEDULES`) that the profile is for.
        measured: conditions of the measurement, see `HeadShares.profile`.
        provenance: origin of the profile: source, licence, note.
        labels: `[layer][head]`, each "wave", "anchor" or "veil", as published for Pyramid Forcing.
        returns: `[layer][head]` = fraction of attention to an earlier visit, see `profiler.py`.
    """

    name: str
    num_layers: int
    num_heads: int
    roles: RoleRows
    shares: Shares | None = None
    anchor_fraction: float | None = ANCHOR_FRACTION
    local_fraction: float | None = LOCAL_FRACTION
    families: tuple[str, ...] = ()
    measured: Fields = field(default_factory=dict)
    provenance: Fields = field(default_factory=dict)
    labels: tuple[tuple[HeadLabel, ...], ...] | None = None
    returns: Sequence[Sequence[float]] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise _wrong("name", "a text", self.name)
        for key, count in (("num_layers", self.num_layers), ("num_heads", self.num_heads)):
            if type(count) is not int or count < 1:
                raise _wrong(key, "a whole number from 1", count)
        if self.shares is None:
            self._set("anchor_fraction", None)
            self._set("local_fraction", None)
        else:
            _check_fractions(self.anchor_fraction, self.local_fraction)
        if not _is_list(self.families) or not all(isinstance(name, str) for name in self.families):
            raise _wrong("families", "a list of names", self.families)
        for key, notes in (("measured", self.measured), ("provenance", self.provenance)):
            if not isinstance(notes, dict):
                raise _wrong(key, "an object with named values", notes)
        self._set("families", tuple(self.families))
        self._convert("roles", self.roles, "local, anchor or memory", HeadRole)
        if self.shares is not None:
            self._convert("shares", self.shares, "three numbers from 0 with sum 1", _as_shares)
        if self.labels is not None:
            self._convert("labels", self.labels, "wave, anchor or veil", HeadLabel)
        if self.returns is not None:
            self._convert("returns", self.returns, "a number in 0-1", _as_fraction)

    def _set(self, key: str, value: Any) -> None:
        object.__setattr__(self, key, value)  # the class is frozen

    def _convert(self, key: str, rows: Any, wanted: str, convert: Callable[[Any], Any]) -> None:
        """Set a field to its `rows[layer][head]` as tuples; refuses other dimensions and values
        for which `convert` raises.
        """
        widths = []
        if _is_list(rows):
            widths = [len(row) if _is_list(row) else 0 for row in rows]
        if len(widths) != self.num_layers or set(widths) != {self.num_heads}:
            found = ", ".join(str(width) for width in sorted(set(widths)))
            raise HeadForcingError(
                f"{key} must have {self.num_layers} layers of {self.num_heads} heads, found "
                f"{len(widths)} of {found}"
            )
        converted = [list(row) for row in rows]
        for (layer, head), value in by_head(rows).items():
            try:
                converted[layer][head] = convert(value)
            except (TypeError, ValueError):
                raise _wrong(f"{key} of layer {layer}, head {head}", wanted, value) from None
        self._set(key, tuple(map(tuple, converted)))

    def kinds(self, heads_by: str) -> tuple[Roles, str]:
        """The kind of every head, a role or a label as `Method.heads_by` says, and a note for the
        report; labels that are unknown are those that fit the roles best.
        """
        if heads_by == "roles":
            return self.roles, ""
        if self.labels is not None:
            return self.labels, ""
        labels = [[OF_ROLES[HeadRole(role)] for role in layer] for layer in self.roles]
        return labels, ", labels from its roles"

    def counts(self) -> dict[str, int]:
        """Number of heads of each role, in the order of ROLES."""
        counts: Counter[str] = Counter(chain(*self.roles))
        return {role: counts[role] for role in ROLES}

    @property
    def counted(self) -> str:
        """The number of heads of each role, as text."""
        return ", ".join(f"{count} {role}" for role, count in self.counts().items())

    @property
    def disputed(self) -> set[Head]:
        """`(layer, head)` of the heads about which the profile's sources disagree, as its
        provenance lists them.
        """
        listed: Any = self.provenance.get("disputed")
        if not isinstance(listed, list):
            return set()
        return {at for at in by_head(self.roles) if list(at) in listed}

    def check_model(self, num_layers: int, num_heads: int) -> None:
        """Raise HeadForcingError unless the profile is for a model with these dimensions."""
        if (num_layers, num_heads) != (self.num_layers, self.num_heads):
            raise HeadForcingError(
                f"Head profile '{self.name}' is for {self.num_layers}x{self.num_heads} heads, the "
                f"model has {num_layers}x{num_heads}. Choose a profile that was made for this "
                "model."
            )

    def to_json(self) -> str:
        """The profile as JSON, with one layer of roles or shares per line and exact numbers."""
        plain = {
            "format_version": FORMAT_VERSION,
            "name": self.name,
            "num_layers": self.num_layers,
            "num_heads": self.num_heads,
            "anchor_fraction": self.anchor_fraction,
            "local_fraction": self.local_fraction,
            "families": self.families,
        }
        entries = {key: json.dumps(value) for key, value in plain.items()}
        entries["measured"] = _object_text(self.measured)
        entries["provenance"] = _object_text(self.provenance)
        entries["roles"] = _rows_text(self.roles)
        entries["shares"] = _rows_text(self.shares)
        if self.labels is not None:  # files of other kinds stay as they were
            entries["labels"] = _rows_text(self.labels)
        if self.returns is not None:
            entries["returns"] = _rows_text(self.returns)
        lines = [f'  "{key}": {text}' for key, text in entries.items()]
        return "{\n" + ",\n".join(lines) + "\n}\n"

    @classmethod
    def from_json(cls, text: str) -> HeadProfile:
        """Parse a profile; unknown keys are ignored. Raises HeadForcingError for invalid
        content.
        """
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise HeadForcingError(
                f"expected a head profile in JSON, found something else ({error})"
            ) from None
        if not isinstance(data, dict):
            data = {}
        version = data.get("format_version")
        if version != FORMAT_VERSION:
            raise HeadForcingError(
                f"format_version of a head profile must be {FORMAT_VERSION}, found "
                f"{version!r:.60}; a profile of a newer version of Head Forcing needs that version"
            )
        for key in ("name", "num_layers", "num_heads", "roles"):
            if key not in data:
                raise HeadForcingError(f"{key!r} is missing from the head profile")
        known = [item.name for item in fields(cls)]
        return cls(**{key: value for key, value in data.items() if key in known})

    def save(self, path: Path) -> None:
        """Write the profile atomically to a JSON file."""
        text = self.to_json()
        with replacing(path) as temporary:
            temporary.write_text(text, encoding="utf-8")


def load_profile(path: Path) -> HeadProfile:
    """Read a head profile file. Raises HeadForcingError, which names the file, for a missing or
    invalid file.
    """
    check_regular(path)
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise HeadForcingError(
                f"larger than any head profile ({MAX_FILE_BYTES >> 20} MB); choose a profile file"
            )
        return HeadProfile.from_json(path.read_text("utf-8"))
    except HeadForcingError as error:
        raise HeadForcingError(f"{path.name}: {error}") from None
    except (OSError, ValueError) as error:
        raise HeadForcingError(f"{path.name} cannot be read as a head profile ({error})") from error


def default_profile(
    num_layers: int,
    num_heads: int,
    family: str | None = None,
    heads_by: str = "roles",
    two_way: bool = False,
) -> HeadProfile:
    """The bundled profile for a model: that of its family, or else the fallback with its
    dimensions.

    A profile with labels is chosen only for a method whose `heads_by` asks for them, and then
    first. A profile of three roles,
    with shares, comes before a list of two kinds of heads; if `two_way`, after it. Raises
    HeadForcingError if there is none.
    """
    fitting = [
        each for each in _bundled() if (each.num_layers, each.num_heads) == (num_layers, num_heads)
    ]
    labels = heads_by == "labels" and any(each.labels is not None for each in fitting)
    chosen = {each.name: each for each in fitting if (each.labels is not None) == labels}
    of_family = [each for each in chosen.values() if family in each.families]
    of_family.sort(key=lambda each: (each.shares is None) != two_way)
    fallbacks = [chosen[name] for name in FALLBACKS if name in chosen]
    fallbacks.sort(key=lambda each: (each.shares is None) != two_way)
    found = [*of_family, *fallbacks]
    if not found:
        raise HeadForcingError(
            f"No bundled head profile fits a model of {num_layers}x{num_heads} heads; load one for "
            "this model."
        )
    return found[0]


@cache
def _bundled() -> tuple[HeadProfile, ...]:
    """All bundled profiles, read once; these files belong to the package."""
    return tuple(
        HeadProfile.from_json(path.read_text("utf-8")) for path in bundled_profiles().values()
    )


def classify(
    shares: Shares,
    anchor_fraction: float = ANCHOR_FRACTION,
    local_fraction: float = LOCAL_FRACTION,
) -> RoleRows:
    """Roles `[layer][head]` from attention shares (METHOD.md; paper, supplement "Head Profiling").

    `shares[layer][head]` = (sink, middle, current). Of all N heads, the round(anchor_fraction * N)
    with the largest sink share are anchors. Of the others, the round(local_fraction * N) with the
    largest current share are local. The rest are memory. Halves round up; of equal shares, the
    lower (layer, head) comes first. Raises HeadForcingError for a fraction outside 0-1.
    """
    _check_fractions(anchor_fraction, local_fraction)
    count = sum(map(len, shares))
    anchors = heads_with_most(shares, SINK, _rounded(anchor_fraction * count))
    locals_ = heads_with_most(shares, CURRENT, _rounded(local_fraction * count), besides=anchors)
    return name_heads(
        shares, {HeadRole.ANCHOR: anchors, HeadRole.LOCAL: locals_}, rest=HeadRole.MEMORY
    )


def _rounded(value: float) -> int:
    """The nearest whole number; halves round up, unlike Python's."""
    # 1e-9 because 0.35 * 30 is slightly below 10.5
    return math.floor(value + 0.5 + 1e-9)


def by_head(rows: Rows | None) -> dict[Head, Any]:
    """The values in `rows[layer][head]` by `(layer, head)`, in order; nothing for None."""
    found = {}
    for layer, row in enumerate(rows or ()):
        for head, value in enumerate(row):
            found[layer, head] = value
    return found


def heads_with_most(
    shares: Shares,
    part: int,
    count: int,
    besides: Collection[Head] = (),
) -> set[Head]:
    """The `count` heads with the largest share of a part; of equal shares, the lower comes
    first.
    """
    of_part = {at: share[part] for at, share in by_head(shares).items() if at not in besides}
    return set(sorted(of_part, key=of_part.__getitem__, reverse=True)[:count])


def name_heads(
    shares: Shares, named: Mapping[HeadRole, Collection[Head]], rest: HeadRole
) -> RoleRows:
    """Roles `[layer][head]`: those of `named`, and `rest` for all other heads."""
    roles = [[rest] * len(row) for row in shares]
    for role, heads in named.items():
        for layer, head in heads:
            roles[layer][head] = role
    return tuple(tuple(layer) for layer in roles)


def stability(runs: Sequence[Sequence[Sequence[str]]]) -> dict[str, float]:
    """Core stability ratio of several profiling runs, per role and as "mean" (paper, supplement).

    The ratio of a role is the number of heads with that role in all runs divided by the mean number
    of heads with it per run, 0-1; 1 for a role that no run assigns.
    """
    roles = np.asarray(runs)
    result = {}
    for role in ROLES:
        assigned = roles == role
        size = assigned.sum() / len(runs)
        result[role] = float(assigned.all(axis=0).sum() / size) if size else 1.0
    result["mean"] = sum(result.values()) / len(ROLES)
    return result


def _object_text(value: Fields) -> str:
    """A JSON object in the file, a value per line."""
    return json.dumps(value, indent=2 if value else None, allow_nan=False).replace("\n", "\n  ")


def _rows_text(rows: Rows | None) -> str:
    """A JSON list in the file, a layer per line."""
    if rows is None:
        return "null"
    return "[\n    " + ",\n    ".join(json.dumps(row, default=str) for row in rows) + "\n  ]"


def _check_fractions(anchor: Any, local: Any) -> None:
    for key, fraction in (("anchor_fraction", anchor), ("local_fraction", local)):
        if not _is_fraction(fraction):
            raise _wrong(key, "a number in 0-1", fraction)


def _wrong(key: str, wanted: str, value: Any) -> HeadForcingError:
    return HeadForcingError(f"{key} must be {wanted}, found {value!r:.60}")


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _is_fraction(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return 0 <= value <= 1.001  # shares are rounded


# A head's value in a file, as the profile holds it; ValueError for what a file must not have.


def _as_fraction(value: Any) -> float:
    if not _is_fraction(value):
        raise ValueError
    return float(value)


def _as_shares(values: Any) -> tuple[float, ...]:
    sink, middle, current = map(_as_fraction, values)
    if abs(sink + middle + current - 1) > 1e-3:
        raise ValueError
    return sink, middle, current
