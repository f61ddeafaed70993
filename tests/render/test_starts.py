"""Videos that begin with an image or with a part of another video, and pictures that scenes
hold.
"""

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from headforcing.cli.cli import main
from headforcing.cli.codec import load_codec
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.methods.registry import method_named
from headforcing.headforcing_core.plan.options import RenderOptions
from headforcing.headforcing_core.plan.start import Start, image_frames
from headforcing.headforcing_core.render.live_story import LiveEdits
from headforcing.headforcing_core.render.render import Place, make_video
from headforcing.headforcing_core.render.sinks import KeptLatents
from headforcing.headforcing_core.runs.stored import stored_videos
from headforcing.headforcing_core.video.reader import fit, read_image
from headforcing.headforcing_core.video.section import read_section
from headforcing.headforcing_core.video.writer import VideoSettings, VideoWriter
from PIL import Image
from safetensors.torch import load_file, save_file
from toy_renders import PICTURES, LiveTexts, Render, picture

FRAMEWISE = ("--model-family", "causal_forcing_framewise_2_steps")
VAE = "wan_2.1_vae.safetensors"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a picture, another one, and a video."""
    folder = tmp_path_factory.mktemp("starts")
    for name, radius in (("cat.png", 60), ("dog.png", 100)):
        Image.merge("RGB", [Image.effect_noise((130, 70), radius)] * 3).save(folder / name)
    still = torch.rand(1, 48, 80, 3, generator=torch.Generator().manual_seed(1))
    with VideoWriter(VideoSettings(folder / "clip.mp4", fps=24), 80, 48) as writer:
        writer.write((still + torch.linspace(0, 0.5, 60).view(-1, 1, 1, 1)).clamp(0, 1))
    return folder


@pytest.fixture
def begin(generate, tiny: Path):
    """`generate` with the VAE."""
    return partial(generate, "--vae", tiny / VAE, "--seconds", "1.5")


def test_an_image_becomes_the_first_frame_and_its_clean_pass_begins_the_cache(
    begin, tiny, files, tmp_path
):
    result, latents = begin(
        *FRAMEWISE, "--start-image", files / "cat.png", "--out", tmp_path / "a.mp4"
    )
    assert (
        result["start"] == "the image cat.png, 130x70 fitted to 96x64"
        and result["video_frames"] == 1 + 24
    )
    codec = load_codec(tiny / VAE, torch.device("cpu"), torch.float32)
    first = codec.encode_video(fit(read_image(files / "cat.png")[None], 96, 64))
    assert len(latents) == 1 + 6 and torch.equal(latents[:1], first)
    # the plain loop over given latents, which recorded cases test
    save_file({"latents": first.contiguous()}, tmp_path / "given.safetensors")
    _, same = begin(*FRAMEWISE, "--start-latents", tmp_path / "given.safetensors")
    assert torch.equal(same, latents)


def test_a_render_that_begins_with_an_image_is_resumed_and_extended(
    begin, files, tmp_path, monkeypatch
):
    """Also where another device encodes the image slightly otherwise."""
    runs = (*FRAMEWISE, "--runs", tmp_path / "runs", "--start-image")
    _, whole = begin(*runs, files / "cat.png", "--seconds", "2")
    encoded = Start.encoded
    monkeypatch.setattr(Start, "encoded", lambda self, codec: encoded(self, codec) + 1e-4)
    longer, extended = begin(*runs, files / "cat.png", "--seconds", "2.5")
    assert longer["reused_blocks"] == 8 and torch.equal(extended[:9], whole) and len(extended) == 11
    other, _ = begin(*runs, files / "dog.png", "--seconds", "2")
    assert other["reused_blocks"] == 0
    stored = [(video.about["start"], video.finished) for video in stored_videos(tmp_path / "runs")]
    cat = "the image cat.png, 130x70 fitted to 96x64"
    dog = "the image dog.png, 130x70 fitted to 96x64"
    assert sorted(stored) == [(cat, 8), (cat, 10), (dog, 8)]


def test_a_video_goes_on_from_a_part_of_another_one(begin, tiny, files):
    result, last = begin("--start-video", files / "clip.mp4")
    assert result["start"].startswith(
        "the last 2.06 of 2.50 s of clip.mp4, 33 video frames at 16 a second"
    )
    assert len(last) == 9 + 6
    codec = load_codec(tiny / VAE, torch.device("cpu"), torch.float32)
    part = Start(*read_section(files / "clip.mp4", (96, 64), 4.0, "last", 3))
    assert torch.equal(last[:9], codec.encode_video(part.video_frames))
    _, first = begin(
        "--start-video", files / "clip.mp4", "--start-part", "first", "--start-seconds", "1"
    )
    assert len(first) == 3 + 6 and not torch.equal(first[:3], last[:3])


def test_the_demo_model_goes_on_from_a_video(files, tmp_path, capsys):
    command = (
        f"demo --seconds 1 --scale 1 --device cpu --json --sigmas 1 --out {tmp_path} "
        "--start-seconds 1.4"
    ).split()
    assert main([*command, "--start-video", str(files / "clip.mp4")]) == 0
    assert json.loads(capsys.readouterr().out)["video_frames"] == 21 + 16


def test_an_image_is_shown_for_as_many_latent_frames_as_the_method_was_trained_with():
    picture = torch.rand(32, 48, 3)
    for method, family, frames in (
        ("self_gradient_forcing", "self_gradient_forcing", 3),
        ("longlive2", "longlive2", 1),
        ("self_gradient_forcing_framewise", "self_gradient_forcing_framewise", 1),
    ):
        options = RenderOptions(method_name=method, model_family=family)
        assert image_frames(options, "") == frames
        start = Start.image(picture, (48, 32), "a picture", frames)
        assert start.frames == frames and torch.equal(start.video_frames[-1], picture)


# ------------------------------------------------------------------------------- pictures of scenes


HERO = "a red ball in the teal room"
CROSS = "a yellow cross in the navy room"
TOLD = f"0:00 {HERO}\n0:02.3 @hall {CROSS}\n0:04.5 {HERO} again"  # blocks 0, 3 and 6 of 9


def test_a_picture_named_while_the_video_is_made_is_held_as_from_the_beginning(backbone, tmp_path):
    text = TOLD.replace(f"{HERO} again", "the @hero and the @hall")
    kept = KeptLatents()
    story = LiveTexts({4: text}, 6.0, PICTURES)
    render = Render(backbone, tmp_path, TOLD, 6.0, pictures=PICTURES)
    make_video(render.job, render.model(), Place(), [kept, LiveEdits(story)])
    assert not story.refusals
    straight = Render(backbone, tmp_path, text, 6.0, pictures=PICTURES).straight()
    assert torch.equal(torch.cat(kept.blocks), straight)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (
            {"method": method_named("longlive")},
            "prompt 2 names @hall, but with this method a scene holds no pictures",
        ),
        (
            {"text": "@a @b @c @d", "pictures": {name: picture(1) for name in "abcd"}},
            "prompt 1 names .* holds 3 pictures",
        ),
    ],
)
def test_what_cannot_hold_pictures_says_so_before_anything_is_made(
    backbone, tmp_path, options, why
):
    with pytest.raises(HeadForcingError, match=why):
        Render(
            backbone, tmp_path, **{"text": TOLD, "seconds": 6.0, "pictures": PICTURES, **options}
        )


SMALL = "--device cpu --scale 1 --sigmas 1,0.5".split()


@pytest.fixture
def demo(tmp_path, capsys):
    for name, seed in (("hall.png", 0), ("hero.png", 1)):
        pixels = np.random.default_rng(seed).integers(0, 255, (80, 90, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(tmp_path / name)

    def run(story, *more):
        out = tmp_path / "latents.safetensors"
        told = (
            "--prompts",
            story,
            "--seconds",
            "2.2",
            "--out",
            tmp_path / "out",
            "--latents",
            out,
            "--json",
        )
        assert (
            main(
                ["demo", *map(str, told), "--runs", str(tmp_path / "runs"), *SMALL, *map(str, more)]
            )
            == 0
        )
        return json.loads(capsys.readouterr().out), load_file(out)["latents"]

    return run


def test_a_picture_of_the_command_line_is_held_and_named_in_the_report(demo, tmp_path, capsys):
    story = "0:00 a red ball in the teal room\n0:01 the ball in the @Hall, ask me@example.com"
    reference = ("--reference", f"hall={tmp_path / 'hall.png'}")
    _, plain = demo(story.replace("@Hall", "Hall"))
    result, shown = demo(story, *reference)
    assert (
        result["reused_blocks"] == 2
        and not torch.equal(shown, plain)
        and torch.equal(shown[:6], plain[:6])
    )
    Image.open(tmp_path / "hero.png").save(tmp_path / "hall.png")
    other, changed = demo(story, *reference)
    assert other["reused_blocks"] == 2 and not torch.equal(changed, shown), (
        "the file's contents count, not its name"
    )
    main(
        [
            "demo",
            "--prompts",
            story,
            "--seconds",
            "1.5",
            "--out",
            str(tmp_path / "out"),
            *SMALL,
            *map(str, reference),
        ]
    )
    assert "picture @hall: held in prompts 2" in capsys.readouterr().out
