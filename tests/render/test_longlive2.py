"""LongLive 2.0 from the command line, on small random weights of Wan 2.2: shots, sizes, frame rate
and resume.
"""

import json
from pathlib import Path

import av
import checkpoint_files as files
import numpy as np
import pytest
import torch
from headforcing.cli.cli import main
from headforcing.cli.codec import load_codec
from headforcing.headforcing_core.cache.roles import RolePolicy
from headforcing.headforcing_core.head_profiles.profile import HeadProfile
from headforcing.headforcing_core.methods.method import VideoFacts
from headforcing.headforcing_core.methods.registry import method_named
from headforcing.headforcing_core.model.wan import WanConfig, WanModel
from headforcing.headforcing_core.plan.options import RenderOptions
from headforcing.headforcing_core.plan.plan import RenderPlan
from headforcing.headforcing_core.plan.start import Start
from headforcing.headforcing_core.render.live_story import LiveEdits
from headforcing.headforcing_core.rollout.loop import WanVideoModel
from headforcing.headforcing_core.rollout.schedule import LONGLIVE2, schedule
from headforcing.headforcing_core.timeline.timeline import parse_timeline
from headforcing.headforcing_core.weights.umt5 import save_embeddings
from jobs import job_of
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file
from tiny_checkpoints import wan22_vae
from toy_renders import LiveTexts, rendered

STORY = "0:00 a green apple\n0:01.5 a red apple\n0:02.5 [reset] an apple"
TEXTS = ["a green apple", "a red apple", "an apple", LONGLIVE2.shot_prefix + "a red apple"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("longlive2")
    torch.save(
        {
            "generator": files.prefixed(files.wan_weights(channels=48, out=48), "model."),
            "checkpoint_format": "text",
        },
        folder / "model_bf16.pt",
    )
    rows = torch.randn(len(TEXTS), 9, 24, generator=torch.Generator().manual_seed(1))
    save_embeddings(folder / "texts.safetensors", dict(zip(TEXTS, rows, strict=True)))
    wan22_vae(folder / "vae.safetensors")
    return folder


@pytest.fixture(scope="module")
def given(folder: Path) -> list[str]:
    """Arguments of the small model, at 64x96."""
    files = {
        "--weights": "model_bf16.pt",
        "--embeddings": "texts.safetensors",
        "--vae": "vae.safetensors",
    }
    common = []
    for option, name in files.items():
        common += [option, str(folder / name)]
    return ["generate", *common, "--size", "64x96", "--dtype", "fp32", "--device", "cpu"]


@pytest.fixture
def generate(given: list[str], capsys):
    """`generate` with the small model."""

    def run(*more: object, prompts: str = STORY) -> None:
        assert main([*given, "--prompts", prompts, *map(str, more)]) == 0, capsys.readouterr().err

    return run


def latents_of(path: Path) -> torch.Tensor:
    return load_file(path)["latents"]


def video_of(path: Path) -> tuple[int, tuple[int, ...]]:
    """The number of frames of a video, and its frame rate, width and height."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        facts = stream.average_rate, stream.width, stream.height
        return sum(1 for _ in container.decode(video=0)), facts


def test_a_story_of_shots_becomes_a_video_of_24_frames_a_second(generate, folder, tmp_path):
    video = tmp_path / "x.mp4"
    latents = tmp_path / "x.safetensors"
    frames = 24 * 4
    generate("--method", "longlive2", "--out", video, "--latents", latents, "--seconds", 4)
    assert video_of(video) == (frames, (24, 64, 96))
    again = tmp_path / "again.mp4"
    assert (
        main(
            [
                "decode",
                str(latents),
                str(again),
                "--vae",
                str(folder / "vae.safetensors"),
                "--device",
                "cpu",
            ]
        )
        == 0
    )
    assert video_of(again) == (frames, (24, 64, 96))
    found = latents_of(latents)
    assert found.shape[1:] == (48, 6, 4) and len(found) % 8 == 0
    with safe_open(latents, "pt") as file:
        assert json.loads(file.metadata()["head_forcing"])["video_frames"] == frames


def test_a_cut_is_another_video_than_a_prompt_that_goes_on_with_the_shot(generate, tmp_path):
    made = []
    for tag in ("", "[cut] ", "[reset] "):
        story = f"a green apple | {tag}a red apple"
        generate(
            "--seconds",
            2,
            "--method",
            "longlive2",
            "--latents",
            tmp_path / "x.safetensors",
            prompts=story,
        )
        made.append(latents_of(tmp_path / "x.safetensors"))
    default, cut, reset = made
    assert torch.equal(default, cut) and not torch.equal(cut[8:], reset[8:])
    assert torch.equal(cut[:8], reset[:8])


def test_an_image_is_the_first_latent_frame_and_a_resumed_render_goes_on_from_it(
    generate, folder, tmp_path
):
    rng = np.random.default_rng(3)
    Image.fromarray(rng.integers(0, 255, (96, 64, 3), dtype=np.uint8)).save(tmp_path / "start.png")
    common = (
        "--method",
        "longlive2",
        "--start-image",
        tmp_path / "start.png",
        "--runs",
        tmp_path / "runs",
    )
    paths = [tmp_path / f"{name}.safetensors" for name in ("part", "again")]
    generate(*common, "--seconds", 1, "--latents", paths[0], prompts="an apple")
    generate(*common, "--seconds", 2, "--latents", paths[1], prompts="an apple")
    part, again = map(latents_of, paths)
    assert len(part) == 8 and len(again) == 16 and torch.equal(part, again[:8])
    codec = load_codec(folder / "vae.safetensors", torch.device("cpu"), torch.float32)
    assert torch.allclose(
        part[:1], Start.image_file(tmp_path / "start.png", (64, 96)).encoded(codec), atol=1e-6
    )


@pytest.mark.parametrize("method", ["longlive2", "head_forcing"])
def test_takes_live_edits_and_stopped_renders_give_the_video_of_the_story_that_was_told(
    tmp_path, method
):
    sizes = dict(
        dim=128, ffn_dim=192, num_layers=files.LAYERS, num_heads=1, freq_dim=32, text_dim=24
    )
    config = WanConfig(in_dim=48, out_dim=48, **sizes)
    weights = files.wan_weights(channels=48, out=48)
    model = WanVideoModel(WanModel.from_state_dict(config, weights, torch.float32), torch.float32)
    roles = HeadProfile("tiny", files.LAYERS, 1, tuple(("memory",) for _ in range(files.LAYERS)))
    options = RenderOptions(
        method_name=method,
        model_family="longlive2",
        width=64,
        height=96,
        seconds=6.0,
        profile=roles,
    )
    generator = torch.Generator().manual_seed(2)
    prefix = LONGLIVE2.shot_prefix
    texts = ["a", f"{prefix}a", "b", f"{prefix}b", "c", f"{prefix}c"]
    embeds = {text: torch.randn(5, 24, generator=generator) for text in texts}

    def made(
        text: str, stop: int | None = None, runs: Path | None = None, listeners=()
    ) -> torch.Tensor:
        plan = RenderPlan.of(config, options, parse_timeline(text, **options.timeline_arguments))
        job = job_of(plan, {text: embeds[text] for text in plan.timeline.texts}, "tiny", runs=runs)
        return torch.cat(rendered(job, model, stop_after=stop, listeners=listeners).blocks)

    first = "a | b | [reset] c"
    other = "a | b | [seed 7] c"
    straight = made(first)
    changed = made(other)
    same = sum(torch.equal(a, b) for a, b in zip(straight.split(8), changed.split(8), strict=True))
    assert same == 3 and len(straight) == 40, "the third prompt begins with the fourth block"
    made(first, stop=2, runs=tmp_path)
    assert torch.equal(made(first, runs=tmp_path), straight), "a stopped render goes on"
    assert torch.equal(made(other, runs=tmp_path), changed), "a take"
    story = LiveTexts({}, 6.0)
    asked = iter([None, parse_timeline(other, **options.timeline_arguments)])
    story.ask = lambda: next(asked, None)
    story.encode = lambda texts: {text: embeds[text] for text in texts}
    edited = made(first, listeners=[LiveEdits(story)])
    assert torch.equal(edited, changed) and not story.refusals, "a live edit"


def test_a_minute_fits_on_the_cards_that_the_page_names(capsys):
    command = "--model-family longlive2 --json".split()
    for size, card, memory in (("1280x704", "16", 13.46e9), ("832x480", "8", 6.73e9)):
        assert main(["memory", *command, "--sizes", size, "--cards", card]) == 0
        (row,) = json.loads(capsys.readouterr().out)
        (fit,) = row["cards"]
        assert row["needs"]["weights"] == 2 * 4_999_787_712
        assert fit["comfyui"]["how"] == "" and fit["comfyui"]["bytes"] == pytest.approx(
            memory, rel=1e-3
        )
    assert main(["budget", *command, "--size", "1280x704", "--seconds", "60"]) == 0
    found = {row["cache"]: row["frame_slots"] for row in json.loads(capsys.readouterr().out)}
    assert (
        found["longlive2"] == 720 * 32
        and found["Head Forcing, the paper's shares of heads"] == 12_672
    )
    assert "rolling_forcing" not in found, "it has another sampler"


def test_what_is_a_block_in_the_paper_is_a_block_of_eight_and_blocks_of_three_stay():
    facts = VideoFacts(LONGLIVE2, 9)
    method = method_named("head_forcing").for_video(facts)
    uniform = method_named("uniform_memory").for_video(facts)
    assert (method.local, method.anchor.sink_frames, method.anchor.recent_frames) == (
        RolePolicy(recent_frames=1),
        8,
        1,
    )
    assert (method.memory.recent_frames, method.memory.episodic_frames) == (
        8,
        5,
    ) and method.for_video(facts) == method
    assert (
        uniform.local
        == uniform.anchor
        == uniform.memory
        == RolePolicy(recent_frames=8, episodic_frames=3)
    )
    chosen = method_named("head_forcing")
    for family in ("self_forcing", "causal_forcing_framewise"):
        assert chosen.for_video(VideoFacts(schedule(family), 9)) == chosen


def test_what_does_not_fit_the_model_is_refused_in_a_sentence(given, tmp_path, capsys):
    for more, why in (
        ("--size 80x96", "multiple of 32"),
        ("--method rolling_forcing", "sampler of its own"),
        ("--sigmas=13", "sigmas"),
    ):
        out = [
            "--prompts",
            "an apple",
            "--seconds",
            "1",
            "--out",
            str(tmp_path / "x.mp4"),
            *more.split(),
        ]
        assert main([*given, *out]) == 2 and why in capsys.readouterr().err
