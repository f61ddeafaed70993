"""A portrait that speaks, on small random weights: resume, changed sound, prompt switches, several
ranks, and what is refused.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from headforcing.cli.compiled import compiled_forward
from headforcing.headforcing_core.demo import word_hash
from headforcing.headforcing_core.distributed.cache import ParallelCache, parallel_forward
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.head_profiles.auto import AutoProfile
from headforcing.headforcing_core.head_profiles.profile import HeadProfile
from headforcing.headforcing_core.head_profiles.shares import ProfileSetup
from headforcing.headforcing_core.model.wan import WanConfig, WanModel
from headforcing.headforcing_core.plan.describe import describe
from headforcing.headforcing_core.plan.options import RenderOptions
from headforcing.headforcing_core.plan.request import RenderRequest, StartLatents
from headforcing.headforcing_core.plan.speech import Speech, SpeechInputs
from headforcing.headforcing_core.plan.start import image_frames
from headforcing.headforcing_core.render.live_story import LiveEdits
from headforcing.headforcing_core.render.render import Place
from headforcing.headforcing_core.rollout.loop import WanVideoModel
from headforcing.headforcing_core.rollout.rows import Picture
from headforcing.headforcing_core.rollout.schedule import LIVETALK, SCHEDULES
from headforcing.headforcing_core.timeline.timeline import parse_timeline
from thread_peers import together
from toy_renders import LiveTexts, rendered

LAYERS = 6
HEADS = 3
WIDTH = 5
CONFIG = WanConfig(
    dim=96,
    ffn_dim=128,
    num_layers=LAYERS,
    num_heads=HEADS,
    freq_dim=32,
    text_dim=word_hash.TEXT_DIM,
    text_len=word_hash.TEXT_LEN,
    in_dim=33,
    audio_width=WIDTH,
    audio_dim=7,
)
PROFILE = HeadProfile("a test", LAYERS, HEADS, tuple([("memory", "anchor", "local")] * LAYERS))
SECONDS = 5.8  # 8 blocks, 93 video frames
ONE = "a red ball"
TWO = "0:00 a red ball\n0:03 [recache] a yellow ring"
FRAMES = 24


def random(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


FEATURES = random(4 * FRAMES - 3, WIDTH)
PORTRAIT = random(1, 1, 16, 8, 8, seed=2)


@pytest.fixture(scope="module")
def backbone() -> WanModel:
    model = WanModel(CONFIG)
    for number, parameter in enumerate(model.parameters()):
        parameter.data = 0.15 * random(*parameter.shape, seed=number)
    return model.requires_grad_(False).eval()


def request(
    text: str = ONE,
    method: str = "livetalk",
    seconds: float = SECONDS,
    profile: HeadProfile | AutoProfile | None = PROFILE,
    **fields,
) -> RenderRequest:
    options = RenderOptions(
        method_name=method,
        model_family="livetalk",
        width=64,
        height=64,
        seconds=seconds,
        profile=profile,
    )
    timeline = parse_timeline(text, **options.timeline_arguments)
    embeds = {text: word_hash.encode(text) for text in timeline.texts}
    given = {"start": StartLatents(PORTRAIT), "conditions": Speech(FEATURES), **fields}
    return RenderRequest(CONFIG, options, timeline, embeds, weights="tiny", **given)


def made(backbone, asked: RenderRequest, stop: int | None = None, listeners=()) -> torch.Tensor:
    model = WanVideoModel(backbone, torch.float32)
    return torch.cat(rendered(asked.job(), model, Place(), stop, listeners=listeners).blocks)


@pytest.fixture(scope="module")
def straight(backbone) -> torch.Tensor:
    return made(backbone, request())


def same_blocks(one: torch.Tensor, other: torch.Tensor) -> int:
    """Number of blocks at the beginning that are equal."""
    pairs = zip(one.split(3), other.split(3), strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if not torch.equal(a, b)), len(one) // 3)


@pytest.mark.slow
def test_the_portrait_is_the_first_frame_and_speech_changes_its_own_block_and_later_ones(
    backbone, straight
):
    assert torch.equal(straight[:1], PORTRAIT[0]) and len(straight) == FRAMES
    for video_frame, block in ((0, 0), (9, 1), (20, 1), (21, 2), (69, 6)):
        features = FEATURES.clone()
        features[video_frame] += 1
        other = made(backbone, request(conditions=Speech(features)))
        assert same_blocks(straight, other) == block, video_frame
    assert same_blocks(straight, made(backbone, request(conditions=Speech(FEATURES, 0.5)))) == 0


@pytest.mark.slow
@pytest.mark.parametrize("state_seconds", [0.0, 1e-9])
def test_a_stopped_render_goes_on_and_later_speech_leaves_finished_blocks(
    backbone, straight, tmp_path, state_seconds
):
    asked = request(runs=tmp_path)
    asked = replace(asked, options=replace(asked.options, state_seconds=state_seconds))
    made(backbone, asked, stop=5)
    assert torch.equal(made(backbone, asked), straight)
    features = FEATURES.clone()
    features[60:] = 0  # of the sixth block and later ones
    changed = replace(asked, conditions=Speech(features))
    assert changed.job().finished_blocks == 5
    assert torch.equal(made(backbone, changed), made(backbone, replace(changed, runs=None)))


def test_keys_that_come_with_speech_stand_for_its_features():
    names = tuple(str(number) for number in range(len(FEATURES)))
    plain = request(conditions=Speech(FEATURES, keys=names)).job().keys
    other = request(conditions=Speech(FEATURES + 1e-6, keys=names)).job().keys
    assert plain == other != request().job().keys
    names = (*names[:60], *["x"] * 33)
    changed = request(conditions=Speech(FEATURES, keys=names)).job().keys
    assert [a == b for a, b in zip(plain, changed, strict=True)] == [True] * 5 + [False] * 3


@pytest.mark.slow
@pytest.mark.parametrize("method", ["livetalk", "head_forcing", "longlive", "id_forcing"])
def test_every_pass_over_earlier_blocks_gets_their_speech(monkeypatch, backbone, method):
    """Clean passes of recaches and of rebuilt caches: each is over the frames that it is given the
    inputs of.
    """
    asked: list[tuple[int, torch.Tensor]] = []
    of = SpeechInputs.of

    def note(self, first, latents):
        asked.append((first, latents.clone()))
        return of(self, first, latents)

    monkeypatch.setattr(SpeechInputs, "of", note)
    clean: list[tuple[int, torch.Tensor]] = []
    write = WanVideoModel.write_clean

    def note_clean(self, latents, cache):
        write(self, latents, cache)
        clean.append(asked[-1])

    monkeypatch.setattr(WanVideoModel, "write_clean", note_clean)
    text = ONE if method == "id_forcing" else TWO
    video = made(backbone, request(text, method, seconds=9.0, conditions=Speech(FEATURES_LONG)))
    assert len(clean) > len(video) // 3, "some blocks are written again"
    for first, latents in clean:
        assert torch.equal(video[first : first + len(latents)], latents)


FEATURES_LONG = random(200, WIDTH)


@pytest.mark.slow
def test_a_video_on_two_ranks_and_a_compiled_one_are_that_of_one(backbone, straight):
    job = request().job()

    def on(peers):
        model = WanVideoModel(backbone, torch.float32)
        model.forward = parallel_forward
        place = Place(make_cache=lambda job: ParallelCache(peers, job.plan.shape, torch.float32))
        return torch.cat(rendered(job, model, place).blocks)

    for found in together(2, on):
        assert torch.allclose(found, straight, atol=2e-5)
    model = WanVideoModel(backbone, torch.float32, forward=compiled_forward("eager"))
    assert torch.allclose(torch.cat(rendered(job, model).blocks), straight, atol=1e-5)


def test_the_plan_says_what_drives_the_video_and_how_large_its_window_is():
    asked = request()
    plan = asked.plan()
    assert plan.held_frames == 1 and plan.block_shape == (3, 16, 8, 8)
    assert "it and the speech drive every block" in describe(plan, torch.bfloat16)
    assert plan.shape.slots and set(plan.shape.slots.values()) == {15}
    assert LIVETALK.size == (512, 512) and SCHEDULES["livetalk"] is LIVETALK
    repeats = RenderOptions(method_name="self_gradient_forcing", model_family="livetalk")
    assert repeats.schedule is LIVETALK and image_frames(repeats, "") == 1


def without_audio() -> WanConfig:
    return replace(CONFIG, in_dim=16, audio_dim=0, audio_width=0)


REFUSED = {
    "no speech": ({"conditions": None}, "speech: .* got no speech"),
    "no portrait": ({"start": None}, "start image: .* give one picture"),
    "a start of a block": (
        {"start": StartLatents(PORTRAIT.expand(-1, 3, -1, -1, -1))},
        "start image: ",
    ),
    "too short": ({"conditions": Speech(FEATURES[:80])}, r"lasts 5\.00 s, .* 5\.81 s \(93 video"),
    "another encoder": ({"conditions": Speech(random(93, 4))}, "reads 5 features .* got 4"),
    "measured roles": (
        {"method": "head_forcing", "profile": AutoProfile()},
        "head roles: .* choose the method livetalk",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_rendered_is_refused_in_a_sentence(case):
    fields, why = REFUSED[case]
    with pytest.raises(HeadForcingError, match=why):
        request(**fields).plan()


def test_speech_that_is_not_finite_other_models_and_other_families_are_refused(backbone):
    features = FEATURES.clone()
    features[3, 1] = torch.nan
    with pytest.raises(HeadForcingError, match="features of the speech: NaN"):
        made(backbone, request(conditions=Speech(features)))
    plain = replace(request(), config=without_audio(), start=None)
    with pytest.raises(HeadForcingError, match="the model is not driven by speech"):
        plain.plan()
    options = replace(plain.options, model_family="self_forcing")
    with pytest.raises(HeadForcingError, match="speech: this model is not driven"):
        replace(plain, options=options).plan()
    with pytest.raises(HeadForcingError, match="is driven by speech.*livetalk"):
        replace(request(), options=options).plan()
    with pytest.raises(HeadForcingError, match="references: "):
        pictured = request()
        timeline = parse_timeline(
            "@hero speaks", **pictured.options.timeline_arguments, references=["hero"]
        )
        replace(
            pictured,
            timeline=timeline,
            options=replace(pictured.options, method_name="head_forcing"),
            pictures={"hero": Picture(PORTRAIT[0], "")},
        ).plan()
    for method in ("causvid", "rolling_forcing"):
        with pytest.raises(HeadForcingError, match="a sampler of its own"):
            request(method=method)
    with pytest.raises(HeadForcingError, match="cannot be measured"):
        ProfileSetup.of("", CONFIG, (ONE,), 9, family=LIVETALK, size=(64, 64))


def test_a_live_edit_changes_prompts_and_a_story_longer_than_the_speech_is_refused(backbone):
    story = LiveTexts({3: f"{ONE} | a yellow ring"}, SECONDS)
    changed = made(backbone, request(), listeners=[LiveEdits(story)])
    assert story.changes and not story.refusals and torch.equal(changed[:1], PORTRAIT[0])
    longer = LiveTexts({3: f"{ONE} | a yellow ring"}, 30.0)
    longer.seconds = 30.0
    made(backbone, request(), listeners=[LiveEdits(longer)])
    assert len(longer.refusals) == 1 and "speech: it lasts" in longer.refusals[0]


def test_a_run_folder_of_a_portrait_names_the_frame_that_was_held(backbone, tmp_path: Path):
    job = request(runs=tmp_path).job()
    assert job.about["held_frames"] == 1 and job.about["size"] == "64x64"
