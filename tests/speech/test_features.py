"""Features of speech: the authors' own recordings of sound, silence at the end, stretches, names."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.video import sound as sounds
from headforcing.headforcing_core.video import speech_features
from headforcing.headforcing_core.video.sound import audio_frame
from headforcing.headforcing_core.video.soundtrack import Soundtrack
from headforcing.headforcing_core.video.speech_features import (
    RATE,
    TransformersEncoder,
    encode_speech,
    load_encoder,
    speech_keys,
    speech_wave,
)
from malformed import refusal
from safetensors.torch import load_file, save_file

VIDEO_FRAMES = 21  # of 6 latent frames
SIZES = {  # of the recorded encoder, see config.json of the recordings
    "hidden_size": 8,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "conv_dim": [12] * 7,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
}


@pytest.fixture(scope="module")
def recorded(repo_root: Path) -> dict[str, torch.Tensor]:
    return load_file(repo_root / "tests/golden/livetalk/audio_golden.safetensors")


@pytest.fixture(scope="module")
def encoder(repo_root: Path) -> TransformersEncoder:
    model = transformers.Wav2Vec2Model(transformers.Wav2Vec2Config(**SIZES))
    model.load_state_dict(load_file(repo_root / "tests/golden/livetalk/wav2vec2.safetensors"))
    return TransformersEncoder(model, "tiny")


def joined(states: torch.Tensor) -> torch.Tensor:
    """Recorded states `[13, n, width]` in the order in which the model reads them."""
    return torch.cat([states[-1:], states]).transpose(0, 1).flatten(1)


def noise(seconds: float, seed: int = 0) -> torch.Tensor:
    return torch.randn(round(seconds * RATE), generator=torch.Generator().manual_seed(seed))


def sound(samples: torch.Tensor, rate: int = RATE) -> Soundtrack:
    return Soundtrack.of_samples(samples, rate)


def test_speech_longer_than_the_video_gives_the_features_that_the_authors_recorded(
    encoder, recorded
):
    wave = recorded["speech_long/wave"]
    features = encode_speech(wave, VIDEO_FRAMES, encoder)
    expected = joined(recorded["speech_long/hidden_states"])
    torch.testing.assert_close(features, expected, atol=1e-5, rtol=0)


def test_the_encoder_hears_the_cut_and_normalised_sound_and_16_features_a_second(
    encoder, recorded, monkeypatch
):
    heard = []
    convolved = encoder.convolved
    hidden = encoder.hidden_states
    monkeypatch.setattr(encoder, "convolved", lambda wave: heard.append(wave) or convolved(wave))
    monkeypatch.setattr(
        encoder, "hidden_states", lambda features: heard.append(features) or hidden(features)
    )
    encode_speech(recorded["speech_long/wave"], VIDEO_FRAMES, encoder)
    for found, name in zip(heard, ("input_values", "interpolated"), strict=True):
        torch.testing.assert_close(found, recorded[f"speech_long/{name}"], atol=1e-5, rtol=0)


def test_speech_shorter_than_the_video_goes_on_with_silence_and_is_not_stretched_as_the_authors_do(
    encoder, recorded
):
    wave = recorded["speech_short/wave"]
    features = encode_speech(wave, VIDEO_FRAMES, encoder)
    silence = torch.zeros(20_000 - len(wave))
    padded = encode_speech(torch.cat([wave, silence]), VIDEO_FRAMES, encoder)
    assert torch.equal(features, padded)
    stretched = joined(recorded["speech_short/hidden_states"])
    assert (features - stretched).abs().max() > 0.1 * stretched.std()


def test_a_sound_of_another_rate_and_two_channels_is_heard_at_16_kHz_as_their_mean():
    at = torch.arange(44_100) / 44_100
    tone = torch.sin(2 * torch.pi * 220 * at)
    wave = speech_wave(sound(torch.stack([tone, 0.5 * tone]), 44_100), pad_seconds=0.5)
    expected = 0.75 * torch.sin(2 * torch.pi * 220 * torch.arange(RATE) / RATE)
    assert abs(len(wave) - 1.5 * RATE) < 20
    middle = slice(1000, 15_000)
    torch.testing.assert_close(wave[middle], expected[middle], atol=2e-3, rtol=0)
    assert not wave[RATE + 100 :].any()


@pytest.mark.parametrize("rate", [44_100, 192_000])
def test_a_long_sound_is_resampled_in_pieces_to_the_same_samples(monkeypatch, rate):
    """A frame of sound holds at most 2 GiB, as of 47 minutes at 192 kHz."""
    samples = noise(20.0)[None]
    whole = speech_wave(sound(samples, rate))
    pieces = []

    def counted(values, *about):
        pieces.append(values.shape[1])
        return audio_frame(values, *about)

    monkeypatch.setattr(sounds, "audio_frame", counted)
    monkeypatch.setattr(sounds, "PIECE", 10_000)
    torch.testing.assert_close(speech_wave(sound(samples, rate)), whole, atol=1e-6, rtol=0)
    assert pieces == [10_000] * 32


def test_sound_at_16_kHz_stays_as_it_is():
    samples = noise(0.7)
    assert torch.equal(speech_wave(sound(samples[None])), samples)


def test_later_sound_changes_only_features_and_names_of_its_own_stretch(encoder):
    before = noise(3.5)
    after = before.clone()
    after[round(2.2 * RATE) :] = noise(1.3, seed=1)
    frames = 57
    first = encode_speech(before, frames, encoder, stretch_seconds=1.0)
    second = encode_speech(after, frames, encoder, stretch_seconds=1.0)
    assert len(first) == frames
    assert torch.equal(first[:32], second[:32])
    assert not torch.equal(first[32:], second[32:])
    names = speech_keys(before, frames, encoder, stretch_seconds=1.0)
    changed = speech_keys(after, frames, encoder, stretch_seconds=1.0)
    assert names[:32] == changed[:32]
    assert not set(names[32:48]) & set(changed)
    assert len(set(names)) == frames


def test_at_once_later_sound_changes_everything(encoder):
    before = noise(3.5)
    after = before.clone()
    after[round(2.2 * RATE) :] = noise(1.3, seed=1)
    first = encode_speech(before, 57, encoder)
    second = encode_speech(after, 57, encoder)
    assert (first[:5] - second[:5]).abs().max() > 1e-4
    assert not set(speech_keys(before, 57, encoder)) & set(speech_keys(after, 57, encoder))


def test_a_stretch_is_encoded_as_a_video_of_its_own_that_ends_at_the_next_one(encoder):
    wave = noise(3.0)
    whole = encode_speech(wave, 45, encoder, stretch_seconds=1.5)
    alone = encode_speech(wave[: round(1.5 * RATE)], 25, encoder)
    torch.testing.assert_close(whole[:24], alone[:24], atol=1e-6, rtol=0)


def test_another_encoder_gives_other_names(encoder):
    wave = noise(1.0)
    other = TransformersEncoder(encoder.model, "other")
    assert not set(speech_keys(wave, 9, encoder)) & set(speech_keys(wave, 9, other))


def test_silence_gives_finite_features(encoder):
    features = encode_speech(torch.zeros(100), VIDEO_FRAMES, encoder)
    assert features.shape == (VIDEO_FRAMES, 14 * 8)
    assert torch.isfinite(features).all()


def test_a_published_folder_gives_the_same_features(encoder, tmp_path):
    encoder.model.save_pretrained(tmp_path)
    loaded = load_encoder(tmp_path)
    wave = noise(1.25)
    torch.testing.assert_close(
        encode_speech(wave, VIDEO_FRAMES, loaded),
        encode_speech(wave, VIDEO_FRAMES, encoder),
        atol=1e-6,
        rtol=0,
    )
    assert loaded.key == load_encoder(tmp_path).key != ""


def test_a_folder_of_another_encoder_is_refused(encoder, tmp_path):
    with pytest.raises(HeadForcingError, match="expected config.json and model.safetensors"):
        load_encoder(tmp_path)
    encoder.model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"do_stable_layer_norm": True}))
    with pytest.raises(HeadForcingError, match="expected wav2vec2-base-960h"):
        load_encoder(tmp_path)


CONFIGS = {  # of an encoder, and what is said of it
    "[" * 100_000: "cannot be read as an audio encoder",
    "": "cannot be read as an audio encoder",
    "[]": "holds no JSON object",
    "5": "holds no JSON object",
    "{}": "expected wav2vec2-base-960h",
    '{"model_type": []}': "expected wav2vec2-base-960h",
    '{"a": "' + "x" * 2_000_000 + '"}': "config.json is too large",
    '{"hidden_size": ' + "9" * 5000 + "}": "cannot be read as an audio encoder",
}
SIZES_STATED = {"hidden_size": 1_200_000, "num_hidden_layers": 10**9, "conv_dim": [10**5] * 7}


@pytest.mark.parametrize("text", CONFIGS, ids=lambda text: text[:12])
def test_a_configuration_of_an_encoder_that_is_none_is_one_sentence(encoder, tmp_path, text):
    encoder.model.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(text)
    assert CONFIGS[text] in refusal(lambda: load_encoder(tmp_path))


@pytest.mark.parametrize("field", SIZES_STATED)
def test_an_encoder_that_is_larger_than_its_weights_is_refused(encoder, tmp_path, field):
    encoder.model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {field: SIZES_STATED[field]}))
    assert "config.json states" in refusal(lambda: load_encoder(tmp_path))


def test_an_encoder_whose_weights_are_damaged_or_incomplete_is_refused(encoder, tmp_path):
    encoder.model.save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    tensors = load_file(weights)
    tensors.pop("encoder.layers.0.attention.k_proj.weight")
    save_file(tensors, weights, {"format": "pt"})
    assert "has no encoder.layers.0.attention.k_proj.weight" in refusal(
        lambda: load_encoder(tmp_path)
    )
    weights.write_bytes(weights.read_bytes()[:-100])
    assert "model.safetensors is damaged" in refusal(lambda: load_encoder(tmp_path))


def test_sound_that_is_no_number_or_too_long_is_refused(encoder, monkeypatch):
    samples = noise(0.5)
    samples[7] = torch.nan
    with pytest.raises(HeadForcingError, match="holds NaN or infinity"):
        speech_wave(sound(samples[None]))
    with pytest.raises(HeadForcingError, match="lasts 3602 s with its silence"):
        speech_wave(sound(noise(2.0)[None]), pad_seconds=3600)
    with pytest.raises(HeadForcingError, match="301 s of speech at once"):
        encode_speech(noise(1.0), 301 * 16, encoder)
    with pytest.raises(
        HeadForcingError, match="must be 0, for the whole speech at once, or at least 1"
    ):
        encode_speech(noise(1.0), VIDEO_FRAMES, encoder, stretch_seconds=0.5)
    monkeypatch.setattr(speech_features, "MAX_WHOLE_SECONDS", 2.0)
    assert len(encode_speech(noise(1.0), 57, encoder, stretch_seconds=1.0)) == 57
