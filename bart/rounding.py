"""Rounding of whole numbers."""

from __future__ import annotations


def round_up(number: int, multiple: int) -> int:
    """The least multiple of `multiple` that is not below the number."""
    return -(-number // multiple) * multiple
