"""Pictures that scenes keep: renders that are resumed, extended, re-rolled or changed, and the command line."""

import json

import numpy as np
import pytest
import torch
from headforcing.headforcing_core.commands.cli import main
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.head_profiles.auto import AutoProfile
from headforcing.headforcing_core.methods.registry import method_policy
from headforcing.headforcing_core.render.live_story import LiveEdits
from headforcing.headforcing_core.render.render import Place, make_video
from headforcing.headforcing_core.render.sinks import KeptLatents
from PIL import Image
from safetensors.torch import load_file
from toy_renders import PICTURES, Render, Told, picture

SECONDS = 6.0
HERO, CROSS = "a red ball in the teal room", "a yellow cross in the navy room"
TOLD = f"0:00 {HERO}\n0:02.3 @hall {CROSS}\n0:04.5 {HERO} again"  # blocks 0, 3 and 6 of 9


def render_of(backbone, folder, text=TOLD, pictures=PICTURES, **options) -> Render:
    return Render(backbone, folder, text, options.pop("seconds", SECONDS), pictures=pictures, **options)


def test_a_picture_named_while_the_video_is_made_is_held_as_from_the_beginning(backbone, tmp_path):
    text, kept = TOLD.replace(f"{HERO} again", "the @hero and the @hall"), KeptLatents()
    story = Told({4: text}, SECONDS, PICTURES)
    render = render_of(backbone, tmp_path)
    make_video(render.job, render.model(), Place(), [kept, LiveEdits(story)])
    assert not story.refusals
    assert torch.equal(torch.cat(kept.blocks), render_of(backbone, tmp_path / "other", text).straight())


@pytest.mark.parametrize(("options", "why"), [
    ({"policy": method_policy("longlive")}, "prompt 2 names @hall, and with this method a scene holds no pictures"),
    ({"text": "@a @b @c @d", "pictures": {name: picture(1) for name in "abcd"}}, "prompt 1 names .* holds 3 pictures"),
    ({"profile": AutoProfile()}, "no prompt switch or picture may change the cache, got a picture in block 3"),
])  # fmt: skip
def test_what_cannot_hold_pictures_says_so_before_anything_is_made(backbone, tmp_path, options, why):
    with pytest.raises(HeadForcingError, match=why):
        render_of(backbone, tmp_path, **options).plan.check_warm_up()


# ------------------------------------------------------------------------------------------------ on the command line


SMALL = "--device cpu --scale 1 --sigmas 1,0.5".split()


@pytest.fixture
def demo(tmp_path, capsys):
    for name, seed in (("hall.png", 0), ("hero.png", 1)):
        pixels = np.random.default_rng(seed).integers(0, 255, (80, 90, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / name)

    def run(story, *more):
        out = tmp_path / "latents.safetensors"
        told = ("--prompts", story, "--seconds", "2.2", "--out", tmp_path / "out", "--latents", out, "--json")
        code = main(["demo", *map(str, told), "--runs", str(tmp_path / "runs"), *SMALL, *map(str, more)])
        said = capsys.readouterr()
        return (json.loads(said.out), load_file(out)["latents"]) if code == 0 else said.err

    return run


def test_a_picture_of_the_command_line_is_held_and_named_in_the_report(demo, tmp_path, capsys):
    story = "0:00 a red ball in the teal room\n0:01 the ball in the @Hall, ask me@example.com"
    reference = ("--reference", f"hall={tmp_path / 'hall.png'}")
    _, plain = demo(story.replace("@Hall", "Hall"))
    result, shown = demo(story, *reference)
    assert result["reused_blocks"] == 2 and not torch.equal(shown, plain) and torch.equal(shown[:6], plain[:6])
    Image.open(tmp_path / "hero.png").save(tmp_path / "hall.png")
    other, changed = demo(story, *reference)
    assert other["reused_blocks"] == 2 and not torch.equal(changed, shown), "the file's contents count, not its name"
    main(["demo", "--prompts", story, "--seconds", "1.5", "--out", str(tmp_path / "out"), *SMALL, *map(str, reference)])
    assert "picture @hall: held in prompts 2" in capsys.readouterr().out


@pytest.mark.parametrize(("story", "references", "why"), [
    ("0:00 a\n0:01 the @kitchen", ["hall=hall.png"], "line 2: no picture is named @kitchen; there are @hall"),
    ("a", ["hall.png"], "--reference is NAME=FILE, such as hero=hero.png, got"),
    ("a", ["hall=hall.png", "Hall=hero.png"], "two pictures are named hall"),
    ("a", [f"{name}=hall.png" for name in "abcde"], "up to 4 pictures, got 5"), ("a", ["hall=none.png"], "none.png"),
])  # fmt: skip
def test_a_wrong_reference_is_told_in_one_line(demo, tmp_path, monkeypatch, story, references, why):
    monkeypatch.chdir(tmp_path)
    said = demo(story, *(word for reference in references for word in ("--reference", reference)))
    assert isinstance(said, str) and why in said.splitlines()[-1]
