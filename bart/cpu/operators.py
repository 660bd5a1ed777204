"""Operators that are slow in torch on CPUs: dropout, attention with dropout or of spans, and attention in bf16.

Shapes: B batch, H heads, T queries, L keys, Dh head width.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from bart.cpu.kernels import NO_DRAWS, Draws, Kernels, Spans, load
from bart.generation.cache import additive

SCORES_AT_ONCE = 2**22  # bytes of attention scores that have room in a processor's cache


def dropout(states: Tensor, probability: float, added: Tensor | None = None) -> Tensor:
    """As torch.nn.functional.dropout in training, by a compiled kernel, which must be there.

    The kernel has other draws than torch, and draws again in the backward pass.

    Args:
        states: fp32 or bf16.
        added: in fp32, what comes on top, or None.
    """
    return _CompiledDropout.apply(states, added, Draws.with_probability(probability), load())


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


def attend_in_parts(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Attention as two products, of so many heads at once that their scores have room in the processor's cache.

    In bf16 this takes about half the time of torch's fused kernel.

    Arguments and result are those of `bart.backend.Backend.attend`. There is no gradient.
    """
    mask = _additive(mask, query.dtype)
    context = torch.empty_like(query)
    query = query * query.shape[3] ** -0.5
    for part in _parts(query, keys):
        scores = query[part] @ keys[part].transpose(2, 3)
        if mask is not None:
            scores += mask[part[0]] if len(mask) > 1 else mask
        context[part] = scores.softmax(dim=-1) @ values[part]
    return context


def runs_compiled_attention(query: Tensor) -> bool:
    """True if `attend_with_dropout` takes such queries: fp32, or bf16, whose numbers its kernels read in pairs."""
    is_fit = query.dtype == torch.float32 or (query.dtype == torch.bfloat16 and query.shape[3] % 2 == 0)
    return is_fit and load() is not None


def attend_with_dropout(
    query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | Spans | None, is_causal: bool, probability: float
) -> Tensor:
    """Attention with dropout of its weights, for training; of spans also without, with a probability of 0.

    `scaled_dot_product_attention` keeps scores, weights and draws of all heads in fp32 for the backward pass. The
    compiled kernels compute the weights again (Dao et al., 2022, appendix B.4), and draw again.

    Args:
        query, keys, values: (B, H, T or L, Dh), as `runs_compiled_attention` says.
        mask: (B or 1, 1, T or 1, L), true, or 0, where a key may be read, and false, or -inf, elsewhere; or spans.
        is_causal: in place of a mask of numbers, a query reads the keys up to its own position.

    Returns:
        (B, H, T, Dh), in memory (B, T, H, Dh).
    """
    draws = Draws.with_probability(probability) if probability else NO_DRAWS  # whose backward pass takes less
    mask = mask if isinstance(mask, Spans) else _additive(mask, torch.float32)
    return _CompiledAttention.apply(query, keys, values, mask, is_causal, draws, load())


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
    if mask is None:
        return None
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return additive(mask, dtype, torch.finfo(dtype).min)
