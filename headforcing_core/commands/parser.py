"""The parser of the command line, the types of its numbers, and how commands are added to it."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Container, Mapping
from typing import Any, NoReturn

from ..errors import one_line
from ..names import METHODS, NOT_BUILT
from .paths import check_arguments


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


def seed_number(text: str) -> int:
    """The type of `--seed`: what a random number generator takes, 0 to 2^64 - 1."""
    if not re.fullmatch("[0-9]{1,20}", text) or int(text) >= 1 << 64:
        raise argparse.ArgumentTypeError(f"must be a whole number from 0 to 2^64 - 1, got {text!r}")
    return int(text)


def speeds(text: str) -> tuple[float, ...]:
    """The type of `--gpu-speeds`."""
    try:
        found = tuple(map(float, text.split(",")))
        if all(0.001 <= speed <= 1000 for speed in found):
            return found
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(
        f"expected numbers from 0.001 to 1000 with commas between them, as 2,1, got {text!r}"
    )


def built_method(text: str) -> str:
    """The type of `--method`: a method that is known and not built gets its own sentence."""
    if text in NOT_BUILT:
        raise argparse.ArgumentTypeError(NOT_BUILT[text])
    if text not in METHODS:
        from ..methods.registry import method_names  # imports torch; a program may have added a row

        if text not in method_names():
            raise argparse.ArgumentTypeError(f"invalid choice: {text!r} (choose from {', '.join(METHODS)})")
    return text


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
        if not unknown and self._subparsers is None:  # an unknown argument is an error; a command checks its own files
            check_arguments(self, found)
        return found, unknown


class Commands:
    """Adds commands to the action that `add_subparsers` returns."""

    def __init__(self, subcommands: Any):
        self._subcommands = subcommands

    def __call__(self, name: str, run: Any, text: str) -> argparse.ArgumentParser:
        """The parser of a command; `run` takes the parsed arguments.

        It is a function, or the name of one, `module.function` of this folder, which is imported when it is called;
        empty for a group of commands.
        """
        sub: argparse.ArgumentParser = self._subcommands.add_parser(name, help=text, description=text)
        if run:
            sub.set_defaults(run=run)
            sub.add_argument("--json", action="store_true", help="print one JSON object, for programs")
        return sub

    def add_all(
        self, rows: Mapping[str, tuple[str, Callable[[Any], None]]], texts: Mapping[str, str], words: Container[str]
    ) -> None:
        """Add commands with their help; those that `words` name get their arguments, all where none is named.

        `rows` has `run` of each command and the function that adds its arguments.
        """
        named = [name for name in rows if name in words] or rows
        for name, (run, add_arguments) in rows.items():
            sub = self(name, run, texts[name])
            if name in named:
                add_arguments(sub)
