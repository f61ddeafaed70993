"""A video without a fixed end: what is performed is the story that it becomes, and it has the same
bits when it is rendered again.
"""

import sys
import threading
from dataclasses import replace

import pytest
import torch
from headforcing.cli.values import EmbeddedModel
from headforcing.headforcing_core.demo import assets
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.live import audience
from headforcing.headforcing_core.live.audience import Audience, Pages, Player
from headforcing.headforcing_core.live.performance import Performance
from headforcing.headforcing_core.live.story import Beats, GrowingStory, Said
from headforcing.headforcing_core.methods.options import with_options
from headforcing.headforcing_core.methods.registry import METHODS, method_named
from headforcing.headforcing_core.render.render import Listener, Place, make_video
from headforcing.headforcing_core.render.sinks import KeptLatents
from headforcing.headforcing_core.rollout.loop import WanVideoModel
from headforcing.headforcing_core.runs.folder import RunFolder
from headforcing.headforcing_core.runs.stored import stored_videos
from headforcing.headforcing_core.timeline.clock import BlockClock
from headforcing.headforcing_core.timeline.timeline import parse_timeline
from toy_renders import LiveTexts, Render, toy_model

pytestmark = pytest.mark.usefixtures("shots")

RED = "a red ball bouncing in the teal plain room"
CROSS = "a yellow cross circling in the navy room"
CUBE = "a blue square in the pink room"
BEGIN = f"0:00 {RED}"


class Nobody(Audience):
    """Watches nothing, so that the render never waits."""

    def position(self, end):
        return None


class Script(Listener):
    """Calls functions when blocks are finished; stands before the performance."""

    def __init__(self, calls):
        self.calls = calls

    def add(self, block):
        assert block.index < 60, "the video does not end"
        call = self.calls.get(block.index)
        if call is not None:
            call()


@pytest.fixture(scope="module")
def backbone():
    return toy_model(layers=2)


@pytest.fixture
def job_of_text(backbone, tmp_path):
    def make(text, seconds, method="head_forcing", pairs=(), **options):
        settings = with_options(method_named(method), pairs, method)
        if method == "head_forcing":
            settings = with_options(settings, (("scenes", "auto"),), method)
        made = Render(
            backbone,
            tmp_path / "runs",
            text,
            seconds,
            method=settings,
            sigmas="" if method_named(method).own_schedule else "1, 0.6",
            **options,
        )
        return made.job.with_request(
            codec=EmbeddedModel(assets.model_path()).codec(torch.device("cpu"), torch.float32)
        )

    return make


def read(text, seconds=None):
    return parse_timeline(text, seconds)


def perform(backbone, job, said, text=BEGIN, audience=None, **options):
    """The latents, the result and the performance; `said` is by the number of the block that is
    finished when it is called.
    """
    host = LiveTexts({}, 30.0)
    performance = Performance(text, read, host, audience=audience or Nobody(), **options)
    performance.futures = []
    performance.host = host

    def call(what):
        return lambda: performance.futures.append(what(performance))

    kept = KeptLatents()
    calls = {block: call(what) for block, what in said.items()}
    listeners = [kept, Script(calls), performance]
    result = make_video(job, WanVideoModel(backbone, torch.float32), Place(), listeners)
    return torch.cat(kept.blocks), result, performance


SAID = {
    1: lambda live: live.perform(CROSS),
    3: lambda live: live.perform(CUBE, "dissolve 1.5s"),
    6: lambda live: live.perform(RED, "cut"),
    9: lambda live: live.perform(recall=2),
    12: lambda live: live.perform(),
    15: lambda live: live.perform("[recache] the same blue square"),
    17: lambda live: live.stop(),
}


def test_what_was_performed_is_found_again_block_by_block(backbone, job_of_text):
    job = job_of_text(BEGIN, 30)
    latents, result, live = perform(backbone, job, SAID)
    placed = [future.result() for future in live.futures]
    assert [each.block for each in placed] == [2, 4, 7, 10, 13, 16, 18]
    assert live.host.refusals == []
    story = live.story
    assert story.timeline.blocks == len(latents) // 3 == 19
    wanted = job_of_text(story.text, story.timeline.seconds)
    assert wanted.keys == result.job.keys and wanted.plan.rows == result.plan.rows
    again = make_video(wanted, WanVideoModel(backbone, torch.float32))
    assert again.reused_blocks == 19
    straight = KeptLatents()
    make_video(
        wanted.with_request(runs=None), WanVideoModel(backbone, torch.float32), Place(), [straight]
    )
    assert torch.equal(torch.cat(straight.blocks), latents)
    assert story.text.splitlines()[3].endswith(f"[re-anchor] {RED}")
    (stored,) = stored_videos(job.request.runs)
    assert len(stored.about["prompts"]) == 7, "the note is that of the whole performance"


@pytest.mark.parametrize("looks_ahead", [True, False])
def test_blocks_are_made_without_the_prompts_that_follow_them(backbone, job_of_text, looks_ahead):
    """SWIFT's blocks depend on the next prompt if it is known. What is performed is not; rendered
    again it is, unless the method does not look ahead.
    """
    pairs = () if looks_ahead else (("before_switch_frames", "0.0"),)
    said = {
        9: lambda live: live.perform(CROSS),
        14: lambda live: live.perform(CUBE),
        16: lambda live: live.stop(),
    }
    job = job_of_text(BEGIN, 30, "swift", pairs=pairs)
    latents, result, live = perform(backbone, job, said)
    assert [future.result().block for future in live.futures] == [10, 15, 17]
    windows = [row.window_frames for row in result.plan.rows]
    assert windows == [12, 11, 11, 10, 10, 9, 9, 9, 8, 8, 12, 11, 11, 10, 10, 12, 11, 11]
    again = make_video(result.job, WanVideoModel(backbone, torch.float32))
    assert again.reused_blocks == len(windows), "stored as they were made"
    wanted = job_of_text(live.story.text, live.story.timeline.seconds, "swift", pairs=pairs)
    assert (wanted.keys == result.job.keys) != looks_ahead


def test_the_story_is_made_longer_while_nobody_stops_it(backbone, job_of_text):
    """30 s are 41 blocks; the story grows in time for a block that has not begun, without a new
    prompt.
    """
    lengths = []
    said = {
        26: lambda live: lengths.append(live.story.timeline.seconds),
        28: lambda live: lengths.append(live.story.timeline.seconds),
        42: lambda live: live.perform(CROSS),
        44: lambda live: live.stop(),
    }
    latents, result, live = perform(backbone, job_of_text(BEGIN, 30), said)
    assert lengths == [30, 60] and len(latents) == 3 * 46
    assert live.host.encoded == [CROSS], "a longer story has no new texts"
    wanted = job_of_text(live.story.text_with_length, 0.0)
    assert wanted.keys == result.job.keys


def story_of(*lines, seconds=30.0):
    text = "\n".join(lines)
    return GrowingStory.of(text, read(text), read, clock=BlockClock(), seconds=seconds)


def test_a_prompt_stands_between_those_that_are_planned_and_their_recalls_still_mean_them():
    story = story_of(BEGIN, f"0:06 {CROSS}", f"0:12 [recall 2] {CUBE}", f"0:18 [recall 1] {RED}")
    new = story.with_prompt(Said("the rain begins"), 4)
    assert new.lines[1] == "0:02.812 the rain begins"
    assert new.lines[3:] == (f"0:12 [recall 3] {CUBE}", f"0:18 [recall 1] {RED}")
    timeline = parse_timeline(new.text, 30.0)
    assert replace(new.timeline, alike=timeline.alike) == timeline


def test_a_prompt_takes_the_place_of_one_that_would_begin_with_its_block():
    story = story_of(BEGIN).with_prompt(Said(CROSS), 5).with_prompt(Said(CUBE, "cut"), 5)
    assert story.lines[1:] == (f"0:03.562 [re-anchor] {CUBE}",)
    assert story.timeline == parse_timeline(story.text, 30.0)


@pytest.mark.parametrize("shared", ["", "[shared] oil on canvas"])
@pytest.mark.parametrize("words", ["[cut, seed 7] a fox", r"a \{fox\}", "6:30 pm, a fox", "狐狸"])
def test_a_prompt_is_read_as_it_is_read_in_the_whole_story(words, shared):
    story = story_of(*filter(None, [shared, BEGIN])).with_prompt(Said(words), 5)
    assert story.timeline == parse_timeline(story.text, 30.0)


def test_a_cut_story_is_the_story_as_it_is_written_then():
    story = story_of(BEGIN, f"0:06 {CROSS}", f"0:12 {CUBE}").cut(9)
    assert story.timeline == parse_timeline(story.text_with_length)
    assert story.text_with_length.endswith(f"0:06-0:06.562 {CROSS}")


REFUSED = {
    "no tag": (Said("a fox", "jump"), "'jump' is no tag"),
    "more than a tag": (Said("a fox", "cut] 0:10 [cut"), "is no tag"),
    "a scene that is not there": (Said("a fox", recall=2), r"prompts 1 to 1 .* got \[recall 2\]"),
    "the most alike scene": (Said("[recall] a fox"), r"got \[recall 0\]"),
    "two cuts": (Said("[cut] a fox", "cut"), "contradictory"),
    "behind the end": (Said("a fox"), "ends at 0:30"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_said_is_refused(case):
    said, sentence = REFUSED[case]
    with pytest.raises(HeadForcingError, match=sentence):
        story_of(BEGIN).with_prompt(said, 99 if case == "behind the end" else 5)


def test_a_dissolve_that_has_begun_is_finished(backbone, job_of_text):
    said = {
        1: lambda live: live.perform(CROSS, "blend 3"),
        2: lambda live: live.perform(CUBE),
        7: lambda live: live.stop(),
    }
    _, _, live = perform(backbone, job_of_text(BEGIN, 30), said)
    assert [future.result().block for future in live.futures[:2]] == [2, 6]


@pytest.mark.parametrize("method", METHODS)
def test_a_method_goes_on_or_refuses_at_the_start(backbone, job_of_text, method):
    """No method finds out in the middle of a video that it cannot go on."""
    job = job_of_text(BEGIN, 30, method)
    longer = job_of_text(BEGIN, 90, method)
    caches = (job.plan.shape.frame_slots, longer.plan.shape.frame_slots)
    endless = caches[0] == caches[1] and not job.plan.method.fixed_length
    live = Performance(BEGIN, read, LiveTexts({}, 30.0), audience=Nobody())
    made = []

    class Stop(Exception):
        pass

    class StopAt(Listener):
        def add(self, block):
            made.append(block.index)
            raise Stop

    place = Place()
    model = WanVideoModel(backbone, torch.float32)
    with pytest.raises(Stop if endless else HeadForcingError) as error:
        make_video(job, model, place, [live, StopAt()])
    assert len(made) == endless
    if not endless:
        assert "cannot go on without a fixed end" in str(error.value)


def test_a_full_disk_ends_the_video_with_a_sentence(backbone, job_of_text, monkeypatch):
    from headforcing.headforcing_core.plan import resources

    usage = resources.shutil.disk_usage

    def full(folder):
        found = usage(folder)
        return type(found)(found.total, found.used, 1000)

    monkeypatch.setattr(resources.shutil, "disk_usage", full)
    latents, _, live = perform(backbone, job_of_text(BEGIN, 30), {})
    assert len(latents) == 3 * 41 and live.ends
    (refusal,) = live.host.refusals
    assert refusal.startswith("the video ends at 0:30: not enough disk")


def test_prompts_of_other_threads_wait_for_their_turn_and_none_is_lost(backbone, job_of_text):
    """Eight threads give a prompt each at the same time; the last word of a block counts."""
    futures = []

    def give(live):
        threads = [
            threading.Thread(target=lambda n=n: futures.append(live.perform(f"{CUBE} {n}")))
            for n in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    _, _, live = perform(backbone, job_of_text(BEGIN, 30), {2: give, 5: lambda live: live.stop()})
    assert [future.result().block for future in futures] == [3] * 8
    assert len(live.story.prompts) == 2


def test_a_stop_that_is_taken_at_once_ends_the_video_before_it_can_be_made_longer(
    backbone, job_of_text, monkeypatch
):
    """The render, in its own thread, may take a change before the call that gives it returns."""

    def stop(live):
        put = live._changes.put

        def put_and_take(*change):
            future = put(*change)
            live.ask()
            live._lengthen()
            return future

        with monkeypatch.context() as patch:
            patch.setattr(live._changes, "put", put_and_take)
            return live.stop()

    latents, _, live = perform(backbone, job_of_text(BEGIN, 30), {30: stop})
    assert live.ends and len(latents) == 3 * 32


def test_after_a_stop_the_story_is_not_replaced(backbone, job_of_text):
    said = {
        6: lambda live: live.stop(),
        7: lambda live: live.replace_story(f"{BEGIN}\n0:20 {CROSS}"),
    }
    latents, _, live = perform(backbone, job_of_text(BEGIN, 30), said)
    with pytest.raises(HeadForcingError, match="ending"):
        live.futures[1].result(timeout=1)
    assert len(latents) < 3 * 12


RECALL = f"{BEGIN}\n0:12 {CROSS}\n0:20 [recall 1] {RED}"


def test_scenes_that_come_back_by_likeness_are_refused_in_every_story(backbone, job_of_text):
    """Those of the first story, of one in its place, and of a prompt."""
    with pytest.raises(HeadForcingError, match="depends on all prompts"):
        perform(backbone, job_of_text(RECALL, 30, "echo_forcing"), {}, RECALL)
    begin = f"{BEGIN}\n0:12 {CROSS}"
    said = {
        1: lambda live: live.replace_story(RECALL),
        2: lambda live: live.perform(recall=1),
        3: lambda live: live.stop(),
    }
    _, _, live = perform(backbone, job_of_text(begin, 30, "echo_forcing"), said, begin)
    for future in live.futures[:2]:
        with pytest.raises(HeadForcingError, match="depends on all prompts"):
            future.result(timeout=1)


def test_prompts_without_times_begin_where_the_plan_has_them(backbone, job_of_text):
    """Two prompts share 20 s, and the last one goes on to 30 s."""
    text = f"{RED} | {CROSS}"
    said = {2: lambda live: live.perform(CUBE), 20: lambda live: live.stop()}
    _, result, live = perform(backbone, job_of_text(text, 30), said, text)
    assert [line.split()[0] for line in live.story.lines] == ["0:00", "0:02.062", "0:10"]
    assert result.job.keys == job_of_text(live.story.text, live.story.timeline.seconds).keys


def test_a_note_that_cannot_be_written_does_not_end_the_video(
    backbone, job_of_text, monkeypatch, caplog
):
    def full(*args, **kwargs):
        raise HeadForcingError("no space left")

    save = RunFolder.save_video
    said = {
        2: lambda live: monkeypatch.setattr(RunFolder, "save_video", full),
        3: lambda live: live.perform(CROSS),
        6: lambda live: monkeypatch.setattr(RunFolder, "save_video", save),
        7: lambda live: live.stop(),
    }
    _, _, live = perform(backbone, job_of_text(BEGIN, 30), said)
    assert len(live.story.prompts) == 2 and "no space left" in caplog.text


def test_what_is_given_after_the_end_is_refused(backbone, job_of_text):
    latents, result, live = perform(backbone, job_of_text(BEGIN, 30), {1: lambda live: live.stop()})
    assert len(latents) == 12, "a shorter video has smaller caches"
    assert result.job.keys == job_of_text(BEGIN, live.story.timeline.seconds).keys
    with pytest.raises(HeadForcingError, match="has ended"):
        live.perform(CROSS).result(timeout=1)


class Watched(Audience):
    """Plays a quarter of a second each time it is asked, and notes how far ahead the render is."""

    def __init__(self):
        self.second = 0.0
        self.ahead = []

    def position(self, end):
        self.second = min(end, self.second + 0.25)
        self.ahead.append(end - self.second)
        return self.second


def test_the_render_stays_ahead_of_who_watches_and_no_further(backbone, job_of_text):
    audience = Watched()
    waits = []
    said = {20: lambda live: live.stop()}
    options = {"lead": 2.0, "while_waiting": lambda: waits.append(audience.second)}
    perform(backbone, job_of_text(BEGIN, 30), said, audience=audience, **options)
    assert 2.0 < max(audience.ahead) <= 2.0 + 0.75
    assert len(waits) > 15, "it waits between blocks"


@pytest.mark.parametrize("spare", [True, False])
def test_words_that_are_expected_are_encoded_while_the_render_waits(backbone, job_of_text, spare):
    """Only if the last encoding was shorter than the render can wait."""
    encoded = {}

    def expect(live):
        live._changes.encode_seconds = 0.0 if spare else 100.0
        live.expect("half a wor")
        live.expect(CROSS)
        live.expect("")
        live.expect(CUBE)

    def give(live):
        encoded["before"] = list(live.host.encoded)
        given = live.perform(CUBE)
        given.add_done_callback(lambda placed: encoded.update(after=list(live.host.encoded)))

    said = {2: expect, 8: give, 12: lambda live: live.expect("[recall 9] a"), 16: Performance.stop}
    _, _, live = perform(backbone, job_of_text(BEGIN, 30), said, audience=Watched(), lead=2.0)
    assert encoded == {"before": [CUBE] if spare else [], "after": [CUBE]}
    assert [prompt.text for prompt in live.story.prompts] == [RED, CUBE]
    assert live.host.refusals == []


@pytest.fixture
def clock(monkeypatch):
    """Seconds that a test sets."""
    now = [100.0]
    monkeypatch.setattr("headforcing.headforcing_core.live.audience.time.monotonic", lambda: now[0])
    return now


def test_a_page_that_says_nothing_plays_on_for_two_seconds(clock):
    pages = Pages()
    assert pages.position(9.0) == 0.0, "it has not got the first picture yet"
    pages.tell("a", 1.0, 1.0)
    pages.tell("b", 3.0, 0.5)
    clock[0] += 1.0
    assert pages.position(9.0) == 3.5
    clock[0] += 4.0
    assert pages.position(9.0) == 4.0
    assert pages.position(3.2) == 3.2, "no page shows what is not made"


def test_no_page_is_lost_where_many_tell_at_the_same_time(monkeypatch):
    pages = Pages()
    interval = sys.getswitchinterval()

    def tell(page):
        for second in range(100):
            pages.tell(f"{page}-{second}", float(second), 1.0)

    threads = [threading.Thread(target=tell, args=(page,)) for page in range(8)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert len(pages._present) == 800


def test_a_video_without_a_page_and_one_that_is_paused_come_to_an_end(clock):
    pages = Pages()
    for _ in range(2):
        assert pages.leaving == "", "a model that is loaded takes its time"
        assert pages.position(9.0) == 0.0
        clock[0] += 60.0
    pages.begin()
    clock[0] += 9.0
    assert pages.leaving == ""
    pages.tell("a", 1.0, 0.0)
    clock[0] += 9.0
    assert pages.leaving == ""
    clock[0] += 2.0
    assert pages.leaving == "no page has shown it for 10 s" and pages.position(9.0) is None
    for _ in range(60):
        pages.tell("a", 1.0, 0.0)
        clock[0] += 5.0
    assert pages.leaving == "it was paused for 5 minutes"
    pages.tell("a", 1.5, 0.0)
    assert pages.leaving == "", "whoever seeks is there"


def test_a_player_waits_where_the_video_is_late(clock):
    player = Player()
    assert player.position(0.75) == 0.0
    clock[0] += 3.0
    assert player.position(0.75) == 0.75
    clock[0] += 0.5
    assert player.position(1.5) == 1.25


@pytest.mark.parametrize("position", [None, 0.0], ids=["lost", "paused"])
def test_a_video_that_nobody_watches_any_more_is_finished(backbone, job_of_text, position):
    class Gone(Pages):
        leaving = "no page has shown it for 10 s"

        def position(self, end):
            return position

    latents, _, live = perform(backbone, job_of_text(BEGIN, 30), {}, audience=Gone())
    assert live.why == Gone.leaving and len(latents) < 3 * 8


def test_pages_have_time_from_the_first_block_on(backbone, job_of_text, monkeypatch):
    def fail():
        raise AssertionError("nobody is waited for")

    monkeypatch.setattr(audience, "LOST_SECONDS", 0.0)
    _, _, live = perform(backbone, job_of_text(BEGIN, 30), {}, audience=Pages(), while_waiting=fail)
    assert live.why == "no page has shown it for 0 s"


def test_a_prompt_begins_where_a_block_is_nearest_to_a_beat(backbone, job_of_text):
    """Blocks begin at 1.3125, 2.0625, 2.8125, 3.5625 s; beats are at 0.55 + 0.6 n."""
    clock = BlockClock()
    assert Beats(0.6, 0.55).nearest_block(2, clock) == 5
    assert Beats(0.75, 0.5625).nearest_block(2, clock) == 2, "of equally near ones the first"
    said = {
        1: lambda live: live.perform(CROSS, beats=Beats(0.6, 0.55)),
        6: lambda live: live.stop(),
    }
    _, _, live = perform(backbone, job_of_text(BEGIN, 30), said)
    assert live.futures[0].result().block == 5


def test_a_prompt_that_is_being_taken_when_the_render_breaks_off_is_answered(backbone, job_of_text):
    class Breaks(LiveTexts):
        def encode(self, texts):
            raise KeyboardInterrupt

    live = Performance(BEGIN, read, Breaks({}, 30.0), audience=Nobody())
    futures = []
    script = Script({1: lambda: futures.append(live.perform(CROSS))})
    model = WanVideoModel(backbone, torch.float32)
    with pytest.raises(KeyboardInterrupt):
        make_video(job_of_text(BEGIN, 30), model, Place(), [script, live])
    with pytest.raises(HeadForcingError, match="has ended"):
        futures[0].result(timeout=1)
