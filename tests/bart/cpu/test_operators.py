"""Dropout and attention on CPUs, against torch's and against the kernels they call."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bart.cpu import operators
from bart.cpu.backend import CpuBackend

LIMITS = [1, 4 * 40, 2**40]  # bytes of scores: one head at once, two, and all


def states(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Queries (2, 4, 5, 8), keys and values (2, 4, 7, 8), in the memory layout of projections."""
    generator = torch.Generator().manual_seed(5)
    shapes = [(2, length, 4, 8) for length in (5, 7, 7)]
    return tuple(torch.randn(shape, generator=generator, dtype=dtype).transpose(1, 2) for shape in shapes)


def masks(kind: str) -> Tensor | None:
    """A mask per article or per query, or none."""
    if kind == "none":
        return None
    generator = torch.Generator().manual_seed(6)
    mask = torch.rand(2, 1, 1 if kind == "of articles" else 5, 7, generator=generator) < 0.6
    mask[..., 0] = True
    return torch.zeros(mask.shape).double().masked_fill(~mask, -torch.inf) if kind == "additive" else mask


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("kind", ["none", "of articles", "of queries", "additive"])
def test_attention_in_parts(limit: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operators, "SCORES_AT_ONCE", limit)
    expected = F.scaled_dot_product_attention(*states(), attn_mask=masks(kind))
    torch.testing.assert_close(operators.attend_in_parts(*states(), masks(kind)), expected, rtol=0, atol=1e-12)


def test_attention_drops_weights_where_no_kernel_serves_and_no_gradient_is_wanted() -> None:
    width = 7  # which the compiled attention does not take in bf16
    query, keys, values = (state[..., :width].bfloat16() for state in states())
    with torch.no_grad():
        dropped = CpuBackend().attend(query, keys, torch.ones_like(values), None, dropout=0.5)
    assert dropped.unique().numel() > 1  # all ones if no weight is dropped


def test_a_query_that_may_read_nothing_gives_numbers() -> None:
    mask = torch.zeros(2, 1, 1, 7, dtype=torch.bool)
    assert operators.attend_in_parts(*states(), mask).isfinite().all()
