"""The compiled kernels against torch in double precision, and what happens where they cannot be compiled or loaded.

Tolerances are the sums of the rounding errors that the operations may make, in units of U for fp32 and H for bf16.
"""

from __future__ import annotations

import copy
import ctypes
import logging
import math
import os
import pickle
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from bart.modeling import kernels
from bart.modeling.kernels import NO_DRAWS, Draws, Kernels, PackedCodes, PackedWeight, Spans, argument_types

ROOT = Path(__file__).parents[3]
TINY = torch.finfo(torch.float32).tiny
U, H = 2.0**-24, 2.0**-8
EXPONENTIAL = 2e-7 + 6 * U  # relative error of the kernels' exponential: the rest of its series, and its roundings
CODES = 0.5 + 127 * 5 * U  # error of quantisation, in steps


def why_not() -> str | None:
    """Why the kernels cannot be compiled here."""
    if sys.platform != "linux":
        return "the kernels are made for Linux"
    compiler = shlex.split(os.environ.get("CC", "cc"))
    try:
        macros = subprocess.run([*compiler, "-dM", "-E", "-x", "c", os.devnull], check=True, capture_output=True).stdout
    except OSError:
        return "there is no C compiler"
    return "the C compiler is not GCC" if b"__clang__" in macros else None


needs_compiler = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for compiled kernels."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "bart-pytorch" / "kernels"


OPTIONS = {"native": [], "AVX2": ["-march=x86-64-v3"], "plain": ["-DBART_PLAIN"]}


@pytest.fixture(scope="module", params=OPTIONS)
def compiled(request: pytest.FixtureRequest) -> Kernels:
    """The kernels as this processor gets them, as one gets them that has AVX2 alone, and without code for some only."""
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    if request.param == "AVX2" and not kernels.compile_kernels().is_avx512:
        pytest.skip("this processor has no more than that")
    return kernels.compile_kernels(*OPTIONS[request.param])


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# Attention


def attended(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Attention in double precision (B, K, D), its error in fp32, and attention to the values' sizes."""
    query, keys, values = query.double(), keys.double(), values.double()
    added = torch.zeros(1, 1, 1, keys.shape[2]) if mask is None else mask.double()
    width, length = query.shape[3], keys.shape[2]
    weights = (query @ keys.mT / math.sqrt(width) + added).softmax(dim=3)
    sizes = query.abs() @ keys.abs().mT / math.sqrt(width) + added.abs()
    score_error = (width + 4) * U * sizes.masked_fill(added == -torch.inf, 0).amax(dim=3, keepdim=True)
    relative = 2 * score_error + 2 * EXPONENTIAL + (2 * length + 8) * U
    size = weights @ values.abs()
    return tuple(part.transpose(1, 2).flatten(2) for part in (weights @ values, size * relative + 1e-30, size))


def random_mask(articles: int, queries: int, length: int) -> Tensor:
    """(B, 1, K, L), most of it -inf, but not for all keys of a query."""
    mask = torch.randn(articles, 1, queries, length).masked_fill_(
        torch.rand(articles, 1, queries, length) < 0.8, -torch.inf
    )
    mask.scatter_(3, torch.randint(length, (articles, 1, queries, 1)), 0.5)
    return mask.bfloat16()


def decoded(codes: Tensor) -> Tensor:
    """The numbers of codes with their scale behind them, in double precision."""
    scale = codes[..., -4:].flatten().clone().view(torch.float32).view(*codes.shape[:-1], 1)
    return codes[..., :-4].double() * scale.double()


SHAPES = [  # articles, heads, queries, length, width
    *((1, 1, 1, 1, 64), (2, 3, 1, 17, 64), (4, 2, 4, 1024, 64), (2, 2, 6, 100, 64), (3, 2, 7, 15, 64)),
    *((1, 2, 16, 33, 64), (2, 1, 35, 35, 64), (1, 2, 5, 1100, 64), (1, 1, 11, 16, 64), (2, 2, 3, 48, 64)),
    *((2, 2, 4, 50, 8), (1, 3, 6, 33, 20), (1, 2, 18, 40, 16), (1, 1, 2, 70, 80), (1, 1, 1, 1, 1), (1, 2, 0, 9, 64)),
]


@pytest.mark.parametrize("kind", ["fp32", "bf16", "bf16 from bf16", "int8"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_attention(compiled: Kernels, shape: tuple[int, ...], kind: str) -> None:
    articles, heads, queries, length, width = shape
    query = torch.randn(articles, heads, queries, width).bfloat16()
    query = query if kind == "bf16 from bf16" else query.float()
    keys, values = exact = torch.randn(2, articles, heads, length, width)
    if kind == "int8":
        keys, values = compiled.code_heads(exact.permute(1, 3, 0, 2, 4).reshape(articles, length, -1), 2, heads)
        exact = decoded(keys), decoded(values)
    elif kind != "fp32":
        keys, values = exact = exact.bfloat16()
    mask = random_mask(articles, queries, length)
    for part in (None, mask, mask.float(), mask[:, :, :1], mask[:1], mask[:1, :, :1]):
        context = compiled.attend(query, keys, values, part)
        assert context.dtype == query.dtype and context.shape == (articles, queries, heads * width)
        expected, error, size = attended(query, *exact, part)
        # Where the processor multiplies bf16, weights are rounded to it; results always are, for such queries.
        roundings = ("bf16" in kind) + (kind == "bf16 from bf16")
        assert ((context.double() - expected).abs() <= error + roundings * H * size).all()


@needs_compiler
def test_attention_with_emulated_bf16_instructions() -> None:
    """The code for processors that multiply bf16."""
    if not kernels.compile_kernels().is_avx512:
        pytest.skip("needs AVX-512")
    emulated = kernels.compile_kernels("-O1", "-include", str(Path(__file__).with_name("emulated_bf16.h")))
    for shape in SHAPES:
        test_attention(emulated, shape, "bf16")
        test_attention(emulated, shape, "bf16 from bf16")
    for shape, mask_of in (((2, 3, 50, 71, 32), "articles"), ((2, 2, 97, 33, 20), "the future")):
        test_attention_with_dropout_and_its_gradients(emulated, torch.bfloat16, shape, mask_of)


def test_bf16_keys_without_bf16_instructions_lose_nothing() -> None:
    if (reason := why_not()) is not None:
        pytest.skip(reason)
    query, (keys, values) = torch.randn(2, 3, 4, 64), torch.randn(2, 2, 3, 200, 64).bfloat16()
    mask = random_mask(2, 4, 200)
    context = kernels.compile_kernels("-DBART_PLAIN").attend(query, keys, values, mask)
    expected, error, _ = attended(query, keys, values, mask)
    assert ((context.double() - expected).abs() <= error).all()


@pytest.mark.parametrize("width", [64, 24])
def test_attention_reads_parts_of_larger_tensors(compiled: Kernels, width: int) -> None:
    projected = torch.randn(2, 5, 3 * 4 * width)
    query = projected.view(2, 5, 3, 4, width)[:, :, 1].transpose(1, 2)
    stores = torch.randn(2, 2, 4, 90, width).bfloat16()
    keys, values = stores[:, :, :, 7:60]
    mask = torch.cat([random_mask(2, 5, 53)] * 2, dim=3)[..., 20:73]
    context = compiled.attend(query, keys, values, mask)
    again = compiled.attend(query.contiguous(), keys.contiguous(), values.contiguous(), mask.contiguous())
    assert torch.equal(context, again)
    assert not torch.equal(context, compiled.attend(query, values, keys, mask))


@pytest.mark.parametrize("kind", ["fp32", "bf16", "int8"])
@pytest.mark.parametrize("width", [64, 24])
def test_keys_hidden_from_all_queries_are_not_read(compiled: Kernels, width: int, kind: str) -> None:
    query, exact = torch.randn(2, 3, 4, width), torch.randn(2, 2, 3, 75, width)
    keys, values = exact.bfloat16() if kind == "bf16" else exact
    if kind == "int8":
        keys, values = compiled.code_heads(exact.permute(1, 3, 0, 2, 4).reshape(2, 75, -1), 2, 3)
    mask = random_mask(2, 4, 75)
    mask[0, :, :, 40:] = mask[1, :, :, :33] = -torch.inf
    mask[0, :, :, 3] = mask[1, :, :, 70] = 0
    context = compiled.attend(query, keys, values, mask)
    hidden = (mask == -torch.inf).all(dim=2)[:, :, :, None]
    other = torch.tensor(77 if kind == "int8" else torch.nan, dtype=keys.dtype)
    assert torch.equal(compiled.attend(query, keys.where(~hidden, other), values.where(~hidden, other), mask), context)
    assert context.isfinite().all()


def test_a_query_that_may_read_nothing_gets_nan(compiled: Kernels) -> None:
    query, (keys, values) = torch.randn(2, 1, 2, 64), torch.randn(2, 2, 1, 20, 64)
    mask = torch.zeros(2, 1, 2, 20)
    mask[0] = mask[1, 0, 1] = -torch.inf
    lost = compiled.attend(query, keys, values, mask).isnan().all(dim=2)
    assert lost.tolist() == [[True, True], [False, True]]


@pytest.mark.parametrize("count", [1, 3])
def test_results_depend_on_neither_threads_nor_the_batch(compiled: Kernels, count: int) -> None:
    query, (keys, values) = torch.randn(3, 16, 4, 64), torch.randn(2, 3, 16, 200, 64).bfloat16()
    mask = random_mask(3, 4, 200)
    rows, peak, bias = torch.randn(90, 1000), torch.rand(90, 1), torch.randn(1000)
    with threads(count):
        context = compiled.attend(query, keys, values, mask)
        finished = compiled.finish_rows(rows.clone(), peak, bias, True)
        codes, _ = compiled.quantize_rows(finished)
    for b in range(3):
        one = slice(b, b + 1)
        assert torch.equal(compiled.attend(query[one], keys[one], values[one], mask[one]), context[one])
    for row in (0, 44, 89):
        one = slice(row, row + 1)
        assert torch.equal(compiled.finish_rows(rows[one].clone(), peak[one], bias, True), finished[one])
        assert torch.equal(compiled.quantize_rows(finished[one])[0], codes[one])


# Rows


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


def gelu_error(x: Tensor) -> Tensor:
    """Error of the kernels' GELU at x in double precision: of erfc's approximation, and of 16th powers in fp32."""
    return x.abs().clamp(max=6) / 2 * 3e-7 + 0.17 * 80 * U + 2 * U * x.abs()


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


@SIZES
def test_add_and_norm(compiled: Kernels, count: int, width: int) -> None:
    hidden, update = torch.randn(2, count, 1, width) + 3
    norm = torch.nn.LayerNorm(width, eps=1e-3)
    torch.nn.init.normal_(norm.weight)
    torch.nn.init.normal_(norm.bias)
    result = compiled.add_and_norm(hidden, update, norm)
    total = hidden.double() + update.double()
    expected = copy.deepcopy(norm).double()(total)
    centred = total - total.mean(dim=-1, keepdim=True)
    variance = centred.square().mean(dim=-1, keepdim=True) + norm.eps
    error = U * total.abs() + (width + 2) * U * total.abs().mean(dim=-1, keepdim=True)  # of centred
    relative = (width + 6) * U + 2 * (error * centred.abs() + error**2).mean(dim=-1, keepdim=True) / variance
    bound = norm.weight.abs() / variance.sqrt() * (error + centred.abs() * relative) + 3 * U * (
        (expected - norm.bias).abs() + norm.bias.abs()
    )
    assert result.shape == hidden.shape
    assert ((result.double() - expected).abs() <= bound).all()
    assert torch.equal(compiled.add_and_norm(hidden[:1], update[:1], norm), result[:1])


@pytest.mark.parametrize("count, width", [(1, 1), (3, 17), (48, 1601)])
def test_log_softmax(compiled: Kernels, count: int, width: int) -> None:
    rows = 5 * torch.randn(count, width)
    rows[0, width // 2] = 300.0  # the others' exponentials vanish
    if width > 1:
        rows[-1, 0] = -torch.inf
    exact = rows.double()
    expected, top = exact.log_softmax(dim=1), exact.amax(dim=1, keepdim=True)
    result = compiled.log_softmax(rows)
    assert result is rows
    size = (exact - top).abs() + (expected - exact + top).abs()
    bound = EXPONENTIAL + (width + 4) * U + 3 * U * size.nan_to_num(posinf=0)
    assert torch.equal(result == -torch.inf, expected == -torch.inf)
    assert ((result.double() - expected).abs().nan_to_num() <= bound).all()
    for bad in (torch.nan, torch.inf):
        rows = torch.zeros(2, 40)
        rows[1, 3] = bad
        result = compiled.log_softmax(rows)
        assert result[1].isnan().any() and not result[0].isnan().any()
    assert compiled.log_softmax(torch.full((1, 40), -torch.inf)).isnan().all()


@pytest.mark.parametrize("count, width", [(0, 3), (1, 1), (3, 17), (48, 1601)])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_cross_entropy(compiled: Kernels, count: int, width: int, smoothing: float, dtype: torch.dtype) -> None:
    logits, bias = (5 * torch.randn(count, width)).to(dtype), torch.randn(width)
    if count > 1:
        logits[0, width // 2] = 300.0  # the others' exponentials vanish
        logits[1, 3:] = logits[1, 3]
        bias[4:] = bias[3]  # greatest ones may be equal
        logits[1, 3:] += 100
    exact = (logits.double() + bias.double()).requires_grad_()
    labels = torch.randint(width, (count,))
    labels[: count // 2] = exact.argmax(dim=1)[: count // 2]
    expected = F.cross_entropy(exact, labels, reduction="none", label_smoothing=smoothing)
    [by_logits] = torch.autograd.grad(expected.sum(), exact)
    right = exact.argmax(dim=1) == labels

    untouched, scratch = logits.clone(), logits.clone()
    losses, found = compiled.cross_entropy(logits, bias, labels, smoothing, True)
    without, correct = compiled.cross_entropy(scratch, bias, labels, smoothing, False)
    assert found is logits and torch.equal(losses, without) and torch.equal(correct, right.long())
    if count == 0:
        return
    # A sum of a logit and its bias is rounded, and so is its difference from the greatest one.
    exact, top = exact.detach(), exact.detach().amax(dim=1, keepdim=True)
    size = (exact.abs() + top.abs() + (exact - top).abs()).amax(dim=1)
    bound = EXPONENTIAL + (width + 6) * U + (smoothing * (width + 6) + 4) * U * size
    assert ((losses.double() - expected).abs() <= bound).all()
    of_half = 2**-8 * by_logits.abs() if dtype == torch.bfloat16 else 0
    bound = exact.softmax(dim=1) * 2 * (EXPONENTIAL + (width + 6) * U + 2 * U * size[:, None]) + 4 * U + of_half
    assert logits.dtype == dtype and ((logits.double() - by_logits).abs() <= bound).all()
    if count > 1:
        with threads(1):
            again, _ = compiled.cross_entropy(untouched[1:2], bias, labels[1:2], smoothing, True)
        assert torch.equal(untouched[1], logits[1]) and torch.equal(again, losses[1:2])


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_cross_entropy_of_special_numbers(compiled: Kernels, bad: float) -> None:
    logits = torch.zeros(2, 40)
    logits[1, 3] = bad
    losses, _ = compiled.cross_entropy(logits, torch.zeros(40), torch.tensor([3, 3]), 0.1, True)
    assert losses.isnan().tolist() == [False, True]
    for labels in ([0, -1], [2, 40]):
        with pytest.raises(IndexError, match=f"labels are {min(labels)} to {max(labels)}; allowed: 0 to 39"):
            compiled.cross_entropy(torch.zeros(2, 40), torch.zeros(40), torch.tensor(labels), 0.1, True)
    logits = torch.tensor([[0.0, -torch.inf]])  # no probability, which smoothing alone asks for
    assert compiled.cross_entropy(logits, torch.zeros(2), torch.tensor([0]), 0.0, False)[0] == 0


# Products


def needs(compiled: Kernels, name: str) -> None:
    if not getattr(compiled, name):
        pytest.skip("torch computes this here")


ROWS_INPUTS_OUTPUTS = [
    *((1, 1, 1), (3, 7, 33), (8, 64, 32), (9, 50, 31), (23, 768, 100), (48, 768, 768)),
    *((400, 3072, 64), (130, 4099, 40)),  # more rows than are multiplied at once
]


@pytest.mark.parametrize("rows, inputs, outputs", ROWS_INPUTS_OUTPUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_multiply(compiled: Kernels, rows: int, inputs: int, outputs: int, dtype: torch.dtype) -> None:
    needs(compiled, "multiplies")
    # Codes of all sizes, the greatest sums among them.
    states = (torch.randn(rows, inputs) * torch.logspace(-5, 5, rows)[:, None]).to(dtype)
    states[0] = 3
    greatest = compiled.greatest_code
    codes = torch.randint(-greatest - (greatest == 127), greatest + 1, (outputs, inputs), dtype=torch.int8)
    codes[0] = greatest
    scale, bias = torch.rand(outputs) / inputs, torch.randn(outputs)
    row_codes, peak = compiled.quantize_rows(states)
    # Sums are exact; then there are three roundings.
    product = (row_codes.double() - 128) @ codes.double().T * scale.double() * peak.double()
    weight = PackedCodes(codes, scale, bias, compiled.panel)
    result = compiled.multiply(states, weight)
    assert ((result.double() - product - bias.double()).abs() <= 4 * U * (product.abs() + bias.abs())).all()
    assert torch.equal(compiled.multiply(states, weight, dtype=torch.bfloat16), result.bfloat16())
    active = compiled.multiply(states, weight, True)
    assert ((active.double() - F.gelu(result.double())).abs() <= gelu_error(result.double())).all()
    for row in {0, rows // 2, rows - 1}:
        one = slice(row, row + 1)
        assert torch.equal(compiled.multiply(states[one], weight), result[one])


@pytest.mark.parametrize("rows, inputs, outputs", ROWS_INPUTS_OUTPUTS)
def test_multiply_fp32(compiled: Kernels, rows: int, inputs: int, outputs: int) -> None:
    needs(compiled, "multiplies_fp32")
    states, weight, bias = torch.randn(rows, inputs), torch.randn(outputs, inputs), torch.randn(outputs)
    packed = PackedWeight(weight, bias, compiled.panel)
    result = compiled.multiply_fp32(states, packed)
    size = states.abs().double() @ weight.abs().double().T + bias.abs()
    expected = F.linear(states.double(), weight.double(), bias.double())
    assert ((result.double() - expected).abs() <= (inputs + 1) * U * size).all()
    active = compiled.multiply_fp32(states, packed, True)
    assert ((active.double() - F.gelu(result.double())).abs() <= gelu_error(result.double())).all()
    for row in {0, rows // 2, rows - 1}:
        one = slice(row, row + 1)
        assert torch.equal(compiled.multiply_fp32(states[one], packed), result[one])


@pytest.mark.parametrize("in_fp32", [False, True])
def test_multiply_by_nan_and_by_many_threads(compiled: Kernels, in_fp32: bool) -> None:
    needs(compiled, "multiplies_fp32" if in_fp32 else "multiplies")
    states = torch.randn(50, 600)
    states[7, 5] = torch.nan
    codes, multiply = torch.randint(-64, 65, (700, 600), dtype=torch.int8), compiled.multiply
    weight = PackedCodes(codes, torch.rand(700), torch.zeros(700), compiled.panel)
    if in_fp32:
        weight, multiply = PackedWeight(codes.float(), torch.zeros(700), compiled.panel), compiled.multiply_fp32
    result = multiply(states, weight)
    assert result.isnan().all(dim=1).nonzero().flatten().tolist() == [7]
    with threads(3):
        assert torch.equal(multiply(states, weight).nan_to_num(), result.nan_to_num())


def in_8_bits(compiled: Kernels, numbers: Tensor) -> Tensor:
    """Numbers after quantisation with one scale for each row, in double precision."""
    codes, peak = compiled.quantize_rows(numbers.flatten(0, -2).contiguous())
    return ((codes.double() - 128) * peak.double() / 127).view(numbers.shape)


def self_attention(articles: int, heads: int, length: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    """Query, keys and values (B, H, L, 64), as parts of one product."""
    return torch.randn(articles, length, 3, heads, 64).to(dtype).permute(2, 0, 3, 1, 4).unbind(0)


def hide_some(articles: int, length: int) -> Tensor:
    """(B, 1, 1, L), a third of it -inf, but not the first."""
    mask = torch.randn(articles, 1, 1, length).masked_fill_(torch.rand(articles, 1, 1, length) < 0.3, -torch.inf)
    mask[..., 0] = 0.5
    return mask


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("spread", [0.01, 1, 8], ids=["even", "mixed", "sharp"])
@pytest.mark.parametrize(
    "articles, heads, length", [(1, 1, 1), (2, 3, 33), (1, 2, 64), (3, 2, 70), (1, 1, 131), (2, 2, 1024)]
)
def test_attention_of_many(
    compiled: Kernels, articles: int, heads: int, length: int, spread: float, dtype: torch.dtype
) -> None:
    needs(compiled, "attends_in_int8")
    query, keys, values = self_attention(articles, heads, length, dtype)
    query *= spread
    for mask in (None, hide_some(articles, length), hide_some(1, length).bfloat16()):
        result = compiled.attend_many(query, keys, values, mask)
        assert result.dtype == dtype and result.shape == (articles, length, heads * 64)
        added = torch.zeros(1, 1, 1, length) if mask is None else mask
        seen = (added != -torch.inf).mT
        # Attention to the quantised numbers, whose weights are rounded to 16 bits of the greatest one.
        coded = in_8_bits(compiled, query), in_8_bits(compiled, keys), in_8_bits(compiled, (values * seen).mT).mT
        scores = coded[0] @ coded[1].mT / 8 + added.double()
        weights = scores.softmax(dim=3)
        expected, size = weights @ coded[2], weights @ coded[2].abs()
        half = weights.amax(dim=3, keepdim=True) / 65535 / 2
        rounding = half * (coded[2].abs().sum(dim=2, keepdim=True) + seen.sum(dim=2, keepdim=True) * expected.abs())
        greatest = scores.masked_fill(added == -torch.inf, 0).abs().amax(dim=3, keepdim=True)
        relative = 2 * (4 * U * greatest + 3e-6) + 8 * U + (0 if dtype == torch.float32 else H)
        context = result.double().view(articles, length, heads, 64).transpose(1, 2)
        assert ((context - expected).abs() <= rounding + relative * size).all()


def test_attention_of_many_does_not_read_what_is_hidden(compiled: Kernels) -> None:
    needs(compiled, "attends_in_int8")
    query, keys, values = self_attention(3, 2, 150)
    hidden = torch.rand(3, 150) < 0.3
    hidden[0] = torch.arange(150) >= 77
    hidden[1] = torch.arange(150) != 149
    mask = torch.zeros(3, 1, 1, 150).masked_fill_(hidden[:, None, None], -torch.inf)
    context = compiled.attend_many(query, keys, values, mask)
    for part in (keys, values):
        part.masked_fill_(hidden[:, None, :, None], torch.nan)
    assert torch.equal(compiled.attend_many(query, keys, values, mask), context)
    for b in range(3):
        alone = [part[b : b + 1, :, ~hidden[b]] for part in (query, keys, values)]
        assert torch.equal(compiled.attend_many(*alone), context[b : b + 1, ~hidden[b]])


def test_attention_of_many_passes_nan_on(compiled: Kernels) -> None:
    needs(compiled, "attends_in_int8")
    # What becomes NaN of a head: the row of a query, everything for a key, a dimension for a value.
    for part, spoilt in enumerate([(4, slice(None)), (slice(None), slice(None)), (slice(None), 7)]):
        parts = self_attention(2, 2, 50)
        parts[part][1, 1, 4, 7] = torch.nan
        expected = torch.zeros(2, 50, 2, 64, dtype=torch.bool)
        expected[1, :, 1][spoilt] = True
        assert torch.equal(compiled.attend_many(*parts).isnan(), expected.flatten(2))


@pytest.mark.parametrize("count", [1, 2, 3])
def test_attention_of_many_depends_on_neither_threads_nor_the_batch(compiled: Kernels, count: int) -> None:
    needs(compiled, "attends_in_int8")
    parts, mask = self_attention(3, 5, 200), hide_some(3, 200)
    with threads(count):
        context = compiled.attend_many(*parts, mask)
    for b in range(3):
        one = slice(b, b + 1)
        assert torch.equal(compiled.attend_many(*(part[one].contiguous() for part in parts), mask[one]), context[one])


# Dropout


def kept_of(draws: Draws, rows: int, width: int) -> Tensor:
    """What dropout keeps of rows of so many numbers, by the formulas of kernels.c in numpy."""
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


def test_draws_are_independent() -> None:
    """Of neighbours in a row and in the rows below, and of the same place under another seed."""
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


def test_a_probability_is_a_share_of_draws() -> None:
    draws = Draws.with_probability(0.25)
    assert (draws.dropped, draws.scale) == (2**30, 4 / 3)
    assert Draws.with_probability(1 - 1e-12).dropped == 2**32 - 1
    torch.manual_seed(3)
    one, other = (Draws.with_probability(0.25) for _ in range(2))
    torch.manual_seed(3)
    assert Draws.with_probability(0.25) == one != other


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


@pytest.mark.parametrize("mask_of", ["nothing", "articles", "queries", "one article", "the future"])
@pytest.mark.parametrize(
    "shape", [(2, 3, 50, 70, 32), (1, 2, 5, 7, 8), (2, 2, 97, 33, 20), (2, 1, 16, 512, 64)], ids=str
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_with_dropout_and_its_gradients(
    compiled: Kernels, dtype: torch.dtype, shape: tuple[int, ...], mask_of: str
) -> None:
    """Against autograd in double precision, with the same draws; states are parts of larger tensors."""
    articles, heads, queries, length, width = shape
    is_causal = mask_of == "the future"
    queries = length if is_causal else queries
    sizes = {"articles": (articles, 1, 1), "queries": (articles, 1, queries), "one article": (1, 1, 1)}
    mask = None
    if mask_of in sizes:
        hidden = torch.rand(*sizes[mask_of], length) < 0.4
        mask = torch.randn(hidden.shape).masked_fill(hidden, torch.finfo(torch.float32).min)
    own = slice(1, -2) if dtype is torch.float32 else slice(2, -4)
    room = width + own.start - own.stop
    query = torch.randn(articles, queries, heads, room).to(dtype)[..., own].transpose(1, 2)
    keys, values = torch.randn(2, articles, length, heads, room).to(dtype)[..., own].transpose(2, 3)
    gradient = torch.randn(articles, heads, queries, width).to(dtype)
    draws = Draws.with_probability(0.3)
    kept = kept_of(draws, articles * heads * queries, length).view(articles, heads, queries, length)
    kept = kept.double() * np.float32(draws.scale).item()

    q, k, v = leaves = [part.double().requires_grad_() for part in (query, keys, values)]
    added = torch.zeros(1, 1, 1, length).double() if mask is None else mask.double()
    if is_causal:
        added = added.masked_fill(~torch.ones(queries, length, dtype=torch.bool).tril(), -torch.inf)
    weights = (q @ k.mT / math.sqrt(width) + added).softmax(dim=3)
    context = (weights * kept) @ v
    expected = torch.autograd.grad(context, leaves, gradient.double())

    # Sums of the rounding errors of each operation, by the sizes of what it reads. In bf16 the weights, the gradients
    # of scores and all results are rounded once more.
    halved = 0.0 if dtype is torch.float32 else H
    with torch.no_grad():
        q, k, v, g = (part.abs() for part in (*leaves, gradient.double()))
        sizes_of_scores = (q @ k.mT / math.sqrt(width) + added.abs()).masked_fill(added < -1e30, 0)
        relative = 2 * (width + 4) * U * sizes_of_scores.amax(3, keepdim=True) + 2 * EXPONENTIAL + (2 * length + 12) * U
        dropped = weights * kept
        of_weights = (g @ v.mT) * kept
        of_scores = weights * (of_weights + (weights * of_weights).sum(3, keepdim=True)) / math.sqrt(width)
        error = of_scores * (2 * relative + (width + length + 8) * U + 2.1 * halved)
        errors = (
            error @ k + (length + 2) * U * of_scores @ k,
            error.mT @ q + (queries + 2) * U * of_scores.mT @ q,
            (dropped * (relative + (queries + 4) * U + 2.1 * halved)).mT @ g,
        )
    found = compiled.attend_dropped(query, keys, values, mask, is_causal, draws)
    assert found.transpose(1, 2).is_contiguous()
    bound = (dropped @ v) * (relative + (length + 4) * U + 2.1 * halved)
    assert ((found - context).abs() <= bound + 1e-30).all()
    others = compiled.attend_dropped_backward(gradient, query, keys, values, mask, is_causal, draws)
    for ours, theirs, bound in zip(others, expected, errors, strict=True):
        assert ((ours - theirs).abs() <= bound + 1e-30).all()


def test_a_query_without_a_visible_key_reads_all_for_training(compiled: Kernels) -> None:
    query, keys, values = torch.randn(3, 1, 2, 5, 8)
    mask = torch.full((1, 1, 1, 5), torch.finfo(torch.float32).min)
    context = compiled.attend_dropped(query, keys, values, mask, False, Draws(0, 0, 1.0))
    bound = 12 * U * values.abs().sum(dim=2, keepdim=True)
    assert ((context - values.double().mean(dim=2, keepdim=True)).abs() <= bound).all()


def test_attention_with_dropout_depends_on_neither_threads_nor_other_articles(compiled: Kernels) -> None:
    query, keys, values, gradient = torch.randn(4, 3, 4, 60, 16)
    draws = Draws.with_probability(0.2)
    results = []
    for count in (1, 4):
        with threads(count):
            context = compiled.attend_dropped(query, keys, values, None, False, draws)
            others = compiled.attend_dropped_backward(gradient, query, keys, values, None, False, draws)
            results.append((context, *others))
    assert all(map(torch.equal, *results))
    first = compiled.attend_dropped(query[:1], keys[:1], values[:1], None, False, draws)
    assert first.equal(results[0][0][:1])


# Of queries and keys: an article without either, one without queries, and lengths on both sides of a tile's.
SPANS = (torch.tensor([0, 50, 50, 50, 57]), torch.tensor([0, 33, 33, 41, 42]))


def spanned_states() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries (1, 3, 57, 20), keys and values (1, 3, 42, 20), and the gradient of what comes out."""
    query, gradient = torch.randn(2, 1, 57, 3, 20).transpose(2, 3)
    return query, *torch.randn(2, 1, 3, 42, 20), gradient


@pytest.mark.parametrize("is_causal", [False, True])
def test_spans_are_articles_of_their_own(compiled: Kernels, is_causal: bool) -> None:
    """To the bit: each article's results are those that it has alone."""
    query, keys, values, gradient = spanned_states()
    spans = Spans(SPANS[1], SPANS[1]) if is_causal else Spans(*SPANS)
    if is_causal:
        query, gradient = query[:, :, :42], gradient[:, :, :42]
    context = compiled.attend_dropped(query, keys, values, spans, is_causal, NO_DRAWS)
    others = compiled.attend_dropped_backward(gradient, query, keys, values, spans, is_causal, NO_DRAWS)
    for number in range(4):
        q, k = (slice(*starts[number : number + 2].tolist()) for starts in (spans.query_starts, spans.key_starts))
        alone = query[:, :, q], keys[:, :, k], values[:, :, k], None, is_causal, NO_DRAWS
        assert compiled.attend_dropped(*alone).equal(context[:, :, q])
        expected = compiled.attend_dropped_backward(gradient[:, :, q], *alone)
        for ours, theirs, part in zip(others, expected, (q, k, k), strict=True):
            assert ours[:, :, part].equal(theirs)


def test_draws_of_spans_are_the_same_backwards(compiled: Kernels) -> None:
    """The context is linear in the values: what it weighs them by, their gradient weighs the context's gradient by."""
    query, keys, values, gradient = spanned_states()
    draws = Draws.with_probability(0.4)
    arguments = query, keys, values, Spans(*SPANS), False, draws
    context = compiled.attend_dropped(*arguments)
    assert not context.equal(compiled.attend_dropped(*arguments[:-1], NO_DRAWS))
    _, _, of_values = compiled.attend_dropped_backward(gradient, *arguments)
    one, other = ((a.double() * b).sum() for a, b in ((context, gradient), (of_values, values)))
    sizes = compiled.attend_dropped(query, keys, values.abs(), *arguments[3:]).double() * gradient.abs()
    # Twice what one pass may err by in the test above, where no score is over 40.
    relative = 2 * (20 + 4) * U * 40 + 2 * EXPONENTIAL + (2 * 33 + 12) * U
    assert (one - other).abs() <= 2 * (relative + (33 + 57 + 8) * U) * sizes.sum()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_equal_spans_are_a_batch(compiled: Kernels, dtype: torch.dtype) -> None:
    query, keys, values, gradient = torch.randn(4, 3, 2, 17, 8).to(dtype)
    draws = Draws.with_probability(0.2)
    rows = [state.transpose(0, 1).flatten(1, 2)[None] for state in (query, keys, values, gradient)]
    starts = 17 * torch.arange(4)
    arguments = Spans(starts, starts), True, draws
    expected = [
        compiled.attend_dropped(query, keys, values, None, True, draws),
        *compiled.attend_dropped_backward(gradient, query, keys, values, None, True, draws),
    ]
    found = [
        compiled.attend_dropped(*rows[:3], *arguments),
        *compiled.attend_dropped_backward(rows[3], *rows[:3], *arguments),
    ]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.equal(theirs.transpose(0, 1).flatten(1, 2)[None])


# Faults


@pytest.mark.parametrize(
    "starts", [[1, 4], [0, 3, 2], torch.tensor([0, 4], dtype=torch.int32), torch.arange(0, 16, 2)[::2]], ids=str
)
def test_spans_that_are_none_are_refused(starts: Tensor | list[int]) -> None:
    starts = torch.as_tensor(starts)
    with pytest.raises(ValueError, match="a kernel got a tensor"):
        Spans(starts, starts)


def test_arguments_are_read_from_the_source() -> None:
    source = (
        "EXPORT const int a = 1;\nEXPORT int f(const void *x, int64_t y,\n        int z)\n{\n}\nstatic int g(int x)\n"
    )
    assert argument_types(source) == {"f": [ctypes.c_void_p, ctypes.c_int64, ctypes.c_int]}
    found = argument_types(kernels.SOURCE.read_text(encoding="utf-8"))
    assert len(found) == 12 and len(found["attend"]) == 23 and found["add_and_norm"][4] == ctypes.c_float


def test_tensors_that_do_not_fit_are_refused(compiled: Kernels) -> None:
    """By real checks, which `python -O` keeps, and not by asserts."""
    ones, norm = torch.ones, torch.nn.LayerNorm(8)
    query = keys = ones(2, 3, 4, 64)
    codes = PackedCodes(ones(40, 8, dtype=torch.int8), ones(40), ones(40), compiled.panel)
    weight, draws = PackedWeight(ones(40, 8), ones(40), compiled.panel), Draws(0, 5, 1.0)
    labels = torch.tensor([0, 1])
    calls = [
        lambda: compiled.attend(query, keys, keys[:, :2]),
        lambda: compiled.attend(query.double(), keys, keys),
        lambda: compiled.attend(query, keys.to("meta"), keys.to("meta")),
        lambda: compiled.attend(query, keys[..., :63], keys[..., :63]),
        lambda: compiled.attend(query, keys, keys, ones(2, 1, 4, 3)),
        lambda: compiled.attend(query, keys, keys, ones(2, 1, 3, 4)),
        lambda: compiled.attend(query, keys, keys, ones(3, 1, 1, 4)),
        lambda: compiled.attend(query.mT, keys.mT, keys.mT),
        lambda: compiled.code_heads(ones(2, 3, 7), 2, 2),
        lambda: compiled.add_and_norm(ones(2, 8), ones(3, 8), norm),
        lambda: compiled.add_and_norm(ones(2, 9), ones(2, 9), norm),
        lambda: compiled.log_softmax(ones(8, 2).T),
        lambda: compiled.cross_entropy(ones(2, 8).double(), ones(8), labels, 0, True),
        lambda: compiled.cross_entropy(ones(2, 8), ones(7), labels, 0, True),
        lambda: compiled.cross_entropy(ones(2, 8), ones(8), labels[:1], 0, True),
        lambda: compiled.quantize_rows(ones(2, 3, dtype=torch.float64)),
        lambda: compiled.quantize_rows(ones(2, (1 << 16) + 1)),
        lambda: compiled.finish_rows(ones(2, 3), ones(1, 1), ones(3)),
        lambda: compiled.finish_rows(ones(2, 3), ones(2, 1), ones(3), False, torch.int8),
        lambda: compiled.drop(ones(2, 8).double(), draws),
        lambda: compiled.drop(ones(8, 2).T, draws),
        lambda: compiled.drop(ones(2, 8), draws, ones(2, 7)),
        lambda: compiled.drop(ones(2, 8), draws, ones(2, 8).bfloat16()),
        lambda: compiled.attend_dropped(query, keys, keys[:, :, :3], None, False, draws),
        lambda: compiled.attend_dropped(query, keys.bfloat16(), keys.bfloat16(), None, False, draws),
        lambda: compiled.attend_dropped(*ones(3, 2, 3, 4, 7).bfloat16(), None, False, draws),
        lambda: compiled.attend_dropped(*ones(3, 2, 3, 4, 9).bfloat16()[..., :8], None, False, draws),
        lambda: compiled.attend_dropped(*ones(3, 193).bfloat16()[:, 1:].view(3, 2, 3, 4, 8), None, False, draws),
        lambda: compiled.attend_dropped_backward(query.bfloat16(), query, keys, keys, None, False, draws),
        lambda: compiled.attend_dropped(query, keys, keys, ones(2, 1, 3, 4), False, draws),
        lambda: compiled.attend_dropped(query, keys, keys, ones(2, 1, 4, 4).bfloat16(), False, draws),
        lambda: compiled.attend_dropped_backward(ones(2, 3, 4, 8), query, keys, keys, None, False, draws),
        lambda: compiled.attend_dropped(query, keys, keys, Spans(torch.arange(5), torch.arange(5)), False, draws),
        lambda: compiled.attend_dropped(
            query[:1], keys[:1], keys[:1], Spans(*torch.arange(8).view(2, 4)), False, draws
        ),
        lambda: Spans(torch.arange(3), torch.arange(4)),
    ]
    of_products = [
        lambda: compiled.multiply(ones(2, 9), codes),
        lambda: compiled.multiply(ones(8, 2).T, codes),
        lambda: compiled.multiply(ones(2, 8), PackedCodes(ones(64, 8, dtype=torch.int8), ones(64), ones(64), 64)),
    ]
    of_products_in_fp32 = [
        lambda: compiled.multiply_fp32(ones(2, 9), weight),
        lambda: compiled.multiply_fp32(ones(2, 8).bfloat16(), weight),
        lambda: compiled.multiply_fp32(ones(2, 8), PackedWeight(ones(64, 8), ones(64), 64)),
    ]
    of_attention_in_int8 = [
        lambda: compiled.attend_many(query, keys, keys[:, :, :3]),
        lambda: compiled.attend_many(query[..., :32], keys[..., :32], keys[..., :32]),
        lambda: compiled.attend_many(query, keys, keys, ones(2, 1, 4, 4)),
    ]
    calls += of_products * compiled.multiplies + of_products_in_fp32 * compiled.multiplies_fp32
    for call in calls + of_attention_in_int8 * compiled.attends_in_int8:
        with pytest.raises(ValueError, match="a kernel got a tensor"):
            call()


@needs_compiler
def test_a_kernel_that_finds_no_memory_says_so(tmp_path: Path, cache: Path) -> None:
    header = tmp_path / "no_memory.h"
    header.write_text(
        "#include <stdlib.h>\n"
        "static void *no_memory(size_t line, size_t bytes) { return line + bytes ? NULL : &no_memory; }\n"
        "#define aligned_alloc no_memory\n"
    )
    failing = kernels.compile_kernels("-O0", "-include", str(header))
    states = torch.ones(1, 1, 4, 64)
    with pytest.raises(MemoryError, match="attend"):
        failing.attend(states, states, states)
    with pytest.raises(MemoryError, match="cross_entropy"):
        failing.cross_entropy(torch.ones(1, 4), torch.ones(4), torch.tensor([0]), 0.0, True)
    with pytest.raises(MemoryError, match="attend_dropped"):
        failing.attend_dropped(states, states, states, None, False, Draws(0, 5, 1.0))
    if failing.attends_in_int8:
        with pytest.raises(MemoryError, match="attend_many"):
            failing.attend_many(states, states, states)
    if failing.multiplies:
        weight = PackedCodes(torch.ones(3, 4, dtype=torch.int8), torch.ones(3), torch.ones(3), failing.panel)
        with pytest.raises(MemoryError, match="multiply"):
            failing.multiply(torch.ones(2, 4), weight)


UNDEFINED = """
import torch
from bart.modeling.kernels import PackedCodes, compile_kernels
kernels = compile_kernels("-O0", "-fsanitize=float-cast-overflow", "-fsanitize-undefined-trap-on-error")
for bad in (torch.nan, torch.inf, -torch.inf):
    states = torch.randn(2, 8, 2, 64)
    states[0, 1, 1, 3] = bad
    rows = states.view(4, -1)
    kernels.quantize_rows(rows)
    kernels.code_heads(states.flatten(2), 1, 2)
    kernels.attend(*[states.transpose(1, 2)] * 3)
    kernels.log_softmax(rows.clone())
    kernels.cross_entropy(rows.clone(), torch.ones(rows.shape[1]), torch.zeros(4, dtype=torch.int64), 0.1, True)
    kernels.finish_rows(rows.clone(), torch.ones(4, 1), torch.ones(rows.shape[1]), True, torch.bfloat16)
    if kernels.attends_in_int8:
        kernels.attend_many(*[states.transpose(1, 2)] * 3)
"""


@needs_compiler
def test_no_conversion_of_numbers_that_are_not_finite_is_undefined(cache: Path) -> None:
    """A conversion that C leaves undefined ends the process here."""
    done = subprocess.run([sys.executable, "-c", UNDEFINED], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


# Compiling and loading


@needs_compiler
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the processors named are those of x86-64")
@pytest.mark.parametrize(
    "processor", ["x86-64", "x86-64-v3", "alderlake", "skylake-avx512", "icelake-server", "sapphirerapids"]
)
def test_compiled_for_other_processors(processor: str) -> None:
    """The code that this processor does not run is at least valid C."""
    compiler = [*shlex.split(os.environ.get("CC", "cc")), *kernels.FLAGS.split(), "-O1", f"-march={processor}"]
    if subprocess.run([*compiler, "-E", "-x", "c", os.devnull], capture_output=True).returncode:
        pytest.skip("the compiler does not know this processor")
    strict = ["-Wall", "-Wextra", "-Werror", "-Wno-psabi", "-S", "-o", os.devnull]
    done = subprocess.run([*compiler, *strict, kernels.SOURCE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@needs_compiler
def test_compiled_once_by_processes_that_race(cache: Path) -> None:
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda _: kernels.compile_kernels("-O0"), range(2)))
    (library,) = cache.iterdir()
    written = library.stat().st_mtime_ns
    kernels.compile_kernels("-O0")
    assert [library.stat().st_mtime_ns] == [file.stat().st_mtime_ns for file in cache.iterdir()] == [written]
    kernels.compile_kernels("-O0", "-DBART_PLAIN")
    assert len(list(cache.iterdir())) == 2


@needs_compiler
def test_a_library_that_others_may_change_is_compiled_anew(cache: Path) -> None:
    kernels.compile_kernels("-O0")
    (library,) = cache.iterdir()
    assert cache.stat().st_mode & 0o777 == library.stat().st_mode & 0o777 == 0o700
    library.unlink()
    library.write_bytes(b"planted")
    library.chmod(0o722)
    states = torch.ones(1, 1, 1, 64)
    assert torch.equal(kernels.compile_kernels("-O0").attend(states, states, states), states[0])
    assert library.stat().st_mode & 0o777 == 0o700


@needs_compiler
def test_a_folder_that_others_may_change_is_not_used(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.mkdir(parents=True)
    cache.chmod(0o770)
    with pytest.raises(OSError, match="others may write"):
        kernels.compile_kernels("-O0")
    cache.chmod(0o700)
    monkeypatch.setattr(os, "geteuid", lambda: cache.stat().st_uid + 1)
    with pytest.raises(OSError, match="is not owned by this user"):
        kernels.compile_kernels("-O0")
    assert list(cache.iterdir()) == []


@needs_compiler
def test_copies_and_pickles_are_those_of_the_machine() -> None:
    loaded = kernels.load()
    assert loaded is not None
    assert copy.deepcopy([loaded]) == pickle.loads(pickle.dumps([loaded])) == [loaded]


@pytest.mark.parametrize(
    "name, value, reason",
    [
        ("BART_KERNELS", "0", "BART_KERNELS is 0"),
        pytest.param("PATH", "", "No such file or directory", marks=needs_compiler),
        pytest.param("CC", "false", "the compiler fails", marks=needs_compiler),
        pytest.param("CC", "cc --no-such-option", "--no-such-option", marks=needs_compiler),
        pytest.param("XDG_CACHE_HOME", "/dev/null", "/dev/null", marks=needs_compiler),
    ],
)
def test_without_a_compiler_one_line_says_so(
    name: str, value: str, reason: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(name, value)
    kernels.load.cache_clear()
    try:
        with caplog.at_level(logging.INFO):
            assert kernels.load() is None
            assert kernels.load() is None
    finally:
        kernels.load.cache_clear()
    (record,) = caplog.records
    assert record.levelno == logging.INFO and record.exc_info is None
    message = record.getMessage()
    assert reason in message and "torch computes" in message and "\n" not in message


THREADS = """
import os, torch
from bart.modeling.kernels import load
torch.set_num_threads(2)
one = torch.ones(1000, 1000)
torch.add(one, one)
threads = len(os.listdir("/proc/self/task"))
keys = torch.ones(4, 16, 256, 64).bfloat16()
assert (load().attend(keys[:, :, :4], keys, keys) == 1).all()
assert (load().finish_rows(one, torch.ones(1000, 1), torch.zeros(1000)) == 1).all()
with open("/proc/self/maps") as maps:
    files = {line.split()[-1] for line in maps if "/" in line}
print(*sorted(name for name in map(os.path.basename, files) if name.startswith(("libgomp", "libomp", "libiomp"))))
print(len(os.listdir("/proc/self/task")) - threads)
"""


@needs_compiler
def test_threads_are_those_of_torch() -> None:
    """In a fresh process, one OpenMP library is loaded, and the kernels start no threads of their own."""
    done = subprocess.run([sys.executable, "-c", THREADS], cwd=ROOT, check=True, capture_output=True, text=True)
    libraries, more_threads = done.stdout.splitlines()
    assert len(libraries.split()) == 1
    assert more_threads == "0"
