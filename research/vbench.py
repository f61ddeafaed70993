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
from pathlib import Path

from ..headforcing_core.commands.parser import folder_written
from ..headforcing_core.errors import HeadForcingError
from ..headforcing_core.files import replacing
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
FOLDER = folder_written("videos/*/*.mp4", "videos/*/prompts.json")
"""The type of an argument that names a folder laid out for VBench."""


def lay_out(folder: Path, rows: Mapping[str, Sequence[tuple[Path, str]]]) -> dict[str, list[str]]:
    """Lay out videos, as hard links where the file system has them, else as copies; returns their names by row.

    Other videos of these rows, laid out earlier, are removed.

    Args:
        rows: by row, each video's file and prompt.
    """
    names = {}
    for row, videos in rows.items():
        place, prompts = folder / "videos" / row, {}
        place.mkdir(parents=True, exist_ok=True)
        for number, (source, prompt) in enumerate(videos):
            words = re.sub(r"[^\w ,'-]+", "_", prompt)[:_LONGEST_NAME].strip(" _") or "video"
            name = f"{words}-{number}-{file_hash(source)[:_HASH_DIGITS]}.mp4"
            _link(source, place / name)
            prompts[name] = prompt
        for other in {path.name for path in place.glob("*.mp4")}.difference(prompts):
            (place / other).unlink()
        with replacing(place / "prompts.json") as temporary:
            temporary.write_text(json.dumps(prompts, indent=1, ensure_ascii=False), encoding="utf-8")
        names[row] = list(prompts)
    return names


def _link(source: Path, target: Path) -> None:
    with replacing(target) as temporary:
        temporary.unlink(missing_ok=True)
        try:
            os.link(source, temporary)
        except OSError:  # another disk, or a file system without hard links
            shutil.copyfile(source, temporary)


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


def read_results(folder: Path) -> dict[tuple[str, str], Numbers]:
    """Read what VBench has measured, by row and name of the video, under the keys of `COLUMNS`; empty before it has.

    Raises HeadForcingError for files of results that are not VBench's.
    """
    results: dict[tuple[str, str], Numbers] = {}
    paths = sorted((folder / "results").glob("*_eval_results.json"), key=lambda path: path.stat().st_mtime)
    for path in paths:  # a later one replaces an earlier one
        try:
            for dimension, (_, videos) in json.loads(path.read_text("utf-8")).items():
                for video in videos if dimension in DIMENSIONS else ():
                    row, name = re.split(r"[/\\]", video["video_path"])[-2:]
                    value = float(video["video_results"]) / (100 if dimension in _PERCENT else 1)
                    results.setdefault((row, name), {})[f"vbench_{dimension}"] = value
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            raise HeadForcingError(f"{path} is not what VBench writes ({error!r}): measure this row again") from error
    return results
