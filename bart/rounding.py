"""Rounding of whole numbers."""

from __future__ import annotations

import torch
from torch import Tensor

SIDE = 64  # a multiple that is fast for all products
ROWS = 32  # recurring numbers of rows are multiples of this, or of less


def round_up(number: int, multiple: int) -> int:
    """The least multiple of `multiple` that is not below the number."""
    return -(-number // multiple) * multiple


def fast_side(rows: int) -> int:
    """At least so many rows of a matrix, a number with which GPUs multiply it fast in half precision."""
    return round_up(rows, SIDE) if rows % 8 else rows


def round_to_few(count: int, multiple: int) -> int:
    """At least the count, a multiple of `multiple`, or of less where that would add more than a sixteenth."""
    return round_up(count, min(multiple, 1 << max(0, count.bit_length() - 5)))


def recurring(count: int, states: Tensor) -> int:
    """At least so many rows of states; where a CPU multiplies half precision, a number that is one of few.

    For each size of a half-precision product that it has not seen, oneDNN makes code and keeps it, which takes longer
    than a small product itself. fp32 has no code of a size.
    """
    is_half = states.dtype in (torch.bfloat16, torch.float16) or torch.is_autocast_enabled("cpu")
    return round_to_few(count, ROWS) if is_half else count
