"""The first ten minutes with a GPU: what no comparison of numbers sees, the same bits again, and
the programs.
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from headforcing.headforcing_core.hashing import digest
from headforcing.headforcing_core.head_profiles.profile import HeadProfile
from headforcing.headforcing_core.plan.options import DEFAULTS
from headforcing.headforcing_core.plan.request import RenderRequest
from headforcing.headforcing_core.render.render import Listener, Place, make_video
from headforcing.headforcing_core.rollout.loop import Block
from headforcing.headforcing_core.video.tiny_decoder import TinyDecoder
from headforcing.headforcing_core.weights.umt5 import save_embeddings
from headforcing.kernels.dispatch import TOLERANCE, Operation
from safetensors.torch import load_file, save_file

from .apart import MOST_SECONDS, TOO_LATE, apart, not_available, refusal, tell
from .case import PROMPT, Case
from .end_to_end import random_plan

# tokens of a frame and width of a head, which no tile divides
ODD_SIZES = ((131, 64), (97, 128), (17, 32))
PROGRAM_SECONDS = 5.0  # of the video that each program makes
# starts the command line
PROGRAM = (sys.executable, "-m", "headforcing")
ALL_PROGRAMS = 240.0  # seconds for all of them
OTHER_PROMPT = "a blue cross"
# scenes are compared without the articles
ENCODED = (PROMPT, OTHER_PROMPT, "red ball", "blue cross")
STORY = f"0:00 {PROMPT}\n0:02 [re-anchor] {OTHER_PROMPT}\n0:04 [recall 1] {PROMPT}"


def odd_sizes(case: Case) -> dict[str, Any]:
    """Every kernel beside its reference at sizes that no tile divides, for `compute-sanitizer`.

    The sanitizer sees what is read beyond the end of a tensor, which no comparison of results does.
    """
    sys.path.append(str(Path(__file__).parents[1] / "helpers"))
    cases = import_module("kernel_cases")
    found: dict[str, Any] = {}
    for operation in cases.OPERATIONS:
        try:
            differences = [
                _difference(cases, operation, tokens, width, case) for tokens, width in ODD_SIZES
            ]
        except Exception as error:  # whatever a compiler raises: the others still count
            found[operation.name] = {"right": False, **refusal(error)}
        else:
            found[operation.name] = {
                "difference": max(differences),
                "right": max(differences) <= TOLERANCE[case.dtype],
            }
    return found


def _difference(cases: Any, operation: Operation, tokens: int, width: int, case: Case) -> float:
    """How far kernel and reference of an operation are apart for frames of so many tokens and heads
    of this width.
    """

    def example(device: torch.device, dtype: torch.dtype) -> dict[str, Any]:
        arguments = cases.case(operation, 0, dtype, tokens, width)
        return {name: cases.moved(value, device) for name, value in arguments.items()}

    return Operation(operation.reference, operation.launch, example).difference(
        case.device, case.dtype
    )


class Stops(Listener):
    """Stops a render, as a crash would, after so many blocks."""

    def __init__(self, after: int):
        self.left = after

    def add(self, block: Block) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


class Digests(Listener):
    """The bits of every block."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def add(self, block: Block) -> None:
        self.found.append(digest(block.latents))


def bits(
    case: Case, seconds: float = PROGRAM_SECONDS, stop_after: int = 0, folder: Path | None = None
) -> list[str]:
    """A digest of every block of a video; with `stop_after` the render stops there, and its run
    folder keeps them.
    """
    plan, attention = random_plan(case, seconds)
    request = RenderRequest(
        plan.config,
        replace(DEFAULTS, state_seconds=0.0),
        plan.timeline,
        case.embeds,
        weights="random",
        dtype=case.dtype,
        runs=folder,
    )
    listeners: list[Listener] = [digests := Digests()]
    if stop_after:
        listeners.append(Stops(stop_after))
    with torch.no_grad():
        try:
            make_video(request.job(plan), case.model(), Place(case.device, attention), listeners)
        except KeyboardInterrupt:
            assert stop_after
    return digests.found


def same_bits(case: Case) -> dict[str, Any]:
    """Whether one job gives the same latents twice in a process, once in another, and resumed after
    two blocks.
    """
    first = bits(case)
    second = bits(case)
    elsewhere = apart(MOST_SECONDS, bits, case)
    with TemporaryDirectory() as folder:
        bits(case, stop_after=2, folder=Path(folder))
        resumed = bits(case, folder=Path(folder))
    found = {
        "blocks": len(first),
        "again": first == second,
        "in another process": first == elsewhere,
    }
    found["resumed"] = first == resumed
    return found | {"right": len(first) > 3 and first == second == elsewhere == resumed}


def programs(case: Case, seconds: float = PROGRAM_SECONDS) -> dict[str, Any]:
    """The command line with random weights of the case's size: seconds of each call, or what it
    said and why.

    The latents of the resumed render, which is killed after its first block, are compared bit for
    bit with the plain. A call that does not end in the time for all is left out.
    """
    found: dict[str, Any] = {}
    end = time.monotonic() + ALL_PROGRAMS
    with TemporaryDirectory() as name:
        folder = Path(name)
        call = _command(case, folder, seconds)
        for title, options in _calls(case, folder).items():
            latents = folder / f"{title.replace(' ', '_')}.safetensors"
            command = [*call, *options, "--latents", str(latents)]
            if title == "resumed":
                _kill_after_a_block(command, folder / "runs")
            found[title] = _called(command, end - time.monotonic())
            tell(f"{title}: {found[title]}")
        plain = folder / "plain.safetensors"
        resumed = folder / "resumed.safetensors"
        if plain.exists() and resumed.exists():
            found["resumed"]["right"] = _same(load_file(plain), load_file(resumed))
    return found


def _same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    """Whether two files hold the same tensors, bit for bit."""
    names = first.keys() | second.keys()
    return all(
        name in first and name in second and torch.equal(first[name], second[name])
        for name in names
    )


def _called(command: list[str], limit: float) -> dict[str, Any]:
    """The seconds of a call and its last lines, also if it failed; neither where it takes longer
    than the limit.
    """
    begun = time.perf_counter()
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=max(limit, 0.0)
        )
    except subprocess.TimeoutExpired:
        return {"right": True, **not_available(TOO_LATE)}
    said = " / ".join(done.stdout.strip().split("\n")[-8:])[-900:]
    if done.returncode == 0:
        return {"right": True, "seconds": time.perf_counter() - begun, "said": said}
    lines = done.stderr.strip().split("\n")
    if _is_about_the_machine(lines[-1]):  # not the lines before: they may be notes of a render
        return {"right": True, **not_available(lines[-1][:300])}
    said = " / ".join([*lines[-3:], said])[-1500:]
    return {"right": False, "said": said, "exit_status": done.returncode}


def _is_about_the_machine(said: str) -> bool:
    """Whether a refusal is about what this machine lacks, and not a fault of the program."""
    return any(words in said for words in ("CUDA", "GPU", "needs the package", "C compiler"))


def _command(case: Case, folder: Path, seconds: float) -> list[str]:
    """`headforcing generate` with everything that all calls share; writes the files that it
    reads.
    """
    weights = case.model().backbone.state_dict()
    save_file(
        {name: value.to("cpu", case.dtype) for name, value in weights.items()},
        folder / "self_forcing.safetensors",
    )
    save_embeddings(folder / "prompts.safetensors", dict.fromkeys(ENCODED, case.embeds[PROMPT]))
    roles = tuple(map(tuple, case.roles))
    profile = HeadProfile("random", case.layers, case.config.num_heads, roles)
    (folder / "profile.json").write_text(profile.to_json(), encoding="utf-8")
    dtype = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}[case.dtype]
    options = {
        "--weights": folder / "self_forcing.safetensors",
        "--embeddings": folder / "prompts.safetensors",
        "--seconds": seconds,
        "--size": f"{case.width}x{case.height}",
        "--dtype": dtype,
        "--device": case.device.type,
    }
    words = map(str, chain(*options.items()))
    return [*PROGRAM, "generate", *words]


def _calls(case: Case, folder: Path) -> dict[str, list[str]]:
    """The options of each call, by its title; those first that have never run on a GPU."""
    roles = ["--profile", str(folder / "profile.json")]
    one = ["--prompts", PROMPT]
    plain = [*one, *roles]
    on_gpu = case.device.type == "cuda"
    calls: dict[str, list[str]] = {}
    with_video: list[str] = []
    if case.vae_dim and find_spec("av"):
        vae = str(_written_vae(case, folder))
        with_video = [*plain, "--vae", vae, "--out", str(folder / "video.mp4")]
        calls["video"] = with_video
        if on_gpu:
            calls["--park-features"] = [*with_video, "--park-features"]
        live = str(_written_tiny_decoder(folder))
        calls["--live-decoder"] = [*with_video, "--live-decoder", live]
    calls["measured roles"] = [*one, "--found-profiles", str(folder / "roles")]
    if on_gpu:
        calls["--compile"] = [*plain, "--compile"]
    calls["plain"] = plain
    calls["resumed"] = [*plain, "--runs", str(folder / "runs")]
    if with_video:
        small = [*with_video, "--size", "128x64"]  # a processor takes minutes for the real size
        calls["--vae-device cpu"] = [*small, "--vae-device", "cpu"]
    calls["scenes"] = [*roles, "--prompts", STORY, "--set", "scenes=tagged"]
    calls["--fp8-linears"] = [*plain, "--fp8-linears"]
    if on_gpu:
        calls["--attention cudnn"] = [*plain, "--attention", "cudnn"]
    return calls


def _written_vae(case: Case, folder: Path) -> Path:
    """A file with the VAE of the benchmark, whose weights are random."""
    sys.path.append(str(Path(__file__).parents[1] / "helpers"))
    path = folder / "vae.safetensors"
    import_module("tiny_checkpoints").wan_vae(path, case.vae_dim)
    return path


def _written_tiny_decoder(folder: Path) -> Path:
    """A file with a tiny decoder of random weights."""
    path = folder / "taew2_1.safetensors"
    weights = TinyDecoder().state_dict()
    save_file({name: weight.half() for name, weight in weights.items()}, path)
    return path


def _kill_after_a_block(command: list[str], runs: Path) -> None:
    """Start a render and kill it when its first block is stored."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and not list(runs.rglob("block*")):
        time.sleep(0.05)
    process.kill()
    process.wait()
