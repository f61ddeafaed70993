"""Profiling in ComfyUI as an artist meets it: every graph goes through the real server of both tested versions."""

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from comfy_graphs import BALL, CROSS, Graph, changed, failed, node, queued, status_texts, stopper, text_of
from comfy_harness import ComfyServer, RunResult
from headforcing.headforcing_core.head_profiles.profile import classify, load_profile
from headforcing.headforcing_core.head_profiles.shares import HeadShares
from PIL import Image

pytestmark = pytest.mark.comfy

DEMO_COUNTS = "10 local, 12 anchor, 26 memory"
PROMPTS = f"{BALL}\n{CROSS}\na pink star spinning in the green room"
SAMPLED = {"model": ["demo", 0], "positive": ["text", 0], "width": 64, "height": 64}
STEPS = 14 * 4  # of a prompt: 10 s are 14 blocks


def profile_graph(**profiler: Any) -> Graph:
    """Measure the demo model, look at what was found, and make a short video with it; node ids name the nodes."""
    given = {"preset": "quick", "width": 64, "height": 64, "seed": 0, "save_name": "", "prompts": PROMPTS} | profiler
    return {
        "demo": node("HeadForcingLoadDemo"),
        "measure": node("HeadForcingProfileHeads", model=["demo", 0], clip=["demo", 1], **given),
        "report": node("PreviewAny", source=["measure", 2]),
        "picture": node("PreviewImage", images=["measure", 1]),
    }


def whole_graph(**profiler: Any) -> Graph:
    return profile_graph(**profiler) | {
        "shipped": node("HeadForcingLoadProfile", profile="toy_world"),
        "inspect": node("HeadForcingInspectProfile", head_profile=["measure", 0]),
        "compare": node(
            "HeadForcingInspectProfile", head_profile=["measure", 0], compare_with=["shipped", 0], theme="light"
        ),
        "inspected": node("PreviewAny", source=["inspect", 1]),
        "compared": node("PreviewAny", source=["compare", 1]),
        "inspect_picture": node("PreviewImage", images=["inspect", 0]),
        "compare_picture": node("PreviewImage", images=["compare", 0]),
        "shipped_picture": node("PreviewImage", images=["shipped", 1]),
        "text": node("CLIPTextEncode", clip=["demo", 1], text=BALL),
        "sampler": node("HeadForcingSampler", **SAMPLED, head_profile=["measure", 0], seconds=1.0, seed=0),
        "sampled": node("PreviewAny", source=["sampler", 1]),
    }


def auto_graph(seed: int = 0, **sampler: Any) -> Graph:
    given = SAMPLED | {"head_profile": ["auto", 0], "seconds": 6.0, "seed": seed} | sampler
    return {
        "demo": node("HeadForcingLoadDemo"),
        "text": node("CLIPTextEncode", clip=["demo", 1], text=BALL),
        "auto": node("HeadForcingLoadProfile", profile="auto"),
        "sampler": node("HeadForcingSampler", **given),
        "report": node("PreviewAny", source=["sampler", 1]),
    }


def picture_of(server: ComfyServer, result: RunResult, name: str) -> Image.Image:
    (file,) = result.outputs[name]["images"]
    picture = Image.open(io.BytesIO(server.view(**file)))
    picture.load()
    return picture


def kept_by_the_pack(server: ComfyServer, kind: str) -> list[Path]:
    folder = server.base_dir / "user" / "head_forcing" / kind
    return sorted(folder.iterdir()) if folder.is_dir() else []


def forget(server: ComfyServer, kind: str) -> None:
    for path in kept_by_the_pack(server, kind):
        path.unlink()


@pytest.fixture
def fresh(comfy_server: ComfyServer) -> Iterator[ComfyServer]:
    """The server with nothing measured or found, and without what these tests save."""
    for kind in ("measured", "found_profiles"):
        forget(comfy_server, kind)
    comfy_server.free()
    yield comfy_server
    for path in (comfy_server.base_dir / "models" / "head_profiles").glob("measured_here*"):
        path.unlink()
    forget(comfy_server, "found_profiles")


# ----------------------------------------------------------------------------------------------------------- measure


def test_measure_look_and_sample_in_one_graph(fresh: ComfyServer):
    with status_texts(fresh) as texts:
        result = queued(fresh, whole_graph(save_name="measured_here"))

    # progress, previews and status
    progress = result.progress["measure"]
    assert progress[-1] == (3 * STEPS, 3 * STEPS) and [value for value, _ in progress] == sorted(v for v, _ in progress)
    previews = [image for name, image in result.previews if name == "measure"]
    assert len(previews) == 3 * 14
    assert len({Image.open(io.BytesIO(image)).tobytes() for image in previews}) > 10
    said = [text for name, text in texts if name == "measure"]
    assert len(said) == 3 * 14
    assert said[0] == "prompt 1 of 3 - block 1 of 14" and said[-1] == "prompt 3 of 3 - block 14 of 14"

    # what was found
    report = text_of(result, "report")
    assert report.startswith(DEMO_COUNTS) and "stable over prompts" in report
    assert "saved as measured_here.json in models/head_profiles" in report
    profile = load_profile(fresh.model_path("head_profiles", "measured_here.json"))
    assert profile.roles == classify(profile.shares) and profile.measured["prompts"] == 3
    (measured,) = kept_by_the_pack(fresh, "measured")
    shares = HeadShares.load(measured)
    assert shares.missing_prompts() == [] and shares.setup.prompts == tuple(PROMPTS.splitlines())
    assert (shares.setup.width, shares.setup.height, shares.setup.blocks) == (64, 64, 14)
    torch.testing.assert_close(shares.mean(), torch.tensor(profile.shares, dtype=torch.float64), rtol=0, atol=1e-7)

    # pictures and texts of all nodes
    for name in ("picture", "inspect_picture", "compare_picture", "shipped_picture"):
        picture = picture_of(fresh, result, name)
        width, height = picture.size
        assert 300 <= width <= 4000 and 200 <= height <= 4000, (name, picture.size)
        assert len(set(picture.convert("L").resize((64, 64)).tobytes())) > 10, f"{name} is empty"
    dark, light = (picture_of(fresh, result, f"{name}_picture").convert("L") for name in ("inspect", "compare"))
    assert dark.getpixel((2, 2)) < 80 and light.getpixel((2, 2)) > 200
    assert text_of(result, "inspected").startswith(DEMO_COUNTS)
    same = re.search(r"(\d+) of 48 heads have the same role", text_of(result, "compared"))
    assert same is not None and int(same[1]) >= 32
    assert f"head roles: {DEMO_COUNTS} (profile 'measured_here')" in text_of(result, "sampled")

    again = queued(fresh, whole_graph(save_name="measured_here"))
    assert again.executed == []
    choices = fresh.object_info()["HeadForcingLoadProfile"]["input"]["required"]["profile"][1]["options"]
    assert choices.count("measured_here.json") == 1
    cut = {"profile": "measured_here.json", "anchor_percent": 50.0, "local_percent": 0.0}
    report = text_of(queued(fresh, changed(auto_graph(seconds=0.5), "auto", **cut)), "report")
    assert "head roles: 24 anchor, 24 memory" in report  # measured shares can be cut anywhere


def test_cancel_keeps_what_was_measured_and_the_next_run_goes_on(fresh: ComfyServer):
    at_hand: list[list[int]] = []

    def stop(kind: str, data: dict[str, Any]) -> None:
        if kind == "progress" and data.get("node") == "measure" and data["value"] >= STEPS + 20 and not at_hand:
            at_hand.extend(HeadShares.load(path).missing_prompts() for path in kept_by_the_pack(fresh, "measured"))
            fresh.interrupt()

    graph = profile_graph(save_name="measured_here", seed=3, prompts=f"{BALL}\n{CROSS}")
    result = fresh.queue(graph, on_event=stop)
    assert (result.outcome, result.error) == ("interrupted", None)
    assert at_hand == [[1]]  # a finished prompt is on disk at once: it outlives a crash, too
    assert STEPS + 20 <= result.progress["measure"][-1][0] < 2 * STEPS
    assert not fresh.model_path("head_profiles", "measured_here.json").exists()
    (kept,) = kept_by_the_pack(fresh, "measured")
    part = HeadShares.load(kept)
    assert part.missing_prompts() == [1] and bool(part.counts[1].any())

    with status_texts(fresh) as texts:
        again = queued(fresh, graph)
    assert again.progress["measure"][-1] == (STEPS, STEPS)
    said = [text for name, text in texts if name == "measure"]
    assert said[0].startswith("prompt 1 of 1 ") and len(said) == 14
    after = HeadShares.load(kept)
    assert after.missing_prompts() == [] and bool((after.counts == 1).all())


def test_what_was_measured_once_is_not_measured_again(fresh: ComfyServer):
    unsaved = sorted((fresh.base_dir / "models").rglob("*.json"))
    assert "saved" not in text_of(queued(fresh, profile_graph(prompts=BALL, seed=4, save_name="  ")))
    assert sorted((fresh.base_dir / "models").rglob("*.json")) == unsaved
    result = queued(fresh, profile_graph(prompts=BALL, seed=4, save_name="measured_here"))
    assert "measure" in result.executed and "measure" not in result.progress
    first = fresh.model_path("head_profiles", "measured_here.json")
    measured = first.read_bytes()
    other = queued(fresh, profile_graph(prompts=BALL, seed=5, save_name="measured_here", rule="function"))
    assert other.progress["measure"][-1] == (STEPS, STEPS)
    assert "saved as measured_here_00002.json" in text_of(other, "report") and first.read_bytes() == measured
    assert load_profile(first.with_name("measured_here_00002.json")).provenance["rule"] == "function"
    fresh.free()
    again = queued(fresh, profile_graph(prompts=BALL, seed=4, save_name="measured_here"))
    assert "saved as measured_here.json" in text_of(again, "report")
    assert [path.name for path in sorted(first.parent.glob("measured_here*"))] == [
        "measured_here.json",
        "measured_here_00002.json",
    ]


def test_without_prompts_the_packs_own_are_measured_in_the_toy_worlds_words(fresh: ComfyServer):
    result = fresh.queue(profile_graph(prompts=" \n"), on_event=stopper(fresh, "measure"))
    assert result.outcome == "interrupted" and result.progress["measure"][0][1] == 4 * STEPS
    (kept,) = kept_by_the_pack(fresh, "measured")
    assert all(" in the " in prompt for prompt in HeadShares.load(kept).setup.prompts)


HOSTILE = [
    "../x", "a/b", "C:\\x", "NUL", "nul.json", "COM1", "a\0b", "x" * 300, ".hidden", "a\n", "~", "x.", "語", "-rf",
]  # fmt: skip


def test_a_name_that_is_no_file_name_is_refused_before_anything_is_measured(fresh: ComfyServer):
    before = sorted(path for path in fresh.base_dir.rglob("*.json"))
    for name in HOSTILE:
        result = fresh.queue(profile_graph(save_name=name))
        assert result.outcome in ("error", "invalid"), name
        if result.outcome == "error":
            assert "save_name: use up to 80 letters" in (result.error or ""), name
            assert "\n" not in (result.error or "")
        assert "measure" not in result.progress
    assert sorted(path for path in fresh.base_dir.rglob("*.json")) == before
    assert kept_by_the_pack(fresh, "measured") == []


# ----------------------------------------------------------------------------------------------------------- inspect


def test_a_profile_that_is_still_to_be_found_has_nothing_to_show(comfy_server: ComfyServer):
    graph = {
        "auto": node("HeadForcingLoadProfile", profile="auto"),
        "toy": node("HeadForcingLoadProfile", profile="toy_world"),
        "inspect": node("HeadForcingInspectProfile", head_profile=["auto", 0]),
        "show": node("PreviewImage", images=["inspect", 0]),
    }
    failed(comfy_server, graph, "head_profile", "auto has no roles", "load a profile")
    both = changed(graph, "inspect", head_profile=["toy", 0], compare_with=["auto", 0])
    failed(comfy_server, both, "head_profile", "auto has no roles")
    only_load = {name: graph[name] for name in ("auto",)} | {"show": node("PreviewImage", images=["auto", 1])}
    assert picture_of(comfy_server, queued(comfy_server, only_load), "show").size == (64, 64)  # an empty one


# -------------------------------------------------------------------------------------------------------------- auto


def test_auto_finds_the_roles_and_the_next_run_starts_with_them(fresh: ComfyServer):
    first = text_of(queued(fresh, auto_graph(seed=1, novelty_threshold=1.0, memory_every_blocks=1)))
    assert "after block 1: admitted frame 0" in first and len(re.findall("after block", first)) >= 4
    assert "to be found in the first seconds" in first and "while the roles are being found, up to" in first
    assert f"found {DEMO_COUNTS} heads; kept for the next run" in first
    (kept,) = kept_by_the_pack(fresh, "found_profiles")
    found = load_profile(kept)
    assert kept.name in first and found.roles == classify(found.shares)
    assert found.measured["fingerprint"] == kept.stem

    second = text_of(queued(fresh, auto_graph(seed=2)), "report")
    assert DEMO_COUNTS in second and "to be found" not in second and "kept for the next run" not in second
    assert kept_by_the_pack(fresh, "found_profiles") == [kept] and load_profile(kept) == found
    cut = text_of(queued(fresh, changed(auto_graph(seed=2), "auto", anchor_percent=50.0, local_percent=0.0)), "report")
    assert "head roles: 24 anchor, 24 memory" in cut


def test_a_video_too_short_to_find_roles_is_made_all_the_same(fresh: ComfyServer):
    report = text_of(queued(fresh, auto_graph(seconds=2.0)), "report")
    assert "32 frames" in report and "kept for the next run" not in report
    assert kept_by_the_pack(fresh, "found_profiles") == []
