"""Graphs of the nodes in API format, and what a server makes of them."""

import contextlib
import io
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from comfy_harness import ComfyServer, RunResult
from safetensors.torch import load_file

Graph = dict[str, dict[str, Any]]
BALL = "a red ball bouncing in the teal plain room"
CROSS = "a yellow cross circling in the navy checkerboard room"


def node(class_type: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": class_type, "inputs": inputs}


def changed(graph: Graph, name: str, **inputs: Any) -> Graph:
    """The graph with other inputs at one node."""
    return graph | {name: {**graph[name], "inputs": graph[name]["inputs"] | inputs}}


def decode(
    prefix: str, samples: str = "sampler", vae: Sequence[Any] = ("demo", 2), fps: float = 16.0
) -> dict[str, Any]:
    """*Decode Latents to Video* of what that node makes."""
    inputs = {"samples": [samples, 0], "vae": list(vae), "filename_prefix": prefix, "fps": fps}
    return node("HeadForcingDecodeVideo", **inputs)


def saving(video: list[Any], prefix: str) -> dict[str, Any]:
    """Core's *Save Video*."""
    return node("SaveVideo", video=video, filename_prefix=prefix, format="auto", codec="auto")


def demo_graph(**sampler: Any) -> Graph:
    """Two prompts over six seconds with the embedded model; node ids name the nodes."""
    timeline = {"prompts": f"0:00 {BALL}\n0:03 {CROSS}", "seconds": 6.0}
    size = {"width": 64, "height": 64, "seconds": ["timeline", 2], "seed": 0}
    return {
        "demo": node("HeadForcingLoadDemo"),
        "timeline": node("HeadForcingPromptTimeline", clip=["demo", 1], **timeline),
        "sampler": node(
            "HeadForcingSampler", model=["demo", 0], positive=["timeline", 0], **size | sampler
        ),
        "video": decode("video/demo"),
        "report": node("PreviewAny", source=["sampler", 1]),
    }


def growing_graph(prefix: str, seconds: float = 6.0, prompts: str = "", **sampler: Any) -> Graph:
    """The demo graph with its video made by the sampler, and nothing else to make one."""
    graph = demo_graph(vae=["demo", 2], filename_prefix=prefix, **sampler)
    del graph["video"]
    return changed(graph, "timeline", seconds=seconds, **({"prompts": prompts} if prompts else {}))


def short_graph(**sampler: Any) -> Graph:
    """One prompt from CLIP Text Encode, one block; its latents are saved as they are."""
    size = {"width": 64, "height": 64, "seconds": 0.5, "seed": 0}
    return {
        "demo": node("HeadForcingLoadDemo"),
        "text": node("CLIPTextEncode", clip=["demo", 1], text=BALL),
        "sampler": node(
            "HeadForcingSampler", model=["demo", 0], positive=["text", 0], **size | sampler
        ),
        "latents": node("SaveLatent", samples=["sampler", 0], filename_prefix="latents/short"),
    }


def tiny_graph(loader: dict[str, Any], **sampler: Any) -> Graph:
    """A native checkpoint of 2 layers x 2 heads, two blocks; its latents are saved as they are."""
    size = {"width": 80, "height": 48, "seconds": 1.0, "seed": 4}  # 3 x 5 tokens
    return {
        "model": loader,
        "text": node("TestFakeText", seed=3, words=8),
        "profile": node("HeadForcingLoadProfile", profile="hf_tiny_2x2.json"),
        "sampler": node(
            "HeadForcingSampler",
            model=["model", 0],
            positive=["text", 0],
            head_profile=["profile", 0],
            **size | sampler,
        ),
        "latents": node("SaveLatent", samples=["sampler", 0], filename_prefix="latents/tiny"),
        "report": node("PreviewAny", source=["sampler", 1]),
    }


def queued(server: ComfyServer, graph: Graph, **options: Any) -> RunResult:
    """Run a graph that must succeed."""
    result = server.queue(graph, **options)
    found = (result.outcome, result.error, result.node_errors)
    assert found == ("success", None, {}), found
    return result


def stopper(
    server: ComfyServer, name: str = "sampler", at: int = 0
) -> Callable[[str, dict[str, Any]], None]:
    """Presses Stop where the progress of that node has come so far and waits; for `on_event`."""
    server.hold(at, name)

    def on_event(kind: str, data: dict[str, Any]) -> None:
        if kind == "test.waits":
            server.interrupt()

    return on_event


def text_of(result: RunResult, name: str = "report") -> str:
    (text,) = result.outputs[name]["text"]
    return text


def video_frames(source: Path | io.BytesIO) -> np.ndarray:
    """Every video frame that can be read, `[n, H, W, 3]`."""
    with av.open(source if isinstance(source, io.BytesIO) else str(source)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


def until_frames(folder: Path, count: int) -> None:
    """Wait until more than so many video frames of the only video of a folder can be read."""
    found = 0
    for _ in range(600):
        with contextlib.suppress(av.FFmpegError, ValueError):  # no file, header or frame yet
            (path,) = folder.glob("*.mp4")
            found = len(video_frames(path))
        if found > count:
            return
        time.sleep(0.1)
    raise TimeoutError(f"{folder} has a video of {found} frames")


def video_frames_of(server: ComfyServer, result: RunResult, name: str) -> np.ndarray:
    """The video frames of the file that a node shows."""
    return video_frames(io.BytesIO(server.view(**result.outputs[name]["images"][0])))


def saved_latents(server: ComfyServer, result: RunResult, name: str = "latents") -> torch.Tensor:
    """What SaveLatent wrote, `[videos, 16, frames, h, w]`."""
    (saved,) = result.outputs[name]["latents"]
    return load_file(server.output_dir / saved["subfolder"] / saved["filename"])["latent_tensor"]


def sampled(server: ComfyServer, graph: Graph) -> torch.Tensor:
    return saved_latents(server, queued(server, graph))


UNET = node("UNETLoader", unet_name="hf_tiny.safetensors", weight_dtype="default")
BARE = node("HeadForcingLoadModel", checkpoint="hf_tiny.safetensors")
PUBLISHED = node("HeadForcingLoadModel", checkpoint="hf_tiny_published.pt")


def opened(data: bytes) -> tuple[int, int, int, float, dict[str, str]]:
    """Pictures (decoded one by one), width, height, frame rate and tags of a video file."""
    with av.open(io.BytesIO(data)) as container:
        stream = container.streams.video[0]
        size = (stream.width, stream.height)
        rate = float(stream.average_rate)
        tags = dict(container.metadata)
        return sum(1 for _ in container.decode(video=0)), *size, rate, tags


def failed(server: ComfyServer, graph: Graph, *expected: str) -> RunResult:
    """Run a graph that must fail with one readable sentence that contains `expected`."""
    result = server.queue(graph)
    assert result.outcome == "error", (result.outcome, result.error)
    message = result.error or ""
    (error,) = [data for event, data in result.events if event == "execution_error"]
    kind = error["exception_type"]
    # the editor shows it before the message
    assert "/" not in kind and "headforcing" not in kind, kind
    assert all(part in message for part in expected), message
    # of 900 characters: all methods by name
    assert "\n" not in message and "Traceback" not in message and 30 < len(message) < 900, message
    return result


def everything_but_output(server: ComfyServer) -> set[Path]:
    """All files around the output folder that a bad name could reach, but for what the server
    itself writes.
    """
    base = server.base_dir
    around = {*base.parent.iterdir(), *server.install.tree.iterdir(), *Path("/").iterdir()}
    inside = (path for path in base.rglob("*") if server.output_dir not in (path, *path.parents))
    return around | {
        path
        for path in inside
        if path.relative_to(base).parts[0] not in ("temp", "user", "custom_nodes")
    }
