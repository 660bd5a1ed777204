"""The splits, their names elsewhere, and the split of an example that comes without one.

A hash of (seed, source) decides that split. So it depends on neither the order of the input nor the rest of it, equal
sources come into one split, and examples that are added later move no old one. The sizes of the splits are near the
ratios, not exactly theirs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from bart.errors import InputError

# What files and the Hub call our splits. The first name that is there counts.
SPLIT_NAMES = {"train": ("train",), "val": ("val", "validation", "valid", "dev"), "test": ("test",)}
SPLITS = tuple(SPLIT_NAMES)
WHOLE = "whole"  # stands for all rows of one table, as they are predicted
DEFAULT_RATIO, DEFAULT_SEED = "0.9,0.05,0.05", 42


def ratios_of(text: str) -> list[float]:
    """Parse `--split_ratio`: the shares of train, val and test.

    Raises:
        InputError: they are not three numbers above 0 whose sum is 1.
    """
    try:
        shares = [float(part) for part in text.split(",")]
    except ValueError:
        shares = []
    if len(shares) != len(SPLITS) or not all(share > 0 for share in shares) or abs(sum(shares) - 1) > 1e-6:
        raise InputError(
            f"--split_ratio {text}: three numbers above 0 are expected, the shares of train, val and test, whose sum "
            f"is 1, such as {DEFAULT_RATIO}"
        )
    return shares


def split_of(source: str, shares: Sequence[float], seed: int) -> str:
    """Choose the split of an example by a hash of its source."""
    digest = hashlib.blake2b(f"{seed}\n{source}".encode("utf-8", "surrogatepass"), digest_size=16).digest()
    place = int.from_bytes(digest[:8], "big") / 2**64
    end = 0.0
    for split, share in zip(SPLITS, shares, strict=True):
        end += share
        if place < end:
            return split
    return SPLITS[-1]
