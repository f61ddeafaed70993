"""Writes docs/images/story_panel.webp: a story is rendered in the story panel, one of its scenes gets
other words meanwhile, two takes are compared, a scene is dragged to a beat. Filmed in a real browser
with the demo model, within four minutes on two idle cores.

    python tasks.py write panel_film
"""

from comfy_browser import Browser, of_widget
from film import Film
from panel_films import CAPTION, VIDEO, load_demo, make_film, open_panel
from sound_files import beat_file
from workflow_sources import story

FILE = "story_panel.webp"
MOST_BYTES = 3_000_000
SOUND = "beats.wav"
STORY = story("takes").replace("[seed 7] ", "")
WHILE_IT_RENDERS = "a green star gliding in the teal checkerboard room"
AFTERWARDS = "a orange ball bouncing in the maroon striped room"

FINISHED = f"{VIDEO}.readyState >= 2 && !{VIDEO}.src.startsWith('blob:')"
GROWN = f"{VIDEO}?.src.startsWith('blob:') && {VIDEO}.duration > "
TWO_VIDEOS = "document.querySelectorAll('.hf-story video')[1]?.readyState >= 2"
_ADD_SOUND = """(name) => {
  const timeline = app.graph.nodes.find(({ type }) => type === "HeadForcingPromptTimeline");
  const sound = LiteGraph.createNode("LoadAudio");
  app.graph.add(sound);
  sound.pos = [timeline.pos[0] - 420, timeline.pos[1] + 500];
  sound.widgets.find((widget) => widget.name === "audio").value = name;
  sound.connect(0, timeline, "audio");
}"""


def record(editor: Browser) -> Film:
    page = editor.page
    beat_file(editor.server, SOUND, 60)
    load_demo(editor, prompts=STORY)
    page.evaluate(_ADD_SOUND, SOUND)
    open_panel(editor, bars=6)
    page.wait_for_function("!document.querySelector('.hf-story-sound').hidden")
    page.wait_for_timeout(1500)
    film = Film(page, CAPTION)
    run = page.get_by_role("button", name="Run", exact=True).first
    bars = page.locator(".hf-story .hf-bar")
    words = page.locator(".hf-story textarea.hf-text")
    film.begin()

    film.moment("Write a story. Press Run.", 1.5)
    film.go(900, 500)
    film.click(run)
    film.moment("The video plays while it renders.", 2.5)
    film.go(1000, 400)
    film.wait(f"{GROWN} 5")

    film.moment("Change a scene meanwhile ...", 2.5)
    film.click(bars.nth(5))
    film.write(words, WHILE_IT_RENDERS)
    page.wait_for_function(f"{of_widget('PromptTimeline', 'prompts')}.value.includes('green')")
    page.wait_for_selector(".hf-story .hf-waits")
    page.wait_for_selector(".hf-story .hf-live-story input:enabled")
    film.moment("... and the running render takes it.", 2.5)
    film.click(page.locator(".hf-story .hf-live-story input"))
    page.wait_for_timeout(500)
    film.go(1000, 400)
    film.wait(FINISHED)
    page.wait_for_timeout(3000)  # pictures of what was not shown

    film.moment("Change another: what comes before it is kept.", 3.5)
    film.click(bars.nth(2))
    film.write(words, AFTERWARDS)
    page.wait_for_function(f"{of_widget('PromptTimeline', 'prompts')}.value.includes('orange')")
    film.click(run)
    film.go(1000, 400)
    film.wait(f"{VIDEO}.src.startsWith('blob:')")
    film.wait(FINISHED)
    page.wait_for_timeout(3000)

    film.moment("Every take is kept. Compare two.", 4.0)
    film.click(page.locator(".hf-story-takes input[value='compare']").nth(1))
    film.wait(TWO_VIDEOS)
    film.click(page.get_by_label("Lay one take over the other, with a line to drag (W)"))
    page.wait_for_selector(".hf-wipe")
    page.evaluate(f"{VIDEO}.currentTime = 20.5; {VIDEO}.play()")
    film.drag(page.locator(".hf-wipe"), (-110, 110, -60, 0))

    film.moment("Drag a scene to a beat of the sound.", 2.5)
    film.drag(page.locator(".hf-story .hf-handle:visible").nth(1), (-20, -31))
    page.wait_for_timeout(800)
    film.end()
    return film


if __name__ == "__main__":
    make_film(FILE, MOST_BYTES, record)
