"""The shipped workflows: nodes, links, and the columns they are drawn in."""

from dataclasses import replace
from itertools import chain
from typing import Any

from headforcing.headforcing_core.demo.assets import DEMO_STORY
from workflow_layout import Column, Group, Node, Workflow
from workflow_sources import note, story

# A whole ball and one small emblem from the first frame on, and pictures of which none hides behind
# it: by contact sheets of the first three seconds with the seeds 0 to 23, and of whole videos.
DEMO_SEED = 3

# without downloads
RUNNABLE = (
    "01 Demo without downloads",
    "14 Research - measure head roles",
    "13 Research - compare methods",
    "02 Re-roll one scene",
)
# has a node of ComfyUI that the oldest supported version lacks
NEWER_CORE = ("08 Finish - larger and smoother",)


def _models(
    checkpoint: str, vae: str = "wan_2.1_vae.safetensors", title: str = "Wan 2.1 VAE"
) -> dict[str, Node]:
    encoder = {
        "clip_name": "umt5_xxl_fp8_e4m3fn_scaled.safetensors",
        "type": "wan",
        "device": "default",
    }
    return {
        "model": Node("HeadForcingLoadModel", {"checkpoint": checkpoint}),
        "clip": Node("CLIPLoader", encoder, "Text encoder (umT5)"),
        "vae": Node("VAELoader", {"vae_name": vae}, title),
    }


SELF_FORCING = _models("self_forcing_dmd.pt")
FRAMEWISE = _models("causal_forcing-framewise.safetensors")
LONGLIVE2 = _models("model_bf16.pt", "wan2.2_vae.safetensors", "Wan 2.2 VAE")
DEMO = {"model": Node("HeadForcingLoadDemo")}
PROFILE = {"profile": Node("HeadForcingLoadProfile", {"profile": "auto"})}
DEMO_PROFILE = {
    "profile": Node("HeadForcingLoadProfile", {"profile": "toy_world", "rule": "function"})
}
IMAGE = {"load": Node("LoadImage", {"image": "my_image.png"}, "Your image", 330)}
VIDEO = {"load": Node("LoadVideo", {"file": "my_video.mp4"}, "Your video", 330)}
TALKING = _models("model.safetensors") | {
    "encoder": Node(
        "AudioEncoderLoader",
        {"audio_encoder_name": "model.safetensors"},
        "Audio encoder (wav2vec2)",
    ),
    "load": Node("LoadImage", {"image": "my_portrait.png"}, "Your portrait", 330),
    "sound": Node("LoadAudio", {"audio": "my_speech.wav"}, "Your speech"),
    "speech": Node("HeadForcingSpeech", {"audio_encoder": ["encoder", 0], "audio": ["sound", 0]}),
}
SMALL = {"width": 64, "height": 64}  # of the demo model
REPORT = 190  # height of a report: five lines, more of which it scrolls or shows when enlarged
SHOTS = {"width": 1280, "height": 704, "method": "longlive2", "model_family": "longlive2"}


def _sampler(positive: str = "prompt", seconds: float = 0.0, **more: Any) -> dict[str, Node]:
    """The sampler; its player has its room already."""
    inputs = {
        "model": ["model", 0],
        "positive": [positive, 0],
        "width": 832,
        "height": 480,
        "seconds": seconds,
    }
    inputs |= {"seed": 0} | more
    return {"sampler": Node("HeadForcingSampler", inputs)}


def _decode(name: str, vae: list[Any], **more: Any) -> dict[str, Node]:
    inputs = {
        "samples": ["sampler", 0],
        "vae": vae,
        "filename_prefix": f"video/{name}",
        "fps": 16.0,
    }
    return {"decode": Node("HeadForcingDecodeVideo", inputs | more)}


def _timeline(
    prompts: str, seconds: float | list[Any], clip: str = "clip", height: int = 420, **more: Any
) -> dict[str, Node]:
    """The story, whose text encoder is a loader of its own or the demo model's."""
    inputs = {
        "clip": [clip, 1 if clip == "model" else 0],
        "prompts": prompts,
        "seconds": seconds,
    } | more
    return {"prompt": Node("HeadForcingPromptTimeline", inputs, height=height)}


def _report(source: list[Any], title: str = "Report", height: int = REPORT) -> Node:
    return Node("PreviewAny", {"source": source}, title, height)


def _loaders(note_height: int, *names: str) -> Column:
    return _column("Models", 350, *(names or ("model", "clip", "vae")), note_height=note_height)


def _column(title: str, width: int, *names: str, note_height: int = 0) -> Column:
    return Column(width, (Group(title, names),), note_height)


def _story(*beside: str) -> Column:
    """The story and what stands below it: a title, and a node."""
    groups = [Group(beside[0], beside[1:])] if beside else []
    return Column(480, (Group("Story", ("prompt",)), *groups))


_PROMPT = _story("Head roles", "profile")
_SAMPLING = _column("Sampling, the video grows here", 520, "sampler")
_REPORT = _column("Report", 420, "report")


def _render(
    nodes: dict[str, Node], note_height: int, middle: Column, video: str, **sampler: Any
) -> Workflow:
    """Models, a story, the sampler that writes a video of this name, and its report."""
    demo = "vae" not in nodes
    vae = ["model", 2] if demo else ["vae", 0]
    of_demo = {**SMALL, "seed": DEMO_SEED} if demo else {}
    profile = {"head_profile": ["profile", 0]} if "profile" in nodes else {}
    made = _sampler(**profile, vae=vae, filename_prefix=f"video/{video}", **of_demo, **sampler)
    columns = _loaders(note_height, *(["model"] if demo else [])), middle, _SAMPLING, _REPORT
    return Workflow(nodes | made | {"report": _report(["sampler", 1])}, columns)


_LIGHTHOUSE = _timeline(story("lighthouse"), 60.0)
_FIVE = _render(
    SELF_FORCING | _timeline(story("valley"), 300.0) | PROFILE, 310, _PROMPT, "alpine_valley"
)

WORKFLOWS: dict[str, Workflow] = {
    "01 Demo without downloads": _render(
        DEMO | DEMO_PROFILE | _timeline(DEMO_STORY.strip(), 60.0, "model"),
        400,
        _PROMPT,
        "demo",
        method="head_forcing_scenes",
    ),
    "03 One minute with six prompts": _render(
        SELF_FORCING | _LIGHTHOUSE | PROFILE, 270, _PROMPT, "lighthouse"
    ),
    "07 Five minutes with a report": Workflow(
        _FIVE.nodes
        | {
            "drift": Node(
                "HeadForcingVideoDriftReport", {"video": ["sampler", 2], "theme": "dark"}
            ),
            "picture": Node(
                "PreviewImage", {"images": ["drift", 0]}, "Drift over five minutes", room=1.5
            ),
        },
        (
            *_FIVE.columns[:-1],
            _column("Report", 400, "report", "drift"),
            _column("Drift", 480, "picture"),
        ),
    ),
    "04 Change the story while it renders": _render(
        SELF_FORCING | _timeline(story("lighthouse"), 60.0),
        300,
        _column("Story, edit it while it renders", 560, "prompt"),
        "live_story",
    ),
    "02 Re-roll one scene": _render(
        DEMO | _timeline(story("takes"), 60.0, "model"), 270, _story(), "takes"
    ),
    "14 Research - measure head roles": Workflow(
        DEMO
        | {
            "known": Node(
                "HeadForcingLoadProfile",
                {"profile": "toy_world"},
                "Profile that comes with the pack",
            ),
            "measure": Node(
                "HeadForcingProfileHeads",
                {"model": ["model", 0], "clip": ["model", 1], "preset": "quick", **SMALL, "seed": 0}
                | {"save_name": "my_model"},
                room=0.6,
            ),
            "inspect": Node(
                "HeadForcingInspectProfile",
                {"head_profile": ["measure", 0], "compare_with": ["known", 0]},
            ),
        }
        | _timeline("a yellow cross circling in the navy checkerboard room", 10.0, "model", 0)
        | _sampler(head_profile=["measure", 0], **SMALL)
        | _decode("my_profile", ["model", 2])
        | {
            "report": _report(["measure", 2], "What was measured", 260),
            "picture": Node(
                "PreviewImage", {"images": ["measure", 1]}, "Head roles, measured", room=1.5
            ),
            "agreement": Node(
                "PreviewImage",
                {"images": ["inspect", 0]},
                "Agreement with the pack's profile",
                room=1,
            ),
        },
        (
            _loaders(300, "model", "known"),
            Column(440, (Group("Measure", ("measure",)), Group("Story", ("prompt",)))),
            Column(
                380,
                (Group("Compare", ("inspect",)), Group("Sampling", ("sampler",))),
            ),
            _column("Result", 460, "report", "decode"),
            _column("Head roles", 420, "picture"),
            _column("Agreement", 420, "agreement"),
        ),
    ),
    "13 Research - compare methods": Workflow(
        DEMO
        | _timeline(story("compare"), 20.0, "model", 340)
        | {
            "compare": Node(
                "HeadForcingCompareMethods",
                {"model": ["model", 0], "positive": ["prompt", 0], "vae": ["model", 2]}
                | {
                    "methods": "head_forcing\nself_forcing_window_21\ninfinity_rope",
                    **SMALL,
                    "seconds": 0.0,
                }
                | {"seed": DEMO_SEED, "filename_prefix": "video/methods"},
            ),
            "table": _report(["compare", 1], "Table", 480),
        },
        (
            _loaders(270, "model"),
            _story(),
            _column("Videos side by side", 640, "compare"),
            _column("Table", 560, "table"),
        ),
    ),
    "06 Continue a video": _render(
        SELF_FORCING
        | VIDEO
        | _timeline(story("lighthouse").replace("0:00 ", "").split("\n")[0], 15.0, height=0),
        310,
        _story("Video to extend", "load"),
        "extended",
        start_video=["load", 0],
    ),
    "05 Start from an image": _render(
        FRAMEWISE | IMAGE | _timeline(story("fox"), 10.0, height=0),
        310,
        _story("First frame", "load"),
        "from_an_image",
        model_family="causal_forcing_framewise",
        start_image=["load", 0],
    ),
    "08 Finish - larger and smoother": Workflow(
        VIDEO
        | {
            "upscaler": Node("UpscaleModelLoader", {"model_name": "RealESRGAN_x4plus.safetensors"}),
            "rife": Node("FrameInterpolationModelLoader", {"model_name": "rife_v4.26.safetensors"}),
            "finish": Node(
                "HeadForcingFinishVideo",
                {
                    "video": ["load", 0],
                    "upscale_model": ["upscaler", 0],
                    "interp_model": ["rife", 0],
                }
                | {"multiplier": 2, "filename_prefix": "video/finished"},
            ),
        },
        (
            Column(
                480,
                (Group("Video", ("load",)), Group("Models", ("upscaler", "rife"))),
                250,
            ),
            _column("The finished video grows here", 520, "finish"),
        ),
    ),
    "09 LongLive 2.0 - shots at 720p": _render(
        LONGLIVE2 | _timeline(story("violin"), 30.0, model_family="longlive2"),
        400,
        _column("Story, a shot for each prompt", 480, "prompt"),
        "shots",
        **SHOTS,
    ),
    "10 LongLive 2.0 - start from an image": _render(
        LONGLIVE2 | IMAGE | _timeline(story("fox"), 10.0, height=0, model_family="longlive2"),
        400,
        _story("First frame", "load"),
        "from_an_image",
        **SHOTS,
        start_image=["load", 0],
    ),
    "15 Research - native sampling nodes": Workflow(
        SELF_FORCING
        | _LIGHTHOUSE
        | {
            "apply": Node("HeadForcingApply", {"model": ["model", 0], "positive": ["prompt", 0]}),
            "noise": Node("RandomNoise", {"noise_seed": 0}),
            "guider": Node("BasicGuider", {"model": ["apply", 0], "conditioning": ["prompt", 0]}),
            "empty": Node(
                "EmptyHunyuanLatentVideo",
                {"width": 832, "height": 480, "length": ["apply", 3], "batch_size": 1},
                "Empty latent",
            ),
            "sampler": Node(
                "SamplerCustomAdvanced",
                {"noise": ["noise", 0], "guider": ["guider", 0], "sampler": ["apply", 1]}
                | {"sigmas": ["apply", 2], "latent_image": ["empty", 0]},
            ),
        }
        | _decode("native_sampling", ["vae", 0]),
        (
            _loaders(270),
            _story(),
            _column("Head Forcing", 320, "apply"),
            Column(320, (Group("Native nodes", ("guider", "noise", "empty")),)),
            Column(320, (Group("Sampling", ("sampler",)),)),
            _column("Result", 520, "decode"),
        ),
    ),
    "11 Talking portrait": Workflow(
        TALKING
        | _timeline(story("portrait"), ["speech", 1], height=0, audio=["sound", 0])
        | _sampler(
            width=512,
            height=512,
            method="livetalk",
            model_family="livetalk",
            vae=["vae", 0],
            filename_prefix="video/talking",
            start_image=["load", 0],
            speech=["speech", 0],
        )
        | {"report": _report(["sampler", 1])},
        (
            _loaders(500, "model", "clip", "vae", "encoder"),
            _column("Portrait and speech", 330, "load", "sound"),
            _column("Speech", 300, "speech"),
            _column("Prompt", 480, "prompt"),
            _column("Sampling, the video grows here", 520, "sampler"),
            _column("Report", 420, "report"),
        ),
    ),
    "12 Minute video as an app": replace(
        _render(SELF_FORCING | _LIGHTHOUSE, 220, _story(), "story"),
        controls=(
            ("prompt", "timeline"),
            ("prompt", "seconds"),
            ("sampler", "seed"),
            ("sampler", "filename_prefix"),
        ),
        results=("sampler",),
    ),
}
for _name, _workflow in WORKFLOWS.items():
    _values = chain(*(node.inputs.values() for node in _workflow.nodes.values()))
    _inputs = set(map(str, _values))
    WORKFLOWS[_name] = replace(_workflow, note=note(_name, _inputs))
