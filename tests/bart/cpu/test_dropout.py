"""Dropout: which numbers are drawn, and what becomes of them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from bart.cpu.kernels import Draws, Kernels
from tests.bart.cpu.common import H, U, kept_of


def test_draws_are_independent() -> None:
    """This goes for neighbours in a row and in the rows below, and for the same place under another seed."""
    rows, width, share = 4096, 256, 0.1
    draws = Draws.with_probability(share)
    kept = kept_of(draws, rows, width).double()
    later = kept_of(replace(draws, seed=draws.seed + rows), rows, width).double()
    assert abs(kept.mean() - (1 - share)) < 5 * math.sqrt(share * (1 - share) / kept.numel())
    assert (kept.mean(dim=0) - (1 - share)).abs().max() < 6 * math.sqrt(share * (1 - share) / rows)
    assert (kept.mean(dim=1) - (1 - share)).abs().max() < 6 * math.sqrt(share * (1 - share) / width)
    centred, next_one = kept - (1 - share), later - (1 - share)
    pairs = [(centred[:, :-n], centred[:, n:]) for n in (1, 2, 3, 4, 8, 16, 32, 64)]
    pairs += [(centred[:-n], centred[n:]) for n in (1, 2, 3, 12)] + [(centred[:-1, 1:], centred[1:, :-1])]
    for one, other in [*pairs, (centred, next_one)]:
        assert abs((one * other).mean()) < 5 * share * (1 - share) / math.sqrt(one.numel())


@pytest.mark.parametrize("count", [0, 1, 255, 1000, 40_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout(compiled: Kernels, count: int, dtype: torch.dtype) -> None:
    states, added = torch.randn(count).to(dtype), torch.randn(count)
    draws = Draws.with_probability(0.3)
    kept = kept_of(draws, -(-count // 256), 256).flatten()[:count]
    exact = torch.where(kept, states.double() * np.float32(draws.scale).item(), 0)
    dropped, total = compiled.drop(states, draws), compiled.drop(states, draws, added)
    assert (dropped.dtype, total.dtype) == (dtype, torch.float32)
    rounding = H if dtype is torch.bfloat16 else U
    assert ((dropped.double() - exact).abs() <= 1.01 * rounding * exact.abs()).all()
    assert ((total.double() - exact - added.double()).abs() <= 2 * U * (exact.abs() + added.abs())).all()
