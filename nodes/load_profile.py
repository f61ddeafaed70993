"""Load Head Profile: which attention head has which role."""

from pathlib import Path

import folder_paths
from comfy_api.latest import io

from ..headforcing_core.errors import HeadForcingError
from ..headforcing_core.files import Fields
from ..headforcing_core.head_profiles.auto import MEASURE_SECONDS, AutoProfile
from ..headforcing_core.head_profiles.profile import bundled_profiles
from ..headforcing_core.head_profiles.profile_plot import profile_picture
from ..headforcing_core.head_profiles.rules import with_rule
from ..headforcing_core.names import RULES
from ..headforcing_core.plan.video_roles import profile_from
from .host import folders
from .host.graph import images, schema
from .host.graph.schema import HeadProfileType

AUTO = "auto"
IN_FILE = "in file"


class LoadHeadProfile(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema.node_schema(
            "HeadForcingLoadProfile",
            "Load Head Profile",
            "loaders",
            aliases="head roles, attention heads, KV cache",
            inputs=[
                io.Combo.Input(
                    "profile",
                    options=[
                        AUTO,
                        *bundled_profiles(),
                        *folder_paths.get_filename_list(folders.PROFILE_FOLDER),
                    ],
                    default=AUTO,
                ),
                io.Float.Input("anchor_percent", default=-1.0, min=-1.0, max=60.0, step=1.0),
                io.Float.Input("local_percent", default=-1.0, min=-1.0, max=60.0, step=1.0),
                io.Combo.Input("rule", options=[IN_FILE, *RULES], default=IN_FILE),
                io.Float.Input(
                    "measure_seconds",
                    default=MEASURE_SECONDS,
                    min=1.0,
                    max=86_400.0,
                    step=1.0,
                    optional=True,
                ),
            ],
            advanced="anchor_percent local_percent rule measure_seconds",
            outputs={
                "head_profile": HeadProfileType,
                "picture": io.Image,
            },
        )

    @classmethod
    def fingerprint_inputs(cls, profile: str, **_: object) -> float:
        """Changes with the file, so that ComfyUI loads it again."""
        return 0.0 if profile == AUTO else _path(profile).stat().st_mtime

    @classmethod
    @schema.shows_errors
    def execute(
        cls,
        profile: str,
        anchor_percent: float = -1.0,
        local_percent: float = -1.0,
        rule: str = IN_FILE,
        measure_seconds: float = MEASURE_SECONDS,
    ) -> io.NodeOutput:
        percent = {"anchor_fraction": anchor_percent, "local_fraction": local_percent}
        given: Fields = {name: part / 100 for name, part in percent.items() if part >= 0}
        if rule != IN_FILE:
            given["rule"] = rule
        if profile == AUTO:
            return io.NodeOutput(
                AutoProfile(**given, measure_seconds=measure_seconds), images.no_picture()
            )
        loaded = profile_from(_path(profile))
        if given:
            loaded = with_rule(loaded, **given)
        return io.NodeOutput(
            loaded, images.picture_or_nothing(lambda: profile_picture(loaded, theme="dark"))
        )


def _path(profile: str) -> Path:
    bundled = bundled_profiles()
    path = bundled.get(profile) or folders.model_file(folders.PROFILE_FOLDER, profile)
    if path is None:
        raise HeadForcingError(
            f"profile: {profile[:80]!r} is neither shipped with the pack nor in "
            "ComfyUI/models/head_profiles; put the file there, or choose one of "
            f"{', '.join(bundled)}"
        )
    return path
