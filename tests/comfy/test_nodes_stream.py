"""Decoding while sampling: the video grows, survives what stops it, and is the same as one decoded
afterwards.
"""

import contextlib
import json
import re
from typing import Any

import av
import numpy as np
import pytest
import torch
from comfy_graphs import (
    UNET,
    changed,
    decode,
    demo_graph,
    failed,
    growing_graph,
    node,
    queued,
    sampled,
    saved_latents,
    saving,
    stopper,
    text_of,
    tiny_graph,
    until_frames,
    video_frames,
    video_frames_of,
)
from comfy_harness import ComfyServer
from tiny_checkpoints import tiny_decoder
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect


def test_the_video_equals_one_decoded_afterwards(both: ComfyServer):
    graph = growing_graph("stream/v", decode_in_background=True, resume=False, seed=40)
    graph["video"] = demo_graph()["video"]
    graph["save"] = saving(["sampler", 2], "stream/saved")
    result = queued(both, graph)
    streamed = video_frames_of(both, result, "sampler")
    afterwards = video_frames_of(both, result, "video")
    assert len(streamed) == 96 and (streamed == afterwards).all()
    assert (video_frames_of(both, result, "save") == streamed).all()
    (file,) = (both.output_dir / "stream").glob("v*")
    assert file.name == "v_00001_.mp4", "nothing but the finished file is left"
    with av.open(str(file)) as container:
        assert json.loads(container.metadata["prompt"])["sampler"]["inputs"]["seed"] == 40
        own = json.loads(container.metadata["head_forcing"])
        assert own["seed"] == 40 and len(own["prompts"]) == len(own["starts_seconds"]) > 0
    report = text_of(result)
    assert "wrote output/stream/v_00001_.mp4" in report
    assert "memory   about" in report and "disk     up to" in report
    assert re.search(r"sampled in [\d.]+ s, attention \w", report)


def test_a_part_is_not_taken_for_the_video_that_it_is_a_part_of(comfy: ComfyServer):
    """The file of a take stays when its beginning is rendered alone; until there is one, the part
    is the file of the take.
    """
    graph = growing_graph("part/v", 4.5, seed=43)
    part = changed(graph, "sampler", until_seconds=1.5)

    def linked() -> str:
        newest = json.loads(comfy.ask("/headforcing/takes", method="GET")[1])["takes"][0]
        return newest["file"]["filename"]

    assert len(video_frames_of(comfy, queued(comfy, part), "sampler")) < 40
    assert linked() == "v_00001_.mp4"
    assert len(video_frames_of(comfy, queued(comfy, graph), "sampler")) == 72
    queued(comfy, part)
    assert linked() == "v_00002_.mp4"
    again = queued(comfy, graph)
    assert "v_00002_.mp4 is this video already" in str(again.said) + text_of(again)
    assert len(video_frames_of(comfy, again, "sampler")) == 72


@pytest.mark.thorough
def test_a_video_of_several_rollouts_is_decoded_the_same_everywhere(tiny: ComfyServer):
    """CausVid: in the sampler, from its latents, from its run folder and from a loaded run, as far
    as they came.
    """
    wan = node("VAELoader", vae_name="hf_tiny_vae.safetensors")
    options = {
        "vae": ["vae", 0],
        "filename_prefix": "rollouts/v",
        "method": "causvid",
        "seconds": 6.0,
        "seed": 51,
    }
    graph = tiny_graph(UNET, **options, width=48, height=32)
    graph |= {"vae": wan, "video": decode("rollouts/latents", vae=["vae", 0])}
    assert tiny.queue(graph, on_event=stopper(tiny, at=25)).outcome == "interrupted"
    known = tiny.object_info()
    (run, *_) = known["HeadForcingLoadRun"]["input"]["required"]["run"][1]["options"]
    choices = next(
        kind["run"] for kind in known["HeadForcingDecodeVideo"]["input"].values() if "run" in kind
    )
    name = next(
        choice for choice in choices[1]["options"] if choice.endswith(run[run.rindex("(") :])
    )
    given = {"vae": ["vae", 0], "fps": 16.0, "filename_prefix": "rollouts/folder"}
    later = {
        "vae": wan,
        "run": node("HeadForcingLoadRun", run=run),
        "loaded": decode("rollouts/loaded", samples="run", vae=["vae", 0]),
        "folder": node("HeadForcingDecodeVideo", run=name, **given),
    }
    part = queued(tiny, later)
    result = queued(tiny, graph)
    whole = queued(tiny, later)
    report = text_of(result)
    streamed = video_frames_of(tiny, result, "sampler").astype(int)
    assert "2 rollouts of 21 latent frames" in report and re.search(r"reused [789] blocks", report)
    for source, name in (
        (result, "video"),
        (whole, "loaded"),
        (whole, "folder"),
        (part, "loaded"),
        (part, "folder"),
    ):
        found = video_frames_of(tiny, source, name).astype(int)
        assert len(found) == 96 if source is not part else 81 <= len(found) <= 96
        assert np.abs(found - streamed[: len(found)])[72:].mean() < 0.5, "it restarts at picture 72"


def test_what_the_node_says_while_the_video_grows_is_no_html_and_for_one_browser(
    comfy: ComfyServer,
):
    graph = growing_graph("growing/<img src=x onerror=alert(1)> & more", seed=41)
    address = f"ws://127.0.0.1:{comfy.port}/ws?clientId=listener"
    with connect(address, max_size=None, proxy=None) as other:
        said = queued(comfy, graph).said["sampler"]
        with contextlib.suppress(TimeoutError):
            while True:
                assert isinstance(other.recv(timeout=0.3), str), "a text or a preview"
    name = re.escape("&lt;img src=x onerror=alert(1)&gt; &amp; more")
    assert any(
        re.match(rf"watch output/growing/{name}_v\w{{8}}\.part\.mp4 - 0:0\d of 0:06", text)
        for text in said
    )
    assert not any("<" in text or ">" in text for text in said)
    assert any(re.search(r"\d fps, 0:\d\d left", text) for text in said)
    assert not any("block" in text or "latent frame" in text for text in said)


def test_a_cancelled_one_plays_and_is_replaced_when_it_goes_on(comfy: ComfyServer):
    graph = growing_graph("cancel/stream", seed=42)
    result = comfy.queue(graph, on_event=stopper(comfy, at=22))
    assert result.outcome == "interrupted"
    (partial,) = (comfy.output_dir / "cancel").iterdir()
    last = result.said["sampler"][-1]
    assert f"the video so far is output/cancel/{partial.name}" in last
    (seconds,) = re.findall(r"stopped at 0:0(\d) of 0:06", last)
    before = video_frames(partial)
    assert len(before) >= 16 * int(seconds) > 0, "every finished block is in it"
    after = video_frames_of(comfy, queued(comfy, graph), "sampler")
    assert len(after) == 96 and (after[:50] == before[:50]).all()
    assert [path.name for path in (comfy.output_dir / "cancel").iterdir()] == ["stream_00001_.mp4"]


@pytest.mark.thorough
def test_a_server_that_is_killed_goes_on_when_it_is_back(comfy: ComfyServer):
    """SIGKILL while sampling, and one of the blocks is damaged; the same graph ends with the same
    latents.
    """
    graph = growing_graph("killed/v", 9.0, seed=60)
    graph["latents"] = node("SaveLatent", samples=["sampler", 0], filename_prefix="killed_latents")

    comfy.hold(41, "sampler")

    def kill(kind: str, data: dict[str, Any]) -> None:
        if kind == "test.waits":
            until_frames(comfy.output_dir / "killed", 48)
            comfy.stop()

    with pytest.raises(ConnectionClosed):
        comfy.queue(graph, on_event=kill)
    comfy.start()
    # and a lock file, which the next one removes
    (partial,) = (comfy.output_dir / "killed").glob("*.mp4")
    before = video_frames(partial)
    assert len(before) > 48, "what was written until then plays"
    blocks = (comfy.output_dir / "head_forcing").glob("*/block-*")
    damaged = max(blocks, key=lambda path: path.stat().st_mtime)
    damaged.write_bytes(damaged.read_bytes()[:-1])
    done = queued(comfy, graph)
    report = text_of(done)
    again = queued(
        comfy, changed(graph, "sampler", resume=False, filename_prefix="killed/straight")
    )
    assert (saved_latents(comfy, done) == saved_latents(comfy, again)).all()
    same = (video_frames_of(comfy, done, "sampler")[: len(before)] == before).all(axis=(1, 2, 3))
    assert same[:-1].all(), (
        f"frames {np.flatnonzero(~same)} of {len(before)} differ; the last one may be cut off"
    )
    assert not list((comfy.output_dir / "killed").glob(".*")), "nothing is left of the killed one"
    reused = re.search(r"reused (\d+) blocks of an earlier render", report)
    assert (
        reused
        and int(reused[1]) >= 8
        and f"damaged: {damaged.name} is damaged; it was removed" in report
    )


def test_without_a_vae_whoever_wants_the_video_is_told(comfy: ComfyServer):
    graph = demo_graph(seed=44)
    del graph["video"]
    graph["save"] = saving(["sampler", 2], "no/vae")
    result = comfy.queue(graph)
    assert (
        "connect a vae to Head Forcing Sampler" in str(result.error)
        and "sampler" in result.executed
    )


def test_a_pack_that_plays_previews_itself_gets_whole_blocks(comfy: ComfyServer):
    """VideoHelperSuite replaces ComfyUI's previewers by ones that take all frames and give no
    picture.
    """
    graph = growing_graph("preview/own", seed=50)
    graph["spy"] = node("TestPreviewSpy", model=["demo", 0])
    graph = changed(graph, "sampler", model=["spy", 0])
    graph["seen"] = node("TestPreviewsSeen", after=["sampler", 1])
    result = queued(comfy, graph)
    frames = json.loads(result.outputs["seen"]["text"][0])
    assert set(frames) == {3} and len(frames) > 2 * 9, "blocks"
    assert not [name for name, _ in result.previews if name == "sampler"]


def test_a_draft_is_smaller_decoded_by_a_tiny_decoder_and_leaves_the_blocks_of_the_video(
    tiny: ComfyServer,
):
    tiny_decoder(tiny.model_path("vae_approx", "lighttaew2_1.safetensors"))
    graph = tiny_graph(UNET, seed=130, vae=["vae", 0], filename_prefix="player/tiny")
    graph["vae"] = node("VAELoader", vae_name="hf_tiny_vae.safetensors")
    latents = sampled(tiny, graph)
    draft = queued(tiny, changed(graph, "sampler", draft=True))
    assert saved_latents(tiny, draft).shape == (1, 16, 6, 2, 4), "32x16 of 80x48"
    (take, *_) = tiny.get_json("/headforcing/takes")["takes"]
    assert (take["draft"], take["size"], take["file"]["filename"]) == (
        True,
        "32x16",
        "tiny_draft_00001_.mp4",
    )
    again = queued(tiny, changed(graph, "sampler", filename_prefix="player/again"))
    assert torch.equal(saved_latents(tiny, again), latents) and "reused 2 blocks" in text_of(again)
    failed(
        tiny, changed(graph, "sampler", until_seconds="soon"), "a time must be a number of seconds"
    )
    linked = changed(graph, "sampler", until_seconds=["length", 0])
    linked["length"] = node("PrimitiveFloat", value=1.0)
    failed(tiny, linked, "until_seconds cannot be connected: write the number into the node")
