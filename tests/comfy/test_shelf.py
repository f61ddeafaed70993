"""Takes in the browser: chosen by their pictures, and played, compared, restored, named and deleted
on the sampler.
"""

import pytest
from comfy_browser import Browser, of_node, of_player
from comfy_graphs import CROSS, growing_graph

pytestmark = pytest.mark.slow

# a story of this file alone: takes are counted by story
BALL = "a pink ball circling in the brown plain room"
_PLAYED = f"{of_player()}.querySelector('video')"
_VIDEOS = f"""() => {{
  return [...{of_player()}.querySelectorAll("video")].map((video) => {{
    const {{ currentTime, paused, duration }} = video;
    const file = new URL(video.src).searchParams.get("filename");
    return {{ file, currentTime, paused, duration, left: video.getBoundingClientRect().left }};
  }});
}}"""


@pytest.mark.same_page
def test_takes_are_played_compared_restored_named_and_deleted_on_the_sampler(browser: Browser):
    page = browser.page
    seed = 701
    first = f"0:00 {BALL} {seed}\n0:01.5 {CROSS}"
    browser.load_api(growing_graph(f"shelf/of_{seed}", 3.0, first, seed=seed))
    named = f"app.graph.id = '{seed:08}-0000-4000-8000-000000000000'"
    page.evaluate(f"() => {{ {named}; {of_node('Sampler')}.size = [420, 700]; }}")
    for text in (first, first.replace("0:01.5", "0:01.5 [seed 7]")):
        browser.write("PromptTimeline", prompts=text)
        browser.run()
    browser.write("Sampler", seed=5)
    browser.fit_view()

    shelf = page.locator(".hf-shelf")
    shelf.get_by_label("Show the takes of this workflow").click()
    rows = shelf.locator("[role=listitem]")
    rows.nth(1).wait_for()
    assert rows.count() == 2, "those of this workflow"
    assert ["Take 2" in rows.nth(0).inner_text(), "Take 1" in rows.nth(1).inner_text()] == [
        True,
        True,
    ]
    assert " MB" in rows.nth(0).inner_text()

    def videos() -> list[dict]:
        page.wait_for_timeout(300)
        page.wait_for_function(f"({_VIDEOS})().every(({{ duration }}) => duration > 0)")
        return page.evaluate(_VIDEOS)

    shelf.get_by_label("Play Take 1 here").click()
    browser.fit_view()
    (shown,) = videos()
    assert shown["file"] == f"of_{seed}_00001_.mp4" and shown["duration"] == pytest.approx(
        3, abs=0.1
    )
    assert rows.nth(1).get_attribute("aria-current") == "true"
    href = rows.nth(1).locator("a").get_attribute("href")
    assert (
        f"of_{seed}_00001_.mp4" in href
        and browser.server.ask(href[href.index("/view") :], method="GET")[0] == 200
    )

    shelf.get_by_label("Play Take 2 beside the video").click()
    page.evaluate(f"() => {{ const video = {_PLAYED}; video.pause(); video.currentTime = 1.25; }}")
    one, two = videos()
    assert (one["file"], two["file"]) == (f"of_{seed}_00001_.mp4", f"of_{seed}_00002_.mp4")
    assert [each["currentTime"] for each in (one, two)] == pytest.approx([1.25, 1.25], abs=0.02)
    assert one["paused"] and two["paused"]
    assert one["left"] < two["left"]
    browser.fit_view()
    page.get_by_label("Swap the two takes").click()
    page.evaluate(f"() => {_PLAYED}.play()")
    page.wait_for_function(f"""() => {{
      const [one, two] = ({_VIDEOS})();
      const apart = Math.abs(one.currentTime - two.currentTime);
      return one.left > two.left && one.currentTime > 1.25 && apart < 0.3;
    }}""")

    shelf.get_by_label("Put the story and the seed of Take 1 into the nodes").click()
    assert browser.widgets("HeadForcingPromptTimeline")["prompts"] == first
    assert browser.widgets("HeadForcingSampler")["seed"] == seed
    rows.nth(0).get_by_label("Star").click()
    rows.nth(0).get_by_label("Name").fill("the dark one")
    rows.nth(0).get_by_label("Name").press("Enter")
    page.wait_for_function(
        "document.querySelector('.hf-takes').innerText.includes('Take 2 the dark one')"
    )
    rows.nth(0).get_by_text("★ · Take 2").wait_for()

    shelf.get_by_label("Delete Take 2 the dark one").click()
    assert "become free; its MP4 stays" in rows.nth(0).inner_text()
    shelf.get_by_label("Keep it").click()
    assert rows.count() == 2
    shelf.get_by_label("Delete Take 2 the dark one").click()
    shelf.get_by_label("Delete Take 2 the dark one now").click()
    page.wait_for_function("document.querySelectorAll('.hf-shelf [role=listitem]').length === 1")
    browser.run()
    assert "reused 5 blocks" in browser.last_report(), "the blocks of the other take are there"
    files = sorted(path.name for path in (browser.server.output_dir / "shelf").glob(f"of_{seed}*"))
    assert files == [f"of_{seed}_0000{number}_.mp4" for number in (1, 2)], (
        "no second file of a take"
    )
    page.wait_for_function(f"({_VIDEOS})()[0].file === 'of_{seed}_00001_.mp4'")
    assert f"of_{seed}_00001_.mp4 is this video" in page.evaluate(f"{of_player()}.innerText")
    browser.write("PromptTimeline", prompts=first.replace("0:01.5", "0:01.5 [seed 9]"))
    browser.run()
    check_list(browser)


def check_list(browser: Browser) -> None:
    """Load Head Forcing Run: a take is chosen by its picture or with the keyboard."""
    page = browser.page
    page.evaluate("""() => {
      app.graph.clear();
      app.graph.add(LiteGraph.createNode("HeadForcingLoadRun"));
    }""")
    browser.fit_view()
    rows = page.locator(".hf-takes [role=option]")
    rows.nth(1).wait_for()
    options = browser.server.object_info()["HeadForcingLoadRun"]["input"]["required"]["run"][1][
        "options"
    ]
    assert rows.count() == len(options)
    selected = "document.querySelector('.hf-takes [aria-selected=true]').id"

    def chosen(place: int) -> None:
        page.wait_for_function(f"{selected}.endsWith('-{place}')")
        assert browser.widgets("HeadForcingLoadRun")["run"] == options[place]

    rows.nth(1).click()
    chosen(1)
    page.locator(".hf-takes").press("End")
    chosen(len(options) - 1)
    page.evaluate("(run) => { app.graph.nodes[0].widgets[0].value = run; }", options[1])
    chosen(1)  # the list follows the widget

    page.wait_for_function(
        "[...document.querySelectorAll('.hf-takes img')].some((image) => image.naturalWidth === "
        "160)"
    )
    shown = page.evaluate(
        "(value) => app.graph.nodes[0].widgets[0].options.getOptionLabel(value)", options[1]
    )
    assert shown.startswith("Take ") and "(" not in shown, "without the name of the run"
    (sent,) = browser.api_prompt().values()
    assert sent["inputs"] == {"run": options[1]}
    decode = """() => LiteGraph.createNode("HeadForcingDecodeVideo").widgets
      .find((widget) => widget.name === "run").options.getOptionLabel("64x64 a (%s)")"""
    assert page.evaluate(decode % options[1].rpartition("(")[2][:-1]) == shown, (
        "the list of the decoder, too"
    )


@pytest.mark.same_page
def test_takes_of_the_same_story_are_told_apart_by_their_seed(browser: Browser):
    """The server's list is replaced by one with two takes of a story, and a third of another."""
    told = """async () => {
        const store = await import("/extensions/ComfyUI-HeadForcing/takes/store.js");
        const take = { length: "0:30", size: "832x480", date: "today", title: "" };
        const listed = [
            { ...take, take: 1, story_key: "a", seed: 5 },
            { ...take, take: 2, story_key: "a", seed: 6 },
            { ...take, take: 3, story_key: "b", seed: 5 },
        ];
        const answer = app.api.fetchApi;
        app.api.fetchApi = async () => new Response(JSON.stringify({ takes: listed }));
        await store.fetchTakes();
        app.api.fetchApi = answer;
        const told = store.takes.map(store.factsOf); // those that the answer holds
        await store.fetchTakes();
        return told;
    }"""
    assert browser.page.evaluate(told) == [
        "Take 1 · seed 5 · 0:30 · 832x480 · today",
        "Take 2 · seed 6 · 0:30 · 832x480 · today",
        "Take 3 · 0:30 · 832x480 · today",
    ]


@pytest.mark.same_page
def test_a_take_says_what_differs_from_the_one_before_and_a_reused_video_is_listed(
    browser: Browser,
):
    page = browser.page
    seed = 717
    first = f"0:00 {BALL}\n0:01.5 a ball in the navy striped room\n0:03 {CROSS}"
    second = first.replace("navy striped", "sand striped")
    browser.load_api(growing_graph(f"shelf/of_{seed}", 4.5, first, seed=seed))
    for text in (first, second):
        browser.write("PromptTimeline", prompts=text)
        browser.run()
    browser.fit_view()
    page.locator(".hf-shelf").get_by_label("Show the takes of this workflow").click()
    rows = page.locator(".hf-shelf [role=listitem]")
    rows.nth(1).wait_for()
    assert "scene 2: sand striped" in rows.nth(0).inner_text()
    assert "seed" not in rows.nth(0).inner_text(), "the stories differ"
    assert rows.nth(1).locator(".story").inner_text().startswith(BALL[:20])
    assert rows.nth(0).locator("img.differs").count() == 1
    page.wait_for_function("document.querySelector('.hf-shelf img.differs').naturalWidth === 160")
    assert rows.nth(0).get_attribute("aria-current") == "true", "the last run is played"

    # the same story in another workflow: its video is there already
    other = f"{seed:08}-1111-4000-8000-000000000000"
    page.evaluate("(id) => app.loadGraphData({ ...app.graph.serialize(), id })", other)
    page.wait_for_timeout(500)
    page.locator(".hf-shelf").get_by_label("Show the takes of this workflow").click()
    page.wait_for_function("document.querySelector('.hf-shelf .none')")
    browser.run()
    page.wait_for_function("document.querySelectorAll('.hf-shelf [role=listitem]').length === 1")
    assert "of another workflow" in rows.nth(0).inner_text()
    assert "Take 2" in rows.nth(0).inner_text()
