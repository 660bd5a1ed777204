"""Attention of many queries in int8 against torch in double precision, and what it reads."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from bart.cpu.kernels import Kernels
from tests.bart.cpu.common import H, U, needs, threads


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
