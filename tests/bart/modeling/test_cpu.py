"""Dropout and attention on CPUs: against torch's formulas, with the same draws, in double precision; and the draws."""

from __future__ import annotations

import math

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


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("kind", ["none", "of articles", "of queries", "additive", "causal"])
def test_attention_with_dropout_and_its_gradients(limit: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the plain formula and autograd."""
    monkeypatch.setattr(cpu, "SCORES_AT_ONCE", limit)
    inputs = [state.requires_grad_() for state in states()]
    mask = None if kind == "causal" else masks(kind)
    torch.manual_seed(7)
    kept, scale = cpu.draw_kept((2, 4, 5, 7), 0.3)
    assert 0 < kept.sum() < kept.numel()
    torch.manual_seed(7)
    actual = cpu.attend_with_dropout(*inputs, mask, kind == "causal", 0.3)
    if kind == "causal":
        mask = torch.ones(5, 7, dtype=torch.bool).tril()
    query, keys, values = inputs
    scores = query @ keys.transpose(2, 3) / math.sqrt(8)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    expected = (scores.softmax(dim=-1) * kept * scale) @ values
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
    gradient = torch.randn(expected.shape, dtype=torch.float64)
    for ours, theirs in zip(
        torch.autograd.grad(actual, inputs, gradient), torch.autograd.grad(expected, inputs, gradient), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_attention_with_next_to_no_dropout_is_that_of_torch() -> None:
    for kind in ("none", "of articles", "of queries"):
        expected = F.scaled_dot_product_attention(*states(), attn_mask=masks(kind))
        actual = cpu.attend_with_dropout(*states(), masks(kind), False, 1e-9)
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


def test_gradients_in_bf16_err_as_few_roundings_do() -> None:
    """Weights are in fp32; factors and results of products are rounded."""
    generator = torch.Generator().manual_seed(11)
    shapes = [(2, 4, length, 64) for length in (100, 120, 120)]
    inputs = [torch.randn(shape, generator=generator).bfloat16() for shape in shapes]
    gradient = torch.randn(shapes[0], generator=generator).bfloat16()
    found = []
    for dtype in (torch.bfloat16, torch.float64):
        leaves = [state.to(dtype).requires_grad_() for state in inputs]
        torch.manual_seed(12)
        context = cpu.attend_with_dropout(*leaves, None, False, 0.1)
        assert context.dtype == dtype
        found.append(torch.autograd.grad(context, leaves, gradient.to(dtype)))
    # The rounding of a score s changes its weight by up to 2^-8 |s|; the root mean square of scores is 1 here. Then
    # three more numbers are rounded on the way to a gradient: a factor of a product, and two results.
    for half, exact in zip(*found, strict=True):
        assert (half - exact).norm() <= 4 * 2**-8 * exact.norm()
    halves = states(torch.bfloat16)
    assert cpu._weights(*halves[:2], None, (slice(None), slice(None))).dtype == torch.float32


def test_the_context_lies_as_projections_read_it() -> None:
    context = cpu.attend_with_dropout(*states(), None, False, 0.1)
    assert context.transpose(1, 2).is_contiguous()


def test_a_query_that_may_read_nothing_gives_numbers() -> None:
    mask = torch.zeros(2, 1, 1, 7, dtype=torch.bool)
    assert cpu.attend_with_dropout(*states(), mask, False, 0.1).isfinite().all()


def test_a_probability_next_to_one_drops_nearly_all() -> None:
    kept, scale = cpu.draw_kept((10_000,), 0.999999)
    assert kept.sum() < 10 and scale == cpu.LEVELS


def test_dropout_scales_what_it_keeps_and_passes_its_gradient() -> None:
    hidden = torch.randn(64, 33, requires_grad=True)
    dropped = cpu.dropout(hidden, 0.25)
    kept = dropped != 0
    rounding = {"rtol": 2**-22, "atol": 0}  # of two products in fp32
    torch.testing.assert_close(dropped, hidden * kept / 0.75, **rounding)
    gradient = torch.randn(hidden.shape)
    torch.testing.assert_close(torch.autograd.grad(dropped, hidden, gradient)[0], gradient * kept / 0.75, **rounding)


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.99])
def test_draws_keep_the_right_share_everywhere(probability: float) -> None:
    torch.manual_seed(9)
    count = 400_000
    kept, scale = cpu.draw_kept((count,), probability)
    assert scale == pytest.approx(1 / (1 - probability), rel=1e-3)
    for lane in range(4):  # the places of the four that one draw decides
        deviation = math.sqrt(probability * (1 - probability) / (count / 4))
        assert kept[lane::4].double().mean() == pytest.approx(1 - probability, abs=5 * deviation)
    # Neighbours, within one draw and across two, know nothing of each other.
    for distance in (1, 2, 3, 4):
        both = (kept[:-distance] & kept[distance:]).double().mean()
        assert both == pytest.approx((1 - probability) ** 2, abs=5 * math.sqrt(probability / count))


def test_draws_follow_the_seed_and_never_repeat() -> None:
    torch.manual_seed(10)
    first, second = (cpu.draw_kept((3, 5, 7), 0.5)[0] for _ in range(2))
    torch.manual_seed(10)
    assert cpu.draw_kept((3, 5, 7), 0.5)[0].equal(first)
    assert not second.equal(first)
    assert cpu.draw_kept((0, 3), 0.5)[0].shape == (0, 3)
