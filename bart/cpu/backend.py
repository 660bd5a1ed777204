"""The backend for CPUs, with compiled kernels where there are any for a type."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from bart.cpu.kernels import FLOATS, NO_DRAWS, Draws, Spans, load
from bart.cpu.operators import CompiledAttention, CompiledDropout, finite_mask
from bart.rounding import recurring
from bart.unpadding import Unpadded, UnpaddingBackend, until_last


class CpuRows(Unpadded):
    """The rows of a batch's tokens, of which the compiled attention is told by `Spans`."""

    def reading(self, source: Unpadded) -> Spans:
        return Spans(self.starts, source.starts)


class CpuBackend(UnpaddingBackend):
    """Compiled kernels, other arrangements of torch's operations, and in training rows without padding.

    `torch.compile` cannot read the kernels, so the code that it makes has torch's attention and dropout.
    """

    def rows_of(self, states: Tensor, mask: Tensor | None, up_to_last: bool = False) -> Unpadded:
        is_token = torch.tensor(True) if mask is None else mask.bool()
        if up_to_last and mask is not None:
            is_token = until_last(is_token)
        return CpuRows(is_token.expand(states.shape[:2]), partial(recurring, states=states))

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, mask: Any, is_causal: bool = False, dropout: float = 0.0
    ) -> Tensor:
        """Attend like `Backend.attend`, also under spans, where B = 1.

        The kernels take fp32, and bf16, whose numbers they read in pairs.
        """
        if torch.compiler.is_compiling():
            return super().attend(query, keys, values, mask, is_causal, dropout)
        has_spans = isinstance(mask, Spans)
        fits = query.dtype == torch.float32 or (query.dtype == torch.bfloat16 and query.shape[3] % 2 == 0)
        if (has_spans or dropout) and fits and (kernels := load()) is not None:
            draws = Draws.with_probability(dropout) if dropout else NO_DRAWS  # whose backward pass takes less
            mask = mask if has_spans else finite_mask(mask, torch.float32)
            return CompiledAttention.apply(query, keys, values, mask, is_causal, draws, kernels)
        if has_spans:
            counts = mask.query_counts, mask.key_counts, mask.key_counts
            parts = (states.split(count, dim=2) for states, count in zip((query, keys, values), counts, strict=True))
            articles = [self.attend(q, k, v, None, is_causal, dropout) for q, k, v in zip(*parts, strict=True)]
            return torch.cat(articles, dim=2)
        return super().attend(query, keys, values, mask, is_causal, dropout)

    def dropout(self, states: Tensor, probability: float, added: Tensor | None = None) -> Tensor:
        fits = states.dtype in FLOATS and (added is None or added.dtype == torch.float32)
        if probability and fits and not torch.compiler.is_compiling() and (kernels := load()) is not None:
            return CompiledDropout.apply(states, added, Draws.with_probability(probability), kernels)
        return super().dropout(states, probability, added)

    def cross_entropy(
        self, logits: Tensor, bias: Tensor, labels: Tensor, label_smoothing: float, gradients: bool
    ) -> tuple[Tensor, Tensor]:
        kernels = load() if logits.dtype in FLOATS and bias.dtype == torch.float32 else None
        compute = super().cross_entropy if kernels is None else kernels.cross_entropy
        return compute(logits, bias, labels, label_smoothing, gradients)
