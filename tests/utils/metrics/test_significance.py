from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from utils.metrics.significance import bootstrap_interval, paired_test


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
    assert paired_test(a, b, shuffles=100_000) == pytest.approx(exact, abs=0.006)
    # All of one sign and size: only the two swaps of all or none are as large.
    assert paired_test(np.full(8, 0.3), np.zeros(8), shuffles=100_000) == pytest.approx(2 / 2**8, abs=0.001)


def test_equal_scores_differ_by_nothing() -> None:
    values = np.random.default_rng(6).random(1000)
    assert paired_test(values, values) == 1
    assert bootstrap_interval(np.full(30, 2.5)) == (2.5, 2.5)


def test_the_seed_alone_decides_what_is_drawn() -> None:
    a, b = np.random.default_rng(7).random((2, 1003))
    before = bootstrap_interval(a), paired_test(a, b)
    assert (bootstrap_interval(a), paired_test(a, b)) == before
    assert bootstrap_interval(a, seed=1) != before[0]
