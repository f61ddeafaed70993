"""A block made by the authors' model beside one made here: `python tests/benchmarks/authors.py
CHECKOUT`, as JSON.

CHECKOUT is a folder with the authors' code of the method (`authors_code.py`), which the reader
provides. Both sides get the same weights, noise, prompt and noise levels, and this pack's loop over
noise levels.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from functools import partial
from itertools import accumulate, count
from pathlib import Path
from statistics import median
from typing import Any

import torch
from headforcing.headforcing_core.methods.head_forcing import PRESETS
from headforcing.headforcing_core.methods.registry import method_named
from headforcing.headforcing_core.model.attention import attention_function
from headforcing.headforcing_core.rollout.loop import WanVideoModel, make_block
from headforcing.tests.benchmarks.apart import tell
from headforcing.tests.benchmarks.authors_code import (
    CODES,
    CPU,
    AuthorsCache,
    authors_code,
    authors_model,
)
from headforcing.tests.benchmarks.case import PROMPT, SCHEDULE, Case, warm_up_blocks
from headforcing.tests.benchmarks.environment import environment
from headforcing.tests.benchmarks.stopwatch import Stopwatch
from torch import Tensor

FULL_AFTER = 8  # blocks: by then the caches of all codes are full
FULL = "a block with full caches"


class WholePasses(WanVideoModel):
    """This pack's model without its shortcut through the last layer of a clean pass, which is most
    of a model with few layers."""

    def write_clean(self, latents: Tensor, cache: Any) -> None:
        self.flow(latents, 0.0, cache)


def most_bytes(run: Callable[[], None]) -> int:
    """Bytes allocated in a call that are in use at once, at most, from its `record_function(FULL)`
    on.
    """
    # what was allocated before and is freed in the call would count as less than nothing
    gc.collect()
    cpu = torch.profiler.ProfilerActivity.CPU
    with torch.profiler.profile(activities=[cpu], profile_memory=True) as profile:
        run()
    events = sorted(profile.profiler.kineto_results.events(), key=lambda event: event.start_ns())
    begun = next(event.start_ns() for event in events if event.name() == FULL)
    changes = [event for event in events if event.name() == "[memory]"]
    held = accumulate(event.nbytes() for event in changes)
    return max(most for event, most in zip(changes, held, strict=True) if event.start_ns() >= begun)


def prepare_authors(
    network: Any, program: Any, case: Case, watch: Stopwatch
) -> tuple[WanVideoModel, Any]:
    """The authors' model and cache; stage `rest` are the projections and norms in their
    self-attention.
    """
    for block in network.blocks:
        attention = block.self_attn
        attention.forward = watch.stage("attention")(attention.forward)
        for part in (
            attention.q,
            attention.k,
            attention.v,
            attention.o,
            attention.norm_q,
            attention.norm_k,
        ):
            part.forward = watch.stage("rest")(part.forward)
    if hasattr(network, "_apply_cache_updates"):
        network._apply_cache_updates = watch.stage("attention")(network._apply_cache_updates)
    return authors_model(network, case.embeds[PROMPT]), AuthorsCache(program, network, case)


def prepare_ours(
    method: str, case: Case, blocks: int, watch: Stopwatch
) -> tuple[WanVideoModel, Any]:
    """This pack's model and the cache of a method for a video of so many blocks."""
    model = WholePasses(case.model().backbone, torch.float32)
    model.use_prompt(case.embeds[PROMPT])
    method = method_named(method)
    frames = SCHEDULE.frames_per_block
    shape = method.shape(
        case.config, case.roles, case.height // 8, case.width // 8, frames, blocks * frames
    )
    cache = method.make_cache(shape, torch.float32, CPU, attention_function("auto", CPU))
    for name in ("begin_block", "write_and_rotate", "attend", "commit"):
        setattr(cache, name, watch.stage("attention")(getattr(cache, name)))
    return model, cache


def blocks(
    case: Case, prepare: Callable[[Stopwatch], tuple[WanVideoModel, Any]]
) -> Iterator[tuple[Any, ...]]:
    """Of every block the seconds, those of self-attention, and the latents, as it is made."""
    watch = Stopwatch(CPU)
    row = case.script(1).rows[0]
    noise = case.noise()
    model, cache = prepare(watch)
    for number in count():
        with watch.stage("block"):
            latents, _ = make_block(model, cache, row, noise, number)
        laps = watch.lap()
        yield laps["block"] / 1000, (laps["attention"] - laps.get("rest", 0)) / 1000, latents


@torch.no_grad()
def measure(checkout: Path, method: str, case: Case) -> dict[str, Any]:
    """Seconds and memory of the authors' code, of `method` and of Head Forcing. Timed are blocks
    with full caches.
    """
    full_after = {method: FULL_AFTER, "head_forcing": warm_up_blocks(PRESETS["head_forcing"])}
    authors = partial(prepare_authors, *authors_code(checkout, CODES[method], case), case)
    sides = {"authors": (FULL_AFTER, blocks(case, authors))}
    for name, filling in full_after.items():
        sides[name] = (
            filling,
            blocks(case, partial(prepare_ours, name, case, filling + case.timed_blocks)),
        )

    def fill(filling: int, made: Iterator[Any]) -> None:
        for _ in range(filling - 1):
            next(made)
        with torch.profiler.record_function(FULL):
            next(made)

    held = {name: most_bytes(partial(fill, *side)) for name, side in sides.items()}
    found: dict[str, list[Any]] = {name: [] for name in sides}
    for index in range(case.timed_blocks):
        for name in list(sides)[:: 1 if index % 2 else -1]:  # in turns, as a machine grows warm
            found[name].append(next(sides[name][1]))
    seconds: dict[str, list[Any]] = {}
    attention: dict[str, list[Any]] = {}
    latents: dict[str, list[Any]] = {}
    for name, made in found.items():
        seconds[name] = [block[0] for block in made]
        attention[name] = [block[1] for block in made]
        latents[name] = [block[2] for block in made]
    return {
        "seconds_per_block": seconds,
        "self_attention_seconds": attention,
        "bytes_above_weights": held,
        "of_the_authors_time": _shares(seconds),
        "of_the_authors_self_attention": _shares(attention),
        "of_the_authors_memory": _shares({name: [most] for name, most in held.items()}),
        "difference_of_latents": [  # relative to their size
            float((ours - theirs).norm() / theirs.norm())
            for ours, theirs in zip(latents[method], latents["authors"], strict=True)
        ],
    }


def _shares(measured: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Of the authors' measurement, block by block: the median."""
    (_, theirs), *ours = measured.items()
    shares = {}
    for name, of_blocks in ours:
        shares[name] = median(x / y for x, y in zip(of_blocks, theirs, strict=True))
    return shares


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Measure as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "checkout",
        type=Path,
        help="folder with the authors' code, which holds `wan` and `pipeline`",
    )
    parser.add_argument(
        "--method", choices=CODES, default="self_forcing_window_21", help="whose code it is"
    )
    parser.add_argument("--size", default="128x96", help="WIDTHxHEIGHT in pixels (128x96)")
    parser.add_argument("--layers", type=int, help="of 30 in the 1.3B model (1, for forcing_kv 2)")
    parser.add_argument(
        "--dim", type=int, default=1536, help="width; 1536 in the 1.3B model (1536)"
    )
    parser.add_argument("--blocks", type=int, default=4, help="timed blocks, with full caches (4)")
    args = parser.parse_args(arguments)
    code = CODES[args.method]
    if not (args.checkout / f"wan/modules/causal_model{code.ending}.py").is_file():
        parser.error(
            f"{args.checkout} is no checkout of the code of {args.method}: it has no model in "
            "wan/modules"
        )
    torch.set_num_threads(1)
    Stopwatch.clock = time.process_time
    size = map(int, args.size.split("x"))
    layers = args.layers or code.layers
    case = Case(*size, layers, args.dim, torch.float32, CPU, args.blocks, vae_dim=0)
    with redirect_stdout(sys.stderr):  # their programs print
        measured = measure(args.checkout.resolve(), args.method, case)
    return {
        "environment": environment(CPU, torch.float32),
        "case": case.describe() | {"method": args.method},
    } | measured


if __name__ == "__main__":
    tell(json.dumps(main(), indent=1))
