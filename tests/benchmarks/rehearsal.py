"""A rehearsal at real size, on a CPU: files of random weights in the published layouts, loaded and
rendered.

    python tests/benchmarks/rehearsal.py [--longlive2] [--out FILE]

Writes a checkpoint of 1.42 B parameters, umT5-xxl in bf16 and in scaled fp8, and the VAE, one after
another, into a temporary folder of 28 GB (below $TMPDIR); takes them through the command line and
the native loaders of a real ComfyUI server; renders two blocks at 128x64; and reports time and peak
memory of every stage beside the estimate. It needs 16 GB of memory and is a measurement, no test: its numbers are in
rehearsal.json, where those of other stages stay. `--longlive2` takes LongLive 2.0's checkpoint of
5.0 B parameters in bf16 and the Wan 2.2 VAE through the command line instead, with random text
embeddings: 12 GB of disk, 14 GB of memory.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from headforcing.cli.codec import decoder_memory
from headforcing.headforcing_core.plan.resources import Needs
from headforcing.headforcing_core.rollout.schedule import LONGLIVE2
from headforcing.headforcing_core.weights.umt5 import encoder_bytes, save_embeddings
from headforcing.tests.benchmarks import report
from headforcing.tests.benchmarks.apart import tell
from headforcing.tests.benchmarks.rehearsal_files import PROMPTS, write_model, write_umt5

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent / "helpers"))

SIZE = (128, 64)
SECONDS = 1.5
Estimate = Callable[[dict[str, Any]], int | None]  # from the JSON of a command
# of the table in tests/benchmarks/rehearsal.md
COLUMNS = "stage seconds own_bytes with_files_bytes estimate_bytes"


@contextmanager
def followed(pid: int) -> Iterator[dict[str, int]]:
    """The most memory that a process has meanwhile: its own, and with mapped files, which the
    system can drop.
    """
    most = {"own_bytes": 0, "with_files_bytes": 0}
    done = threading.Event()

    def follow() -> None:
        while not done.wait(0.02):
            own, mapped = resident(pid)
            now = {"own_bytes": own, "with_files_bytes": own + mapped}
            most.update({name: max(most[name], size) for name, size in now.items()})

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield most
    finally:
        done.set()
        thread.join()


def resident(pid: int) -> tuple[int, int]:
    """Bytes of a process in memory: its own, and of mapped files; 0 when it has ended."""
    status = ""
    with suppress(OSError):
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    own = sum(map(int, re.findall(r"RssAnon:\s+(\d+)", status)))
    mapped = sum(map(int, re.findall(r"RssFile:\s+(\d+)", status)))
    return 1024 * own, 1024 * mapped


class Rehearsal:
    """Runs stages and keeps what each took."""

    def __init__(self, out: Path):
        self.out = out
        self.stages: list[dict[str, Any]] = (
            json.loads(out.read_text("utf-8"))["stages"] if out.exists() else []
        )
        self.program = 0

    def command(
        self, stage: str, *arguments: object, estimate: Estimate = lambda found: None
    ) -> None:
        """Run a command of `headforcing` in a process of its own; the estimate is made from its
        JSON.
        """
        call = [
            sys.executable,
            "-P",
            "-m",
            "headforcing",
            *map(str, arguments),
            "--json",
        ]
        begun = time.perf_counter()
        process = subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        with followed(process.pid) as most:
            output, errors = process.communicate()
        if process.returncode:
            raise SystemExit(f"{stage}: {errors[-2000:]}")
        self.note(
            stage, time.perf_counter() - begun, most, self.program, estimate(json.loads(output))
        )

    def note(
        self,
        stage: str,
        seconds: float,
        most: Mapping[str, int],
        idle: int,
        estimate: int | None = None,
    ) -> None:
        """Add a stage to the numbers, in place of those of an earlier run; they are written each
        time.
        """
        sizes = {name: size - idle for name, size in most.items()}
        self.stages = [one for one in self.stages if one["stage"] != stage]
        self.stages.append(
            {"stage": stage, "seconds": round(seconds, 1), **sizes, "estimate_bytes": estimate}
        )
        machine = {
            "processors": os.cpu_count(),
            "python": platform.python_version(),
            "torch": torch.__version__,
        }
        found = {
            "machine": machine,
            "size": SIZE,
            "seconds": SECONDS,
            "program": self.program,
            "stages": self.stages,
        }
        self.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        tell(report.table(COLUMNS, self.stages[-1:]))


@contextmanager
def written(
    path: Path, write: Callable[..., Any], *given: Any, dtype: torch.dtype = torch.float32
) -> Iterator[Path]:
    """A file for as long as it is needed, written by a function in a process of its own with this
    default dtype.
    """
    torch.set_default_dtype(dtype)
    process = get_context("fork").Process(target=write, args=(path, *given))
    process.start()
    torch.set_default_dtype(torch.float32)
    process.join()
    if process.exitcode:
        raise SystemExit(f"{path} could not be written")
    tell(f"wrote {path.name}, {path.stat().st_size / 1e9:.2f} GB")
    try:
        yield path
    finally:
        path.unlink()


def encode(rehearsal: Rehearsal, encoder: Path, out: Path) -> None:
    stage = f"`encode`, umT5 in {'scaled fp8' if 'fp8' in encoder.name else 'bf16'}"
    arguments = ("--text-encoder", encoder, "--prompts", *PROMPTS, "--device", "cpu")
    rehearsal.command(
        stage, "encode", out, *arguments, estimate=lambda found: encoder_bytes(encoder)
    )


def render(
    rehearsal: Rehearsal,
    folder: Path,
    model: Path,
    vae: Path,
    seconds: float = SECONDS,
    of: str = "",
    *options: str,
) -> None:
    """`generate` with and without decoding, then `decode`; a second prompt begins with the second
    block.
    """
    text = f"0:00 {PROMPTS[0]}\n0:{seconds / 2:05.2f} {PROMPTS[1]}"
    common = (
        "generate",
        "--weights",
        model,
        "--embeddings",
        folder / "prompts.safetensors",
        "--prompts",
        text,
    )
    common += (
        "--size",
        "x".join(map(str, SIZE)),
        "--seconds",
        seconds,
        "--device",
        "cpu",
        *options,
    )
    latents = ("--latents", folder / "latents.safetensors")
    for kind, more in (
        ("video", ("--vae", vae, "--out", folder / "video.mp4")),
        ("latents", latents),
    ):
        stage = f"`generate`, {kind}{of}"
        rehearsal.command(
            stage, *common, *more, estimate=lambda found: Needs(**found["needs"]).memory
        )
    taken = decoder_memory(vae, (SIZE[1], SIZE[0]), torch.bfloat16)
    decode = ("decode", latents[1], folder / "decoded.mp4", "--vae", vae, "--device", "cpu")
    rehearsal.command(f"`decode`{of}", *decode, estimate=lambda found: taken.weights + taken.peak)


def in_comfyui(rehearsal: Rehearsal, folder: Path, files: Mapping[str, Path]) -> None:
    """The native loaders and the sampler in a real server; what it takes above an idle one, models
    kept as it does.
    """
    from comfy_graphs import node
    from comfy_harness import ComfyServer
    from comfy_setup import NEWEST, installed

    graph = {
        "model": node("UNETLoader", unet_name="model.safetensors", weight_dtype="default"),
        "clip": node("CLIPLoader", clip_name=files["text_encoders"].name, type="wan"),
        "vae": node("VAELoader", vae_name="vae.safetensors"),
        "text": node(
            "HeadForcingPromptTimeline",
            clip=["clip", 0],
            prompts="\n".join(PROMPTS),
            seconds=SECONDS,
        ),
        "sampler": node(
            "HeadForcingSampler",
            model=["model", 0],
            positive=["text", 0],
            vae=["vae", 0],
            width=SIZE[0],
            height=SIZE[1],
            seconds=SECONDS,
            seed=0,
        ),
    }
    with ComfyServer(installed(NEWEST), folder / "comfyui") as server:
        for kind, file in files.items():
            name = {"diffusion_models": "model.safetensors", "vae": "vae.safetensors"}.get(
                kind, file.name
            )
            server.model_path(kind, name).symlink_to(file)
        pid = server._process.pid
        idle, _ = resident(pid)
        for stage, part, source in (
            ("ComfyUI: text encoder and prompts", ("clip", "text"), ["text", 0]),
            ("ComfyUI: then model, VAE, two blocks", graph, ["sampler", 1]),
        ):
            shown = node("PreviewAny", source=source)
            begun = time.perf_counter()
            with followed(pid) as most:
                result = server.queue(
                    {name: graph[name] for name in part} | {"report": shown}, timeout=900
                )
            if result.outcome != "success":
                raise SystemExit(
                    f"{stage}: {result.error} {result.node_errors}\n{server.log()[-3000:]}"
                )
            rehearsal.note(stage, time.perf_counter() - begun, most, idle)


def rehearse_longlive2(rehearsal: Rehearsal, folder: Path) -> None:
    """Two blocks of eight latent frames, the second one a shot of its own."""
    from tiny_checkpoints import wan22_vae

    texts = [*PROMPTS, LONGLIVE2.shot_prefix + PROMPTS[1]]
    save_embeddings(
        folder / "prompts.safetensors", {text: torch.randn(12, 4096) / 64 for text in texts}
    )
    model = folder / "model_bf16.pt"
    vae = folder / "vae.safetensors"
    with (
        written(vae, wan22_vae, 256, 160, torch.bfloat16),
        written(model, write_model, "longlive2", "generator", dtype=torch.bfloat16),
    ):
        render(rehearsal, folder, model, vae, 2.5, " of LongLive 2.0", "--method", "longlive2")


def rehearse(rehearsal: Rehearsal, folder: Path) -> None:
    from tiny_checkpoints import wan_vae

    prompts = folder / "prompts.safetensors"
    bf16 = folder / "umt5_xxl_bf16.safetensors"
    fp8 = folder / "umt5_xxl_fp8_e4m3fn_scaled.safetensors"
    with written(bf16, write_umt5, False):
        encode(rehearsal, bf16, prompts)
    model = folder / "self_forcing_dmd.pt"
    vae = folder / "vae.safetensors"
    converted = folder / "bf16.safetensors"
    with written(fp8, write_umt5, True):
        encode(rehearsal, fp8, prompts)
        with (
            written(vae, wan_vae, 96, dtype=torch.bfloat16),
            written(model, write_model, "self_forcing", "generator_ema"),
        ):
            render(rehearsal, folder, model, vae)
            rehearsal.command("`convert` to bf16", "convert", model, converted)
            in_comfyui(
                rehearsal, folder, {"diffusion_models": converted, "text_encoders": fp8, "vae": vae}
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--longlive2", action="store_true", help="LongLive 2.0 instead of Self Forcing"
    )
    parser.add_argument("--out", type=Path, default=HERE / "rehearsal.json")
    options = parser.parse_args()
    rehearsal = Rehearsal(options.out)
    rehearsal.command("a command that does nothing", "memory", "--cards", 8)
    rehearsal.program = rehearsal.stages.pop()["own_bytes"]
    with tempfile.TemporaryDirectory() as folder:
        (rehearse_longlive2 if options.longlive2 else rehearse)(rehearsal, Path(folder))
    tell(report.table(COLUMNS, rehearsal.stages))


if __name__ == "__main__":
    main()
