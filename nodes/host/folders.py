"""All paths that a widget can influence are made here, and checked to stay inside their folder."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

import folder_paths

from ...headforcing_core.errors import HeadForcingError

PROFILE_FOLDER = "head_profiles"

if PROFILE_FOLDER not in folder_paths.folder_names_and_paths:
    folder_paths.folder_names_and_paths[PROFILE_FOLDER] = (
        [str(Path(folder_paths.models_dir) / PROFILE_FOLDER)],
        {".json"},
    )


class OutputFile(NamedTuple):
    """A file under ComfyUI's output folder."""

    path: Path
    name: str
    subfolder: str

    @property
    def label(self) -> str:
        """The name below the output folder."""
        return f"{self.subfolder}/{self.name}" if self.subfolder else self.name


def output_file(filename_prefix: str, suffix: str, width: int, height: int) -> OutputFile:
    """A new file, numbered after those that are there. Refuses to leave the output folder."""
    folder, name, counter, subfolder = _output_place(filename_prefix, width, height)
    file = f"{name}_{counter:05}_{suffix}"
    return OutputFile(folder / file, file, subfolder)


def growing_file(filename_prefix: str, key: str, width: int, height: int) -> OutputFile:
    """Where a video grows until it gets its number: the same file whenever the video of that key is made."""
    folder, name, _, subfolder = _output_place(filename_prefix, width, height)
    file = f"{name}_v{key}.part.mp4"  # no number may stand there: ComfyUI would go on counting from it
    return OutputFile(folder / file, file, subfolder)


def shown(path: Path) -> OutputFile:
    """A file in the output folder as a node shows it."""
    subfolder = os.path.relpath(path.parent, output_folder())
    return OutputFile(path, path.name, "" if subfolder == os.curdir else subfolder)


def _output_place(filename_prefix: str, width: int, height: int) -> tuple[Path, str, int, str]:
    unusable = re.search("[\0-\x1f\x7f\ud800-\udfff]", filename_prefix)
    if not filename_prefix.strip() or unusable or len(filename_prefix.encode()) > 200:
        raise HeadForcingError(
            f"filename_prefix must be a short name like 'video/HeadForcing', got {filename_prefix[:80]!r}"
        )
    try:
        _check_inside(os.path.dirname(os.path.normpath(filename_prefix)))  # ComfyUI makes folders, and follows links
        folder, name, counter, subfolder, _ = folder_paths.get_save_image_path(
            filename_prefix, str(output_folder()), width, height
        )
        _check_inside(folder)  # its %date% and the like are filled in now
    except Exception as error:  # ComfyUI raises a bare Exception for a path outside the output folder
        raise HeadForcingError(
            f"filename_prefix {filename_prefix!r} must stay inside ComfyUI's output folder, and not lead out of it "
            "through a link"
        ) from error
    return Path(folder), name, counter, subfolder


def _check_inside(place: str) -> None:
    """Refuse a path, absolute or below the output folder, that leaves it once links are followed."""
    output = output_folder().resolve()
    if not (output / place).resolve().is_relative_to(output):
        raise ValueError(place)


def output_folder() -> Path:
    """ComfyUI's output folder."""
    return Path(folder_paths.get_output_directory())


def runs_folder() -> Path:
    """Where the sampler keeps finished blocks."""
    return output_folder() / "head_forcing"


def user_folder(name: str) -> Path:
    """The pack's own folder of that name in ComfyUI's user folder."""
    return Path(folder_paths.get_user_directory()) / "head_forcing" / name


def profile_file(name: str) -> Path | None:
    """The head profile of that name in ComfyUI's models, to read; None where there is none."""
    found = folder_paths.get_full_path(PROFILE_FOLDER, name)
    return None if found is None else Path(found)


def profile_path(name: str) -> Path:
    """Where a head profile is saved under a name that was typed into a widget."""
    reserved = re.fullmatch(r"(con|prn|aux|nul|com\d|lpt\d)\s*(\..*)?", name, re.IGNORECASE)  # devices of Windows
    if reserved or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,79}", name) or name.endswith((".", " ")):
        raise HeadForcingError(
            f"save_name: use up to 80 letters, digits, spaces, dots, dashes and underscores, got {name[:80]!r}"
        )
    folder = Path(folder_paths.get_folder_paths(PROFILE_FOLDER)[0])
    return folder / f"{name.removesuffix('.json')}.json"
