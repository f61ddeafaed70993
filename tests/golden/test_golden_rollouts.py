"""Rolling Forcing and CausVid, which need an order of passes of their own, give the latents their authors' code gives.

The recordings lie in ../shared/golden/peers; without that folder only the two short ones in tests/golden/peers are
replayed. Weights are random, sizes tiny, float32 on CPU; tolerances are in standard deviations of what is recorded.
"""

import itertools
import json
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from headforcing.headforcing_core.cache.head_cache import CacheShape, HeadCache
from headforcing.headforcing_core.cache.method import Overlap, RolloutInputs, VideoFacts
from headforcing.headforcing_core.cache.reference import ReferenceCache
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.methods import causvid
from headforcing.headforcing_core.methods.rolling_forcing import (
    SCHEDULE,
    RollingCache,
    RollingForcing,
    attended_blocks,
)
from headforcing.headforcing_core.model.wan import WanConfig, WanModel
from headforcing.headforcing_core.recorded.replay import Case, replay
from headforcing.headforcing_core.rollout.loop import WanVideoModel
from headforcing.headforcing_core.rollout.noise import RecordedNoise, SeededNoise
from headforcing.headforcing_core.rollout.rows import Script
from headforcing.headforcing_core.rollout.schedule import Schedule
from headforcing.headforcing_core.timeline.clock import video_frames_of
from headforcing.headforcing_core.weights.checkpoint import load_state_dict
from safetensors.torch import load_file
from scripts import script_of

TOLERANCE, FRAMES_PER_BLOCK = 1e-4, 3
ROLLING_RUNS = ["steps5_45", "steps5_15", "steps4_36"]
CAUSVID_RUNS = ["single_3step", "single_warp4", "long_3step_overlap3", "long_warp4_overlap6"]


@dataclass
class Recording:
    config: dict
    tensors: dict[str, torch.Tensor]
    backbone: WanModel

    def run(self, name: str) -> dict:
        return self.config["runs"][name]

    @property
    def size(self) -> tuple[int, int]:
        return self.config["latent_height"], self.config["latent_width"]

    def shape(self, frames: int) -> CacheShape:
        config = self.backbone.config
        heads = [["memory"] * config.num_heads] * config.num_layers
        return CacheShape.for_model(config, heads, causvid.POLICY, *self.size, FRAMES_PER_BLOCK, frames)

    def schedule(self, name: str) -> Schedule:
        steps = [step for step in self.run(name)["steps"] if step]
        return Schedule.warped(steps, self.config["timestep_shift"], FRAMES_PER_BLOCK)


def recording(shared_dir: Path | None, method: str) -> Recording:
    folder = None if shared_dir is None else shared_dir / "golden" / "peers" / method
    if folder is None or not folder.is_dir():
        pytest.skip(f"the recordings of {method} (../shared/golden/peers) are not here")
    config = json.loads((folder / "config.json").read_text())
    dims = {name: config[name] for name in WanConfig.__dataclass_fields__ if name in config}
    model_config = WanConfig(**{**dims, "patch_size": tuple(dims["patch_size"])})
    weights, _ = load_state_dict(folder / config["weights"], num_heads=model_config.num_heads)
    backbone = WanModel.from_state_dict(model_config, weights, torch.float32)
    return Recording(config, load_file(folder / "golden.safetensors"), backbone)


@pytest.fixture(scope="module")
def rolling(shared_dir):
    return recording(shared_dir, "rolling_forcing")


@pytest.fixture(scope="module")
def overlapped(shared_dir):
    return recording(shared_dir, "causvid")


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference in standard deviations."""
    assert found.shape == expected.shape
    return float((found - expected).abs().max() / expected.std())


class Rolling:
    """A rolling rollout of a recorded run."""

    def __init__(self, case: Recording, name: str):
        frames = case.run(name)["frames"]
        self.blocks = frames // FRAMES_PER_BLOCK
        self.cache = RollingCache(case.shape(frames), torch.float32)
        self.schedule = case.schedule(name)
        self.noise = RecordedNoise(case.tensors["noise"][0], case.tensors["renoise"])
        self.model = WanVideoModel(case.backbone, torch.float32)
        self.embeds = [case.tensors["prompt_embeds"][0]]

    def __call__(self, **options):
        script = script_of([0] * self.blocks, self.schedule, self.embeds)
        return RollingForcing().rollout(self.model, self.cache, RolloutInputs(script, self.noise, **options))


@pytest.mark.parametrize("name", ROLLING_RUNS, ids=[f"rolling_forcing-{name}" for name in ROLLING_RUNS])
def test_a_rolling_window_gives_the_recorded_latents_and_leaves_the_recorded_cache(rolling, name):
    video = Rolling(rolling, name)
    blocks = list(video())
    assert [block.index for block in blocks] == list(range(video.blocks))
    worst = error(torch.cat([block.latents for block in blocks]), rolling.tensors[f"latents/{name}"][0])
    assert worst < TOLERANCE, f"latents differ by {worst:.1e} of their spread"

    cache = video.cache
    frames = [block * FRAMES_PER_BLOCK + i for block in cache.past[-1] for i in range(FRAMES_PER_BLOCK)]
    assert frames == [slot[0] for slot in rolling.config["cache_states_last_layer"][name][-1]["slots"]]
    keys, values = torch.cat([*cache.past[-1].values()], dim=2)
    recorded = [rolling.tensors[f"cache_{kind}_last_layer/{name}"][0] for kind in "kv"]
    # [tokens, heads, d] -> [heads, frames, s, d]; the anchor's keys are recorded without any rotary embedding
    k, v = (x.unflatten(0, (-1, cache.rope.frame_tokens))[: len(frames)].permute(2, 0, 1, 3) for x in recorded)
    k = torch.cat((cache.rope.rotate_spatial(k[:, :FRAMES_PER_BLOCK]), k[:, FRAMES_PER_BLOCK:]), dim=1)
    assert error(cache.rope.rotate_temporal(keys, [0, 0, 0, *frames[FRAMES_PER_BLOCK:]]), k) < TOLERANCE
    assert error(values, v) < TOLERANCE


def test_the_rolling_schedule_is_the_recorded_one(rolling):
    for name in ROLLING_RUNS:
        expected = rolling.tensors[f"denoising_steps/{name}"].tolist()
        assert [1000 * sigma for sigma in rolling.schedule(name).sigmas] == pytest.approx(expected, abs=1e-4)
    assert rolling.schedule("steps5_45") == SCHEDULE


class Tiny:
    """A video model of random weights, with its calls counted."""

    def __init__(self):
        torch.manual_seed(0)
        config = WanConfig(dim=32, ffn_dim=48, num_layers=2, num_heads=2, freq_dim=16, text_dim=8, text_len=4)
        self.config = config
        self.video = WanVideoModel(WanModel(config).requires_grad_(False), torch.float32)
        self.embeds = list(torch.randn(2, 3, 8))
        self.calls: list[str] = []
        for name in ("denoise", "denoise_jointly", "write_clean"):
            call = getattr(self.video, name)
            counted = lambda *args, name=name, call=call: [self.calls.append(name), call(*args)][1]  # noqa: E731
            setattr(self.video, name, counted)

    def shape(self, frames: int) -> CacheShape:
        return CacheShape.for_model(self.config, [["memory"] * 2] * 2, causvid.POLICY, 4, 6, FRAMES_PER_BLOCK, frames)

    def noise(self) -> SeededNoise:
        return SeededNoise((FRAMES_PER_BLOCK, 16, 4, 6))

    def script(self, prompts: list[int], schedule: Schedule = SCHEDULE) -> Script:
        return script_of(prompts, schedule, self.embeds, seed=3)


class Stop(Exception):
    pass


def rolled(tiny: Tiny, blocks: int, **options):
    cache = RollingCache(tiny.shape(FRAMES_PER_BLOCK * blocks), torch.float32)
    inputs = RolloutInputs(tiny.script([0] * blocks), tiny.noise(), **options)
    return RollingForcing().rollout(tiny.video, cache, inputs)


@pytest.mark.parametrize("stop_at", [1, 3, 20, 52, None])
def test_a_rolling_video_makes_no_model_call_after_a_stop_and_at_most_one_between_two_reports(stop_at):
    tiny, counts = Tiny(), []

    def on_step(block, step, latents):
        counts.append(len(tiny.calls))
        if len(counts) == stop_at:
            raise Stop

    with pytest.raises(Stop) if stop_at else nullcontext():
        list(rolled(tiny, 8, on_step=on_step))
    pieces = {tuple(tiny.calls[a:b]) for a, b in zip([0, *counts], counts, strict=False)}
    assert pieces <= {(), ("denoise_jointly",), ("write_clean",)}
    if stop_at:
        assert len(counts) == stop_at and len(tiny.calls) == counts[-1]
    else:
        assert tiny.calls.count("denoise_jointly") == 8 + 5 - 1 and tiny.calls.count("write_clean") == 8


def test_a_long_rolling_video_holds_no_more_than_a_short_one():
    tiny = Tiny()
    cache = RollingCache(tiny.shape(120), torch.float32)
    held = []
    inputs = RolloutInputs(tiny.script([0] * 40), tiny.noise())
    for block in RollingForcing().rollout(tiny.video, cache, inputs):
        held.append((len(cache.past[-1]), cache.past[-1][0].nbytes, sum(len(x) for x in block.unfinished)))
        assert min(cache.past[-1]) == 0 and cache.block == block.index + 1
        assert all(x.untyped_storage().nbytes() == x.nbytes for x in (block.latents, *block.unfinished))
    assert held[7:-4] == [held[7]] * 29
    assert held[7] == (8, 2 * 2 * FRAMES_PER_BLOCK * 6 * 16 * 4, 4 * FRAMES_PER_BLOCK)


@pytest.mark.parametrize("count", [1, 6, 10])
def test_a_rolling_video_goes_on_from_finished_and_unfinished_blocks(count):
    whole = list(rolled(Tiny(), 10))
    made, unfinished = [block.latents for block in whole[:count]], whole[count - 1].unfinished
    for one, other in zip(whole, rolled(Tiny(), 10, given=made, unfinished=unfinished), strict=True):
        assert one.index == other.index and torch.equal(one.latents, other.latents)
        if one.index >= count - 1:
            assert all(torch.equal(*pair) for pair in zip(one.unfinished, other.unfinished, strict=True))
    if count < 10:
        with pytest.raises(HeadForcingError, match=f"after {count} of 10 blocks needs the 4 unfinished ones"):
            list(rolled(Tiny(), 10, given=made))


def test_what_a_rolling_pass_attends_to():
    held = [0, 3, 4, 5, 6, 7, 8, 9]
    assert attended_blocks([0], range(0, 4), clean=False) == {}
    assert attended_blocks([0], range(1, 6), clean=False) == {0: 0}
    assert attended_blocks(held, range(10, 15), clean=False) == {0: 8, 9: 9}
    assert attended_blocks(held, range(10, 11), clean=False) == {0: 4, 5: 5, 6: 6, 7: 7, 8: 8, 9: 9}
    assert attended_blocks([0, 1, 2, 3, 4, 5], range(6, 7), clean=True) == {block: block for block in range(6)}
    assert attended_blocks([0, 1, 2, 3, 4, 5, 6], range(7, 8), clean=True) == {block: block for block in range(1, 7)}
    assert attended_blocks(held, range(10, 11), clean=True) == {block: block for block in range(4, 10)}


def test_videos_that_no_rolling_window_fits_are_refused():
    for schedule, blocks, words in (
        (SCHEDULE, 4, "5 steps needs a video of at least 5 blocks .* got 4"),
        (Schedule.warped([1000, 850, 700, 550, 400, 250, 100]), 10, "at most 6 steps fit, got 7"),
        (Schedule.warped([1000, 500], first=[1000]), 10, "same noise levels"),
    ):
        with pytest.raises(HeadForcingError, match=words):
            RollingForcing().for_video(VideoFacts(schedule, blocks))


@pytest.mark.parametrize("cache_class", [HeadCache, ReferenceCache])
@pytest.mark.parametrize("name", CAUSVID_RUNS, ids=[f"causvid-{name}" for name in CAUSVID_RUNS])
def test_overlapping_rollouts_give_the_recorded_latents(overlapped, name, cache_class):
    run, tensors = overlapped.run(name), overlapped.tensors
    layout = Overlap(21, run.get("overlap", 3), FRAMES_PER_BLOCK)
    rollouts, given = run.get("rollouts", 1), layout.given_blocks
    later = range(1, rollouts)
    noise = RecordedNoise(
        torch.cat([tensors["noise"][0, 0], *(tensors["noise"][r, 0, layout.overlap :] for r in later)]),
        torch.cat([tensors["renoise"][0], *(tensors["renoise"][r, given:] for r in later)]),
    )
    schedule = causvid.SCHEDULES["4_steps" if run["warp"] else "3_steps"]
    asked, count = [], layout.blocks + layout.stride * (rollouts - 1)

    def reencode(latents: torch.Tensor) -> torch.Tensor:
        asked.append(latents)
        return tensors["reencoded_first_frame"][len(asked) - 1, 0]

    script = script_of([0] * count, schedule, [tensors["prompt_embeds"][0]])
    blocks = list(
        causvid.CausVid(overlap_frames=layout.overlap).rollout(
            WanVideoModel(overlapped.backbone, torch.float32),
            cache_class(overlapped.shape(21), torch.float32),
            RolloutInputs(script, noise, FRAMES_PER_BLOCK, reencode=reencode),
        )
    )
    assert [block.index for block in blocks] == list(range(count))
    assert len(asked) == rollouts - 1
    for number in range(rollouts):
        own = [block for block in blocks if block.rollout == number]
        assert [block.given is None for block in own] == [number == 0, *[True] * (len(own) - 1)]
        parts = [*([own[0].given] if number else []), *(block.latents for block in own)]
        worst = error(torch.cat(parts), tensors[f"latents/{name}"][number, 0])
        assert worst < TOLERANCE, f"latents differ by {worst:.1e} of their spread"
        if number + 1 < rollouts:
            decoded, latents = 81 - (4 * (layout.overlap - 1) + 1) + 1, asked[number]
            assert video_frames_of(len(latents)) == decoded and torch.equal(latents, torch.cat(parts)[: len(latents)])


def test_the_causvid_schedules_are_the_recorded_ones(overlapped):
    for name in CAUSVID_RUNS:
        expected = overlapped.tensors[f"denoising_steps/{name}"].tolist()
        timesteps = [1000 * sigma for sigma in causvid.SCHEDULES[f"{len(expected)}_steps"].sigmas]
        if not overlapped.run(name)["warp"]:
            timesteps = [round(timestep) for timestep in timesteps]
        assert timesteps == pytest.approx(expected, abs=1e-4)


def tiny_overlaps(blocks: int, **options):
    tiny, sizes = Tiny(), set()
    cache, script = HeadCache(tiny.shape(12), torch.float32), tiny.script([0] * blocks, causvid.SCHEDULES["3_steps"])
    numbers = itertools.count()
    inputs = {"reencode": lambda latents: latents[-1:] + next(numbers), **options}
    for block in causvid.CausVid(12, 6).rollout(tiny.video, cache, RolloutInputs(script, tiny.noise(), **inputs)):
        sizes.add(cache.bytes)
        yield block
    assert len(sizes) == 1


def test_a_causvid_video_stops_within_one_model_call_and_counts_its_blocks_through():
    rollouts = [(block.index, block.rollout) for block in tiny_overlaps(9)]
    assert rollouts == [*enumerate([0, 0, 0, 0, 1, 1, 2, 2, 3])]
    seen: list[int] = []

    def on_step(block, step, latents):
        seen.append(block)
        if len(seen) == 25:
            raise Stop

    with pytest.raises(Stop):
        list(tiny_overlaps(9, on_step=on_step))
    assert seen == [*(block for block in range(4) for _ in range(4)), 2, 3, *[4] * 4, *[5] * 3]


def test_pictures_of_overlapping_rollouts_follow_one_another():
    assert Overlap().finished_frames == 19 and Overlap(overlap=6).finished_frames == 16
    assert Overlap().restart_frames(20) == (18, 36, 54) and Overlap().restart_frames(7) == ()
    for layout in (Overlap(), Overlap(overlap=6), Overlap(12, 3), Overlap(8, 2, 1)):
        for rollouts in (1, 2, 5):
            blocks = layout.blocks + (rollouts - 1) * layout.stride
            assert layout.rollouts(blocks) == rollouts
            assert layout.rollouts(blocks + 1) == rollouts + 1
            assert len(layout.restart_frames(blocks)) == rollouts - 1


def test_an_overlap_that_is_not_whole_blocks_is_refused():
    for overlap in (0, 1, 4, 21, -3):
        with pytest.raises(HeadForcingError, match="overlap must be whole blocks of 3 latent frames"):
            Overlap(21, overlap)
    with pytest.raises(HeadForcingError, match="frames must be whole blocks of 3, got 20"):
        Overlap(20)


@pytest.mark.parametrize(
    ("which", "method", "name"),
    [
        ("subset", "rolling_forcing", "steps4_36"),
        ("subset", "causvid", "single_3step"),
        ("full", "rolling_forcing", "steps5_15"),
        *(("full", "causvid", name) for name in CAUSVID_RUNS),
    ],
    ids=lambda part: part,
)
def test_replay_gives_the_recorded_latents_too(repo_root, shared_dir, which, method, name):
    folder = repo_root / "tests" / "golden" if which == "subset" else shared_dir and shared_dir / "golden"
    if folder is None or not (folder / "peers" / method).is_dir():
        pytest.skip(f"the recordings of {method} (../shared/golden/peers) are not here; only the subset was checked")
    case = Case.open(folder / "peers" / method)
    expected = case.tensors[f"latents/{name}"]
    expected = expected[0] if method == "rolling_forcing" else expected[:, 0].flatten(0, 1)
    assert error(replay(case, name).latents, expected) < TOLERANCE
