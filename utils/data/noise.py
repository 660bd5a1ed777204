"""The base of `Corruption` and `Masking`, which make examples of the rows of shards, and its random numbers.

A number is a hash of a seed, an epoch, an example and a place in it, so it does not depend on the batch.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, ClassVar

import numpy as np

from bart.tokenization.tokenizer import PretrainedTokenizer
from utils.data.batches import Pair
from utils.data.shard_format import ShardRow

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


class Noise(ABC):
    """Makes sources and targets of rows of shards; special tokens are neither taken nor drawn."""

    writes: ClassVar[bool]  # true if targets are texts, which a decoder reads as well

    def __init__(self, options: Any, tokenizer: PretrainedTokenizer, seed: int) -> None:
        """Keep the options, a dataclass, and the seed: that of the run, or a fixed one to validate all runs alike."""
        self.options, self.seed, self.mask = options, seed, tokenizer.mask_token_id
        self._stored = json.loads(tokenizer.to_json())
        self.special = np.zeros(len(tokenizer), bool)
        self.special[[token["id"] for token in self._stored["added_tokens"] if token["special"]]] = True
        self.ordinary = np.flatnonzero(~self.special).astype(np.int32)

    @property
    def identity(self) -> dict[str, Any]:
        """Plain values that are equal only for equal noise."""
        return {**asdict(self.options), "seed": self.seed}

    @abstractmethod
    def pairs(self, rows: Sequence[ShardRow], epoch: int) -> list[Pair]:
        """Make a source and a target of each row."""

    def begin_with(self, mark: str) -> np.ndarray:
        """(V,) true for tokens that begin with a mark."""
        begins = np.zeros(len(self.special), bool)
        begins[[i for token, i in self._stored["model"]["vocab"].items() if token.startswith(mark)]] = True
        return begins

    def draw(self, keys: np.ndarray, purpose: int, rows: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Draw an ordinary token for each of some places in examples."""
        drawn = uniform(random_bits(keys, purpose, rows, places)) * len(self.ordinary)
        return self.ordinary[drawn.astype(np.int64)]
