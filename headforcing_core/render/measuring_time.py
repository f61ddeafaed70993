"""The time that measuring roles takes, known after the first measured block, and how fast devices
were earlier.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path

import torch

from ..devices import Device
from ..errors import HeadForcingError
from ..files import replacing
from ..head_profiles.shares import HeadShares
from ..model.wan import WanConfig


class MeasuringClock:
    """The blocks of a measurement that are done, and the seconds that the others will take, by
    their operations.

    Attributes:
        done, count: blocks, of all videos.
        speed: operations a second of the last measured block; None before it.
    """

    def __init__(self, shares: HeadShares, config: WanConfig):
        self._first_block = shares.setup.first_block
        self._of_block = [sum(parts) for parts in shares.setup.flops(config)]
        self._left = 0.0
        self.count = len(shares.setup.prompts) * len(self._of_block)
        self.done = self.count
        for prompt in shares.missing_prompts():
            missing = self._of_block[len(shares.made.get(prompt, ())) :]
            self._left += sum(missing)
            self.done -= len(missing)
        self.speed: float | None = None
        self._begun = self._block_begun = time.perf_counter()

    def begin(self) -> None:
        """A block begins."""
        self._block_begun = time.perf_counter()

    def finish(self, block: int) -> None:
        """The block of this number in its video is finished, by the device, too."""
        self.done += 1
        self._left -= self._of_block[block]
        if block >= self._first_block:
            self.speed = self._of_block[block] / (time.perf_counter() - self._block_begun)

    @property
    def left(self) -> float | None:
        """The seconds that are left; None before the first measured block."""
        return None if self.speed is None else max(0.0, self._left) / self.speed

    @property
    def expected(self) -> float | None:
        """The seconds that the measurement takes in all."""
        return None if self.left is None else time.perf_counter() - self._begun + self.left


def known_seconds(path: Path, device: Device, shares: HeadShares, config: WanConfig) -> float:
    """The seconds that a measurement takes on a device that was too slow for an earlier one; 0 if
    nothing is known of it.
    """
    try:
        speeds = json.loads(path.read_text("utf-8"))
        speed = float(speeds[device_name(device)])
    except (OSError, ValueError, TypeError, KeyError):
        return 0.0
    operations = len(shares.setup.prompts) * sum(map(sum, shares.setup.flops(config)))
    return operations / speed if speed > 0 else 0.0


def note_speed(path: Path, device: Device, speed: float) -> None:
    """Note how fast a device is, for `known_seconds`; without a note it is tried again."""
    with suppress(OSError, HeadForcingError), replacing(path) as temporary:
        temporary.write_text(json.dumps({device_name(device): speed}) + "\n", encoding="utf-8")


def device_name(device: Device) -> str:
    """The name of a device that a note is about."""
    device = torch.device(device)
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
