from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike

from utils.metrics.significance import compare_scores, means_of, scores_and_intervals


def bootstrap_interval(values: ArrayLike, **options: int) -> tuple[float, float]:
    """The interval of the mean of values (N,)."""
    column = np.asarray(values, dtype=np.float64)[:, None]
    low, high = scores_and_intervals(column, means_of(["mean"], len(column)), **options)["intervals"]["mean"]
    return low, high


def compare(a: ArrayLike, b: ArrayLike, shuffles: int = 10_000) -> dict[str, Any]:
    """The comparison of the means of values (N,)."""
    columns = [np.asarray(values, dtype=np.float64)[:, None] for values in (a, b)]
    return compare_scores(*columns, means_of(["mean"], len(columns[0])), shuffles)["mean"]


def test_interval_of_zeros_and_ones_is_the_binomials() -> None:
    """The mean of a resample of k ones among N is binomial(N, k/N) / N: its quantiles are exact."""
    n, ones = 20, 5
    probability = ones / n
    pmf = [1.0 * (1 - probability) ** n]
    for k in range(n):
        pmf.append(pmf[-1] * (n - k) / (k + 1) * probability / (1 - probability))
    cumulated = np.cumsum(pmf)
    expected = tuple(int(np.searchsorted(cumulated, tail)) / n for tail in (0.025, 0.975))
    assert bootstrap_interval([1.0] * ones + [0.0] * (n - ones), resamples=50_000) == pytest.approx(expected)


def test_p_value_is_that_of_all_swaps() -> None:
    """Of few articles all 2^N swaps can be counted."""
    random = np.random.default_rng(3)
    a, b = random.normal(0.5, 1, size=10), random.normal(size=10)
    differences = a - b
    sums = [abs(np.dot(signs, differences)) for signs in product((1, -1), repeat=10)]
    exact = np.mean([value >= abs(differences.sum()) - 1e-12 for value in sums])
    assert 0.01 < exact < 0.9
    assert compare(a, b, shuffles=20_000)["p_value"] == pytest.approx(exact, abs=0.012)
    # All of one sign and size: only the two swaps of all or none are as large.
    assert compare(np.full(8, 0.3), np.zeros(8), shuffles=20_000)["p_value"] == pytest.approx(2 / 2**8, abs=0.002)


def test_the_seed_alone_decides_what_is_drawn() -> None:
    a, b = np.random.default_rng(7).random((2, 1003))
    assert compare(a, a)["p_value"] == 1
    before = bootstrap_interval(a), compare(a, b)["p_value"]
    assert (bootstrap_interval(a), compare(a, b)["p_value"]) == before
    assert bootstrap_interval(a, seed=1) != before[0]


def test_scores_that_are_no_means() -> None:
    """F1 of drawn examples, and of all swaps of two systems on few examples; each by its definition."""

    def f1_score(right: np.ndarray, predicted: np.ndarray) -> float:
        return 2 * np.sum(right & predicted) / max(np.sum(right) + np.sum(predicted), 1)

    random = np.random.default_rng(5)
    right, ours, theirs = random.random((3, 9)) < [[0.6], [0.5], [0.7]]

    def counts_of(predicted: np.ndarray) -> np.ndarray:
        return np.stack([predicted & right, predicted, right], axis=1).astype(float)

    def scores_of(sums: np.ndarray) -> dict[str, float]:
        return {"f1": 2 * sums[0] / max(sums[1] + sums[2], 1)}

    report = scores_and_intervals(counts_of(ours), scores_of, resamples=4000)
    drawn = random.integers(9, size=(4000, 9))
    f1 = [f1_score(right[rows], ours[rows]) for rows in drawn]
    assert report["f1"] == pytest.approx(f1_score(right, ours))
    assert report["intervals"]["f1"] == pytest.approx(np.percentile(f1, (2.5, 97.5)), abs=0.06)
    observed = f1_score(right, ours) - f1_score(right, theirs)
    swaps = [np.array(bits, bool) for bits in product((0, 1), repeat=9)]
    apart = [f1_score(right, np.where(s, theirs, ours)) - f1_score(right, np.where(s, ours, theirs)) for s in swaps]
    result = compare_scores(counts_of(ours), counts_of(theirs), scores_of)["f1"]
    assert (result["difference"], result["other"]) == pytest.approx((observed, f1_score(right, theirs)))
    assert result["p_value"] == pytest.approx(np.mean(np.abs(apart) >= abs(observed) - 1e-12), abs=0.02)
