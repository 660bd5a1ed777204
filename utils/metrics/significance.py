"""Intervals of the mean of a test set's scores, and tests of the difference between two systems."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike


def bootstrap_interval(values: ArrayLike, resamples: int = 1000, seed: int = 0) -> tuple[float, float]:
    """The 95 % percentile bootstrap interval of the mean (Efron, 1979); ROUGE-1.5.5 takes as many resamples.

    Args:
        values: (N,), one per article.
        seed: the same seed gives the same interval.
    """
    values = np.asarray(values, dtype=np.float64)
    random = np.random.default_rng(seed)

    # Drawn one by one, to bound the memory.
    means = [values[random.integers(values.size, size=values.size, dtype=np.int32)].mean() for _ in range(resamples)]
    low, high = np.percentile(means, (2.5, 97.5))
    return float(low), float(high)


def means_and_intervals(scores: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The mean of each score, (N,) per name, and under `intervals` its 95 % bootstrap interval [low, high]."""
    means = {name: float(values.mean()) for name, values in scores.items()}
    return {**means, "intervals": {name: list(bootstrap_interval(values)) for name, values in scores.items()}}


def paired_test(a: ArrayLike, b: ArrayLike, shuffles: int = 10_000, seed: int = 0) -> float:
    """Two-sided p value of the hypothesis that both systems have the same mean, by approximate randomisation.

    Each shuffle swaps the two systems' scores on every article with probability 1/2 (Noreen, 1989; for summaries and
    translations: Riezler & Maxwell, 2005). p is (1 + L) / (1 + shuffles), where L counts the shuffles whose difference
    of means is at least as large as the observed one; so p is never 0 (Phipson & Smyth, 2010).

    Args:
        a, b: (N,), the two systems' scores of the same articles.
        seed: the same seed gives the same p.
    """
    differences = np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64)
    random = np.random.default_rng(seed)

    total, sums = differences.sum(), np.empty(shuffles)
    for shuffle in range(shuffles):
        bits = random.integers(2**64 - 1, endpoint=True, size=-(-differences.size // 64), dtype=np.uint64)
        is_swapped = np.unpackbits(bits.view(np.uint8), count=differences.size)
        sums[shuffle] = abs(total - 2 * (is_swapped @ differences))
    # Sums of the same numbers in another order differ by rounding; they count as equal.
    rounding = 1e-10 * np.abs(differences).sum()
    as_large = int(np.count_nonzero(sums >= abs(total) - rounding))
    return (1 + as_large) / (1 + shuffles)


def p_shown(p_value: float) -> str:
    """A p value as people read it."""
    return "< 0.001" if p_value < 0.001 else f"{p_value:.3f}"


def compare(a: ArrayLike, b: ArrayLike) -> dict[str, Any]:
    """Compare the means of two systems' scores `a` and `b` of the same articles, (N,) each.

    Returns:
        `difference` of the means, a less b, its 95 % bootstrap `interval` [low, high], and `p_value` by `paired_test`.
    """
    differences = np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64)
    interval = list(bootstrap_interval(differences))
    return {"difference": float(differences.mean()), "interval": interval, "p_value": paired_test(a, b)}
