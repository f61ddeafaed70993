"""The options of a method: the fields of its frozen dataclass, and their values from text (`window_frames=12`)."""

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
    """All options by name; those of a part of the settings have its name before theirs: `memory.recent_frames`."""
    found: dict[str, Option] = {}
    hints = get_type_hints(type(settings))
    for item in fields(settings):
        value = vars(settings)[item.name]
        if not item.metadata.get("option", True):
            continue
        if is_dataclass(value):
            found |= {f"{item.name}.{name}": option for name, option in options_of(value).items()}
        else:
            found[item.name] = Option(value, get_args(hints[item.name]) or (hints[item.name],))
    return found


def option_text(value: Any) -> str:
    """A value as it is written in options: `none`, `true`, `12`."""
    return f"{value:g}" if isinstance(value, float) else str(value) if isinstance(value, str) else repr(value).lower()


def read_pairs(text: str) -> list[tuple[str, str]]:
    """The pairs of a text, `window_frames=12, sink_frames=3`; raises HeadForcingError for another one."""
    pairs = []
    for part in re.split(r"[,;\n]", text):
        name, equals, value = part.partition("=")
        if equals:
            pairs.append((name.strip(), value.strip()))
        elif part.strip():
            raise HeadForcingError(f"method options are name=value with commas between them, got {part.strip()[:60]!r}")
    return pairs


def pairs_text(pairs: Pairs) -> str:
    """The text of pairs, which `read_pairs` reads."""
    return ", ".join(f"{name}={value}" for name, value in pairs)


def with_options(settings: S, pairs: Pairs, method: str) -> S:
    """The settings with these options.

    Raises HeadForcingError, with the names of all options, for one that the settings of `method` do not have.
    """
    known = options_of(settings)
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values:
            raise HeadForcingError(f"the method option {name} is given twice; remove one")
        if name not in known:
            has = f"its options are {', '.join(known)}" if known else "it has none"
            raise HeadForcingError(f"the method {method} has no option {name[:60]!r}; {has}")
        values[name] = _read(name, value, known[name].types)
    return _replace(settings, values)


def _read(name: str, text: str, types: tuple[type, ...]) -> Any:
    """The value that a text stands for; a whole number is not negative and has at most nine digits."""
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
    raise HeadForcingError(f"{name} must be {' or '.join(kinds[kind] for kind in types)}, got {text[:60]!r}")


def _replace(settings: Any, values: dict[str, Any]) -> Any:
    """The settings with these values; all at once, because each dataclass checks its fields together."""
    own = {name: value for name, value in values.items() if "." not in name}
    for part in dict.fromkeys(name.partition(".")[0] for name in values if "." in name):
        inner = {name.removeprefix(f"{part}."): v for name, v in values.items() if name.startswith(f"{part}.")}
        own[part] = _replace(vars(settings)[part], inner)
    return replace(settings, **own) if own else settings
