"""How long the rows of a batch become. Without torch, so that options can be checked at once."""

from __future__ import annotations

from typing import TypeVar

import numpy as np

# Tensor cores want sizes in multiples of 8, and fewer distinct shapes mean fewer memory layouts and compilations.
PAD_TO_MULTIPLE_OF = 8

Lengths = TypeVar("Lengths", int, np.ndarray)


def padded_length(longest: Lengths) -> Lengths:
    """The length that rows are padded to where the longest has so many tokens."""
    return -(-longest // PAD_TO_MULTIPLE_OF) * PAD_TO_MULTIPLE_OF
