"""The labels of heads in Pyramid Forcing; nothing heavy is imported."""

from enum import Enum

from ..cache.roles import HeadRole


class HeadLabel(Enum):
    """The label of a head in Pyramid Forcing, whose anchors are not Head Forcing's; equal to no
    role and no text.
    """

    WAVE = "wave"
    ANCHOR = "anchor"
    VEIL = "veil"

    def __str__(self) -> str:
        return self.value


OF_ROLES = {
    HeadRole.LOCAL: HeadLabel.WAVE,
    HeadRole.ANCHOR: HeadLabel.VEIL,
    HeadRole.MEMORY: HeadLabel.ANCHOR,
}
"""By role, the label that fits it best."""
