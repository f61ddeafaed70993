"""A story that changes while it is rendered: the same video as the new story from the beginning, or
one sentence.
"""

import gc
import json
import weakref
from dataclasses import replace

import av
import pytest
import torch
from headforcing.cli.values import EmbeddedModel
from headforcing.headforcing_core.demo import assets
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.methods.registry import METHODS, method_named
from headforcing.headforcing_core.plan.request import RenderJob, about_story, file_tags
from headforcing.headforcing_core.plan.resources import check_growth
from headforcing.headforcing_core.render.live_story import LiveEdits
from headforcing.headforcing_core.render.render import Listener, Place, make_video
from headforcing.headforcing_core.render.result import RenderResult
from headforcing.headforcing_core.render.sinks import FileTarget, KeptLatents, VideoFile
from headforcing.headforcing_core.rollout.loop import WanVideoModel
from headforcing.headforcing_core.runs.stored import stored_videos
from toy_renders import LiveTexts, Render, toy_model

pytestmark = pytest.mark.usefixtures("shots")

SECONDS = 7.0  # 10 blocks
RED = "a red ball bouncing in the teal plain room"
CROSS = "a yellow cross circling in the navy room"
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
        method = method_named(method)
        steps = "" if method.own_schedule else "1, 0.6"
        made = Render(
            backbone, tmp_path / "runs", text, seconds, start=start, method=method, sigmas=steps
        )
        return made.job.with_request(
            codec=EmbeddedModel(assets.model_path()).codec(torch.device("cpu"), torch.float32)
        )

    return make


class Edits(LiveTexts):
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
    result = make_video(
        job, WanVideoModel(backbone, torch.float32), Place(), [*listeners, kept, *edits]
    )
    return torch.cat(kept.blocks), result


# by what is asked for: keys are what is tested here
_fresh: dict[str, tuple[torch.Tensor, RenderResult]] = {}


def fresh(backbone, job):
    """The latents and the result of a render that finds nothing stored; made once for all tests
    that ask for it.
    """
    asked = repr((job.plan, job.request.start is not None))
    if asked not in _fresh:
        _fresh[asked] = render(backbone, job.with_request(runs=None))
    return _fresh[asked]


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.repeat("self_forcing]", "self_forcing_sink]")
def test_the_changed_story_is_the_video_it_would_have_been_from_the_beginning(
    backbone, job, method
):
    """Every method, with the change behind what a rolling window has begun; the same text again
    finds every block.
    """
    recached = SWITCHED.replace("[flush, re-anchor]", "[recache]")
    text = {"head_forcing": SWITCHED, "longlive": recached, "memflow": recached}.get(
        method, CHANGED
    )
    story = Edits({1: text})
    latents, result = render(backbone, job(PLANNED, method), story)
    assert story.refusals == [] and story.changes == [6]
    assert story.encoded == [], "texts that are there are not encoded again"
    wanted = job(text, method)
    straight, expected = fresh(backbone, wanted)
    assert torch.equal(latents, straight)
    # may count scenes, for the size of the cache
    shape = replace(result.plan.shape, method=wanted.plan.method)
    assert replace(result.plan, shape=shape) == wanted.plan and result.events == expected.events
    assert result.job.request.embeds.keys() == wanted.request.embeds.keys()
    again, found = render(backbone, wanted)
    assert found.reused_blocks == wanted.plan.blocks and torch.equal(again, straight)


START = torch.randn(6, 16, 8, 8, generator=torch.Generator().manual_seed(1))
SEEDED = PLANNED.replace("0:06 ", "0:06 [seed 7] ")
BRIEF = f"0:00 {RED}\n0:03 {CROSS}"
TAKEN = {  # how the video is made, what is told before which block, the story that is made, and the first changed block
    "a seed for what has not begun": (
        {},
        {6: SEEDED, 7: PLANNED.replace("0:03 ", "0:03 [seed 7] ")},
        SEEDED,
        8,
    ),
    "after start frames": ({"start": START}, {1: CHANGED}, CHANGED, 8),
    "in a rolling window": (
        {"method": "rolling_forcing"},
        {3: PLANNED.replace(CUBE, RED)},
        PLANNED.replace(CUBE, RED),
        8,
    ),
    "a second prompt": ({"text": RED, "method": "memflow_interactive"}, {1: BRIEF}, BRIEF, 4),
}


@pytest.mark.parametrize("case", TAKEN)
def test_what_has_not_begun_is_changed_and_the_video_is_found_again(backbone, job, case):
    options, texts, made, block = TAKEN[case]
    story = Edits(texts)
    options = dict(options)
    latents, result = render(backbone, job(options.pop("text", PLANNED), **options), story)
    wanted = job(made, **options)
    assert story.changes == [block] and torch.equal(latents, fresh(backbone, wanted)[0])
    assert (
        result.job.about["seeds"] == wanted.about["seeds"] and len(story.refusals) == len(texts) - 1
    )
    assert render(backbone, wanted)[1].reused_blocks == wanted.plan.new_blocks


@pytest.mark.parametrize("method", ["head_forcing", "rolling_forcing"])
def test_a_stopped_render_goes_on_with_the_changed_story(backbone, job, method):
    planned = job(PLANNED, method)
    wanted = job(CHANGED, method)
    with pytest.raises(Stop):
        render(backbone, planned, listeners=[StopAt(0)])
    with pytest.raises(Stop):
        render(backbone, planned, Edits({1: CHANGED}), listeners=[StopAt(6)])
    latents, result = render(backbone, wanted)
    assert result.reused_blocks == 7 and torch.equal(latents, fresh(backbone, wanted)[0])
    prompts = {len(video.about["prompts"]) for video in stored_videos(wanted.request.runs)}
    assert prompts == {3, 4}, "the first story stays listed"


def test_blocks_under_way_in_a_rolling_window_keep_their_prompts_after_a_stop(backbone, job):
    """Two blocks are stored, and the next four are partly denoised: the prompt of block 5 stays."""
    planned = f"0:00 {RED}\n0:03.8 {CROSS}"
    other = f"0:00 {RED}\n0:03.8 {CUBE}"
    made = job(planned, "rolling_forcing")
    with pytest.raises(Stop):
        render(backbone, made, listeners=[StopAt(1)])
    story = Edits({0: other})
    latents, result = render(backbone, made, story)
    assert result.reused_blocks == 2 and torch.equal(latents, fresh(backbone, made)[0])
    (refusal,) = story.refusals
    assert "prompt 2 has begun" in refusal and story.changes == []


def windows_of(job):
    return [row.window_frames for row in job.plan.rows]


def test_blocks_that_have_begun_keep_the_window_that_a_later_switch_gave_them(backbone, job):
    """SWIFT's window grows towards a switch: block 3 reads 11 frames before one at block 4, and 10
    before one at block 6.
    """
    planned = job(PLANNED, "swift")
    later = job(PLANNED.replace("0:03 ", "0:04.5 "), "swift")
    before = windows_of(planned)
    after = windows_of(later)
    assert before[3:5] == [11, 12] and after[3:5] == [10, 10]
    story = Edits({4: PLANNED.replace("0:03 ", "0:04.5 ")})
    latents, result = render(backbone, planned, story)
    assert story.changes == [4] and story.refusals == []
    made = result.job
    assert windows_of(made) == [*before[:4], *after[4:]]
    assert made.keys[:4] == planned.keys[:4] and made.keys[4] not in (
        planned.keys[4],
        later.keys[4],
    )
    straight, _ = render(backbone, made.with_request(runs=None))
    assert torch.equal(latents, straight), "the latents are those of their keys"
    again, found = render(backbone, later)
    assert found.reused_blocks == 3 and torch.equal(again, fresh(backbone, later)[0])
    assert not torch.equal(again, latents)


DIVIDED = (
    "the passes or caches of this video depend on its length, which cannot change during the "
    "render: it has "
    "7 s"
)
TWO = f"0:00 {RED}\n0:01.5 {CUBE}"
REFUSED = {  # the story, how it is made, what is told before block 6 or `at`, and what is said of it
    "text": (PLANNED, {}, f"0:00 {RED}\n0:00 {CROSS}", "line 2: 0:00 does not come after 0:00"),
    "begun": (
        PLANNED,
        {},
        PLANNED.replace(CROSS, CUBE),
        "prompt 2 has begun and its finished blocks stay: leave ",
    ),
    "earlier": (PLANNED, {}, PLANNED.replace("0:06 ", "0:03.6 "), "prompt 2 has begun"),
    "first": (PLANNED, {}, PLANNED.replace(RED, CUBE), "before 0:04.312 (block 7 of 10)"),
    "same": (PLANNED, {}, PLANNED, "this story is being rendered already"),
    "in a rolling window": (
        PLANNED,
        {"method": "rolling_forcing", "at": 5},
        PLANNED.replace(CUBE, RED),
        "prompt 3 has begun",
    ),
    "the first of several": (
        RED,
        {"method": "memflow"},
        f"0:00 {RED}\n0:06 {CROSS}",
        "one prompt differently from",
    ),
    "no embedding": (PLANNED, {}, PLANNED.replace(CUBE, "a thing"), "no embedding of 'a thing'"),
    "no memory": (RED, {"method": "longlive"}, f"0:00 {RED}\n0:06 {CROSS}", "not enough memory"),
    "shorter": (
        PLANNED,
        {"then": 4.2},
        BRIEF,
        "have begun and stay (block 7 of 10): end the story after that",
    ),
    "causvid": (TWO, {"method": "causvid", "then": 9.0}, TWO, DIVIDED),
    "short": (
        TWO,
        {"seconds": 2.0, "then": 9.0, "at": 0},
        TWO,
        "it has 2 s, the new story 9 s; make the new story",
    ),
}


class Small(Edits):
    """Without embeddings of new prompts, or without memory for the first switch that writes blocks
    again.
    """

    free = None

    def encode(self, texts):
        raise HeadForcingError(f"no embedding of {texts[0]!r}")

    def check(self, plan, more):
        check_growth(more, self.free)


@pytest.mark.parametrize("name", REFUSED)
def test_a_story_that_cannot_be_taken_changes_nothing(backbone, job, name):
    planned, options, text, sentence = REFUSED[name]
    options = {"at": 6, "then": SECONDS, **options}
    story = Small({options.pop("at"): text}, options.pop("then"))
    made = job(planned, **options)
    story.free = 0 if name == "no memory" else None
    latents, result = render(backbone, made, story)
    (refusal,) = story.refusals
    assert sentence in refusal and story.changes == [] and result.plan == made.plan
    assert torch.equal(latents, fresh(backbone, made)[0])
    if name == "same":  # and where everything has begun
        render(backbone, made, again := Edits({0: CHANGED}))
        assert again.refusals == [
            "all blocks have begun, nothing is left to change; queue the new story as a render"
        ]


LONGER = f"{CHANGED}\n0:08 {CROSS}"


@pytest.mark.parametrize(("seconds", "text"), [(9.0, LONGER), (5.2, BRIEF)])
def test_latents_file_and_notes_are_those_of_a_render_that_had_the_story_and_its_length(
    backbone, job, tmp_path, seconds, text
):
    wanted = job(text, seconds=seconds)
    planned = job(PLANNED)
    decoder = planned.request.codec.decoder
    path = tmp_path / "told.mp4"
    mp4 = VideoFile(FileTarget.at(path, lambda plan: decoder(plan.vae_notes)))
    latents, result = render(backbone, planned, Edits({4: text}, seconds), [mp4])
    with av.open(str(path)) as container:
        tags = json.loads(container.metadata["head_forcing"])
    assert result.plan == wanted.plan and torch.equal(latents, fresh(backbone, wanted)[0])
    assert result.job.about["video_frames"] == mp4.info.video_frames == wanted.plan.video_frames
    assert tags == json.loads(file_tags(wanted.about)["head_forcing"]) | {"story": "as it was told"}
    (video,) = stored_videos(tmp_path / "runs")
    assert video.take.number == 1 and video.about.items() >= about_story(wanted.plan).items(), (
        "the same take"
    )
    assert render(backbone, wanted)[1].reused_blocks == wanted.plan.blocks


def test_prompts_that_a_story_gives_up_leave_memory(backbone, job):
    """Every block but the first begins with an edit of the last prompt; embeddings of umT5 take 8
    MB each.
    """
    alive = weakref.WeakSet()
    most = []

    class WeaklyHeldEdits(Edits):
        def encode(self, texts):
            embeds = super().encode(texts)
            alive.update(embeds.values())
            return embeds

        def taken(self, plan, block):
            super().taken(plan, block)
            gc.collect()
            most.append(len(alive))

    texts = {
        block: f"0:00 {RED}\n0:03 [blend 1] {CROSS}\n0:05 a cube, {block}" for block in range(1, 7)
    }
    planned = job(texts[1])
    story = WeaklyHeldEdits(texts)
    latents, result = render(backbone, planned, story)
    assert len(story.changes) == 5 and len(story.encoded) == 5
    assert result.job.request.embeds.keys() == {RED, CROSS, "a cube, 6"}
    assert max(most) <= 2, "those of the story that is told, and no others"
    assert torch.equal(latents, fresh(backbone, job(texts[6]))[0])
    render(backbone, planned.with_request(runs=None))  # the first story is still there
