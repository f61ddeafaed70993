"""`encode` and `decode`, the stages of a render and the video of a stored run; free memory and too
little of it.
"""

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from flat_colour import decoded
from headforcing.cli import loaded, source, values
from headforcing.cli.cli import main
from headforcing.headforcing_core import devices
from headforcing.headforcing_core.plan.resources import MARGIN, room_on
from headforcing.headforcing_core.runs.stored import stored_videos
from headforcing.headforcing_core.weights.umt5 import load_embeddings
from safetensors.torch import load_file, save_file

STORY = "0:00 a green apple\n0:01 a red apple"


@pytest.fixture(scope="module")
def text_encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A umT5 of the width that the tiny model reads, in ComfyUI's layout."""
    transformers = pytest.importorskip("transformers")
    sentencepiece = pytest.importorskip("sentencepiece")
    torch.manual_seed(0)
    sizes = {
        "d_model": 48,
        "d_kv": 8,
        "d_ff": 64,
        "num_layers": 1,
        "num_heads": 2,
        "vocab_size": 64,
    }
    model = transformers.UMT5EncoderModel(
        transformers.UMT5Config(**sizes, feed_forward_proj="gated-gelu")
    )
    tokenizer = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["a green apple", "a red apple"] * 4),
        model_writer=tokenizer,
        vocab_size=30,
        hard_vocab_limit=False,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=2,
    )
    weights = {
        name: tensor.clone()
        for name, tensor in model.state_dict().items()
        if "embed_tokens" not in name
    }
    weights["spiece_model"] = torch.frombuffer(bytearray(tokenizer.getvalue()), dtype=torch.uint8)
    path = tmp_path_factory.mktemp("encoder") / "umt5.safetensors"
    save_file(weights, path)
    return path


@pytest.fixture
def generate(tiny_model: list[str]):
    """Run `generate` on the tiny model at 96x64, without embeddings; returns its exit code."""
    return lambda *more: main(
        ["generate", *tiny_model[2:], "--prompts", STORY, "--seconds", "2", *map(str, more)]
    )


@pytest.fixture
def result_of(capsys: pytest.CaptureFixture[str]):
    """Runs a command; what it prints as JSON."""

    def run(*words: object) -> dict:
        capsys.readouterr()
        code = main([*map(str, words), "--device", "cpu", "--json"])
        said = capsys.readouterr()
        assert code == 0, said.err
        return json.loads(said.out)

    return run


def test_encoded_prompts_and_decoded_latents_give_the_video_that_one_command_makes(
    text_encoder, generate, result_of, tiny, tmp_path, capsys
):
    embeddings = tmp_path / "prompts.safetensors"
    latents = tmp_path / "latents.safetensors"
    vae = tiny / "wan_2.1_vae.safetensors"
    encode = ["encode", embeddings, "--text-encoder", text_encoder]
    decode = ["decode", latents, tmp_path / "later.mp4"]
    prompts = result_of(*encode, "--prompts", STORY, "a red apple")["prompts"]
    assert prompts == ["a green apple", "a red apple"] == list(load_embeddings(embeddings))
    assert generate("--embeddings", embeddings, "--latents", latents) == 0
    once = ("--out", tmp_path / "once.mp4", "--latents", tmp_path / "once.safetensors")
    assert generate("--text-encoder", text_encoder, "--vae", vae, *once) == 0
    assert torch.equal(
        *(load_file(path)["latents"] for path in (latents, tmp_path / "once.safetensors"))
    )
    assert result_of(*decode, "--vae", vae, "--dtype", "fp32")["frames"] == 32
    assert np.array_equal(*(decoded(tmp_path / f"{name}.mp4") for name in ("once", "later")))
    assert main(["encode", "x.txt", "--text-encoder", str(text_encoder), "--prompts", STORY]) == 2
    assert "must end in .safetensors, got 'x.txt'" in capsys.readouterr().err


BALL = [
    "--prompts",
    "a red ball in the teal room",
    *"--device cpu --scale 1 --sigmas 1 --json".split(),
]


TOY = ("--demo", "--scale", "1")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `demo.mp4` of 2 s and its `runs`, where a shorter video is the older one."""
    folder = tmp_path_factory.mktemp("made")
    for seconds in ("1", "2"):
        demo = [
            "demo",
            *BALL,
            "--seconds",
            seconds,
            "--out",
            str(folder),
            "--runs",
            str(folder / "runs"),
        ]
        assert main(demo) == 0
    return folder


def test_a_stored_run_is_decoded_to_the_video_of_its_render_as_far_as_it_goes(
    made: Path, result_of, tmp_path: Path
):
    newest, older = stored_videos(made / "runs")
    found = result_of("decode", newest.folder, tmp_path / "newest.mp4", *TOY)
    assert (found["frames"], found["problems"]) == (32, [])
    assert (tmp_path / "newest.mp4").read_bytes() == (made / "demo.mp4").read_bytes()
    assert (
        result_of("decode", made / "runs" / older.name, tmp_path / "older.mp4", *TOY)["frames"]
        == 16
    )
    unfinished = shutil.copytree(newest.folder.parent, tmp_path / "runs") / newest.folder.name
    for block in sorted(unfinished.glob("block-*"))[2:]:
        block.unlink()
    assert result_of("decode", unfinished, tmp_path / "part.mp4", *TOY)["frames"] == 21


def test_what_is_no_run_is_refused_in_one_sentence(made: Path, tmp_path: Path, capsys):
    folder = stored_videos(made / "runs")[0].folder
    for given in (made, folder.parent, folder / "nowhere", made / "nowhere"):
        assert (
            main(["decode", str(given), str(tmp_path / "video.mp4"), "--demo", "--device", "cpu"])
            == 2
        )
        said = capsys.readouterr().err
        assert (
            said.count("\n") == 1
            and "is neither a run folder nor a video in one; `runs list` names them" in said
        )
    assert not list(tmp_path.iterdir())


def test_prompts_are_encoded_on_the_cpu_where_the_card_is_too_small(
    text_encoder, monkeypatch, capsys
):
    """The device is never touched: none of this name is here."""
    monkeypatch.setattr(values, "room_on", lambda device: 1000)
    (rows,) = values.encode_texts(text_encoder, ["a red apple"], torch.device("cuda"))
    assert rows.device.type == "cpu"
    assert "encoded on the CPU, umt5.safetensors does not fit on cuda" in capsys.readouterr().err
    needed = values.text_encoder_bytes(text_encoder, torch.device("cpu"))
    monkeypatch.setattr(values, "room_on", lambda device: needed)
    assert values.text_encoder_bytes(text_encoder, torch.device("cuda")) == needed > 1000
    values.encode_texts(text_encoder, ["a red apple"], torch.device("cpu"))
    assert capsys.readouterr().err == ""


def test_a_render_that_does_not_fit_is_refused_before_prompts_are_read(
    generate, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(source, "room_on", lambda device: 100_000)
    assert (
        generate("--embeddings", tmp_path / "missing", "--latents", tmp_path / "x.safetensors") == 2
    )
    assert (
        "not enough memory: 96x64 needs" in (error := capsys.readouterr().err)
        and "has 100 kB" in error
    )


def test_free_memory_is_what_is_free_not_what_the_card_has(monkeypatch):
    """What PyTorch keeps for later counts as free; a margin is left on a GPU."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (3_000_000_000, 8_000_000_000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 900_000_000)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 200_000_000)
    assert devices.free_memory("cuda") == 3_700_000_000
    assert room_on(torch.device("cuda")) == 3_700_000_000 - MARGIN
    if Path("/proc/meminfo").exists():
        assert 1e6 < (devices.free_memory("cpu") or 0) < 1e14


GROUPS = {
    "no group": ({}, 9_216_000),
    "its own group": ({"a/b": (6_000_000, 5_500_000)}, 1_500_000),
    "a group around it": (
        {"": ("max", 1), "a": (4_000_000, 3_000_000), "a/b": (8_000_000, 100)},
        2_000_000,
    ),
    "another group": ({"c": (1_000_000, 900_000)}, 9_216_000),
}


@pytest.mark.parametrize("case", GROUPS)
def test_free_memory_of_a_host_is_what_its_control_groups_leave(case, tmp_path, monkeypatch):
    """Pages of files that a group holds count as free: 1 MB here."""
    limits, wanted = GROUPS[case]
    base = tmp_path / "sys/fs/cgroup"
    for group, numbers in limits.items():
        (base / group).mkdir(parents=True, exist_ok=True)
        for name, number in zip(("max", "current"), numbers, strict=True):
            (base / group / f"memory.{name}").write_text(f"{number}\n")
        (base / group / "memory.stat").write_text(
            "anon 5\nactive_file 400000\ninactive_file 600000\n"
        )
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text(
        "MemAvailable: 8000 kB\nSwapFree: 1000 kB\nHugePages_Total:  3\n"
    )
    (tmp_path / "proc/self/cgroup").write_text("5:cpu:/\n0::/a/b\n")
    monkeypatch.setattr(devices, "ROOT", tmp_path)
    assert devices.free_memory("cpu") == wanted


def refused_by_python():
    raise MemoryError


@pytest.mark.parametrize(
    ("owner", "name", "full"),
    [
        (source.Source, "load", lambda: torch.empty(10**15)),
        (loaded, "make_video", refused_by_python),
    ],
)
def test_memory_of_a_host_that_runs_out_is_one_sentence_and_another_error_stays(
    owner, name, full, tmp_path, monkeypatch, capsys
):
    command = ["demo", "--device", "cpu", "--seconds", "3", "--out", str(tmp_path)]
    monkeypatch.setattr(owner, name, lambda *_, **__: full())
    assert main(command) == 2
    assert capsys.readouterr().err.startswith("error: out of memory: c")
    monkeypatch.setattr(owner, name, lambda *_, **__: torch.ones(2) + torch.ones(3))
    with pytest.raises(RuntimeError, match="must match the size"):
        main(command)
