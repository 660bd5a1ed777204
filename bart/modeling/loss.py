"""Cross entropy over a vocabulary, in chunks of tokens: the logits of all tokens are never in memory together."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from bart.backend import IGNORE_INDEX, TORCH, Backend, product
from bart.generation.cache import padded
from bart.rounding import fast_side, multiple_of_rows, round_to_few

# Logits computed at once, 128 MB in fp32. Fewer make the matrix products small, more only take memory.
LOGITS_AT_ONCE = 2**25


def chunked_cross_entropy(
    states: Tensor,
    weight: Tensor,
    bias: Tensor,
    labels: Tensor,
    label_smoothing: float = 0.0,
    backend: Backend = TORCH,
) -> tuple[Tensor, Tensor]:
    """Label-smoothed cross entropy (Szegedy et al., 2016, section 7) of the logits `states · weightᵀ + bias`.

    Value and gradients are those of `torch.nn.functional.cross_entropy(logits.float(), ..., reduction="sum")`. The
    gradients are computed in the forward pass, chunk by chunk, so that nothing of the size (N, V) is kept.

    Args:
        states, weight, bias: (N, D), (V, D) and (V,).
        labels: (N,) ids, -100 where there is no target.

    Returns:
        The loss summed over the targets, in fp32 (fp64 of fp64 states); and, where no gradients are wanted, the number
        of targets that are the arg-max of their row, otherwise 0. Both are scalars.
    """
    if states.device.type == "cpu":  # counting the targets of another device would wait for it
        states, labels = _targets_alone(states, labels)
    given = states, weight, bias
    with_gradients = tuple(torch.is_grad_enabled() and tensor.requires_grad for tensor in given)
    return _ChunkedCrossEntropy.apply(*given, labels, label_smoothing, with_gradients, backend)


def _targets_alone(states: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of states (N, D) and of labels (N,) that have a target.

    Some rows of zeros without a target may follow, so that numbers of rows recur.
    """
    places = (labels != IGNORE_INDEX).nonzero().squeeze(1)
    is_half = states.dtype in (torch.bfloat16, torch.float16) or torch.is_autocast_enabled("cpu")
    spare = round_to_few(len(places), multiple_of_rows("cpu", is_half)) - len(places)
    states = F.pad(states.index_select(0, places), (0, 0, 0, spare))
    return states, F.pad(labels[places], (0, spare), value=IGNORE_INDEX)


def loss_of_tokens(logits: Tensor, labels: Tensor | None) -> Tensor | None:
    """The mean cross entropy of logits (B, T, V or N) and labels (B, T), -100 where there is none, if given."""
    if labels is None:
        return None
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE_INDEX)


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor,
        labels: Tensor,
        label_smoothing: float,
        with_gradients: tuple[bool, ...],
        backend: Backend,
    ) -> tuple[Tensor, Tensor]:
        kind = states.device.type
        precise = torch.promote_types(states.dtype, torch.float32)
        # Half precision in which autocast, or the network itself, multiplies.
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
        size = max(1, LOGITS_AT_ONCE // len(weight))
        wants_gradients = any(with_gradients)
        of_states_wanted, of_weight_wanted, of_bias_wanted = with_gradients
        losses: Any = 0
        correct = torch.zeros((), dtype=torch.long, device=states.device)
        of_states = torch.empty_like(states) if of_states_wanted else None
        of_weight = None
        of_bias = torch.zeros_like(bias, dtype=precise) if of_bias_wanted else None
        ctx.dtypes = states.dtype, weight.dtype, bias.dtype
        with torch.autocast(kind, enabled=False):
            side = fast_side(len(weight)) if kind == "cuda" else len(weight)
            matrix, bias = padded(weight.to(dtype), 0, side), bias.to(precise)

            def add_chunk(part: slice) -> None:  # a function, which keeps nothing of one chunk for the next
                nonlocal losses, of_weight
                chunk = states[part].to(dtype)
                logits = chunk @ matrix.t()
                of_rows, gradients_or_hits = backend.cross_entropy(
                    logits[:, : len(weight)], bias, labels[part], label_smoothing, wants_gradients
                )
                losses = losses + of_rows.sum()
                if not wants_gradients:
                    correct.add_(gradients_or_hits.sum())
                if of_states is not None:
                    is_in_place = gradients_or_hits.data_ptr() == logits.data_ptr()  # and logits behind V are 0
                    of_states[part] = (logits if is_in_place else padded(gradients_or_hits, 1, side)) @ matrix
                if of_weight_wanted:
                    of_chunk = product(gradients_or_hits.t(), chunk, precise)
                    of_weight = of_chunk if of_weight is None else of_weight.add_(of_chunk)
                if of_bias is not None:
                    of_bias.add_((labels[part] != IGNORE_INDEX).to(dtype) @ gradients_or_hits)

            for start in range(0, max(1, len(states)), size):  # once without targets, too, for gradients of zeros
                add_chunk(slice(start, start + size))
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(of_states, of_weight, of_bias)
        ctx.mark_non_differentiable(correct)
        return losses, correct

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_loss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        # The factor is a vector of one, so that halves are multiplied in fp32: the scale of a loss may exceed fp16.
        gradients = (
            None if gradient is None else (gradient * of_loss[None]).to(dtype)
            for gradient, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        )
        return *gradients, None, None, None, None
