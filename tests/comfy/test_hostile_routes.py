"""Every route is asked for things that no page asks for: each answer is what was asked for, or one
sentence, and the server's log has no traceback.
"""

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlencode

import torch
from comfy_harness import ComfyServer
from headforcing.headforcing_core.runs.folder import RunFolder
from headforcing.headforcing_core.runs.takes import write_label
from malformed import hostile

RUN = f"{'e' * 16}/{'f' * 16}"  # see `hostile_run`
ASKED = {  # by GET, as a page asks
    "/headforcing/renders": {"client": "a", "grows": "true", "workflow": "b"},
    "/headforcing/renders/story": {"client": "a", "event": "b", "node": "c", "workflow": "d"},
    "/headforcing/takes": {"x": "a"},
    "/headforcing/takes/export/missing": {"x": "a"},
    "/headforcing/takes/picture": {"run": "a", "number": "0", "scene": "1"},
    "/headforcing/takes/story": {"take": "a"},
    "/headforcing/sound": {"name": "a.wav"},
    "/headforcing/pictures": {"id": "a", "sheet": "b"},
    "/headforcing/growing": {"id": "a", "offset": "0"},
    "/headforcing/follow": {"id": "a", "from": "0", "at": "1.5", "rate": "1", "client": "b"},
    "/headforcing/words": {"x": "a"},
}
SEGMENT = {
    "text": "a fox",
    "start_block": 0,
    "switch": {"kind": "blend", "blend_blocks": 2, "re_anchor": False},
    "seed": "7",
    "asked": 0.5,
}
WIDGETS = {"seconds": 9.0, "shared_prompt": "", "switch": "reset", "model_family": "auto"}
NODES = {
    "3": {"class_type": "HeadForcingSampler", "inputs": {"positive": ["5", 0], "seed": 1}},
    "5": {"class_type": "HeadForcingPromptTimeline", "inputs": {"prompts": "a", "seconds": 2.0}},
}
MARKERS = [{"seconds": 1.0, "name": "b"}, {"seconds": 2.0, "name": ""}]
BEATS = {"every": 0.5, "first": 0.1}
TOLD = [  # by POST
    ("/headforcing/timeline", {"text": "0:00 a fox\n0:05 [cut] a wolf", **WIDGETS}),
    ("/headforcing/timeline", {"segments": [SEGMENT], "length": 9.0, "shared": "", **WIDGETS}),
    ("/headforcing/story", {"client_id": "a", "prompt_id": "b", "node_id": "c", "text": "d"}),
    ("/headforcing/forecast", {"output": NODES, "node": "3"}),
    (
        "/headforcing/perform",
        {"client_id": "a", "prompt_id": "b", "words": "c", "recall": 1, "beats": BEATS},
    ),
    (
        "/headforcing/takes/export",
        {"take": RUN, "end": ".otio", "markers": MARKERS, "takes": [RUN]},
    ),
    ("/headforcing/takes/label", {"take": "a", "title": "b", "starred": True}),
    ("/headforcing/takes/delete", {"take": "a"}),
]
BODIES = [b"", b"{", b"[" * 100_000, b'{"a":' * 50_000, b"1e999", b"\xff\xfe{}", b"9" * 6000]


def hostile_run(server: ComfyServer) -> None:
    """A run folder of somebody else's with a label that names no file, and of other latents."""
    about = {
        "prompts": ["\x1b[2J a fox"],
        "starts_seconds": [0.0],
        "video_frames": 9,
        "size": "64x64",
        "latent_format": "Wan22",
    }
    key = "f" * 32
    with RunFolder(server.output_dir / "head_forcing", "e" * 32, about) as folder:
        folder.save_video([key], about)
        folder.save_block(0, key, torch.zeros(3, 16, 8, 8), None)
        write_label(folder.folder, key, title="a", file="x" * 300)


def test_every_route_is_tried(repo_root: Path) -> None:
    found = set()
    for file in (repo_root / "nodes" / "host" / "browser").glob("*.py"):
        text = file.read_text(encoding="utf-8")
        found |= set(re.findall(r'route\(\s*"(?:GET|POST)", "(/headforcing/[a-z/]+)"', text))
    assert len(found) > 15 and found == {*ASKED, *(route for route, _ in TOLD)}


def test_whatever_a_route_is_asked_for_it_answers_with_a_sentence(
    comfy: ComfyServer, record_property: Callable[[str, object], None]
) -> None:
    hostile_run(comfy)
    takes = comfy.get_json("/headforcing/takes")["takes"]
    (own,) = [take for take in takes if take["name"] == RUN]
    assert own["file"] is None
    rng = random.Random(11)
    before = len(comfy.log())
    answers = []
    for route, good in ASKED.items():
        for asked in hostile(good, rng, 12):
            if not isinstance(asked, dict):
                continue
            # a server refuses longer ones before any route is asked
            query = [(name, str(value)[:500]) for name, value in asked.items()]
            address = f"{route}?{urlencode(query, errors='replace')}"
            answers.append((route, asked, *comfy.ask(address, method="GET")))
    for route, good in TOLD:
        for body in (*BODIES, *hostile(good, rng, 40)):
            answers.append((route, body, *comfy.ask(route, body)))
    picture = f"/headforcing/takes/picture?{urlencode({'run': own['name'], 'number': 0})}"
    answers.append((picture, "", *comfy.ask(picture, method="GET")))
    assert answers[-1][2] == 404
    for route, body, status, answer in answers:
        shown = (route, str(body)[:200], status, answer[:200])
        assert status < 500, shown
        if status >= 400:
            sentence = json.loads(answer)["error"]
            assert sentence and sentence.isprintable() and len(sentence) < 1500, shown
    assert "Traceback" not in comfy.log()[before:]
    record_property("malformed files and texts tried", len(answers))
