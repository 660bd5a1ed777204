"""The base of `Corruption` and `Masking`, which make examples of the rows of shards."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, ClassVar

import numpy as np

from bart.tokenization.tokenizer import PretrainedTokenizer
from utils.data.draws import random_bits, uniform
from utils.data.pairs import Pair
from utils.data.shard_format import ShardRow


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
