"""Text embeddings of the toy model: a fixed random vector for every word, so that it needs no text
encoder.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from .assets import DEMO_STORY
from .words import CHOICES, TEMPLATE, Look

TEXT_LEN = 12
TEXT_DIM = 64
MOST_NAMED = 6  # unknown words in a sentence
FIRST_PROMPT = 60_000  # number of the first prompt that a head profile is measured on

_KNOWN_WORDS = frozenset(word for word in TEMPLATE.split() if word.isalpha()).union(
    *(phrase.split() for words in CHOICES.values() for phrase in words)
)


def split_words(prompt: str) -> list[str]:
    """The lower-case words of `prompt`, letters and digits only."""
    return ["".join(filter(str.isalnum, word)) for word in prompt.lower().split()]


def nearest(prompt: str) -> str:
    """The prompt of the toy world that has most of a text's words; what the text does not say is as
    in the demo.
    """
    words = " ".join(["", *split_words(prompt), ""])
    chosen = asdict(Look.parse(DEMO_STORY.splitlines()[0].split(maxsplit=1)[1]))
    for kind, choices in CHOICES.items():
        named = (choice for choice in choices if choice and f" {choice} " in words)
        chosen[kind] = next(named, chosen[kind])
    return Look(**chosen).prompt


def advice(prompt: str) -> str | None:
    """One sentence for a prompt unlike those that the toy model was trained on; None for one that
    is like them.
    """
    known = nearest(prompt)
    if split_words(prompt) == split_words(known):
        return None
    # in order and once each; they act as noise
    unknown = [
        word for word in dict.fromkeys(split_words(prompt)) if word and word not in _KNOWN_WORDS
    ]
    why = f"was not trained on prompts in the form of '{prompt}'"
    if unknown:
        why = f"does not know {', '.join(unknown[:MOST_NAMED])}"
        if len(unknown) > MOST_NAMED:
            why += " ..."
    return (
        f"the toy world {why}, so what it shows is left to chance: try '{known}'; --help lists all "
        "its words"
    )


def encode(prompt: str) -> Tensor:
    """Text embedding of `prompt`: float32 `[TEXT_LEN, TEXT_DIM]`, one row per word, zero rows after
    the last.

    Half of each neighbour's vector is added to that of a word, so that a row encodes the word order
    ("red" before "ball"). Words beyond `TEXT_LEN` are ignored. The model was trained with these
    vectors, so they must never change.
    """
    words = split_words(prompt)[:TEXT_LEN]
    rows = np.zeros((TEXT_LEN, TEXT_DIM), np.float32)
    for i, word in enumerate(words):
        rows[i] = _gaussian("w" + word)
        if i + 1 < len(words):
            rows[i] += 0.5 * _gaussian("n" + words[i + 1])
        if i > 0:
            rows[i] += 0.5 * _gaussian("p" + words[i - 1])
    return torch.from_numpy(rows)


@lru_cache(maxsize=1024)
def _gaussian(salted_word: str) -> np.ndarray:
    digest = hashlib.sha256(salted_word.encode()).digest()
    seed = int.from_bytes(digest[:8], "little")
    generator = np.random.Generator(np.random.PCG64(seed))
    return generator.standard_normal(TEXT_DIM).astype(np.float32)


def sample_prompts(count: int) -> tuple[str, ...]:
    """Random prompts for profiling the toy model, which no table uses; prompt i is the same in
    every call.
    """
    return tuple(Look.draw(np.random.default_rng(FIRST_PROMPT + i)).prompt for i in range(count))
