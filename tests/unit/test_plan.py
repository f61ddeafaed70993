"""A render is thought through before it starts: lengths, prompts, roles, what a user is told, and
memory and disk.
"""

import itertools
import math
import re
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from counted_memory import CountsMemory, NoLaunch
from headforcing.cli import cards
from headforcing.cli.weight_changes import command_line_savings
from headforcing.headforcing_core.cache.head_cache import CacheShape, HeadCache
from headforcing.headforcing_core.cache.memory import MemoryEvent
from headforcing.headforcing_core.cache.roles import (
    EpisodicPolicy,
    HeadRole,
    RolePolicy,
    arrange_roles,
)
from headforcing.headforcing_core.demo.assets import TOY_CONFIG
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.head_profiles.profile import (
    HeadProfile,
    bundled_profiles,
    load_profile,
)
from headforcing.headforcing_core.head_profiles.rules import with_rule
from headforcing.headforcing_core.methods.head_forcing import PRESETS
from headforcing.headforcing_core.model import wan
from headforcing.headforcing_core.model.fp8 import saved_bytes
from headforcing.headforcing_core.model.wan import WanConfig
from headforcing.headforcing_core.plan.describe import describe, format_bytes
from headforcing.headforcing_core.plan.options import RenderOptions, method_options
from headforcing.headforcing_core.plan.plan import RenderPlan
from headforcing.headforcing_core.plan.remedies import check_decoder, too_large
from headforcing.headforcing_core.plan.resources import (
    COMFYUI,
    Needs,
    check_disk,
    check_growth,
    needs_of,
)
from headforcing.headforcing_core.report.latents import describe_events
from headforcing.headforcing_core.timeline.timeline import parse_timeline
from headforcing.headforcing_core.video.memory import DecoderMemory
from headforcing.kernels import modulate, write
from kernel_choice import using

TWO_PROMPTS = "0:00 a cat wakes up\n0:10 the cat jumps"  # 20 s
TINY = WanConfig(dim=36, num_layers=2, num_heads=6)


def plan(
    text=TWO_PROMPTS,
    config=None,
    method="head_forcing",
    family="self_forcing",
    profile=None,
    start_frames=0,
    **options,
):
    asked = RenderOptions(method_name=method, model_family=family, **options)
    return RenderPlan.of(config or WanConfig(), asked, parse_timeline(text), start_frames, profile)


def prompts_of(made: RenderPlan) -> list[int]:
    """Per block the number of its prompt."""
    texts = [segment.text for segment in made.timeline.segments]
    return [texts.index(row.prompt) for row in made.rows]


@pytest.mark.parametrize("family", ["self_forcing", "causal_forcing_framewise"])
@pytest.mark.parametrize("seconds", [0.01, 0.5625, 0.563, 7.3, 61.0001, 3600])
def test_a_length_rounds_up_to_the_fewest_whole_blocks_that_hold_it(family, seconds):
    made = plan("one prompt", family=family, seconds=seconds)
    f = made.schedule.frames_per_block
    assert made.video_frames == math.ceil(seconds * 16 - 1e-6) <= 4 * (made.frames - 1) + 1
    assert made.blocks == 1 or 4 * (made.frames - f - 1) + 1 < made.video_frames
    assert made.steps == 4 * made.blocks and (made.frames, made.block_shape) == (
        f * made.blocks,
        (f, 16, 60, 104),
    )
    assert (made.shape.rows, made.shape.columns) == (30, 52)


def test_a_shorter_length_cuts_the_timeline_and_a_longer_one_holds_the_last_prompt():
    held = plan(seconds=40)
    whole = plan(seconds=20)
    both = plan(seconds=12)
    assert held.rows[: whole.blocks] == whole.rows and set(prompts_of(held)[whole.blocks :]) == {1}
    assert (
        plan(seconds=0).video_frames == whole.video_frames == 320
        and plan("one prompt").video_frames == 160
    )
    assert prompts_of(plan(seconds=8)) == [0] * 11, "129 pictures for 128"
    assert prompts_of(both) == [0] * 14 + [1] * 3 and both.rows == whole.rows[:17]
    assert plan(family="causal_forcing_framewise_1_step", seconds=1).steps == 4 + 4 * 1, (
        "the first block is longer"
    )
    # picture 165; 10 s is picture 160, block 13 starts at 153
    assert prompts_of(whole).index(1) == 14
    framewise = plan(family="causal_forcing_framewise")
    assert prompts_of(framewise).index(1) == 41 and framewise.frames == 81  # picture 161


@pytest.mark.parametrize(("seconds", "new_blocks"), [(10, 14), (0.75, 1), (0.76, 2), (0, 27)])
def test_start_frames_come_first_and_are_counted_in_the_pictures(seconds, new_blocks):
    made = plan(seconds=seconds, start_frames=12)
    assert made.layout.start_frames == 12
    assert (made.new_blocks, made.blocks) == (new_blocks, 4 + new_blocks)
    assert (
        made.video_frames == 45 + math.ceil((seconds or 20) * 16) and made.steps == 4 * new_blocks
    )
    assert 4 * (made.frames - 1) + 1 >= made.video_frames > 4 * (made.frames - 4) + 1
    # 13 * 12 = 156 pictures
    assert prompts_of(made) == [0] * 4 + [int(block >= 13) for block in range(new_blocks)]


def profile(roles, name="mine") -> HeadProfile:
    return HeadProfile(name, len(roles), len(roles[0]), tuple(map(tuple, roles)))


def test_without_a_profile_head_forcing_measures_its_three_roles_and_other_methods_take_a_list():
    for family in ("self_forcing", "longlive"):
        measured = plan(family=family)
        assert measured.heads.auto is not None
        assert measured.heads.name == "to be measured before the render"
        counts = Counter(itertools.chain(*measured.shape.roles))
        assert counts == {"local": 72, "anchor": 90, "memory": 198}
        assert measured.shape.frame_slots == 3096
    listed = plan(method="forcing_kv", family="longlive")
    assert listed.heads.name == "bundled profile 'longlive'" and listed.heads.auto is None
    two_way = plan(method="forcing_kv", family="self_forcing")
    assert two_way.heads.name == "bundled profile 'forcing_kv_self_forcing'"
    demo = plan(config=TOY_CONFIG)
    assert demo.heads.name == "bundled profile 'toy_world'" and demo.heads.auto is None
    assert plan(config=TINY).heads.auto is not None
    one = plan(config=TINY, method="self_forcing_window_21", seconds=60)
    assert (one.heads.name, one.shape.frame_slots) == ("one cache for every head", 12 * 21)
    with pytest.raises(HeadForcingError, match="'mine' is for 1x2 heads, the model has 30x12"):
        plan(profile=profile([["local", "memory"]]))


def test_the_description_says_length_roles_slots_and_bytes():
    flat = ["anchor"] * 90 + ["local"] * 72 + ["memory"] * 198
    paper = profile([flat[12 * layer : 12 * layer + 12] for layer in range(30)], "paper")
    text = describe(plan(seconds=60, profile=paper), torch.bfloat16)
    for part in (
        "832x480, 960 frames = 60.00 s at 16 fps, 81 blocks of 3 latent frames to make",
        "72 local, 90 anchor, 198 memory (profile 'paper'); rotary positions contiguous",
        "3,096 frame-slots = 2.47 GB",
        "all 243 latent frames in every head would take 87,480 = 69.87 GB",
        "the cat jumps",
        "0:10",
    ):
        assert part in text
    extended = describe(plan("one prompt", seconds=6, start_frames=9), torch.float32)
    assert "8 blocks of 3 latent frames to make after 9 start frames" in extended
    assert extended.endswith(
        "from the end of the 9 start frames, video frames from the start of the video."
    )
    sizes = [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1530, "1.53 kB"),
        (2.5e6, "2.5 MB"),
        (2_472_837_120, "2.47 GB"),
    ]
    assert all(format_bytes(count) == told for count, told in sizes)


def test_memory_events_are_a_line_for_every_frame_remembered_and_one_for_the_rest():
    events = [
        MemoryEvent(1, 0, -1.0, True),
        MemoryEvent(4, 9, 0.9636, False),
        MemoryEvent(7, 18, 0.5, True, merged=[[0, 3], [9]]),
        MemoryEvent(10, 27, 0.25, True, dropped=[6]),
        MemoryEvent(13, 36, 0.981, False),
    ]
    assert describe_events(events).splitlines() == [
        "after block 1: admitted frame 0",
        "after block 7: admitted frame 18 (similarity 0.500), merged the summary of 2 frames and "
        "frame 9",
        "after block 10: admitted frame 27 (similarity 0.250), forgot frame 6",
        "2 of 5 candidates were not novel enough (similarity 0.964 to 0.981)",
    ]
    assert describe_events([]) == ""


ROLES = [["local", "anchor", "memory"] * 2, ["memory"] * 6]


def test_every_preset_makes_a_cache_as_large_as_it_announces():
    for name, total_frames in itertools.product(PRESETS, (3, 240)):
        shape = CacheShape.for_model(TINY, ROLES, PRESETS[name], 4, 6, 3, total_frames)
        cache = HeadCache(shape, torch.float16)
        assert 0 < shape.frame_slots <= 12 * total_frames, name
        held = 0
        for group in cache.groups:
            held += sum(tensor.nbytes for tensor in (*group.k, *group.v))
        assert cache.bytes == shape.bytes(torch.float16) == held, name


def test_history_is_sinks_from_the_origin_then_recent_frames_that_are_not_too_old_each_once():
    choices = ((0, 1, 7), (0, 4, None), (0, 1, 5, 12, 29), (0, 9, 12), (0, 3, 10, 12))
    for sinks, recent, seen, origin, oldest in itertools.product(*choices):
        policy = RolePolicy(sinks, recent)
        late = max(oldest, 0 if recent is None else seen - recent)
        kept = policy.history(seen, origin, oldest)
        assert kept == [n for n in range(seen) if n >= late or origin <= n < origin + sinks]
        for f in (1, 3):
            assert len(kept) + f <= policy.capacity(f, 32) <= 32


def test_a_report_says_how_many_heads_have_which_role_and_what_named_them():
    listed = "134 anchor, 226 memory heads, named by: a published list"
    published = load_profile(bundled_profiles()["forcing_kv_self_forcing"])
    assert listed in describe(plan(profile=published), torch.bfloat16)
    small = WanConfig(num_layers=8, num_heads=6, dim=96)
    for rule in ("quota", "function"):
        profile = with_rule(load_profile(bundled_profiles()["toy_world"]), rule)
        counts = ", ".join(f"{count} {role}" for role, count in profile.counts().items())
        assert f"{counts} heads, named by: {rule}\n" in describe(
            plan(config=small, profile=profile), torch.float32
        )


def test_candidates_are_the_first_frames_of_every_third_block_once_it_left_fast_memory():
    frames = [EpisodicPolicy().candidate_frame(block, 3, 3) for block in range(8)]
    assert frames == [None, 0, None, None, 9, None, None, 18]
    every = EpisodicPolicy(update_interval=1)
    for fast, expected in {
        0: [0, 3, 6, 9],
        1: [0, 3, 6, 9],
        2: [0, 3, 6, 9],
        4: [None, 0, 3, 6],
        5: [None, 0, 3, 6],
        6: [None, None, 0, 3],
    }.items():
        assert [every.candidate_frame(block, 3, fast) for block in range(4)] == expected, fast
    every_second = EpisodicPolicy(update_interval=2)
    assert [every_second.candidate_frame(block, 1, 2) for block in range(6)] == [
        None,
        None,
        0,
        None,
        2,
        None,
    ]


def test_roles_are_arranged_by_name_and_seed_and_equal_their_names():
    assert arrange_roles(ROLES, "profile") == ROLES
    assert arrange_roles(ROLES, "local_to_memory") == [
        ["memory", "anchor", "memory"] * 2,
        ["memory"] * 6,
    ]
    assert arrange_roles(ROLES, "anchor_to_memory") == [
        ["local", "memory", "memory"] * 2,
        ["memory"] * 6,
    ]
    made = plan(config=TINY, profile=profile(ROLES), roles="shuffled", shuffle=1)
    assert made.heads.name == "profile 'mine', roles shuffled (1)"
    shuffled = [arrange_roles(ROLES, "shuffled", seed) for seed in (1, 1, 2)]
    assert shuffled[0] == shuffled[1] != shuffled[2] and ROLES not in shuffled
    assert all(
        Counter(sum(roles, [])) == Counter(sum(ROLES, [])) and len(roles[0]) == 6
        for roles in shuffled
    )
    assert {"memory": 1}[HeadRole.MEMORY] == {HeadRole.MEMORY: 1}["memory"] == 1


COMMAND_LINE = command_line_savings()
WEIGHTS = 2_838_000_000  # of the 1.3B model in bf16
DECODER = DecoderMemory(weights=150_000_000, held=2_000_000_000, peak=6_000_000_000)


def minute(config=None, seconds=60.0, width=832, height=480, method="head_forcing", **memory):
    asked = method_options(method, memory, ())
    options = RenderOptions(method_name=method, width=width, height=height, method_options=asked)
    return RenderPlan.of(config or WanConfig(), options, parse_timeline("a minute", seconds))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "dtype", "kernels"),
    [((832, 480), torch.bfloat16, "triton"), ((480, 832), torch.float32, "reference")],
)
def test_activations_are_those_of_a_pass_at_real_size(size, dtype, kernels, monkeypatch):
    """The released model's widths on tensors without data, counted operation by operation; two
    layers say it all.
    """
    monkeypatch.setattr(write, "_write_kernel", NoLaunch())
    monkeypatch.setattr(modulate, "_norm_kernel", NoLaunch())
    attention = SimpleNamespace(scaled_dot_product_attention=lambda q, k, v: torch.empty_like(q))
    monkeypatch.setattr(wan, "F", attention)  # a fused kernel's memory: its output
    render = minute(width=size[0], height=size[1], seconds=5.0)
    with torch.device("meta"):
        model = wan.WanModel(WanConfig(num_layers=2)).to(dtype).requires_grad_(False)
        keys = torch.empty(1, 12, 512, 128, dtype=dtype)
    model.patch_embedding.float()
    cache = render.make_cache(dtype, "meta", lambda q, k, v: torch.empty_like(q))
    prompt = wan.PromptKV([(keys, keys)] * 2, 20, keys[0, 0])
    latents = torch.empty(render.block_shape, dtype=dtype, device="meta")
    known = (*model.state_dict().values(), *cache.flat, keys, latents)
    with torch.no_grad(), using(kernels), CountsMemory(known) as memory:
        cache.begin_block()
        for _ in range(2):
            wan.forward_block(model, latents, torch.tensor([1000.0] * 3), prompt, cache)
    expected = needs_of(render, dtype, 0).activations
    assert 0.95 * memory.peak < expected < 1.02 * memory.peak, (memory.peak, expected)


def test_the_parts_of_a_minute_at_full_size():
    """Sampling and decoding take turns, so the larger counts; nothing is counted that is not
    done.
    """
    render = minute()

    def of(**options):
        return needs_of(render, torch.bfloat16, WEIGHTS, **options)

    needs = of(decoder=DECODER, kept=True, state=True, writes_video=True)
    less = of()
    assert needs.cache == needs.state == render.shape.bytes(torch.bfloat16)
    assert needs.prompt == 2 * 30 * 512 * 1536 * 2
    assert (
        needs.run_folder == 81 * 3 * 16 * 60 * 104 * 4 and needs.video == 960 * 832 * 480 * 0.5 // 8
    )
    assert needs.memory == WEIGHTS + needs.cache + needs.prompt + DECODER.weights + DECODER.peak
    assert of(more_for_a_token=10).activations == less.activations + 10 * 3 * 1560
    on_gpu = needs.describe(torch.device("cuda", 0)).splitlines()
    assert on_gpu[1].startswith(f"reserved up to {format_bytes(round(1.5 * needs.memory))}")
    memory, disk = needs.describe(torch.device("cpu")).splitlines()
    assert "weights 2.84 GB" in memory and "VAE features 2.00 GB, while decoding 6.00 GB" in memory
    assert f"finished blocks {format_bytes(needs.run_folder)}" in disk and "video" in disk
    assert (less.decode, less.run_folder, less.state, less.video) == (0, 0, 0, 0)
    assert not any(word in less.describe() for word in ("disk", "decoding"))
    parked = of(decoder=DecoderMemory(DECODER.weights, 0, DECODER.peak))
    assert (
        needs.memory
        == parked.memory
        == less.memory + DECODER.weights + DECODER.peak - less.activations
    )
    long_pass = replace(needs, activations=30 * needs.activations)
    assert (
        long_pass.working
        == long_pass.cache + long_pass.prompt + long_pass.activations + DECODER.held
    )
    encoder = of(text_encoder=20_000_000_000)
    assert (
        encoder.memory == 20_000_000_000 > encoder.rendering
        and "the text encoder 20.00 GB" in encoder.describe()
    )


def test_length_and_number_of_videos_cost_disk_and_no_memory():
    def of(seconds=60.0, **options):
        return needs_of(
            minute(seconds=seconds),
            torch.bfloat16,
            WEIGHTS,
            kept=True,
            writes_video=True,
            **options,
        )

    short = of()
    hour = of(3600.0)
    four = of(videos=4)
    resumed = of(videos=4, finished_blocks=81 * 3)
    assert short.memory == hour.memory == four.memory and hour.disk > 50 * short.disk
    assert four.disk == 4 * short.disk and resumed.run_folder == short.run_folder
    assert of(scale=2).video == 4 * short.video


def refused(needs: Needs, room: float, render: RenderPlan, host=COMFYUI) -> str:
    assert needs.wanted(host) > int(room)
    return str(too_large(needs, render, torch.bfloat16, int(room), host))


def offered(*arguments) -> list[str]:
    """The changes that the error names."""
    return refused(*arguments).partition("cheapest first: ")[2].split("; ")


def test_too_little_memory_is_refused_with_numbers_and_the_three_cheapest_remedies():
    render = minute()
    needs = needs_of(render, torch.bfloat16, WEIGHTS, decoder=DECODER)
    besides = needs.rendering - WEIGHTS
    assert needs.wanted(COMFYUI) == besides and needs.wanted(COMMAND_LINE) == needs.rendering
    assert f"832x480 needs {format_bytes(besides)} besides the weights" in refused(
        needs, besides - 1, render
    )
    assert "besides" not in refused(needs, besides, render, COMMAND_LINE), (
        "which streams no weights"
    )
    check_decoder(DECODER, "832x480", DECODER.weights + DECODER.peak)
    with pytest.raises(
        HeadForcingError, match=r"decoding 832x480 needs 6.15 GB, the device of the VAE has 6.00 GB"
    ):
        check_decoder(DECODER, "832x480", 6_000_000_000)
    check_growth(1, None), check_growth(1, 1)
    with pytest.raises(HeadForcingError, match="needs 1 bytes more, 0 bytes is free"):
        check_growth(1, -1)
    afterwards, fewer, smaller = offered(needs, besides - 1, render)
    without = needs_of(render, torch.bfloat16, WEIGHTS).wanted(COMFYUI)
    assert (
        afterwards == f"decode afterwards, without a vae on the sampler ({format_bytes(without)})"
    )
    assert fewer.startswith("episodic_frames 2 (") and smaller.startswith("816x464 (")


def needs_with(text: str, method: str) -> Needs:
    """The needs of a minute with the changes of a remedy, from a plan made with them."""
    decoder = DecoderMemory() if "decode afterwards" in text else DECODER
    if "--park-features" in text:
        decoder = replace(decoder, held=0)
    size = re.search(r"(\d+)x(\d+)", text)
    other = re.search(r"method (\w+)", text)
    width, height = map(int, size.groups()) if size else (832, 480)
    memory = {
        name: int(frames)
        for name, frames in re.findall(r"(episodic_frames|recent_frames) (\d)", text)
    }
    area = width * height / (832 * 480)
    scaled = replace(decoder, held=int(area * decoder.held), peak=int(area * decoder.peak))
    made = minute(width=width, height=height, method=other[1] if other else method, **memory)
    saved = saved_bytes(made.config, torch.bfloat16) if "--fp8-linears" in text else 0
    return needs_of(made, torch.bfloat16, WEIGHTS - saved, decoder=scaled)


@pytest.mark.parametrize(
    ("method", "host", "room"),
    [
        *(("head_forcing", COMFYUI, room) for room in (6e9, 2.5e9)),
        *(("head_forcing", COMMAND_LINE, room) for room in (9e9, 6e9, 4e9, 2.5e9)),
        *((method, COMFYUI, 5e9) for method in ("self_forcing", "longlive", "self_forcing_sink")),
        ("forcing_kv", COMFYUI, 5e9),
    ],
)
def test_every_remedy_fits_and_takes_what_it_says(method, host, room):
    """Held against plans that are made anew with the changes."""
    render = minute(method=method)
    needs = needs_of(render, torch.bfloat16, WEIGHTS, decoder=DECODER)
    if host is COMMAND_LINE and room < WEIGHTS:
        assert "No setting of this video fits" in refused(needs, room, render, host)
        return
    found = offered(needs, room, render, host)
    assert 1 <= len(found) <= 3
    for text in found:
        takes = needs_with(text, method).wanted(host)
        assert takes <= room and text.endswith(f"({format_bytes(takes)})"), text


def test_a_disk_that_is_too_small_is_refused_but_not_for_the_state(tmp_path, monkeypatch):
    needs = needs_of(minute(), torch.bfloat16, WEIGHTS, kept=True, state=True, writes_video=True)
    free = needs.run_folder + needs.video
    monkeypatch.setattr("shutil.disk_usage", lambda place: SimpleNamespace(free=free))
    check_disk([needs], tmp_path, tmp_path)
    free -= 1
    check_disk([needs], None, tmp_path)  # nothing is kept, or it lies on another disk
    for renders in ([needs], [needs, needs]):
        wanted = format_bytes(len(renders) * (needs.run_folder + needs.video))
        with pytest.raises(
            HeadForcingError,
            match=f"not enough disk: .* has .* free for {wanted}; .* no finished blocks",
        ):
            check_disk(renders, tmp_path, tmp_path)


def test_a_video_of_several_rollouts_needs_a_second_decoder_and_cannot_be_decoded_afterwards():
    one = minute(method="causvid", seconds=5.0)
    several = minute(method="causvid", seconds=60.0)
    needs_of_one = needs_of(one, torch.bfloat16, WEIGHTS, decoder=DECODER)
    needs_of_several = needs_of(several, torch.bfloat16, WEIGHTS, decoder=DECODER)
    assert needs_of_one.decode == DECODER.peak
    assert needs_of_several.decode == DECODER.peak + DECODER.held
    assert needs_of_one.cache == needs_of_several.cache == 360 * 21 * 1560 * 128 * 2 * 2
    assert "decode afterwards" in refused(needs_of_one, needs_of_one.working, one)
    assert "decode afterwards" not in refused(needs_of_several, needs_of_several.working, several)


def test_a_model_that_is_too_large_for_a_card_is_offered_8_bit_linears_before_small_sizes():
    """LongLive 2.0 in 1280x704 on 12 GiB, where the weights alone take 10 GB in bf16."""
    fit = cards.card(12, 1280, 704, "longlive2").command_line
    assert fit.how.endswith("and --fp8-linears")
    assert fit.resident == cards.WEIGHTS["longlive2"] - saved_bytes(
        cards.MODELS["longlive2"], torch.bfloat16
    )
