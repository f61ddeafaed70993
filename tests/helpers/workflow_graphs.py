"""The shipped workflows: nodes, links, and the columns they are drawn in."""

from typing import Any

import workflow_stories as stories
from headforcing.headforcing_core.demo.assets import DEMO_STORY
from workflow_layout import Column, Group, Node, Workflow
from workflow_sources import FRAMEWISE_MODEL, LONGLIVE2_MODEL, MODELS, WAN22_VAE

BLUE, AMBER, GREEN, VIOLET = "#3f789e", "#b58b2a", "#8A8", "#88A"  # colours that the editor offers for groups

RUNNABLE = ("demo", "profile_heads", "compare_methods", "re_roll_one_scene")  # without downloads
NEWER_CORE = ("two_gpus", "finish_a_video")  # have a node of ComfyUI that the oldest supported version lacks

SELF_FORCING = {
    "model": Node("HeadForcingLoadModel", {"checkpoint": "self_forcing_dmd.pt"}),
    "clip": Node(
        "CLIPLoader",
        {"clip_name": "umt5_xxl_fp8_e4m3fn_scaled.safetensors", "type": "wan", "device": "default"},
        "Text encoder (umT5)",
    ),
    "vae": Node("VAELoader", {"vae_name": "wan_2.1_vae.safetensors"}, "Wan 2.1 VAE"),
}
LONGLIVE2 = SELF_FORCING | {
    "model": Node("HeadForcingLoadModel", {"checkpoint": LONGLIVE2_MODEL["name"]}),
    "vae": Node("VAELoader", {"vae_name": WAN22_VAE["name"]}, "Wan 2.2 VAE"),
}
DEMO = {"model": Node("HeadForcingLoadDemo")}
PROFILE = {"profile": Node("HeadForcingLoadProfile", {"profile": "self_forcing"})}


def _sampler(positive: str = "prompt", seconds: float = 0.0, **more: Any) -> dict[str, Node]:
    """The sampler, with room for its player where it has a VAE."""
    inputs = {"model": ["model", 0], "positive": [positive, 0], "width": 832, "height": 480, "seconds": seconds}
    inputs |= {"seed": 0} | more
    room = (0.36 if inputs["width"] == inputs["height"] else 0.22) if "vae" in more else 0
    return {"sampler": Node("HeadForcingSampler", inputs, room=room)}


def _decode(name: str, vae: list[Any], **more: Any) -> dict[str, Node]:
    inputs = {"samples": ["sampler", 0], "vae": vae, "filename_prefix": f"video/{name}", "fps": 16.0}
    return {"decode": Node("HeadForcingDecodeVideo", inputs | more, room=1.05 if "upscale" in more else 0.65)}


def _timeline(prompts: str, seconds: float, clip: list[Any], height: int = 420, **more: Any) -> dict[str, Node]:
    inputs = {"clip": clip, "prompts": prompts, "seconds": seconds} | more
    return {"prompt": Node("HeadForcingPromptTimeline", inputs, height=height)}


def _report(source: list[Any], title: str = "Report", height: int = 220) -> Node:
    return Node("PreviewAny", {"source": source}, title, height)


def _loaders(note_height: int, *names: str) -> Column:
    return Column(350, (Group("1 Models", BLUE, names or ("model", "clip", "vae")),), note_height)


def _column(number: int, title: str, width: int, *names: str) -> Column:
    return Column(width, (Group(f"{number} {title}", (BLUE, AMBER, GREEN, VIOLET)[min(number, 4) - 1], names),))


_SHOTS = {"width": 1280, "height": 704, "method": "longlive2", "model_family": "longlive2"}
_PROMPT = Column(480, (Group("2 Story", AMBER, ("prompt",)), Group("2 Head roles", AMBER, ("profile",))))
_SAMPLING = _column(3, "Sampling, the video grows here", 520, "sampler")
_REPORT = _column(4, "Report", 420, "report")

WORKFLOWS: dict[str, Workflow] = {
    "demo": Workflow(
        DEMO
        | _timeline(DEMO_STORY.strip(), 60.0, ["model", 1])
        | _sampler(width=64, height=64, method="head_forcing_scenes", vae=["model", 2], filename_prefix="video/demo")
        | {"report": _report(["sampler", 1])},
        (_loaders(400, "model"), _column(2, "Story", 480, "prompt"), _SAMPLING, _REPORT),
        stories.DEMO_NOTE,
    ),
    "single_prompt_60s": Workflow(
        SELF_FORCING
        | {"prompt": Node("CLIPTextEncode", {"clip": ["clip", 0], "text": stories.FOX}, "Prompt", 220)}
        | PROFILE
        | _sampler(seconds=60.0, head_profile=["profile", 0], vae=["vae", 0], filename_prefix="video/red_fox")
        | {"report": _report(["sampler", 1])},
        (_loaders(270), _PROMPT, _SAMPLING, _REPORT),
        stories.SINGLE_NOTE,
    ),
    "six_prompts_60s": Workflow(
        SELF_FORCING
        | _timeline(stories.LIGHTHOUSE, 60.0, ["clip", 0])
        | PROFILE
        | _sampler(head_profile=["profile", 0], vae=["vae", 0], filename_prefix="video/lighthouse")
        | {"report": _report(["sampler", 1])},
        (_loaders(270), _PROMPT, _SAMPLING, _REPORT),
        stories.SIX_NOTE,
    ),
    "five_minutes_streaming": Workflow(
        SELF_FORCING
        | _timeline(stories.VALLEY, 300.0, ["clip", 0])
        | PROFILE
        | _sampler(head_profile=["profile", 0], vae=["vae", 0], filename_prefix="video/alpine_valley")
        | {
            "report": _report(["sampler", 1]),
            "drift": Node("HeadForcingVideoDriftReport", {"video": ["sampler", 2], "theme": "dark"}),
            "picture": Node("PreviewImage", {"images": ["drift", 0]}, "Drift over five minutes", room=1.5),
        },
        (
            _loaders(310),
            _PROMPT,
            _SAMPLING,
            _column(4, "Report", 400, "report", "drift"),
            _column(5, "Drift", 480, "picture"),
        ),
        stories.FIVE_NOTE,
    ),
    "two_gpus": Workflow(
        SELF_FORCING
        | {"second": Node("SelectVAEDevice", {"vae": ["vae", 0], "device": "gpu:1"})}
        | _timeline(stories.LIGHTHOUSE, 60.0, ["clip", 0])
        | _sampler(vae=["second", 0], filename_prefix="video/two_gpus", decode_in_background=True)
        | {"report": _report(["sampler", 1])},
        (
            _loaders(290),
            Column(480, (Group("2 Story", AMBER, ("prompt",)), Group("2 VAE on the second GPU", AMBER, ("second",)))),
            _SAMPLING,
            _REPORT,
        ),
        stories.TWO_GPUS_NOTE,
    ),
    "live_story": Workflow(
        SELF_FORCING
        | _timeline(stories.LIGHTHOUSE, 60.0, ["clip", 0], 520)
        | _sampler(vae=["vae", 0], filename_prefix="video/live_story")
        | {"report": _report(["sampler", 1])},
        (_loaders(300), _column(2, "Story, edit it while it renders", 560, "prompt"), _SAMPLING, _REPORT),
        stories.LIVE_NOTE,
    ),
    "re_roll_one_scene": Workflow(
        DEMO
        | _timeline(stories.TAKES, 60.0, ["model", 1])
        | _sampler(width=64, height=64, vae=["model", 2], filename_prefix="video/takes")
        | {"report": _report(["sampler", 1])},
        (_loaders(270, "model"), _column(2, "Story", 480, "prompt"), _SAMPLING, _REPORT),
        stories.TAKES_NOTE,
    ),
    "profile_heads": Workflow(
        DEMO
        | {
            "known": Node("HeadForcingLoadProfile", {"profile": "toy_world"}, "Profile that comes with the pack"),
            "measure": Node(
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
            ),
            "inspect": Node(
                "HeadForcingInspectProfile", {"head_profile": ["measure", 0], "compare_with": ["known", 0]}
            ),
            "prompt": Node(
                "HeadForcingPromptTimeline",
                {
                    "clip": ["model", 1],
                    "prompts": "a yellow cross circling in the navy checkerboard room",
                    "seconds": 10.0,
                },
                height=300,
            ),
        }
        | _sampler(head_profile=["measure", 0], width=64, height=64)
        | _decode("my_profile", ["model", 2], upscale=6)
        | {
            "report": _report(["measure", 2], "What was measured", 260),
            "picture": Node("PreviewImage", {"images": ["measure", 1]}, "Head roles, measured", room=1.5),
            "agreement": Node("PreviewImage", {"images": ["inspect", 0]}, "Agreement with the pack's profile", room=1),
        },
        (
            Column(350, (Group("1 Models", BLUE, ("model", "known")),), 300),
            Column(440, (Group("2 Measure", AMBER, ("measure",)), Group("2 Story", AMBER, ("prompt",)))),
            Column(380, (Group("3 Compare", GREEN, ("inspect",)), Group("3 Sampling", GREEN, ("sampler",)))),
            Column(460, (Group("4 Result", VIOLET, ("report", "decode")),)),
            Column(420, (Group("5 Head roles", VIOLET, ("picture",)),)),
            Column(420, (Group("6 Agreement", VIOLET, ("agreement",)),)),
        ),
        stories.PROFILE_NOTE,
    ),
    "compare_methods": Workflow(
        DEMO
        | _timeline(stories.COMPARE_PROMPTS, 20.0, ["model", 1], 340)
        | {
            "compare": Node(
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
                    "filename_prefix": "video/methods",
                },
                room=0.45,
            ),
            "table": _report(["compare", 1], "Table", 480),
        },
        (
            _loaders(270, "model"),
            _column(2, "Story", 480, "prompt"),
            _column(3, "Videos side by side", 640, "compare"),
            _column(4, "Table", 560, "table"),
        ),
        stories.COMPARE_NOTE,
    ),
    "extend_a_video": Workflow(
        SELF_FORCING
        | {
            "load": Node("LoadVideo", {"file": "my_video.mp4"}, "Your video", 330),
        }
        | _timeline(stories.LIGHTHOUSE.replace("0:00 ", "").split("\n")[0], 15.0, ["clip", 0], 360)
        | _sampler(vae=["vae", 0], filename_prefix="video/extended", start_video=["load", 0])
        | {"report": _report(["sampler", 1])},
        (
            _loaders(310),
            Column(480, (Group("2 Story", AMBER, ("prompt",)), Group("2 Video to extend", AMBER, ("load",)))),
            _SAMPLING,
            _REPORT,
        ),
        stories.EXTEND_NOTE,
    ),
    "image_to_video": Workflow(
        SELF_FORCING
        | {
            "model": Node("HeadForcingLoadModel", {"checkpoint": FRAMEWISE_MODEL["name"]}),
            "load": Node("LoadImage", {"image": "my_image.png"}, "Your image", 330),
        }
        | _timeline(stories.FOX, 10.0, ["clip", 0], 360)
        | _sampler(
            model_family="causal_forcing_framewise",
            vae=["vae", 0],
            filename_prefix="video/from_an_image",
            start_image=["load", 0],
        )
        | {"report": _report(["sampler", 1])},
        (
            _loaders(310),
            Column(480, (Group("2 Story", AMBER, ("prompt",)), Group("2 First frame", AMBER, ("load",)))),
            _SAMPLING,
            _REPORT,
        ),
        stories.IMAGE_NOTE,
    ),
    "finish_a_video": Workflow(
        {
            "load": Node("LoadVideo", {"file": "my_video.mp4"}, "Your video", 330),
            "upscaler": Node("UpscaleModelLoader", {"model_name": MODELS["UpscaleModelLoader"]["name"]}),
            "rife": Node(
                "FrameInterpolationModelLoader", {"model_name": MODELS["FrameInterpolationModelLoader"]["name"]}
            ),
            "finish": Node(
                "HeadForcingFinishVideo",
                {
                    "video": ["load", 0],
                    "upscale_model": ["upscaler", 0],
                    "interp_model": ["rife", 0],
                    "multiplier": 2,
                    "filename_prefix": "video/finished",
                },
                room=0.65,
            ),
        },
        (
            Column(480, (Group("1 Video", BLUE, ("load",)), Group("2 Models", AMBER, ("upscaler", "rife"))), 250),
            _column(3, "The finished video grows here", 520, "finish"),
        ),
        stories.FINISH_NOTE,
    ),
    "longlive2_shots_720p": Workflow(
        LONGLIVE2
        | _timeline(stories.VIOLIN, 30.0, ["clip", 0], 480, model_family="longlive2")
        | _sampler(**_SHOTS, vae=["vae", 0], filename_prefix="video/shots")
        | {"report": _report(["sampler", 1])},
        (_loaders(400), _column(2, "Story, a shot for each prompt", 480, "prompt"), _SAMPLING, _REPORT),
        stories.LONGLIVE2_NOTE,
    ),
    "longlive2_image_start": Workflow(
        LONGLIVE2
        | {"load": Node("LoadImage", {"image": "my_image.png"}, "Your image", 330)}
        | _timeline(stories.FOX, 10.0, ["clip", 0], 400, model_family="longlive2")
        | _sampler(**_SHOTS, vae=["vae", 0], filename_prefix="video/from_an_image", start_image=["load", 0])
        | {"report": _report(["sampler", 1])},
        (
            _loaders(400),
            Column(480, (Group("2 Story", AMBER, ("prompt",)), Group("2 First frame", AMBER, ("load",)))),
            _SAMPLING,
            _REPORT,
        ),
        stories.LONGLIVE2_IMAGE_NOTE,
    ),
    "native_sampling": Workflow(
        SELF_FORCING
        | _timeline(stories.LIGHTHOUSE, 60.0, ["clip", 0])
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
                {
                    "noise": ["noise", 0],
                    "guider": ["guider", 0],
                    "sampler": ["apply", 1],
                    "sigmas": ["apply", 2],
                    "latent_image": ["empty", 0],
                },
            ),
        }
        | _decode("native_sampling", ["vae", 0]),
        (
            _loaders(270),
            _column(2, "Story", 480, "prompt"),
            _column(3, "Head Forcing", 320, "apply"),
            Column(320, (Group("4 Native nodes", GREEN, ("guider", "noise", "empty")),)),
            Column(320, (Group("5 Sampling", GREEN, ("sampler",)),)),
            Column(520, (Group("6 Result", VIOLET, ("decode",)),)),
        ),
        stories.NATIVE_NOTE,
    ),
    "minute_video_app": Workflow(
        SELF_FORCING
        | _timeline(stories.LIGHTHOUSE, 60.0, ["clip", 0])
        | _sampler(vae=["vae", 0], filename_prefix="video/story")
        | {"report": _report(["sampler", 1])},
        (_loaders(220), _column(2, "Story", 480, "prompt"), _SAMPLING, _REPORT),
        stories.APP_NOTE,
        controls=(("prompt", "timeline"), ("prompt", "seconds"), ("sampler", "seed"), ("sampler", "filename_prefix")),
        results=("sampler",),
    ),
}
