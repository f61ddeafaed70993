"""The decoders of Wan: streaming against a whole video at once by diffusers or as published; their
memory and files.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from counted_memory import CountsMemory, CountsTraffic, NoLaunch
from headforcing.cli.codec import decoder_memory, load_codec
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.model.latents import WAN21, WAN22, LatentFormat
from headforcing.headforcing_core.video import tiny_decoder, wan22, wan_decoder
from headforcing.headforcing_core.video.stream import StreamingDecoder
from headforcing.headforcing_core.video.wan_vae import WanVideoDecoder, statistics
from headforcing.kernels import feature_frames
from kernel_choice import using
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch._prims_common import suggest_memory_format
from torch.nn import functional as F

FRAMES = 10
HEIGHT = 3
WIDTH = 5
CHUNKINGS = [10], [1] * 10, [1, 2, 3, 3, 1]


@pytest.fixture(scope="module")
def vae_path(tiny) -> Path:
    return tiny / "wan_2.1_vae.safetensors"


@pytest.fixture(scope="module")
def latents() -> Tensor:
    return 0.3 * torch.randn(FRAMES, 16, HEIGHT, WIDTH, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def library(vae_path) -> tuple[Any, Tensor, Tensor]:
    """diffusers' VAE with every tensor of the file in its place, and mean and standard deviation of
    its latents.
    """
    diffusers = pytest.importorskip("diffusers")
    from diffusers.loaders.single_file_utils import convert_wan_vae_to_diffusers

    network = diffusers.AutoencoderKLWan(base_dim=8).eval()
    network.load_state_dict(convert_wan_vae_to_diffusers(load_file(vae_path)))
    mean = torch.tensor(network.config["latents_mean"]).view(-1, 1, 1, 1)
    std = torch.tensor(network.config["latents_std"]).view(-1, 1, 1, 1)
    return network, mean, std


@pytest.fixture(scope="module")
def one_shot(library, latents) -> Tensor:
    """All latents at once by diffusers."""
    network, mean, std = library
    with torch.no_grad():
        decoded = network.decode(latents.movedim(0, 1)[None] * std + mean).sample[0]
    return (decoded.movedim(0, -1) + 1) / 2


def load_streaming_decoder(path: Path, dtype: torch.dtype = torch.bfloat16) -> StreamingDecoder:
    return load_codec(path, "cpu", dtype, encodes=False).decoder()


def stream(
    path: Path, latents: Tensor, chunking: list[int], dtype: torch.dtype = torch.float32
) -> Tensor:
    decoder = load_streaming_decoder(path, dtype)
    return torch.cat([decoder.decode(chunk) for chunk in latents.split(chunking)])


def test_decoding_is_the_librarys_and_chunks_make_no_difference_to_a_single_bit(
    vae_path, latents, one_shot
):
    videos = [stream(vae_path, latents, chunking) for chunking in CHUNKINGS]
    assert all(torch.equal(video, videos[0]) for video in videos)
    assert videos[0].shape == (4 * (FRAMES - 1) + 1, 8 * HEIGHT, 8 * WIDTH, 3)
    assert videos[0].dtype == torch.float32 and videos[0].device.type == "cpu"
    assert 0 <= videos[0].min() and videos[0].max() <= 1 and one_shot.std() > 0.05
    torch.testing.assert_close(videos[0], one_shot, atol=1e-5, rtol=0)
    decoder = load_streaming_decoder(vae_path, torch.float32)
    first = decoder.decode(latents[:4])
    decoder.reset()
    assert torch.equal(decoder.decode(latents[:4]), first)


def test_outputs_that_are_added_for_tensor_cores_are_left_out_again(
    vae_path, latents, one_shot, monkeypatch
):
    decoder = load_streaming_decoder(vae_path, torch.float32)
    first = decoder._network.decoder["conv1"]
    conv = decoder._network.decoder["head"]["2"]
    # as a host's may lie
    first.weight.data = first.weight.data.contiguous(memory_format=torch.channels_last_3d)
    weight = torch.full((8, *conv.weight.shape[1:]), 7.0)  # not zeros, which would not show
    weight[:3] = conv.weight[:3]
    conv.weight.data = weight
    torch.testing.assert_close(decoder.decode(latents), one_shot, atol=1e-5, rtol=0)
    with torch.device("meta"):
        # the second time there is nothing to add
        network = wan_decoder.WanDecoder().prepare().prepare()
    convs = [layer for layer in network.modules() if isinstance(layer, wan_decoder.CausalConv)]
    assert all(len(layer.weight) == math.ceil(layer.out_channels / 8) * 8 for layer in convs)


def test_of_weights_that_a_host_owns_only_those_of_the_last_layer_are_copied():
    """As in ComfyUI without dynamic VRAM: 3 colours would miss the alignment of tensor cores."""
    with torch.device("meta"):
        network = wan_decoder.WanDecoder()
    own = {name: tensor.data for name, tensor in network.named_parameters()}
    network.prepare(rearrange=False)
    changed = [
        name for name, tensor in network.named_parameters() if tensor.shape != own[name].shape
    ]
    assert changed == ["decoder.head.2.weight"] and len(network.decoder["head"]["2"].weight) == 8
    network = wan_decoder.WanDecoder(8)
    own = {name: tensor.data_ptr() for name, tensor in network.named_parameters()}
    network.prepare(rearrange=False)
    moved = [name for name, tensor in network.named_parameters() if tensor.data_ptr() != own[name]]
    assert moved == ["decoder.head.2.weight"]


@pytest.mark.parametrize("first", [False, True], ids=["later", "first"])
@pytest.mark.parametrize(("channels", "frames"), [(8, 2), (16, 2), (32, 2), (64, 2), (16, 1)])
def test_channels_are_repeated_over_cells_as_published_in_one_addition(channels, frames, first):
    """Wan repeats neighbouring channels, then spreads them over the frames, rows and columns of
    a cell.
    """
    outputs = 8
    x = torch.randn(1, 3, 5, channels)
    made = torch.randn(1 if first else frames, 6, 10, outputs)
    repeated = x.repeat_interleave(4 * frames * outputs // channels, dim=-1)
    cells = repeated.view(1, 3, 5, outputs, frames, 2, 2).permute(0, 4, 1, 5, 2, 6, 3)
    expected = made + cells.reshape(frames, 6, 10, outputs)[-len(made) :]
    with CountsTraffic() as counted:
        wan22._add_repeated(made, x, frames)
    assert torch.equal(made, expected)
    assert counted.launches == 1


def test_what_is_asked_of_cudnn_is_the_same_in_an_order_of_sums_that_repeats(
    vae_path, latents, one_shot, monkeypatch
):
    def convolution(
        x, weight, padding, stride, dilation, groups, benchmark, deterministic, allow_tf32
    ):
        orders.add(suggest_memory_format(x))
        return F.conv3d(x, weight, None, stride, padding, dilation, groups)

    def transposed(
        x,
        weight,
        padding,
        output_padding,
        stride,
        dilation,
        groups,
        benchmark,
        deterministic,
        allow_tf32,
    ):
        assert deterministic
        return F.conv_transpose2d(
            x, weight, None, stride, padding, output_padding, groups, dilation
        )

    # of what is convolved; in another one cuDNN copies it and the result
    orders: set[torch.memory_format] = set()
    monkeypatch.setattr(wan_decoder, "has_cudnn", lambda x: True)
    monkeypatch.setattr(torch, "cudnn_convolution", convolution)
    monkeypatch.setattr(torch, "cudnn_convolution_transpose", transposed)
    torch.testing.assert_close(stream(vae_path, latents, [10]), one_shot, atol=1e-5, rtol=0)
    assert orders == {torch.channels_last_3d}
    load_codec(vae_path, "cpu", torch.float32).encode_video(torch.rand(5, 16, 24, 3))
    assert orders == {torch.channels_last_3d}


def test_features_that_were_parked_between_chunks_make_no_difference(vae_path, latents):
    decoder = load_streaming_decoder(vae_path, torch.float32)
    kept = load_streaming_decoder(vae_path, torch.float32)
    for chunk in latents[:6].split([1, 3, 2]):
        found = decoder.decode(chunk)
        assert decoder.features.kept
        decoder.features.park()  # as option `park` does on a GPU
        assert not decoder.features.kept
        assert torch.equal(found, kept.decode(chunk))


def gpu_conv3d(x: Tensor, weight: Tensor, bias: None, padding: tuple[int, ...]) -> Tensor:
    """As large as the result and in its order in memory: what cuDNN allocates."""
    sizes = []
    for size, kernel, pad in zip(x.shape[2:], weight.shape[2:], padding, strict=True):
        sizes.append(size - kernel + 2 * pad + 1)
    return x.new_empty(*sizes, len(weight)).permute(3, 0, 1, 2)[None]


@pytest.mark.parametrize(
    ("size", "dtype"), [((60, 104), torch.bfloat16), ((30, 33), torch.float32)], ids=str
)
def test_the_estimate_of_memory_is_what_its_tensors_take(size, dtype, monkeypatch):
    """The real width at real sizes, on tensors without data, with the kernel's allocations."""
    monkeypatch.setattr(feature_frames, "_frames_kernel", NoLaunch())
    monkeypatch.setattr(wan_decoder.F, "conv3d", gpu_conv3d)
    with torch.device("meta"):
        network = wan_decoder.WanDecoder().to(dtype).prepare()
    decoder = WanVideoDecoder(network)
    with using("triton"), CountsMemory(network.state_dict().values()) as memory:
        for frames in (1, 2, wan_decoder.CHUNK_FRAMES):
            decoder.decode(torch.empty(frames, 16, *size, device="meta"))
    held, expected = network.memory(size, dtype)
    assert sum(frames.nbytes for frames in decoder.features.kept.values()) == held
    assert 0.97 * expected < memory.peak <= expected


def test_without_triton_a_block_moves_at_most_180_gb_and_takes_no_more_memory(monkeypatch):
    """At 832x480 in half precision; the convolutions alone move 64 GB."""
    traffic = CountsTraffic()

    def convolution(x, weight, bias, padding):
        made = gpu_conv3d(x, weight, bias, padding)
        traffic.bytes += x.nbytes + made.nbytes
        return made

    monkeypatch.setattr(wan_decoder.F, "conv3d", convolution)
    with torch.device("meta"):
        network = wan_decoder.WanDecoder().to(torch.bfloat16).prepare()
        latents = torch.empty(3, 16, 60, 104)
    decoder = WanVideoDecoder(network)
    decoder.decode(latents)
    with CountsMemory(network.state_dict().values()) as memory, traffic:
        before = traffic.bytes
        decoder.decode(latents)
    assert 100e9 < traffic.bytes - before < 180e9
    assert memory.peak <= network.memory((60, 104), torch.bfloat16)[1]


def test_wans_own_pth_without_its_encoder_gives_the_same_and_does_not_encode(
    vae_path, latents, one_shot, tmp_path
):
    path = tmp_path / "Wan2.1_VAE.pth"
    torch.save(
        {name: t for name, t in load_file(vae_path).items() if not name.startswith("encoder.")},
        path,
    )
    torch.testing.assert_close(stream(path, latents, [1, 9]), one_shot, atol=1e-5, rtol=0)
    with pytest.raises(HeadForcingError, match="loaded without its encoder"):
        load_codec(path, "cpu", torch.float32, encodes=False).reencode(latents)
    with pytest.raises(
        HeadForcingError, match=r"Wan2\.1_VAE\.pth is not a complete Wan 2\.1 VAE: encoder\."
    ):
        load_codec(path, "cpu", torch.float32)


def test_encoding_is_the_librarys_and_both_ways_work_in_half_precision(
    vae_path, library, latents, one_shot
):
    network, mean, std = library
    for length in (1, 13):
        video = torch.rand(length, 16, 32, 3, generator=torch.Generator().manual_seed(4))
        with torch.no_grad():
            moments = network.encode(video.permute(3, 0, 1, 2)[None] * 2 - 1).latent_dist.mode()[0]
        expected = ((moments - mean) / std).transpose(0, 1)
        found = load_codec(vae_path, "cpu", torch.float32).encode_video(video)
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
        assert found.shape == (1 + length // 4, 16, 2, 4) and found.std() > 0.01
        half = load_codec(vae_path, "cpu", torch.bfloat16).encode_video(video)
        assert (half - expected).abs().mean() < 0.05 * expected.abs().mean()
    video_frames = stream(vae_path, latents.bfloat16(), [1, 9], torch.bfloat16)
    assert video_frames.dtype == torch.float32 and (video_frames - one_shot).abs().mean() < 0.02


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_on_a_gpu_frames_are_those_of_the_cpu_and_chunks_and_parking_change_no_bit(
    vae_path, latents, one_shot
):
    videos = []
    for chunking, park in (([10], False), ([1, 2, 3, 3, 1], False), ([1, 2, 3, 3, 1], True)):
        decoder = load_codec(vae_path, "cuda", torch.float32, encodes=False, park=park).decoder()
        videos.append(torch.cat([decoder.decode(chunk) for chunk in latents.split(chunking)]))
        assert videos[-1].is_cuda and bool(decoder.features.kept) != park
    torch.testing.assert_close(videos[0].cpu(), one_shot, atol=2e-2, rtol=0)  # TF32
    assert all(torch.equal(video, videos[0]) for video in videos)


WRONG = {  # a tensor, its shape where it is not left out, and what is said
    "image VAE": ("conv1.weight", (), r"not a VAE of Wan \(it holds conv1\.bias.*use wan_2\.1_vae"),
    "another video VAE": (
        "conv1.weight",
        (32, 12, 3, 3, 3),
        r"not a VAE of Wan \(it is a video VAE with 12 latent",
    ),
    "Wan 2.2 VAE": (
        "conv1.weight",
        (32, 48, 3, 3, 3),
        r"not a complete Wan 2\.2 VAE: .*use wan2\.2_vae",
    ),
    "incomplete": (
        "upsamples.7.time_conv.weight",
        (),
        r"Wan 2\.1 VAE: decoder\.upsamples\.7\.time_conv\.weight is mi",
    ),
    "no width": ("head.0.gamma", (), "not a complete Wan 2.1 VAE"),
    "wrong shape": (
        "middle.1.proj.weight",
        (7, 5),
        r"is of shape \[7, 5\], expected \[32, 32, 1, 1\]",
    ),
}


def test_a_wrong_file_and_latents_of_another_shape_are_refused_in_one_sentence(vae_path, tmp_path):
    path = tmp_path / "model.safetensors"
    weights = load_file(vae_path)
    for name, shape, message in WRONG.values():
        changes = {f"decoder.{name}": torch.zeros(shape)} if shape else {}
        save_file(
            {key: value for key, value in weights.items() if key != f"decoder.{name}"} | changes,
            path,
        )
        with pytest.raises(HeadForcingError, match=rf"model\.safetensors.*{message}"):
            load_streaming_decoder(path)
    decoder = load_streaming_decoder(vae_path)
    for shape in ((16, 4, 4), (2, 48, 4, 4)):
        with pytest.raises(HeadForcingError, match=r"\[frames, 16, h, w\]"):
            decoder.decode(torch.zeros(shape))


CPU = torch.device("cpu")
WIDTHS = (12, 10, 8, 6)


def random_weights(dtype: torch.dtype, latents: LatentFormat = WAN21) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    empty = tiny_decoder.TinyDecoder(WIDTHS, latents).state_dict()
    return {
        name: (
            torch.randn(t.shape, generator=generator)
            * (t[0].numel() ** -0.5 if t.ndim > 1 else 0.3)
        ).to(dtype)
        for name, t in empty.items()
    }


def whole_video(weights: dict[str, Tensor], z: Tensor) -> Tensor:
    """The network as published: all frames at once, each layer with memory reading its input one
    frame later.
    """
    w = {name.removeprefix("decoder."): tensor.float() for name, tensor in weights.items()}

    def conv(x: Tensor, name: str, pad: int = 1) -> Tensor:
        return F.conv2d(x, w[f"{name}.weight"], w.get(f"{name}.bias"), padding=pad)

    x = conv((z / 3).tanh() * 3, "1").relu()
    for start, frames in ((3, 1), (9, 2), (15, 2)):
        for layer in range(start, start + 3):
            before = F.pad(x, (0, 0, 0, 0, 0, 0, 1, 0))[:-1]
            hidden = conv(torch.cat([x, before], 1), f"{layer}.conv.0").relu()
            x = (conv(conv(hidden, f"{layer}.conv.2").relu(), f"{layer}.conv.4") + x).relu()
        x = F.interpolate(x, scale_factor=2, mode="nearest")
        x = conv(x, f"{start + 4}.conv", pad=0)
        x = x.reshape(len(x) * frames, -1, *x.shape[2:])
        x = conv(x, str(start + 5))
    x = conv(x.relu(), "22")[3:].clamp(0, 1)
    # Wan 2.2: cells of 2x2 pixels
    return F.pixel_shuffle(x, round((x.shape[1] / 3) ** 0.5)).permute(0, 2, 3, 1)


def write(
    folder: Path, dtype: torch.dtype = torch.float16, latents: LatentFormat = WAN21
) -> tuple[Path, dict]:
    weights = random_weights(dtype, latents)
    save_file(weights, folder / "tiny.safetensors")
    return folder / "tiny.safetensors", weights


@pytest.mark.parametrize(
    ("decoder", "dtype", "asked"),
    [
        ("taew2_1", torch.float16, "auto"),
        ("taew2_1", torch.bfloat16, "taew2_1"),
        ("lighttaew2_1", torch.bfloat16, "auto"),
        ("taew2_2", torch.float32, "auto"),
    ],
)
def test_every_chunking_is_the_published_network_on_the_latents_it_takes(
    tmp_path, decoder, dtype, asked
):
    """A name decides between decoders with the same tensors, else the dtype."""
    of = WAN22 if decoder == "taew2_2" else WAN21
    path, weights = write(tmp_path, dtype, of)
    z = latents = torch.randn(5, of.channels, 3, 4, generator=torch.Generator().manual_seed(1))
    if decoder == "lighttaew2_1":  # latents as the VAE sees them
        mean, std = statistics(WAN21)[..., None, None]
        z = latents * std + mean
    expected = whole_video(weights, z)
    assert expected.shape == (17, 3 * of.stride, 4 * of.stride, 3) and expected.std() > 0.05
    stream = load_codec(path, CPU, torch.float32, encodes=False, decoder=asked).decoder()
    videos = []
    for chunking in ([5], [1] * 5, [1, 2, 2]):
        stream.reset()
        videos.append(torch.cat([stream.decode(chunk) for chunk in latents.split(chunking)]))
    torch.testing.assert_close(videos[0], expected, atol=1e-5, rtol=0)
    assert torch.equal(videos[0], videos[1]) and torch.equal(videos[0], videos[2])


def test_what_a_file_cannot_do_is_said_before_it_is_loaded(vae_path, tmp_path):
    path, weights = write(tmp_path)
    for file, asked, told in (
        (path, {"decoder": "wan"}, "tiny decoder, not the Wan 2.1 VAE"),
        (vae_path, {"decoder": "taew2_1"}, "no tiny decoder: give taew2_1's file"),
        (path, {"encodes": True}, "cannot encode video frames"),
        (path, {"latents": WAN22}, "for 16 latent channels, the model has 48"),
    ):
        with pytest.raises(HeadForcingError, match=told):
            decoder_memory(file, (64, 64), torch.float32, **asked)
    save_file({name: tensor for name, tensor in weights.items() if name != "decoder.22.bias"}, path)
    with pytest.raises(
        HeadForcingError,
        match=r"tiny.safetensors is not a complete tiny decoder: decoder.22.bias is",
    ):
        load_codec(path, CPU, torch.float32, encodes=False)


def test_it_takes_a_small_part_of_the_vaes_memory(tmp_path):
    path, _ = write(tmp_path)
    assert decoder_memory(path, (480, 832), torch.bfloat16).peak > 0
    with torch.device("meta"):
        released = tiny_decoder.TinyDecoder()
    assert (
        released.memory((60, 104), torch.bfloat16)[1]
        < 0.2 * decoder_memory(None, (480, 832), torch.bfloat16).peak
    )
