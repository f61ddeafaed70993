"""Graphs and workflows that another program has written: values of other types are one sentence or
left out, and the video is made.
"""

from typing import Any

import pytest
from comfy_graphs import BALL, Graph, changed, failed, growing_graph, queued, text_of
from comfy_harness import ComfyServer

LINK = "cannot be connected: write the number into the node"
TIME = "a time must be a number of seconds"
INPUTS: list[tuple[dict[str, Any], str]] = [
    ({"from_seconds": ["demo", 0]}, f"from_seconds {LINK}"),
    ({"until_seconds": ["demo", 0]}, f"until_seconds {LINK}"),
    ({"until_seconds": []}, f"until_seconds {LINK}"),
    ({"from_seconds": "1"}, TIME),
    ({"until_seconds": {"a": 1}}, TIME),
    ({"until_seconds": None}, TIME),
    ({"until_seconds": True}, TIME),
    ({"from_seconds": float("nan")}, TIME),
    ({"from_seconds": -1}, TIME),
    ({"until_seconds": 10**400}, TIME),
]
HEADS = "head_forcing_heads"
LEFT_OUT: list[Any] = [
    *(None, [], "x", 5, {}, {"id": ["a"]}, {"id": {"a": 1}}, {"nodes": "x"}, {"extra": None}),
    {"extra": ["x"], "nodes": [None, 5, {"type": []}, {"id": {}, "widgets_values": 5}]},
    {"extra": {HEADS: None}, "nodes": {}, "definitions": 5},
]


def short(seed: int, **sampler: Any) -> Graph:
    return growing_graph("foreign/v", 0.75, BALL, seed=seed, **sampler)


@pytest.mark.parametrize(("inputs", "said"), INPUTS)
def test_a_part_of_the_story_that_is_no_number_is_one_sentence(
    comfy: ComfyServer, inputs: dict[str, Any], said: str
) -> None:
    failed(comfy, short(720, **inputs), said)


def test_a_draft_is_asked_for_by_true_alone(comfy: ComfyServer) -> None:
    assert "draft" not in text_of(queued(comfy, short(721, draft="yes")))


@pytest.mark.parametrize("place", range(len(LEFT_OUT)))
def test_a_workflow_of_another_form_does_not_stop_its_render(
    comfy: ComfyServer, place: int
) -> None:
    """Neither that of a new video nor that of one which is there already."""
    extra = {"extra_pnginfo": {"workflow": LEFT_OUT[place]}}
    graph = short(722)
    queued(comfy, changed(graph, "sampler", filename_prefix=f"foreign/w{place}"), extra_data=extra)
    queued(comfy, changed(graph, "sampler", crf=30 + place), extra_data=extra)


@pytest.mark.parametrize(
    ("seed", "info"),
    [
        (723, []),
        (724, "x"),
        (725, 5),
        (726, {"workflow": {"extra": {HEADS: 7}}}),
    ],
)
def test_data_of_another_form_are_left_out(comfy: ComfyServer, seed: int, info: Any) -> None:
    """Each with a seed of its own: a render that is there already reads nothing of them."""
    queued(comfy, short(seed), extra_data={"extra_pnginfo": info})
