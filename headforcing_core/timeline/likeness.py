"""Words of prompts that differ between scenes, for `[recall]`, which brings the most alike earlier
scene back.

As in Echo-Forcing's code (arXiv 2605.16003): words that are common in the language or in the story
are left out before prompts are compared by their embeddings; or words are compared, the rare ones
most.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

COMMON_WORDS = frozenset(
    "a an and are as at back be been before by for from has have he her his in into is it its now "
    "of on or over same "
    "seen she shot static the their them this to under wearing while with young".split()
)
SHARE_OF_PROMPTS = 0.7  # a word in so many of the story's prompts is common, too


def telling_texts(prompts: Sequence[str]) -> list[str]:
    """Each prompt without common words and those of most prompts, in lower case; as it is if none
    are left.
    """
    found = [_words(prompt) for prompt in prompts]
    holding = Counter(word for words in found for word in set(words))
    common = max(2, math.ceil(SHARE_OF_PROMPTS * len(prompts)))
    telling = (" ".join(word for word in words if holding[word] < common) for words in found)
    return [text or prompt for text, prompt in zip(telling, prompts, strict=True)]


def word_features(prompts: Sequence[str]) -> list[Tensor]:
    """A normalised vector per prompt: how often it has each word, weighted by how rare the word is
    in the story.

    Common words do not count; the vectors of prompts without others are zero.
    """
    import torch

    words = [Counter(_words(prompt)) for prompt in prompts]
    holding = Counter(word for found in words for word in found)
    rarity = {
        word: math.log((1 + len(prompts)) / (1 + count)) + 1
        for word, count in sorted(holding.items())
    }
    features = []
    for found in words:
        weights = [
            (1 + math.log(found[word])) * rare if found[word] else 0.0
            for word, rare in rarity.items()
        ]
        feature = torch.tensor(weights)
        features.append(feature / feature.norm().clamp_min(1e-12))
    return features


def _words(text: str) -> list[str]:
    """The words of at least three letters that are not common in the language."""
    return [
        word
        for word in re.findall(r"[a-z']+", text.lower())
        if len(word) >= 3 and word not in COMMON_WORDS
    ]
