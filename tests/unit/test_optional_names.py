"""Optional means absent: a file that everybody reads names the optional concepts of its row only,
in identifiers and in words that are keys; comments and docstrings may name anything.

A row may only lose concepts: what a new feature needs in these files goes through a general member.
"""

import ast
import re
import textwrap
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Each matches whole identifiers.
CONCEPTS = {
    "restarts": r"restart_frames|RestartingDecoder|Overlap|overlap|reencode_last",
    "joint": r"unfinished|blocks_per_pass|frames_per_pass|denoises_jointly",
    "labels": r"HeadLabel|labels|labelled",
    "held": r"held_frames|holds_image|renoise_held|unipc",
    "speech": r".*[sS]peech.*|speaks|TalkingPortrait|audio_dim",
    "shots": r"shot_prefix|needs_shots",
    "ranks": r"peers|Peers|Spread.*|shard_weights|ranks",
    "ray": r".*[Ff]arms?|ray|ray_farm|Farm.*",
    "fp8": r".*fp8.*|.*inexact.*|quantise",
    "pictures": (
        r"most_pictures|hold_pictures|keep_pictures|picture_frames|Picture|references|drop_pictures"
    ),
    "scenes": r".*[sS]cenes?|.*recall.*|Recall.*|.*Recall",
    "roles": (
        r"AutoProfile|measured_roles|(found|spare)_profiles|MeasuredRoles|with_measured_roles|with_roles"
        r"|with_found_roles|judged"
    ),
    "live": r"live_story|LiveStory|LiveEdits|with_timeline|HasBegunError|Story",
    "sound": r"soundtrack|Soundtrack|Sound",
    "part": r"Part|draft|until_seconds|from_seconds",
}
# What a file may name; a plain render does not need it.
NAMED = {
    "headforcing_core/rollout/loop.py": "pictures",
    "headforcing_core/rollout/rows.py": "pictures scenes live",
    "headforcing_core/rollout/schedule.py": "held shots",
    "headforcing_core/cache/head_cache.py": "pictures scenes",
    "headforcing_core/cache/head_group.py": "",
    "headforcing_core/cache/shape.py": "pictures scenes",
    "headforcing_core/cache/memory.py": "pictures",
    "headforcing_core/methods/method.py": "shots pictures scenes",
    "headforcing_core/methods/base.py": "scenes",
    "headforcing_core/plan/request.py": "held pictures scenes sound part",
    "headforcing_core/plan/plan.py": "held pictures scenes live",
    "headforcing_core/plan/layout.py": "shots pictures scenes roles",
    "headforcing_core/plan/options.py": "shots",
    "headforcing_core/plan/resources.py": "scenes",
    "headforcing_core/render/render.py": "held scenes",
    "headforcing_core/render/run.py": "held scenes",
    "headforcing_core/render/sinks.py": "sound",
    "headforcing_core/runs/folder.py": "",
    "headforcing_core/video/stream.py": "sound",
    "headforcing_core/model/wan.py": "speech",
    "headforcing_core/timeline/timeline.py": "shots pictures scenes",
    "cli/source.py": "speech pictures sound",
    "cli/loaded.py": "",
    "nodes/sampler.py": "speech roles live sound part",
    "nodes/host/render/sample.py": "pictures sound part",
    "nodes/host/render/bridge.py": "",
    "nodes/host/browser/progress.py": "scenes part",
}
# Files of the product that name a concept.
MOST_FILES = {
    "restarts": 3,
    "joint": 1,
    "labels": 5,
    "speech": 16,
    "ranks": 9,
    "ray": 4,
    "fp8": 7,
}
MOST = 5
MOST_ON_AVERAGE = 2.05


def identifiers_of(text: str) -> set[str]:
    """All names that a source text uses or defines, each part of a module's name, and strings that
    are one word.
    """
    found: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, (ast.arg, ast.keyword)):
            found.add(node.arg or "")
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.alias):
            found.update(node.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            found.update((node.module or "").split("."))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if re.fullmatch("[a-z_]+", node.value):
                found.add(node.value)
    return found


def concepts_of(text: str) -> dict[str, list[str]]:
    """The optional concepts that a source text names, and by which identifiers."""
    names = sorted(identifiers_of(text))
    found = {}
    for concept, pattern in CONCEPTS.items():
        if matching := [name for name in names if re.fullmatch(pattern, name)]:
            found[concept] = matching
    return found


@pytest.mark.parametrize("file", NAMED)
def test_a_file_of_the_main_path_names_the_optional_concepts_of_its_row_only(file):
    found = concepts_of((ROOT / file).read_text("utf-8"))
    allowed = set(NAMED[file].split())
    more = {concept: names for concept, names in found.items() if concept not in allowed}
    assert not more, "whoever reads this file need not know of it: use a general member"
    assert not allowed - set(found), "no longer named: take it out of the row"


def test_the_rows_are_short():
    counts = [len(row.split()) for row in NAMED.values()]
    assert max(counts) <= MOST and sum(counts) / len(counts) <= MOST_ON_AVERAGE


def test_few_files_of_the_product_name_what_few_people_use():
    counts: Counter[str] = Counter()
    for folder in ("headforcing_core", "cli", "nodes", "kernels"):
        for path in (ROOT / folder).rglob("*.py"):
            counts.update(concepts_of(path.read_text("utf-8")).keys())
    found = {concept: counts[concept] for concept in MOST_FILES}
    assert all(0 < found[concept] <= most for concept, most in MOST_FILES.items()), found


def test_a_name_is_found_wherever_it_stands_but_in_text():
    text = """
        '''fp8 and ranks.'''
        from .speech import told as x  # the farm
        def f(a: Sound, peers=1): g(**h, draft=2); return a.labels["held_frames"], "one scene"
        """
    found = concepts_of(textwrap.dedent(text))
    assert set(found) == {"speech", "sound", "ranks", "part", "labels", "held"}
    assert concepts_of("import ray.data\n@fp8_linears\nclass Story: ...") == {
        "ray": ["ray"],
        "fp8": ["fp8_linears"],
        "live": ["Story"],
    }
