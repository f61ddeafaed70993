"""A film of a page in the browser: its pictures as they come, a drawn pointer, captions, and the cut
into a moving picture of given length."""

import base64
import io
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Locator, Page

LEAST_APART = 0.04  # seconds between two pictures
QUALITIES = (68, 60, 52, 44, 36, 28)
# the pointer, which screenshots lack, with a ring at each press; and a caption
_DRAWN = """(place) => {
  const layer = document.createElement("div");
  layer.style.cssText = "position:fixed;inset:0;z-index:2147483647;pointer-events:none";
  layer.innerHTML = `
    <div id="film-caption" style="position:absolute;${place};padding:10px 20px;border-radius:10px;background:#000d;color:#fff;
      font:600 24px Inter,system-ui,sans-serif;opacity:0"></div>
    <div id="film-ring" style="position:absolute;width:44px;height:44px;margin:-22px;border-radius:50%;border:4px solid #ffd54a;
      opacity:0"></div>
    <svg id="film-pointer" width="30" height="30" viewBox="0 0 24 24" style="position:absolute">
      <path d="M4 2l14 12h-7l4 8-3 1-4-8-4 5z" fill="#fff" stroke="#000" stroke-width="1.4"/></svg>`;
  document.body.append(layer);
  const [caption, ring, pointer] = layer.children;
  window.filmCaption = (text) => { caption.textContent = text; caption.style.opacity = text ? 1 : 0; };
  addEventListener("pointermove", (event) => {
    pointer.style.left = `${event.clientX - 5}px`;
    pointer.style.top = `${event.clientY - 2}px`;
  }, true);
  addEventListener("pointerdown", (event) => {
    Object.assign(ring.style, { left: `${event.clientX}px`, top: `${event.clientY}px` });
    ring.animate([{ opacity: 1 }, { opacity: 1, offset: 0.4 }, { opacity: 0 }], 900);
  }, true);
}"""


@dataclass(frozen=True)
class Moment:
    """A part of a film, and the seconds that it lasts in the moving picture however long it
    took."""

    seconds: float
    start: float  # seconds of the recording


@dataclass
class Film:
    """Pictures of a page with the seconds at which they were taken, and the moments."""

    page: Page
    caption_place: str  # in CSS
    pictures: list[tuple[float, bytes]] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)
    end_second: float = 0.0

    def begin(self) -> None:
        """Draw the pointer, and take pictures from now on."""
        self.page.evaluate(_DRAWN, self.caption_place)
        self._start = time.monotonic()
        self._session = self.page.context.new_cdp_session(self.page)
        self._session.on("Page.screencastFrame", self._keep)
        self._session.send("Page.startScreencast", {"format": "jpeg", "quality": 92})

    def _keep(self, event: dict[str, Any]) -> None:
        now = self._now()
        if not self.pictures or now - self.pictures[-1][0] > LEAST_APART:
            self.pictures.append((now, base64.b64decode(event["data"])))
        self._session.send("Page.screencastFrameAck", {"sessionId": event["sessionId"]})

    def _now(self) -> float:
        return time.monotonic() - self._start

    def moment(self, caption: str, seconds: float) -> None:
        """Begin a moment; the one before ends."""
        self.page.evaluate("(text) => filmCaption(text)", caption)
        self.page.wait_for_timeout(150)  # until a picture has it
        self.moments.append(Moment(seconds, self._now()))

    def end(self) -> None:
        self.end_second = self._now()
        self._session.send("Page.stopScreencast")

    def wait(self, condition: str, seconds: float = 300) -> None:
        """Until a condition of the page holds; pictures come meanwhile."""
        stop = time.monotonic() + seconds
        while not self.page.evaluate(condition):
            if time.monotonic() > stop:
                raise TimeoutError(f"waited {seconds:.0f} s in vain for: {condition}")
            self.page.wait_for_timeout(100)

    def go(self, x: float, y: float, steps: int = 8) -> None:
        """Move the pointer, visibly."""
        self.page.mouse.move(x, y, steps=steps)
        self.page.wait_for_timeout(80)

    def click(self, locator: Locator) -> None:
        box = _box(locator)
        self.go(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        self.page.mouse.down()
        self.page.wait_for_timeout(60)
        self.page.mouse.up()

    def drag(self, locator: Locator, ways: Sequence[float]) -> None:
        """Press something and move it to the right by so many pixels of its first place, one after
        another."""
        box = _box(locator)
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        self.go(x, y)
        self.page.mouse.down()
        for way in ways:
            self.go(x + way, y, 12)
            self.page.wait_for_timeout(250)
        self.page.mouse.up()

    def write(self, locator: Locator, words: str) -> None:
        """Replace the text of a field, a word after another."""
        self.click(locator)
        self.page.keyboard.press("Control+a")
        for part in re.findall(r"\S+ *", words):
            self.page.keyboard.insert_text(part)
            self.page.wait_for_timeout(70)

    def save(self, file: Path, fps: int, most_bytes: int) -> int:
        """Write the moving picture with the best quality that fits; the number of its pictures."""
        images = [_image(self._picture_at(second)) for second in self._seconds(fps)]
        durations = [round(1000 / fps)] * len(images)
        durations[-1] = 1600
        first, *others = images
        for quality in QUALITIES:
            content = io.BytesIO()
            first.save(
                content,
                "WEBP",
                save_all=True,
                append_images=others,
                duration=durations,
                loop=0,
                quality=quality,
                method=4,
            )
            if content.tell() <= most_bytes:
                break
        file.write_bytes(content.getvalue())
        return len(images)

    def _seconds(self, fps: int) -> list[float]:
        """The seconds of the recording that are shown, those of a moment at equal distances."""
        seconds = []
        ends = [moment.start for moment in self.moments[1:]] + [self.end_second]
        for moment, end in zip(self.moments, ends, strict=True):
            count = max(1, round(moment.seconds * fps))
            for step in range(1, count + 1):
                seconds.append(moment.start + (end - moment.start) * step / count)
        return seconds

    def _picture_at(self, second: float) -> bytes:
        """The last picture that had come by then."""
        before = [content for taken, content in self.pictures if taken <= second]
        return before[-1] if before else self.pictures[0][1]


def _box(locator: Locator) -> Any:
    locator.scroll_into_view_if_needed()
    return locator.bounding_box()


def _image(content: bytes) -> Image.Image:
    with Image.open(io.BytesIO(content)) as picture:
        return picture.convert("RGB")
