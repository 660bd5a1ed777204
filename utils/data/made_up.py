"""Training texts of a real set's lengths, for benchmarks."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from utils.data.line_files import read_lines, writing_pairs
from utils.data.sample_corpus import write_sample_corpus


def write_made_up_articles(folder: Path, split: str, count: int, words: Mapping[str, tuple[float, float]]) -> None:
    """Write a split of `count` pairs, spans of the sample corpus in place of what a set says.

    Args:
        words: of "source" and "target", the mean number of words, and the spread of its logarithm, which is normal.
    """
    with TemporaryDirectory() as temporary:
        write_sample_corpus(temporary, n_train=20_000, n_val=1, n_test=1)
        told = " ".join(read_lines(Path(temporary) / "train.source")).split()
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
