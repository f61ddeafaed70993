"""The parser of the command line, and the types of its arguments.

Files and folders are declared by the argument's type as what is read and what is written. `Parser`
refuses a command that would write over a file that it reads, before anything is opened for writing.
"""

from __future__ import annotations

import argparse
import math
import os
import re
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from ..headforcing_core.errors import HeadForcingError, one_line
from ..headforcing_core.files import (
    Named,
    check_kept,
    check_regular,
    live_path,
    partial_path,
    path_of,
)
from ..headforcing_core.methods.options import read_pairs
from ..headforcing_core.names import DEMO_AUTOENCODER, DEMO_MODEL, bundled_profiles

Mistake = argparse.ArgumentTypeError
# values of arguments that not every command has; `machine` is set where another one than
# `Machine.of` takes the arguments
ABSENT = {
    "audio": None,
    "audio_gain": 0.0,
    "audio_offset": 0.0,
    "follow": None,
    "live_decoder": None,
    "machine": None,
    "reference": (),
    "set": (),
    "speech": None,
    "start_image": None,
    "start_latents": None,
    "start_part": None,
    "start_seconds": None,
    "start_video": None,
    "weights": None,
}


def whole_number(text: str, least: int = -999_999_999, most: int = 999_999_999) -> int:
    """The value of an argument of type `int`, within bounds, so that no size or count overflows."""
    if not re.fullmatch("-?[0-9]{1,20}", text) or not least <= int(text) <= most:
        raise Mistake(f"must be a whole number from {least} to {most}, got {text!r}")
    return int(text)


count = partial(whole_number, least=1)
scale = partial(whole_number, least=1, most=64)  # every pixel becomes a square of this side
seed_number = partial(whole_number, least=0, most=2**64 - 1)  # what a random number generator takes


def finite_number(text: str) -> float:
    """The value of an argument of type `float`."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise Mistake(f"must be a number, got {text!r}")
    return number


def speeds(text: str) -> tuple[float, ...]:
    """The type of `--gpu-speeds`."""
    try:
        found = tuple(map(float, text.split(",")))
    except ValueError:
        found = (0.0,)
    if not all(0.001 <= speed <= 1000 for speed in found):
        raise Mistake(
            f"expected numbers from 0.001 to 1000 with commas between them, as 2,1, got {text!r}"
        )
    return found


def option_pairs(text: str) -> list[tuple[str, str]]:
    """The type of `--set`."""
    try:
        return read_pairs(text)
    except HeadForcingError as error:
        raise Mistake(str(error)) from None


class Parser(argparse.ArgumentParser):
    """A parser whose numbers are finite and whose errors are one short line, whatever the arguments
    hold.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.register("type", int, whole_number)
        self.register("type", float, finite_number)
        self.set_defaults(**ABSENT)

    def error(self, message: str) -> NoReturn:
        # the usage of a command fills a screen
        self.exit(2, f"{self.prog}: error: {one_line(message)} (see {self.prog} --help)\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """`paths` of what is found are the names of arguments that are files. Raises
        HeadForcingError as `check_files`.
        """
        for word in args or ():
            if re.fullmatch("--[a-z][a-z0-9-]*=--", word):  # of which argparse would make a list
                self.error(f"argument {word[:-3]}: expected a value, got '--'")
        found, unknown = super().parse_known_args(args, namespace)
        if self._subparsers is None:  # a command's own
            typed = [action for action in self._actions if isinstance(action.type, PathType)]
            found.paths = [action.dest for action in typed]
            if not unknown:  # which is an error
                self.check_files(found)
        return found, unknown

    def check_files(self, found: Namespace) -> None:
        """Refuse pipes and devices in place of files that are read, and files that would be written
        over one of these, see `check_kept`."""
        reads, writes = named_files(self, found)
        for _, path in reads:
            if os.path.exists(path) and not os.path.isdir(path):
                check_regular(path)
        check_kept(reads, writes)


def subcommands(
    parser: argparse.ArgumentParser,
) -> Callable[[str, Any, str], argparse.ArgumentParser]:
    """A function that adds a command to a parser, from its name, what runs it, and its help.

    It is run by a function of the parsed arguments, or the name of one, `module.function` of this
    folder, which is imported when it is called; empty for a group of commands.
    """
    added = parser.add_subparsers(required=True, metavar="COMMAND")

    def add_command(name: str, run: Any, text: str) -> argparse.ArgumentParser:
        sub: argparse.ArgumentParser = added.add_parser(name, help=text, description=text)
        if run:
            sub.set_defaults(run=run)
            sub.add_argument(
                "--json", action="store_true", help="print one JSON object, for programs"
            )
        return sub

    return add_command


# ------------------------------------------------------------------------ files that arguments name


Files = Callable[[Any, Namespace], Iterable[Path]]


def _path(word: str) -> Path:
    if not word:  # which would be the current folder
        raise Mistake("the path is empty")
    return path_of(word)


@dataclass(frozen=True)
class PathType:
    """The `type` of an argument that names files.

    Attributes:
        reads, writes: the files that a value stands for, given all arguments of the command.
        value: what a word of the command line becomes.
    """

    reads: Files = lambda value, args: ()
    writes: Files = lambda value, args: ()
    value: Callable[[str], Any] = _path

    def __call__(self, word: str) -> Any:
        return self.value(word)


def folder_written(*patterns: str) -> PathType:
    """A folder in which the files of these names and patterns are written."""
    return PathType(writes=lambda folder, args: _find(folder, patterns))


def folder_read(*patterns: str) -> PathType:
    """A folder in which the files of these names and patterns are read."""
    return PathType(reads=lambda folder, args: _find(folder, patterns))


def _find(folder: Path, patterns: Iterable[str]) -> Iterator[Path]:
    """The files of names, which need not be there, and those of patterns that are there."""
    for pattern in patterns:
        yield from folder.glob(pattern) if "*" in pattern else [folder / pattern]


def _profile_files(path: Path) -> list[Path]:
    return [path, path.with_suffix(".safetensors")]


def _story(path: Path, args: Namespace) -> Iterable[Path]:
    # `demo` has no VAE to give
    target = args.out or args.latents if "vae" in args else args.out / "demo.mp4"
    return [] if target is None else [story_path(target)]


def story_path(target: Path) -> Path:
    """The file of the story of a video, or of latents."""
    return target.with_name(f"{target.stem}.story.txt")


def _live_files(path: Path, args: Namespace) -> Iterable[Path]:
    if not path.name:
        return []
    return [path, partial_path(path), live_path(path), story_path(path)]


def named_file(word: str) -> tuple[str, Path]:
    """The name and the file of `hero=hero.png`."""
    name, _, file = word.partition("=")
    return name.removeprefix("@"), path_of(file)


def _folder(word: str) -> Path:
    if not os.path.isdir(path_of(word)):  # also for names that the system does not allow
        raise Mistake(f"there is no folder {word!r}")
    return _path(word)


READ = PathType(reads=lambda path, args: [path])
WRITTEN = PathType(writes=lambda path, args: [path])
VIDEO = PathType(writes=lambda path, args: [path, partial_path(path)] if path.name else [])
LIVE_VIDEO = PathType(writes=_live_files)
STORE = PathType()
"""A folder of files that have a hash of what they hold in their names: none is written over by
another content.
"""
STORED = PathType(value=_folder)
"""The same where it is only read, and so must be there."""
TEXT = PathType(
    reads=lambda text, args: [path_of(text[1:])] if text.startswith("@") else [], value=str
)
"""A text, or `@FILE`."""
NAMED = PathType(reads=lambda word, args: [named_file(word)[1]], value=str)
"""A file with a name, `hero=hero.png`."""
PROFILE = PathType(
    reads=lambda name, args: (
        _profile_files(bundled_profiles().get(name, path_of(name))) if Path(name).name else []
    ),
    value=str,
)
"""A bundled head profile, or the file of one; its shares lie beside it."""
PROFILE_OUT = PathType(
    writes=lambda path, args: _profile_files(path) if path.suffix == ".json" else []
)
LATENTS = PathType(
    reads=lambda path, args: [path, *path.glob("*")] if os.path.isdir(path) else [path]
)
"""A file of latents, or a run folder."""
FOLLOWED = PathType(reads=lambda path, args: [path], writes=_story)
DEMO_FILES = ("demo.mp4", "demo.part.mp4", "demo.png")
COMPARED_FILES = (
    "grid.mp4",
    "picture.png",
    "comparison.md",
    "comparison.json",
    "*-seed*.mp4",
    "*-seed*.part.mp4",
)


def named_files(
    parser: argparse.ArgumentParser, args: Namespace
) -> tuple[list[Named], list[Named]]:
    """The files that parsed arguments name: those that are read, and those that are written, by
    option.
    """
    reads: list[Named] = [("the embedded model", path) for path in (DEMO_MODEL, DEMO_AUTOENCODER)]
    writes: list[Named] = []
    for action in parser._actions:
        if not isinstance(action.type, PathType):
            continue
        option = str(action.metavar or action.dest).upper()
        if action.option_strings:
            option = action.option_strings[0]
        values = getattr(args, action.dest, None)
        if values is None and action.type is PROFILE:  # whichever of them fits
            reads += [(option, path) for path in bundled_profiles().values()]
        if not isinstance(values, list):
            values = [] if values is None else [values]
        for value in values:
            reads += [(option, path) for path in action.type.reads(value, args)]
            writes += [(option, path) for path in action.type.writes(value, args)]
    return reads, writes
