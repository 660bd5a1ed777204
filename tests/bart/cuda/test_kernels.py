"""The kernels in Triton, beside torch in fp32."""

from __future__ import annotations

import copy
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests import forked
from tests.fake_cuda import kernels as stand_ins

WIDTHS = 48, 1024
# Of the update, the residual stream, and what is kept of the normed states.
TYPES = (
    (torch.float16, torch.float32, torch.float32),
    (torch.bfloat16, torch.float32, torch.bfloat16),
    (torch.bfloat16, torch.bfloat16, torch.bfloat16),
)


@pytest.mark.gpu
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(
    ("articles", "queries", "length", "width"), [(3, 6, 200, 64), (1, 1, 17, 32), (70, 16, 640, 128)]
)
def test_attention_of_few_queries(articles: int, queries: int, length: int, width: int, shared: bool) -> None:
    from bart.cuda.kernels import attend_few, can_attend_few

    generator = torch.Generator("cuda").manual_seed(0)
    query = torch.randn(articles, queries, 2, width, device="cuda", generator=generator).bfloat16().transpose(1, 2)
    keys, values = torch.randn(2, articles, 2, length, width, device="cuda", generator=generator).bfloat16()
    allowed = torch.rand(articles, 1, 1 if shared else queries, length, device="cuda", generator=generator) < 0.5
    allowed[..., length * 3 // 4 :] = False
    allowed[..., length // 2] = True
    mask = torch.zeros_like(allowed, dtype=torch.bfloat16).masked_fill_(~allowed, -torch.inf)
    assert can_attend_few(query, keys, mask)
    expected = F.scaled_dot_product_attention(query.float(), keys.float(), values.float(), mask.float())
    theirs = F.scaled_dot_product_attention(query, keys, values, mask)
    ours = attend_few(query, keys, values, mask)
    assert (ours - expected).norm() < 2 * (theirs - expected).norm()


@pytest.mark.gpu
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(("half", "stream", "kept"), TYPES)
def test_sum_and_norm(half: torch.dtype, stream: torch.dtype, kept: torch.dtype, width: int) -> None:
    check_sum_and_norm("cuda", (3, 700, width), half, stream, kept)


def test_sum_and_norm_around_the_kernels() -> None:
    forked.call(check_on_the_cpu)


def check_on_the_cpu() -> None:
    stand_ins.load()
    for width, types in product(WIDTHS, TYPES):
        check_sum_and_norm("cpu", (3, 20, width), *types)


def check_sum_and_norm(
    device: str, shape: tuple[int, ...], half: torch.dtype, stream: torch.dtype, out_dtype: torch.dtype
) -> None:
    from bart.cuda.kernels import AddAndNorm

    torch.manual_seed(0)
    norm = nn.LayerNorm(shape[-1]).to(device)
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    update, residual = (torch.randn(shape, device=device).to(dtype).requires_grad_() for dtype in (half, stream))
    leaves = update, residual, norm.weight, norm.bias
    out, in_half = AddAndNorm.apply(update, residual, norm.weight, norm.bias, norm.eps, 0.0)
    assert out.dtype == out_dtype and out._base is in_half._base is None  # a view would hold the other for ever
    assert in_half.dtype == half and in_half.equal(out.to(half))
    one, other = torch.randn_like(out), torch.randn_like(in_half)

    def results(norm: nn.Module, *leaves: torch.Tensor, rounded: bool = False) -> list[torch.Tensor]:
        states = leaves[1] + leaves[0]
        out = norm(states.to(out_dtype).float() if rounded else states)
        return [out, *torch.autograd.grad(out, (*leaves, *norm.parameters()), (one.float() + other).to(out.dtype))]

    exact = results(copy.deepcopy(norm).double(), *(leaf.double() for leaf in leaves[:2]))
    theirs = results(norm, *(leaf.float() for leaf in leaves[:2]))
    # The gradients of stream and weight are those of a norm whose input has the stream's precision.
    theirs[2:4] = results(norm, *(leaf.float() for leaf in leaves[:2]), rounded=True)[2:4]
    ours = [out, *torch.autograd.grad((out, in_half), leaves, (one, other))]
    for actual, torchs, expected in zip(ours, theirs, exact, strict=True):
        assert (actual - expected).norm() <= 2 * (torchs.to(actual.dtype) - expected).norm()
    # Of each of the results alone, too.
    for number, gradient in enumerate((one, other)):
        alone = torch.autograd.grad(
            AddAndNorm.apply(update, residual, norm.weight, norm.bias, norm.eps, 0.0)[number], residual, gradient
        )[0]
        states = (residual.detach().double() + update.detach()).requires_grad_()
        expected = torch.autograd.grad(copy.deepcopy(norm).double()(states), states, gradient.double())[0]
        scale = (states.var(dim=-1, unbiased=False, keepdim=True) + norm.eps).rsqrt()
        normed = (states - states.mean(dim=-1, keepdim=True)) * scale
        # The gradient is (g - mean(g) - normed · mean(g · normed)) · scale, where `normed` is rounded twice, once as
        # it is kept, and then the gradient; the rest is computed in fp32.
        kept, written = (torch.finfo(dtype).eps / 2 for dtype in (out_dtype, stream))
        of_product = normed.abs() * (gradient.double() * norm.weight * normed).abs().mean(dim=-1, keepdim=True) * scale
        bound = (2 * kept + kept**2) * of_product
        bound += written * (expected.abs() + bound)
        assert ((alone - expected).abs() <= bound + 1e-5 + 1.3e-6 * expected.abs()).all()


@pytest.mark.gpu
def test_dropout_before_the_sum() -> None:
    """The same weights are dropped in both passes; others in another call; the same after the same seed."""
    from bart.cuda.kernels import AddAndNorm

    norm, rate = nn.LayerNorm(1024).cuda(), 0.3
    update = torch.ones(4096, 1024, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    residual = torch.zeros(4096, 1024, device="cuda", requires_grad=True)
    results = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        out, _ = AddAndNorm.apply(update, residual, norm.weight, norm.bias, norm.eps, rate)
        of_update, of_residual = torch.autograd.grad(out, (update, residual), torch.randn_like(out))
        kept = of_update != 0
        assert abs(float(kept.float().mean()) - (1 - rate)) < 0.002  # nine standard errors
        torch.testing.assert_close(out, norm(kept / (1 - rate)).bfloat16())
        torch.testing.assert_close(of_update, (of_residual / (1 - rate)).where(kept, 0).bfloat16())
        results.append(kept)
    assert results[0].equal(results[1]) and not results[0].equal(results[2])
