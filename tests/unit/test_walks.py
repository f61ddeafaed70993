"""Walks through the files, which are no longer than they must be: a prompt's text from its widget to
the model, a changed story from the page to the next block, and an option of the method, such as
`--episodic-frames`, from its flag and from its widget to the method's dataclass.

A stop takes the story in one of its forms: text, values of widgets, timeline, rows, plan, job,
embeddings. An option is an argument or a value of a widget, then the name and text of a method
option, then a field.
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
OPTION = (  # a value by its name into a field of the method's settings
    "headforcing_core/plan/settings MEMORY_INPUTS",
    "headforcing_core/plan/options method_options",
    "headforcing_core/plan/options __post_init__",
    "headforcing_core/plan/options cache_policy",
    "headforcing_core/methods/options with_options",
    "headforcing_core/methods/options _read",
    "headforcing_core/methods/options _replace",
    "headforcing_core/methods/head_forcing __post_init__",
    "headforcing_core/cache/roles __post_init__",
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
    "an option, from its flag": (
        "headforcing_core/commands/options OPTIONS",
        "headforcing_core/commands/render generate",
        "headforcing_core/commands/source of",
        "headforcing_core/commands/values render_options",
        *OPTION,
    ),
    "an option, from its widget": (
        "nodes/sampler_inputs sampler_inputs",
        "nodes/sampler execute",
        "nodes/sampler _render",
        "nodes/sampler _options",
        "nodes/sampler_inputs sampler_options",
        *OPTION,
    ),
}
MOST_FILES = {
    "a text": 15,
    "a live edit": 15,
    "an option, from its flag": 9,
    "an option, from its widget": 9,
}
# called through an object that another file makes, by argparse, the frontend or the host, or when
# a dataclass is made
BEGINNINGS = {
    "OPTIONS",
    "__init__",
    "__post_init__",
    "_ask",
    "_make",
    "_render",
    "change",
    "execute",
    "forward",
    "generate",
    "route",
    "sampler_inputs",
    "taken",
}


def definitions(file: str) -> dict[str, list[ast.stmt]]:
    """The functions of a file, methods included, and its tables, by name."""
    tree = ast.parse((ROOT / f"{file}.py").read_text(encoding="utf-8"))
    found: dict[str, list[ast.stmt]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            found.setdefault(node.name, []).append(node)
    for node in tree.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            target = node.target if isinstance(node, ast.AnnAssign) else node.targets[0]
            found.setdefault(ast.unparse(target), []).append(node)
    return found


def names_in(definition: ast.stmt) -> set[str]:
    """All names and attributes that a function or a table uses."""
    nodes = list(ast.walk(definition))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return names | {node.attr for node in nodes if isinstance(node, ast.Attribute)}


@pytest.mark.parametrize("walk", WALKS)
def test_a_walk_passes_few_files_and_each_stop_is_called_by_one_before_it(walk):
    called: set[str] = set(BEGINNINGS)
    for stop in WALKS[walk]:
        file, name = stop.split()
        written = definitions(file)
        assert name in written, stop
        assert name in called, f"nothing before {stop} calls it"
        for definition in written[name]:
            called |= names_in(definition)
    files = {stop.split()[0] for stop in WALKS[walk]}
    assert len(files) <= MOST_FILES[walk], sorted(files)
