"""The real tokenizer of umT5 in the form of the files that are published with the models."""

import json
from pathlib import Path

import pytest


def sentencepiece_model(file: Path) -> bytes:
    """A sentencepiece model with the pieces and scores of `umt5_tokenizer.json`."""
    formats = pytest.importorskip("sentencepiece.sentencepiece_model_pb2")
    stored = json.loads(file.read_text(encoding="utf-8"))
    kinds = formats.ModelProto.SentencePiece
    model = formats.ModelProto()
    model.trainer_spec.model_type = model.trainer_spec.UNIGRAM
    model.trainer_spec.pad_id = 0
    model.trainer_spec.eos_id = 1
    model.trainer_spec.bos_id = 2
    model.trainer_spec.unk_id = stored["model"]["unk_id"]
    model.normalizer_spec.name = "identity"
    special = {piece["id"] for piece in stored["added_tokens"]}
    for number, (piece, score) in enumerate(stored["model"]["vocab"]):
        kind = kinds.CONTROL if number in special else kinds.NORMAL
        if number == model.trainer_spec.unk_id:
            kind = kinds.UNKNOWN
        if not piece:  # which sentencepiece refuses, and no text has
            piece = f"<empty {number}>"
            kind = kinds.UNUSED
        model.pieces.add(piece=piece, score=score, type=kind)
    return model.SerializeToString()
