"""The splits, their names elsewhere, and the choice of examples by hashes of their texts.

So equal texts come into one split, examples that are added later move no old one, and a sorted file gives a fair
sample. Sizes of splits are near the ratios, not exactly theirs.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from itertools import accumulate
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

from bart.errors import InputError
from utils.data.columns import BY_ENDING, InputOptions

# What files and the Hub call our splits. The first name that is there counts.
SPLIT_NAMES = {"train": ("train",), "val": ("val", "validation", "valid", "dev"), "test": ("test",)}
SPLITS = tuple(SPLIT_NAMES)
WHOLE = "whole"  # stands for all rows of one table, as they are predicted
DEFAULT_RATIO, DEFAULT_SEED = "0.9,0.05,0.05", 42
Item = TypeVar("Item")


class MissingSplit(InputError):
    """The data have no such split."""


def ratios_of(text: str) -> list[float]:
    """Parse `--split_ratio`: the shares of train, val and test."""
    try:
        shares = [float(part) for part in text.split(",")]
    except ValueError:
        shares = []
    is_valid = len(shares) == len(SPLITS) and shares[0] > 0 and all(share >= 0 for share in shares)
    if not is_valid or abs(sum(shares) - 1) > 1e-6:
        raise InputError(f"--split_ratio is {text}; allowed: shares whose sum is 1, such as {DEFAULT_RATIO}")
    return shares


def split_of(source: str, shares: Sequence[float], seed: int) -> str:
    """Choose the split of an example by a hash of its source."""
    number = bisect_right([*accumulate(shares)], _fraction(source, seed))
    last = max(number for number, share in enumerate(shares) if share)
    return SPLITS[min(number, last)]  # since the sum of the shares may be just below 1


def of_split(split: str, rows: Iterable[Item], text_of: Callable[[Item], str]) -> Iterator[Item]:
    """The rows of one split of a table that has yet to be split; equal texts come into one, whatever their labels."""
    shares = ratios_of(DEFAULT_RATIO)
    return (row for row in rows if split == WHOLE or split_of(text_of(row), shares, DEFAULT_SEED) == split)


@dataclass(frozen=True)
class Choice:
    """The examples of a split that a run uses: those whose hashes lie in [begin, end), of these the `limit` least."""

    begin: float = 0.0
    end: float = 1.0
    limit: int = -1
    tables: InputOptions = BY_ENDING

    def of(self, rows: Iterable[Item], text_of: Callable[[Item], str]) -> list[Item]:
        """Choose rows by their texts; they stay in their order, and only the chosen ones are held in memory."""
        is_part = (self.begin, self.end) != (0, 1)
        if is_part:
            rows = (row for row in rows if self.begin <= _fraction(text_of(row), "held out") < self.end)
        if self.limit >= 0:
            hashed = ((_fraction(text_of(row), "drawn"), number, row) for number, row in enumerate(rows))
            least = nsmallest(self.limit, hashed, key=itemgetter(0, 1))
            rows = (row for *_, row in sorted(least, key=itemgetter(1)))
        chosen = list(rows)
        if is_part and not chosen:
            ratio, split, share = (self.begin, "train", "less") if self.begin else (self.end, "val", "more")
            raise InputError(f"--val_ratio is {ratio:g}, which leaves nothing for the {split} split; allowed: {share}")
        return chosen


EVERY = Choice()


def check_split(examples: Sequence[Any], data_dir: str, split: str, kind: str) -> None:
    """Raise InputError where a split of a data directory, or of one file, has no examples, which are of this kind."""
    if examples:
        return
    if split == WHOLE:
        raise InputError(f"{data_dir}: has no {kind}")
    is_file = Path(data_dir).expanduser().is_file()
    hint = ", which a hash of the texts chooses; allowed: a file of each split, or more texts" * is_file
    raise InputError(f"{data_dir}: the {split} split has no {kind}{hint}")


def _fraction(text: str, seed: int | str) -> float:
    """A number in [0, 1) by a hash of a text."""
    digest = hashlib.blake2b(f"{seed}\n{text}".encode("utf-8", "surrogatepass"), digest_size=16).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
