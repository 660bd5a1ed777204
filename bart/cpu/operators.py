"""Operators that are slow in torch on CPUs: dropout, and attention with dropout or of spans.

The compiled ones have other draws than torch, and draw again in the backward pass.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from bart.cpu.kernels import Draws, Kernels
from bart.rows import Spans


class CompiledDropout(torch.autograd.Function):
    """States in fp32 or bf16 after dropout, on top of what is added, in fp32, if anything."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, added: Tensor | None, draws: Draws, kernels: Kernels) -> Tensor:
        ctx.draws, ctx.kernels, ctx.dtype, ctx.adds = draws, kernels, states.dtype, added is not None
        return kernels.drop(states.contiguous(), draws, None if added is None else added.contiguous())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        of_states = ctx.kernels.drop(gradient.contiguous(), ctx.draws).to(ctx.dtype)
        return of_states, gradient if ctx.adds else None, None, None


class CompiledAttention(torch.autograd.Function):
    """Attention with dropout of its weights, or of spans; arguments are those of `Kernels.attend_dropped`, and kernels.

    The backward pass computes the weights again (Dao et al., 2022, appendix B.4).
    """

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Tensor:
        *states, mask, is_causal, draws, kernels = arguments
        ctx.save_for_backward(*states, None if isinstance(mask, Spans) else mask)
        ctx.spans = mask if isinstance(mask, Spans) else None
        ctx.is_causal, ctx.draws, ctx.kernels = is_causal, draws, kernels
        return kernels.attend_dropped(*states, mask, is_causal, draws)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        *states, mask = ctx.saved_tensors
        mask = ctx.spans or mask
        gradients = ctx.kernels.attend_dropped_backward(gradient, *states, mask, ctx.is_causal, ctx.draws)
        return *gradients, None, None, None, None
