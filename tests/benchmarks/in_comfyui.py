"""The demo in a ComfyUI server on this machine's GPU, twice: whether both give the same bits.

    python tests/benchmarks/in_comfyui.py COMFYUI [FLAG ...]

COMFYUI is a folder of ComfyUI; the flags are its own, such as --disable-dynamic-vram.
COMFYUI_PYTHON names a Python with its requirements; without it the server runs in this one. Needs
the package websockets.
"""

import os
import sys
import tempfile
from pathlib import Path

from headforcing.tests.benchmarks.apart import tell

sys.path.append(str(Path(__file__).resolve().parents[1] / "helpers"))


def main(comfyui: str, *flags: str) -> int:
    if not comfyui or not Path(comfyui, "main.py").is_file():
        tell(f"{comfyui or 'COMFYUI'} is not a folder of ComfyUI: nothing was run in it")
        return 1
    from comfy_graphs import node
    from comfy_harness import ComfyServer
    from comfy_setup import ComfyInstall

    install = ComfyInstall(
        Path(comfyui), Path(os.environ.get("COMFYUI_PYTHON", sys.executable)), "on this machine"
    )
    text = (
        "0:00 a red ball bouncing in the teal plain room\n0:03 a yellow cross circling in the navy "
        "checkerboard room"
    )
    graph = {
        "demo": node("HeadForcingLoadDemo"),
        "text": node("HeadForcingPromptTimeline", clip=["demo", 1], prompts=text, seconds=6.0),
        "sampler": node(
            "HeadForcingSampler",
            model=["demo", 0],
            positive=["text", 0],
            width=64,
            height=64,
            seconds=6.0,
            seed=0,
        ),
        "latents": node("SaveLatent", samples=["sampler", 0], filename_prefix="latents"),
    }
    with (
        tempfile.TemporaryDirectory() as base,
        ComfyServer(install, Path(base), flags=flags) as server,
    ):
        for _ in range(2):
            result = server.queue(graph, timeout=200)
            if result.outcome != "success":
                tell(
                    f"{' '.join(flags)}: {result.error} "
                    f"{result.node_errors}\n{server.log()[-3000:]}"
                )
                return 1
            # the next one samples again
            server.post("/free", {"unload_models": True, "free_memory": True})
        files = sorted(server.output_dir.rglob("*.latent"))
        same = len(files) == 2 and files[0].read_bytes() == files[1].read_bytes()
        tell(f"ComfyUI {' '.join(flags)}: {len(files)} videos, same bits: {same}")
        return int(not same)


if __name__ == "__main__":
    sys.exit(main(*(sys.argv[1:] or [""])))
