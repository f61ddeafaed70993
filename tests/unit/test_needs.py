"""What a render takes of memory and disk: said, held against what it really takes, refused where it cannot fit."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from headforcing.headforcing_core.cache.policy import preset
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.methods.registry import method_policy
from headforcing.headforcing_core.model.wan import WanConfig
from headforcing.headforcing_core.render.describe import format_bytes
from headforcing.headforcing_core.render.plan import RenderPlan
from headforcing.headforcing_core.render.resources import Needs, check_disk, check_memory, in_turn, needs_of
from headforcing.headforcing_core.rollout.schedule import schedule
from headforcing.headforcing_core.timeline.timeline import parse_timeline

WEIGHTS = 2_838_000_000  # of the 1.3B model in bf16
DECODE = 6_000_000_000


def plan(config=None, seconds=60.0, width=832, height=480, method="head_forcing", profile=None):
    timeline = parse_timeline("a minute", seconds)
    config = config or WanConfig()
    return RenderPlan.make(
        config,
        method_policy(method),
        schedule("self_forcing"),
        timeline,
        width,
        height,
        profile=profile,
        family="self_forcing",
    )


@pytest.mark.slow
@pytest.mark.parametrize("ffn_dim", [4480, 512])
def test_the_estimate_is_near_what_a_render_really_takes(ffn_dim):
    """By the peak of a process of its own, above what it had when the weights were in place."""
    program = textwrap.dedent(f"""
        import sys, torch
        sys.path.append({str(Path(__file__).parents[1] / "helpers")!r})
        from peak_memory import peak_bytes
        from headforcing.headforcing_core.render.resources import needs_of
        from headforcing.headforcing_core.render.plan import RenderPlan
        from headforcing.headforcing_core.cache.policy import preset
        from headforcing.headforcing_core.head_profiles.profile import HeadProfile
        from headforcing.headforcing_core.rollout.wan_video_model import WanVideoModel
        from headforcing.headforcing_core.rollout.schedule import schedule
        from headforcing.headforcing_core.timeline.timeline import parse_timeline
        from headforcing.headforcing_core.render.video_rollout import VideoRollout
        from headforcing.headforcing_core.model.wan import WanConfig, WanModel
        def render(width, height):
            plan = RenderPlan.make(config, preset("head_forcing"), schedule("self_forcing"),
                parse_timeline("x", 2.0), width, height, profile=profile)
            video = VideoRollout(plan, 0, dtype=torch.float32)
            for _ in video.blocks(model):
                pass
            return needs_of(plan, torch.float32, 0).memory
        torch.set_num_threads(1)
        config = WanConfig(dim=768, ffn_dim={ffn_dim}, num_layers=1, num_heads=6, text_dim=64, text_len=16)
        profile = HeadProfile("six", 1, 6, (("local", "anchor", "memory") * 2,))
        model = WanVideoModel(WanModel(config).requires_grad_(False), [torch.randn(9, 64)], torch.float32)
        render(64, 64)  # what torch itself takes at the first use
        before = peak_bytes()
        expected = render(640, 384)
        print(peak_bytes() - before, expected)
    """)
    # every tensor a mapping of its own (glibc), so that the peak holds no room kept for later
    kept_apart = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=kept_apart)
    measured, expected = map(int, run.stdout.split())
    assert 0.7 < measured / expected < 1.3, (measured, expected)


def test_the_parts_of_a_minute_at_full_size():
    needs = needs_of(plan(), torch.bfloat16, WEIGHTS, decode=DECODE, kept=True, state=True, writes_video=True)
    assert needs.cache == plan().shape.bytes(torch.bfloat16)
    assert needs.prompt == 2 * 30 * 512 * 1536 * 2
    assert needs.run_folder == 81 * 3 * 16 * 60 * 104 * 4
    assert needs.state == needs.cache and 0 < needs.video < 50e6
    assert needs.memory == WEIGHTS + needs.cache + needs.activations + needs.prompt + DECODE
    memory, disk = needs.describe().splitlines()
    for part in ("weights 2.84 GB", f"KV cache {format_bytes(needs.cache)}", "decoding 6.00 GB"):
        assert part in memory
    assert f"finished blocks {format_bytes(needs.run_folder)}" in disk and "video" in disk


def test_memory_is_the_same_for_a_minute_and_an_hour_but_disk_is_not():
    minute, hour = (
        needs_of(plan(seconds=seconds), torch.bfloat16, WEIGHTS, kept=True, writes_video=True) for seconds in (60, 3600)
    )
    assert minute.memory == hour.memory and hour.disk > 50 * minute.disk


def test_nothing_is_counted_that_is_not_done():
    needs = needs_of(plan(), torch.bfloat16, WEIGHTS)
    assert (needs.decode, needs.run_folder, needs.state, needs.video) == (0, 0, 0, 0)
    assert "disk" not in needs.describe() and "decoding" not in needs.describe()


def refused(needs: Needs, room: float, render: RenderPlan, streams_weights: bool = True) -> str:
    with pytest.raises(HeadForcingError) as error:
        check_memory(needs, render, torch.bfloat16, int(room), streams_weights)
    return str(error.value)


def test_too_little_memory_is_refused_with_numbers_and_the_three_cheapest_remedies():
    render = plan()
    needs = needs_of(render, torch.bfloat16, WEIGHTS, decode=DECODE)
    check_memory(needs, render, torch.bfloat16, needs.besides_weights, streams_weights=True)
    text = refused(needs, needs.besides_weights - 1, render)
    assert f"832x480 needs {format_bytes(needs.besides_weights)} besides the weights" in text
    remedies = text.partition("cheapest first: ")[2].split("; ")
    assert len(remedies) == 3
    assert remedies[0] == "decode afterwards, without a vae on the sampler (saves 6.00 GB)"
    assert remedies[1].startswith("episodic_frames 2 (saves ") and remedies[2].startswith("recent_frames 0 (saves ")


def test_a_remedy_really_saves_what_it_says():
    render = plan()
    text = refused(needs_of(render, torch.bfloat16, WEIGHTS), 2e9, render)
    fewer = RenderPlan.make(
        WanConfig(), preset("head_forcing").with_memory(2, 3, 0.95, 3), schedule("self_forcing"),
        parse_timeline("a minute", 60.0), 832, 480, family="self_forcing",
    )  # fmt: skip
    none = RenderPlan.make(
        WanConfig(), preset("head_forcing").with_memory(2, 0, 0.95, 3), schedule("self_forcing"),
        parse_timeline("a minute", 60.0), 832, 480, family="self_forcing",
    )  # fmt: skip
    sizes = [one.cache_bytes(torch.bfloat16) for one in (render, fewer, none)]
    for remedy, before, after in zip(("episodic_frames 2", "recent_frames 0"), sizes, sizes[1:], strict=False):
        assert f"{remedy} (saves {format_bytes(before - after)})" in text
    size = text.rpartition("; ")[2].partition(" ")[0]
    width, height = map(int, size.split("x"))
    smaller = plan(width=width, height=height)
    check_memory(needs_of(smaller, torch.bfloat16, WEIGHTS), smaller, torch.bfloat16, int(2e9), streams_weights=True)


@pytest.mark.parametrize(("method", "room"), [("self_forcing", 5e9), ("longlive", 2e9), ("self_forcing_sink", 4e9)])
def test_other_methods_and_shorter_videos_are_remedies_that_save_what_they_say(method, room):
    render = plan(method=method)
    needs = needs_of(render, torch.bfloat16, WEIGHTS, decode=DECODE if method == "longlive" else 0)
    remedies = refused(needs, room, render).partition("cheapest first: ")[2].split("; ")
    other = next(remedy for remedy in remedies if remedy.startswith("method "))
    better = plan(method=other.split()[1])
    saved = render.cache_bytes(torch.bfloat16) - better.cache_bytes(torch.bfloat16)
    assert f"(saves {format_bytes(saved)})" in other
    assert len(remedies) == (2 if method == "self_forcing_sink" else 3)
    if method == "self_forcing":
        seconds = float(remedies[1].split()[0])
        shorter = plan(method=method, seconds=seconds)
        fitting = needs_of(shorter, torch.bfloat16, WEIGHTS)
        check_memory(fitting, shorter, torch.bfloat16, int(room), streams_weights=True)
        longer = plan(method=method, seconds=seconds + 0.75)
        refused(needs_of(longer, torch.bfloat16, WEIGHTS), room, longer)


def test_weights_count_where_the_host_cannot_stream_them():
    render = plan()
    needs = needs_of(render, torch.bfloat16, WEIGHTS)
    room = needs.besides_weights + WEIGHTS // 2
    check_memory(needs, render, torch.bfloat16, room, streams_weights=True)
    assert "besides" not in refused(needs, room, render, streams_weights=False)


def test_finding_the_roles_costs_memory_and_a_profile_is_the_remedy():
    tiny = WanConfig(dim=36, num_layers=2, num_heads=6)
    render = plan(tiny)
    needs = needs_of(render, torch.bfloat16, 0)
    assert needs.cache > render.shape.bytes(torch.bfloat16)
    assert "load a head profile instead of finding the roles" in refused(needs, needs.memory - 1, render)


def test_a_disk_that_is_too_small_is_refused_but_not_for_the_state(tmp_path, monkeypatch):
    needs = needs_of(plan(), torch.bfloat16, WEIGHTS, kept=True, state=True, writes_video=True)
    free = needs.run_folder + needs.video
    monkeypatch.setattr("shutil.disk_usage", lambda place: SimpleNamespace(free=free))
    check_disk(needs, tmp_path, tmp_path)
    free -= 1
    with pytest.raises(HeadForcingError, match=r"not enough disk: .* has .* free\. Remedies, cheapest first") as error:
        check_disk(needs, tmp_path, tmp_path)
    remedies = str(error.value).partition("cheapest first: ")[2].split("; ")
    assert len(remedies) == 3 and "leave out --runs" in remedies[2]
    assert f"(saves {format_bytes(needs.run_folder)})" in remedies[2]
    check_disk(needs, None, tmp_path)  # nothing is kept, or it lies on another disk


def test_several_renders_in_turn_take_the_disk_of_all_and_the_memory_of_one(tmp_path, monkeypatch):
    sizes = (60.0, 30.0)
    renders = [needs_of(plan(seconds=s), torch.bfloat16, WEIGHTS, kept=True, writes_video=True) for s in sizes]
    both = in_turn(renders)
    assert both.disk == renders[0].disk + renders[1].disk and both.memory == max(needs.memory for needs in renders)
    monkeypatch.setattr("shutil.disk_usage", lambda place: SimpleNamespace(free=both.disk - 1))
    for needs in renders:
        check_disk(needs, tmp_path, tmp_path)
    with pytest.raises(HeadForcingError, match="not enough disk"):
        check_disk(both, tmp_path, tmp_path)


def test_a_video_of_several_rollouts_needs_a_second_decoder_and_cannot_be_decoded_afterwards():
    short, long = (
        RenderPlan.make(
            WanConfig(), method_policy("causvid"), schedule("self_forcing"), parse_timeline("x", s), 832, 480
        )
        for s in (5.0, 60.0)
    )
    takes = [needs_of(render, torch.bfloat16, WEIGHTS, decode=DECODE) for render in (short, long)]
    assert [needs.decode for needs in takes] == [DECODE, 2 * DECODE]
    assert takes[0].cache == takes[1].cache == 360 * 21 * 1560 * 128 * 2 * 2
    assert "decode afterwards" in refused(takes[0], 1e9, short)
    assert "decode afterwards" not in refused(takes[1], 1e9, long)


def test_disk_is_counted_for_all_videos_and_not_for_blocks_that_are_there():
    one, four, resumed = (
        needs_of(plan(), torch.bfloat16, WEIGHTS, kept=True, writes_video=True, videos=videos, finished_blocks=finished)
        for videos, finished in ((1, 0), (4, 0), (4, 81 * 3))
    )
    assert four.disk == 4 * one.disk and four.memory == one.memory
    assert resumed.run_folder == one.run_folder
