"""Texts with the lengths of a real set, for benchmarks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from utils.corpora.sample_corpus import sample_stories
from utils.data.line_files import writing_pairs


def write_made_up_articles(folder: Path, split: str, count: int, words: Mapping[str, tuple[float, float]]) -> None:
    """Write a split of `count` pairs. Their texts are spans of the sample corpus.

    Args:
        words: of "source" and "target", the mean number of words, and the standard deviation of its logarithm, which is
            drawn from a normal distribution.
    """
    told = " ".join(article for article, _ in sample_stories("train", 20_000)).split()
    rng = np.random.default_rng(0)
    sides = []
    for mean, spread in (words["source"], words["target"]):
        lengths = rng.lognormal(np.log(mean) - spread**2 / 2, spread, count).astype(int) + 1
        starts = rng.integers(0, len(told) - lengths.max(), count)
        sides.append(zip(starts.tolist(), (starts + lengths).tolist(), strict=True))
    with writing_pairs(folder, split) as writer:
        for number, spans in enumerate(zip(*sides, strict=True)):
            source, target = (" ".join(told[start:end]) for start, end in spans)
            writer.add(source, target, str(number))
