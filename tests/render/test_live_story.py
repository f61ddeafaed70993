"""A story that changes while it is rendered: the same video as the new story from the beginning, or one sentence."""

import gc
import json
import weakref
from dataclasses import replace

import av
import pytest
import torch
from headforcing.headforcing_core.cache.policy import PRESETS, CachePolicy
from headforcing.headforcing_core.commands.source import toy_codec
from headforcing.headforcing_core.demo import word_hash
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.head_profiles.profile import HeadProfile, default_profile
from headforcing.headforcing_core.methods.registry import METHODS, method_policy, method_schedule
from headforcing.headforcing_core.render.job import RenderJob, about_video, file_tags
from headforcing.headforcing_core.render.live_story import LiveEdits
from headforcing.headforcing_core.render.plan import RenderPlan
from headforcing.headforcing_core.render.render import Listener, Place, make_video
from headforcing.headforcing_core.render.resources import check_growth
from headforcing.headforcing_core.render.sinks import KeptLatents, VideoFile
from headforcing.headforcing_core.rollout.loop import WanVideoModel
from headforcing.headforcing_core.runs.stored import stored_videos
from headforcing.headforcing_core.timeline.timeline import parse_timeline
from toy_renders import Told as AnyTold
from toy_renders import toy_model

SECONDS, BLOCKS = 7.0, 10
RED, CROSS = "a red ball bouncing in the teal plain room", "a yellow cross circling in the navy room"
CUBE = "a blue cube in the pink room"
PLANNED = f"0:00 {RED}\n0:03 {CROSS}\n0:06 {CUBE}"  # blocks 0, 4 and 8
CHANGED = f"0:00 {RED}\n0:03 {CROSS}\n0:04.5 [blend 1] {CUBE}\n0:06 {RED}"  # 0, 4, 6 and 8
SWITCHED = f"0:00 {RED}\n0:03 {CROSS}\n0:04.5 [recache] {CUBE}\n0:05.25 [flush, re-anchor] {RED}"


@pytest.fixture(scope="module")
def backbone():
    return toy_model(layers=2)


@pytest.fixture
def job(backbone, tmp_path):
    """Makes the job of a text, which keeps its blocks in a run folder."""

    def make(text: str, method="head_forcing", start=None, seconds=SECONDS) -> RenderJob:
        config, policy = backbone.config, method_policy(method)
        if isinstance(policy, CachePolicy):
            policy = policy.with_memory(5, 3, 0.99, 1)  # admits much and often
        profile = HeadProfile("toy", config.num_layers, config.num_heads, default_profile(8, 6).roles[:2])
        noise = method_schedule(policy, "self_forcing", "" if policy.own_schedule else "1, 0.6")
        plan = RenderPlan.make(
            config, policy, noise, parse_timeline(text, seconds), 64, 64, seed=3,
            profile=profile if policy.heads_by else None, start_frames=0 if start is None else len(start),
        )  # fmt: skip
        return RenderJob(
            plan,
            {text: word_hash.encode(text) for text in plan.timeline.texts},
            "toy",
            start_latents=start,
            codec=toy_codec(torch.device("cpu")),
            runs=tmp_path / "runs",
            about=about_video(plan, method, 3, None),
        )

    return make


class Told(AnyTold):
    def __init__(self, texts: dict[int, str], seconds=SECONDS):
        super().__init__(texts, seconds)


class Stop(Exception):
    """Ends a render."""


class StopAt(Listener):
    def __init__(self, block):
        self.block = block

    def add(self, block):
        if block.index == self.block:
            raise Stop


def render(backbone, job, story=None, listeners=()):
    """The latents and the result."""
    kept = KeptLatents()
    edits = [] if story is None else [LiveEdits(story)]
    result = make_video(job, WanVideoModel(backbone, torch.float32), Place(), [*listeners, kept, *edits])
    return torch.cat(kept.blocks), result


def fresh(backbone, job):
    """The latents of a render that finds nothing stored."""
    return render(backbone, replace(job, runs=None))


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.repeat(*(f"{name}]" for name in PRESETS if name != "head_forcing"))
def test_the_changed_story_is_the_video_it_would_have_been_from_the_beginning(backbone, job, method):
    """Every method, with the change behind what a rolling window has begun; the same text again finds every block."""
    text = CHANGED
    if method in ("head_forcing", "longlive", "memflow"):
        text = SWITCHED.replace(", re-anchor", "") if method != "head_forcing" else SWITCHED
        text = text if method == "head_forcing" else text.replace("[flush]", "[recache]")
    story = Told({1: text})
    latents, result = render(backbone, job(PLANNED, method), story)
    assert story.refusals == [] and story.changes == [6]
    assert story.encoded == [], "texts that are there are not encoded again"
    wanted = job(text, method)
    straight, expected = fresh(backbone, wanted)
    assert torch.equal(latents, straight)
    assert not torch.equal(latents, fresh(backbone, job(PLANNED, method))[0])
    shape = replace(result.plan.shape, policy=wanted.plan.policy)  # may count scenes, for the size of the cache
    assert replace(result.plan, shape=shape) == wanted.plan and result.events == expected.events
    assert result.embeds.keys() == wanted.embeds.keys()
    again, found = render(backbone, wanted)
    assert found.reused_blocks == wanted.plan.blocks and torch.equal(again, straight)


def test_a_story_may_change_often_and_new_prompts_are_encoded_once(backbone, job):
    second = PLANNED.replace(CUBE, "a green cone")
    third = second.replace("0:06 ", "0:06 [blend 1] ")
    last = third.replace("0:06 ", "0:05.25 [recache] a white star\n0:06 ")
    story = Told({2: second, 4: third, 6: last})
    latents, result = render(backbone, job(PLANNED), story)
    assert story.changes == [8, 8, 7] and story.encoded == ["a green cone", "a white star"]
    assert torch.equal(latents, fresh(backbone, job(last))[0])
    assert result.about["prompts"] == [RED, CROSS, "a white star", "a green cone"]


def test_a_seed_re_rolls_from_a_prompt_that_has_not_begun(backbone, job):
    text = PLANNED.replace("0:06 ", "0:06 [seed 7] ")
    story = Told({6: text, 7: PLANNED.replace("0:03 ", "0:03 [seed 7] ")})
    latents, result = render(backbone, job(PLANNED), story)
    assert story.changes == [8] and "prompt 2 has begun" in story.refusals[0]
    assert torch.equal(latents, fresh(backbone, job(text))[0]) and result.about["seeds"] == [None, None, 7]
    assert render(backbone, job(text))[1].reused_blocks == BLOCKS


def test_the_run_folder_notes_the_story_that_was_rendered_and_forgets_the_one_that_was_not(backbone, job, tmp_path):
    render(backbone, job(PLANNED), Told({5: CHANGED}))
    (video,) = stored_videos(tmp_path / "runs")
    assert video.take.number == 1, "the same take"
    assert video.about["prompts"] == [RED, CROSS, CUBE, RED] and video.about["switches"][2] == "blend 1"
    assert video.about["starts_seconds"] == job(CHANGED).about["starts_seconds"]


@pytest.mark.parametrize("method", ["head_forcing", "rolling_forcing"])
def test_a_stopped_render_goes_on_with_the_changed_story(backbone, job, method):
    with pytest.raises(Stop):
        render(backbone, job(PLANNED, method), listeners=[StopAt(0)])
    with pytest.raises(Stop):
        render(backbone, job(PLANNED, method), Told({1: CHANGED}), listeners=[StopAt(6)])
    latents, result = render(backbone, job(CHANGED, method))
    assert result.reused_blocks == 7
    stored = stored_videos(job(CHANGED, method).runs)
    assert {len(video.about["prompts"]) for video in stored} == {3, 4}, "the first story stays listed"
    assert torch.equal(latents, fresh(backbone, job(CHANGED, method))[0])


def test_after_start_frames_blocks_are_counted_with_them(backbone, job):
    start = torch.randn(6, 16, 8, 8, generator=torch.Generator().manual_seed(1))
    story = Told({1: CHANGED})
    latents, _ = render(backbone, job(PLANNED, start=start), story)
    assert story.changes == [8]
    assert torch.equal(latents, fresh(backbone, job(CHANGED, start=start))[0])


REFUSED = {
    "text": (f"0:00 {RED}\n0:00 {CROSS}", "line 2: 0:00 does not come after 0:00"),
    "begun": (PLANNED.replace(CROSS, CUBE), "prompt 2 has begun and its finished blocks stay: leave everything "),
    "begun switch": (PLANNED.replace("0:03 ", "0:03 [recache] "), "prompt 2 has begun"),
    "earlier": (PLANNED.replace("0:06 ", "0:03.6 "), "prompt 2 has begun"),
    "first": (PLANNED.replace(RED, CUBE), "before 0:04.312 (block 7 of 10)"),
    "same": (PLANNED, "this is the story that is rendered already"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_story_that_cannot_be_taken_changes_nothing(backbone, job, name):
    text, sentence = REFUSED[name]
    story = Told({6: text})
    latents, result = render(backbone, job(PLANNED), story)
    assert story.changes == [] and len(story.refusals) == 1
    assert sentence in story.refusals[0]
    assert torch.equal(latents, fresh(backbone, job(PLANNED))[0]) and result.plan == job(PLANNED).plan


@pytest.mark.parametrize(
    ("seconds", "story_of_it"), [(9.0, f"{CHANGED}\n0:08 {CROSS}"), (5.2, f"0:00 {RED}\n0:03 {CROSS}")]
)
def test_a_story_may_become_longer_or_shorter(backbone, job, tmp_path, seconds, story_of_it):
    """Latents, file and notes are those of a render that had this length from the beginning."""
    wanted, planned = job(story_of_it, seconds=seconds), job(PLANNED)
    found = []
    for name, made, story in (("told", planned, Told({4: story_of_it}, seconds)), ("straight", wanted, None)):
        mp4 = VideoFile(tmp_path / f"{name}.mp4", made.plan, made.codec.decoder, file_tags(made.about))
        latents, result = render(backbone, made if story else replace(made, runs=None), story, [mp4])
        found.append((result.plan, result.about["video_frames"], mp4.info.video_frames, latents))
        assert story is None or story.refusals == [] and len(story.changes) == 1
    told, straight = found
    assert told[:3] == straight[:3] and told[2] == wanted.plan.video_frames and torch.equal(told[3], straight[3])
    assert render(backbone, wanted)[1].reused_blocks == wanted.plan.blocks


def test_a_video_does_not_end_in_what_has_begun(backbone, job):
    story = Told({6: f"0:00 {RED}\n0:03 {CROSS}", 7: f"0:00 {RED}"}, seconds=4.2)  # in block 6, block 7 is next
    render(backbone, job(PLANNED), story)
    assert "blocks before 0:04.312 have begun and stay (block 7 of 10): end the story after that" in story.refusals[0]
    assert "prompt 2 has begun" in story.refusals[1]


@pytest.mark.parametrize("method, before, after, why", [
    ("rolling_forcing", SECONDS, 9.0, "this method divides the whole video into passes"),
    ("causvid", SECONDS, 9.0, "this method divides the whole video into passes"),
    ("head_forcing", 2.0, 9.0, "the caches of a video this short are as long as the video"),
])  # fmt: skip
def test_another_length_is_refused_where_the_video_would_be_made_in_another_way(
    backbone, job, method, before, after, why
):
    story = Told({1: f"0:00 {RED}\n0:01.5 {CUBE}"}, seconds=after)
    render(backbone, job(f"0:00 {RED}\n0:01.5 {CUBE}", method, seconds=before), story)
    (refusal,) = story.refusals
    assert refusal == (
        f"{why}, so its length stays while it is made: it has {before:g} s, the new story {after:g} s; end the story "
        "where the video ends"
    )


def test_prompts_that_a_story_gives_up_leave_memory_and_those_it_brings_are_counted(backbone, job):
    """Every block but the first begins with an edit of the last prompt; embeddings of umT5 take 8 MB each."""
    seconds, alive, most, counted = 15.0, weakref.WeakSet(), [], []

    class Edited(Told):
        def encode(self, texts):
            embeds = super().encode(texts)
            alive.update(embeds)
            return embeds

        def check(self, plan, more):
            counted.append(more)

        def taken(self, plan, block):
            super().taken(plan, block)
            gc.collect()
            most.append(len(alive))

    texts = {block: f"0:00 {RED}\n0:05 [blend 1] {CROSS}\n0:14 a cube, {block}" for block in range(1, 19)}
    texts[10] += " and a cone\n0:14.5 a star"
    planned = job(texts[1], seconds=seconds)
    story = Edited(texts, seconds)
    latents, result = render(backbone, planned, story)
    assert len(story.changes) == 17 and len(story.encoded) == 18
    assert result.embeds.keys() == {RED, CROSS, "a cube, 18"}
    assert max(most) <= 2, "those of the story that is told, and no others"
    one = backbone.config.text_len * backbone.config.text_dim * 4
    assert [more // one for more in counted] == [1 if block != 10 else 2 for block in range(2, 19)]
    assert torch.equal(latents, fresh(backbone, job(texts[18], seconds=seconds))[0])
    render(backbone, replace(planned, runs=None))  # the first story is still there


def test_blocks_of_a_rolling_window_have_begun(backbone, job):
    story = Told({3: PLANNED.replace(CUBE, RED), 4: PLANNED.replace(CUBE, RED)})
    render(backbone, job(PLANNED, "rolling_forcing"), story)
    assert story.changes == [8] and "the story that is rendered already" in story.refusals[0]
    story = Told({5: PLANNED.replace(CUBE, RED)})
    render(backbone, replace(job(PLANNED, "rolling_forcing"), runs=None), story)
    assert story.changes == [] and "prompt 3 has begun" in story.refusals[0]


def test_when_everything_has_begun_nothing_can_change(backbone, job):
    render(backbone, job(PLANNED))
    story = Told({0: CHANGED})
    render(backbone, job(PLANNED), story)
    assert story.refusals == ["all blocks have begun, nothing is left to change; queue the new story as a render"]


def test_memflow_refuses_a_second_prompt_where_it_would_have_begun_otherwise(backbone, job):
    story = Told({1: f"0:00 {RED}\n0:03 {CROSS}"})
    render(backbone, job(RED, "memflow"), story)
    assert story.changes == [] and "one prompt in another way than one of several" in story.refusals[0]
    story = Told({1: f"0:00 {RED}\n0:03 {CROSS}"})
    latents, _ = render(backbone, job(RED, "memflow_interactive"), story)
    assert torch.equal(latents, fresh(backbone, job(f"0:00 {RED}\n0:03 {CROSS}", "memflow_interactive"))[0])


# ------------------------------------------------------------------------------------------------- a followed file


class Deaf(Told):
    def encode(self, texts):
        raise HeadForcingError(f"no embedding of {texts[0]!r}")


class Small(Told):
    """The first switch that writes blocks again comes with the new story."""

    def check(self, plan, more):
        check_growth(more, 0)


@pytest.mark.parametrize(("kind", "planned", "method", "text", "why"), [
    (Deaf, PLANNED, "head_forcing", PLANNED.replace(CUBE, "a green cone"), "no embedding of 'a green cone'"),
    (Small, RED, "longlive", f"0:00 {RED}\n0:05 {CROSS}", "not enough memory"),
])  # fmt: skip
def test_a_story_whose_words_or_memory_are_not_to_be_had_is_refused(backbone, job, kind, planned, method, text, why):
    story, planned = kind({1: text}), job(planned, method)
    _, result = render(backbone, planned, story)
    assert len(story.refusals) == 1 and why in story.refusals[0] and result.plan == planned.plan


def test_the_file_holds_the_story_that_was_rendered(backbone, job, tmp_path):
    planned = job(PLANNED)
    path = tmp_path / "video.mp4"
    mp4 = VideoFile(path, planned.plan, planned.codec.decoder, file_tags(planned.about))
    _, result = render(backbone, planned, Told({3: CHANGED}), [mp4])
    with av.open(str(path)) as container:
        tags = json.loads(container.metadata["head_forcing"])
    assert tags["prompts"] == [RED, CROSS, CUBE, RED] == result.about["prompts"]
    assert tags["starts_seconds"] == job(CHANGED).about["starts_seconds"]
    assert tags["story"] == "as it was told"


def test_a_length_that_the_render_sets_is_kept(backbone, job):
    story = Told({1: CHANGED + f"\n0:08 {CROSS}"}, seconds=9.0)
    story.seconds = SECONDS
    latents, _ = render(backbone, replace(job(PLANNED), runs=None), story)
    assert story.refusals == [] and torch.equal(latents, fresh(backbone, job(CHANGED))[0])
