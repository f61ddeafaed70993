"""Files and folders that arguments name: each is declared, by the argument's type, as what is read and what is written.

`Parser` refuses a command that would write over a file that it reads, before anything is opened for writing.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..demo.files import autoencoder_path, model_path
from ..files import Named, check_kept, partial_path
from ..head_profiles.bundled import bundled_profiles

Files = Callable[[Any, argparse.Namespace], Iterable[Path]]


@dataclass(frozen=True)
class PathType:
    """The `type` of an argument that names files.

    Attributes:
        reads, writes: the files that a value stands for, given all arguments of the command.
        value: what a word of the command line becomes.
    """

    reads: Files = lambda value, args: ()
    writes: Files = lambda value, args: ()
    value: Callable[[str], Any] = Path

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


def _itself(value: Path, args: argparse.Namespace) -> Iterable[Path]:
    return (value,)


def _profile_file(name: str, args: argparse.Namespace) -> Iterable[Path]:
    path = bundled_profiles().get(name, Path(name))
    return [path, path.with_suffix(".safetensors")] if path.name else []


def _measured_profile(path: Path, args: argparse.Namespace) -> Iterable[Path]:
    return [path, path.with_suffix(".safetensors")] if path.suffix == ".json" else []  # another name is refused


def _story(path: Path, args: argparse.Namespace) -> Iterable[Path]:
    target = args.out or args.latents if "weights" in args else args.out / "demo.mp4"
    return [] if target is None else [story_path(target)]


def story_path(target: Path) -> Path:
    """The file of the story of a video, or of latents."""
    return target.with_name(f"{target.stem}.story.txt")


def named_file(word: str) -> tuple[str, Path]:
    """The name and the file of `hero=hero.png`."""
    name, _, file = word.partition("=")
    return name.removeprefix("@"), Path(file)


READ = PathType(reads=_itself)
NAMED = PathType(reads=lambda word, args: [named_file(word)[1]], value=str)
"""A file with a name, `hero=hero.png`."""
WRITTEN = PathType(writes=_itself)
VIDEO = PathType(writes=lambda path, args: [path, partial_path(path)] if path.name else [])
TEXT = PathType(reads=lambda text, args: [Path(text[1:])] if text.startswith("@") else [], value=str)
"""A text, or `@FILE`."""
PROFILE = PathType(reads=_profile_file, value=str)
"""A bundled head profile, or the file of one; its shares lie beside it."""
PROFILE_OUT = PathType(writes=_measured_profile)
LATENTS = PathType(reads=lambda path, args: [path, *path.glob("*")] if path.is_dir() else [path])
"""A file of latents, or a run folder."""
FOLLOWED = PathType(reads=_itself, writes=_story)
STORE = PathType()
"""A folder of files that have a hash of what they hold in their names: none is written over by another content."""
DEMO_FILES = ("demo.mp4", "demo.part.mp4", "demo.png")
RENDERED_FILES = ("*-seed*.mp4", "*-seed*.part.mp4")
COMPARED_FILES = ("grid.mp4", "picture.png", "comparison.md", "comparison.json", *RENDERED_FILES)


def named_files(parser: argparse.ArgumentParser, args: argparse.Namespace) -> tuple[list[Named], list[Named]]:
    """The files that parsed arguments name: those that are read, and those that are written, by option."""
    reads: list[Named] = [("the embedded model", path) for path in (model_path(), autoencoder_path())]
    writes: list[Named] = []
    for action in parser._actions:
        if isinstance(action.type, PathType):
            option = action.option_strings[0] if action.option_strings else str(action.metavar or action.dest).upper()
            given = vars(args).get(action.dest)
            if given is None and action.type is PROFILE:  # whichever of them fits
                reads += [(option, path) for path in bundled_profiles().values()]
            for value in given if isinstance(given, list) else [] if given is None else [given]:
                reads += [(option, path) for path in action.type.reads(value, args)]
                writes += [(option, path) for path in action.type.writes(value, args)]
    return reads, writes


def check_arguments(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Refuse arguments by which a file that is read would be written over, see `check_kept`."""
    check_kept(*named_files(parser, args))
