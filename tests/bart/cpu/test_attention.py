"""Attention for decoding against torch in double precision, and what it reads."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from bart.cpu import kernels
from bart.cpu.kernels import Kernels
from tests.bart.cpu.common import EXPONENTIAL, H, U, decoded, threads


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


SHAPES = [  # articles, heads, queries, length, width
    *((1, 1, 1, 1, 64), (2, 3, 1, 17, 64), (4, 2, 4, 1024, 64), (2, 2, 6, 100, 64), (3, 2, 7, 15, 64)),
    *((1, 2, 16, 33, 64), (2, 1, 35, 35, 64), (1, 2, 5, 1100, 64), (1, 1, 11, 16, 64), (2, 2, 3, 48, 64)),
    *((2, 2, 4, 50, 8), (1, 3, 6, 33, 20), (1, 2, 18, 40, 16), (1, 1, 2, 70, 80), (1, 1, 1, 1, 1), (1, 2, 0, 9, 64)),
    *((2, 3, 4, 50, 32), (1, 2, 7, 33, 32), (1, 1, 16, 16, 32)),
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


def test_attention_with_emulated_bf16_instructions(emulated: Kernels) -> None:
    """The code for processors that multiply bf16."""
    for shape in SHAPES:
        test_attention(emulated, shape, "bf16")
        test_attention(emulated, shape, "bf16 from bf16")


def test_bf16_keys_without_bf16_instructions_lose_nothing(compiler: None) -> None:
    query, (keys, values) = torch.randn(2, 3, 4, 64), torch.randn(2, 2, 3, 200, 64).bfloat16()
    mask = random_mask(2, 4, 200)
    context = kernels.Kernels("-DBART_PLAIN").attend(query, keys, values, mask)
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
