"""Live decoding: the video grows by a tiny decoder, and the VAE makes the final file of the same
latents under the same name.
"""

import re
import shutil
from typing import Any

import pytest
import torch
from comfy_browser import Browser, of_player
from comfy_graphs import (
    UNET,
    Graph,
    changed,
    demo_graph,
    failed,
    node,
    queued,
    saved_latents,
    stopper,
    text_of,
    tiny_graph,
    video_frames,
    video_frames_of,
)
from comfy_harness import ComfyServer
from safetensors.torch import save_file
from tiny_checkpoints import native_files, tiny_decoder
from websockets.exceptions import ConnectionClosed

DRAFT = "taew2_1.safetensors"
STEPS = 8  # of two blocks; then each block that the VAE decodes is a step


@pytest.fixture(autouse=True)
def with_decoder(request: pytest.FixtureRequest) -> None:
    """The server of the test with that file."""
    if "tiny" in request.fixturenames:
        tiny_decoder(request.getfixturevalue("tiny").model_path("vae_approx", DRAFT))


def live_graph(prefix: str, **sampler: Any) -> Graph:
    """Two blocks with a live decoder."""
    inputs = {"vae": ["vae", 0], "filename_prefix": prefix, "live_decoder": DRAFT}
    graph = tiny_graph(UNET, **inputs | sampler)
    return graph | {"vae": node("VAELoader", vae_name="hf_tiny_vae.safetensors")}


def ordinary(graph: Graph, prefix: str) -> Graph:
    """The same render without a draft, made anew."""
    inputs = {"live_decoder": "none", "filename_prefix": prefix, "resume": False}
    return changed(graph, "sampler", **inputs)


def vae_part(report: str) -> float:
    """MB of decoders' weights in the estimate of a report."""
    (size,) = re.findall(r"VAE ([\d.]+) MB", report)
    return float(size)


def linked(server: ComfyServer) -> str:
    """The file of the newest take."""
    (newest, *_) = server.get_json("/headforcing/takes")["takes"]
    return newest["file"]["filename"]


def test_the_final_file_is_that_of_an_ordinary_render_and_takes_the_place_of_the_draft(
    tiny: ComfyServer,
):
    graph = live_graph("live/v", seed=201)
    folder = tiny.output_dir / "live"
    drafts = []

    def watch(kind: str, data: dict[str, Any]) -> None:
        if kind == "test.waits":
            drafts.append(video_frames(folder / "v_00001_.mp4"))
            assert linked(tiny) == "v_00001_.mp4"
            tiny.hold(None)

    tiny.hold(STEPS + 1, "sampler")
    result = queued(tiny, graph, on_event=watch)
    expected = queued(tiny, ordinary(graph, "ordinary/v"))
    assert torch.equal(saved_latents(tiny, result), saved_latents(tiny, expected))
    frames = video_frames_of(tiny, result, "sampler")
    assert (frames == video_frames_of(tiny, expected, "sampler")).all()
    (draft,) = drafts
    assert draft.shape == frames.shape and abs(draft.astype(int) - frames).mean() > 2
    assert [path.name for path in folder.iterdir()] == ["v_00001_.mp4"], "one number"
    assert "wrote output/live/v_00001_.mp4" in text_of(result)
    alone = vae_part(text_of(expected))
    assert vae_part(text_of(result)) > alone, "the estimate counts the tiny decoder"
    again = queued(tiny, changed(graph, "sampler", live_decoder="none"))
    assert "v_00001_.mp4 is this video already" in str(again.said) + text_of(again)


def test_a_stop_between_the_two_passes_leaves_the_draft_and_the_next_run_replaces_it(
    tiny: ComfyServer,
):
    graph = live_graph("stopped_between/v", seed=202)
    folder = tiny.output_dir / "stopped_between"
    result = tiny.queue(graph, on_event=stopper(tiny, at=STEPS + 2))
    assert result.outcome == "interrupted"
    told = result.said["sampler"]
    assert "a draft of the video is output/stopped_between/v_00001_.mp4" in told[-1]
    assert any("all blocks are made; the VAE has decoded 0:00 of 0:01" in text for text in told)
    draft = video_frames(folder / "v_00001_.mp4")
    done = queued(tiny, graph)
    assert "reused 2 blocks" in text_of(done)
    frames = video_frames_of(tiny, done, "sampler")
    expected = video_frames_of(tiny, queued(tiny, ordinary(graph, "o/v")), "sampler")
    assert (frames == expected).all() and abs(draft.astype(int) - frames).mean() > 2
    assert [path.name for path in folder.iterdir()] == ["v_00001_.mp4"]
    assert linked(tiny) == "v_00001_.mp4"


@pytest.mark.thorough
def test_a_server_that_is_killed_between_the_two_passes_makes_the_final_file_when_it_is_back(
    tiny: ComfyServer,
):
    graph = live_graph("killed_between/v", seed=203)
    folder = tiny.output_dir / "killed_between"
    tiny.hold(STEPS + 2, "sampler")

    def kill(kind: str, data: dict[str, Any]) -> None:
        if kind == "test.waits":
            tiny.stop()

    with pytest.raises(ConnectionClosed):
        tiny.queue(graph, on_event=kill)
    tiny.start()
    draft = video_frames(folder / "v_00001_.mp4")
    done = queued(tiny, graph)
    frames = video_frames_of(tiny, done, "sampler")
    expected = video_frames_of(tiny, queued(tiny, ordinary(graph, "k/v")), "sampler")
    assert (frames == expected).all() and abs(draft.astype(int) - frames).mean() > 2
    assert [path.name for path in folder.iterdir()] == ["v_00001_.mp4"]


def test_the_vae_encodes_what_a_video_begins_with_and_what_its_rollouts_share(tiny: ComfyServer):
    options = {"method": "causvid", "seconds": 6.0, "width": 48, "height": 32, "seed": 204}
    graph = live_graph("rollouts/v", **options)
    latents = saved_latents(tiny, queued(tiny, graph))
    expected = queued(tiny, ordinary(graph, "rollouts/o"))
    assert torch.equal(latents, saved_latents(tiny, expected))


def test_a_draft_button_and_a_part_need_no_second_number(tiny: ComfyServer):
    graph = live_graph("parts/v", seed=205)
    queued(tiny, changed(graph, "sampler", draft=True))
    queued(tiny, changed(graph, "sampler", until_seconds=0.5))
    queued(tiny, graph)
    names = sorted(path.name for path in (tiny.output_dir / "parts").iterdir())
    assert names == ["v_00001_.mp4", "v_00002_.mp4", "v_draft_00001_.mp4"]


def test_a_video_of_a_tiny_vae_is_no_draft_and_stays(tiny: ComfyServer):
    shutil.copy(tiny.model_path("vae_approx", DRAFT), tiny.model_path("vae", "draft.safetensors"))
    graph = live_graph("stays/v", seed=209)
    with_tiny = changed(graph, "sampler", live_decoder="none")
    with_tiny["vae"] = node("VAELoader", vae_name="draft.safetensors")
    before = video_frames_of(tiny, queued(tiny, with_tiny), "sampler")
    queued(tiny, graph)
    assert (video_frames(tiny.output_dir / "stays" / "v_00001_.mp4") == before).all()
    assert (tiny.output_dir / "stays" / "v_00002_.mp4").is_file()


def test_a_live_decoder_of_no_use_is_refused_before_anything_is_made(tiny: ComfyServer):
    graph = live_graph("refused/v", seed=206)
    del graph["vae"], graph["sampler"]["inputs"]["vae"]
    failed(tiny, graph, "connect one to vae, or choose none")
    graph = live_graph("refused/v", seed=206)
    shutil.copy(tiny.model_path("vae_approx", DRAFT), tiny.model_path("vae", "draft.safetensors"))
    graph["vae"] = node("VAELoader", vae_name="draft.safetensors")
    failed(tiny, graph, "vae is a tiny decoder, too: choose none")
    demo = demo_graph(vae=["demo", 2], live_decoder=DRAFT)
    failed(tiny, demo, "vae is the VAE of the demo model: choose none")
    broken = tiny.model_path("vae_approx", "taew2_1.broken.safetensors")
    save_file({"decoder.1.weight": torch.zeros(1)}, broken)
    graph = live_graph("refused/v", seed=206, live_decoder=broken.name)
    failed(tiny, graph, f"{broken.name} is no tiny decoder for latents of 16 channels")
    broken.unlink()
    hostile = live_graph("refused/v", live_decoder="../vae/hf_tiny_vae.safetensors")
    assert tiny.queue(hostile).outcome == "invalid"
    assert not list((tiny.output_dir / "refused").glob("*"))


@pytest.mark.slow
@pytest.mark.parametrize("browser", ["comfy_latest, Nodes 2.0"], indirect=True)
def test_the_player_shows_the_draft_until_the_final_file_has_its_place(browser: Browser):
    editor = browser
    native_files(editor.server)
    tiny_decoder(editor.server.model_path("vae_approx", DRAFT))
    editor.load_api(live_graph("watched/v", seed=208))
    editor.server.hold(STEPS + 2)
    editor.queue()
    source = f"{of_player()}?.querySelector('video')?.src"
    editor.page.wait_for_function(f"{source}?.includes('v_00001_.mp4')")
    text = f"{of_player()}.firstChild.textContent"
    editor.page.wait_for_function(f"{text}.includes('has decoded 0:00 of 0:01')")
    before = editor.page.evaluate(source)
    editor.server.hold(None)
    assert editor.wait_done() == "success"
    editor.page.wait_for_function(
        f"(before) => {source} !== before && {source}.includes('v_00001_.mp4')", arg=before
    )
    assert "wrote output/watched/v_00001_.mp4" in editor.page.evaluate(text)
