"""Attention with dropout, and its gradients, against autograd in double precision, for batches and for spans."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from bart.cpu.kernels import NO_DRAWS, Draws, Kernels
from bart.rows import Spans
from tests.bart.cpu.common import EXPONENTIAL, H, U, kept_of, rows_of, threads


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
    actual = compiled.attend_dropped(query, keys, values, mask, is_causal, draws)
    assert actual.transpose(1, 2).is_contiguous()
    bound = (dropped @ v) * (relative + (length + 4) * U + 2.1 * halved)
    assert ((actual - context).abs() <= bound + 1e-30).all()
    others = compiled.attend_dropped_backward(gradient, query, keys, values, mask, is_causal, draws)
    for ours, theirs, bound in zip(others, expected, errors, strict=True):
        assert ((ours - theirs).abs() <= bound + 1e-30).all()


def test_attention_with_emulated_bf16_instructions(emulated: Kernels) -> None:
    """The code for processors that multiply bf16."""
    for shape, mask_of in (((2, 3, 50, 71, 32), "articles"), ((2, 2, 97, 33, 20), "the future")):
        test_attention_with_dropout_and_its_gradients(emulated, torch.bfloat16, shape, mask_of)


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
SPANS = Spans(rows_of([50, 0, 0, 6]), rows_of([33, 0, 7, 1]))


def spanned_states() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries (1, 3, 57, 20), keys and values (1, 3, 42, 20), and the gradient of what comes out."""
    query, gradient = torch.randn(2, 1, 57, 3, 20).transpose(2, 3)
    return query, *torch.randn(2, 1, 3, 42, 20), gradient


@pytest.mark.parametrize("is_causal", [False, True])
def test_spans_are_articles_of_their_own(compiled: Kernels, is_causal: bool) -> None:
    """To the bit: each article's results are those that it has alone."""
    query, keys, values, gradient = spanned_states()
    spans = Spans(SPANS.keys, SPANS.keys) if is_causal else SPANS
    if is_causal:
        query, gradient = query[:, :, :42], gradient[:, :, :42]
    context = compiled.attend_dropped(query, keys, values, spans, is_causal, NO_DRAWS)
    others = compiled.attend_dropped_backward(gradient, query, keys, values, spans, is_causal, NO_DRAWS)
    for number in range(5):
        q, k = (slice(*rows.starts[number : number + 2].tolist()) for rows in spans)
        alone = query[:, :, q], keys[:, :, k], values[:, :, k], None, is_causal, NO_DRAWS
        assert compiled.attend_dropped(*alone).equal(context[:, :, q])
        expected = compiled.attend_dropped_backward(gradient[:, :, q], *alone)
        for ours, theirs, part in zip(others, expected, (q, k, k), strict=True):
            assert ours[:, :, part].equal(theirs)


def test_draws_of_spans_are_the_same_backwards(compiled: Kernels) -> None:
    """The context is linear in the values: what it weighs them by, their gradient weighs the context's gradient by."""
    query, keys, values, gradient = spanned_states()
    draws = Draws.with_probability(0.4)
    arguments = query, keys, values, SPANS, False, draws
    context = compiled.attend_dropped(*arguments)
    assert not context.equal(compiled.attend_dropped(*arguments[:-1], NO_DRAWS))
    _, _, of_values = compiled.attend_dropped_backward(gradient, *arguments)
    one, other = ((a.double() * b).sum() for a, b in ((context, gradient), (of_values, values)))
    sizes = compiled.attend_dropped(query, keys, values.abs(), *arguments[3:]).double() * gradient.abs()
    # Twice what one pass may err by in the test above, where no score is over 40.
    relative = 2 * (20 + 4) * U * 40 + 2 * EXPONENTIAL + (2 * 33 + 12) * U
    assert (one - other).abs() <= 2 * (relative + (33 + 57 + 8) * U) * sizes.sum()
