"""The options of a method: the fields of its frozen dataclass, and their values from text
(`window_frames=12`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from types import NoneType
from typing import Any, NamedTuple, TypeVar, get_args, get_type_hints

from ..errors import HeadForcingError

S = TypeVar("S")

Pairs = Sequence[tuple[str, str]]  # options of a method by name, with their values as text

NO_OPTION = {"option": False}  # metadata of a field that `Method.for_video` sets


class Option(NamedTuple):
    """The value of an option and its types."""

    value: Any
    types: tuple[type, ...]


def options_of(settings: Any) -> dict[str, Option]:
    """All options by name; those of a part of the settings have its name before theirs:
    `memory.recent_frames`.
    """
    found: dict[str, Option] = {}
    hints = get_type_hints(type(settings))
    for item in fields(settings):
        if not item.metadata.get("option", True):
            continue
        value = getattr(settings, item.name)
        if is_dataclass(value):
            for name, option in options_of(value).items():
                found[f"{item.name}.{name}"] = option
        else:
            found[item.name] = Option(value, get_args(hints[item.name]) or (hints[item.name],))
    return found


def option_text(value: Any) -> str:
    """A value as it is written in options: `none`, `true`, `12`."""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return f"{value:g}"
    return repr(value).lower()


def option_texts(settings: Any) -> list[str]:
    """All options as they are written: `window_frames=12`."""
    return [f"{name}={option_text(option.value)}" for name, option in options_of(settings).items()]


def read_pairs(text: str) -> list[tuple[str, str]]:
    """The pairs of a text, `window_frames=12, sink_frames=3`; raises HeadForcingError for another
    one.
    """
    pairs = []
    for part in re.split(r"[,;\n]", text):
        name, equals, value = part.partition("=")
        if equals:
            pairs.append((name.strip(), value.strip()))
        elif part.strip():
            raise HeadForcingError(
                "write method options as name=value, separated by commas, got "
                f"{part.strip()[:60]!r}"
            )
    return pairs


def pairs_text(pairs: Pairs) -> str:
    """The text of pairs, which `read_pairs` reads."""
    return ", ".join(f"{name}={value}" for name, value in pairs)


def with_options(settings: S, pairs: Pairs, method: str) -> S:
    """The settings with these options.

    Raises HeadForcingError, with the names of all options, for one that the settings of `method` do
    not have.
    """
    known = options_of(settings)
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values:
            raise HeadForcingError(f"the method option {name} is given twice; remove one")
        if name not in known:
            if not known:
                raise HeadForcingError(
                    f"the method {method} has no option {name[:60]!r}; it has none"
                )
            names = ", ".join(known)
            raise HeadForcingError(
                f"the method {method} has no option {name[:60]!r}; its options are {names}"
            )
        values[name] = _read(name, value, known[name].types)
    changed: S = _replace(settings, values)
    return changed


def _read(name: str, text: str, types: tuple[type, ...]) -> Any:
    """The value that a text stands for; a whole number is not negative and has at most nine
    digits.
    """
    low = text.lower()
    if NoneType in types and low == "none":
        return None
    if bool in types and low in ("true", "false"):
        return low == "true"
    if int in types and re.fullmatch("[0-9]{1,9}", text):
        return int(text)
    if float in types and re.fullmatch(r"[-+.0-9e]{1,30}", low):
        with suppress(ValueError):
            if math.isfinite(number := float(low)):
                return number
    if str in types:
        return text
    kinds = {bool: "true or false", int: "a whole number", float: "a number", NoneType: "none"}
    raise HeadForcingError(
        f"{name} must be {' or '.join(kinds[kind] for kind in types)}, got {text[:60]!r}"
    )


def _replace(settings: Any, values: dict[str, Any]) -> Any:
    """The settings with these values; all at once, because each dataclass checks its fields
    together.
    """
    own: dict[str, Any] = {}
    of_parts: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        part, dot, inner = name.partition(".")
        if dot:
            of_parts.setdefault(part, {})[inner] = value
        else:
            own[name] = value
    for part, inner_values in of_parts.items():
        own[part] = _replace(getattr(settings, part), inner_values)
    return replace(settings, **own) if own else settings
