"""Two walks through the files, which are no longer than they must be: a prompt's text from its
widget to the model, and a changed story from the page to the next block.

A stop takes the story in one of its forms: text, values of widgets, timeline, rows, plan, job,
embeddings.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
READING = (  # a text into a timeline
    "nodes/host/graph/conditioning timeline",
    "headforcing_core/timeline/timeline parse_timeline",
    "headforcing_core/timeline/grammar read_prompts",
    "headforcing_core/timeline/grammar _read_tags",
    "headforcing_core/timeline/grammar read_tag",
)
WALKS = {
    "a text": (
        "nodes/prompt_timeline execute",
        "nodes/host/graph/conditioning conditioning",
        *READING,
        "nodes/sampler _render",
        "nodes/host/graph/conditioning read_conditioning",
        "nodes/host/model/render request_of",
        "nodes/sampler _make",
        "headforcing_core/plan/request job",
        "headforcing_core/plan/request plan",
        "headforcing_core/plan/plan of",
        "headforcing_core/plan/plan make",
        "headforcing_core/plan/layout lay_out",
        "headforcing_core/plan/layout make_rows",
        "headforcing_core/rollout/rows lay_out_rows",
        "nodes/sampler _sample",
        "nodes/host/model/render sample",
        "nodes/host/model/render _sample",
        "headforcing_core/render/render make_video",
        "headforcing_core/render/render blocks",
        "headforcing_core/render/render _rollout",
        "headforcing_core/methods/method rollout",
        "headforcing_core/rollout/loop rollout",
        "headforcing_core/rollout/rows embedding",
        "nodes/host/model/bridge use_prompt",
        "nodes/host/model/bridge forward",
        "headforcing_core/model/wan encode_prompt",
    ),
    "a live edit": (
        "nodes/host/browser/pages route",
        "nodes/host/browser/live_story change",
        "nodes/host/browser/live_story tell",
        "nodes/host/browser/live_story __init__",
        "nodes/host/graph/conditioning changed",
        "headforcing_core/timeline/editor read_widgets",
        *READING,
        "headforcing_core/render/live_story _ask",
        "headforcing_core/render/live_story _take",
        "headforcing_core/plan/plan with_timeline",
        "headforcing_core/plan/layout lay_out",
        "headforcing_core/plan/layout make_rows",
        "headforcing_core/rollout/rows lay_out_rows",
        "headforcing_core/plan/resources needs_of",
        "headforcing_core/render/live_story _with",
        "headforcing_core/runs/folder save_video",
        "headforcing_core/rollout/rows replace",
        "nodes/host/browser/live_story taken",
        "nodes/host/graph/queued_graph rewrite",
    ),
}
MOST_FILES = {"a text": 15, "a live edit": 15}
# called through an object that another file makes, or by the frontend or the host
BEGINNINGS = {
    "__init__",
    "_ask",
    "_make",
    "_render",
    "change",
    "execute",
    "forward",
    "route",
    "taken",
}


def functions(file: str) -> dict[str, list[ast.FunctionDef]]:
    """The functions of a file by name, methods included."""
    found: dict[str, list[ast.FunctionDef]] = {}
    for node in ast.walk(ast.parse((ROOT / f"{file}.py").read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            found.setdefault(node.name, []).append(node)
    return found


def names_in(function: ast.FunctionDef) -> set[str]:
    """All names and attributes that a function uses."""
    nodes = list(ast.walk(function))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return names | {node.attr for node in nodes if isinstance(node, ast.Attribute)}


@pytest.mark.parametrize("walk", WALKS)
def test_a_walk_passes_few_files_and_each_stop_is_called_by_one_before_it(walk):
    called: set[str] = set(BEGINNINGS)
    for stop in WALKS[walk]:
        file, name = stop.split()
        written = functions(file)
        assert name in written, stop
        assert name in called, f"nothing before {stop} calls it"
        for function in written[name]:
            called |= names_in(function)
    files = {stop.split()[0] for stop in WALKS[walk]}
    assert len(files) <= MOST_FILES[walk], sorted(files)
