"""Operators that are slow in torch on CPUs: dropout, attention with dropout or of spans, and attention in bf16.

The compiled ones have other draws than torch, and draw again in the backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from bart.cpu.kernels import Draws, Kernels, Spans
from bart.generation.cache import additive

SCORES_AT_ONCE = 2**22  # bytes of attention scores that have room in a processor's cache


class CompiledDropout(torch.autograd.Function):
    """States in fp32 or bf16 after dropout, on top of what is added, in fp32, if anything."""

    @staticmethod
    def forward(ctx: FunctionCtx, states: Tensor, added: Tensor | None, draws: Draws, kernels: Kernels) -> Tensor:
        ctx.draws, ctx.kernels, ctx.dtype, ctx.adds = draws, kernels, states.dtype, added is not None
        return kernels.drop(states.contiguous(), draws, None if added is None else added.contiguous())

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        of_states = ctx.kernels.drop(gradient.contiguous(), ctx.draws).to(ctx.dtype)
        return of_states, gradient if ctx.adds else None, None, None


class CompiledAttention(torch.autograd.Function):
    """Attention with dropout of its weights, or of spans; arguments are those of `Kernels.attend_dropped`, and kernels.

    The backward pass computes the weights again (Dao et al., 2022, appendix B.4).
    """

    @staticmethod
    def forward(ctx: FunctionCtx, *arguments: Any) -> Tensor:
        *states, mask, is_causal, draws, kernels = arguments
        ctx.save_for_backward(*states, None if isinstance(mask, Spans) else mask)
        ctx.spans = mask if isinstance(mask, Spans) else None
        ctx.is_causal, ctx.draws, ctx.kernels = is_causal, draws, kernels
        return kernels.attend_dropped(*states, mask, is_causal, draws)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionCtx, gradient: Tensor) -> tuple[Tensor | None, ...]:
        *states, mask = ctx.saved_tensors
        mask = ctx.spans or mask
        gradients = ctx.kernels.attend_dropped_backward(gradient, *states, mask, ctx.is_causal, ctx.draws)
        return *gradients, None, None, None, None


def attend_in_parts(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """`Backend.attend` as two products, of so many heads at once that their scores have room in the processor's cache.

    In bf16 this takes about half the time of torch's fused kernel. There is no gradient.
    """
    mask = finite_mask(mask, query.dtype)
    context = torch.empty_like(query)
    query = query * query.shape[3] ** -0.5
    for part in _parts(query, keys):
        scores = query[part] @ keys[part].transpose(2, 3)
        if mask is not None:
            scores += mask[part[0]] if len(mask) > 1 else mask
        context[part] = scores.softmax(dim=-1) @ values[part]
    return context


def _parts(query: Tensor, keys: Tensor) -> Iterator[tuple[slice, slice]]:
    articles, heads, length, _ = query.shape
    per_head = length * keys.shape[2] * query.element_size()
    if articles * heads * per_head <= SCORES_AT_ONCE:
        yield slice(None), slice(None)
        return
    step = max(1, SCORES_AT_ONCE // per_head)
    for article in range(articles):
        for head in range(0, heads, step):
            yield slice(article, article + 1), slice(head, head + step)


def finite_mask(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """(B or 1, 1, T or 1, L): 0 where a key may be read, elsewhere so low that the key gets no weight.

    Finite, so that a query that may read nothing does not get NaN.
    """
    if mask is None:
        return None
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return additive(mask, dtype, torch.finfo(dtype).min)
