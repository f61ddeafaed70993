"""Rows of tables: a method, several shuffles of the head roles, or the truth."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..headforcing_core.methods.head_forcing import HeadForcing
from ..headforcing_core.methods.method import Method
from ..headforcing_core.methods.registry import method_named
from ..headforcing_core.plan.options import RenderOptions
from ..headforcing_core.render import comparison

SHUFFLES = 20


@dataclass(frozen=True)
class MethodRow(comparison.Entry):
    """A method, or an ablation of one; `roles` and `shuffle` are those of `RenderSettings`."""

    roles: str = "profile"
    # other than the method's own; only for methods in `methods.head_forcing.PRESETS`
    rope: str | None = None
    # settings that no method has; `method_name` is then only a name for files
    given: HeadForcing | None = None
    shuffle: int = 0

    @property
    def key(self) -> str:
        roles = (
            f"{self.roles}_{self.shuffle}" if self.shuffle else self.roles.replace("profile", "")
        )
        return "-".join(filter(None, [self.method_name, roles, self.rope]))

    @property
    def method(self) -> Method:
        """The method's settings."""
        method: Any = self.given or method_named(self.method_name)
        if self.rope is None:
            return method
        return replace(method, rope=self.rope)

    def options(self, common: RenderOptions, seed: int) -> RenderOptions:
        chosen = common.for_method(self.method_name, self.method)
        return replace(chosen, roles=self.roles, shuffle=self.shuffle, seed=seed)


@dataclass(frozen=True)
class Rendered:
    """A row without a model: the truth, drawn from the prompts, `encoded` and decoded by the
    autoencoder or not.
    """

    label: str
    encoded: bool


@dataclass(frozen=True)
class Shuffles:
    """A row of several shuffles of the head roles, each measured on all videos, so that the two are
    told apart.
    """

    entry: MethodRow
    count: int = SHUFFLES

    @property
    def label(self) -> str:
        return self.entry.label


Row = MethodRow | Rendered | Shuffles


def renders_of(row: Row) -> list[MethodRow]:
    """Entries that are rendered for a row: as many as it has shuffles, and nothing where it has no
    model.
    """
    if isinstance(row, Shuffles):
        return [replace(row.entry, shuffle=shuffle) for shuffle in range(row.count)]
    return [] if isinstance(row, Rendered) else [row]
