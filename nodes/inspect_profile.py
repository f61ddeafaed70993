"""Inspect Head Profile: plots of one profile, or of the agreement of two."""

from comfy_api.latest import io

from ..headforcing_core.errors import HeadForcingError
from ..headforcing_core.head_profiles import profile_plot as pictures
from ..headforcing_core.head_profiles.agreement import compare_profiles, describe_profile
from ..headforcing_core.head_profiles.auto import AutoProfile
from ..headforcing_core.head_profiles.profile import HeadProfile
from ..headforcing_core.head_profiles.rules import remark_on_rule
from .host.graph import images, schema
from .host.graph.schema import HeadProfileType


class InspectHeadProfile(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema.node_schema(
            "HeadForcingInspectProfile",
            "Inspect Head Profile",
            "research",
            aliases="head roles, attention heads, heat map, compare profiles",
            inputs=[
                HeadProfileType.Input("head_profile"),
                HeadProfileType.Input("compare_with", optional=True),
                schema.theme_input(),
            ],
            outputs={
                "picture": io.Image,
                "report": io.String,
            },
        )

    @classmethod
    @schema.shows_errors
    def execute(
        cls, head_profile: HeadProfile, compare_with: HeadProfile | None = None, theme: str = "dark"
    ) -> io.NodeOutput:
        if isinstance(head_profile, AutoProfile) or isinstance(compare_with, AutoProfile):
            raise HeadForcingError(
                "head_profile: auto has no roles before the sampler has measured them; load a "
                "profile"
            )
        if compare_with is None:
            picture = pictures.profile_picture(head_profile, theme)
            lines = describe_profile(head_profile)
        else:
            picture = pictures.comparison_map(head_profile, compare_with, theme)
            lines = [compare_profiles(head_profile, compare_with).text()]
        return io.NodeOutput(
            images.to_image(picture), "\n".join([*lines, *remark_on_rule(head_profile)])
        )
