"""Videos for VBench's own programs, and the numbers that they write.

VBench's packages do not go together with those of this project, so it runs in an environment of its
own, on a folder of videos with a `prompts.json`, as its mode `custom_input` reads them; its results
lie in `vbench` beside them. VBench-Long, which the paper has, cuts each video into clips of 2 s by
itself, the last one made full with frames before it, and takes the mean over the clips; of a
consistency it adds a part of that of the clips' first frames. Its results lie in `vbench_long`.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from ..headforcing_core.errors import HeadForcingError
from ..headforcing_core.files import replacing
from .statistics import Numbers

DIMENSIONS = (
    "subject_consistency background_consistency motion_smoothness dynamic_degree aesthetic_quality "
    "imaging_quality"
).split()
"""The dimensions that VBench measures of any video."""
# of single videos VBench tells these as 0 to 100, of all of them as 0 to 1
_PERCENT = {"imaging_quality"}


def command(folder: Path, prompts: Mapping[str, str]) -> str:
    """The line that measures a folder's videos with VBench, for a POSIX shell with uv; `prompts` by
    their names.

    One dimension at a time, as some versions take no more; paths are relative, as VBench does not
    quote them.
    """
    with replacing(folder / "prompts.json") as temporary:
        temporary.write_text(json.dumps(prompts, indent=1, ensure_ascii=False), encoding="utf-8")
    return (
        f"(cd {shlex.quote(str(folder.absolute()))} && for d in {' '.join(DIMENSIONS)}; do "
        "uvx --python 3.10 vbench evaluate --mode custom_input --videos_path . "
        "--prompt_file prompts.json --output_path vbench --dimension $d; done)"
    )


REPOSITORY = "https://github.com/Vchitect/VBench"
_PACKAGES = "--from vbench --with 'moviepy<2' --with 'scenedetect[opencv]' --with dreamsim"
_LONG = "vbench_long"
PROGRAMS = {"vbench": "vbench_", _LONG: "vbench_long_"}
"""By the folder of a program's results, the beginning of the keys of its numbers."""


def long_command(folder: Path) -> str:
    """The line that measures a folder's videos with VBench-Long, for a POSIX shell with uv and git.

    VBench-Long cuts only videos that it has not cut before, so it gets links in a folder of their
    own, made anew.
    """
    script = f"{_LONG}/VBench/vbench2_beta_long/eval_long.py"
    about = f"--full_json_dir {_LONG}/VBench/vbench/VBench_full_info.json"
    return (
        f"(cd {shlex.quote(str(folder.absolute()))} && rm -rf {_LONG}/videos && "
        f"mkdir -p {_LONG}/videos && ln ./*.mp4 {_LONG}/videos && "
        f"{{ [ -d {_LONG}/VBench ] || git clone --depth 1 {REPOSITORY} {_LONG}/VBench; }} && "
        f"for d in {' '.join(DIMENSIONS)}; do uvx --python 3.10 {_PACKAGES} python {script} "
        f"--mode long_custom_input --dev_flag --videos_path {_LONG}/videos {about} "
        f"--output_path {_LONG} --dimension $d; done)"
    )


def read_results(folder: Path) -> dict[str, Numbers]:
    """Both programs' numbers of a folder's videos by their names; empty before they have measured.

    A video that was made after its numbers has none. Raises HeadForcingError for results that are
    not VBench's.
    """
    results: dict[str, Numbers] = {}
    for program, prefix in PROGRAMS.items():
        found = (folder / program).glob("*_eval_results.json")
        # a later one replaces an earlier one
        for path in sorted(found, key=lambda path: path.stat().st_mtime):
            try:
                _read(path, folder, prefix, results)
            except (TypeError, ValueError, KeyError, AttributeError, OSError) as error:
                raise HeadForcingError(
                    f"{path} is not what VBench writes ({error!r}): measure this again"
                ) from error
    return results


def _read(path: Path, folder: Path, prefix: str, results: dict[str, Numbers]) -> None:
    """Add the numbers of one file of results."""
    for dimension, (_, *lists) in json.loads(path.read_text("utf-8")).items():
        # VBench-Long tells clips before whole videos, but for consistencies
        for video in lists[-1] if dimension in DIMENSIONS else ():
            name = re.split(r"[/\\]", video["video_path"])[-1]
            value = float(video["video_results"]) / (100 if dimension in _PERCENT else 1)
            if (folder / name).stat().st_mtime <= path.stat().st_mtime:
                results.setdefault(name, {})[f"{prefix}{dimension}"] = value
