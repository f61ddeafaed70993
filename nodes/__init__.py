"""The ComfyUI nodes: each parses its widgets, calls the core and wraps the result. No mathematics
here.
"""

from comfy_api.latest import ComfyExtension, io
from server import PromptServer

from .apply import ApplyHeadForcing
from .compare_methods import CompareMethods
from .decode_video import DecodeLatentsToVideo
from .finish_video import FinishVideo
from .host.browser import (
    exports,
    forecast,
    live_story,
    pages,
    performed,
    player,
    runs,
    sounds,
)
from .inspect_profile import InspectHeadProfile
from .load_demo import LoadDemoModel
from .load_model import LoadSelfForcing
from .load_profile import LoadHeadProfile
from .load_run import LoadHeadForcingRun
from .options import HeadForcingOptionsNode
from .profile_heads import ProfileHeads
from .prompt_timeline import PromptTimeline
from .references import SceneReferences
from .sampler import HeadForcingSampler
from .speech import SpeechNode
from .video_drift_report import VideoDriftReport


class HeadForcingExtension(ComfyExtension):
    """Everything the pack registers."""

    async def get_node_list(self) -> list[type[io.ComfyNode]]:
        # not in `on_load`, which 0.3.75 ignores
        routed = (pages, runs, exports, live_story, performed, sounds, player, forecast)
        for module in routed:
            for route in module.ROUTES:
                PromptServer.instance.routes.route(route.method, route.path)(route.handler)
        return [
            LoadSelfForcing,
            LoadHeadProfile,
            PromptTimeline,
            HeadForcingSampler,
            HeadForcingOptionsNode,
            ApplyHeadForcing,
            DecodeLatentsToVideo,
            LoadHeadForcingRun,
            ProfileHeads,
            InspectHeadProfile,
            FinishVideo,
            VideoDriftReport,
            CompareMethods,
            LoadDemoModel,
            SceneReferences,
            SpeechNode,
        ]
