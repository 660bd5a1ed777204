"""Operators that are slow in torch on CPUs: dropout, attention with dropout or of spans, and attention in bf16.

Attention handles only as many heads at once as have room for their scores in the processor's cache.

Shapes: B batch, H heads, T queries, L keys, Dh head width.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from bart.generation.cache import additive
from bart.modeling.kernels import FLOATS, NO_DRAWS, Draws, Kernels, Spans, laid_out, load

SCORES_AT_ONCE = 2**22  # bytes of attention scores
LEVELS = 2**16  # of a draw; a probability of dropping is a multiple of 1 / LEVELS


def draw_kept(shape: Sequence[int], probability: float) -> tuple[Tensor, float]:
    """A mask that is true at random places, a share `1 - probability` of them, and the factor for what is kept.

    Each place takes 16 random bits, and torch draws them for four places at once; `Tensor.bernoulli_` takes three times
    as long. The factor is the inverse of the share.
    """
    count = math.prod(shape)
    draws = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None)
    dropped = min(round(probability * LEVELS), LEVELS - 1)
    kept = draws.view(torch.int16)[:count].view(shape) >= dropped - LEVELS // 2
    return kept, LEVELS / (LEVELS - dropped)


def dropout(states: Tensor, probability: float, added: Tensor | None = None) -> Tensor:
    """As torch.nn.functional.dropout in training, with other draws; what is added comes on top.

    The compiled kernels draw again in the backward pass, which else needs a byte for each place.
    """
    if (kernels := _kernels_for(states)) is not None and (added is None or added.dtype == torch.float32):
        return _CompiledDropout.apply(states, added, Draws.with_probability(probability), kernels)
    dropped = _Dropout.apply(states, probability)
    return dropped if added is None else added + dropped


def _kernels_for(states: Tensor) -> Kernels | None:
    """The compiled kernels where they take such states."""
    return load() if states.dtype in FLOATS else None


class _CompiledDropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, states: Tensor, added: Tensor | None, draws: Draws, kernels: Kernels) -> Tensor:
        ctx.draws, ctx.kernels, ctx.dtype, ctx.adds = draws, kernels, states.dtype, added is not None
        return kernels.drop(states.contiguous(), draws, None if added is None else added.contiguous())

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        of_states = ctx.kernels.drop(gradient.contiguous(), ctx.draws).to(ctx.dtype)
        return of_states, gradient if ctx.adds else None, None, None


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, states: Tensor, probability: float) -> Tensor:
        kept, ctx.scale = draw_kept(states.shape, probability)
        ctx.save_for_backward(kept)
        return states.where(kept, 0).mul_(ctx.scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor, None]:
        (kept,) = ctx.saved_tensors
        return gradient.where(kept, 0).mul_(ctx.scale), None


def attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Attention as two products. In bf16 this takes about half the time of torch's fused kernel.

    Arguments and result are those of `attend_with_dropout`. There is no gradient.
    """
    mask = _additive(mask, query.dtype)
    context = torch.empty_like(query)
    query = query * query.shape[3] ** -0.5
    for part in _parts(query, keys):
        context[part] = _scores(query, keys, mask, part).softmax(dim=-1) @ values[part]
    return context


def attend_with_dropout(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | Spans | None, is_causal: bool, probability: float
) -> Tensor:
    """Attention with dropout of its weights, for training; of spans also without, with a probability of 0.

    `scaled_dot_product_attention` keeps scores, weights and draws of all heads in fp32 for the backward pass. This
    computes the weights again (Dao et al., 2022, appendix B.4). In fp32 compiled kernels draw again, too; in bf16,
    which some processors multiply faster, and without a compiler it keeps a byte for each weight.

    Args:
        query, keys, values: (B, H, T or L, Dh).
        mask: (B or 1, 1, T or 1, L), true, or 0, where a key may be read, and false, or -inf, elsewhere; or spans,
            where `takes_spans`.
        is_causal: in place of a mask of numbers, a query reads the keys up to its own position.

    Returns:
        (B, H, T, Dh), in memory (B, T, H, Dh).
    """
    if takes_spans(query):
        draws = Draws.with_probability(probability) if probability else NO_DRAWS  # whose backward pass takes less
        mask = mask if isinstance(mask, Spans) else _additive(mask, query.dtype)
        return _CompiledAttention.apply(query, keys, values, mask, is_causal, draws, load())
    if is_causal:
        mask = query.new_ones(query.shape[2], keys.shape[2], dtype=torch.bool).tril()[None, None]
    return _AttendWithDropout.apply(query, keys, values, _additive(mask, query.dtype), probability)


def takes_spans(query: Tensor) -> bool:
    """Whether `attend_with_dropout` takes spans for a mask: where it runs compiled kernels."""
    return query.dtype == torch.float32 and load() is not None


class _CompiledAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: FunctionCtx,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor | Spans | None,
        is_causal: bool,
        draws: Draws,
        kernels: Kernels,
    ) -> Tensor:
        ctx.save_for_backward(query, keys, values, None if isinstance(mask, Spans) else mask)
        ctx.spans = mask if isinstance(mask, Spans) else None
        ctx.is_causal, ctx.draws, ctx.kernels = is_causal, draws, kernels
        return kernels.attend_dropped(query, keys, values, mask, is_causal, draws)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        *states, mask = ctx.saved_tensors
        found = ctx.kernels.attend_dropped_backward(gradient, *states, ctx.spans or mask, ctx.is_causal, ctx.draws)
        return *found, None, None, None, None


class _AttendWithDropout(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: FunctionCtx, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, probability: float
    ) -> Tensor:
        kept, ctx.scale = draw_kept((*query.shape[:3], keys.shape[2]), probability)
        context = laid_out(query)
        scaled = query * query.shape[3] ** -0.5
        for part in _parts(query, keys):
            weights = _weights(scaled, keys, mask, part)
            context[part] = weights.mul_(kept[part]).to(values.dtype) @ values[part]
        context *= ctx.scale
        ctx.save_for_backward(query, keys, values, mask, kept, context)
        return context

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, keys, values, mask, kept, context = ctx.saved_tensors
        factor, dtype = query.shape[3] ** -0.5, query.dtype
        scaled = query * factor
        of_query, of_keys, of_values = laid_out(query), laid_out(keys), laid_out(values)
        # Softmax's derivative subtracts the sum over keys of weights times their gradients.
        correction = (gradient.to(torch.promote_types(dtype, torch.float32)) * context).sum(dim=-1, keepdim=True)
        gradient = gradient * ctx.scale
        for part in _parts(query, keys):
            weights = _weights(scaled, keys, mask, part)
            kept_part = kept[part].to(weights.dtype)
            of_values[part] = (weights * kept_part).to(dtype).transpose(2, 3) @ gradient[part]
            of_weights = (gradient[part] @ values[part].transpose(2, 3)).to(weights.dtype)
            of_scores = of_weights.mul_(kept_part).sub_(correction[part]).mul_(weights).to(dtype)
            of_query[part] = of_scores @ keys[part]
            of_keys[part] = of_scores.transpose(2, 3) @ scaled[part]
        return of_query.mul_(factor), of_keys, of_values, None, None


Part = tuple[slice, slice]  # articles and heads


def _parts(query: Tensor, keys: Tensor) -> Iterator[Part]:
    articles, heads, length, _ = query.shape
    per_head = length * keys.shape[2] * query.element_size()
    if articles * heads * per_head <= SCORES_AT_ONCE:
        yield slice(None), slice(None)
        return
    step = max(1, SCORES_AT_ONCE // per_head)
    for article in range(articles):
        for head in range(0, heads, step):
            yield slice(article, article + 1), slice(head, head + step)


def _additive(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """(B or 1, 1, T or 1, L): 0 where a key may be read, elsewhere so low that the key gets no weight.

    Finite, so that a query that may read nothing does not get NaN.
    """
    if mask is None or mask.dtype != torch.bool:
        return mask
    return additive(mask, dtype, torch.finfo(dtype).min)


def _scores(query: Tensor, keys: Tensor, mask: Tensor | None, part: Part) -> Tensor:
    scores = query[part] @ keys[part].transpose(2, 3)
    return scores if mask is None else scores.add_(mask[part[0]] if len(mask) > 1 else mask)


def _weights(query: Tensor, keys: Tensor, mask: Tensor | None, part: Part) -> Tensor:
    """Attention weights of a part, at least in fp32."""
    scores = _scores(query, keys, mask, part)
    return scores.softmax(dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32))
