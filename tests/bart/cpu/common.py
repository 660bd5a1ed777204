"""The base of tests of the compiled kernels: bounds on rounding errors, and the kernels' formulas in torch and numpy.

Bounds are the sums of the rounding errors that the operations may make, in units of U for fp32 and H for bf16.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from bart.cpu.kernels import Draws, Kernels
from bart.rows import Rows

ROOT = Path(__file__).parents[3]
U, H = 2.0**-24, 2.0**-8
EXPONENTIAL = 2e-7 + 6 * U  # relative error of the kernels' exponential: the rest of its series, and its roundings


def rows_of(counts: Sequence[int]) -> Rows:
    """Those of texts of so many tokens."""
    ids = torch.zeros(len(counts), max(counts), dtype=torch.long)
    return Rows.of(ids, torch.arange(ids.shape[1]) < torch.tensor(counts)[:, None])


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def needs(compiled: Kernels, name: str) -> None:
    if not getattr(compiled, name):
        pytest.skip("torch computes this here")


def decoded(codes: Tensor) -> Tensor:
    """The numbers of codes with their scale behind them, in double precision."""
    scale = codes[..., -4:].flatten().clone().view(torch.float32).view(*codes.shape[:-1], 1)
    return codes[..., :-4].double() * scale.double()


def gelu_error(x: Tensor) -> Tensor:
    """Error of the kernels' GELU at x in double precision: of erfc's approximation, and of 16th powers in fp32."""
    return x.abs().clamp(max=6) / 2 * 3e-7 + 0.17 * 80 * U + 2 * U * x.abs()


def kept_of(draws: Draws, rows: int, width: int) -> Tensor:
    """The places that dropout keeps in rows of so many numbers, by the formulas of kernels.c in numpy."""
    with np.errstate(over="ignore"):
        x = np.arange(rows, dtype=np.uint64) + np.uint64(draws.seed) + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        row = (x ^ x >> np.uint64(31))[:, None]
        low, high = (row & np.uint64(2**32 - 1)).astype(np.uint32), (row >> np.uint64(32)).astype(np.uint32)
        y = (np.arange(width, dtype=np.uint32) ^ low) * np.uint32(0x9E3779B1)
        y = ((y ^ y >> np.uint32(15)) + high) * np.uint32(0x85EBCA77)
        y = (y ^ y >> np.uint32(13)) * np.uint32(0xC2B2AE3D)
        y ^= y >> np.uint32(16)
    return torch.from_numpy(y >= np.uint32(draws.dropped))
