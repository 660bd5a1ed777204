"""The backend for CPUs, with compiled kernels where there are any for a type."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bart.backend import Backend, Rows
from bart.cpu.kernels import FLOATS, NO_DRAWS, Draws, Spans, load
from bart.cpu.operators import CompiledAttention, CompiledDropout, attend_in_parts, finite_mask
from bart.cpu.unpadding import Unpadded


class CpuBackend(Backend):
    """Compiled kernels, other arrangements of torch's operations, and in training rows without padding.

    `torch.compile` cannot read the kernels, so the code that it makes has torch's attention and dropout.

    Attributes:
        leaves_out_padding: in training, layers compute no padding, whose states are zeros then. The loss must not read
            them, as that of a question-answering head does: a softmax over all places.
    """

    def __init__(self, leaves_out_padding: bool = False) -> None:
        self.leaves_out_padding = leaves_out_padding

    def encoder_rows(self, states: Tensor, mask: Tensor | None) -> Rows:
        if self.leaves_out_padding:
            tokens = Unpadded(states, mask)
            if tokens.has_padding:
                return tokens
        return super().encoder_rows(states, mask)

    def decoder_rows(
        self,
        states: Tensor,
        mask: Tensor | None,
        wanted: Tensor | None,
        encoder_states: Tensor,
        encoder_mask: Tensor | None,
    ) -> tuple[Rows, Rows, Any]:
        """Choose like `Backend.decoder_rows`; without a mask, places behind the last wanted state are padding."""
        if self.leaves_out_padding and mask is None:
            until_last = None if wanted is None else wanted.flip(1).cumsum(dim=1).flip(1) > 0
            target, source = Unpadded(states, until_last), Unpadded(encoder_states, encoder_mask)
            # A target whose source has no token would have no key to read.
            if (target.has_padding or source.has_padding) and source.counts.all():
                return target, source, target.reading(source)
        return super().decoder_rows(states, mask, wanted, encoder_states, encoder_mask)

    def attend(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor | Spans | None,
        is_causal: bool = False,
        dropout: float = 0.0,
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
            articles = [self.attend(*part, None, is_causal, dropout) for part in zip(*parts, strict=True)]
            return torch.cat(articles, dim=2)
        if query.dtype == torch.bfloat16 and not (is_causal or dropout or torch.is_grad_enabled()):
            return attend_in_parts(query, keys, values, mask)
        return super().attend(query, keys, values, mask, is_causal, dropout)

    def dropout(self, states: Tensor, probability: float, added: Tensor | None = None) -> Tensor:
        fits = states.dtype in FLOATS and (added is None or added.dtype == torch.float32)
        if probability and fits and not torch.compiler.is_compiling() and (kernels := load()) is not None:
            return CompiledDropout.apply(states, added, Draws.with_probability(probability), kernels)
        return super().dropout(states, probability, added)

    def project(self, states: Tensor, layers: Sequence[nn.Module]) -> tuple[Tensor, ...]:
        """In training one product for all layers, unless adapters are in them."""
        if not (torch.is_grad_enabled() and all(type(layer) is nn.Linear for layer in layers)):
            return super().project(states, layers)
        weight, bias = (torch.cat([getattr(layer, name) for layer in layers]) for name in ("weight", "bias"))
        return F.linear(states, weight, bias).chunk(len(layers), dim=-1)

    def cross_entropy(
        self, logits: Tensor, bias: Tensor, labels: Tensor, label_smoothing: float, gradients: bool
    ) -> tuple[Tensor, Tensor]:
        kernels = load() if logits.dtype in FLOATS and bias.dtype == torch.float32 else None
        compute = super().cross_entropy if kernels is None else kernels.cross_entropy
        return compute(logits, bias, labels, label_smoothing, gradients)
