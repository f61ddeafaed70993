"""Videos laid out for VBench's own program, and the numbers that it writes.

VBench's packages do not go together with those of this project, so it runs in an environment of its own, on a folder:
`videos/ROW/*.mp4` with a `prompts.json` in each row, as its mode `custom_input` reads them; its results in `results`.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..headforcing_core.commands.parser import folder_written
from ..headforcing_core.errors import HeadForcingError
from ..headforcing_core.files import check_regular, replacing
from ..headforcing_core.hashing import file_hash
from ..headforcing_core.report.learned.base import Metric, Numbers

DIMENSIONS = {
    "subject_consistency": "subject",
    "background_consistency": "background",
    "motion_smoothness": "smoothness",
    "dynamic_degree": "dynamic degree",
    "aesthetic_quality": "aesthetic",
    "imaging_quality": "imaging",
}
"""The dimensions that VBench measures of any video, with short names."""
COLUMNS = {
    f"vbench_{key}": Metric(f"vbench_{key}", f"{name} (VBench)", "{:.4f}".format) for key, name in DIMENSIONS.items()
}
_PERCENT = {"imaging_quality"}  # of single videos VBench tells these as 0 to 100, of all of them as 0 to 1
_LONGEST_NAME = 80  # characters of a prompt in a file's name
_HASH_DIGITS = 8  # of a video's hash in its name: results of another video are never taken for its own
_MANIFEST = "export.json"
FOLDER = folder_written(_MANIFEST, "videos/*/*.mp4", "videos/*/prompts.json", "*-vbench.md", "*-vbench.json")
"""The type of an argument that names a folder laid out for VBench."""


@dataclass(frozen=True)
class Export:
    """Contents of a folder.

    Attributes:
        questions: names of the questions, to which the rows belong.
        videos: per row.
        shuffles: of the head roles, in rows of shuffles.
        files: by row, the name of each video in `videos/ROW`.
    """

    questions: list[str]
    videos: int
    shuffles: int
    files: dict[str, list[str]]


def export(
    folder: Path, questions: Sequence[str], shuffles: int, rows: Mapping[str, Sequence[tuple[Path, str]]]
) -> Export:
    """Lay out videos for VBench, as hard links where the file system has them, else as copies.

    Other videos of these rows, from an earlier export, are removed.

    Args:
        rows: by row, each video's file and prompt.
    """
    files = {}
    for row, videos in rows.items():
        place, prompts = folder / "videos" / row, {}
        place.mkdir(parents=True, exist_ok=True)
        for number, (source, prompt) in enumerate(videos):
            name = _file_name(prompt, number, source)
            _link(source, place / name)
            prompts[name] = prompt
        for other in {path.name for path in place.glob("*.mp4")}.difference(prompts):
            (place / other).unlink()
        _write(place / "prompts.json", prompts)
        files[row] = list(prompts)
    made = Export(list(questions), max(map(len, files.values()), default=0), shuffles, files)
    _write(folder / _MANIFEST, asdict(made))
    return made


def command(folder: Path) -> str:
    """The line that measures all rows of a folder with VBench, for a POSIX shell with uv.

    One dimension at a time, because versions of VBench differ in whether they take several. Paths are relative, because
    VBench hands them to a shell without quotes.
    """
    return (
        f"(cd {shlex.quote(str(folder.absolute()))} && for row in videos/*; do for d in {' '.join(DIMENSIONS)}; do "
        'uvx --python 3.10 vbench evaluate --mode custom_input --videos_path "$row" '
        '--prompt_file "$row/prompts.json" --output_path results --dimension $d; done; done)'
    )


def read_export(folder: Path) -> Export:
    """Read what `export` has written; raises HeadForcingError for any other folder."""
    found = _read(folder / _MANIFEST)
    try:
        export = Export(**found)
        if all(len(names) == export.videos for names in export.files.values()):
            return export
    except (TypeError, AttributeError):
        pass
    raise HeadForcingError(f"{folder / _MANIFEST} was not written by `evaluate --vbench`: give the folder of an export")


def read_results(folder: Path) -> dict[tuple[str, str], Numbers]:
    """Read what VBench has measured, by row and name of the video, under the keys of `COLUMNS`.

    Raises HeadForcingError where it has written nothing, or something else.
    """
    results: dict[tuple[str, str], Numbers] = {}
    paths = sorted((folder / "results").glob("*_eval_results.json"), key=lambda path: path.stat().st_mtime)
    for path in paths:  # a later one replaces an earlier one
        found = _read(path)
        try:
            for dimension, (_, videos) in found.items():
                for video in videos if dimension in DIMENSIONS else ():
                    row, name = re.split(r"[/\\]", video["video_path"])[-2:]
                    value = float(video["video_results"]) / (100 if dimension in _PERCENT else 1)
                    results.setdefault((row, name), {})[f"vbench_{dimension}"] = value
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise HeadForcingError(f"{path} is not what VBench writes ({error!r}): measure this row again") from error
    if not results:
        raise HeadForcingError(f"VBench has measured nothing in {folder / 'results'} yet: run {command(folder)}")
    return results


def _file_name(prompt: str, number: int, video: Path) -> str:
    """A video's name on any system; VBench reads the whole prompt from `prompts.json`."""
    words = re.sub(r"[^\w ,'-]+", "_", prompt)[:_LONGEST_NAME].strip(" _") or "video"
    return f"{words}-{number}-{file_hash(video)[:_HASH_DIGITS]}.mp4"


def _link(source: Path, target: Path) -> None:
    with replacing(target) as temporary:
        temporary.unlink(missing_ok=True)
        try:
            os.link(source, temporary)
        except OSError:  # another disk, or a file system without hard links
            shutil.copyfile(source, temporary)


def _write(path: Path, content: Any) -> None:
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")


def _read(path: Path) -> dict[str, Any]:
    check_regular(path)
    try:
        return dict(json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise HeadForcingError(f"{path} cannot be read as an object in JSON: {error}") from error
