"""Dropout and attention on CPUs, against torch's and against the kernels they call."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bart.cpu import operators
from bart.cpu.backend import CpuBackend
from bart.cpu.kernels import Draws, load

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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", ["none", "of articles", "of queries", "additive", "causal"])
def test_attention_with_dropout_is_the_kernels(kind: str, dtype: torch.dtype) -> None:
    """To the bit; the kernels' own tests compare them with autograd."""
    if (kernels := load()) is None:
        pytest.skip("there is no compiler")
    inputs = states(dtype)
    is_causal, mask = kind == "causal", None if kind == "causal" else masks(kind)
    gradient = torch.randn(2, 5, 4, 8).to(dtype).transpose(1, 2)
    leaves = [state.clone().requires_grad_() for state in inputs]
    torch.manual_seed(7)
    context = CpuBackend().attend(*leaves, mask, is_causal, 0.3)
    actual = [context.detach(), *torch.autograd.grad(context, leaves, gradient)]
    torch.manual_seed(7)
    draws = Draws.with_probability(0.3)
    if mask is not None:
        visible = mask if mask.dtype == torch.bool else mask == 0
        mask = torch.zeros(mask.shape).masked_fill(~visible, torch.finfo(torch.float32).min)
    given = *inputs, mask, is_causal, draws
    expected = [kernels.attend_dropped(*given), *kernels.attend_dropped_backward(gradient, *given)]
    assert all(map(torch.equal, actual, expected))
    assert actual[0].transpose(1, 2).is_contiguous()  # as projections read it


def test_attention_drops_weights_where_no_kernel_serves_and_no_gradient_is_wanted() -> None:
    width = 7  # which the compiled attention does not take in bf16
    query, keys, values = (state[..., :width].bfloat16() for state in states())
    with torch.no_grad():
        dropped = CpuBackend().attend(query, keys, torch.ones_like(values), None, dropout=0.5)
    assert dropped.unique().numel() > 1  # all ones if no weight is dropped


def test_a_query_that_may_read_nothing_gives_numbers() -> None:
    mask = torch.zeros(2, 1, 1, 7, dtype=torch.bool)
    assert operators.attend_in_parts(*states(), mask).isfinite().all()


def test_dropout_scales_what_it_keeps_and_passes_its_gradient() -> None:
    hidden = torch.randn(64, 33, requires_grad=True)
    dropped = CpuBackend().dropout(hidden, 0.25)
    kept = dropped != 0
    rounding = {"rtol": 2**-22, "atol": 0}  # of two products in fp32
    torch.testing.assert_close(dropped, hidden * kept / 0.75, **rounding)
    gradient = torch.randn(hidden.shape)
    torch.testing.assert_close(torch.autograd.grad(dropped, hidden, gradient)[0], gradient * kept / 0.75, **rounding)
