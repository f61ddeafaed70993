"""Malformed and hostile input: one short sentence, no traceback, less than 5 s of a CPU and 1 GB of memory."""

import contextlib
import io
import json
import os
import random
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import checkpoint_files as files
import pytest
import torch
from headforcing.headforcing_core.commands import cli, parser, values
from headforcing.headforcing_core.errors import MAX_MESSAGE, HeadForcingError
from headforcing.headforcing_core.head_profiles.shares import HeadShares
from headforcing.headforcing_core.render.sinks import load_latents
from headforcing.headforcing_core.timeline.timeline import MAX_TEXT_BYTES, parse_timeline
from headforcing.headforcing_core.video import sheets
from headforcing.headforcing_core.video.codec import load_codec
from headforcing.headforcing_core.video.tiny_decoder import TinyDecoder
from headforcing.headforcing_core.video.writer import VideoWriter
from headforcing.headforcing_core.weights.checkpoint import convert, inspect_checkpoint, load_state_dict
from headforcing.headforcing_core.weights.umt5 import load_embeddings, save_embeddings
from headforcing.headforcing_core.weights.umt5_file import sizes_of
from peak_memory import peak_bytes
from safetensors.torch import load_file, save_file
from tiny_checkpoints import wan_vae

WEIGHTS = files.wan_weights()
MOST_SECONDS, MOST_BYTES = 5.0, 1_000_000_000
TARGET = "blocks.0.self_attn.q"


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """The block takes at most 5 s of a CPU and raises the peak of the process's memory by at most 1 GB."""
    seconds, peak = time.process_time(), peak_bytes()
    yield
    assert time.process_time() - seconds < MOST_SECONDS
    assert peak_bytes() - peak < MOST_BYTES


def refusal(use: Callable[[], Any]) -> str:
    """The message with which input is refused within the bounds."""
    with bounded(), pytest.raises(HeadForcingError) as caught:
        use()
    message = str(caught.value)
    assert message.isprintable() and len(message) <= MAX_MESSAGE
    return message


def run(*argv: str) -> tuple[int, str]:
    """Exit code and stderr of a command."""
    err = io.StringIO()
    with contextlib.redirect_stderr(err), contextlib.redirect_stdout(io.StringIO()):
        try:
            return cli.main(argv), err.getvalue()
        except SystemExit as exit:  # argparse
            assert isinstance(exit.code, int)
            return exit.code, err.getvalue()


def saved(path: Path, tensors: Any, metadata: dict[str, str] | None = None) -> Path:
    if path.suffix == ".pt":
        torch.save(tensors, path)
    else:
        save_file(tensors, path, metadata)
    return path


def by_header(path: Path, header: Any, body: bytes = b"") -> Path:
    """A safetensors file of any header: an object, or bytes."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    return path


def test_a_message_stays_one_line_whatever_it_quotes() -> None:
    message = str(HeadForcingError("no file 'a\nerror: forged\x1b[2J\r\u2028b' here"))
    assert message == r"no file 'a\nerror: forged\x1b[2J\r\u2028b' here"
    assert str(HeadForcingError("größer, 一　二, …")) == "größer, 一　二, …"
    with contextlib.suppress(UnicodeEncodeError):
        str(HeadForcingError("\ud800")).encode()


def test_a_quoted_value_is_short_and_what_stands_around_it_stays() -> None:
    for value in ("9" * 5000, "a cat " * 900):
        message = str(HeadForcingError(f"--size must look like 832x480, got {value!r}: choose another"))
        assert len(message) < 300 and message.startswith(f"--size must look like 832x480, got '{value[:50]}")
        assert message.endswith(f"{value[-20:]}': choose another")


LONG = "9" * 5000


@pytest.mark.parametrize("about", [
    '{"video_frames": 1e999}', f'{{"video_frames": {LONG}}}', '{"video_frames": 10}', '{"video_frames": 0}',
    '{"restart_frames": [3]}',
])  # fmt: skip
def test_latents_that_say_something_absurd_of_themselves_are_not_decoded(about: str, tmp_path: Path) -> None:
    file = tmp_path / "latents.safetensors"
    save_file({"latents": torch.zeros(3, 16, 8, 8)}, file, {"head_forcing": about})
    code, err = run("decode", str(file), str(tmp_path / "video.mp4"), "--demo", "--device", "cpu")
    assert code == 2 and "does not say what its latents are of" in err


@pytest.mark.parametrize("argv", [
    ("profiles", "compare", "x\nerror: forged\x1b[31m", "y"), ("profiles", "compare", "x" * 100_000, "y"),
    ("demo", "--method", "x\nerror: forged" * 10_000), ("demo", "--seed", "9" * 100_000), ("inspect", "x" * 100_000),
    ("report", "x" * 100_000), ("demo", "--prompts", "@" + "x" * 100_000), ("x\n" * 100_000,),
    ("generate", "--weights", "x" * 100_000, "--prompts", "a", "--latents", "x.safetensors"),
])  # fmt: skip
def test_the_command_line_answers_in_one_short_line(argv: tuple[str, ...]) -> None:
    code, err = run(*argv)
    assert code == 2
    last = [line for line in err.splitlines() if "error:" in line]
    assert len(last) == 1 and last[0] == err.splitlines()[-1] and len(last[0]) < MAX_MESSAGE + 100
    assert "\x1b" not in err


HEADERS: dict[str, Any] = {
    "infinite offset": b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,1e999]}}',
    "fraction of an offset": b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4.5]}}',
    "text as offset": b'{"a":{"dtype":"F32","shape":[1],"data_offsets":["0","4"]}}',
    "infinite size": b'{"a":{"dtype":"F32","shape":[1e999],"data_offsets":[0,4]}}',
    "sizes without end": {"a": {"dtype": "F32", "shape": [10**4000] * 300, "data_offsets": [0, 4]}},
    "many dimensions": {"a": {"dtype": "F32", "shape": [1] * 100_000, "data_offsets": [0, 4]}},
    "negative size": {"a": {"dtype": "F32", "shape": [-1, -1], "data_offsets": [0, 4]}},
    "one offset": {"a": {"dtype": "F32", "shape": [1], "data_offsets": [0]}},
    "100,000 names": {f"a.{i}.b": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} for i in range(100_000)},
    "20,000 long names": {
        "model." * 38 + str(i): {"dtype": "F32", "shape": [1], "data_offsets": [4 * i, 4 * i + 4]}
        for i in range(20_000)
    },
    "a very long name": {"model." * 100_000: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}},
    "tensors on top of each other": {
        f"a.{i}": {"dtype": "F32", "shape": [20_000], "data_offsets": [0, 80_000]} for i in range(1000)
    },
}  # fmt: skip


@pytest.mark.parametrize("case", HEADERS)
def test_a_hostile_header_is_refused(case: str, tmp_path: Path) -> None:
    path = by_header(tmp_path / "x.safetensors", HEADERS[case], b"\0" * 80_000)
    for use in (inspect_checkpoint, load_embeddings, load_latents):
        assert "x.safetensors" in refusal(lambda use=use: use(path))


def layers_of_an_encoder(count: int) -> dict[str, torch.Tensor]:
    names = ("SelfAttention.q.weight", "SelfAttention.relative_attention_bias.weight")
    return {f"encoder.block.{i}.layer.0.{name}": torch.ones(1, 1) for i in range(count) for name in names}


ONE_LAYER = layers_of_an_encoder(1)
SIZES = {
    "many layers": layers_of_an_encoder(9_000), "no table": ONE_LAYER,
    "a row as table": ONE_LAYER | {"shared.weight": torch.ones(3)},
    "no heads": ONE_LAYER | {
        "shared.weight": torch.ones(3, 3), "encoder.block.0.layer.1.DenseReluDense.wi_0.weight": torch.ones(3, 3),
        "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight": torch.ones(32, 0),
    },
}  # fmt: skip


@pytest.mark.parametrize("case", SIZES)
def test_the_sizes_of_an_encoder_are_checked(case: str, tmp_path: Path) -> None:
    assert "not a umT5 encoder" in refusal(lambda: sizes_of(SIZES[case], tmp_path / "x.safetensors"))


@pytest.mark.parametrize("stated", [10**15, 10**400, -1, 1.5, "x", [], None, True])
def test_stated_sizes_that_no_model_has_are_not_used(stated: Any, tmp_path: Path) -> None:
    config = json.dumps({"transformer": {"num_heads": stated, "text_len": stated}})
    about = json.dumps({"frames_per_block": stated, "lora": stated})
    path = saved(tmp_path / "x.safetensors", WEIGHTS, {"config": config, "head_forcing": about})
    with bounded():
        info = inspect_checkpoint(path)
    assert (info.config.num_heads, info.config.text_len, info.frames_per_block) == (1, 512, None)


@pytest.mark.parametrize("name", ["patch_embedding.weight", "head.modulation", "blocks.0.ffn.0.weight"])
def test_a_model_without_a_size_is_refused(name: str, tmp_path: Path) -> None:
    shape = list(WEIGHTS[name].shape)
    shape[0 if name.startswith("blocks") else -1] = 0
    path = saved(tmp_path / "x.safetensors", {**WEIGHTS, name: torch.zeros(shape)})
    refusal(lambda: inspect_checkpoint(path, num_heads=1))


def expanded(*shape: int) -> torch.Tensor:
    return torch.zeros(1).expand(shape)


PICKLES: dict[str, Callable[[], Any]] = {
    "a tensor that is one number": lambda: {**WEIGHTS, "patch_embedding.bias": expanded(10**12)},
    "a sparse tensor": lambda: {**WEIGHTS, "x": torch.eye(3).to_sparse()},
    "a tensor without numbers": lambda: {**WEIGHTS, "x": torch.empty(3, device="meta")},
    "a nested one": lambda: {"generator": {**WEIGHTS, "x": expanded(10**12)}},
    "one tensor under many names": lambda: dict.fromkeys(map(str, range(1000)), torch.zeros(10_000)),
    "many names": lambda: {str(i): {} for i in range(30_000)},
    "a long name": lambda: {"x" * 1_000_000: torch.zeros(1)},
}


@pytest.mark.parametrize("case", PICKLES)
def test_a_hostile_pickle_is_refused(case: str, tmp_path: Path) -> None:
    path = saved(tmp_path / "x.pt", PICKLES[case]())
    assert "x.pt" in refusal(lambda: inspect_checkpoint(path))
    assert "x.pt" in refusal(lambda: convert(path, tmp_path / "out.safetensors"))


def factors(down: torch.Tensor, up: torch.Tensor) -> dict[str, torch.Tensor]:
    return {f"{TARGET}.lora_A.weight": down, f"{TARGET}.lora_B.weight": up}


LORAS: dict[str, tuple[str, Callable[[], Any]]] = {
    "rank 0": ("x.safetensors", lambda: factors(torch.zeros(0, 128), torch.zeros(128, 0))),
    "rank 0 of all": ("x.safetensors", lambda: factors(torch.zeros(0, 0), torch.zeros(128, 0))),
    "scalars": ("x.safetensors", lambda: factors(torch.zeros(()), torch.zeros(()))),
    "rows": ("x.safetensors", lambda: factors(torch.zeros(128), torch.zeros(128))),
    "rank above the matrix": ("x.safetensors", lambda: factors(torch.zeros(129, 128), torch.zeros(128, 129))),
    "rank of a billion": ("x.pt", lambda: factors(expanded(10**9, 128), expanded(128, 10**9))),
    "alpha of two numbers": (
        "x.safetensors",
        lambda: {**factors(torch.ones(1, 128), torch.ones(128, 1)), f"{TARGET}.alpha": torch.ones(2)},
    ),
    "many names": ("x.safetensors", lambda: {f"blocks.0.{i}.lora_A.weight": torch.ones(1) for i in range(5_000)}),
    "suffixes": ("x.safetensors", lambda: {".lora_A" * 30 + f"\n{i}": torch.ones(1) for i in range(5_000)}),
}  # fmt: skip


@pytest.mark.parametrize("case", LORAS)
def test_a_hostile_lora_is_refused(case: str, tmp_path: Path) -> None:
    model = saved(tmp_path / "model.safetensors", WEIGHTS)
    name, make = LORAS[case]
    lora = saved(tmp_path / name, make())
    assert name in refusal(lambda: load_state_dict(model, lora=lora))


ROWS = torch.ones(3, 8)
EMBEDDINGS: dict[str, tuple[str, Any]] = {
    "a number": ("5", ROWS), "lists": ('[["a"]]', ROWS), "a text": ('"a"', ROWS), "an object": ('{"a": 1}', ROWS),
    "deep nesting": ("[" * 1_000_000, ROWS), "no JSON": ("x", ROWS), "more prompts than tensors": ('["a", "b"]', ROWS),
    "one dimension": ('["a"]', torch.ones(8)), "three dimensions": ('["a"]', torch.ones(1, 3, 8)),
    "no rows": ('["a"]', torch.ones(0, 8)), "whole numbers": ('["a"]', torch.ones(3, 8, dtype=torch.int32)),
    "fp8": ('["a"]', torch.ones(3, 8).to(torch.float8_e4m3fn)), "NaN": ('["a"]', torch.full((3, 8), torch.nan)),
    "infinity": ('["a"]', torch.full((3, 8), torch.inf)),
}  # fmt: skip


@pytest.mark.parametrize("case", EMBEDDINGS)
def test_a_file_of_other_embeddings_is_refused(case: str, tmp_path: Path) -> None:
    prompts, rows = EMBEDDINGS[case]
    path = saved(tmp_path / "x.safetensors", {"prompt_0": rows}, {"prompts": prompts})
    assert "not a prompt embeddings file" in refusal(lambda: load_embeddings(path))


LATENTS = {
    "fp8": torch.ones(3, 16, 2, 2).to(torch.float8_e4m3fn), "whole numbers": torch.ones(3, 16, 2, 2, dtype=torch.int64),
    "NaN": torch.full((3, 16, 2, 2), torch.nan), "infinity": torch.full((3, 16, 2, 2), -torch.inf),
    "no frames": torch.ones(0, 16, 2, 2), "three dimensions": torch.ones(16, 2, 2),
    "other channels": torch.ones(3, 4, 2, 2),
}  # fmt: skip


@pytest.mark.parametrize("case", LATENTS)
def test_other_latents_are_refused(case: str, tmp_path: Path) -> None:
    path = saved(tmp_path / "x.safetensors", {"latents": LATENTS[case]})
    assert "x.safetensors" in refusal(lambda: load_latents(path, (16, 16)))


VAES: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
    "NaN": (lambda tensor: torch.full_like(tensor, torch.nan), "NaN or infinity in decoder.conv1.weight"),
    "infinity": (lambda tensor: torch.full_like(tensor, -torch.inf), "NaN or infinity"),
    "more than float16 holds": (lambda tensor: torch.full_like(tensor, 1e5), "read as torch.float16"),
    "whole numbers": (torch.Tensor.int, "in torch.int32, not in floating point"),
    "complex numbers": (lambda tensor: tensor.to(torch.complex64), "not in floating point"),
    "no channels": (lambda tensor: tensor[:0], "expected"),
}


@pytest.mark.parametrize("case", VAES)
@pytest.mark.parametrize("kind", ["wan", "tiny"])
def test_a_vae_that_holds_no_finite_numbers_is_refused(
    kind: str, case: str, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    """It would decode every video to black, or to nothing that is seen, without a word."""
    change, why = VAES[case]
    if kind == "wan":
        weights, name = load_file(wan_vae(tmp_path / "good.safetensors")), "decoder.conv1.weight"
    else:
        weights, name = TinyDecoder((8, 8, 8, 8)).state_dict(), "decoder.1.weight"
    load_codec(saved(tmp_path / "x.pt", weights), torch.device("cpu"), torch.float16, encodes=False)
    path = saved(tmp_path / "x.pt", {**weights, name: change(weights[name])})
    message = refusal(lambda: load_codec(path, torch.device("cpu"), torch.float16, encodes=False))
    assert path.name in message and (why.replace("decoder.conv1.weight", name) in message or case == "no channels")
    assert not recwarn.list


def damaged(good: bytes, rng: random.Random, number: int) -> bytes:
    """The bytes cut, or some of them replaced, more often near the beginning and the end."""
    if number % 5 == 0:
        return good[: rng.randrange(len(good))]
    bad = bytearray(good)
    for _ in range(rng.choice([1, 2, 5, 30])):
        near = rng.random()
        reach = min(len(bad), 1500)
        place = rng.randrange(reach) if near < 0.4 else len(bad) - 1 - rng.randrange(reach)
        bad[place if near < 0.8 else rng.randrange(len(bad))] = rng.choice([0, 127, 255, rng.randrange(256)])
    return bytes(bad)


def test_damage_anywhere_in_models_embeddings_latents_loras_and_vaes_is_one_sentence_or_harmless(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    save_embeddings(tmp_path / "e.safetensors", {"a red ball": ROWS, "b": ROWS})
    model = saved(tmp_path / "model.safetensors", WEIGHTS)
    good = {
        "embeddings": ((tmp_path / "e.safetensors"), load_embeddings),
        "latents": (saved(tmp_path / "l.safetensors", {"latents": torch.ones(3, 16, 2, 2)}), load_latents),
        "lora": (
            saved(tmp_path / "x.safetensors", factors(torch.ones(2, 128), torch.ones(128, 2))),
            lambda path: load_state_dict(model, lora=path),
        ),
        "pt lora": (
            saved(tmp_path / "x.pt", factors(torch.ones(2, 128), torch.ones(128, 2))),
            lambda path: load_state_dict(model, lora=path),
        ),
        "vae": (wan_vae(tmp_path / "v.safetensors"), lambda path: load_codec(path, torch.device("cpu"), torch.float32)),
    }
    rng, refused, tried = random.Random(5), 0, 0
    small = files.wan_weights(dim=2, ffn=2, layers=1, text=2, freq=2)
    for name in ("m.safetensors", "m.pt"):
        good[name] = saved(tmp_path / name, small), lambda path: inspect_checkpoint(path, num_heads=1)
    for path, use in good.values():
        for number in range(60):
            bad = tmp_path / "bad"
            bad.write_bytes(damaged(path.read_bytes(), rng, number))
            tried += 1
            with bounded():
                try:
                    use(bad)
                except HeadForcingError:
                    refused += 1
    record_property("malformed files and texts tried", tried)
    assert tried == 420 and refused > 150


BLACK = torch.zeros(8, 48, 64, 3).byte()


def video(path: Path, pictures: torch.Tensor = BLACK, **tags: str) -> Path:
    with VideoWriter(path, 64, 48, 16, metadata=tags) as writer:
        writer.write(pictures)
    return path


@pytest.mark.slow
def test_damage_anywhere_in_a_video_is_one_sentence_or_harmless(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    own = json.dumps({"prompts": ["a", "b"], "starts_seconds": [0, 1], "seed": 3})
    pictures = torch.randint(0, 256, (24, 48, 64, 3), generator=torch.Generator().manual_seed(0)).byte()
    good = video(tmp_path / "good.mp4", pictures, head_forcing=own, title="x" * 99).read_bytes()
    rng, codes = random.Random(7), []
    for number in range(150):
        (tmp_path / "bad.mp4").write_bytes(damaged(good, rng, number))
        with bounded():
            code, err = run("report", str(tmp_path / "bad.mp4"), "--json")
        assert code in (0, 2) and (code == 0 or (err.count("\n") == 1 and err.startswith("error: ")))
        codes.append(code)
    record_property("malformed files and texts tried", len(codes))
    assert codes.count(0) > 10 and codes.count(2) > 10


@pytest.mark.parametrize("own", ['{"prompts": ["a\\u001b[2J\\nb"], "method": "x\\ny"}', "[" * 100_000])
def test_a_reports_lines_cannot_be_forged_by_a_videos_tags(own: str, tmp_path: Path) -> None:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        assert cli.main(["report", str(video(tmp_path / "x.mp4", head_forcing=own))]) == 0
    assert "\x1b" not in out.getvalue() and "\ny" not in out.getvalue()


def test_a_prompt_of_5000_characters_is_drawn_as_fast_as_a_short_one(monkeypatch: pytest.MonkeyPatch) -> None:
    measured, real = [], sheets.font

    class Counting:
        def __init__(self, size: int):
            self.real = real(size)

        def getlength(self, text: str) -> float:
            measured.append(len(text))
            return self.real.getlength(text)

    monkeypatch.setattr(sheets, "font", Counting)
    text = sheets.fit_text("a quick brown fox " * 280, 14, 300)
    assert text.endswith("...") and real(14).getlength(text) <= 300 < real(14).getlength(text + "mm")
    sheets.fit_text("\u0301" * 1_000_000, 14, 300)
    assert sum(measured) < 10_000
    assert sheets.fit_text("a fox", 14, 300) == "a fox" and sheets.fit_text("fox", 14, 0) == "..."


CONTENTS = {
    "one prompt": "a red ball " * 95_000, "times": "".join(f"{i // 60}:{i % 60:02} a ball\n" for i in range(9000)),
    "brackets": "[" * 1_000_000, "almost times": "[0:1" * 250_000, "pipes": "|" * 1_000_000,
    "scenes": "Scene 1: x\n" * 90_000, "tags": "[flush, " * 120_000, "JSON": json.dumps(["x"] * 200_000),
    "NUL": "\0" * 1_000_000,
}  # fmt: skip


@pytest.mark.parametrize("case", CONTENTS)
def test_a_prompt_file_of_1_mb_is_read_or_refused_at_once(case: str, tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text(CONTENTS[case])
    with bounded(), contextlib.suppress(HeadForcingError):
        parse_timeline(values.read_text(f"@{path}"))


def test_a_prompt_file_over_1_mb_or_of_other_bytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_bytes(b"a" * (MAX_TEXT_BYTES + 1))
    assert "1 MB" in refusal(lambda: values.read_text(f"@{path}"))
    path.write_bytes(b"\xff\xfe\x00")
    assert "UTF-8" in refusal(lambda: values.read_text(f"@{path}"))


@pytest.mark.skipif(os.name == "nt", reason="there are no pipes and devices in its file system")
@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "nothing"])
def test_only_regular_files_are_read(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    if kind == "pipe":
        os.mkfifo(path)
    if kind == "folder":
        path.mkdir()
    path = Path("/dev/zero") if kind == "device" else path
    uses = (inspect_checkpoint, load_embeddings, load_latents, HeadShares.load, values.find_profile)
    for use in (*uses, lambda path: values.read_text(f"@{path}")):
        assert path.name in refusal(lambda use=use: use(str(path)))
    for argv in (["report", str(path)], ["inspect", str(path)], ["generate", "--weights", str(path), "--prompts", "a"]):
        assert run(*argv, *(["--latents", str(tmp_path / "out")] if argv[0] == "generate" else []))[0] == 2


@pytest.mark.parametrize("seed", [str(2**64), str(2**70), "-1", "1.5", "", "٣", "nan", "1_0"])
def test_a_seed_that_no_generator_takes_is_refused(seed: str) -> None:
    for command in (["demo"], ["profile", "x.json", "--demo"]):
        code, err = run(*command, f"--seed={seed}")
        assert code == 2 and "0 to 2^64 - 1" in err
    assert parser.seed_number(str(2**64 - 1)) == 2**64 - 1


def test_a_user_without_a_home_can_use_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    assert values.found_profiles_folder(None) is None
    assert values.found_profiles_folder(Path("x")) == Path("x")
    assert run("budget", "--seconds", "60")[0] == 0


@pytest.mark.slow
def test_a_header_of_many_objects_is_refused(tmp_path: Path) -> None:
    path = by_header(tmp_path / "x.safetensors", b'{"a":[' + b"[]," * 2_700_000 + b"0]}")
    assert "damaged" in refusal(lambda: inspect_checkpoint(path))


@pytest.mark.parametrize("heads", ["9" * 5000, "1" * 4400, "٣", "1e999", "-1", ""])
def test_a_stated_number_of_heads_is_a_small_number_or_not_stated(heads: str, tmp_path: Path) -> None:
    path = saved(tmp_path / "x.safetensors", WEIGHTS, {"num_heads": heads})
    with bounded():
        assert inspect_checkpoint(path).config.num_heads == 1


def test_ten_thousand_unknown_names_cost_little(tmp_path: Path) -> None:
    extra = {f"extra.{i}.x": torch.zeros(1) for i in range(10_000)}
    path = saved(tmp_path / "x.safetensors", {**WEIGHTS, **extra})
    seconds = time.process_time()
    assert inspect_checkpoint(path).parameters == sum(tensor.numel() for tensor in WEIGHTS.values())
    assert time.process_time() - seconds < 2


def test_a_lora_of_the_largest_useful_rank_is_merged(tmp_path: Path) -> None:
    model = saved(tmp_path / "model.safetensors", WEIGHTS)
    lora = saved(tmp_path / "lora.safetensors", factors(torch.eye(128), torch.eye(128)))
    merged, _ = load_state_dict(model, lora=lora)
    assert torch.equal(merged[f"{TARGET}.weight"], WEIGHTS[f"{TARGET}.weight"] + torch.eye(128))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_embeddings_and_latents_of_every_written_type_are_read(dtype: torch.dtype, tmp_path: Path) -> None:
    save_embeddings(tmp_path / "e.safetensors", {"a": ROWS.to(dtype)})
    assert torch.equal(load_embeddings(tmp_path / "e.safetensors")["a"], ROWS.to(dtype))
    latents = torch.rand(3, 16, 2, 2).to(dtype)
    assert torch.equal(load_latents(saved(tmp_path / "l.safetensors", {"latents": latents}), (16, 16)), latents)


def test_tags_that_are_no_text_do_not_stop_a_report(tmp_path: Path) -> None:
    with VideoWriter(tmp_path / "x.mp4", 64, 48, 16, metadata={"title": "tuvwxyz"}) as writer:
        writer.write(torch.zeros(8, 48, 64, 3).byte())
    data = (tmp_path / "x.mp4").read_bytes()
    assert data.count(b"tuvwxyz") == 1
    (tmp_path / "x.mp4").write_bytes(data.replace(b"tuvwxyz", b"\xff\xfe\x80\xc0\xc1\xf5\xff"))
    assert run("report", str(tmp_path / "x.mp4"), "--json") == (0, "")


@pytest.mark.parametrize("size", ["1e308", "-1"])
def test_a_size_to_keep_that_is_none_is_refused(size: str, tmp_path: Path) -> None:
    code, err = run("runs", "prune", str(tmp_path), f"--keep-gb={size}")
    assert code == 2 and "--keep-gb" in err and err.count("\n") == 1


def test_an_unwritable_folder_for_found_profiles_is_refused_before_the_render(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    found = str(tmp_path / "file" / "x")
    argv = ["demo", "--out", str(tmp_path / "out"), "--profile", "auto", "--found-profiles", found]
    code, err = run(*argv, "--seconds", "12", "--json")
    assert code == 2 and "cannot be written" in err and err.count("\n") == 1
    assert not list((tmp_path / "out").glob("*"))
