"""Decoding and encoding beside ComfyUI's own VAEs, and videos that begin with an image beside its
own sampler.
"""

import importlib
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import comfy.latent_formats
import comfy.model_management as mm
import comfy.sample
import comfy.samplers
import comfy.sd
import comfy.taesd.taehv
import comfy.utils
import torch
from parity import (
    EMBEDS,
    VAE,
    apart,
    core,
    core_model,
    embeds_of,
    loaded_model,
    memory,
    native,
    probe,
    scaled,
    smoke,
    start_inputs,
    toy,
    vae_decoding,
)


def wan_vae():
    return comfy.sd.VAE(sd=comfy.utils.load_torch_file(VAE))


def tiny_decoder():
    """The weights of a TAEHV for drafts, whose values neither vanish nor explode."""
    torch.manual_seed(0)
    weights = comfy.taesd.taehv.TAEHV(16).state_dict()
    return {
        name: torch.randn_like(value) * value[0].numel() ** -0.5 for name, value in weights.items()
    }


def whole(vae, latents):
    """A video decoded at once by ComfyUI, `[video frames, H, W, 3]`."""
    return vae.decode(latents.transpose(0, 1)[None])[0]


def shown(vae, latents):
    """The same in 0..1: ComfyUI leaves what its tiny decoder makes beyond."""
    return whole(vae, latents).clamp(0, 1)


def decoded(streaming, latents, size=3):
    chunks = core.stream.Chunks()
    parts = []
    for block in latents.split(size):
        parts += chunks.add(block)
    parts += chunks.rest()
    return torch.cat([streaming.decode(part) for part in parts])


def kind_of(decoder):
    return type(decoder).__name__


def check_decoder_of_dynamic_vram(vae, latents):
    """Layers that cast weights of the file's dtype when they run, or lie in main memory: copies."""
    for part in vae.first_stage_model.modules():
        if hasattr(part, "comfy_cast_weights"):
            part.comfy_cast_weights = True
    conv = vae.first_stage_model.decoder.conv1
    conv.weight.data = conv.weight.data.half()
    expected = decoded(vae_decoding.WanStreamingDecoder(vae), latents)
    own = vae_decoding.codec_of(vae).decoder()
    assert kind_of(own) == "WanVideoDecoder" and apart(decoded(own, latents), expected) < 1e-4
    assert conv.weight.dtype == torch.float16, "ComfyUI's own weight stays as it is"
    plain = vae_decoding.decoder_memory(vae, latents.shape[-2:])
    vae.patcher.is_dynamic = lambda: True
    counted = vae_decoding.decoder_memory(vae, latents.shape[-2:])
    own = vae_decoding.codec_of(vae).decoder()
    copied = 0  # without the outputs of zeros that are added for tensor cores
    for name, weight in vae.first_stage_model.named_parameters():
        if name.startswith(("decoder.", "conv2.")):
            copied += weight.numel() * vae.vae_dtype.itemsize
    assert (counted.held - plain.held, counted.peak - plain.peak) == (copied, copied), copied
    assert kind_of(own) == "WanVideoDecoder"
    assert apart(decoded(own, latents), expected) < 1e-4
    vae.patcher.is_dynamic = lambda: False
    with patch.object(mm, "vram_state", mm.VRAMState.NO_VRAM):
        assert vae_decoding.decoder_memory(vae, latents.shape[-2:]) == counted


def check_current_devices(vae, latents):
    """ComfyUI's networks run where the VAE's device is the current one."""
    inside = []
    seen = []
    net = vae.first_stage_model
    current = vae_decoding._current

    @contextmanager
    def here(device):
        inside.append(device)
        yield
        inside.pop()

    for part in (net.decoder.conv1, net.encoder.conv1):
        part.register_forward_hook(lambda *_: seen.append(inside == [vae.device]))
    with patch.object(vae_decoding, "_current", here):
        vae_decoding.WanStreamingDecoder(vae).decode(latents[:1])
        vae_decoding.OverlapDecoder(vae).decode(latents[:1])
        vae_decoding.codec_of(vae).encode_video(torch.rand(1, 32, 48, 3))
    assert seen == [True] * 3 and current(torch.device("cuda:1")).idx == 1


@smoke
@torch.inference_mode()
def streaming_decode_equals_decoding_at_once():
    vae = wan_vae()
    own = vae_decoding.load_decoder(vae, (4, 6))
    exact = vae_decoding.WanStreamingDecoder(vae)
    overlap = vae_decoding.OverlapDecoder(vae)
    assert kind_of(own) == "WanVideoDecoder"
    with patch.object(vae.patcher, "patches", {"decoder.conv1.weight": []}):
        assert kind_of(vae_decoding.load_decoder(vae, (4, 6))) == "WanStreamingDecoder", (
            "a changed VAE is ComfyUI's"
        )
    hook = vae.first_stage_model.decoder.middle[1].register_forward_hook(lambda *_: None)
    assert kind_of(vae_decoding.load_decoder(vae, (4, 6))) == "WanStreamingDecoder"
    hook.remove()
    for frames in (1, 10):
        latents = torch.randn(frames, 16, 4, 6, generator=torch.Generator().manual_seed(frames))
        at_once = whole(vae, latents)
        for size in (1, 3):
            for decoder in (exact, own):
                decoder.reset()  # one decoder makes one video after another
                assert apart(decoded(decoder, latents, size), at_once) < 1e-4, (
                    frames,
                    size,
                    kind_of(decoder),
                )
    joined = decoded(overlap, latents)
    later = (joined[9:-4] - at_once[13:]).abs().mean(), (joined[13:] - at_once[9:-4]).abs().mean()
    assert len(joined) == 37 and float(at_once.std()) > 0.01
    assert (joined - at_once).abs().mean() < 0.5 * min(map(float, later)), (
        "every picture in its place"
    )
    check_decoder_of_dynamic_vram(vae, latents)
    check_current_devices(vae, latents)


@probe
def the_vae_of_the_command_line_decodes_as_comfyuis_own():
    """The same file and the same normalised latents, un-normalised by ComfyUI's own constants."""
    vae = wan_vae()
    latents = 0.3 * torch.randn(10, 16, 3, 5, generator=torch.Generator().manual_seed(0))
    decoder = core.codec.load_codec(Path(VAE), "cpu", torch.float32, encodes=False).decoder()
    ours = torch.cat([decoder.decode(chunk) for chunk in latents.split([1, 2, 3, 3, 1])])
    theirs = whole(vae, scaled(comfy.latent_formats.Wan21().process_out, latents))
    assert vae.vae_dtype == torch.float32 and apart(ours, theirs.float()) < 1e-3


@probe
@torch.inference_mode()
def comfyuis_tiny_decoder_for_drafts_streams_exactly():
    weights = tiny_decoder()
    latents = torch.randn(10, 16, 4, 6)
    vae = comfy.sd.VAE(sd=weights)
    draft = vae_decoding.load_decoder(vae, (4, 6))
    at_once = whole(vae, latents)
    exact = apart(decoded(draft, latents), at_once.clamp(0, 1))
    spread = float(at_once.std())
    tiny = core.tiny_decoder.TinyDecoder()
    tiny.load_state_dict({name: t for name, t in weights.items() if name.startswith("decoder.")})
    # as it is, like ComfyUI here
    tiny = core.tiny_decoder.TinyVideoDecoder(tiny.prepare(), normalised=False)
    assert kind_of(draft) == "TinyStreamingDecoder" and spread > 1e-3
    assert exact < 3e-4 * spread, "the whole network in float32, fed in other portions"
    ours = apart(decoded(tiny, latents), at_once.clamp(0, 1))
    assert ours < 3e-4 * spread, "the command line's tiny decoder is the same network"
    frames = []
    network = core.tiny_decoder.TinyDecoder
    forward = network.forward
    with patch.object(network, "forward", lambda *z: frames.append(len(z[1])) or forward(*z)):
        decoded(draft, latents)
    assert sum(frames) == len(latents), "each latent frame once"
    scaled_vae = comfy.sd.VAE(sd={name: t.half() for name, t in weights.items()})  # as published
    published = vae_decoding.load_decoder(scaled_vae, (4, 6))
    at_once = whole(scaled_vae, latents).clamp(0, 1).float()
    assert apart(decoded(published, latents), at_once) < 0.02 * float(at_once.std())
    changed = comfy.sd.VAE(sd=weights)
    changed.first_stage_model.decoder[3].register_forward_hook(lambda *_: None)
    overlap = vae_decoding.load_decoder(changed, (4, 6))
    at_once = whole(changed, latents)
    assert kind_of(overlap) == "OverlapDecoder", "a changed one is ComfyUI's"
    assert apart(decoded(overlap, latents), at_once) < 3e-4 * spread
    less = vae_decoding.decoder_memory(vae, (60, 104)).peak
    more = vae_decoding.decoder_memory(changed, (60, 104)).peak
    assert less < more


@probe
def weights_that_comfyui_keeps_on_a_gpu_leave_less_room():
    model = SimpleNamespace(load_device=torch.device("cuda:0"), model_size=lambda: 2.84e9)
    state = mm.VRAMState
    facts = {
        "get_free_memory": lambda device: 7e9,
        "get_total_memory": lambda device: 8e9,
        "extra_reserved_memory": lambda: 0.4e9,
        "minimum_inference_memory": lambda: 1.2e9,
        "current_loaded_models": [],
        "MIN_WEIGHT_MEMORY_RATIO": 0.4,
        "vram_state": state.NORMAL_VRAM,
    }

    def room(**changes):
        with patch.multiple(mm, **facts | changes):
            return memory.room_on(model)

    assert room() == int(7e9 - 0.4e9 - 0.4 * 7e9)
    assert room(get_free_memory=lambda device: 1.5e9) == int(1.1e9 - 0.3e9)
    assert room(get_total_memory=lambda device: 32e9, get_free_memory=lambda device: 32e9) == int(
        31.6e9 - 2.84e9
    )
    plain = int(6.6e9)
    assert room(MIN_WEIGHT_MEMORY_RATIO=0.0) == room(vram_state=state.NO_VRAM) == plain
    model.is_dynamic = lambda: True
    assert room() == plain


@probe
def a_second_gpu_and_a_tiny_decoder_at_hand_are_named():
    vae = wan_vae()
    gpu = torch.device("cuda:0")
    folders = vae_decoding.folders
    with patch.object(folders, "tiny_decoder_file", lambda names: Path(f"{names[1]}pth")):
        assert vae_decoding.advice(vae, vae.device).endswith(
            "the tiny decoder taew2_1.pth as VAE, for a draft"
        )
        assert vae_decoding.advice(comfy.sd.VAE(sd=tiny_decoder()), vae.device) == ""
        assert vae_decoding.advice(toy.ToyVAE(), vae.device) == ""
    with (
        patch.object(folders, "tiny_decoder_file", lambda names: None),
        patch.object(torch.cuda, "device_count", lambda: 2),
        patch.object(vae, "device", gpu),
    ):
        assert "second GPU (Select VAE Device, and decode_in" in vae_decoding.advice(vae, gpu)
        assert vae_decoding.advice(vae, torch.device("cuda:1")) == ""
    matmul = SimpleNamespace(allow_fp16_accumulation=False)
    with (
        patch.object(folders, "tiny_decoder_file", lambda names: None),
        patch.object(vae_decoding.torch.backends.cuda, "matmul", matmul),
        patch.object(
            importlib.import_module(vae_decoding.eight_bit_attention.__module__), "find_spec"
        ),
        patch.object(vae_decoding.args, "use_sage_attention", False),
    ):
        line = vae_decoding.advice(vae, gpu, torch.float16)
        assert "(start ComfyUI with --use-sage-attention), which changes" in line
        assert line.endswith(
            "or fp16 sums in linear layers (start ComfyUI with --fast fp16_accumulation)"
        )
        assert "fp16" not in vae_decoding.advice(vae, gpu, torch.bfloat16)
        vae_decoding.args.use_sage_attention = matmul.allow_fp16_accumulation = True
        assert vae_decoding.advice(vae, gpu, torch.float16) == ""


@probe
@torch.inference_mode()
def rollouts_are_encoded_and_decoded_as_comfyui_would():
    """What encodes a picture between rollouts and decodes them, beside ComfyUI's own encode and
    decode.
    """
    inner = native().model
    vaes = {"wan": wan_vae(), "draft": comfy.sd.VAE(sd=tiny_decoder()), "toy": toy.ToyVAE()}
    assert len({vae_decoding.codec_of(vae).fingerprint() for vae in vaes.values()}) == 3
    latents = torch.randn(12, 16, 4, 6, generator=torch.Generator().manual_seed(1))
    for name, vae in vaes.items():
        vae_decoding.load_decoder(vae, (4, 6))
        decode = partial(shown, vae)
        if name == "toy":  # its pictures are not what can be encoded again
            decode = vae.first_stage_model.decoder.autoencoder.decode
        ended = decode(latents[:7])
        first = vae.encode(ended[24:25])[0].transpose(0, 1)
        expected = torch.cat([ended[:24], decode(torch.cat([first, latents[7:]]))])
        codec = vae_decoding.codec_of(vae)
        of_model = vae_decoding.codec_of(vae, inner.latent_format)
        frame = scaled(
            inner.process_latent_out,
            of_model.reencode(scaled(inner.process_latent_in, latents[:7])),
        )
        assert apart(decoded(codec.decoder({"restart_frames": [6]}), latents), expected) < 1e-3, (
            name
        )
        assert apart(decoded(codec.source_decoder(), latents), expected) > 1e-3, name
        assert (
            apart(frame, first) < 1e-3 and min(float(first.std()), float(expected.std())) > 0.01
        ), name


@probe
@torch.inference_mode()
def a_start_image_is_that_of_the_native_node_and_the_video_that_of_the_native_sampler():
    """The node ARVideoI2V and the sampler ar_video beside our start image and the plain loop, on
    the same noise.
    """
    node = importlib.import_module("comfy_extras.nodes_ar_video").ARVideoI2V
    model = native()
    vae = wan_vae()
    image = torch.rand(1, 70, 131, 3, generator=torch.Generator().manual_seed(2))
    seed = 5
    patched, empty = node.execute(model, vae, image, 80, 48, 17, 1).result
    first = patched.model_options["transformer_options"]["ar_config"]["initial_latent"]
    options = core.options.RenderOptions(
        method_name="self_forcing",
        width=80,
        height=48,
        seconds=1.0,
        seed=seed,
        model_family="causal_forcing_framewise",
    )
    start, _ = start_inputs.start_of(
        options, {"start_frames": None, "start_image": image, "start_video": None}, vae
    )
    noise = torch.randn(1, 16, 5, 6, 10, generator=torch.Generator().manual_seed(3))
    sigmas = torch.tensor([*options.schedule.sigmas, 0.0])
    text = [[EMBEDS[0][None], {"pooled_output": None}]]
    sampler = comfy.samplers.ksampler("ar_video", {"num_frame_per_block": 1})
    theirs = comfy.sample.sample_custom(
        patched,
        noise,
        1.0,
        sampler,
        sigmas,
        text,
        text,
        empty["samples"],
        disable_pbar=True,
        seed=seed,
    )

    class NativeNoise:
        def initial(self, block, _):
            return noise[0].transpose(0, 1)[block : block + 1]

        def renoise(self, block, _, step):
            torch.manual_seed(seed + 1000 * (block - 1) + step)
            return torch.randn(1, 16, 1, 6, 10)[0].transpose(0, 1)

        def ahead(self, block, _):
            pass

    config = loaded_model.wan_config(model)
    timeline = core.timeline.parse_timeline("one", 1.0)
    plan = core.plan.RenderPlan.of(config, options, timeline, start.latents.shape[1])
    given = model.model.process_latent_in(start.latents.transpose(1, 2))[0].transpose(0, 1)
    cache = plan.make_cache(torch.float32, "cpu")
    script = plan.script(embeds_of(timeline))
    inputs = core.loop.RolloutInputs(script, NativeNoise(), given.split(1))
    blocks = core.loop.rollout(core_model(), cache, inputs)
    ours = scaled(model.model.process_latent_out, torch.cat([block.latents for block in blocks]))
    assert apart(first.transpose(1, 2), start.latents) == 0 and len(ours) == 5
    assert apart(theirs[0].transpose(0, 1), ours) < 1e-3 * float(theirs.std())
