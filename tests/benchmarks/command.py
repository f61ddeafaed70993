"""The benchmark command: what is measured, on what, and where the results go."""

from __future__ import annotations

import argparse
import gc
import json
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from . import checks, end_to_end, first, goals, profiled, report, scaling
from .apart import ENDED, MOST_SECONDS, TOO_LATE, apart, not_available, tell
from .case import Case
from .decoder import exactness
from .environment import environment, matmul_flops
from .measure import measure
from .rows import BY_NAME, HEAD_FORCING
from .stopwatch import Stopwatch

CPU = torch.device("cpu")
PRESETS = {
    "gpu": Case(),
    # 96 tokens a frame; a model so small that what caches do can be seen beside its linear layers
    "cpu": Case(
        192, 128, layers=2, dim=256, dtype=torch.float32, device=CPU, timed_blocks=6, vae_dim=8
    ),
    "dry": Case(
        64, 32, layers=1, dim=128, dtype=torch.float32, device=CPU, timed_blocks=2, vae_dim=8
    ),
}
# the most important first; a row takes 30 to 40 s
ROWS_OF = {
    "results": list(BY_NAME),
    "rows": "B3 B1 V4 V1 B2 W21 V2 V3".split(),
    "more": "F8 B6 G C B5 S W21S W12 W8".split(),
}
# that a part may take on a GPU, where each ends within eight minutes, `check` together with the
# tests that follow it
SECONDS = {
    "results": 540,
    "scaling": 540,
    "sanitizer": 150,
    "first": 420,
    "check": 220,
    "rows": 470,
    "more": 470,
    "profile": 350,
    "video": 470,
    "rest": 440,
}
LONGER = {"programs": first.ALL_PROGRAMS + 30}  # of one measurement, than others
REPEATS = {("results", "cpu"): 3}  # a shared processor is busy with other things at times


def tasks(part: str, case: Case, dry: bool = False) -> dict[str, Callable[[Case], Any]]:
    """The measurements of a part by name, in their order."""
    decodes = "B3" if case.device.type == "cuda" else "B1"  # the VAE takes as long in every row
    video = partial(end_to_end.video, seconds=2.0 if dry else 30.0)
    of_parts: dict[str, dict[str, Callable[[Case], Any]]] = {
        "scaling": {
            "Resolution": scaling.resolutions,
            "Episodic memory": scaling.episodic,
            "Length": scaling.lengths,
        },
        "sanitizer": {"kernels": checks.kernels, "kernels at odd sizes": first.odd_sizes},
        "first": {"same bits": first.same_bits, "programs": first.programs},
        "check": {"kernels": checks.kernels, "vae beside float32": exactness}
        | {
            f"attention: {name}": partial(checks.attention, name=name)
            for name in checks.backends(case)
        },
        "profile": {
            "vae": end_to_end.vae,
            "vae, plans searched": partial(end_to_end.vae, searched=True),
            "vae, outputs in 128s": partial(end_to_end.vae, outputs_in=128),
            "vae, images enlarged": partial(end_to_end.vae, enlarged=True),
            "blocks": profiled.blocks,
            "decoding": profiled.decoding,
        },
        "video": {
            "sampled, decoded and encoded": partial(video, encoded=True),
            "sampled, decoded by a tiny VAE": partial(video, tiny=True),
            "sampled and decoded": video,
            "sampled": lambda case: video(replace(case, vae_dim=0)),
            "sampled in fp8, decoded by a tiny VAE": partial(video, tiny=True, fp8=True),
            "sampled, decoded beside": partial(end_to_end.beside, seconds=2.0 if dry else 30.0),
            "sampled, decoded and stored": partial(video, stored=True),
            "waits": end_to_end.waits,
        },
        "rest": {
            "length": partial(scaling.lengths, marks=(20, 40) if dry else (40, 200)),
            "fp8": checks.linear_layers,
        },
    }
    if part in of_parts:
        return of_parts[part]
    return {
        name: partial(measure, row=row, decodes=name == decodes) for name, row in BY_NAME.items()
    }


def facts(part: str, case: Case) -> dict[str, Any]:
    """What does not depend on a measurement: the machine; for rows the decoder, too, and a matrix
    product.
    """
    about: dict[str, Any] = {"environment": environment(case.device, case.dtype)}
    if part in ROWS_OF:
        vae = (
            f"the engine's decoder of base width {case.vae_dim}, streaming"
            if case.vae_dim
            else "left out"
        )
        about |= {"vae": vae, "matmul_tflops": matmul_flops(case.device, case.dtype) / 1e12}
    return about


def work(
    name: str, part: str, case: Case, dry: bool, threads: int, clock: Callable[[], float]
) -> Any:
    """One measurement of a part, in whatever process; without a name its facts."""
    # why a kernel or a backend is not used
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    torch.set_num_threads(threads)
    Stopwatch.clock = clock
    return tasks(part, case, dry)[name](case) if name else facts(part, case)


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and measure; results are written after every measurement. 1 if
    something was wrong.
    """
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        case = _case(options)
    except ValueError as error:
        parser.error(str(error))
    part = "scaling" if options.scaling else options.part
    names = options.rows
    gpu = case.device.type == "cuda"
    clock = time.process_time if options.processor_time else time.perf_counter
    if gpu and not torch.cuda.is_available():
        parser.error("there is no CUDA device here; --preset cpu or dry measures on the CPU")
    if options.processor_time and (gpu or options.threads != 1):
        parser.error("--processor-time is for one thread of a CPU: others spend it waiting, too")
    if names and (part not in ROWS_OF or not BY_NAME.keys() >= {*names}):
        parser.error(
            f"rows of {', '.join(ROWS_OF)} are {', '.join(BY_NAME)}; got {','.join(names)} of "
            f"{part}"
        )
    names = names or ROWS_OF.get(part) or list(tasks(part, case))
    given = part, case, options.preset == "dry", options.threads, clock
    end = time.monotonic() + (options.seconds or SECONDS[part])

    def measured(name: str) -> Any:
        left = end - time.monotonic()
        if options.apart or gpu and not options.together:
            return apart(min(left, LONGER.get(name, MOST_SECONDS)), work, name, *given)
        return work(name, *given) if left > 0 or not gpu else not_available(TOO_LATE)

    repeats = options.repeat or REPEATS.get((part, options.preset), 1)
    results = run(part, case, names * repeats, measured, options.out)
    tell("\n".join(["", *goals.lines(part, results), str(options.out / f"{part}.json")]))
    return int(_failed(results))


def run(
    part: str, case: Case, names: Sequence[str], measured: Callable[[str], Any], folder: Path
) -> dict[str, Any]:
    """Make these measurements in turn; of repetitions of a row the best one counts."""
    found = dict[str, Any]()
    about = measured("")
    if "not_available" in about:
        raise SystemExit(
            "the device could not be measured: "
            f"{about['not_available']}\n{about.get('traceback', '')}"
        )
    results = {"part": part, **about, "case": case.describe()}
    for name in names:
        one = measured(name)
        found[name] = report.better(found[name], one) if name in found else one
        gc.collect()
        results |= _rows(found, about) if part in ROWS_OF else {"tasks": found}
        report.write(folder, part, results)
        said = (
            f"{one['fastest_ms']:.4g} ms, its fastest block"
            if "latents" in one
            else json.dumps(one)[:300]
        )
        tell(f"{part}, {name}: {said}")
    return results


def _rows(found: dict[str, Any], about: dict[str, Any]) -> dict[str, Any]:
    """In the order of the table. Rows of another method than V1 make other latents."""
    naive = found.get("V1", {}).get("latents", [])
    rows = []
    for name, row in BY_NAME.items():
        if name in found:
            latents = naive if row.method == HEAD_FORCING else []
            numbers = report.compared(found[name], about["matmul_tflops"], latents)
            rows.append({"row": name, "title": row.title} | numbers)
    return {"rows": report.with_times(rows)}


def _failed(results: dict[str, Any]) -> bool:
    """Whether a kernel is wrong or a process failed. That something does not exist on a device is
    no failure.
    """
    told = json.dumps(results.get("tasks"))
    return ENDED in told or (
        '"right": false' in told and results["environment"]["clock"] == "CUDA events"
    )


def _case(options: argparse.Namespace) -> Case:
    """The preset with what the options name as the fields of a case are named."""
    named = {field.name: getattr(options, field.name, None) for field in fields(Case)}
    named |= dict(zip(("width", "height"), options.size, strict=False))
    named["dtype"] = options.dtype and getattr(torch, options.dtype)
    return replace(
        PRESETS[options.preset],
        **{name: value for name, value in named.items() if value is not None},
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description="How fast the engine is, beside the paper's implementation."
    )
    default = "gpu" if torch.cuda.is_available() else "cpu"
    add = parser.add_argument
    add(
        "part",
        nargs="?",
        choices=SECONDS,
        default="results",
        help="of gpu_day.sh; all rows where none is named",
    )
    add(
        "--scaling",
        action="store_true",
        help="cost against length, resolution and episodic memory instead of rows",
    )
    add(
        "--preset",
        choices=PRESETS,
        default=default,
        help=f"the real model, or a smaller one (default: {default})",
    )
    add(
        "--out",
        type=Path,
        default=Path("output/benchmark"),
        help="folder for results (default: %(default)s)",
    )
    add(
        "--rows", type=lambda text: text.split(","), help="only these, in this order, such as B1,V1"
    )
    add(
        "--size",
        type=lambda text: [int(side) for side in text.split("x")],
        default=(),
        help="pixels, such as 832x480",
    )
    add("--layers", type=int)
    add("--dim", type=int, help="width of the model, in heads of 128")
    add("--dtype", choices=["bfloat16", "float16", "float32"])
    add("--blocks", type=int, dest="timed_blocks", help="timed blocks after the warm-up")
    add("--repeat", type=int, help="repetitions of rows, of which the best counts")
    add("--vae-dim", type=int, help="base width of the VAE's decoder; 0 leaves decoding out")
    add("--threads", type=int, default=1, help="of the processor (default: %(default)s)")
    add(
        "--processor-time",
        action="store_true",
        help="instead of wall time, on a CPU that does other things, too",
    )
    add(
        "--apart",
        action="store_true",
        help="each measurement in a process of its own, as always on a GPU",
    )
    add(
        "--together",
        action="store_true",
        help="all in this process on a GPU, too, which saves seconds for each: one that fails ends the others",
    )
    add(
        "--seconds",
        type=float,
        help="for all measurements, where they are apart (default: that of the part)",
    )
    return parser
