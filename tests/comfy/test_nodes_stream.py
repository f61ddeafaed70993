"""Decoding while sampling: the video grows, survives what stops it, and is the same as one decoded afterwards."""

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
    demo_graph,
    failed,
    growing_graph,
    node,
    queued,
    sampled,
    saved_latents,
    saving,
    shown,
    status_texts,
    stopper,
    text_of,
    texts_of_others,
    tiny_graph,
    video_frames,
)
from comfy_harness import ComfyServer
from comfy_setup import FLOOR
from headforcing.headforcing_core.video.tiny_decoder import TinyDecoder
from safetensors.torch import save_file
from websockets.exceptions import ConnectionClosed

pytestmark = pytest.mark.comfy

BLOCKS = 9  # of the demo graph


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.repeat("comfy_floor-True", "True-comfy_floor")
def test_the_video_equals_one_decoded_afterwards(both: ComfyServer, background: bool):
    graph = growing_graph(f"stream/{background}", decode_in_background=background, resume=False, seed=40)
    graph["video"] = demo_graph()["video"]
    graph["save"] = saving(["sampler", 2], "stream/saved")
    result = queued(both, graph)
    streamed, afterwards = shown(both, result, "sampler"), shown(both, result, "video")
    assert len(streamed) == 96 and (streamed == afterwards).all()
    assert (shown(both, result, "save") == streamed).all()
    (file,) = (both.output_dir / "stream").glob(f"{background}*")
    assert file.name == f"{background}_00001_.mp4", "nothing but the finished file is left"
    with av.open(str(file)) as container:
        assert json.loads(container.metadata["prompt"])["sampler"]["inputs"]["seed"] == 40
        own = json.loads(container.metadata["head_forcing"])
        assert own["seed"] == 40 and len(own["prompts"]) == len(own["starts_seconds"]) > 0
    report = text_of(result)
    assert f"wrote output/stream/{background}_00001_.mp4" in report
    assert "memory   about" in report and "disk     up to" in report
    assert re.search(r"sampled in [\d.]+ s, attention \w", report)


def test_a_video_of_several_rollouts_is_decoded_the_same_everywhere(tiny: ComfyServer):
    """CausVid: in the sampler, from its latents, from its run folder and from a loaded run, as far as they came."""
    wan = node("VAELoader", vae_name="hf_tiny_vae.safetensors")
    options = {"vae": ["vae", 0], "filename_prefix": "rollouts/v", "method": "causvid", "seconds": 6.0, "seed": 51}
    options |= {"width": 48, "height": 32}
    decoded = {"class_type": "HeadForcingDecodeVideo", "inputs": {"vae": ["vae", 0], "fps": 16.0}}
    graph = tiny_graph(UNET, **options) | {"vae": wan, "video": decoded}
    graph = changed(graph, "video", samples=["sampler", 0], filename_prefix="rollouts/latents")
    assert tiny.queue(graph, on_event=stopper(tiny, at=25)).outcome == "interrupted"
    (run, *_) = tiny.object_info()["HeadForcingLoadRun"]["input"]["required"]["run"][1]["options"]
    inputs = tiny.object_info()["HeadForcingDecodeVideo"]["input"]
    choices = next(kind["run"] for kind in inputs.values() if "run" in kind)[1]["options"]
    name = next(choice for choice in choices if choice.endswith(run[run.rindex("(") :]))
    later = {"vae": wan, "run": node("HeadForcingLoadRun", run=run), "loaded": decoded, "folder": decoded}
    later = changed(later, "loaded", samples=["run", 0], filename_prefix="rollouts/loaded")
    later = changed(later, "folder", run=name, filename_prefix="rollouts/folder")
    part, result = queued(tiny, later), queued(tiny, graph)
    streamed, whole = shown(tiny, result, "sampler").astype(int), queued(tiny, later)
    report = text_of(result)
    assert "2 rollouts of 21 latent frames" in report and re.search(r"reused [789] blocks", report)

    one_rollout = shown(tiny, queued(tiny, changed(graph, "sampler", seconds=5.0)), "sampler").astype(int)
    restarted = np.abs(streamed[72:80] - one_rollout[72:]).mean()
    assert restarted > 5 * np.abs(streamed[:72] - one_rollout[:72]).mean(), "it restarts at picture 72 and not before"
    for source, name in ((result, "video"), (whole, "loaded"), (whole, "folder"), (part, "loaded"), (part, "folder")):
        found = shown(tiny, source, name).astype(int)
        assert len(found) == 96 if source is not part else 81 <= len(found) <= 96
        assert np.abs(found - streamed[: len(found)])[72:].mean() < restarted / 5


def test_it_can_be_watched_while_it_grows(comfy_server: ComfyServer):
    graph = growing_graph("growing/watch", 9.0, seed=41)
    seen = []

    def look(kind: str, data: dict[str, Any]) -> None:
        for path in (comfy_server.output_dir / "growing").glob("*.part.mp4"):
            with contextlib.suppress(OSError, ValueError):  # it was just finished, or has no picture yet
                if path.stat().st_size > 1000:
                    seen.append(len(video_frames(path)))

    with status_texts(comfy_server) as texts:
        queued(comfy_server, graph, on_event=look)
    assert seen == sorted(seen) and 0 < seen[0] < seen[-1] <= 144, "it is whole for a moment before it gets its name"
    assert any(re.match(r"watch output/growing/watch_v[0-9a-f]{8}\.part\.mp4 - block", text) for _, text in texts)
    assert any(re.search(r"\d fps, 0:\d\d left", text) for _, text in texts)
    assert any("memory: admitted latent frame" in text for _, text in texts)


def test_a_cancelled_one_plays_and_is_replaced_when_it_goes_on(comfy_server: ComfyServer):
    graph = growing_graph("cancel/stream", 12.0, seed=42)
    with status_texts(comfy_server) as texts:
        result = comfy_server.queue(graph, on_event=stopper(comfy_server, at=44))
    assert result.outcome == "interrupted"
    (partial,) = (comfy_server.output_dir / "cancel").iterdir()
    assert f"the video so far is output/cancel/{partial.name}" in texts[-1][1]
    (block,) = re.findall(r"stopped in block (\d+) of 17", texts[-1][1])
    before = video_frames(partial)
    assert len(before) >= 12 * (int(block) - 1) - 3, "every finished block is in it"
    done = queued(comfy_server, graph)
    after = shown(comfy_server, done, "sampler")
    assert len(after) == 192 and (after[:100] == before[:100]).all()
    assert [path.name for path in (comfy_server.output_dir / "cancel").iterdir()] == ["stream_00001_.mp4"]


def test_a_server_that_is_killed_goes_on_when_it_is_back(comfy_to_kill: ComfyServer):
    """SIGKILL while sampling, and one of the blocks is damaged; the same graph ends with the same latents."""
    graph = growing_graph("killed/v", 11.0, seed=60)
    graph["latents"] = node("SaveLatent", samples=["sampler", 0], filename_prefix="killed_latents")
    server = comfy_to_kill

    def kill(kind: str, data: dict[str, Any]) -> None:
        if kind == "progress" and data.get("node") == "sampler" and data["value"] >= 40:
            server.stop()

    with pytest.raises(ConnectionClosed):
        server.queue(graph, on_event=kill)
    (partial,) = (server.output_dir / "killed").glob("*.mp4")  # and a lock file, which the next one removes
    before = video_frames(partial)
    assert len(before) > 48, "what was written until then plays"
    blocks = list((server.output_dir / "head_forcing").glob("*/block-*"))
    run = max(blocks, key=lambda path: path.stat().st_mtime).parent
    damaged = max(run.glob("block-*"), key=lambda path: path.name)
    damaged.write_bytes(damaged.read_bytes()[:-1])
    server.start()
    done = queued(server, graph)
    report = text_of(done)
    again = queued(server, changed(graph, "sampler", resume=False, filename_prefix="killed/straight"))
    assert (saved_latents(server, done) == saved_latents(server, again)).all()
    same = (shown(server, done, "sampler")[: len(before)] == before).all(axis=(1, 2, 3))
    assert same[:-1].all(), f"frames {np.flatnonzero(~same)} of {len(before)} differ; the last one may be cut off"
    assert not list((server.output_dir / "killed").glob(".*")), "nothing is left of the killed one"
    reused = re.search(r"reused (\d+) blocks of an earlier render", report)
    assert reused and int(reused[1]) >= 8 and f"damaged: {damaged.name} is damaged; it was removed" in report


def test_without_a_vae_whoever_wants_the_video_is_told(comfy_server: ComfyServer):
    graph = demo_graph(seed=44)
    del graph["video"]
    graph["save"] = saving(["sampler", 2], "no/vae")
    result = comfy_server.queue(graph)
    assert "connect a vae to Head Forcing Sampler" in str(result.error) and "sampler" in result.executed


def test_what_a_node_says_is_no_html_and_for_one_browser(comfy_server: ComfyServer):
    name = "<img src=x onerror=alert(1)> & more"
    with texts_of_others(comfy_server) as others, status_texts(comfy_server) as texts:
        queued(comfy_server, growing_graph(f"html/{name}", 4.0, seed=71))
    said = [text for _, text in texts]
    assert any("&lt;img src=x onerror=alert(1)&gt; &amp; more" in text for text in said)
    assert not any("<" in text or ">" in text for text in said)
    assert others == []
    assert list((comfy_server.output_dir / "html").glob("<img*.mp4"))


@pytest.mark.parametrize("background", [False, True])
def test_a_decoder_that_fails_costs_the_video_and_nothing_else(comfy_server: ComfyServer, background: bool):
    options = {"seed": 45 + background, "decode_in_background": background}
    graph = growing_graph(f"broken/{background}", **options)
    graph["broken"] = node("TestBrokenVAE", vae=["demo", 2], chunks=4)
    graph = changed(graph, "sampler", vae=["broken", 0])
    graph["latents"] = node("SaveLatent", samples=["sampler", 0], filename_prefix="latents/broken")
    with status_texts(comfy_server) as texts:
        result = queued(comfy_server, graph)
    assert saved_latents(comfy_server, result).shape[2] == 3 * BLOCKS
    report = text_of(result)
    assert "no video: the test broke the decoder; the latents are complete" in report
    assert any("no video: the test broke the decoder" in text for _, text in texts)
    (partial,) = (comfy_server.output_dir / "broken").glob(f"{background}*")
    assert partial.name.endswith(".part.mp4") and len(video_frames(partial)) >= 9
    mended = queued(comfy_server, growing_graph(f"broken/{background}", **options))
    assert "reused 9 blocks" in text_of(mended)
    assert len(shown(comfy_server, mended, "sampler")) == 96


def test_a_pack_that_plays_previews_itself_gets_whole_blocks(comfy_server: ComfyServer):
    """VideoHelperSuite replaces ComfyUI's previewers by ones that take all frames and give no picture."""
    graph = growing_graph("preview/own", seed=50)
    graph["spy"] = node("TestPreviewSpy", model=["demo", 0])
    graph = changed(graph, "sampler", model=["spy", 0])
    graph["seen"] = node("TestPreviewsSeen", after=["sampler", 1])
    result = queued(comfy_server, graph)
    frames = json.loads(result.outputs["seen"]["text"][0])
    assert set(frames) == {3} and len(frames) > 2 * BLOCKS
    assert not [name for name, _ in result.previews if name == "sampler"]


def test_no_name_of_a_run_is_taken_that_is_not_in_the_list(both: ComfyServer):
    demo, video = node("HeadForcingLoadDemo"), {"vae": ["demo", 2], "filename_prefix": "run/v", "fps": 16.0}
    for name in ("../x", "/etc/passwd", "a/../../x", "C:\\x", "no/such run", "x\0y", ""):
        loaded = {"run": node("HeadForcingLoadRun", run=name)}
        loaded["video"] = node("HeadForcingDecodeVideo", samples=["run", 0], **video)
        for graph in (loaded, {"video": node("HeadForcingDecodeVideo", run=name, **video)}):
            result = both.queue(graph | {"demo": demo})
            if both.install.version == FLOOR:  # lets any value through to a V3 node
                assert "is not in ComfyUI/output/head_forcing" in str(result.error)
            else:
                assert result.status == 400 and "run" in json.dumps(result.node_errors)
    assert list((both.output_dir / "run").glob("*")) == []


def test_a_draft_is_smaller_decoded_by_a_tiny_decoder_and_leaves_the_blocks_of_the_video(tiny: ComfyServer):
    torch.manual_seed(0)
    weights = {name: torch.randn_like(t) * t[0].numel() ** -0.5 for name, t in TinyDecoder().state_dict().items()}
    save_file(weights, tiny.model_path("vae_approx", "lighttaew2_1.safetensors"))
    graph = tiny_graph(UNET, seed=130, vae=["vae", 0], filename_prefix="player/tiny")
    graph["vae"] = node("VAELoader", vae_name="hf_tiny_vae.safetensors")
    latents = sampled(tiny, graph)
    stored = {path: path.read_bytes() for path in tiny.output_dir.glob("head_forcing/*/block-*")}
    draft = queued(tiny, changed(graph, "sampler", draft=True))
    assert saved_latents(tiny, draft).shape == (1, 16, 6, 2, 4), "32x16 of 80x48"
    with av.open(str(tiny.output_dir / "player" / "tiny_draft_00001_.mp4")) as file:
        assert (file.streams.video[0].width, file.streams.video[0].height) == (32, 16)
    assert {path: path.read_bytes() for path in stored} == stored
    (take, *_) = tiny.get_json("/headforcing/takes")["takes"]
    assert (take["draft"], take["size"], take["file"]["filename"]) == (True, "32x16", "tiny_draft_00001_.mp4")
    again = queued(tiny, changed(graph, "sampler", filename_prefix="player/again"))
    assert torch.equal(saved_latents(tiny, again), latents) and "reused 2 blocks" in again.outputs["report"]["text"][0]
    failed(tiny, changed(graph, "sampler", until_seconds="soon"), "a time must be a number of seconds")
    failed(tiny, changed(graph, "sampler", from_seconds=-1, until_seconds=2), "a time must be a number of seconds")
