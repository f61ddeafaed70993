"""One part of a day with a GPU: `python tests/benchmarks/day.py PART`; `gpu_day.sh` runs all of them in order.

Every measurement of a part is a process of its own with a limit, and `PART.json` is written after each.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from headforcing.tests.benchmarks import checks, command, end_to_end, fp8, goals, profiled, scaling
from headforcing.tests.benchmarks.apart import Budget, run_apart, tell
from headforcing.tests.benchmarks.case import Case
from headforcing.tests.benchmarks.decoder import exactness
from headforcing.tests.benchmarks.environment import environment

DRY = Case(64, 32, layers=1, dim=128, dtype=torch.float32, device=torch.device("cpu"), timed_blocks=2, vae_dim=8)
# the most important first; a row takes 30 to 40 s
ROWS = {"rows": "B3,B1,B4,V4,V1,B2,W21,V2,V3", "more": "F8,B6,G,C,B5,S,W21S,W12,W8"}
# each part ends within eight minutes, `check` together with the tests that follow it
SECONDS = {"check": 220, "rows": 470, "more": 470, "profile": 350, "video": 440, "rest": 440}
TASK_SECONDS = 150.0  # of one measurement at most

Task = Callable[[Case], Any]


def tasks(part: str, case: Case, dry: bool) -> dict[str, Task]:
    """The measurements of a part by name, in their order."""
    if part == "check":
        layers = {f"attention: {name}": partial(checks.layer, name=name) for name in checks.backends(case)}
        return {"kernels": checks.kernels, "vae beside float32": exactness, **layers}
    if part == "profile":
        return {
            "blocks": profiled.blocks,
            "decoding": profiled.decoding,
            "vae": end_to_end.vae,
            "vae, plans searched": partial(end_to_end.vae, searched=True),
            "vae, images enlarged": partial(end_to_end.vae, enlarged=True),
        }
    if part == "video":
        video = partial(end_to_end.video, seconds=2.0 if dry else 30.0)
        return {
            "sampled and decoded": video,
            "sampled, decoded and encoded": partial(video, encoded=True),
            "sampled": lambda case: video(replace(case, vae_dim=0)),
            "sampled in fp8, decoded by a tiny VAE": partial(video, tiny_fp8=True),
            "sampled, decoded and stored": partial(video, stored=True),
            "waits": end_to_end.waits,
        }
    return {"length": partial(scaling.lengths, marks=(20, 40) if dry else (40, 200)), "fp8": fp8.products}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a part; 1 if something in it was wrong or failed."""
    options = _parser().parse_args(arguments)
    case = DRY if options.dry else Case()
    if not options.dry and not torch.cuda.is_available():
        sys.stderr.write("there is no CUDA device here; --dry runs everything on a tiny model on the CPU\n")
        return 2
    if options.task:
        result = tasks(options.part, case, options.dry)[options.task](case)
        _file(options.out, options.part, options.task).write_text(json.dumps(result), encoding="utf-8")
        return 0
    options.out.mkdir(parents=True, exist_ok=True)
    results = _rows(options) if options.part in ROWS else _part(options, case)
    tell("\n".join(["", *goals.lines(options.part, results)]))
    return int(_failed(results))


def _rows(options: argparse.Namespace) -> dict[str, Any]:
    """The table of rows, by the command that also makes it elsewhere."""
    small = ["--preset", "cpu", "--size", "64x32", "--layers", "1", "--dim", "128", "--blocks", "2", "--no-apart"]
    real = ["--preset", "gpu", "--blocks", "12", "--seconds", str(options.seconds or SECONDS[options.part])]
    given = [*small, "--repeat", "1", "--vae-dim", "0"] if options.dry else real
    out = options.out / "more" if options.part == "more" else options.out
    command.main([*given, "--rows", options.rows or ROWS[options.part], "--out", str(out)])
    return json.loads((out / "results.json").read_text(encoding="utf-8"))


def _part(options: argparse.Namespace, case: Case) -> dict[str, Any]:
    results: dict[str, Any] = {
        "part": options.part,
        "environment": environment(case.device, case.dtype),
        "case": case.describe(),
        "tasks": {},
    }
    budget = Budget(options.seconds or SECONDS[options.part])
    for name in tasks(options.part, case, options.dry):
        results["tasks"][name] = found = _task(options, name, budget.left(TASK_SECONDS))
        (options.out / f"{options.part}.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        text = json.dumps(found)
        tell(f"{options.part}, {name}: {text if len(text) < 300 else text[:300] + ' ...'}")
    return results


def _task(options: argparse.Namespace, name: str, seconds: float) -> Any:
    """A measurement in a process of its own."""
    if seconds <= 0:
        return {"not_available": "not measured: the time of this part was over"}
    file = _file(options.out, options.part, name)
    arguments = [options.part, "--task", name, "--out", str(options.out), *(["--dry"] if options.dry else [])]
    reason, said = run_apart("day.py", arguments, seconds, file)
    found = {"not_available": reason, "traceback": said} if reason else json.loads(file.read_text(encoding="utf-8"))
    file.unlink(missing_ok=True)
    return found


def _file(folder: Path, part: str, task: str) -> Path:
    plain = "".join(letter if letter.isalnum() else "_" for letter in task)
    return folder / f"{part}.{plain}.tmp.json"


def _failed(results: dict[str, Any]) -> bool:
    """Whether a kernel is wrong or a process failed. That something does not exist on a device is no failure."""
    found = results.get("tasks", {})
    checked = [*found.get("kernels", {}).values(), found.get("vae beside float32")]
    wrong = [one for one in checked if isinstance(one, dict) and not one.get("right", True)]
    ended = [task for task in found.values() if isinstance(task, dict) and "process" in task.get("not_available", "")]
    return bool(ended) or (bool(wrong) and results["environment"]["clock"] == "CUDA events")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("part", choices=SECONDS)
    add("--out", type=Path, default=Path("output/gpu_day"))
    add("--dry", action="store_true", help="a tiny model on the CPU: whether everything runs")
    add("--seconds", type=float, help="for the part (default: %(default)s, that of gpu_day.sh)")
    add("--rows", help="of the parts `rows` and `more`, in this order")
    add("--task", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    sys.exit(main())
