"""Intervals of a test set's scores, and tests of the difference between two systems."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from math import sqrt
from typing import Any

import numpy as np

# Turns the sums (K,) over the examples of a test set into scores: means, BLEU, or F1.
ScoresOf = Callable[[np.ndarray], Mapping[str, float]]
_BLOCK = 1 << 22  # numbers that are drawn at once, to bound the memory


def _sums(counts: np.ndarray, draws: Iterator[np.ndarray]) -> np.ndarray:
    """T sums (T, K) of the counts (N, K) of examples; each of T draws tells how often each counts (N,)."""
    size = max(1, _BLOCK // len(counts))
    blocks = iter(lambda: [*islice(draws, size)], [])
    return np.concatenate([np.stack(block).astype(np.float64) @ counts for block in blocks])


def _resampled(counts: np.ndarray, resamples: int, seed: int) -> np.ndarray:
    """Sums (R, K) over as many examples as there are, drawn with replacement."""
    examples, random = len(counts), np.random.default_rng(seed)
    drawn = (random.integers(examples, size=examples, dtype=np.int32) for _ in range(resamples))
    return _sums(counts, (np.bincount(each, minlength=examples) for each in drawn))


def _swapped(differences: np.ndarray, shuffles: int, seed: int) -> np.ndarray:
    """Sums (S, K) over the examples whose two systems are swapped, which a coin decides for each."""
    examples, random = len(differences), np.random.default_rng(seed)
    size = -(-examples // 64)
    bits = (random.integers(2**64 - 1, endpoint=True, size=size, dtype=np.uint64) for _ in range(shuffles))
    return _sums(differences, (np.unpackbits(each.view(np.uint8), count=examples) for each in bits))


def _table(scores_of: ScoresOf, sums: np.ndarray) -> np.ndarray:
    """The scores (R, M) of rows of sums (R, K)."""
    return np.array([list(scores_of(row).values()) for row in sums])


def means_of(names: Iterable[str], examples: int) -> ScoresOf:
    """The means of columns of scores, from their sums."""
    names = list(names)
    return lambda sums: dict(zip(names, (sums / examples).tolist(), strict=True))


def pearson_of(sums: Sequence[float]) -> float:
    """Pearson's correlation in percent, of the sums (6,) of 1, x, y, x², y² and xy; 0 where all x or y are equal."""
    n, x, y, xx, yy, xy = sums
    spread = sqrt(max(0.0, n * xx - x * x) * max(0.0, n * yy - y * y))
    return 100 * float(n * xy - x * y) / spread if spread else 0.0


def scores_and_intervals(
    counts: np.ndarray, scores_of: ScoresOf, resamples: int = 1000, seed: int = 0
) -> dict[str, Any]:
    """The scores, and under `intervals` the 95 % percentile bootstrap interval [low, high] of each (Efron, 1979).

    ROUGE-1.5.5 takes as many resamples of the counts (N, K) of examples, whose sums `scores_of` turns into scores.
    """
    scores = dict(scores_of(counts.sum(axis=0)))
    ends = np.percentile(_table(scores_of, _resampled(counts, resamples, seed)), (2.5, 97.5), axis=0)
    return {**scores, "intervals": dict(zip(scores, ends.T.tolist(), strict=True))}


def means_and_intervals(scores: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The mean of each score, (N,) per name, and under `intervals` its 95 % bootstrap interval [low, high]."""
    columns = np.stack(list(scores.values()), axis=1)
    return scores_and_intervals(columns, means_of(scores, len(columns)))


def compare_scores(
    a: np.ndarray, b: np.ndarray, scores_of: ScoresOf, shuffles: int = 10_000, seed: int = 0
) -> dict[str, dict[str, Any]]:
    """The difference of two systems' scores (N, K) on the same examples, its bootstrap interval and its p value.

    The p value is two-sided, by approximate randomisation: each shuffle swaps the two systems on every example with
    probability 1/2 (Noreen, 1989; Riezler & Maxwell, 2005). p is (1 + L) / (1 + shuffles), where L counts the shuffles
    whose difference is at least as large as the observed one; so p is never 0 (Phipson & Smyth, 2010).
    """
    ours, theirs = scores_of(a.sum(axis=0)), scores_of(b.sum(axis=0))
    drawn_a, drawn_b = (_table(scores_of, _resampled(counts, 1000, seed)) for counts in (a, b))
    intervals = np.percentile(drawn_a - drawn_b, (2.5, 97.5), axis=0).T.tolist()
    moved = _swapped(a - b, shuffles, seed)
    shuffled = [_table(scores_of, a.sum(axis=0) - moved), _table(scores_of, b.sum(axis=0) + moved)]
    # Sums of the same numbers in another order differ by rounding; they count as equal.
    rounding = 1e-10 * np.abs(shuffled).max(axis=(0, 1))
    differences = {name: ours[name] - theirs[name] for name in ours}
    far = np.abs(shuffled[0] - shuffled[1]) >= np.abs(list(differences.values())) - rounding
    p_values = (1 + np.count_nonzero(far, axis=0)) / (1 + shuffles)
    return {
        name: {"other": theirs[name], "difference": difference, "interval": interval, "p_value": p_value}
        for (name, difference), interval, p_value in zip(differences.items(), intervals, p_values.tolist(), strict=True)
    }
