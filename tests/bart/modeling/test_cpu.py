"""Dropout and attention on CPUs: against torch's formulas, with the same draws, in double precision; and the draws."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bart.modeling import cpu

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
    monkeypatch.setattr(cpu, "SCORES_AT_ONCE", limit)
    expected = F.scaled_dot_product_attention(*states(), attn_mask=masks(kind))
    torch.testing.assert_close(cpu.attend(*states(), masks(kind)), expected, rtol=0, atol=1e-12)


def test_a_query_that_may_read_nothing_gives_numbers() -> None:
    mask = torch.zeros(2, 1, 1, 7, dtype=torch.bool)
    assert cpu.attend(*states(), mask).isfinite().all()


def test_dropout_scales_what_it_keeps_and_passes_its_gradient() -> None:
    hidden = torch.randn(64, 33, requires_grad=True)
    dropped = cpu.dropout(hidden, 0.25)
    kept = dropped != 0
    rounding = {"rtol": 2**-22, "atol": 0}  # of two products in fp32
    torch.testing.assert_close(dropped, hidden * kept / 0.75, **rounding)
    gradient = torch.randn(hidden.shape)
    torch.testing.assert_close(torch.autograd.grad(dropped, hidden, gradient)[0], gradient * kept / 0.75, **rounding)
