"""What the server says that Run would do, beside what a Run then does."""

import re
from itertools import count

import pytest
from comfy_graphs import BALL, CROSS, Graph, changed, growing_graph, queued, stopper, text_of
from comfy_harness import ComfyServer
from live_page import LivePage

_NUMBERS = count(1)
CUBE = "a blue cube bouncing in the teal plain room"


def story_graph(seed: int, prompts: str = "", **sampler: object) -> Graph:
    """Nine blocks, with a threshold that no other test has."""
    graph = growing_graph(f"forecast/v{next(_NUMBERS)}", prompts=prompts)
    return changed(
        graph, "sampler", seed=seed, novelty_threshold=0.613, checkpoint_seconds=40.0, **sampler
    )


def asked(server: ComfyServer, graph: Graph) -> dict[str, float]:
    body = {"output": graph, "node": "sampler"}
    status, answer = server.post("/headforcing/forecast", body)
    assert status == 200, answer
    return answer


def reused(server: ComfyServer, graph: Graph) -> int:
    """Number of blocks that a Run takes from earlier ones."""
    report = text_of(queued(server, graph))
    found = re.search(r"reused (\d+) blocks?", report)
    return int(found[1]) if found else 0


def seconds_of(blocks: int) -> float:
    """The time of a block of Wan 2.1, of which the first is shorter."""
    return 0 if blocks == 0 else 0.5625 + 0.75 * (blocks - 1)


def test_nothing_is_said_of_settings_that_were_not_rendered_since_the_start(comfy: ComfyServer):
    graph = story_graph(1, method="longlive")
    assert asked(comfy, graph) == {}


def test_what_is_said_to_be_kept_is_what_the_next_run_reuses(comfy: ComfyServer):
    first = story_graph(71)
    assert reused(comfy, first) == 0
    assert asked(comfy, first) == {"kept": 6, "renders": 0, "takes": 0}
    for same in ({"filename_prefix": "forecast/elsewhere"}, {"checkpoint_seconds": 40}):
        assert asked(comfy, changed(first, "sampler", **same))["kept"] == 6, same
    for text in (
        f"0:00 {BALL}\n0:03 {CUBE}",
        f"0:00 {BALL}\n0:03 [recache] {CROSS}",
        f"0:00 {BALL}\n0:02 {CROSS}",
    ):
        graph = story_graph(71, prompts=text)
        said = asked(comfy, graph)
        assert said["kept"] + said["renders"] == 6 and said["takes"] > 0, text
        assert seconds_of(reused(comfy, graph)) == said["kept"], text
        assert asked(comfy, graph)["renders"] == 0, "now it is stored, too"
    assert asked(comfy, first)["renders"] == 0, "the story before it is still known"


def test_another_seed_keeps_nothing_and_a_longer_story_keeps_all_of_the_shorter(
    comfy: ComfyServer,
):
    graph = story_graph(72)
    reused(comfy, graph)
    assert asked(comfy, story_graph(73))["kept"] == 0
    longer = changed(graph, "timeline", seconds=9.0)
    said = asked(comfy, longer)
    assert said["kept"] + said["renders"] == 9
    assert seconds_of(reused(comfy, longer)) == said["kept"] > 5


def test_a_render_that_was_stopped_keeps_its_blocks(comfy: ComfyServer):
    graph = story_graph(74)
    result = comfy.queue(graph, on_event=stopper(comfy, at=16))
    assert result.outcome == "interrupted"
    comfy.hold(None)
    said = asked(comfy, graph)
    assert 0 < said["kept"] < 6
    assert seconds_of(reused(comfy, graph)) == said["kept"]


def test_blocks_that_were_deleted_are_not_kept(comfy: ComfyServer):
    graph = story_graph(75)
    reused(comfy, graph)
    assert asked(comfy, graph)["kept"] == 6
    newest = comfy.get_json("/headforcing/takes")["takes"][0]["name"]
    comfy.post("/headforcing/takes/delete", {"take": newest})
    assert asked(comfy, graph)["kept"] == 0


@pytest.mark.parametrize(
    "body",
    [
        {},
        [],
        {"output": {}, "node": "sampler"},
        {"output": {"sampler": 1}, "node": "sampler"},
        {"output": {"sampler": {"inputs": []}}, "node": "sampler"},
        {"output": {"sampler": {"inputs": {}}}, "node": ["sampler"]},
    ],
)
def test_what_is_no_graph_is_refused_in_a_sentence(comfy: ComfyServer, body: object):
    status, answer = comfy.post("/headforcing/forecast", body)
    assert status == 400 and "expected a JSON object" in answer["error"]


@pytest.mark.parametrize(
    "inputs",
    [{"positive": []}, {"positive": [["a"], 0]}, {"positive": ["sampler", 0]}, {"seed": "x"}],
)
def test_a_graph_that_cannot_run_is_answered_with_nothing(comfy: ComfyServer, inputs: object):
    graph = {"sampler": {"class_type": "HeadForcingSampler", "inputs": inputs}}
    assert asked(comfy, graph) == {}


def test_the_pace_of_a_live_video_is_not_that_of_a_run(comfy: ComfyServer):
    """A live video waits for the page that plays it."""
    graph = changed(story_graph(77), "sampler", novelty_threshold=0.614)
    with LivePage(comfy, graph) as page:
        page.until(1.0)
        assert page.stop()[0] == 200
        assert page.wait().outcome == "success"
    said = asked(comfy, graph)
    assert said["renders"] > 0 and said["takes"] is None
