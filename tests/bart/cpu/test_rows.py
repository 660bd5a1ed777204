"""Kernels that work row by row, against torch in double precision: codes, GELU, and scores of the next ids."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from bart.cpu.kernels import Kernels
from tests.bart.cpu.common import U, decoded, gelu_error, threads

TINY = torch.finfo(torch.float32).tiny
CODES = 0.5 + 127 * 5 * U  # error of quantisation, in steps


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("articles, length, heads, width", [(1, 2, 1, 1), (2, 33, 3, 64), (3, 7, 2, 24)])
def test_heads_as_codes(
    compiled: Kernels, articles: int, length: int, heads: int, width: int, dtype: torch.dtype
) -> None:
    projected = (torch.randn(articles, length, 2 * heads * width) * 3).to(dtype)
    projected[0, -1] = 0
    codes = compiled.code_heads(projected, 2, heads)
    assert codes.dtype == torch.int8 and codes.shape == (2, articles, heads, length, width + 4)
    expected = projected.double().view(articles, length, 2, heads, width).permute(2, 0, 3, 1, 4)
    step = expected.abs().amax(dim=-1, keepdim=True) / 127
    assert ((decoded(codes) - expected).abs() <= CODES * step).all()
    assert codes[..., :-4].abs().max() == 127


SIZES = pytest.mark.parametrize("count, width", [(1, 1), (3, 7), (16, 1024), (48, 768), (5, 3073), (1, 40)])


@SIZES
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_quantization(compiled: Kernels, count: int, width: int, dtype: torch.dtype) -> None:
    rows = (torch.randn(count, width) * torch.logspace(-20, 20, count)[:, None]).to(dtype)
    codes, peak = compiled.quantize_rows(rows)
    assert torch.equal(peak, rows.float().abs().amax(dim=1, keepdim=True) + TINY)
    assert ((codes.double() - 128) - rows.double() * 127 / peak.double()).abs().max() <= CODES


def test_quantization_of_special_rows(compiled: Kernels) -> None:
    halves = torch.tensor([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -127.0]])
    assert compiled.quantize_rows(halves)[0].tolist() == [[255, 128, 130, 130, 128, 126, 1]]  # to the even ones
    codes, peak = compiled.quantize_rows(torch.zeros(1, 20))
    assert codes.unique().tolist() == [128] and peak.item() == pytest.approx(TINY)
    for bad in (torch.nan, torch.inf, -torch.inf):
        rows = torch.randn(1, 50)
        rows[0, 3] = bad
        codes, peak = compiled.quantize_rows(rows)
        assert not peak.isfinite().any()  # and so is what the codes are multiplied by
        assert codes[0, 3] == 128


@SIZES
@pytest.mark.parametrize("with_gelu", [False, True])
def test_finish(compiled: Kernels, count: int, width: int, with_gelu: bool) -> None:
    products, peak, bias = torch.randn(count, width) * 1e4, torch.rand(count, 1) * 1e-4 + 1e-5, torch.randn(width)
    expected = products.double() * peak + bias.double()
    error = 3 * U * ((products.double() * peak).abs() + bias.abs())
    if with_gelu:
        expected, error = F.gelu(expected), 1.2 * error + gelu_error(expected)  # GELU's slope is below 1.2
    given = products.clone()
    narrow = compiled.finish_rows(given, peak, bias, with_gelu, torch.bfloat16)
    assert torch.equal(given, products)
    wide = compiled.finish_rows(given, peak, bias, with_gelu)
    assert wide.data_ptr() == given.data_ptr()
    assert ((wide.double() - expected).abs() <= error).all()
    assert torch.equal(narrow, wide.bfloat16())


def test_gelu_is_the_exact_one(compiled: Kernels) -> None:
    x = torch.cat([torch.linspace(-20, 20, 400_001), torch.tensor([0.0, -1e30, 1e30])])[None]
    result = compiled.finish_rows(x.clone(), torch.ones(1, 1), torch.zeros(x.shape[1]), True)
    assert ((result.double() - F.gelu(x.double())).abs() <= gelu_error(x.double())).all()
    assert compiled.finish_rows(torch.full((1, 20), torch.nan), torch.ones(1, 1), torch.zeros(20), True).isnan().all()


def test_rounding_to_bf16_keeps_nan_and_infinity(compiled: Kernels) -> None:
    # All numbers between two of bf16, NaNs of which only the lowest bits are set, and both infinities.
    bits = torch.cat([torch.arange(0x3F80_0000, 0x3F81_0001), torch.tensor([0x7F80_0001, 0x7FFF_FFFF])])
    numbers = torch.cat([bits.int().view(torch.float32), torch.tensor([torch.inf, -torch.inf])])[None]
    nothing = torch.zeros(numbers.shape[1])
    result = compiled.finish_rows(numbers.clone(), torch.ones(1, 1), nothing, dtype=torch.bfloat16)
    torch.testing.assert_close(result, numbers.bfloat16(), equal_nan=True, atol=0, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("count, width", [(1, 1), (3, 7), (6, 50265)])
def test_log_probabilities(compiled: Kernels, count: int, width: int, dtype: torch.dtype) -> None:
    logits = (torch.randn(count, width) * torch.logspace(-2, 3, count)[:, None]).to(dtype)
    logits[:, 1:2] = -torch.inf  # banned by the model
    expected, distance = logits.double().log_softmax(dim=1), logits.double() - logits.amax(dim=1, keepdim=True)
    scores = compiled.log_softmax(logits)
    assert scores.dtype == torch.float32 and (scores is logits) == (dtype == torch.float32)
    finite = expected.isfinite()
    assert torch.equal(scores.isfinite(), finite)
    # The logarithm of a sum of powers to 3e-7, which is rounded, and two differences.
    allowed = 3e-7 + U * (math.log(width) + distance.abs() + expected.abs())
    assert ((scores - expected).abs() <= allowed)[finite].all()


def test_log_probabilities_of_rows_that_have_none(compiled: Kernels) -> None:
    rows = torch.zeros(3, 300)
    rows[0, 7], rows[1, 299], rows[2] = torch.nan, torch.inf, -torch.inf
    assert compiled.log_softmax(rows).isnan().all()  # as by torch


@pytest.mark.parametrize("articles, beams, width", [(1, 1, 1), (2, 3, 100), (5, 4, 1600), (3, 6, 2057)])
def test_greatest_sums(compiled: Kernels, articles: int, beams: int, width: int) -> None:
    scores, bases = torch.randn(articles, beams, width).mul(9).round(), torch.randn(articles, beams).round()
    scores[torch.rand(scores.shape) < 0.1] = -torch.inf
    scores[0, 0, -1] = torch.nan
    every = (scores + bases[:, :, None]).flatten(1)
    for count in {1, min(12, beams * width), beams * width if width < 200 else 5}:
        sums, places = compiled.top_sums(scores, bases, count)
        expected, order = every.sort(dim=1, descending=True, stable=True)
        assert torch.equal(places, order[:, :count])
        assert torch.equal(sums.nan_to_num(9e9), expected[:, :count].nan_to_num(9e9))


@SIZES
def test_add_and_norm(compiled: Kernels, count: int, width: int) -> None:
    states, added = torch.randn(count, width), torch.randn(count, width) + 5
    norm = torch.nn.LayerNorm(width)
    for parameter in norm.parameters():
        torch.nn.init.normal_(parameter)
    exact = (states + added).double()  # whose rounding the norm of few or nearly equal numbers enlarges without bound
    expected = F.layer_norm(exact, (width,), norm.weight.double(), norm.bias.double(), norm.eps)
    normal = F.layer_norm(exact, (width,), eps=norm.eps)
    mean_error = (width + 4) * U * exact.abs().amax(dim=1, keepdim=True)
    error = mean_error / (exact.var(dim=1, keepdim=True, correction=0) + norm.eps).sqrt() * (1 + normal.abs())
    bound = (error + (width + 8) * U * normal.abs()) * norm.weight.abs() + 4 * U * norm.bias.abs()
    result = compiled.add_and_norm(states, added, norm)
    assert ((result.double() - expected).abs() <= bound).all()
    with threads(3):
        assert torch.equal(compiled.add_and_norm(states, added, norm), result)
    states[0] = torch.nan
    nans = compiled.add_and_norm(states, added, norm).isnan()
    assert nans[0].all() and not nans[1:].any()
