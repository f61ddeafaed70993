"""A portrait that speech drives, with a small model in the released layout and an audio encoder of
the released size.
"""

import io
from typing import Any

import numpy as np
import pytest
import torch
from comfy_graphs import (
    BARE,
    Graph,
    changed,
    failed,
    node,
    opened,
    queued,
    saved_latents,
    text_of,
    tiny_graph,
)
from comfy_harness import ComfyServer
from PIL import Image
from safetensors.torch import save_file
from sound_files import heard, near, sound_file
from tiny_checkpoints import livetalk_weights, wan_vae, wav2vec2

MODEL = "hf_livetalk.safetensors"
ENCODER = "hf_wav2vec2_base.safetensors"
SIZE = {"width": 64, "height": 64, "seconds": 0.0, "method": "livetalk"}
CLICKS = (0.25, 1.5)
SECONDS = 2.0  # of the sound: 33 video frames, 9 latent frames


@pytest.fixture(scope="module")
def talking(request: pytest.FixtureRequest) -> ComfyServer:
    """The server with the model, the encoder, sounds and a portrait that is higher than wide."""
    server = request.getfixturevalue("comfy")
    save_file(livetalk_weights(), server.model_path("diffusion_models", MODEL))
    encoder = wav2vec2(server.model_path("audio_encoders", ENCODER))
    wan_vae(server.model_path("vae", "hf_tiny_vae.safetensors"))
    sound_file(server, "hf_speech.wav", SECONDS, CLICKS)
    sound_file(server, "hf_other_end.wav", SECONDS, (0.25, 1.75))
    shades = Image.linear_gradient("L").resize((70, 131))
    shades.convert("RGB").save(server.input_dir / "hf_face.png")
    yield server
    encoder.unlink()


def graph(sound: str = "hf_speech.wav", speech: dict[str, Any] | None = None, **more: Any) -> Graph:
    """A portrait, a sound, and the sampler with the speech that they give."""
    given = {"vae": ["vae", 0], "start_image": ["face", 0], "speech": ["speech", 0]}
    if "speech_input" in more:
        more["speech"] = more.pop("speech_input")
    made = tiny_graph(
        node("HeadForcingLoadModel", checkpoint=MODEL),
        **SIZE | given | {"filename_prefix": "video/talking"} | more,
    )
    del made["profile"]
    del made["sampler"]["inputs"]["head_profile"]
    return made | {
        "vae": node("VAELoader", vae_name="hf_tiny_vae.safetensors"),
        "face": node("LoadImage", image="hf_face.png"),
        "sound": node("LoadAudio", audio=sound),
        "encoder": node("AudioEncoderLoader", audio_encoder_name=ENCODER),
        "speech": node(
            "HeadForcingSpeech", audio_encoder=["encoder", 0], audio=["sound", 0], **speech or {}
        ),
    }


def test_a_portrait_speaks_for_as_long_as_the_sound_which_is_in_the_file(talking: ComfyServer):
    made = queued(talking, graph())
    report = text_of(made)
    latents = saved_latents(talking, made)
    assert latents.shape == (1, 16, 9, 8, 8) and torch.isfinite(latents).all()
    assert "model family livetalk" in report
    assert "portrait: the middle 70x70 of its 70x131 pixels is shown" in report
    (file,) = made.outputs["sampler"]["images"]
    data = talking.view(**file)
    assert opened(data)[:4] == (33, 64, 64, 16.0)
    assert near(heard(io.BytesIO(data)), [*CLICKS])
    name, first = made.previews[0]
    with Image.open(talking.input_dir / "hf_face.png") as face:
        crop = face.crop((0, 30, 70, 100)).resize((64, 64), Image.Resampling.BILINEAR)
    assert name == "sampler"
    with Image.open(io.BytesIO(first)) as preview:
        apart = np.asarray(preview, float) - np.asarray(crop, float)
    assert abs(apart).mean() < 4, "the crop is shown before there is a block"


def test_the_blocks_of_a_shorter_video_are_kept_and_a_rebuilt_cache_hears_what_they_heard(
    talking: ComfyServer,
):
    begun = {"seed": 11, "checkpoint_seconds": 0.0}
    queued(talking, graph(seconds=1.0, **begun))
    made = queued(talking, graph(seconds=["speech", 1], **begun))
    assert "reused 2 blocks" in text_of(made)
    anew = queued(talking, graph(resume=False, **begun))
    torch.testing.assert_close(
        saved_latents(talking, made), saved_latents(talking, anew), rtol=0, atol=1e-5
    )


@pytest.mark.thorough
def test_another_ending_keeps_the_blocks_of_earlier_stretches_and_none_of_speech_encoded_at_once(
    talking: ComfyServer,
):
    stretches = {"segment_seconds": 1.0}
    for speech, kept in ((stretches, True), ({}, False)):
        first = queued(talking, graph("hf_speech.wav", speech, seed=12))
        other = queued(talking, graph("hf_other_end.wav", speech, seed=12))
        assert ("reused 1 block" in text_of(other)) is kept
        one = saved_latents(talking, first)
        two = saved_latents(talking, other)
        assert torch.equal(one[:, :, :3], two[:, :, :3]) is kept
        assert not torch.allclose(one[:, :, 6:], two[:, :, 6:])


def test_a_timeline_is_as_long_as_the_speech_and_a_sound_of_its_own_is_heard_instead(
    talking: ComfyServer,
):
    told = changed(graph(seed=13), "sampler", positive=["told", 0]) | {
        "clip": node("TestFakeClip"),
        "told": node(
            "HeadForcingPromptTimeline",
            clip=["clip", 0],
            prompts="0:00 she talks\n0:01 she laughs",
            seconds=["speech", 1],
        ),
        "other": node("LoadAudio", audio="hf_other_end.wav"),
    }
    for graph_, clicks in (
        (told, [*CLICKS]),
        (changed(told, "told", audio=["other", 0]), [0.25, 1.75]),
    ):
        made = queued(talking, graph_)
        (file,) = made.outputs["sampler"]["images"]
        data = talking.view(**file)
        assert opened(data)[0] == 33 and near(heard(io.BytesIO(data)), clicks)
    assert "reused 3 blocks" in text_of(made), "what is heard renders nothing anew"


def test_silence_follows_the_speech(talking: ComfyServer):
    padded = queued(talking, graph(speech={"pad_seconds": 1.5}, seconds=["speech", 1]))
    assert saved_latents(talking, padded).shape[2] == 15
    (file,) = padded.outputs["sampler"]["images"]
    assert near(heard(io.BytesIO(talking.view(**file))), [*CLICKS])


def test_what_cannot_speak_is_refused_with_one_sentence(talking: ComfyServer, tiny: ComfyServer):
    failed(talking, graph(speech_input=None), "got no speech", "Speech node")
    failed(talking, graph(start_image=None), "makes a portrait speak and got none")
    failed(talking, graph(vae=None), "connect it to vae")
    failed(talking, graph(seconds=5.0), "it lasts 2.06 s", "add silence")
    failed(talking, graph(method="head_forcing"), "head roles", "livetalk")
    other = {"model": BARE} | {name: each for name, each in graph().items() if name != "model"}
    framewise = "causal_forcing_framewise_1_step"
    other = changed(other, "sampler", method="self_forcing", model_family=framewise, seconds=1.0)
    failed(tiny, other, "this model is not driven by speech")
    lost = graph() | {"model": node("UNETLoader", unet_name=MODEL, weight_dtype="default")}
    failed(talking, lost, "without its 32 audio tensors", "Load Self Forcing")
