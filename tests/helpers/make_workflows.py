"""Writes workflows/*.json and their thumbnails by drawing each graph in the real editor.

    python tests/helpers/make_workflows.py

The graphs are given here in API format with a place for every node; the editor turns them into its own format, so the
files are what it would save itself.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from comfy_browser import Browser
from comfy_harness import ComfyServer
from comfy_setup import ensure
from headforcing.headforcing_core.demo.assets import DEMO_STORY
from PIL import Image
from workflow_sources import add_sources, write

REPO = Path(__file__).resolve().parents[2]
FOLDER = REPO / "workflows"
PICTURE = REPO / "docs" / "images" / "graph.jpg"  # for the README

# Columns of the canvas: loaders, prompt and profile, sampler, results.
LOADERS, PROMPT, SAMPLER, RESULT = 0, 380, 860, 1280

COMPARE_PROMPTS = """0:00 a red ball bouncing on a teal floor
0:10 a yellow ring circling on a navy checkerboard"""

FOX = (
    "A red fox with a thick winter coat trots through a silent snowy forest at dawn, low golden light between the "
    "pines, breath steaming in the cold air, slow tracking shot, cinematic, highly detailed"
)
LIGHTHOUSE = """0:00 An old lighthouse keeper in a yellow raincoat climbs a spiral staircase, lantern in hand, cinematic
0:10 The lighthouse keeper in a yellow raincoat opens a door and steps onto a balcony above a stormy sea
0:20 The lighthouse keeper in a yellow raincoat looks through a brass telescope at the dark horizon
0:30 A small sailing ship with white sails struggles through huge waves, seen from the lighthouse balcony
0:40 The lighthouse keeper in a yellow raincoat pulls a lever and the great lamp sweeps light across the sea
0:50 Dawn breaks, the sea is calm, the lighthouse keeper in a yellow raincoat smiles and lowers his telescope"""

VALLEY = """0:00 A wide alpine valley before sunrise, mist over a winding river, slow aerial shot, cinematic
0:40 The sun rises over the alpine valley, golden light on the river and the meadows, slow aerial shot, cinematic
1:20 A shepherd in a brown coat walks with a flock of sheep across the alpine meadow, low tracking shot, cinematic
2:00 [blend 3] Dark clouds gather over the alpine meadow, wind bends the grass, the shepherd in a brown coat looks up
2:30 [flush, re-anchor] Inside a small wooden hut, a fire burns in a stone hearth, rain on the window, warm light
3:10 The shepherd in a brown coat pours tea by the fire in the small wooden hut, close shot, warm light, cinematic
3:50 [flush, re-anchor] A wide alpine valley after the storm, a rainbow over the winding river, slow aerial shot
4:30 Night falls over the alpine valley, stars above the winding river, one lit window, slow aerial shot, cinematic"""

FILES = """In **ComfyUI/models**:

- `diffusion_models/self_forcing_dmd.pt`, from gdhe17/Self-Forcing
- `text_encoders/umt5_xxl_fp8_e4m3fn_scaled.safetensors`, from Comfy-Org/Wan_2.1_ComfyUI_repackaged
- `vae/wan_2.1_vae.safetensors`, from the same
"""

RUNNABLE = {
    "demo": 24.5,
    "profile_heads": 5.0,
    "compare_methods": 15.0,
}  # without downloads; a second of the video that shows something

Node = tuple[str, dict[str, Any], tuple[int, int], tuple[int, int]]

SELF_FORCING: dict[str, Node] = {
    "model": ("HeadForcingLoadModel", {"checkpoint": "self_forcing_dmd.pt"}, (LOADERS, 0), (330, 130)),
    "clip": (
        "CLIPLoader",
        {"clip_name": "umt5_xxl_fp8_e4m3fn_scaled.safetensors", "type": "wan", "device": "default"},
        (LOADERS, 190),
        (330, 110),
    ),
    "vae": ("VAELoader", {"vae_name": "wan_2.1_vae.safetensors"}, (LOADERS, 360), (330, 60)),
}


def sampler(seconds: Any, positive: str = "prompt", **more: Any) -> Node:
    inputs = {"model": ["model", 0], "positive": [positive, 0], "width": 832, "height": 480}
    inputs |= {"seconds": seconds, "seed": 0}
    return ("HeadForcingSampler", inputs | more, (SAMPLER, 0), (360, 760))


def decode(vae: list[Any], **more: Any) -> Node:
    inputs = {"samples": ["sampler", 0], "vae": vae, "filename_prefix": "video/HeadForcing", "fps": 16.0}
    return ("HeadForcingDecodeVideo", inputs | more, (RESULT, 0), (480, 620))


def timeline(prompts: str, seconds: float, clip: list[Any]) -> Node:
    inputs = {"clip": clip, "prompts": prompts, "seconds": seconds}
    return ("HeadForcingPromptTimeline", inputs, (PROMPT, 0), (440, 380))


def text(source: list[Any], place: tuple[int, int], size: tuple[int, int] = (440, 200)) -> Node:
    return ("PreviewAny", {"source": source}, place, size)


def note(body: str, place: tuple[int, int], size: tuple[int, int]) -> Node:
    return ("MarkdownNote", {"text": body}, place, size)


WORKFLOWS: dict[str, dict[str, Node]] = {
    "demo": {
        "model": ("HeadForcingLoadDemo", {}, (LOADERS, 0), (330, 90)),
        "prompt": timeline(DEMO_STORY.strip(), 60.0, ["model", 1]),
        "sampler": sampler(0.0, width=64, height=64),
        "decode": decode(["model", 2], upscale=6),
        "report": text(["sampler", 1], (PROMPT, 440), (440, 320)),
        "note": note(
            "## Head Forcing demo\n\nNothing to download: press **Run**. A one-minute video of six prompts appears "
            "on the right.\n\n"
            "The tiny model knows one world of moving shapes:\n\n"
            "*a* red, green, blue, yellow, orange, purple, cyan, pink\n\nball, ring, square, triangle, star\n\n"
            "bouncing, gliding, circling *on a*\n\ngrey, navy, teal, maroon, olive, black, brown, sand\n\n"
            "floor, checkerboard, stripes\n\n*and, if the camera is to move:* panning left, panning right\n\n"
            "It runs through the same engine as the real models; it does not stand in for their pictures.",
            (LOADERS, 150),
            (330, 610),
        ),
    },
    "single_prompt_60s": SELF_FORCING
    | {
        "prompt": ("CLIPTextEncode", {"clip": ["clip", 0], "text": FOX}, (PROMPT, 0), (440, 180)),
        "profile": ("HeadForcingLoadProfile", {"profile": "self_forcing"}, (PROMPT, 240), (440, 110)),
        "sampler": sampler(60.0, head_profile=["profile", 0]),
        "decode": decode(["vae", 0]),
        "report": text(["sampler", 1], (PROMPT, 410), (440, 350)),
        "note": note(
            f"## One prompt, one minute\n\n{FILES}\nThe KV cache takes 2.7 GB at 832x480 however long the video is. "
            "Change *seconds* for any other length.",
            (LOADERS, 480),
            (330, 430),
        ),
    },
    "six_prompts_60s": SELF_FORCING
    | {
        "prompt": timeline(LIGHTHOUSE, 60.0, ["clip", 0]),
        "profile": ("HeadForcingLoadProfile", {"profile": "self_forcing"}, (PROMPT, 440), (440, 110)),
        "sampler": sampler(0.0, head_profile=["profile", 0]),
        "decode": decode(["vae", 0]),
        "report": text(["sampler", 1], (PROMPT, 610), (440, 300)),
        "note": note(
            f"## Six prompts, one minute\n\n{FILES}\nEach line of *prompts* starts at its time; prompts change at the "
            "nearest block (every 0.75 s). Name the subject in every prompt, or put it into *shared_prompt*.",
            (LOADERS, 480),
            (330, 430),
        ),
    },
    "profile_heads": {
        "model": ("HeadForcingLoadDemo", {}, (LOADERS, 0), (330, 90)),
        "measure": (
            "HeadForcingProfileHeads",
            {
                "model": ["model", 0],
                "clip": ["model", 1],
                "preset": "quick",
                "width": 64,
                "height": 64,
                "seed": 0,
                "save_name": "my_model",
            },
            (PROMPT, 0),
            (440, 620),
        ),
        "known": ("HeadForcingLoadProfile", {"profile": "toy_world"}, (LOADERS, 630), (330, 110)),
        "inspect": (
            "HeadForcingInspectProfile",
            {"head_profile": ["measure", 0], "compare_with": ["known", 0]},
            (LOADERS, 800),
            (330, 110),
        ),
        "prompt": (
            "HeadForcingPromptTimeline",
            {"clip": ["model", 1], "prompts": "a yellow ring circling on a navy checkerboard", "seconds": 10.0},
            (PROMPT, 680),
            (440, 280),
        ),
        "sampler": sampler(0.0, head_profile=["measure", 0], width=64, height=64),
        "decode": decode(["model", 2], upscale=6),
        "picture": ("PreviewImage", {"images": ["measure", 1]}, (RESULT + 540, 0), (420, 900)),
        "agreement": ("PreviewImage", {"images": ["inspect", 0]}, (RESULT + 1000, 0), (420, 560)),
        "report": text(["measure", 2], (RESULT, 680), (480, 220)),
        "note": note(
            "## Which head looks at what\n\nPress **Run**: the demo model is measured in a few seconds, compared with "
            "the profile that comes with the pack, and used to make a video.\n\nFor your own model replace *Load Demo "
            "Model* by *Load Self Forcing* and *Load CLIP*, and set the size to 832 x 480. *quick* is enough to "
            "start; *full* is what the paper does. The profile is saved in models/head_profiles.",
            (LOADERS, 150),
            (330, 420),
        ),
    },
    "compare_methods": {
        "model": ("HeadForcingLoadDemo", {}, (LOADERS, 0), (330, 90)),
        "prompt": timeline(COMPARE_PROMPTS, 20.0, ["model", 1]),
        "compare": (
            "HeadForcingCompareMethods",
            {
                "model": ["model", 0],
                "positive": ["prompt", 0],
                "vae": ["model", 2],
                "methods": "head_forcing\nself_forcing_window_21\ninfinity_rope",
                "width": 64,
                "height": 64,
                "seconds": 0.0,
                "seed": 0,
                "filename_prefix": "video/Compare",
            },
            (SAMPLER, 0),
            (620, 760),
        ),
        "table": text(["compare", 1], (PROMPT, 440), (440, 320)),
        "note": note(
            "## Methods side by side\n\nPress **Run**: the same two prompts and the same noise go through three "
            "methods, and a table says what each keeps, how long a block takes and how its video drifts.\n\nThe names "
            "that *methods* takes are those of *method* on Head Forcing Sampler. The demo model is a toy; for real "
            "weights replace *Load Demo Model* by *Load Self Forcing*, *Load CLIP* and *Load VAE*, and set the size to "
            "832 x 480. What was finished when a comparison is stopped is kept.",
            (LOADERS, 150),
            (330, 610),
        ),
    },
    "extend_a_video": SELF_FORCING
    | {
        "load": ("LoadVideo", {"file": "my_video.mp4"}, (PROMPT, 440), (440, 330)),
        "frames": ("GetVideoComponents", {"video": ["load", 0]}, (PROMPT, 830), (200, 90)),
        "encode": ("VAEEncode", {"pixels": ["frames", 0], "vae": ["vae", 0]}, (PROMPT + 240, 830), (200, 70)),
        "prompt": timeline(LIGHTHOUSE.replace("0:00 ", "").split("\n")[0], 15.0, ["clip", 0]),
        "sampler": sampler(0.0, start_frames=["encode", 0]),
        "decode": decode(["vae", 0]),
        "note": note(
            f"## Go on from a video\n\n{FILES}\nPut a short 16 fps video made by a Wan 2.1 model into *Load Video*; "
            "width and height must be multiples of 16. All of it becomes context, its opening frames become the "
            "anchors, and the prompt drives the 15 new seconds. The result holds both.",
            (LOADERS, 480),
            (330, 430),
        ),
    },
    "five_minutes_streaming": SELF_FORCING
    | {
        "prompt": timeline(VALLEY, 300.0, ["clip", 0]),
        "profile": ("HeadForcingLoadProfile", {"profile": "self_forcing"}, (PROMPT, 440), (440, 110)),
        "sampler": sampler(0.0, head_profile=["profile", 0], vae=["vae", 0], filename_prefix="video/five_minutes"),
        "report": text(["sampler", 1], (PROMPT, 610), (440, 300)),
        "drift": ("HeadForcingVideoDriftReport", {"video": ["sampler", 2], "theme": "dark"}, (RESULT, 0), (330, 130)),
        "picture": ("PreviewImage", {"images": ["drift", 0]}, (RESULT, 190), (420, 720)),
        "note": note(
            f"## Five minutes, decoded while they are made\n\n{FILES}\nThe *vae* on the sampler writes the video as it "
            "grows: watch `output/video/five_minutes_....part.mp4` in any player meanwhile. Memory stays that of a "
            "short video. Stop it, or lose power, and press **Run** again: it goes on where it stopped.\n\n"
            "`[flush, re-anchor]` in front of a prompt makes a scene cut.",
            (LOADERS, 480),
            (330, 430),
        ),
    },
}


def api_prompt(nodes: dict[str, Node]) -> tuple[dict[str, Any], dict[str, str]]:
    """The graph in API format with numbered nodes, and the number of every name."""
    numbers = {name: str(number) for number, name in enumerate(nodes, 1)}

    def value(given: Any) -> Any:
        return [numbers[given[0]], given[1]] if isinstance(given, list) else given

    prompt = {
        numbers[name]: {"class_type": kind, "inputs": {key: value(given) for key, given in inputs.items()}}
        for name, (kind, inputs, _, _) in nodes.items()
        if kind != "MarkdownNote"
    }
    return prompt, numbers


_ARRANGE = """([places, note]) => {
  for (const [id, x, y, w, h] of places) {
    const node = app.graph.getNodeById(+id) ?? app.graph.getNodeById(id);
    node.pos = [x, y];
    node.setSize([w, h]);
    for (const widget of node.widgets ?? []) if (widget.name === "control_after_generate") widget.value = "fixed";
  }
  if (note) {
    const node = LiteGraph.createNode("MarkdownNote");
    app.graph.add(node);
    node.pos = note.pos; node.setSize(note.size); node.widgets[0].value = note.text;
    node.color = "#232"; node.bgcolor = "#353";
  }
  app.graph.setDirtyCanvas(true, true);
}"""


def draw(editor: Browser, nodes: dict[str, Node]) -> dict[str, Any]:
    """Lay the graph out in the editor and return what it would save."""
    prompt, numbers = api_prompt(nodes)
    editor.load_api(prompt)
    notes = [node for node in nodes.values() if node[0] == "MarkdownNote"]
    places = [[numbers[name], *node[2], *node[3]] for name, node in nodes.items() if node not in notes]
    body = {"text": notes[0][1]["text"], "pos": notes[0][2], "size": notes[0][3]} if notes else None
    editor.page.evaluate(_ARRANGE, [places, body])
    editor.page.wait_for_timeout(300)
    # As the editor writes a file: undefined fields left out, where playwright would hand over null.
    graph = json.loads(editor.page.evaluate("() => JSON.stringify(app.graph.serialize())"))
    graph.pop("extra", None)
    add_sources(graph)
    return graph


def thumbnail(picture: Path, out: Path) -> None:
    """The editor's canvas without its toolbars, at 640 pixels."""
    with Image.open(picture) as image:
        width, height = image.size
        canvas = image.convert("RGB").crop((70, 120, width - 20, height - 20))
        canvas.thumbnail((640, 640))
        canvas.save(out, quality=80)


def stand_ins(server: ComfyServer) -> None:
    """Empty files under the names in the graphs, so that the editor does not mark them as missing in the pictures."""
    for kind, inputs, _, _ in SELF_FORCING.values():
        folder = {"HeadForcingLoadModel": "diffusion_models", "CLIPLoader": "text_encoders", "VAELoader": "vae"}[kind]
        server.model_path(folder, next(iter(inputs.values()))).touch()
    (server.input_dir / "my_video.mp4").touch()


def run_it(editor: Browser, second: float) -> None:
    """Run the open workflow and stop its video at `second`, where there is something to see."""
    editor.queue()
    outcome = editor.wait_done(120)
    if outcome != "success":
        raise RuntimeError(f"the workflow ended with {outcome}")
    editor.page.wait_for_function("document.querySelector('video')?.readyState >= 2", timeout=30_000)
    editor.page.evaluate("(t) => { const v = document.querySelector('video'); v.pause(); v.currentTime = t; }", second)
    editor.page.wait_for_timeout(1500)


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as base, ComfyServer(ensure("0.30.0"), Path(base)) as server:
        stand_ins(server)
        for name, nodes in WORKFLOWS.items():
            with Browser(server, size=(1920, 1080)) as editor:
                graph = draw(editor, nodes)
                write(graph, FOLDER / f"{name}.json")
                if name in RUNNABLE:
                    run_it(editor, RUNNABLE[name])
                editor.fit_view()
                shot = editor.screenshot(Path(base) / f"{name}.png")
                thumbnail(shot, FOLDER / f"{name}.jpg")
                if name == "demo":
                    with Image.open(shot) as image:
                        image.convert("RGB").save(PICTURE, quality=85)
                if editor.page_errors:
                    raise RuntimeError(f"the editor reported {editor.page_errors}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
