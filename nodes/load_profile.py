"""Load Head Profile: which attention head plays which role."""

from pathlib import Path

import folder_paths
from comfy_api.latest import io

from ..headforcing_core.errors import HeadForcingError
from ..headforcing_core.profile import bundled_profiles, load_profile
from . import comfy_bridge

HeadProfileType = io.Custom("HEAD_PROFILE")


class LoadHeadProfile(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return io.Schema(
            node_id="HeadForcingLoadProfile",
            display_name="Load Head Profile",
            category=comfy_bridge.CATEGORY,
            description="Loads the roles (local, anchor, memory) of a model's attention heads.",
            inputs=[
                io.Combo.Input(
                    "profile",
                    options=[
                        *bundled_profiles(),
                        *folder_paths.get_filename_list(comfy_bridge.PROFILE_FOLDER),
                    ],
                    tooltip="Profiles shipped with the pack, and files in ComfyUI/models/head_profiles.",
                ),
                comfy_bridge.advanced(
                    io.Float.Input(
                        "anchor_percent",
                        default=-1.0,
                        min=-1.0,
                        max=60.0,
                        step=1.0,
                        optional=True,
                        tooltip="Share of all heads, by attention to the first frame, that keep the opening frames. "
                        "-1: as in the file. 20 to 35 is stable in the paper. Needs a profile with measured shares.",
                    )
                ),
                comfy_bridge.advanced(
                    io.Float.Input(
                        "local_percent",
                        default=-1.0,
                        min=-1.0,
                        max=60.0,
                        step=1.0,
                        optional=True,
                        tooltip="Share of all heads, by attention to the current block among those left, that see only "
                        "the frame before it. -1: as in the file. Too many hurts quality. Needs measured shares.",
                    )
                ),
            ],
            outputs=[HeadProfileType.Output(display_name="head_profile")],
        )

    @classmethod
    def fingerprint_inputs(cls, profile: str, **_: object) -> float:
        """Load again when the file has changed."""
        return _path(profile).stat().st_mtime

    @classmethod
    def execute(cls, profile: str, anchor_percent: float = -1.0, local_percent: float = -1.0) -> io.NodeOutput:
        loaded = load_profile(_path(profile))
        if anchor_percent >= 0 or local_percent >= 0:
            loaded = loaded.with_thresholds(
                anchor_percent if anchor_percent >= 0 else 100 * (loaded.anchor_fraction or 0),
                local_percent if local_percent >= 0 else 100 * (loaded.local_fraction or 0),
            )
        return io.NodeOutput(loaded)


def _path(profile: str) -> Path:
    bundled = bundled_profiles()
    path = bundled.get(profile) or folder_paths.get_full_path(comfy_bridge.PROFILE_FOLDER, profile)
    if path is None:
        raise HeadForcingError(
            f"profile: {profile[:80]!r} is neither shipped with the pack nor in ComfyUI/models/head_profiles; "
            f"put the file there, or choose one of {', '.join(bundled)}"
        )
    return Path(path)
