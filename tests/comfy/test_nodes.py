"""The nodes as an artist meets them: every graph goes through a real ComfyUI, in `both` the oldest,
too.
"""

import io
import json
import re
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from comfy_graphs import (
    BALL,
    BARE,
    CROSS,
    PUBLISHED,
    UNET,
    Graph,
    changed,
    decode,
    demo_graph,
    everything_but_output,
    failed,
    node,
    opened,
    queued,
    sampled,
    saved_latents,
    short_graph,
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

# Shared workflows hold these ids, names, types, defaults and choices: nothing in it may ever
# change, but optional inputs and choices may be added.
FROZEN: dict[str, dict[str, Any]] = json.loads(
    Path(__file__).with_name("frozen_nodes.json").read_text()
)


# ------------------------------------------------------------------------------------- registration


def test_ids_names_types_and_defaults_never_change(both: ComfyServer):
    known = both.object_info()
    log = both.log()
    assert "IMPORT FAILED" not in log and "comfy_entrypoint" not in log
    for node_id, frozen in FROZEN.items():
        info = known[node_id]
        given = {"required": [], "optional": []}
        for name, wanted in frozen["inputs"].items():
            given[wanted["kind"]].append(name)
            type_, options = info["input"][wanted["kind"]][name]
            assert type_ == wanted["type"], (node_id, name)
            assert options.get("default") == wanted.get("default", options.get("default")), (
                node_id,
                name,
            )
            assert set(wanted.get("choices", ())) <= set(options.get("options", ())), (
                node_id,
                name,
            )
        names = {kind: list(info["input"].get(kind, {})) for kind in given}
        # a new required input breaks every saved workflow
        assert names["required"] == given["required"]
        # order is what an artist sees
        assert names["optional"][: len(given["optional"])] == given["optional"]
        assert [
            list(output) for output in zip(info["output"], info["output_name"], strict=True)
        ] == frozen["outputs"]


def test_every_node_and_input_explains_itself_and_is_found_by_other_words(comfy: ComfyServer):
    nodes = {
        node_id: info
        for node_id, info in comfy.object_info().items()
        if node_id.startswith("HeadForcing")
    }
    for node_id, info in nodes.items():
        assert (
            info["category"].startswith("Head Forcing/")
            and info["display_name"]
            and len(info["description"]) > 30
        )
        assert len(info["search_aliases"]) >= 3, node_id
        for inputs in (info["input"].get(kind, {}) for kind in ("required", "optional")):
            for name, (_, options) in inputs.items():
                assert len(options.get("tooltip", "")) > 10, (node_id, name)


# ----------------------------------------------------------------------------------------- the demo


def test_demo_makes_a_video_with_live_previews_and_is_cached_afterwards(both: ComfyServer):
    graph = changed(demo_graph(seed=11), "video", upscale=2)
    workflow = {"nodes": [], "extra": {"note": "ünïcode"}}
    result = queued(both, graph, extra_data={"extra_pnginfo": {"workflow": workflow}})
    assert result.progress["sampler"][-1] == (36, 36)  # 9 blocks x 4 steps
    previews = [
        Image.open(io.BytesIO(image)) for name, image in result.previews if name == "sampler"
    ]
    # one at each step, once there is a finished block whose frames can be shown
    assert len(previews) == 33
    assert {image.format for image in previews} == {"JPEG"}
    assert len({image.tobytes() for image in previews}) > 1  # the video moves, so previews differ
    said = result.said["sampler"]
    assert len(said) == 10 and said[0].startswith("0:00 of 0:06 - prompt 1: a red ball")
    assert "0:05 of 0:06 - prompt 2: a yellow cross" in said[-2] and " left" in said[-2]
    assert re.fullmatch(r"0:06 of video in 0:\d\d - \d+\.\d fps", said[-1])

    (file,) = result.outputs["video"]["images"]
    assert (
        file["filename"].endswith(".mp4")
        and file["subfolder"] == "video"
        and file["type"] == "output"
    )
    video_frames, width, height, fps, tags = opened(both.view(**file))
    assert (video_frames, width, height, fps) == (96, 512, 512, 16.0)
    stored = json.loads(tags["workflow"])
    assert len(stored["extra"].pop("head_forcing_heads")["roles"].split()) == 8  # a word a layer
    assert stored["extra"].pop("head_forcing_run") == result.prompt_id and stored == workflow
    assert json.loads(tags["prompt"])["sampler"]["class_type"] == "HeadForcingSampler"
    report = text_of(result)
    assert (
        "96 frames = 6.00 s" in report
        and "10 local, 12 anchor, 26 memory" in report
        and "after block 1" in report
    )

    again = queued(both, graph, extra_data={"extra_pnginfo": {"workflow": workflow}})
    assert again.executed == []
    strange = {"nodes": [], "extra": "of another program"}
    other = changed(graph, "video", crf=41)
    named = queued(both, other, extra_data={"extra_pnginfo": {"workflow": strange}})
    assert named.executed == ["video"]
    recompressed = queued(both, changed(graph, "video", crf=40))
    assert recompressed.executed == ["video"]
    smaller = both.view(**recompressed.outputs["video"]["images"][0])
    assert len(smaller) < len(both.view(**file))


def test_a_prompt_takes_over_as_the_widgets_or_its_tag_say(comfy: ComfyServer):
    graph = demo_graph(seed=5)
    del graph["video"]
    widgets = {"switch": "flush", "re_anchor": True, "blend_blocks": 2}
    report = text_of(queued(comfy, changed(graph, "timeline", **widgets)))
    tag = "flush, re-anchor, blend 2"
    assert re.search(rf"2 +0:03.000 +0:02.812 +45 +4 +{tag} +{CROSS}", report), report
    tagged = queued(comfy, changed(graph, "timeline", prompts=f"0:00 {BALL}\n0:03 [{tag}] {CROSS}"))
    assert "reused 9 blocks" in text_of(tagged), "a tag and the widgets mean the same"


def test_interrupt_while_decoding_leaves_no_file(comfy: ComfyServer):
    graph = changed(demo_graph(seed=23), "video", upscale=8, filename_prefix="stopped/video")
    result = comfy.queue(graph, on_event=stopper(comfy, "video"))
    assert result.outcome == "interrupted" and "video" in result.executed
    assert list((comfy.output_dir / "stopped").iterdir()) == []
    again = queued(comfy, graph)
    assert "sampler" not in again.executed  # what was sampled is kept
    assert opened(comfy.view(**again.outputs["video"]["images"][0]))[0] == 96


def test_a_cancelled_render_says_what_is_kept_and_goes_on_where_it_stopped(both: ComfyServer):
    graph = demo_graph(seed=29)
    stopped = both.queue(graph, on_event=stopper(both, at=12))
    last = stopped.said["sampler"][-1]
    kept = re.fullmatch(r"stopped at 0:0(\d) of 0:06; Run goes on from there", last)
    assert stopped.outcome == "interrupted" and kept and int(kept[1]) >= 1, last
    report = text_of(queued(both, graph))
    reused = re.search(r"reused (\d+) blocks of an earlier render", report)
    # 12 video frames a block and 9 in the first one, at 16 a second
    assert reused and 12 * int(reused[1]) - 3 >= 16 * int(kept[1]), report


def test_two_videos_of_a_batch_differ_and_become_two_files(comfy: ComfyServer):
    result = queued(comfy, short_graph(batch_size=2, seed=7) | {"video": decode("pair", fps=8.0)})
    latents = saved_latents(comfy, result)
    assert latents.shape == (2, 16, 3, 8, 8) and (latents[0] - latents[1]).abs().max() > 0.1
    assert torch.equal(sampled(comfy, short_graph(seed=7))[0], latents[0])
    files = result.outputs["video"]["images"]
    assert len({file["filename"] for file in files}) == 2
    assert [opened(comfy.view(**file))[:4] for file in files] == [(8, 256, 256, 8.0)] * 2


# ------------------------------------------------------------------------- together with core nodes


def test_core_nodes_decode_and_join_the_latents_and_encode_a_video_to_go_on_from(
    comfy: ComfyServer,
):
    graph = short_graph(seconds=1.5, seed=3) | {
        "images": node("VAEDecode", samples=["sampler", 0], vae=["demo", 2]),
        "cut": node("ImageFromBatch", image=["images", 0], batch_index=0, length=29),
        "encoded": node("VAEEncode", pixels=["cut", 0], vae=["demo", 2]),
        "given": node("SaveLatent", samples=["encoded", 0], filename_prefix="latents/given"),
        "longer": node("SaveLatent", samples=["more", 0], filename_prefix="latents/longer"),
        "video": decode("more", samples="more"),
        "report": node("PreviewAny", source=["more", 1]),
        "twice": node("LatentConcat", samples1=["sampler", 0], samples2=["sampler", 0], dim="t"),
        "joined": decode("twice", samples="twice"),
        "empty": node("EmptyHunyuanLatentVideo", width=64, height=64, length=17, batch_size=1),
        "plain": decode("plain", samples="empty", fps=24.0),
    }
    graph["more"] = changed(graph, "sampler", seconds=0.75, start_frames=["encoded", 0])["sampler"]
    result = queued(comfy, graph)
    given = saved_latents(comfy, result, "given")
    longer = saved_latents(comfy, result, "longer")
    assert given.shape == (1, 16, 8, 8, 8) and longer.shape == (1, 16, 9, 8, 8)
    torch.testing.assert_close(longer[:, :, :6], given[:, :, :6], rtol=0, atol=1e-6)
    report = text_of(result)
    assert "left out the last 2 latent frames" in report and "after 6 start frames" in report
    names = ("video", "joined", "plain")
    lengths = [opened(comfy.view(**result.outputs[name]["images"][0]))[0] for name in names]
    assert lengths == [21 + 12, 4 * (18 - 1) + 1, 17], (
        "latents that were joined or come from others are not trimmed"
    )


def test_native_and_own_loader_give_the_same_video(tiny: ComfyServer):
    native = sampled(tiny, tiny_graph(UNET))
    assert native.shape == (1, 16, 6, 6, 10) and native.isfinite().all()
    for loader in (BARE, PUBLISHED):
        result = queued(tiny, tiny_graph(loader))
        assert torch.equal(saved_latents(tiny, result), native) and "inexact" not in text_of(result)
    longer = changed(tiny_graph(BARE), "text", words=700)
    assert "the model reads the first 512 of 700 tokens of the prompt" in text_of(
        queued(tiny, longer)
    )
    smaller = changed({"m": BARE}, "m", weight_dtype="fp8_e4m3fn")["m"]
    assert "inexact: weights stored in 8-bit" in text_of(queued(tiny, tiny_graph(smaller)))


def test_longlives_converted_lora_in_the_graph_equals_the_merged_checkpoint(tiny: ComfyServer):
    published = published_lora(tiny.model_path("loras", "hf_tiny_published_lora.pt"))
    converted = tiny.model_path("loras", "hf_tiny_converted_lora.safetensors")
    convert_lora(published, converted, torch.float32)
    merged = tiny.model_path("diffusion_models", "hf_tiny_merged.safetensors")
    base = tiny.model_path("diffusion_models", "hf_tiny.safetensors")
    convert(base, merged, dtype=torch.float32, lora=published, lora_strength=0.6)
    lora = node(
        "LoraLoaderModelOnly", model=["model", 0], lora_name=converted.name, strength_model=0.6
    )
    found = sampled(tiny, changed(tiny_graph(BARE) | {"lora": lora}, "sampler", model=["lora", 0]))
    expected = sampled(tiny, tiny_graph(node("HeadForcingLoadModel", checkpoint=merged.name)))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert (expected - sampled(tiny, tiny_graph(BARE))).abs().mean() > 1e-3


def test_a_compute_dtype_set_by_a_node_is_that_of_the_caches_too(tiny: ComfyServer):
    graph = tiny_graph(UNET, resume=False)
    plain = sampled(tiny, graph)
    for dtype in ("bf16", "default"):
        set_here = changed(graph, "sampler", model=["dtype", 0])
        set_here["dtype"] = node("ModelComputeDtype", model=["model", 0], dtype=dtype)
        found = sampled(tiny, set_here)
        assert (
            torch.equal(found, plain) == (dtype == "default") and (found - plain).abs().max() < 0.2
        )


# ------------------------------------------------------------------------------------------- errors


def test_zero_seconds_are_those_of_the_timeline_or_ten_and_a_size_of_zero_is_that_of_the_model(
    comfy: ComfyServer,
):
    plain = short_graph(seconds=0.0) | {"report": node("PreviewAny", source=["sampler", 1])}
    for graph, frames in ((demo_graph(seconds=0.0, width=0, height=0), 96), (plain, 160)):
        report = text_of(queued(comfy, graph))
        assert f" {frames} frames" in report and (
            "64x64, what the model was made for" in report
        ) == (frames == 96)
    report = text_of(queued(comfy, demo_graph(seconds=2.0)))
    assert "32 frames" in report and CROSS not in report


def test_inputs_of_earlier_versions_are_ignored_at_their_defaults_and_refused_otherwise(
    comfy: ComfyServer,
):
    earlier = {
        "sink_gate": 0.0,
        "rope_jitter": 0,
        "compression": "prompt",
        "memory_every_blocks": 2,
    }
    options = node("HeadForcingOptions", method_options="memory.episodic_frames=4", **earlier)
    graph = demo_graph(seconds=1.0, options=["options", 0]) | {"options": options}
    assert "memory.episodic_frames=4, episodic.update_interval=2" in text_of(queued(comfy, graph))
    failed(
        comfy,
        changed(graph, "options", sink_gate=0.8),
        "no longer has the input sink_gate",
        "set it to 0.0, got 0.8",
    )
    failed(
        comfy,
        changed(graph, "options", compression="trigonometric"),
        "no longer has the input compression",
    )


def test_a_wrong_value_is_one_error_on_its_widget_before_anything_runs(comfy: ComfyServer):
    graph = demo_graph(options=["options", 0]) | {"options": node("HeadForcingOptions")}
    del graph["report"]
    for name, widget, value, expected in (
        ("sampler", "width", 5000, "width"),
        ("sampler", "filename_prefix", "../x", "inside"),
        ("timeline", "prompts", f"0:03 {BALL}\n\n0:01 {CROSS}", "line 3: 0:01"),
        ("video", "filename_prefix", "../x", "inside"),
        (
            "options",
            "method",
            "krea_realtime",
            "with Krea's weights choose head_forcing or forcing_kv",
        ),
    ):
        result = comfy.queue(changed(graph, name, **{widget: value}))
        if name != "video":  # the sampler is an output too, and nothing is wrong with it
            assert (result.status, result.outcome, result.executed) == (400, "invalid", []), widget
        (error,) = chain(*(found["errors"] for found in result.node_errors.values()))
        sentence = f"{error['message']}: {error['details']}"
        assert error["extra_info"]["input_name"] == widget and len(sentence) < 250, sentence
        assert expected in sentence and name not in result.executed, sentence
    # text from another node is only known when it arrives
    linked = changed(demo_graph(), "timeline", prompts=["text", 0])
    linked["text"] = node("PrimitiveString", value=f"0:00 {BALL}\n0:03 [flush, recache] {CROSS}")
    failed(comfy, linked, "line 2", "contradictory")


def test_what_cannot_be_made_is_one_sentence_before_it_is_begun(tiny: ComfyServer):
    wan_lora(tiny.model_path("diffusion_models", "hf_tiny_lora.safetensors"))
    without_text = {
        f"model.diffusion_model.{name}": tensor for name, tensor in wan_t2v_weights().items()
    }
    save_file(without_text, tiny.model_path("checkpoints", "hf_no_text.safetensors"))
    graph = short_graph() | {"video": decode("refused")}

    def refused(extra: Graph, name: str, *expected: str, **inputs: Any) -> None:
        result = failed(tiny, changed(graph | extra, name, **inputs), *expected)
        assert name == "video" or not result.progress, expected

    refused({}, "sampler", "width", "multiple of 16", "100", width=100)
    profile = {"profile": node("HeadForcingLoadProfile", profile="self_forcing")}
    refused(
        profile,
        "sampler",
        "self_forcing",
        "30x12",
        "8x6",
        "hoose a profile",
        head_profile=["profile", 0],
    )
    refused(
        {"text": node("TestFakeText", seed=1, words=8)}, "sampler", "positive", "64", "4096", "CLIP"
    )
    two = {
        "two": node("ConditioningCombine", conditioning_1=["text", 0], conditioning_2=["text", 0])
    }
    refused(
        two, "sampler", "positive", "2 combined prompts", "Prompt Timeline", positive=["two", 0]
    )
    image = {"image": node("EmptyLatentImage", width=64, height=64, batch_size=1)}
    refused(image, "video", "samples", "Wan video latents", "[1, 4, 8, 8]", samples=["image", 0])
    refused({}, "video", "connect latents, or choose a run", samples=None)
    other = {"other": node("TestImageVAE")}
    refused(other, "video", "vae", "Wan 2.1 VAE", "4 latent channels", vae=["other", 0])
    refused(
        other, "sampler", "expected the Wan 2.1 VAE", vae=["other", 0], filename_prefix="refused/v"
    )
    other_models = tiny_graph(node("HeadForcingLoadModel", checkpoint="hf_tiny.safetensors"))
    other_models["demo"] = node("HeadForcingLoadDemo")
    refused(other_models, "sampler", "belongs to the demo model alone", vae=["demo", 2])
    empty = {"empty": node("EmptyHunyuanLatentVideo", width=64, height=64, length=9, batch_size=1)}
    refused(empty, "sampler", "start_frames is an empty latent", start_frames=["empty", 0])
    told = {"checkpoint": node("CheckpointLoaderSimple", ckpt_name="hf_no_text.safetensors")}
    told["text"] = node(
        "HeadForcingPromptTimeline", clip=["checkpoint", 1], prompts=BALL, seconds=1.0
    )
    refused(told, "sampler", "clip", "no text encoder", "Load CLIP")
    lora = {"lora": node("HeadForcingLoadModel", checkpoint="hf_tiny_lora.safetensors")}
    refused(lora, "sampler", "hf_tiny_lora", "LoRA", model=["lora", 0])
    not_wan = {"other": node("TestOtherModel")}
    refused(
        not_wan,
        "sampler",
        "expected Wan 2.1 text-to-video weights",
        "Load Self Forcing",
        model=["other", 0],
    )
    applied = {"apply": node("HeadForcingApply", model=["other", 0], positive=["text", 0])}
    shown = applied | {"shown": node("PreviewAny", source=["apply", 3])}
    refused(not_wan | shown, "video", "expected Wan 2.1 text-to-video weights", "Load Self Forcing")


def test_no_choice_is_taken_that_is_not_in_the_list(both: ComfyServer):
    """0.3.75 lets any value through to a V3 node, which then answers itself."""
    demo = node("HeadForcingLoadDemo")
    video = {"vae": ["demo", 2], "filename_prefix": "run/v", "fps": 16.0}
    for name in ("no_such_thing", "../../x.json", "/etc/passwd", "a/../../x", "C:\\x", "x\0y", ""):
        profile = short_graph(head_profile=["chosen", 0]) | {
            "chosen": node("HeadForcingLoadProfile", profile=name)
        }
        loaded = {"demo": demo, "chosen": node("HeadForcingLoadRun", run=name)}
        loaded["video"] = node("HeadForcingDecodeVideo", samples=["chosen", 0], **video)
        folder = {"demo": demo, "chosen": node("HeadForcingDecodeVideo", run=name, **video)}
        for graph, widget in ((profile, "profile"), (loaded, "run"), (folder, "run")):
            result = both.queue(graph)
            assert result.outcome in ("error", "invalid"), (widget, name)
            assert widget in f"{result.error} {result.node_errors}", (
                result.error,
                result.node_errors,
            )
    assert not list((both.output_dir / "run").glob("*"))
    if both.install.version == FLOOR:
        told = "unknown method 'head_forcin'; did you mean head_forcing?"
        failed(both, short_graph(method="head_forcin"), told)


REFUSED = [
    "",
    "   ",
    "a\0b",
    "a\nb",
    "x" * 300,
    "語" * 90,
    "lone \ud800 surrogate",
    "../x",
    "a/../../x",
    "a/../../../x",
    "CON",
    "video/LPT¹.clips/x",
    "video /x",
]
KEPT_INSIDE = [
    "C:\\x",
    "\\\\server\\x",
    "..",
    "a/../x",
    "~/x",
    "-rf",
    "%2e%2e/x",
    "%width%/x",
]


def test_no_file_name_leaves_the_output_folder(both: ComfyServer):
    """0.3.75 makes folders behind a link before it looks where they are."""
    graph = short_graph(seed=2)
    del graph["latents"]
    graph["video"] = decode("first")
    queued(both, graph)
    outside = both.base_dir / "elsewhere"
    outside.mkdir()
    (both.output_dir / "link").symlink_to(outside, target_is_directory=True)
    before = everything_but_output(both)
    for name in [
        *REFUSED,
        str(outside / "x"),
        "/hf_absolute_x",
        "link/x",
        "link/made/x",
        "a/../link/x",
    ]:
        for writer in ("video", "sampler"):
            refused = both.queue(changed(graph, writer, filename_prefix=name))
            assert writer not in refused.executed, name
            (error,) = refused.node_errors[writer]["errors"]
            assert "filename_prefix" in error["details"]
    for name in KEPT_INSIDE:
        files = set(both.output_dir.rglob("*"))
        result = queued(both, changed(graph, "video", filename_prefix=name))
        new = [path for path in set(both.output_dir.rglob("*")) - files if path.is_file()]
        assert len(new) == 1 and new[0].suffix == ".mp4", name
        (shown,) = result.outputs["video"]["images"]
        assert both.output_dir / shown["subfolder"] / shown["filename"] == new[0]
    assert everything_but_output(both) == before
    assert not [path for path in both.output_dir.rglob(".*.mp4") if not path.name.startswith("..")]
