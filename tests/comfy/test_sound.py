"""The sound of a story in ComfyUI: in the file that grows, in parts and takes, from latents."""

import base64
import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlencode

import av
import numpy as np
import pytest
import torch
from comfy_browser import Browser, of_player, of_widget
from comfy_graphs import (
    changed,
    decode,
    demo_graph,
    failed,
    growing_graph,
    node,
    queued,
    stopper,
    text_of,
)
from comfy_harness import ComfyServer
from headforcing.headforcing_core.video.writer import VideoSettings, VideoWriter
from playwright.sync_api import Page
from sound_claims import file_with_a_gap, riff_wave
from sound_files import RATE, beat_file, heard, near, sound_file, with_sound, write_wave


def has_sound(path: Path) -> bool:
    with av.open(str(path)) as container:
        return bool(container.streams.audio)


def test_the_file_of_a_story_has_its_sound_which_takes_parts_and_latents_keep(comfy: ComfyServer):
    sound_file(comfy, "hf_clicks.wav", 6)
    graph = with_sound(growing_graph("sound/v", seed=61), "hf_clicks.wav")
    graph["video"] = decode("sound/decoded")
    queued(comfy, graph)
    folder = comfy.output_dir / "sound"
    assert near(heard(folder / "v_00001_.mp4"), [0.5, 2.0, 4.25])
    assert near(heard(folder / "decoded_00001_.mp4"), [0.5, 2.0, 4.25])
    queued(comfy, changed(graph, "sampler", decode_in_background=True))
    assert not (folder / "v_00002_.mp4").exists(), "the take has its file, with this sound"
    moved = changed(graph, "timeline", audio_offset=1.0, audio_gain=-2.0)
    assert "reused 9 blocks" in text_of(queued(comfy, moved)), "blocks do not depend on it"
    assert near(heard(folder / "v_00002_.mp4"), [1.5, 3.0, 5.25])
    part = changed(graph, "sampler", from_seconds=3.0, until_seconds=6.0)
    queued(comfy, part)
    (third,) = [path for path in folder.glob("v_*.mp4") if path.name > "v_00002_.mp4"]
    times = heard(third)
    assert len(times) == 1
    with av.open(str(third)) as container:
        length = container.streams.video[0].frames / 16
    assert abs(6.0 - length + times[0] - 4.25) < 0.02, "the click is where it is in the story"


def test_at_another_rate_the_sound_begins_with_the_story_after_start_frames(comfy: ComfyServer):
    sound_file(comfy, "hf_after.wav", 2, clicks=(0.5,))
    with VideoWriter(VideoSettings(comfy.input_dir / "hf_before.mp4"), 64, 64) as writer:
        writer.write(torch.zeros(30, 64, 64, 3))
    graph = growing_graph("sound_start/v", 2.0, "0:00 a red ball", start_video=["before", 0])
    graph = with_sound(graph, "hf_after.wav")
    graph["before"] = node("LoadVideo", file="hf_before.mp4")
    graph["video"] = decode("sound_start/decoded", fps=24.0)
    queued(comfy, graph)
    folder = comfy.output_dir / "sound_start"
    (click,) = heard(folder / "v_00001_.mp4")
    assert click > 1, "there are start frames"
    assert near(heard(folder / "decoded_00001_.mp4"), [(click - 0.5) * 16 / 24 + 0.5])


def test_a_stopped_render_goes_on_with_sound_and_without_seconds_a_story_ends_with_it(
    comfy: ComfyServer,
):
    sound_file(comfy, "hf_short.wav", 4.5, clicks=(1.0, 3.0))
    graph = with_sound(growing_graph("sound_stop/v", seed=62), "hf_short.wav", seconds=0.0)
    stopped = comfy.queue(graph, on_event=stopper(comfy, at=12))
    assert stopped.outcome == "interrupted"
    (partial,) = (comfy.output_dir / "sound_stop").glob("*.part.mp4")
    assert has_sound(partial)
    queued(comfy, graph)
    (file,) = (comfy.output_dir / "sound_stop").iterdir()
    assert near(heard(file), [1.0, 3.0])
    with av.open(str(file)) as container:
        assert container.streams.video[0].frames == 72


def test_without_sound_there_is_none_and_what_is_no_sound_is_said(comfy: ComfyServer):
    graph = growing_graph("sound_none/v", seed=63, seconds=1.5)
    graph = changed(graph, "timeline", prompts="a red ball bouncing in the teal plain room")
    queued(comfy, graph)
    assert not has_sound(comfy.output_dir / "sound_none" / "v_00001_.mp4")
    sound_file(comfy, "hf_short.wav", 1.0, clicks=())
    given = with_sound(demo_graph(), "hf_short.wav", seconds=0.0, audio_offset=-2.0)
    failed(comfy, given, "the story would end with the sound at 0 s")


def test_a_route_says_what_a_sound_is_like_and_reads_nothing_outside_the_folders(
    comfy: ComfyServer,
):
    sound_file(comfy, "hf_beat.wav", 8, clicks=())
    status, answer = comfy.ask("/headforcing/sound?name=hf_beat.wav", None, "GET")
    told = json.loads(answer)
    assert status == 200 and told["seconds"] == pytest.approx(8, abs=0.01)
    peaks = np.frombuffer(base64.b64decode(told["peaks"]), np.uint8)
    assert len(peaks) == pytest.approx(8 * told["peaks_a_second"], abs=2)
    assert (told["onsets"], told["tempo"], told["first_beat"]) == ([], None, None)
    (comfy.input_dir / "hf_text.wav").write_text("no sound")
    (comfy.input_dir.parent / "hf_outside.wav").write_bytes(
        (comfy.input_dir / "hf_beat.wav").read_bytes()
    )
    for name, wanted in (
        ("hf_text.wav", 400),
        ("hf_beat.wav [input]", 200),
        ("none.wav", 404),
        ("", 404),
        ("../hf_outside.wav", 404),
        (str(comfy.input_dir.parent / "hf_outside.wav"), 404),
        ("hf_beat.wav\0", 404),
    ):
        query = urlencode({"name": name})
        status, answer = comfy.ask(f"/headforcing/sound?{query}", None, "GET")
        assert status == wanted, (name, answer)


def test_sounds_that_say_they_last_years_leave_all_routes_alive(comfy: ComfyServer):
    file_with_a_gap(comfy.input_dir / "hf_years.mka", 10**8)
    file_with_a_gap(comfy.input_dir / "hf_hours.mka", 35_000)
    riff_wave(comfy.input_dir / "hf_channels.wav", 32, 192_000)
    sound_file(comfy, "hf_good.wav", 2, clicks=())

    def asked(name: str) -> tuple[int, bytes]:
        return comfy.ask(f"/headforcing/sound?name={name}", None, "GET")

    for _ in range(8):  # whose pages are gone at once
        address = ("127.0.0.1", comfy.port)
        with socket.create_connection(address) as gone:
            gone.sendall(
                f"GET /headforcing/sound?name=hf_hours.mka HTTP/1.1\r\nHost: 127.0.0.1:{comfy.port}"
                "\r\n\r\n".encode()
            )
    with ThreadPoolExecutor(8) as pages:
        waiting = [pages.submit(asked, "hf_years.mka") for _ in range(8)]
        begun = time.perf_counter()
        story = {"text": "a ball", "seconds": 2.0, "shared_prompt": "", "switch": "reset"}
        status, told = comfy.ask("/headforcing/timeline", story)
        assert status == 200, told
        assert time.perf_counter() - begun < 30, "on a busy machine; else it takes hours"
        answers = [each.result() for each in waiting]
    assert {status for status, _ in answers} == {400}
    assert b"lasts more than 36000 s" in answers[0][1]
    assert asked("hf_channels.wav")[0] == 400
    (comfy.input_dir / "hf_loop.wav").symlink_to(comfy.input_dir / "hf_loop.wav")
    assert asked("hf_loop.wav")[0] == 404
    assert asked("hf_good.wav")[0] == 200
    assert time.perf_counter() - begun < 50


@pytest.mark.slow
@pytest.mark.parametrize("browser", ["comfy_latest, Nodes 2.0"], indirect=True)
def test_it_is_heard_while_the_video_grows_after_the_first_click(browser: Browser):
    """The page decodes sound from the growing file, stays silent until a click, then plays on with
    sound.
    """
    page = browser.page
    sound_file(browser.server, "hf_clicks.wav", 24, clicks=np.arange(0.5, 23.5, 0.5))
    graph = with_sound(growing_graph("sound_page/v", seconds=24.0, seed=64), "hf_clicks.wav")
    browser.load_api(graph)
    browser.fit_view()
    browser.server.hold(33)  # 6 of 24 seconds
    browser.queue()
    video = f"{of_player()}?.querySelector('video')"
    page.wait_for_function(
        f"{video}?.src.startsWith('blob:') && {video}.webkitAudioDecodedByteCount > 0"
    )
    told = page.evaluate(f"({video}.muted, [{video}.muted, {video}.duration])")
    assert told[0] is True and 0 < told[1] < 24.5
    page.wait_for_function(f"!{video}.paused && {video}.currentTime > 0.3")
    page.evaluate(f"{video}.click()")
    assert page.evaluate(f"[{video}.muted, {video}.paused]") == [False, False]
    browser.server.hold(None)
    assert browser.wait_done() == "success"
    page.wait_for_function(f"!{video}.src.startsWith('blob:')")
    before = page.evaluate(f"{video}.webkitAudioDecodedByteCount")
    page.evaluate(f"{video}.play()")
    page.wait_for_function(f"{video}.webkitAudioDecodedByteCount > {before}")
    assert page.evaluate(f"{video}.muted") is False, "the finished file is heard, too"
    assert browser.page_errors == []


_EDITOR_TEXT = of_widget("PromptTimeline", "prompts")
_SECONDS = of_widget("PromptTimeline", "seconds")


@pytest.mark.slow
@pytest.mark.repeat("comfy_latest]")
@pytest.mark.parametrize("browser", ["comfy, Nodes 2.0", "comfy_latest"], indirect=True)
def test_the_panel_shows_the_sound_its_tempo_and_how_far_a_scene_is_from_a_beat(browser: Browser):
    page = browser.page
    beat_file(browser.server, "hf_beat120.wav", 20)
    story = "0:00 a red ball\n0:05 a blue cross\n0:09 a green star"
    graph = growing_graph("sound_lane/v", seconds=12.0, prompts=story, seed=72)
    browser.load_api(with_sound(graph, "hf_beat120.wav"))
    page.wait_for_function("document.querySelectorAll('.hf-bar').length === 3")
    page.evaluate("app.extensionManager.bottomPanel.toggleBottomPanelTab('headforcing.story')")
    page.wait_for_selector(".hf-story-sound:not([hidden])")
    page.wait_for_function("document.querySelector('.hf-story-bpm').textContent.startsWith('120')")
    page.locator(".hf-story-sound-tools input[value='x2']").click()
    page.wait_for_function("document.querySelector('.hf-story-bpm').textContent.startsWith('240')")
    page.locator(".hf-story-sound-tools input[value='/2']").click()
    page.wait_for_function("document.querySelector('.hf-story-bpm').textContent.startsWith('120')")
    coloured = """() => {
      const canvas = document.querySelector(".hf-story-wave");
      const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      let ticks = 0, wave = 0;
      for (let at = 0; at < data.length; at += 4) {
        ticks += data[at] > 220 && data[at + 2] < 120 && data[at + 3] > 200;
        wave += data[at] < 150 && data[at + 1] > 160 && data[at + 3] > 200;
      }
      return [ticks, wave];
    }"""
    ticks, wave = page.evaluate(coloured)
    assert ticks > 24 * 6 and wave > 2000, "24 beats in 12 seconds, and a waveform"
    # a beat is at 5.25 s, the nearest block of the second scene begins at 5.0625 s
    page.locator(".hf-story .hf-bar").nth(1).click()
    near = "document.querySelector('.hf-story-near').textContent"
    page.wait_for_function(f"{near} === 'begins 0.19 s before the beat'")
    page.evaluate(f"() => {{ {_SECONDS}.value = 9.5; {_SECONDS}.callback?.(9.5); }}")
    page.locator(".hf-story-sound-tools input[value='length of the sound']").click()
    page.wait_for_function(f"Math.abs({_SECONDS}.value - 20) < 0.02")
    page.evaluate("app.extensionManager.bottomPanel.toggleBottomPanelTab('headforcing.story')")
    page.wait_for_selector(".hf-story-sound", state="detached")
    assert browser.page_errors == []


def drag(page: Page, seconds: float, alt: bool = False) -> None:
    """Drag the beginning of the second prompt of a story of 17 blocks to a time."""
    handle = page.locator(".hf-story .hf-handle").nth(1)
    box = handle.bounding_box()
    inner = page.locator(".hf-story .hf-inner").bounding_box()
    assert box and inner
    target = inner["x"] + inner["width"] * seconds / (0.5625 + 0.75 * 16)
    before = page.evaluate(f"{_EDITOR_TEXT}.value")
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.down()
    if alt:
        page.keyboard.down("Alt")
    page.mouse.move(target - 30, box["y"] + 20, steps=3)
    page.mouse.move(target, box["y"] + 20, steps=3)
    page.mouse.up()
    if alt:
        page.keyboard.up("Alt")
    page.wait_for_function("(before) => " + f"{_EDITOR_TEXT}.value !== before", arg=before)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("browser", ["comfy_latest, Nodes 2.0"], indirect=True)
def test_a_dragged_bar_snaps_to_an_onset_and_with_alt_to_none(browser: Browser):
    """A beat is just beyond the middle between two blocks: near it a bar goes to the later one."""
    page = browser.page
    # blocks begin at 0.5625 + 0.75 n; between 4.3125 and 5.0625 the middle is 4.6875
    samples = np.zeros(12 * RATE, np.float32)
    at = np.arange(RATE // 4) / RATE
    place = round(4.72 * RATE)
    samples[place : place + len(at)] = 0.8 * np.sin(2 * np.pi * 70 * at) * np.exp(-14 * at)
    write_wave(browser.server.input_dir / "hf_one.wav", samples)
    story = "0:00 a red ball\n0:03 a blue cross"
    graph = growing_graph("sound_snap/v", seconds=12.0, prompts=story, seed=73)
    browser.load_api(with_sound(graph, "hf_one.wav"))
    page.wait_for_function("document.querySelectorAll('.hf-bar').length === 2")
    page.evaluate("app.extensionManager.bottomPanel.toggleBottomPanelTab('headforcing.story')")
    page.wait_for_selector(".hf-story-sound:not([hidden])")
    found = []
    for alt in (True, False):
        drag(page, 4.65, alt)
        found.append(page.evaluate(f"{_EDITOR_TEXT}.value").split("\n")[1][:7])
    assert found == ["0:04.31", "0:05.06"]
    assert browser.page_errors == []


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.repeat("comfy, Nodes 2.0]")
@pytest.mark.parametrize("browser", ["comfy, Nodes 2.0", "comfy_latest"], indirect=True)
def test_the_tempo_that_was_set_is_kept_with_the_workflow_and_bars_snap_to_its_beats(
    browser: Browser,
):
    """From 7 s on the sound is silent: there are beats of the tempo, and no onsets."""
    page = browser.page
    name = "hf_tempo.wav"
    beat_file(browser.server, name, 20, until=7)
    story = "0:00 a red ball\n0:08 a blue cross"
    graph = growing_graph("sound_tempo/v", seconds=12.0, prompts=story, seed=74)
    browser.load_api(with_sound(graph, name))
    page.wait_for_function("document.querySelectorAll('.hf-bar').length === 2")
    toggle = "app.extensionManager.bottomPanel.toggleBottomPanelTab('headforcing.story')"
    bpm = "document.querySelector('.hf-story-bpm')?.textContent.startsWith('%s')"
    page.evaluate(toggle)
    page.wait_for_function(bpm % "120")
    page.locator(".hf-story-sound-tools input[value='x2']").click()
    page.wait_for_function(bpm % "240")
    page.wait_for_timeout(2500)  # the frontend stores what is open after a moment
    page.reload(wait_until="domcontentloaded")
    browser.wait_until_open()
    page.wait_for_function("document.querySelectorAll('.hf-bar').length === 2")
    page.evaluate(toggle)
    page.wait_for_function(bpm % "240")
    page.evaluate(
        """(tempo) => {
          const graph = app.graph.serialize();
          const story = graph.nodes.find(({ type }) => type === "HeadForcingPromptTimeline");
          story.properties.headforcing_tempo = tempo;
          return app.loadGraphData(graph);
        }""",
        {name: {"factor": 1, "first": 0.2}},
    )
    page.wait_for_function(bpm % "120")
    found = []
    # beats are at 8.2, 8.7, 9.2; between the blocks at 8.8125 and 9.5625 the middle is 9.1875
    for alt in (True, False):
        drag(page, 9.17, alt)
        found.append(page.evaluate(f"{_EDITOR_TEXT}.value").split("\n")[1][:7])
    assert found == ["0:08.81", "0:09.56"]
    assert browser.page_errors == []
