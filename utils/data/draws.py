"""Random numbers that are hashes of a seed, an epoch, an example and a place in it, for many examples at once.

The numbers of an example do not depend on its batch, and there is no generator that must be drawn from in turn.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_GOLDEN, _64_BITS = 0x9E3779B97F4A7C15, 0xFFFFFFFFFFFFFFFF


def keys_of(seed: int, epoch: int, numbers: Sequence[int]) -> np.ndarray:
    """Hash the seed, the epoch and the numbers of B examples in their split to (B,) uint64, a key of each example."""
    keys = np.full(len(numbers), seed & _64_BITS, np.uint64)
    for part in (np.full(len(numbers), epoch, np.uint64), np.asarray(numbers, np.uint64)):
        keys = mixed(keys + mixed(part + _GOLDEN))
    return keys


def random_bits(keys: np.ndarray, purpose: int, rows: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Draw 64 random bits for each of some places in examples, which rows number."""
    streams = mixed(keys + ((purpose + 1) * _GOLDEN & _64_BITS))
    return mixed(streams[rows] + (places.astype(np.uint64) + 1) * _GOLDEN)


def mixed(values: np.ndarray) -> np.ndarray:
    """SplitMix64's mixing function (Steele, Lea and Flood, 2014), with the constants of Stafford's variant 13."""
    values = (values ^ (values >> 30)) * 0xBF58476D1CE4E5B9
    values = (values ^ (values >> 27)) * 0x94D049BB133111EB
    return values ^ (values >> 31)


def uniform(random: np.ndarray) -> np.ndarray:
    """Turn random bits into numbers from 0 to below 1."""
    return (random >> 11) * 2.0**-53


def part_of(share: float, counts: np.ndarray) -> np.ndarray:
    """Take a share of whole numbers, rounded to the nearest, halves up."""
    # A float that comes out just below a half, such as 0.29 * 50 = 14.499999999999998, is a half.
    return np.floor(np.round(share * counts, 9) + 0.5).astype(np.int64)


def rows_of(counts: np.ndarray) -> np.ndarray:
    """The row of each item, where rows have so many items."""
    return np.repeat(np.arange(len(counts)), counts)


def before_each(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """The sum of the values that come before each in its row."""
    sums = np.concatenate([[0], np.cumsum(values)])
    return sums[:-1] - np.repeat(sums[np.cumsum(counts) - counts], counts)


def places_of(counts: np.ndarray) -> np.ndarray:
    """The place of each item in its row."""
    return np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)


def shuffle_of(rows: np.ndarray, random: np.ndarray) -> np.ndarray:
    """Sort items by rows and, in each row, in a random order; for at most 2**24 rows."""
    return np.argsort((rows.astype(np.uint64) << 40) | (random >> 24), kind="stable")
