"""Renders, commands and the day with a GPU on a stand-in for one: no two devices are mixed, nothing
waits, the numbers are a CPU's.

Not collected by itself: test_stand_in_gpu.py runs this file in a process of its own. See
stand_in_gpu.py.
"""

import functools
import io
import json
from collections import Counter
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import stand_in_gpu
import torch
from flat_colour import decoded
from headforcing.cli import profiles, roles
from headforcing.cli.cli import main
from headforcing.cli.values import pick_device
from headforcing.headforcing_core.cache.head_cache import CacheShape, HeadCache
from headforcing.headforcing_core.head_profiles.profile import HeadProfile
from headforcing.headforcing_core.methods.head_forcing import PRESETS
from headforcing.headforcing_core.model.wan import WanConfig, WanModel
from headforcing.headforcing_core.plan.resources import Needs
from headforcing.headforcing_core.rollout.loop import WanVideoModel
from headforcing.headforcing_core.video.tiny_decoder import TinyDecoder
from headforcing.headforcing_core.weights.umt5 import save_embeddings
from headforcing.research.recordings.replay import Case, replay
from headforcing.tests.benchmarks import command
from PIL import Image
from safetensors.torch import load_file, save_file
from tiny_checkpoints import wan_vae

GOLDEN = Path(__file__).parents[2] / "golden"
WEIGHTS = GOLDEN / "self_forcing_tiny_d32" / "model.safetensors"
RECORDINGS = [
    GOLDEN / "head_forcing_tiny_d32",
    GOLDEN / "head_forcing_absolute",
    GOLDEN / "livetalk",
    *sorted((GOLDEN / "peers").iterdir()),
]
STORY = "0:00 a green apple\n0:00.75 a red apple"
NORM = 3 * 512 * 128 * 4  # bytes of the temporaries of a norm over a prompt
# once for every block: its latents are copied for all that read them
EACH_BLOCK = {"rollout/loop.py"}


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    """The same but for the order of sums in attention and in the VAE's convolutions, in float32."""
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-3)


def waits() -> Counter[str]:
    """How often each file of the core waited since they were last counted anew."""
    found: Counter[str] = Counter()
    for place, count in stand_in_gpu.waits.items():
        if place.startswith("headforcing_core/"):
            found[place.removeprefix("headforcing_core/").partition(":")[0]] += count
    return found


@pytest.mark.parametrize("folder", RECORDINGS, ids=lambda folder: folder.name)
def test_a_recorded_run_of_every_method_comes_out_again(folder: Path):
    case = Case.open(folder)
    run = min(case.config["runs"], key=lambda name: len(case.tensors[f"latents/{name}"]))
    made = replay(case, run, "cuda", "sdpa")
    recorded = case.run(run).get("memory_events", [])
    close(made.latents, case.tensors[f"latents/{run}"].reshape(made.latents.shape))
    assert [event["admitted"] for event in made.memory_events] == [
        event["admitted"] for event in recorded
    ]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    generator = torch.Generator().manual_seed(0)
    texts = ("a green apple", "a red apple", "green", "red")
    embeddings = {text: torch.randn(5, 48, generator=generator) for text in texts}
    save_embeddings(folder / "prompts.safetensors", embeddings)
    wan_vae(folder / "vae.safetensors")
    HeadProfile("tiny", 4, 4, (("local", "anchor", "memory", "memory"),) * 4).save(
        folder / "tiny.json"
    )
    Image.new("RGB", (96, 64), "teal").save(folder / "image.png")
    return folder


@pytest.fixture(scope="module")
def generate(files: Path):
    """Run `generate` at 96x64 on a device; returns latents and video frames, where a video is
    made.
    """

    def run(device: str, *more: str, decodes: bool = True) -> tuple[torch.Tensor, np.ndarray]:
        video = files / f"{device}.mp4"
        latents = files / f"{device}.safetensors"
        given = [
            "--weights",
            WEIGHTS,
            "--num-heads",
            4,
            "--prompts",
            STORY,
            "--size",
            "96x64",
            "--seconds",
            2,
        ]
        given += [
            "--embeddings",
            files / "prompts.safetensors",
            "--profile",
            files / "tiny.json",
            "--device",
            device,
        ]
        given += [
            "--latents",
            latents,
            "--attention",
            "sdpa",
            "--found-profiles",
            files / f"found on {device}",
        ]
        given += ["--vae", files / "vae.safetensors", "--out", video] if decodes else []
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        with redirect_stdout(io.StringIO()) as told:
            assert main(["generate", *map(str, given), *more, "--json"]) == 0
        if device == "cuda":
            needs = Needs(**json.loads(told.getvalue())["needs"])
            peak = torch.cuda.max_memory_allocated() - before
            # keys and values of the next prompt; at real sizes a pass takes more
            next_prompt = needs.prompt + NORM
            # a tenth: latents, positions and embeddings, which are a share of a small model
            assert peak < 1.1 * needs.memory + next_prompt, (peak, needs)
        return load_file(latents)["latents"], decoded(video).astype(int) if decodes else np.empty(0)

    return run


@pytest.fixture(scope="module")
def on_cpu(generate):
    """`generate` on the CPU in float32, once with the same options."""
    return functools.cache(functools.partial(generate, "cpu", "--dtype", "fp32"))


@pytest.mark.repeat("rolling_forcing", "longlive")
@pytest.mark.parametrize(
    "method", ["head_forcing", "rolling_sink", "rolling_forcing", "longlive", "swift"]
)
def test_only_finished_blocks_and_candidates_are_waited_for(generate, method: str):
    found = []
    for seconds in (6, 9):  # 8 and 12 blocks: the window of Rolling Sink is full
        stand_in_gpu.waits.clear()
        generate(
            "cuda", "--dtype", "fp32", "--seconds", str(seconds), "--method", method, decodes=False
        )
        found.append(waits())
    more = {
        place: found[1][place] - count
        for place, count in found[0].items()
        if found[1][place] != count
    }
    # the one after block 10
    candidates = {"cache/memory.py": 1} if method == "head_forcing" else {}
    assert more == candidates | dict.fromkeys(EACH_BLOCK, 4)


def test_speech_and_a_portrait_are_not_waited_for():
    case = Case.open(GOLDEN / "livetalk")
    stand_in_gpu.waits.clear()
    made = replay(case, "rolling", "cuda", "sdpa")
    made_once = {"cache/head_cache.py", "model/attention_backends.py"}  # caches, self-tests
    assert waits().keys() <= made_once
    close(made.latents, case.tensors["latents/rolling"])


def test_measuring_heads_is_waited_for_once_a_block_and_once_a_measured_step(
    generate, files: Path, monkeypatch: pytest.MonkeyPatch
):
    """And not within a pass."""
    told = []
    measure = roles.with_measured_roles

    def watch(job, model, measuring):
        steps = []
        found = measure(job, model, replace(measuring, on_step=lambda *step: steps.append(step)))
        told.append((steps, waits()))
        return found

    monkeypatch.setattr(roles, "with_measured_roles", watch)
    stand_in_gpu.waits.clear()
    generate(
        "cuda",
        "--profile",
        "auto",
        "--seconds",
        "3",
        "--found-profiles",
        str(files / "waits"),
        decodes=False,
    )
    ((steps, found),) = told
    begun = sum(latents is None for _, _, latents in steps)
    done = len(steps) - begun
    assert found["rollout/loop.py"] == begun > 0
    assert 0 < found["head_profiles/profiler.py"] <= done
    # caches, self-tests
    made_once = {"cache/head_cache.py", "model/attention_parts.py", "model/attention_backends.py"}
    assert found.keys() <= made_once | {"rollout/loop.py", "head_profiles/profiler.py"}


def test_modulations_that_a_host_leaves_on_the_cpu_are_not_waited_for():
    torch.manual_seed(0)
    config = WanConfig(
        dim=64, num_layers=2, num_heads=4, ffn_dim=48, freq_dim=32, text_dim=10, text_len=7
    )
    model = WanModel(config).requires_grad_(False)
    for part in (model.head, *model.blocks):
        part.modulation.normal_()
    found = []
    for device in ("cpu", "cuda"):
        model.to(device)
        for part in (model.head, *model.blocks):
            part.modulation = torch.nn.Parameter(part.modulation.cpu(), requires_grad=False)
        video = WanVideoModel(model, torch.float32, device)
        video.use_prompt(torch.ones(4, 10))
        method = PRESETS["no_episodic_memory"]
        roles = [["local", "anchor", "memory", "memory"]] * 2
        cache = HeadCache(
            CacheShape.for_model(config, roles, method, 4, 6, 3, 9), torch.float32, device
        )
        cache.begin_block()
        stand_in_gpu.waits.clear()
        flow = video.flow(torch.ones(3, 16, 4, 6).to(device), 0.5, cache)
        assert not waits()
        found.append(flow.cpu())
    close(found[1], found[0])


def test_one_gpu_has_one_name():
    """Else a decoder on it would be taken for one beside the model."""
    assert (
        pick_device("cuda") == pick_device("auto") == pick_device("cuda:0") != pick_device("cuda:1")
    )


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--park-features",),
        ("--vae-device", "cuda:1"),
        ("--vae-device", "cpu"),
        ("--switch", "recache"),
        ("--profile", "auto", "--seconds", "6"),
    ],
    ids=" ".join,
)
def test_a_video_is_the_one_of_a_cpu(generate, on_cpu, options: tuple[str, ...]):
    gpu_only = {"--park-features", "--vae-device"} & {*options}
    here = on_cpu(*(() if gpu_only else options))
    there = generate("cuda", "--dtype", "fp32", *options)
    close(there[0], here[0])
    assert here[1].shape == there[1].shape and abs(here[1] - there[1]).mean() < 1, (
        "as far as H.264 tells"
    )


RECALL = "0:00 a green apple\n0:01.5 a red apple\n0:03 [recall 1] a green apple"
SCENES = ("--prompts", RECALL, "--seconds", "4")


@pytest.mark.parametrize("pinnable", [0, 60_000, 900_000])
def test_a_video_is_the_same_if_the_system_pins_no_more(
    generate, on_cpu, monkeypatch: pytest.MonkeyPatch, pinnable: int
):
    monkeypatch.setattr(stand_in_gpu, "pinnable", pinnable)
    there = generate("cuda", "--dtype", "fp32", "--park-features", *SCENES)
    assert stand_in_gpu.pinnable < max(1, pinnable / 4)
    close(there[0], on_cpu(*SCENES)[0])


def test_a_draft_of_a_tiny_decoder_is_replaced_by_the_video_of_the_vae(
    generate, on_cpu, files: Path
):
    draft = files / "taew2_1.safetensors"
    save_file(TinyDecoder((12, 10, 8, 6)).state_dict(), draft)
    options = ("--dtype", "fp32", "--live-decoder", str(draft))
    there = generate("cuda", *options)
    close(there[0], on_cpu()[0])
    assert abs(there[1] - on_cpu()[1]).mean() < 1


def test_a_video_is_resumed_and_made_longer(generate, on_cpu, files: Path):
    runs = ("--dtype", "fp32", "--runs", str(files / "runs"))
    generate("cuda", *runs)
    longer = generate("cuda", *runs, "--seconds", "3")
    close(longer[0], on_cpu("--seconds", "3")[0])


@pytest.mark.parametrize("more", [(), ("--fp8-linears",)], ids=["bf16", "fp8"])
def test_half_precision_begins_with_an_image(generate, files: Path, more: tuple[str, ...]):
    image = (
        "--model-family",
        "causal_forcing_framewise",
        "--start-image",
        str(files / "image.png"),
    )
    latents, _ = generate("cuda", "--dtype", "bf16", "--seconds", "1", *image, *more)
    assert latents.isfinite().all()


def test_latents_are_decoded_by_the_command(generate, files: Path):
    _, at_once = generate("cuda", "--dtype", "fp32")
    later = files / "later.mp4"
    given = [
        files / "cuda.safetensors",
        later,
        "--vae",
        files / "vae.safetensors",
        "--dtype",
        "fp32",
    ]
    assert main(["decode", *map(str, given), "--device", "cuda"]) == 0
    assert np.array_equal(decoded(later), at_once)


def test_head_roles_are_those_of_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(profiles.BUDGETS, "quick", (1, 3.0))
    found = []
    for device in ("cpu", "cuda"):
        file = tmp_path / f"{device}.json"
        assert (
            main(
                ["profile", str(file), "--demo", "--preset", "quick", "--device", device, "--json"]
            )
            == 0
        )
        found.append(json.loads(file.read_text())["roles"])
    assert found[0] == found[1]


WITHOUT_TRITON = ("attention: cudnn", "attention: torch_varlen", "attention: sdpa")


@pytest.mark.parametrize(
    ("part", "names"), [("check", WITHOUT_TRITON), ("video", ()), ("rest", ())]
)
def test_the_day_with_a_gpu_measures(part: str, names: tuple[str, ...]):
    """All of a part, or these; profiles, rows with Triton and streams beside each other need the
    GPU itself.
    """
    case = replace(command.PRESETS["dry"], device=torch.device("cuda"), dtype=torch.bfloat16)
    tasks = command.tasks(part, case, dry=True)
    for name in names or tasks:
        told = json.dumps(tasks[name](case))
        assert "not_available" not in told and "traceback" not in told, told
