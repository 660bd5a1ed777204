"""Texts with the lengths of a real set, for benchmarks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from utils.corpora.sample_corpus import sample_stories


def write_made_up_articles(folder: Path, split: str, count: int, words: Mapping[str, tuple[float, float]]) -> None:
    """Write a split of `count` pairs into a folder. Their texts are spans of the sample corpus.

    Args:
        words: of "source" and "target", the mean number of words, and the standard deviation of its logarithm, which is
            drawn from a normal distribution.
    """
    told = " ".join(article for article, _ in sample_stories("train", 20_000)).split()
    rng = np.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    for side, (mean, spread) in words.items():
        lengths = rng.lognormal(np.log(mean) - spread**2 / 2, spread, count).astype(int) + 1
        starts = rng.integers(0, len(told) - lengths.max(), count)
        texts = (" ".join(told[start : start + length]) for start, length in zip(starts, lengths, strict=True))
        (folder / f"{split}.{side}").write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
