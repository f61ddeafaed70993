"""Where the value of an input comes from in a queued graph, and other values in it."""

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

FILE = Path(__file__).resolve().parents[2] / "nodes" / "host" / "queued_graph.py"
# the package of the nodes needs ComfyUI
_spec = importlib.util.spec_from_file_location("headforcing.nodes.host.queued_graph_alone", FILE)
queued_graph = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = queued_graph  # its dataclass looks itself up
_spec.loader.exec_module(queued_graph)
find_source, rewrite = queued_graph.find_source, queued_graph.rewrite

STORY = {"prompts": "a", "seconds": 7.0, "switch": "reset"}


def hidden(**more: Any) -> SimpleNamespace:
    """What a sampler sees whose `positive` comes through another node from one of two timelines."""
    prompt = {
        "first": {"class_type": "Timeline", "inputs": STORY | {"clip": ["loader", 0]}},
        "second": {"class_type": "Timeline", "inputs": STORY | {"prompts": "b", "seconds": ["length", 0]}},
        "apart": {"class_type": "Timeline", "inputs": STORY},
        "choice": {"class_type": "Switch", "inputs": {"off": ["first", 0], "on": ["second", 0]}},
        "sampler": {"class_type": "Sampler", "inputs": {"positive": ["choice", 0], "seed": 1}},
    }
    return SimpleNamespace(prompt=prompt, unique_id="sampler", extra_pnginfo=None, **more)


def test_the_node_that_a_value_comes_from_is_the_one_with_the_values_it_ran_with():
    assert find_source(hidden(), "positive", "Timeline", STORY) == "first"
    assert find_source(hidden(), "positive", "Timeline", STORY | {"prompts": "b", "seconds": 9.0}) == "second"
    assert find_source(hidden(), "positive", "Timeline", STORY | {"prompts": "c"}) is None
    assert find_source(hidden(), "seed", "Timeline", STORY) is None


@pytest.mark.parametrize("prompt", [None, {}, {"sampler": {"inputs": {"positive": ["gone", 0]}}}, {"sampler": {}}])
def test_a_graph_without_the_node_has_no_source(prompt: Any):
    seen = hidden()
    seen.prompt = prompt
    assert find_source(seen, "positive", "Timeline", STORY) is None


def test_the_graph_and_the_workflow_are_told_what_has_changed_and_nothing_else():
    seen = hidden()
    values, named = ["kept", "a", 7, "reset", None], {"prompts": "a", "seconds": 7, "more": 1}
    inner = {"id": 5, "type": "Timeline", "widgets_values": values, "widgets_values_named": named}
    outer = {"id": 12, "type": "graph"}
    workflow = {"nodes": [outer], "definitions": {"subgraphs": [{"id": "graph", "nodes": [inner]}]}}
    seen.extra_pnginfo = {"workflow": workflow}
    seen.prompt["12:5"] = {"inputs": STORY | {"clip": ["loader", 0]}}
    rewrite(seen, "12:5", STORY, STORY | {"prompts": "b", "seconds": 9.0})
    assert seen.prompt["12:5"]["inputs"] == {"prompts": "b", "seconds": 9.0, "switch": "reset", "clip": ["loader", 0]}
    assert values == ["kept", "b", 9.0, "reset", None] and named == {"prompts": "b", "seconds": 9.0, "more": 1}
    rewrite(seen, "gone", STORY, STORY | {"prompts": "b"})  # of a graph that a script queued
