"""The backend for CPUs, with compiled kernels where there are any for a type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bart.backend import Backend, Mask, Streams, join
from bart.cpu.kernels import FLOATS, NO_DRAWS, Draws, load
from bart.cpu.operators import CompiledAttention, CompiledDropout
from bart.generation.cache import additive
from bart.rows import Spans


class CpuBackend(Backend):
    """Compiled kernels, and other arrangements of torch's operations."""

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, mask: Mask, is_causal: bool = False, dropout: float = 0.0
    ) -> Tensor:
        """Attend like `Backend.attend`; the kernels take fp32, and bf16, whose numbers they read in pairs."""
        applies = isinstance(mask, Spans) or dropout
        fits = query.dtype == torch.float32 or (query.dtype == torch.bfloat16 and query.shape[3] % 2 == 0)
        if applies and fits and (kernels := load()) is not None:
            draws = Draws.with_probability(dropout) if dropout else NO_DRAWS  # whose backward pass takes less
            if isinstance(mask, Tensor):
                # Finite, so that a query that may read nothing does not get NaN.
                low = torch.finfo(torch.float32).min
                mask = additive(mask, torch.float32, low) if mask.dtype == torch.bool else mask.float()
            return CompiledAttention.apply(query, keys, values, mask, is_causal, draws, kernels)
        return super().attend(query, keys, values, mask, is_causal, dropout)

    def project(self, states: Tensor, layers: Sequence[nn.Module]) -> tuple[Tensor, ...]:
        return join(states, layers) or super().project(states, layers)

    def add_and_norm(
        self, inner: Any, layer: nn.Module, states: Streams, norm: nn.Module, probability: float
    ) -> Streams:
        added, hidden = self.linear(inner, layer), states[0]
        fits = added.dtype == hidden.dtype == torch.float32 and type(norm) is nn.LayerNorm
        applies = fits and not (probability or torch.is_grad_enabled() or torch.compiler.is_compiling())
        if applies and (kernels := load()) is not None:
            hidden = kernels.add_and_norm(hidden.contiguous(), added.contiguous(), norm)
        else:
            hidden = norm(self.dropout(added, probability, added=hidden))
        return hidden, hidden, None

    def dropout(self, states: Tensor, probability: float, added: Tensor | None = None) -> Tensor:
        fits = states.dtype in FLOATS and (added is None or added.dtype == torch.float32)
        if probability and fits and (kernels := load()) is not None:
            return CompiledDropout.apply(states, added, Draws.with_probability(probability), kernels)
        return super().dropout(states, probability, added)

    def cross_entropy(
        self, logits: Tensor, bias: Tensor, labels: Tensor, label_smoothing: float, gradients: bool
    ) -> tuple[Tensor, Tensor]:
        kernels = load() if logits.dtype in FLOATS and bias.dtype == torch.float32 else None
        compute = super().cross_entropy if kernels is None else kernels.cross_entropy
        return compute(logits, bias, labels, label_smoothing, gradients)

    def log_softmax(self, logits: Tensor) -> Tensor:
        kernels = load() if logits.dtype in FLOATS and logits.is_contiguous() else None
        return super().log_softmax(logits) if kernels is None else kernels.log_softmax(logits)

    def top_sums(self, scores: Tensor, bases: Tensor, count: int) -> tuple[Tensor, Tensor]:
        # A caller's processor may have made scores of another kind.
        fits = all(part.dtype == torch.float32 and part.is_contiguous() for part in (scores, bases))
        kernels = load() if fits else None
        return (super().top_sums if kernels is None else kernels.top_sums)(scores, bases, count)
