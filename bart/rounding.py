"""Rounding of whole numbers."""

from __future__ import annotations

import torch
from torch import Tensor

SIDE = 64
ROWS = 32  # recurring numbers of rows are multiples of this, or of less where that would be more than a sixteenth


def round_up(number: int, multiple: int) -> int:
    """The least multiple of `multiple` that is not below the number."""
    return -(-number // multiple) * multiple


def fast_side(rows: int) -> int:
    """At least so many rows of a matrix, a number with which GPUs multiply it fast in half precision."""
    return round_up(rows, SIDE) if rows % 8 else rows


def recurring(count: int, states: Tensor) -> int:
    """At least so many rows of states; where a CPU multiplies half precision, a number that is one of few.

    For each size of a half-precision product that it has not seen, oneDNN makes code and keeps it, which takes longer
    than a small product itself. fp32 has no code of a size.
    """
    is_half = states.dtype in (torch.bfloat16, torch.float16) or torch.is_autocast_enabled("cpu")
    return round_up(count, min(ROWS, 1 << max(0, count.bit_length() - 5))) if is_half else count
