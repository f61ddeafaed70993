"""Writes docs/images/live.webp: a live video is begun in the story panel, two prompts are typed while
it plays, a scene comes back, the video ends. Filmed in a real browser with the demo model, within two
minutes on two idle cores.

    python tasks.py write live_film
"""

from comfy_browser import Browser
from film import Film
from panel_films import CAPTION, VIDEO, load_demo, make_film, open_panel

FILE = "live.webp"
MOST_BYTES = 2_000_000
BEGIN = "a red ball bouncing in the teal plain room"
NEXT = "a yellow cross circling in the navy checkerboard room"

STATE = "document.querySelector('.hf-live-state').textContent"
SEEN = f"!{STATE}.startsWith('in ')"


def record(editor: Browser) -> Film:
    page = editor.page
    load_demo(editor, prompts=f"0:00 {BEGIN}", seconds=30.0)
    open_panel(editor, bars=1)
    page.wait_for_timeout(1500)
    film = Film(page, CAPTION)
    field = page.locator(".hf-live-words")
    film.begin()

    film.moment("Press Live.", 2.0)
    film.go(900, 500)
    film.click(page.locator(".hf-live-begin"))
    page.wait_for_selector(".hf-is-live .hf-live-words")
    film.wait(f"{VIDEO}.currentTime > 1")

    film.moment("Type what happens next ...", 3.0)
    film.click(page.locator(".hf-live-ways input[value=cut]"))
    film.write(field, NEXT)
    film.moment("... and see it two seconds later.", 2.5)
    page.keyboard.press("Enter")
    film.wait(f"{STATE}.startsWith('in ')")
    film.wait(SEEN)
    page.wait_for_timeout(1500)

    film.moment("With the demo a word is enough.", 3.0)
    film.click(page.locator(".hf-live-chips input[value=green]"))
    film.wait(f"{STATE}.startsWith('in ')")
    film.wait(SEEN)
    page.wait_for_timeout(1500)

    film.moment("Scenes come back.", 2.5)
    film.click(page.locator(".hf-live-scene").first)
    film.wait(f"{STATE}.startsWith('in ')")
    film.wait(SEEN)
    page.wait_for_timeout(1500)

    film.moment("Stop: it is an ordinary story.", 2.0)
    film.click(page.locator(".hf-live input[value='■ Stop']"))
    page.wait_for_selector(".hf-story-grid:not(.hf-is-live)")
    page.wait_for_timeout(2500)
    film.end()
    return film


if __name__ == "__main__":
    make_film(FILE, MOST_BYTES, record)
