"""All paths that a widget can influence are made here, and checked to stay inside their folder."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain, count
from pathlib import Path
from typing import NamedTuple

import folder_paths

from ...headforcing_core.errors import HeadForcingError
from ...headforcing_core.files import claimed_first, reason, remove_matching, why_no_name
from ...headforcing_core.head_profiles.profile import HeadProfile
from ...headforcing_core.timeline.characters import MARKS_OF_LETTERS

NODE_TEXTS = Path(__file__).resolve().parents[2] / "locales" / "en" / "nodeDefs.json"
PROFILE_FOLDER = "head_profiles"
ABANDONED_VIDEO_SECONDS = 24 * 3600.0
# of a finished video that was begun: it takes as long to make as it has
ABANDONED_LASTING_SECONDS = 30 * 24 * 3600.0
WINDOWS = os.name == "nt"
_SHEET = r"[0-9a-f]{32}-\d{1,4}\.jpg"
_PROFILE_NAME = re.compile(rf"[^\W_][\w{MARKS_OF_LETTERS} .-]{{0,79}}")
_FILLED_IN = re.compile("%(year|month|day|hour|minute|second|width|height)%")  # by ComfyUI's server


# ComfyUI looks for profiles, and for videos that were made with roles, in a folder of its models
folder_paths.folder_names_and_paths.setdefault(
    PROFILE_FOLDER, ([os.path.join(folder_paths.models_dir, PROFILE_FOLDER)], {".json", ".mp4"})
)


class OutputFile(NamedTuple):
    """A file under ComfyUI's output folder."""

    path: Path

    @property
    def label(self) -> str:
        """The name below the output folder, with slashes."""
        return Path(os.path.relpath(self.path, output_folder())).as_posix()

    @property
    def place(self) -> str:
        """The name for people."""
        return f"output/{self.label}"


def check_prefix(filename_prefix: str) -> None:
    """Refuse a prefix that leaves the output folder."""
    _output_place(filename_prefix, 16, 16)


@contextmanager
def output_file(filename_prefix: str, width: int, height: int) -> Iterator[OutputFile]:
    """Claim a new video file, numbered after those that are there. Refuses to leave the output
    folder.

    Two servers that share the folder get two numbers.
    """
    folder, name, counter = _output_place(filename_prefix, width, height)
    with claimed_first(folder / f"{name}_{number:05}_.mp4" for number in count(counter)) as path:
        yield OutputFile(path)


@contextmanager
def growing_file(
    filename_prefix: str, key: str, width: int, height: int, lasting: bool = False
) -> Iterator[OutputFile]:
    """Claim the file where a video grows until it gets its number: the same whenever the video of
    that key is made.

    Another server that makes the same video at the same time gets another name. Removes what was
    left by videos of the prefix that nobody has gone on with for a day, or for 30 days if they were
    to be `lasting`, since the work is in them.
    """
    folder, name, _ = _output_place(filename_prefix, width, height)
    for kind, seconds in (("v", ABANDONED_VIDEO_SECONDS), ("f", ABANDONED_LASTING_SECONDS)):
        left = (
            rf"{re.escape(name)}_{kind}[0-9a-f]{{8}}(-\d{{1,3}})?"
            r"\.part(-[0-9a-f]{8}|\.earlier)?\.mp4"
        )
        remove_matching(folder, left, seconds)
    # no number may follow the prefix: ComfyUI would count on from it
    first = f"{name}_{'f' if lasting else 'v'}{key}"
    names = chain([first], (f"{first}-{number}" for number in count(2)))
    with claimed_first((folder / f"{each}.part.mp4" for each in names), replaces=True) as path:
        yield OutputFile(path)


def has_prefix(path: Path, filename_prefix: str, width: int, height: int) -> bool:
    """Whether a file in the output folder could be one that `output_file` gives for this prefix."""
    folder, name, _ = _output_place(filename_prefix, width, height)
    numbered = rf"{re.escape(name)}_\d{{5,}}_"
    return path.parent == folder and re.fullmatch(numbered, path.stem) is not None


def _why_no_folder(filename_prefix: str, error: OSError) -> str:
    """Why the folder of a prefix cannot be made or used, in a few words."""
    folder = output_folder()
    for part in Path(os.path.normpath(filename_prefix)).parts[:-1]:
        folder = folder / part
        with suppress(OSError):
            if folder.exists() and not folder.is_dir():
                return f"{part} is a file, not a folder"
    return reason(error)


def _output_place(filename_prefix: str, width: int, height: int) -> tuple[Path, str, int]:
    unusable = re.search("[\0-\x1f\x7f\ud800-\udfff]", filename_prefix)
    if not filename_prefix.strip() or unusable or len(filename_prefix.encode()) > 200:
        raise HeadForcingError(
            "filename_prefix must be a short name like 'video/HeadForcing', got "
            f"{filename_prefix[:80]!r}"
        )
    for part in filename_prefix.replace("\\", "/").split("/"):
        if part not in (".", "..") and (why := why_no_name(part)):
            raise HeadForcingError(
                f"filename_prefix {filename_prefix!r}: {why} ({part!r}); choose another name"
            )
    forbidden = re.search('[<>:"|?*]', _FILLED_IN.sub("", filename_prefix))
    if WINDOWS and forbidden is not None:
        raise HeadForcingError(
            f"filename_prefix {filename_prefix!r}: Windows allows no {forbidden[0]} in a name; "
            "ComfyUI's editor fills in %date:yyyy-MM-dd%, and a graph that is sent through the "
            "API needs the date itself"
        )
    try:
        # ComfyUI makes folders, and follows links
        _check_inside(os.path.dirname(os.path.normpath(filename_prefix)))
        folder, name, counter, *_ = folder_paths.get_save_image_path(
            filename_prefix, str(output_folder()), width, height
        )
        _check_inside(folder)  # its %date% and the like are filled in now
    except OSError as error:
        raise HeadForcingError(
            f"filename_prefix {filename_prefix!r}: the folder cannot be used "
            f"({_why_no_folder(filename_prefix, error)})"
        ) from error
    # ComfyUI raises a bare Exception for a path outside the output folder
    except Exception as error:
        raise HeadForcingError(
            f"filename_prefix {filename_prefix!r} must stay inside ComfyUI's output folder, and "
            "not lead out of it through a link"
        ) from error
    return Path(folder), name, counter


def _check_inside(place: str) -> None:
    """Refuse a path, absolute or below the output folder, that leaves it once links are
    followed.
    """
    output = output_folder().resolve()
    if not (output / place).resolve().is_relative_to(output):
        raise ValueError(place)


def output_folder() -> Path:
    """ComfyUI's output folder."""
    return Path(folder_paths.get_output_directory())


def uploaded_file(name: str) -> Path | None:
    """A file of ComfyUI's input folder as a widget names it, `folder/name` or `name [output]`, to
    read; None where there is none, or it is elsewhere.
    """
    if not name or "\0" in name:
        return None
    folders = (
        folder_paths.get_input_directory(),
        folder_paths.get_output_directory(),
        folder_paths.get_temp_directory(),
    )
    with suppress(OSError, ValueError, RuntimeError):  # the last one of links that are a loop
        path = Path(folder_paths.get_annotated_filepath(name)).resolve()
        if path.is_file() and any(path.is_relative_to(Path(each).resolve()) for each in folders):
            return path
    return None


def pictures_folder() -> Path:
    """Folder of the small pictures of videos, of which those of a day ago are removed; ComfyUI
    empties it when it starts.
    """
    folder = _pictures()
    remove_matching(folder, _SHEET, ABANDONED_VIDEO_SECONDS)
    return folder


def _pictures() -> Path:
    return Path(folder_paths.get_temp_directory()) / "head_forcing_pictures"


def picture_sheet(render: str, sheet: str) -> bytes | None:
    """A sheet of the pictures of a render; None where there is none of that name."""
    name = f"{render}-{sheet}.jpg"
    if re.fullmatch(_SHEET, name):
        with suppress(OSError):
            return (_pictures() / name).read_bytes()
    return None


def runs_folder() -> Path:
    """Folder in which the sampler keeps finished blocks."""
    return output_folder() / "head_forcing"


def user_folder(name: str) -> Path:
    """The pack's own folder of that name in ComfyUI's user folder."""
    return Path(folder_paths.get_user_directory()) / "head_forcing" / name


def tiny_decoders(names: tuple[str, ...]) -> list[str]:
    """The tiny decoders in ComfyUI's models whose names begin with one of these."""
    return [name for name in folder_paths.get_filename_list("vae_approx") if name.startswith(names)]


def tiny_decoder_file(names: tuple[str, ...]) -> Path | None:
    """The first of `tiny_decoders`; None where there is none."""
    for name in tiny_decoders(names):
        return model_file("vae_approx", name)
    return None


def model_file(folder: str, name: str) -> Path | None:
    """The file of that name in a folder of ComfyUI's models; None where there is none."""
    found = folder_paths.get_full_path(folder, name)
    return None if found is None else Path(found)


def profile_path(name: str) -> Path:
    """Path of a head profile that is saved under a name typed into a widget."""
    name = unicodedata.normalize("NFC", name)
    if not _PROFILE_NAME.fullmatch(name):
        raise HeadForcingError(
            "save_name: use up to 80 letters, digits, spaces, dots, dashes and underscores, got "
            f"{name[:80]!r}"
        )
    if why := why_no_name(name):
        raise HeadForcingError(f"save_name {name!r:.80}: {why}; choose another name")
    folder = Path(folder_paths.get_folder_paths(PROFILE_FOLDER)[0])
    return folder / f"{name.removesuffix('.json')}.json"


def save_profile(profile: HeadProfile, path: Path) -> Path:
    """Write a head profile to a `profile_path`, numbered where that holds another one, and return
    where it is.
    """
    places = chain([path], (path.with_name(f"{path.stem}_{number:05}.json") for number in count(2)))
    for place in places:
        if not place.is_file():
            break
        if place.read_bytes() == profile.to_json().encode():
            return place
    with claimed_first(chain([place], places)) as new:
        profile.save(new)
    return new


def files_of_custom_nodes(name: str) -> list[Path]:
    """The files of this name in the folders of custom nodes that are not disabled."""
    found: list[Path] = []
    for folder in folder_paths.get_folder_paths("custom_nodes"):
        found += sorted(Path(folder).glob(f"*/{name}"))
    return [path for path in found if path.parent.suffix != ".disabled"]
