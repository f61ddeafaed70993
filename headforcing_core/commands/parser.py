"""The parser of the command line, and how modules add their commands to it."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Mapping
from typing import Any, NoReturn

from ..errors import one_line


def whole_number(text: str) -> int:
    """The value of an argument of type `int`: at most nine digits, so that no size or count overflows."""
    if not re.fullmatch("-?[0-9]{1,9}", text):
        raise argparse.ArgumentTypeError(f"must be a whole number of at most nine digits, got {text!r}")
    return int(text)


def count(text: str) -> int:
    """The type of an argument that says how many: 1 or more."""
    if (number := whole_number(text)) < 1:
        raise argparse.ArgumentTypeError(f"must be 1 or more, got {text}")
    return number


def finite_number(text: str) -> float:
    """The value of an argument of type `float`."""
    try:
        if math.isfinite(number := float(text)):
            return number
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"must be a number, got {text!r}")


class Parser(argparse.ArgumentParser):
    """A parser whose numbers are finite and whose errors are one short line, whatever the arguments hold."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.register("type", int, whole_number)
        self.register("type", float, finite_number)

    def error(self, message: str) -> NoReturn:
        super().error(one_line(message))

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Raises HeadForcingError for files that are both read and written, see `check_arguments`."""
        found, unknown = super().parse_known_args(args, namespace)
        from .paths import check_arguments  # imports torch, which takes seconds; help and errors do without

        check_arguments(self, found)
        return found, unknown


class Commands:
    """Adds commands to a parser, for `add_parsers` of a module.

    Args:
        texts: what the help says of commands that are added without a text.
    """

    def __init__(self, subcommands: Any, texts: Mapping[str, str] | None = None):
        self._subcommands, self._texts = subcommands, texts or {}

    def __call__(self, name: str, run: Any, text: str = "", parent: Any = None) -> argparse.ArgumentParser:
        """The parser of a command, among all or in the group `parent`; `run` takes the parsed arguments."""
        text = text or self._texts[name]
        sub = (parent or self._subcommands).add_parser(name, help=text, description=text)
        sub.set_defaults(run=run)
        sub.add_argument("--json", action="store_true", help="print one JSON object, for programs")
        return sub

    def group(self, name: str) -> Any:
        """A group of commands with names of two words."""
        parent = self._subcommands.add_parser(name, help=self._texts[name], description=self._texts[name])
        return parent.add_subparsers(required=True, metavar="COMMAND")
