"""Cross entropy over a vocabulary without the logits of all tokens: in chunks, whose gradients are taken at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# Labels with this value are left out of the loss, as in torch.nn.functional.cross_entropy.
IGNORE_INDEX = -100
# Logits computed at once, 128 MB in fp32. Fewer make the matrix products small, more only take memory.
LOGITS_AT_ONCE = 2**25


def chunked_cross_entropy(
    states: Tensor, weight: Tensor, bias: Tensor, labels: Tensor, label_smoothing: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Label-smoothed cross entropy (Szegedy et al., 2016, section 7) of the logits `states · weightᵀ + bias`.

    The value and its gradients are those of `torch.nn.functional.cross_entropy(logits.float(), ..., reduction="sum")`.
    The logits of a chunk of tokens exist at a time. Where gradients are wanted they are computed in the forward pass,
    chunk by chunk, so that nothing of the size (N, V) is kept for the backward pass.

    Args:
        states: (N, D).
        weight: (V, D).
        bias: (1, V), which gets no gradient.
        labels: (N,) ids, -100 where there is no target.

    Returns:
        The loss summed over the targets, in fp32 (fp64 of fp64 states); and, where no gradients are wanted, the number
        of targets that are the arg-max of their row, otherwise 0. Both are scalars.
    """
    if states.device.type == "cpu":  # on a GPU, counting the targets would wait for the device
        places = (labels != IGNORE_INDEX).nonzero().squeeze(1)
        states, labels = states[places], labels[places]
    with_gradients = torch.is_grad_enabled() and (states.requires_grad, weight.requires_grad)
    return _ChunkedCrossEntropy.apply(states, weight, bias, labels, label_smoothing, with_gradients or (False, False))


class _ChunkedCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor,
        labels: Tensor,
        label_smoothing: float,
        with_gradients: tuple[bool, bool],
    ) -> tuple[Tensor, Tensor]:
        kind = states.device.type
        precise = torch.promote_types(states.dtype, torch.float32)
        # Half precision in which autocast, or the network itself, multiplies.
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
        size = max(1, LOGITS_AT_ONCE // len(weight))
        losses = torch.zeros((), dtype=precise, device=states.device)
        correct = torch.zeros((), dtype=torch.long, device=states.device)
        of_states = torch.empty_like(states) if with_gradients[0] else None
        of_weight = torch.zeros_like(weight, dtype=precise) if with_gradients[1] else None
        with torch.autocast(kind, enabled=False):
            matrix, bias = weight.to(dtype), bias.to(precise)
            for start in range(0, len(states), size):
                part = slice(start, start + size)
                chunk, targets = states[part].to(dtype), labels[part, None]
                counts = targets != IGNORE_INDEX
                targets = targets.where(counts, 0)
                logits = chunk @ matrix.t()
                logs = (logits.add_(bias) if dtype == precise else logits + bias).log_softmax(1)
                del logits  # so that at most two of its size are held
                of_targets = (1 - label_smoothing) * logs.gather(1, targets)
                if label_smoothing:
                    of_targets += label_smoothing * logs.mean(1, keepdim=True)
                losses -= of_targets.where(counts, 0).sum()
                if not any(with_gradients):
                    correct += ((logs.argmax(1, keepdim=True) == targets) & counts).sum()
                    continue
                # The gradient by the logits: the probabilities less the smoothed targets.
                gradient = logs.exp_()
                if label_smoothing:
                    gradient -= label_smoothing / len(weight)
                gradient.scatter_add_(1, targets, gradient.new_full(targets.shape, label_smoothing - 1))
                gradient, kept = gradient.to(dtype), counts.to(dtype)
                if of_states is not None:
                    of_states[part] = (gradient @ matrix) * kept
                if of_weight is not None:
                    of_weight += gradient.t() @ (chunk * kept)
        ctx.save_for_backward(of_states, of_weight)
        ctx.dtypes = states.dtype, weight.dtype
        ctx.mark_non_differentiable(correct)
        return losses, correct

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_loss: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        # As a vector of one, so that halves are multiplied in fp32: what loss scaling multiplies by may exceed fp16.
        gradients = (
            None if gradient is None else (gradient * of_loss[None]).to(dtype)
            for gradient, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        )
        return *gradients, None, None, None, None
