"""The benchmark command: which rows, on what, and where the results go."""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from . import report, scaling
from .apart import Budget, run_apart, tell
from .case import HEAD_DIM, Case
from .decoder import random_decoder
from .environment import environment, matmul_flops
from .measure import Measurement, measure
from .rows import BY_NAME, HEAD_FORCING, ROWS, Row
from .stopwatch import Stopwatch

PRESETS = {
    "gpu": Case(),
    # 96 tokens a frame; a model so small that what caches do can be seen beside its linear layers
    "cpu": Case(
        192, 128, layers=2, dim=256, dtype=torch.float32, device=torch.device("cpu"), timed_blocks=6, vae_dim=8
    ),
}
DECODED = "B3"
FACTS = "facts"  # in place of a row: of the device
ROW_SECONDS = 150.0  # that one row may take
REPEATS = {"gpu": 1, "cpu": 3}  # a shared processor is busy with other things at times: the best repetition counts
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, measure, write `results.json` and `results.md` after every row."""
    parser = _parser()
    options = parser.parse_args(arguments)
    case = _case(options)
    if case.device.type == "cuda" and not torch.cuda.is_available():
        parser.error("there is no CUDA device here; use --preset cpu, or --device")
    if options.processor_time:
        if case.device.type != "cpu" or options.threads != 1:
            parser.error("--processor-time is for one thread of a CPU: others spend it waiting, too")
        Stopwatch.clock = time.process_time
    torch.set_num_threads(options.threads)
    if options.scaling:
        scaling.run(case, options.out)
    elif options.worker == FACTS:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / f"{FACTS}.json").write_text(json.dumps(facts(case)), encoding="utf-8")
    elif options.worker:
        measure(case, BY_NAME[options.worker], random_decoder(case)[0]).save(options.out / f"{options.worker}.pt")
    else:
        rows = [BY_NAME[name] for name in options.rows.split(",")] if options.rows else list(ROWS)
        repeats, apart = options.repeat or REPEATS[options.preset], None
        if options.apart or (options.apart is None and case.device.type == "cuda"):
            given = list(sys.argv[1:] if arguments is None else arguments)
            apart = Apart(given, options.out / "rows", Budget(options.seconds))
        run_rows(case, rows, repeats, options.out, apart)
        tell(f"{options.out / 'results.md'}")


@dataclass
class Apart:
    """Rows in processes of their own, in a limited time.

    Attributes:
        arguments: of this command, which the processes get, too.
        folder: where they leave what they measured.
        budget: of all rows together.
    """

    arguments: list[str]
    folder: Path
    budget: Budget

    def facts(self) -> dict[str, Any]:
        """`facts` of the device, measured in a process of its own, which leaves the device's memory to the rows."""
        file, own = self.folder / f"{FACTS}.json", ["--worker", FACTS, "--out", str(self.folder)]
        reason, said = run_apart("run.py", [*self.arguments, *own], ROW_SECONDS, file)
        if reason:
            raise RuntimeError(f"the device could not be measured: {reason}\n{said}")
        return json.loads(file.read_text(encoding="utf-8"))

    def measure(self, row: Row, vae: bool) -> Measurement:
        """A row, or why there is nothing: its process failed or there was no time for it."""
        limit, file = self.budget.left(ROW_SECONDS), self.folder / f"{row.name}.pt"
        if limit <= 0:
            seconds = f"{self.budget.seconds:.0f} s"
            return Measurement(row.name, row.title, f"not measured: the {seconds} for all rows were over")
        own = ["--worker", row.name, "--out", str(self.folder), *([] if vae else ["--vae-dim", "0"])]
        reason, said = run_apart("run.py", [*self.arguments, *own], limit, file)
        return Measurement(row.name, row.title, reason, said) if reason else Measurement.load(file)


def run_rows(case: Case, rows: Sequence[Row], repeats: int, folder: Path, apart: Apart | None = None) -> dict[str, Any]:
    """Measure rows in turn, `repeats` times, the best repetition of each counts; `apart` in processes of their own.

    Apart, where time is short, the VAE decodes in one row alone: it takes as long in every one.
    """
    vae = None if apart is not None else random_decoder(case)[0]
    about = facts(case) if apart is None else apart.facts()
    best: dict[str, Measurement] = {}
    for repeat in range(repeats):
        for row in rows:
            if repeat and best[row.name].reason:
                continue
            if apart is not None:
                found = apart.measure(row, vae=row.name == DECODED and not repeat)
            else:
                found = measure(case, row, None if repeat else vae)
            best[row.name] = _better(best.get(row.name, found), found)
            gc.collect()
            results = _results(case, best, about)
            report.write(folder, "results", results, report.markdown(results))
            tell(f"{row.name} {row.title}: {found.reason or f'{_block_ms(found):.4g} ms, its fastest block'}")
    return results


def _better(a: Measurement, b: Measurement) -> Measurement:
    """The one with the fastest block, and the fastest of the cache alone; `a` has decoded."""
    if a.reason or b.reason:
        return a
    handling = min(a.handling, b.handling, key=lambda steps: steps["total"])
    with_attention = min(a.with_attention, b.with_attention)
    faster = min(a, b, key=_block_ms)
    return replace(faster, handling=handling, with_attention=with_attention, decoding=a.decoding)


def _block_ms(result: Measurement) -> float:
    return min(times["block"] for times in result.blocks)


def facts(case: Case) -> dict[str, Any]:
    """What does not depend on a row: the machine, the decoder and how fast a matrix product is."""
    return {
        "environment": environment(case.device, case.dtype),
        "vae": random_decoder(case)[1],
        "matmul_tflops": matmul_flops(case.device, case.dtype) / 1e12,
    }


def _results(case: Case, best: dict[str, Measurement], about: dict[str, Any]) -> dict[str, Any]:
    rows = []
    for row in ROWS:
        if row.name in best:
            naive = best.get("V1") if row.policy == HEAD_FORCING else None  # of others the latents differ
            rows.append(report.summary(best[row.name], 1e12 * about["matmul_tflops"], naive))
    return {**about, "case": case.describe(), "ratios": report.ratios(rows), "rows": rows}


def _case(options: argparse.Namespace) -> Case:
    width, height = options.size or (None, None)
    chosen = {
        "width": width,
        "height": height,
        "layers": options.layers,
        "dim": options.dim,
        "dtype": DTYPES.get(options.dtype),
        "device": torch.device(options.device) if options.device else None,
        "timed_blocks": options.blocks,
        "vae_dim": options.vae_dim,
        "seed": options.seed,
    }
    return replace(PRESETS[options.preset], **{name: value for name, value in chosen.items() if value is not None})


def _size(text: str) -> tuple[int, int]:
    width, height = (int(side) for side in text.split("x"))
    if width % 16 or height % 16:
        raise argparse.ArgumentTypeError(f"width and height must be multiples of 16, got {text}")
    return width, height


def _dim(text: str) -> int:
    if int(text) % HEAD_DIM:
        raise argparse.ArgumentTypeError(f"the width of a model is a multiple of {HEAD_DIM}, got {text}")
    return int(text)


def _row_names(text: str) -> str:
    unknown = [name for name in text.split(",") if name not in BY_NAME]
    if unknown:
        raise argparse.ArgumentTypeError(f"rows are {', '.join(BY_NAME)}, got {', '.join(unknown)}")
    return text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="How fast the engine is, beside the paper's implementation.")
    default = "gpu" if torch.cuda.is_available() else "cpu"
    add = parser.add_argument
    add("--preset", choices=PRESETS, default=default, help=f"the real model, or a small one (default: {default})")
    add("--out", type=Path, default=Path("output/benchmark"), help="folder for results (default: %(default)s)")
    add("--scaling", action="store_true", help="cost against length, resolution and episodic memory instead of rows")
    add("--rows", type=_row_names, help="only these, in this order, such as B1,V1")
    add("--size", type=_size, help="pixels, such as 832x480")
    add("--layers", type=int)
    add("--dim", type=_dim, help=f"width of the model, a multiple of {HEAD_DIM}")
    add("--dtype", choices=DTYPES)
    add("--device", help="such as cuda or cpu")
    add("--blocks", type=int, help="timed blocks after the warm-up")
    add("--repeat", type=int, help="repetitions, of which the best counts")
    add("--vae-dim", type=int, help="base width of the VAE's decoder; 0 leaves decoding out")
    add("--threads", type=int, default=1, help="of the processor (default: %(default)s)")
    add("--processor-time", action="store_true", help="instead of wall time, on a CPU that does other things, too")
    add("--seed", type=int, default=0)
    add("--apart", action=argparse.BooleanOptionalAction, help="each row in a process of its own (default: on a GPU)")
    add("--seconds", type=float, default=540.0, help="for all rows, where they are apart (default: %(default)s)")
    add("--worker", help=argparse.SUPPRESS)
    return parser
