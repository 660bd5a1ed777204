"""A small vocabulary, and texts of any length whose sentences are known."""

from __future__ import annotations

import random
from functools import cache

from bart.tokenization.tokenization_bart import BartTokenizer

WORDS = "the a dog cat bird sat ran flew on over mat hill tree and then it was seen by old young men".split()


@cache
def tokenizer() -> BartTokenizer:
    return BartTokenizer.train([f" {word}." for word in WORDS] + WORDS, vocab_size=400)


def sentences(count: int, seed: int) -> list[str]:
    """Sentences of 2 to 10 words; none ends in what could be an abbreviation, as in "he sat."."""
    rng = random.Random(seed)
    return [" ".join(rng.choices(WORDS, k=rng.randint(1, 9))).capitalize() + " hill." for _ in range(count)]


def tokens(text: str) -> int:
    return len(tokenizer()(text)["input_ids"])


def texts_of(windows: list[list[int]], vocabulary: BartTokenizer | None = None) -> list[str]:
    return [(vocabulary or tokenizer()).decode(ids[1:-1]) for ids in windows]
