"""Videos for VBench's own program, and the numbers that it writes.

VBench's packages do not go together with those of this project, so it runs in an environment of its
own, on a folder of videos with a `prompts.json`, as its mode `custom_input` reads them; its results
lie in `vbench` beside them.
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


def read_results(folder: Path) -> dict[str, Numbers]:
    """VBench's numbers of a folder's videos by their names; empty before it has measured.

    A video that was made after its numbers has none. Raises HeadForcingError for results that are
    not VBench's.
    """
    results: dict[str, Numbers] = {}
    paths = sorted(
        (folder / "vbench").glob("*_eval_results.json"), key=lambda path: path.stat().st_mtime
    )
    for path in paths:  # a later one replaces an earlier one
        try:
            for dimension, (_, videos) in json.loads(path.read_text("utf-8")).items():
                for video in videos if dimension in DIMENSIONS else ():
                    name = re.split(r"[/\\]", video["video_path"])[-1]
                    value = float(video["video_results"]) / (100 if dimension in _PERCENT else 1)
                    if (folder / name).stat().st_mtime <= path.stat().st_mtime:
                        results.setdefault(name, {})[f"vbench_{dimension}"] = value
        except (TypeError, ValueError, KeyError, AttributeError, OSError) as error:
            raise HeadForcingError(
                f"{path} is not what VBench writes ({error!r}): measure this again"
            ) from error
    return results
