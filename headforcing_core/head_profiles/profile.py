"""Head profiles: the role (`local`, `anchor` or `memory`) of every attention head of a model, stored as JSON.

A measured profile includes every head's attention shares, so that other thresholds need no new measurement. An imported
profile has roles only. A third kind has the labels of Pyramid Forcing, and roles translated from them.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from ..cache.guards import QueryStatistics
from ..cache.roles import HeadLabel, HeadRole, Roles
from ..errors import HeadForcingError
from ..files import check_regular, replacing
from ..names import BUNDLED_FOLDER as BUNDLED_FOLDER
from ..names import bundled_profiles as bundled_profiles

FORMAT_VERSION = 1
ROLES: tuple[str, ...] = tuple(HeadRole)
# Pyramid Forcing's labels, by the role that fits best
LABELS = {HeadRole.LOCAL: HeadLabel.WAVE, HeadRole.ANCHOR: HeadLabel.VEIL, HeadRole.MEMORY: HeadLabel.ANCHOR}
ANCHOR_FRACTION = 0.25
LOCAL_FRACTION = 0.20
MAX_FILE_BYTES = 16 << 20
# bundled profiles for families without their own
FALLBACKS = ("self_forcing", "pyramid_self_forcing", "krea_14b", "toy_world")
LONG_FIELDS = ("roles", "shares", "labels", "queries", "returns")  # at the end of the file, a layer per line

# queries[layer][head]: for every pair of channels the real parts of the mean query, its imaginary parts, mean sizes
Queries = tuple[tuple[tuple[float, ...], ...], ...]
Shares = tuple[tuple[tuple[float, float, float], ...], ...]  # shares[layer][head] = sink, middle, current


@dataclass(frozen=True)
class HeadProfile:
    """The role of every head of one model; construction raises HeadForcingError for invalid values.

    Attributes:
        roles: `roles[layer][head]`; names of roles become `HeadRole`s here, the only place that checks them.
        shares: `[layer][head]` = fractions of attention to (sink frame, middle, current block), with sum 1.
        anchor_fraction, local_fraction: fractions of all heads classified as anchor and local; None without shares.
        families: model families (keys of `rollout.schedule.SCHEDULES`) that the profile is for.
        measured: conditions of the measurement, see `HeadShares.profile`.
        provenance: origin of the profile: source, licence, note.
        labels: `[layer][head]`, each "wave", "anchor" or "veil", as published for Pyramid Forcing.
        queries: `[layer][head]` = statistics of the head's queries, see `Queries`.
        returns: `[layer][head]` = fraction of attention to an earlier visit, see `profiler.py`.
    """

    name: str
    num_layers: int
    num_heads: int
    roles: tuple[tuple[HeadRole, ...], ...]
    shares: Shares | None = None
    anchor_fraction: float | None = ANCHOR_FRACTION
    local_fraction: float | None = LOCAL_FRACTION
    families: tuple[str, ...] = ()
    measured: dict[str, Any] = field(default_factory=dict)
    provenance: dict[str, Any] = field(default_factory=dict)
    labels: tuple[tuple[HeadLabel, ...], ...] | None = None
    queries: Queries | None = None
    returns: tuple[tuple[float, ...], ...] | None = None

    def __post_init__(self) -> None:
        for key, (wanted, fits) in _FIELDS.items():
            if self.shares is None and key.endswith("_fraction"):
                object.__setattr__(self, key, None)
            elif not fits(vars(self)[key]):
                raise HeadForcingError(f"{key} must be {wanted}, found {vars(self)[key]!r:.60}")
        object.__setattr__(self, "families", tuple(self.families))
        for key in LONG_FIELDS:
            if key == "roles" or vars(self)[key] is not None:
                object.__setattr__(self, key, self._checked_heads(key))
        if self.queries and len({len(head) for layer in self.queries for head in layer}) > 1:
            raise HeadForcingError("queries must have the same number of values for every head, found several")

    def _checked_heads(self, key: str) -> tuple[tuple[Any, ...], ...]:
        """A field's `rows[layer][head]` as tuples; refuses other dimensions and values than `_OF_HEADS` says."""
        rows, (wanted, fits, convert) = vars(self)[key], _OF_HEADS[key]
        layers, heads = self.num_layers, self.num_heads
        found = [len(row) if _is_list(row) else 0 for row in rows] if _is_list(rows) else []
        if len(found) != layers or set(found) != {heads}:
            most = ", ".join(map(str, sorted(set(found))))
            raise HeadForcingError(f"{key} must have {layers} layers of {heads} heads, found {len(found)} of {most}")
        for layer, head in product(range(layers), range(heads)):
            if not fits(value := rows[layer][head]):
                raise HeadForcingError(f"{key} of layer {layer}, head {head} must be {wanted}, found {value!r:.60}")
        return tuple(tuple(map(convert, row)) for row in rows)

    @property
    def query_statistics(self) -> QueryStatistics | None:
        """`queries` as tensors; None without."""
        return None if self.queries is None else QueryStatistics.of(self.queries)

    def heads_for(self, labelled: bool) -> Roles:
        """The role of every head, or its label; labels that are unknown are those that fit the roles best."""
        if not labelled:
            return self.roles
        return self.labels or tuple(tuple(LABELS[role] for role in layer) for layer in self.roles)

    def counts(self) -> dict[str, int]:
        """Number of heads of each role, in the order of ROLES."""
        counts: Counter[str] = Counter(role for layer in self.roles for role in layer)
        return {role: counts[role] for role in ROLES}

    @property
    def disputed(self) -> set[tuple[int, int]]:
        """`(layer, head)` of the heads about which the profile's sources disagree, as its provenance lists them."""
        listed: Any = self.provenance.get("disputed")
        if not isinstance(listed, list):
            return set()
        return {(i, j) for i in range(self.num_layers) for j in range(self.num_heads) if [i, j] in listed}

    def check_model(self, num_layers: int, num_heads: int) -> None:
        """Raise HeadForcingError unless the profile is for a model with these dimensions."""
        if (num_layers, num_heads) != (self.num_layers, self.num_heads):
            raise HeadForcingError(
                f"Head profile '{self.name}' is for {self.num_layers}x{self.num_heads} heads, the model has "
                f"{num_layers}x{num_heads}. Choose a profile that was made for this model."
            )

    def to_json(self) -> str:
        """The profile as JSON, with one layer of roles or shares per line and exact numbers."""
        entries = {"format_version": json.dumps(FORMAT_VERSION)}
        for item in sorted(fields(self), key=lambda item: item.name in LONG_FIELDS):
            value = vars(self)[item.name]
            if item.name in LONG_FIELDS[2:] and value is None:  # files of other kinds stay as they were
                continue
            if item.name in LONG_FIELDS and value is not None:
                entries[item.name] = "[\n    " + ",\n    ".join(json.dumps(row, default=str) for row in value) + "\n  ]"
            else:
                indent = 2 if isinstance(value, dict) and value else None
                entries[item.name] = json.dumps(value, indent=indent, allow_nan=False).replace("\n", "\n  ")
        return "{\n" + ",\n".join(f'  "{key}": {value}' for key, value in entries.items()) + "\n}\n"

    @classmethod
    def from_json(cls, text: str) -> HeadProfile:
        """Parse a profile; unknown keys are ignored. Raises HeadForcingError for invalid content."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise HeadForcingError(f"expected a head profile in JSON, found something else ({error})") from None
        version = data.get("format_version") if isinstance(data, dict) else None
        if version != FORMAT_VERSION:
            raise HeadForcingError(
                f"format_version of a head profile must be {FORMAT_VERSION}, found {version!r:.60}; a profile of a "
                "newer version of Head Forcing needs that version"
            )
        if missing := [key for key in ("name", "num_layers", "num_heads", "roles") if key not in data]:
            raise HeadForcingError(f"{missing[0]!r} is missing from the head profile")
        return cls(**{item.name: data[item.name] for item in fields(cls) if item.name in data})

    def save(self, path: str | Path) -> None:
        """Write the profile atomically to a JSON file."""
        text = self.to_json()
        with replacing(path) as temporary:
            temporary.write_text(text, encoding="utf-8")


def load_profile(path: str | Path) -> HeadProfile:
    """Read a head profile file. Raises HeadForcingError, which names the file, for a missing or invalid file."""
    check_regular(path)
    path = Path(path)
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise HeadForcingError(f"larger than any head profile ({MAX_FILE_BYTES >> 20} MB); choose a profile file")
        return HeadProfile.from_json(path.read_text("utf-8"))
    except HeadForcingError as error:
        raise HeadForcingError(f"{path.name}: {error}") from None
    except (OSError, ValueError) as error:
        raise HeadForcingError(f"{path.name} cannot be read as a head profile ({error})") from error


def default_profile(num_layers: int, num_heads: int, family: str | None = None, labelled: bool = False) -> HeadProfile:
    """The bundled profile for a model: that of its family, or else the fallback with its dimensions.

    A profile with labels is chosen only if `labelled`, and then first. Raises HeadForcingError if there is none.
    """
    fitting = [each for each in _bundled() if (each.num_layers, each.num_heads) == (num_layers, num_heads)]
    labels = labelled and any(each.labels is not None for each in fitting)
    chosen = {each.name: each for each in fitting if (each.labels is not None) == labels}
    of_family = [each for each in chosen.values() if family in each.families]
    fallbacks = [chosen[name] for name in FALLBACKS if name in chosen]
    if not of_family and not fallbacks:
        raise HeadForcingError(
            f"No bundled head profile fits a model of {num_layers}x{num_heads} heads; load one for this model."
        )
    return (*of_family, *fallbacks)[0]


@cache
def _bundled() -> tuple[HeadProfile, ...]:
    """All bundled profiles, read once; these files belong to the package."""
    return tuple(HeadProfile.from_json(path.read_text("utf-8")) for path in bundled_profiles().values())


def classify(
    shares: Sequence[Sequence[Sequence[float]]],
    anchor_fraction: float = ANCHOR_FRACTION,
    local_fraction: float = LOCAL_FRACTION,
) -> tuple[tuple[HeadRole, ...], ...]:
    """Roles `[layer][head]` from attention shares (METHOD.md; paper, supplement "Head Profiling").

    `shares[layer][head]` = (sink, middle, current). Of all N heads, the round(anchor_fraction * N) with the largest
    sink share are anchors. Of the others, the round(local_fraction * N) with the largest current share are local. The
    rest are memory. Halves round up; of equal shares, the lower (layer, head) comes first. Raises HeadForcingError for
    a fraction outside 0-1.
    """
    for key, value in (("anchor_fraction", anchor_fraction), ("local_fraction", local_fraction)):
        if not _is_fraction(value):
            raise HeadForcingError(f"{key} must be a number in 0-1, found {value!r}")
    heads = sum(map(len, shares))
    # round half up, unlike Python's round; 1e-9 because 0.35 * 30 is slightly below 10.5
    counts = [math.floor(fraction * heads + 0.5 + 1e-9) for fraction in (anchor_fraction, local_fraction)]
    anchors = heads_with_most(shares, 0, counts[0])
    locals_ = heads_with_most(shares, 2, counts[1], besides=anchors)
    return name_heads(shares, {HeadRole.ANCHOR: anchors, HeadRole.LOCAL: locals_}, rest=HeadRole.MEMORY)


def heads_with_most(
    shares: Sequence[Sequence[Sequence[float]]], part: int, count: int, besides: Collection[tuple[int, int]] = ()
) -> set[tuple[int, int]]:
    """`(layer, head)` of the `count` heads with the largest share of a part; of equal shares, the lower comes first."""
    heads = [(i, j) for i, row in enumerate(shares) for j in range(len(row)) if (i, j) not in besides]
    return set(sorted(heads, key=lambda at: -shares[at[0]][at[1]][part])[:count])


def name_heads(
    shares: Sequence[Sequence[Sequence[float]]], named: Mapping[HeadRole, Collection[tuple[int, int]]], rest: HeadRole
) -> tuple[tuple[HeadRole, ...], ...]:
    """Roles `[layer][head]`: those of `named`, and `rest` for all other heads."""
    role_of = {at: role for role, heads in named.items() for at in heads}
    return tuple(tuple(role_of.get((i, j), rest) for j in range(len(row))) for i, row in enumerate(shares))


def stability(runs: Iterable[Sequence[Sequence[str]]]) -> dict[str, float]:
    """Core stability ratio of several profiling runs, per role and as "mean" (paper, supplement).

    The ratio of a role is the number of heads with that role in all runs divided by the mean number of heads with it
    per run, 0-1; 1 for a role that no run assigns.
    """
    flat = [[role for layer in roles for role in layer] for roles in runs]
    result = {}
    for role in ROLES:
        members = [{index for index, assigned in enumerate(run) if assigned == role} for run in flat]
        size = sum(map(len, members)) / len(members)
        result[role] = len(set.intersection(*members)) / size if size else 1.0
    return result | {"mean": sum(result.values()) / len(ROLES)}


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _is_number(value: Any, least: float = -1e30, most: float = 1e30) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value <= most


def _is_fraction(value: Any) -> bool:
    return _is_number(value, 0, 1.001)  # shares are rounded


def _are_shares(values: Any) -> bool:
    return _is_list(values) and len(values) == 3 and all(map(_is_fraction, values)) and abs(sum(values) - 1) <= 1e-3


def _are_queries(values: Any) -> bool:
    third = len(values) // 3 if _is_list(values) else 0
    return 0 < 3 * third == len(values) and all(map(_is_number, values)) and min(values[-third:]) >= 0


# what a field must be, and what a head's value in one must be, as a sentence, a check and a conversion
_FIELDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "name": ("a text", lambda name: isinstance(name, str) and bool(name.strip())),
    "num_layers": ("a whole number from 1", lambda count: type(count) is int and count > 0),
    "num_heads": ("a whole number from 1", lambda count: type(count) is int and count > 0),
    "anchor_fraction": ("a number in 0-1", _is_fraction),
    "local_fraction": ("a number in 0-1", _is_fraction),
    "families": ("a list of names", lambda names: _is_list(names) and all(isinstance(name, str) for name in names)),
    "measured": ("an object with named values", lambda value: isinstance(value, dict)),
    "provenance": ("an object with named values", lambda value: isinstance(value, dict)),
}


def _label(value: Any) -> HeadLabel:
    return HeadLabel(str(value))


_OF_HEADS: dict[str, tuple[str, Callable[[Any], bool], Callable[[Any], Any]]] = {
    "roles": ("local, anchor or memory", lambda role: isinstance(role, str) and role in ROLES, HeadRole),
    "shares": ("three numbers from 0 with sum 1", _are_shares, lambda values: tuple(map(float, values))),
    "returns": ("a number in 0-1", _is_fraction, float),
    "labels": ("wave, anchor or veil", lambda label: str(label) in [each.value for each in HeadLabel], _label),
    "queries": ("finite numbers in threes, sizes from 0", _are_queries, lambda values: tuple(map(float, values))),
}
