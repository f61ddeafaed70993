"""The nodes as an artist meets them: every graph goes through the real server of both tested ComfyUI versions."""

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from comfy_graphs import (
    BALL,
    BARE,
    CROSS,
    PUBLISHED,
    UNET,
    Graph,
    _everything_but_output,
    changed,
    decode,
    demo_graph,
    failed,
    growing_graph,
    node,
    opened,
    queued,
    sampled,
    saved_latents,
    short_graph,
    status_texts,
    stopper,
    text_of,
    tiny_graph,
)
from comfy_harness import ComfyServer
from comfy_setup import FLOOR
from headforcing.headforcing_core.weights.checkpoint import convert, convert_lora
from PIL import Image
from safetensors.torch import save_file
from tiny_checkpoints import published_lora, wan_lora, wan_t2v_weights

pytestmark = pytest.mark.comfy


# Shared workflows hold these ids, names, types, defaults and choices: nothing in it may ever change, but optional
# inputs and choices may be added.
FROZEN: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("frozen_nodes.json").read_text())


# --- registration ----------------------------------------------------------------------------------------------------


def test_all_nodes_register_without_a_complaint(both: ComfyServer):
    ours = {key for key in both.object_info() if key.startswith("HeadForcing")}
    assert ours >= set(FROZEN)  # a node joins them when it is released
    log = both.log()
    assert "IMPORT FAILED" not in log and "comfy_entrypoint" not in log


def test_ids_names_types_and_defaults_never_change(both: ComfyServer):
    known = both.object_info()
    for node_id, frozen in FROZEN.items():
        info, given = known[node_id], {"required": [], "optional": []}
        for name, wanted in frozen["inputs"].items():
            given[wanted["kind"]].append(name)
            type_, options = info["input"][wanted["kind"]][name]
            assert type_ == wanted["type"], (node_id, name)
            assert options.get("default") == wanted.get("default", options.get("default")), (node_id, name)
            assert set(wanted.get("choices", ())) <= set(options.get("options", ())), (node_id, name)
        names = {kind: list(info["input"].get(kind, {})) for kind in given}
        assert names["required"] == given["required"]  # a new required input breaks every saved workflow
        assert names["optional"][: len(given["optional"])] == given["optional"]  # order is what an artist sees
        assert [list(output) for output in zip(info["output"], info["output_name"], strict=True)] == frozen["outputs"]


# what people type into the search box, and the node that they look for
SEARCHES = {
    "prompt travel": "PromptTimeline", "prompt schedule": "PromptTimeline", "long video": "Sampler",
    "extend": "Sampler", "video combine": "DecodeVideo", "resume": "LoadRun", "XY plot": "CompareMethods",
    "attention": "ProfileHeads",
}  # fmt: skip


def test_every_node_and_input_explains_itself_and_is_found_by_what_people_type(comfy: ComfyServer):
    nodes = {node_id: info for node_id, info in comfy.object_info().items() if node_id.startswith("HeadForcing")}
    for node_id, info in nodes.items():
        assert info["category"].startswith("Head Forcing/") and info["display_name"] and len(info["description"]) > 30
        assert len(info["search_aliases"]) >= 3, node_id
        for inputs in (info["input"].get(kind, {}) for kind in ("required", "optional")):
            for name, (_, options) in inputs.items():
                assert len(options.get("tooltip", "")) > 10, (node_id, name)
    for typed, name in SEARCHES.items():
        assert typed in nodes[f"HeadForcing{name}"]["search_aliases"], typed


# --- the demo --------------------------------------------------------------------------------------------------------


def test_demo_makes_a_video_with_live_previews_and_is_cached_afterwards(both: ComfyServer):
    graph = changed(demo_graph(seed=11), "video", upscale=2)
    workflow = {"nodes": [], "extra": {"note": "ünïcode"}}
    with status_texts(both) as texts:
        result = queued(both, graph, extra_data={"extra_pnginfo": {"workflow": workflow}})

    assert result.progress["sampler"][-1] == (36, 36)  # 9 blocks x 4 steps
    assert [value for value, _ in result.progress["sampler"]] == sorted(v for v, _ in result.progress["sampler"])
    previews = [image for name, image in result.previews if name == "sampler"]
    assert len(previews) == 33  # one at each step, once there is a finished block whose frames can be shown
    decoded = [Image.open(io.BytesIO(image)) for image in previews]
    assert {image.format for image in decoded} == {"JPEG"}
    assert len({image.tobytes() for image in decoded}) > 1  # the video moves, so previews differ
    said = [text for name, text in texts if name == "sampler"]
    assert len(said) == 10 and said[0].startswith("block 1 of 9 - prompt 1: a red ball")
    assert "block 9 of 9 - prompt 2: a yellow cross" in said[-2] and " left" in said[-2]
    assert re.fullmatch(r"9 blocks in 0:\d\d - \d+\.\d fps", said[-1])

    (file,) = result.outputs["video"]["images"]
    assert file["filename"].endswith(".mp4") and file["subfolder"] == "video" and file["type"] == "output"
    video_frames, width, height, fps, tags = opened(both.view(**file))
    assert (video_frames, width, height, fps) == (96, 128, 128, 16.0)
    stored = json.loads(tags["workflow"])
    assert stored["extra"].pop("head_forcing_run") == result.prompt_id and stored == workflow
    assert json.loads(tags["prompt"])["sampler"]["class_type"] == "HeadForcingSampler"
    report = text_of(result)
    assert "96 frames = 6.00 s" in report and "10 local, 12 anchor, 26 memory" in report and "after block 1" in report

    again = queued(both, graph, extra_data={"extra_pnginfo": {"workflow": workflow}})
    assert again.executed == []
    recompressed = queued(both, changed(graph, "video", crf=40))
    assert recompressed.executed == ["video"]
    smaller = both.view(**recompressed.outputs["video"]["images"][0])
    assert len(smaller) < len(both.view(**file))


def test_a_graph_may_end_in_the_sampler_and_its_video_is_made_once(comfy_server: ComfyServer):
    graph = demo_graph(seed=73, vae=["demo", 2], filename_prefix="ends/here")
    graph = {name: graph[name] for name in ("demo", "timeline", "sampler")}
    first = queued(comfy_server, graph)
    assert "sampler" in first.executed and first.previews
    again = queued(comfy_server, graph)
    assert "sampler" not in again.executed
    assert first.outputs["sampler"]["images"] == again.outputs["sampler"]["images"]
    assert len(list((comfy_server.output_dir / "ends").iterdir())) == 1


def test_a_prompt_takes_over_as_the_widgets_or_its_tag_say_and_the_report_names_the_picture(comfy_server: ComfyServer):
    graph = demo_graph(seed=5)
    del graph["video"]
    graph["latents"] = node("SaveLatent", samples=["sampler", 0], filename_prefix="latents/switched")
    plain = sampled(comfy_server, graph)
    for tag, widgets in SWITCHES.items():
        with status_texts(comfy_server) as texts:
            result = queued(comfy_server, changed(graph, "timeline", **widgets))
        made = saved_latents(comfy_server, result)
        changes = (made != plain).flatten(3).any(-1).any(1)[0].tolist()
        assert changes == [False] * 12 + [True] * 15  # from block 4 on
        report = text_of(result)
        assert re.search(rf"2 +0:03.000 +0:02.812 +45 +4 +{tag} +{CROSS}", report), report
        assert any(f"prompt 2: {CROSS[:20]}" in text for _, text in texts)
        tagged = queued(comfy_server, changed(graph, "timeline", prompts=f"0:00 {BALL}\n0:03 [{tag}] {CROSS}"))
        assert "reused 9 blocks" in text_of(tagged), "a tag and the widgets mean the same"


SWITCHES: dict[str, dict[str, Any]] = {
    "recache": {"switch": "recache"},
    "flush, re-anchor": {"switch": "flush", "re_anchor": True},
    "blend 2": {"blend_blocks": 2},
}


def test_interrupt_while_decoding_leaves_no_file(comfy_server: ComfyServer):
    graph = changed(demo_graph(seed=23), "timeline", seconds=12.0)
    graph = changed(graph, "video", upscale=8, filename_prefix="stopped/video")

    result = comfy_server.queue(graph, on_event=stopper(comfy_server, "video"))
    assert result.outcome == "interrupted" and "video" in result.executed
    assert list((comfy_server.output_dir / "stopped").iterdir()) == []
    again = queued(comfy_server, graph)
    assert "sampler" not in again.executed  # what was sampled is kept
    assert opened(comfy_server.view(**again.outputs["video"]["images"][0]))[0] == 192


def test_a_cancelled_render_says_what_is_kept_and_goes_on_where_it_stopped(both: ComfyServer):
    graph = demo_graph(seed=29) | {"report": node("PreviewAny", source=["sampler", 1])}

    with status_texts(both) as texts:
        assert both.queue(graph, on_event=stopper(both, at=12)).outcome == "interrupted"
    last = [text for name, text in texts if name == "sampler"][-1]
    kept = re.match(
        r"stopped in block (\d+) of 9; the blocks before it are kept in output/head_forcing/\w{16}, queue", last
    )
    assert kept and int(kept[1]) >= 3, last
    report = text_of(queued(both, graph))
    reused = re.search(r"reused (\d+) blocks of an earlier render", report)
    assert reused and int(reused[1]) >= int(kept[1]) - 1, report


def test_two_videos_of_a_batch_differ_and_become_two_files(comfy_server: ComfyServer):
    graph = short_graph(batch_size=2, seed=7)
    graph["video"] = decode("pair", fps=8.0)
    result = queued(comfy_server, graph)
    latents = saved_latents(comfy_server, result)
    assert latents.shape == (2, 16, 3, 8, 8)
    assert (latents[0] - latents[1]).abs().max() > 0.1
    assert result.progress["sampler"][-1] == (8, 8)
    files = result.outputs["video"]["images"]
    assert len({file["filename"] for file in files}) == 2
    assert [opened(comfy_server.view(**file))[:4] for file in files] == [(8, 64, 64, 8.0)] * 2
    alone = sampled(comfy_server, short_graph(seed=7))
    assert torch.equal(alone[0], latents[0])


# --- together with core nodes ----------------------------------------------------------------------------------------


def test_core_nodes_decode_and_join_the_latents_and_encode_a_video_to_go_on_from(comfy_server: ComfyServer):
    graph = short_graph(seconds=1.5, seed=3) | {
        "images": node("VAEDecode", samples=["sampler", 0], vae=["demo", 2]),
        "show": node("PreviewImage", images=["images", 0]),
        "cut": node("ImageFromBatch", image=["images", 0], batch_index=0, length=29),
        "encoded": node("VAEEncode", pixels=["cut", 0], vae=["demo", 2]),
        "given": node("SaveLatent", samples=["encoded", 0], filename_prefix="latents/given"),
        "longer": node("SaveLatent", samples=["more", 0], filename_prefix="latents/longer"),
        "video": decode("more", samples="more"),
        "report": node("PreviewAny", source=["more", 1]),
        "twice": node("LatentConcat", samples1=["sampler", 0], samples2=["sampler", 0], dim="t"),
        "joined": decode("twice", samples="twice"),
    }
    given = {"width": 256, "height": 128, "seconds": 0.75, "start_frames": ["encoded", 0]}
    graph |= {"more": changed(graph, "sampler", **given)["sampler"]}
    result = queued(comfy_server, graph)
    assert saved_latents(comfy_server, result).shape == (1, 16, 9, 8, 8)  # 24 pictures fill 3 blocks
    assert len(result.outputs["show"]["images"]) == 33  # core does not know what to trim
    given = saved_latents(comfy_server, result, "given")
    longer = saved_latents(comfy_server, result, "longer")
    assert given.shape == (1, 16, 8, 8, 8) and longer.shape == (1, 16, 9, 8, 8)
    torch.testing.assert_close(longer[:, :, :6], given[:, :, :6], rtol=0, atol=1e-6)
    assert (longer[:, :, 6:8] - given[:, :, 6:8]).abs().max() > 1e-3
    report = text_of(result)
    assert "64x64" in report and "left out the last 2 latent frames" in report and "after 6 start frames" in report
    lengths = [opened(comfy_server.view(**result.outputs[name]["images"][0]))[0] for name in ("video", "joined")]
    assert lengths == [21 + 12, 4 * (18 - 1) + 1], "latents that were joined are not trimmed"


def test_latents_of_other_wan_samplers_decode_too(tiny: ComfyServer):
    graph = {
        "empty": node("EmptyHunyuanLatentVideo", width=48, height=32, length=17, batch_size=1),
        "vae": node("VAELoader", vae_name="hf_tiny_vae.safetensors"),
        "video": decode("plain", samples="empty", vae=["vae", 0], fps=24.0),
    }
    result = queued(tiny, graph)
    assert opened(tiny.view(**result.outputs["video"]["images"][0]))[:4] == (17, 48, 32, 24.0)


def test_native_and_own_loader_give_the_same_video(tiny: ComfyServer):
    native = sampled(tiny, tiny_graph(UNET))
    assert native.shape == (1, 16, 6, 6, 10) and native.isfinite().all()
    for loader in (BARE, PUBLISHED):
        result = queued(tiny, tiny_graph(loader))
        assert torch.equal(saved_latents(tiny, result), native) and "inexact" not in text_of(result)
    assert not torch.equal(sampled(tiny, tiny_graph(BARE, seed=5)), native)
    smaller = changed({"m": BARE}, "m", weight_dtype="fp8_e4m3fn")["m"]
    assert "inexact: weights stored in 8-bit" in text_of(queued(tiny, tiny_graph(smaller)))


def test_longlives_lora_in_the_graph_equals_the_merged_checkpoint_at_every_strength(tiny: ComfyServer):
    """As published it changes nothing in ComfyUI, which reads other names; converted, it gives the merged weights."""
    published = published_lora(tiny.model_path("loras", "hf_tiny_published_lora.pt"))
    convert_lora(published, tiny.model_path("loras", "hf_tiny_converted_lora.safetensors"), torch.float32)
    base = tiny.model_path("diffusion_models", "hf_tiny.safetensors")

    def with_lora(file: str, strength: float) -> torch.Tensor:
        lora = node("LoraLoaderModelOnly", model=["model", 0], lora_name=file, strength_model=strength)
        return sampled(tiny, changed(tiny_graph(BARE) | {"lora": lora}, "sampler", model=["lora", 0]))

    plain = sampled(tiny, tiny_graph(BARE))
    for strength in (0.6, 1.0):
        merged = tiny.model_path("diffusion_models", f"hf_tiny_merged_{strength}.safetensors")
        convert(base, merged, dtype=torch.float32, lora=published, lora_strength=strength)
        expected = sampled(tiny, tiny_graph(node("HeadForcingLoadModel", checkpoint=merged.name)))
        found = with_lora("hf_tiny_converted_lora.safetensors", strength)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
        assert (expected - plain).abs().mean() > 1e-3
    assert torch.equal(with_lora("hf_tiny_published_lora.pt", 1.0), plain)


def test_a_compute_dtype_set_by_a_node_is_that_of_the_caches_too(tiny: ComfyServer):
    graph = tiny_graph(UNET, resume=False)
    plain = sampled(tiny, graph)
    for dtype in ("bf16", "default"):
        set_here = changed(graph, "sampler", model=["dtype", 0])
        set_here["dtype"] = node("ModelComputeDtype", model=["model", 0], dtype=dtype)
        found = sampled(tiny, set_here)
        assert torch.equal(found, plain) == (dtype == "default") and (found - plain).abs().max() < 0.2


def test_a_render_on_chosen_devices_is_the_same(comfy: ComfyServer):
    """The demo's objects, with the sampler that decodes, in the newest version; older ones have no such nodes."""
    graph = growing_graph("video/device", 1.5, "a red ball", seed=90, resume=False)
    graph["latents"] = node("SaveLatent", samples=["sampler", 0], filename_prefix="latents/device")
    plain = sampled(comfy, graph)
    graph["on"] = node("SelectModelDevice", model=["demo", 0], device="cpu")
    graph["units"] = node("MultiGPU_WorkUnits", model=["on", 0], max_gpus=2)
    graph["beside"] = node("SelectVAEDevice", vae=["demo", 2], device="cpu")
    result = queued(comfy, changed(graph, "sampler", model=["units", 0], vae=["beside", 0]))
    assert {"on", "units", "beside", "sampler"} <= set(result.executed)
    assert torch.equal(saved_latents(comfy, result), plain) and result.outputs["sampler"]["images"]


# --- errors ----------------------------------------------------------------------------------------------------------


def test_zero_seconds_are_those_of_the_timeline_or_ten_and_fewer_cut_it(comfy: ComfyServer):
    plain = short_graph(seconds=0.0) | {"report": node("PreviewAny", source=["sampler", 1])}
    for graph, frames in ((demo_graph(seconds=0.0), 96), (plain, 160)):
        assert f" {frames} frames" in text_of(queued(comfy, graph))
    report = text_of(queued(comfy, demo_graph(seconds=2.0)))
    assert "32 frames" in report and CROSS not in report


# node, widget, wrong value, what is said
QUEUE_ERRORS: dict[str, tuple[str, str, Any, tuple[str, ...]]] = {
    "width": ("sampler", "width", 5000, ("width",)),
    "height": ("sampler", "height", -16, ("height",)),
    "file name": ("sampler", "filename_prefix", "../x", ("filename_prefix", "inside")),
    "length": ("timeline", "seconds", -1.0, ("seconds",)),
    "timeline": ("timeline", "prompts", f"0:03 {BALL}\n\n0:01 {CROSS}", ("prompts", "line 3", "0:03")),
    "empty timeline": ("timeline", "prompts", " \n ", ("prompts", "prompt")),
    "decoded file": ("video", "filename_prefix", "../x", ("filename_prefix", "inside")),
    "method": ("compare", "methods", "head_forcin", ("methods has no 'head_forcin'; did you mean head_forcing?",)),
    "compared width": ("compare", "width", 5000, ("width",)),
}


def test_a_wrong_value_is_one_error_on_its_widget_before_anything_runs(comfy_server: ComfyServer):
    for case, (name, widget, value, expected) in QUEUE_ERRORS.items():
        graph = demo_graph()
        del graph["report"]
        if name == "compare":
            graph = {kept: graph[kept] for kept in ("demo", "timeline")}
            inputs = {"model": ["demo", 0], "positive": ["timeline", 0], "vae": ["demo", 2], "methods": "head_forcing"}
            inputs |= {"width": 64, "height": 64, "seconds": 1.0, "seed": 0, "filename_prefix": "video/Compare"}
            graph["compare"] = node("HeadForcingCompareMethods", **inputs)
        result = comfy_server.queue(changed(graph, name, **{widget: value}))
        if name != "video":  # the sampler is an output too, and nothing is wrong with it
            assert (result.status, result.outcome, result.executed) == (400, "invalid", []), case
        (error,) = (error for found in result.node_errors.values() for error in found["errors"])
        told = f"{error['message']}: {error['details']}"
        assert error["extra_info"]["input_name"] == widget and len(told) < 250, told
        assert all(part in told for part in expected) and name not in result.executed, told
    # text from another node is only known when it arrives
    linked = changed(demo_graph(), "timeline", prompts=["text", 0])
    linked["text"] = node("PrimitiveString", value=f"0:00 {BALL}\n0:03 [flush, recache] {CROSS}")
    failed(comfy_server, linked, "line 2", "contradictory")


def test_model_that_no_bundled_profile_fits(tiny: ComfyServer):
    graph = tiny_graph(BARE)
    del graph["sampler"]["inputs"]["head_profile"]
    report = text_of(queued(tiny, graph))
    assert "to be found in the first seconds" in report
    report = text_of(queued(tiny, changed(graph, "sampler", method="self_forcing_window_21")))
    assert "one cache for every head" in report
    failed(tiny, changed(graph, "sampler", roles="shuffled"), "roles", "shuffled", "auto")  # nothing to shuffle yet


def sampling(kind: str, **inputs: Any) -> Graph:
    """A graph with a node that samples, and a MODEL that is not Wan."""
    if kind != "Apply":
        inputs |= {"width": 64, "height": 64, "seconds": 0.5, "seed": 0}
    return {name: short_graph()[name] for name in ("demo", "text")} | {
        "other": node("TestOtherModel"),
        "node": node(f"HeadForcing{kind}", model=["other", 0], positive=["text", 0], **inputs),
        "shown": node("PreviewAny", source=["node", 2 if kind == "Apply" else 1]),
    }


IMAGE = node("EmptyLatentImage", width=64, height=64, batch_size=1)
SHORT = node("EmptyHunyuanLatentVideo", width=64, height=64, length=5, batch_size=1)
TWO = node("ConditioningCombine", conditioning_1=["text", 0], conditioning_2=["text", 0])
DECODED = decode("x", samples="image")
OTHER_VAE = DECODED | {"inputs": DECODED["inputs"] | {"samples": ["sampler", 0], "vae": ["vae", 0]}}
NOTHING = {"vae": ["demo", 2], "filename_prefix": "none/v", "fps": 16.0}
COMPARED = {"vae": ["demo", 2], "methods": "longlive", "filename_prefix": "x"}
MEASURED = {"preset": "quick", "width": 100, "height": 64, "seed": 0, "save_name": ""}
NOT_WAN = ("expected Wan 2.1 text-to-video weights", "Load Self Forcing")
# a graph, and what is said of it when it runs
REFUSALS: dict[str, tuple[Graph, tuple[str, ...]]] = {
    "width": (short_graph(width=100), ("width", "multiple of 16", "100")),
    "sigmas as words": (short_graph(sigmas="one, two"), ("sigmas", "one, two")),
    "size to profile": (
        {
            "demo": node("HeadForcingLoadDemo"),
            "measured": node("HeadForcingProfileHeads", model=["demo", 0], clip=["demo", 1], **MEASURED),
            "shown": node("PreviewAny", source=["measured", 2]),
        },
        ("width", "multiple of 16", "100"),
    ),
    "profiles of two models": (
        {
            "one": node("HeadForcingLoadProfile", profile="toy_world"),
            "other": node("HeadForcingLoadProfile", profile="self_forcing"),
            "compared": node("HeadForcingInspectProfile", head_profile=["one", 0], compare_with=["other", 0]),
            "shown": node("PreviewAny", source=["compared", 1]),
        },
        ("different models",),
    ),
    "broken fast memory": (short_graph(recent_frames=4), ("recent frames", "whole blocks of 3", "4")),
    "profile of another model": (
        short_graph(head_profile=["profile", 0]) | {"profile": node("HeadForcingLoadProfile", profile="self_forcing")},
        ("self_forcing", "30x12", "8x6", "hoose a profile"),
    ),
    "text of another model": (
        short_graph() | {"text": node("TestFakeText", seed=1, words=8)},
        ("positive", "64", "4096", "CLIP"),
    ),
    "combined prompts": (
        changed(short_graph(), "sampler", positive=["two", 0]) | {"two": TWO},
        ("positive", "2 combined prompts", "Prompt Timeline"),
    ),
    "an image's latents to decode": (
        {"demo": node("HeadForcingLoadDemo"), "image": IMAGE, "video": DECODED},
        ("samples", "Wan video latents", "[1, 4, 8, 8]"),
    ),
    "an image's latents to begin with": (
        short_graph(start_frames=["image", 0]) | {"image": IMAGE},
        ("start_frames", "[1, 4, 8, 8]"),
    ),
    "less than a block to begin with": (
        short_graph(start_frames=["image", 0]) | {"image": SHORT},
        ("start_frames", "at least 3"),
    ),
    "VAE of another model": (
        short_graph() | {"vae": node("TestImageVAE"), "video": OTHER_VAE},
        ("vae", "Wan 2.1 VAE", "4 latent channels"),
    ),
    "VAE of another model while sampling": (
        changed(growing_graph("refused/v"), "sampler", vae=["other", 0]) | {"other": node("TestImageVAE")},
        ("expected the Wan 2.1 VAE",),
    ),
    "several rollouts without a VAE": (
        demo_graph(method="causvid"),
        ("connect the Wan 2.1 VAE to the sampler, or make at most 5.06 s",),
    ),
    "nothing to decode": (
        {"demo": node("HeadForcingLoadDemo"), "video": node("HeadForcingDecodeVideo", **NOTHING)},
        ("connect latents, or choose a run",),
    ),
    "a checkpoint without a text encoder": (
        changed(demo_graph(), "timeline", clip=["checkpoint", 1])
        | {"checkpoint": node("CheckpointLoaderSimple", ckpt_name="hf_no_text.safetensors")},
        ("clip", "no text encoder", "Load CLIP"),
    ),
    "a LoRA as checkpoint": (
        tiny_graph(node("HeadForcingLoadModel", checkpoint="hf_tiny_lora.safetensors")),
        ("hf_tiny_lora", "LoRA"),
    ),
    "a damaged profile": (changed(tiny_graph(BARE), "profile", profile="broken.json"), ("broken.json", "JSON")),
    "roles without shares": (changed(tiny_graph(BARE), "profile", anchor_percent=30.0), ("tiny", "roles only")),
    "not Wan, sampler": (sampling("Sampler"), NOT_WAN),
    "not Wan, compared": (sampling("CompareMethods", **COMPARED), NOT_WAN),
    "not Wan, applied": (sampling("Apply"), NOT_WAN),
}


def test_what_cannot_be_made_is_one_sentence_before_it_is_begun(tiny: ComfyServer):
    tiny.model_path("head_profiles", "broken.json").write_text('{"format_version": 1, "name": "x"')
    wan_lora(tiny.model_path("diffusion_models", "hf_tiny_lora.safetensors"))
    without_text = {f"model.diffusion_model.{name}": tensor for name, tensor in wan_t2v_weights().items()}
    save_file(without_text, tiny.model_path("checkpoints", "hf_no_text.safetensors"))
    for case, (graph, expected) in REFUSALS.items():
        result = failed(tiny, graph, *expected)
        assert case == "VAE of another model" or not result.progress, case


def test_unknown_and_hostile_profile_names_are_refused(both: ComfyServer):
    for profile in ("no_such_profile", "../../x.json", "/etc/passwd", "toy_world.json"):
        graph = short_graph(head_profile=["profile", 0])
        graph["profile"] = node("HeadForcingLoadProfile", profile=profile)
        if both.install.version == FLOOR:  # lets any value through to a V3 node
            failed(both, graph, "profile", repr(profile), "head_profiles")
            continue
        result = both.queue(graph)
        assert (result.status, result.outcome) == (400, "invalid")
        (error,) = result.node_errors["profile"]["errors"]
        assert error["type"] == "value_not_in_list" and "profile" in error["details"]


def test_unknown_choices_name_the_widget(comfy_floor: ComfyServer):
    for widget, meant in (("method", "head_forcing"), ("roles", "shuffled")):
        failed(comfy_floor, short_graph(**{widget: "from_the_future"}), widget, "from_the_future", "must be one of")
        told = f"{widget} has no '{meant[:-1]}'; did you mean {meant}?"
        failed(comfy_floor, short_graph(**{widget: meant[:-1]}), told)


REFUSED = [
    "", "   ", "a\0b", "a\nb", "x" * 300, "語" * 90, "lone \ud800 surrogate", "../x", "a/../../x", "a/../../../x",
]  # fmt: skip
KEPT_INSIDE = ["C:\\x", "\\\\server\\x", "CON", "..", "a/../x", "~/x", "-rf", "%2e%2e/x", "%width%/x"]


def test_no_file_name_leaves_the_output_folder(both: ComfyServer):
    """0.3.75 makes folders behind a link before it looks where they are."""
    graph = short_graph(seed=2)
    del graph["latents"]
    graph["video"] = decode("first")
    queued(both, graph)
    outside = both.base_dir / "elsewhere"
    outside.mkdir()
    (both.output_dir / "link").symlink_to(outside, target_is_directory=True)
    before = _everything_but_output(both)
    for name in [*REFUSED, str(outside / "x"), "/hf_absolute_x", "link/x", "link/made/x", "a/../link/x"]:
        for writer in ("video", "sampler"):
            refused = both.queue(changed(graph, writer, filename_prefix=name))
            assert writer not in refused.executed, name
            (error,) = refused.node_errors[writer]["errors"]
            assert "filename_prefix must" in error["details"] or "must stay inside" in error["details"]
    for name in KEPT_INSIDE:
        files = set(both.output_dir.rglob("*"))
        result = queued(both, changed(graph, "video", filename_prefix=name))
        new = [path for path in set(both.output_dir.rglob("*")) - files if path.is_file()]
        assert len(new) == 1 and new[0].suffix == ".mp4", name
        (shown,) = result.outputs["video"]["images"]
        assert both.output_dir / shown["subfolder"] / shown["filename"] == new[0]
    assert _everything_but_output(both) == before
    assert not [path for path in both.output_dir.rglob(".*.mp4") if not path.name.startswith("..")]
