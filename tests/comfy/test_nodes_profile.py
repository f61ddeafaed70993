"""Profiling in ComfyUI as an artist meets it: every graph goes through the real server."""

import io
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from comfy_graphs import (
    BALL,
    CROSS,
    Graph,
    changed,
    failed,
    node,
    opened,
    queued,
    short_graph,
    stopper,
    text_of,
)
from comfy_harness import ComfyServer, RunResult
from headforcing.headforcing_core.files import claimed
from headforcing.headforcing_core.head_profiles.line import roles_line
from headforcing.headforcing_core.head_profiles.profile import classify, load_profile
from headforcing.headforcing_core.head_profiles.shares import HeadShares
from PIL import Image
from safetensors.torch import save_file
from tiny_checkpoints import wan_t2v_weights

DEMO_COUNTS = "10 local, 12 anchor, 26 memory"
PROMPTS = f"{BALL}\n{CROSS}"
STEPS = 7 * 4  # of a prompt: 21 latent frames are 7 blocks


def profile_graph(**profiler: Any) -> Graph:
    """Measure the demo model; node ids name the nodes."""
    given = {
        "preset": "quick",
        "width": 64,
        "height": 64,
        "seed": 0,
        "save_name": "",
        "prompts": PROMPTS,
    } | profiler
    return {
        "demo": node("HeadForcingLoadDemo"),
        "measure": node(
            "HeadForcingProfileHeads",
            model=["demo", 0],
            clip=["demo", 1],
            **{"rule": "quota"} | given,
        ),
        "report": node("PreviewAny", source=["measure", 2]),
        "picture": node("PreviewImage", images=["measure", 1]),
    }


def whole_graph(**profiler: Any) -> Graph:
    """Look at what was found, too, and make a short video with it."""
    found = {"head_profile": ["measure", 0]}
    return (
        profile_graph(**profiler)
        | short_graph(**found)
        | {
            "shipped": node("HeadForcingLoadProfile", profile="toy_world"),
            "inspect": node("HeadForcingInspectProfile", **found),
            "compare": node(
                "HeadForcingInspectProfile", **found, compare_with=["shipped", 0], theme="light"
            ),
            "inspected": node("PreviewAny", source=["inspect", 1]),
            "compared": node("PreviewAny", source=["compare", 1]),
            "inspect_picture": node("PreviewImage", images=["inspect", 0]),
            "compare_picture": node("PreviewImage", images=["compare", 0]),
            "shipped_picture": node("PreviewImage", images=["shipped", 1]),
            "sampled": node("PreviewAny", source=["sampler", 1]),
        }
    )


def auto_graph(**sampler: Any) -> Graph:
    return short_graph(head_profile=["auto", 0], **{"seconds": 6.0} | sampler) | {
        # a busy machine must not take the bundled list instead
        "auto": node("HeadForcingLoadProfile", profile="auto", measure_seconds=900),
        "report": node("PreviewAny", source=["sampler", 1]),
    }


def picture_of(server: ComfyServer, result: RunResult, name: str) -> Image.Image:
    (file,) = result.outputs[name]["images"]
    return Image.open(io.BytesIO(server.view(**file))).convert("L")


def kept_by_the_pack(server: ComfyServer, kind: str) -> list[Path]:
    folder = server.base_dir / "user" / "head_forcing" / kind
    return sorted(folder.iterdir()) if folder.is_dir() else []


@pytest.fixture
def fresh(comfy: ComfyServer) -> ComfyServer:
    """The server with nothing measured or found, and without what these tests save."""
    saved = comfy.model_path("head_profiles", "x").parent.glob("measured_here*")
    for path in (
        *kept_by_the_pack(comfy, "measured"),
        *kept_by_the_pack(comfy, "found_profiles"),
        *saved,
    ):
        path.unlink()
    comfy.free()
    return comfy


# ------------------------------------------------------------------------------------------ measure


@pytest.mark.thorough
def test_measure_look_and_sample_in_one_graph(fresh: ComfyServer):
    result = queued(fresh, whole_graph(save_name="measured_here"))
    assert result.progress["measure"][-1] == (2 * STEPS, 2 * STEPS)
    previews = [image for name, image in result.previews if name == "measure"]
    assert len(previews) == 2 * 7
    assert len({Image.open(io.BytesIO(image)).tobytes() for image in previews}) > 10
    said = result.said["measure"]
    assert (len(said), said[0], said[-1]) == (
        2 * 7,  # once a block
        "prompt 1 of 2 - block 1 of 7",
        "prompt 2 of 2 - block 7 of 7",
    )

    # what was found
    report = text_of(result, "report")
    assert report.startswith(DEMO_COUNTS) and "stable over prompts" in report
    assert "saved as measured_here.json in models/head_profiles" in report
    profile = load_profile(fresh.model_path("head_profiles", "measured_here.json"))
    assert profile.roles == classify(profile.shares) and profile.measured["prompts"] == 2

    # pictures and texts of all nodes
    pictures = {
        name: picture_of(fresh, result, name) for name in result.outputs if "picture" in name
    }
    assert len(pictures) == 4
    for name, picture in pictures.items():
        assert min(picture.size) >= 200 and len(set(picture.resize((64, 64)).tobytes())) > 10, (
            f"{name} is empty"
        )
    dark = pictures["inspect_picture"]
    light = pictures["compare_picture"]
    assert dark.getpixel((2, 2)) < 80 and light.getpixel((2, 2)) > 200
    assert text_of(result, "inspected").startswith(DEMO_COUNTS)
    # of 21 frames here, of 123 frames there
    assert re.search(r"3\d of 48 heads have the same role", text_of(result, "compared"))
    assert f"head roles: {DEMO_COUNTS} (profile 'measured_here')" in text_of(result, "sampled")

    choices = fresh.object_info()["HeadForcingLoadProfile"]["input"]["required"]["profile"][1][
        "options"
    ]
    assert choices.count("measured_here.json") == 1
    cut = {"profile": "measured_here.json", "anchor_percent": 50.0, "local_percent": 0.0}
    report = text_of(queued(fresh, changed(auto_graph(seconds=0.5), "auto", **cut)))
    assert "head roles: 24 anchor, 24 memory" in report  # measured shares can be cut anywhere


@pytest.mark.thorough
def test_cancel_keeps_what_was_measured_and_the_next_run_goes_on(fresh: ComfyServer):
    """Without prompts the pack's own four are measured, in the words of the toy world."""
    graph = profile_graph(save_name="measured_here", seed=3, prompts=" \n")
    result = fresh.queue(graph, on_event=stopper(fresh, "measure", STEPS + 8))
    assert (result.outcome, result.error) == ("interrupted", None)
    assert STEPS + 8 <= result.progress["measure"][-1][0] < 2 * STEPS
    assert not fresh.model_path("head_profiles", "measured_here.json").exists()
    (kept,) = kept_by_the_pack(fresh, "measured")
    assert all(" in the " in prompt for prompt in HeadShares.load(kept).setup.prompts)
    again = fresh.queue(graph, on_event=stopper(fresh, "measure"))
    assert again.progress["measure"][0][1] == 3 * STEPS and again.said["measure"][0].startswith(
        "prompt 1 of 3 "
    )


@pytest.mark.thorough
def test_what_was_measured_once_is_not_measured_again(fresh: ComfyServer):
    unsaved = sorted((fresh.base_dir / "models").rglob("*.json"))
    assert "saved" not in text_of(
        queued(fresh, profile_graph(prompts=BALL, seed=4, save_name="  "))
    )
    assert sorted((fresh.base_dir / "models").rglob("*.json")) == unsaved
    result = queued(fresh, profile_graph(prompts=BALL, seed=4, save_name="measured_here"))
    assert "measure" in result.executed and "measure" not in result.progress
    first = fresh.model_path("head_profiles", "measured_here.json")
    measured = first.read_bytes()
    other = queued(
        fresh, profile_graph(prompts=BALL, seed=4, save_name="measured_here", rule="function")
    )
    assert (
        "saved as measured_here_00002.json" in text_of(other, "report")
        and first.read_bytes() == measured
    )
    assert (
        load_profile(first.with_name("measured_here_00002.json")).provenance["rule"] == "function"
    )
    fresh.free()
    again = queued(fresh, profile_graph(prompts=BALL, seed=4, save_name="measured_here"))
    assert "saved as measured_here.json" in text_of(again, "report")
    assert len(list(first.parent.glob("measured_here*"))) == 2


def test_a_name_that_is_no_file_name_is_refused_before_anything_is_measured(fresh: ComfyServer):
    before = sorted(path for path in fresh.base_dir.rglob("*.json"))
    for name in (
        "../x",
        "a/b",
        "C:\\x",
        "nul.json",
        "a\0b",
        "x" * 300,
        ".hidden",
        "a\n",
        "x.",
        "-rf",
    ):
        result = fresh.queue(profile_graph(save_name=name))
        told = f"{result.error} {result.node_errors}"
        assert (
            result.outcome in ("error", "invalid")
            and "save_name" in told
            and "measure" not in result.progress
        ), name
    assert sorted(path for path in fresh.base_dir.rglob("*.json")) == before
    assert kept_by_the_pack(fresh, "measured") == []


def test_what_cannot_be_measured_is_one_sentence(tiny: ComfyServer):
    size = {"width": 80, "height": 48}
    for channels in (16, 48):
        weights = wan_t2v_weights(channels=channels)
        file = f"hf_profile_{channels}.safetensors"
        save_file(weights, tiny.model_path("diffusion_models", file))
        model = {"wan": node("HeadForcingLoadModel", checkpoint=file)}
        graph = changed(profile_graph(**size) | model, "measure", model=["wan", 0])
        told = ("text embeddings of width",) if channels == 16 else ("multiple of 32",)
        failed(tiny, graph, *told)
    without_text = {f"model.diffusion_model.{name}": each for name, each in weights.items()}
    save_file(without_text, tiny.model_path("checkpoints", "hf_no_text_22.safetensors"))
    loader = node("CheckpointLoaderSimple", ckpt_name="hf_no_text_22.safetensors")
    graph = profile_graph() | {"checkpoint": loader}
    failed(tiny, changed(graph, "measure", clip=["checkpoint", 1]), "no text encoder")


# ------------------------------------------------------------------------------------------ inspect


def test_a_profile_that_is_still_to_be_found_has_nothing_to_show(comfy: ComfyServer):
    graph = {
        "auto": node("HeadForcingLoadProfile", profile="auto"),
        "inspect": node("HeadForcingInspectProfile", head_profile=["auto", 0]),
        "show": node("PreviewImage", images=["inspect", 0]),
    }
    failed(comfy, graph, "head_profile", "auto has no roles", "load a profile")
    shown = queued(comfy, changed(graph, "show", images=["auto", 1]))
    assert picture_of(comfy, shown, "show").size == (64, 64)  # an empty one


# --------------------------------------------------------------------------------------------- auto


def test_auto_measures_the_roles_before_the_first_render_and_the_next_runs_start_with_them(
    fresh: ComfyServer,
):
    result = queued(fresh, auto_graph(seconds=0.75))
    report = text_of(result)
    measured = r"measured .* in \d+ s, on 4 videos of 21 latent frames at \d+x\d+: (.*); kept"
    counts = re.search(measured, report)[1]
    said = [text for text in result.said["sampler"] if text.startswith("measuring")]
    assert said[0] == "measuring the model's attention heads, once: 1 of 28"
    assert re.fullmatch(r"measuring .*, once: 28 of 28, about \d+ s left", said[-1])
    (kept,) = kept_by_the_pack(fresh, "found_profiles")
    assert f"kept for all renders of this model in {kept.name}" in report
    assert load_profile(kept).measured["size"] in report

    again = queued(fresh, auto_graph(seconds=0.75, seed=2))
    assert counts == load_profile(kept).counted
    assert f"head roles: {counts} (profile 'measured on 20" in text_of(again)
    assert "measured which head" not in text_of(again)
    assert not any("measuring" in text for text in again.said["sampler"])


def test_a_workflow_from_a_video_renders_with_its_roles_where_none_were_measured(
    fresh: ComfyServer,
):
    """A graph that was dropped from an MP4 has the roles among its extra data; and Load Head
    Profile reads them from the file.
    """
    video = {"vae": ["demo", 2], "filename_prefix": "video/measured_here"}
    graph = auto_graph(seconds=0.75, seed=6, **video)
    plain = {"nodes": [], "extra": {"another": 1}}
    result = queued(fresh, graph, extra_data={"extra_pnginfo": {"workflow": plain}})
    (kept,) = kept_by_the_pack(fresh, "found_profiles")
    measured = load_profile(kept)
    data = fresh.view(**result.outputs["sampler"]["images"][0])
    workflow = json.loads(opened(data)[-1]["workflow"])
    note = workflow["extra"]["head_forcing_heads"]
    assert note == {
        "roles": roles_line(measured.roles),
        "weights": kept.stem,
        "asked": ["auto", 0.25, 0.2],
    }

    kept.unlink()  # as on another machine
    fresh.free()
    dropped = {"extra_pnginfo": {"workflow": workflow}}
    again = queued(fresh, changed(graph, "sampler", seed=7), extra_data=dropped)
    assert not any("measuring" in text for text in again.said["sampler"])
    told = f"head roles: {measured.counted} (profile 'the workflow of a video')"
    assert told in text_of(again) and kept_by_the_pack(fresh, "found_profiles") == []

    note["roles"] = "lam\u001b[2J"
    refused = fresh.queue(changed(graph, "sampler", seed=8), extra_data=dropped)
    assert refused.outcome == "error"
    assert "the workflow of a video: its head roles must be a letter l, a or m" in refused.error

    fresh.model_path("head_profiles", "measured_here.mp4").write_bytes(data)
    loaded = changed(changed(graph, "sampler", seed=9), "auto", profile="measured_here.mp4")
    report = text_of(queued(fresh, loaded))
    assert f"head roles: {measured.counted} (profile 'measured_here.mp4')" in report
    assert "measured which head" not in report


def test_a_run_that_waits_for_another_process_says_so_and_can_be_stopped(fresh: ComfyServer):
    graph = auto_graph(seconds=0.75, seed=4)
    queued(fresh, graph)
    (kept,) = kept_by_the_pack(fresh, "found_profiles")
    kept.unlink()
    fresh.free()
    graph = changed(graph, "sampler", seed=5)
    waiting = "waiting: another process is measuring the attention heads of this model"
    pressed: list[float] = []

    def stop_what_waits(kind: str, data: dict[str, Any]) -> None:
        if kind == "said" and waiting in data["text"] and not pressed:
            pressed.append(time.monotonic())
            fresh.interrupt()

    with claimed(kept):
        stopped = fresh.queue(graph, timeout=300, on_event=stop_what_waits)
        assert stopped.outcome == "interrupted" and time.monotonic() - pressed[0] < 20
        assert "sampler" not in stopped.progress
    assert "measured which head" in text_of(queued(fresh, graph))
