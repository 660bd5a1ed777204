"""Rounding of whole numbers."""

from __future__ import annotations

SIDE = 64  # a multiple that is fast for all products


def round_up(number: int, multiple: int) -> int:
    """The least multiple of `multiple` that is not below the number."""
    return -(-number // multiple) * multiple


def fast_side(rows: int) -> int:
    """At least so many rows of a matrix, a number with which GPUs multiply it fast in half precision."""
    return round_up(rows, SIDE) if rows % 8 else rows


def round_to_few(count: int, multiple: int, beside: int = 0) -> int:
    """At least the count, a multiple of `multiple`, or of less: no more than a sixteenth is added to the count, or to
    the rows beside it.
    """
    return round_up(count, min(multiple, 1 << max(0, max(count, beside).bit_length() - 5)))


def multiple_of_rows(device: str, is_half: bool) -> int:
    """Numbers of rows of a training batch are multiples of this, or of less, on a device of this type.

    For each size of a half-precision product that a CPU has not seen, oneDNN makes code and keeps it, which takes
    longer than a small product itself. On a GPU, the memory of one batch can then be that of the next,
    and few sizes are recorded.
    """
    return 4096 if device == "cuda" else 32 if is_half else 1
