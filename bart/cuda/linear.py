"""Linear layers under autocast, whose weights are cast once in an optimizer step and all at once.

Autocast casts each weight, bias and input in a kernel of its own. Here layers that read the same states share one cast
and one product, and the gradients of weights leave their products in the precision of the weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from bart.torch_internals import foreach


class HalfCopies:
    """Copies of the weights and biases of linear layers in half precision, made when they are first used."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        # For the layers of one product, their weights, one below the other, and their biases.
        self.of: dict[tuple[nn.Module, ...], tuple[Tensor, ...]] = {}
        self._parts: list[tuple[nn.Module, Tensor, Tensor]] = []  # of the above, by layer

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the weights as they are now."""
        if self._parts:
            copies = [part for _, *parts in self._parts for part in parts]
            foreach.copy_(copies, [tensor for linear, *_ in self._parts for tensor in (linear.weight, linear.bias)])

    def project(self, states: Tensor, linears: Sequence[nn.Module]) -> tuple[Tensor, ...] | None:
        """The outputs (…, O) of linear layers for states (…, I), in half precision; None where adapters are in them."""
        linears = tuple(linears)
        if linears not in self.of and any(type(linear) is not nn.Linear or linear.bias is None for linear in linears):
            return None
        weights, biases = ([getattr(linear, name) for linear in linears] for name in ("weight", "bias"))
        if linears not in self.of:
            self.of[linears] = tuple(torch.cat(tensors).detach().to(self.dtype) for tensors in (weights, biases))
            parts = (whole.split([len(bias) for bias in biases]) for whole in self.of[linears])
            self._parts += zip(linears, *parts, strict=True)
        return _HalfLinear.apply(states, *self.of[linears], *weights, *biases)


class _HalfLinear(torch.autograd.Function):
    """The product of states with the joined matrices of several layers, by copies of their weights.

    The gradients of its parts are joined, too: a sum over all layers is rounded once, as it leaves the product.
    """

    @staticmethod
    def forward(ctx: Any, states: Tensor, matrix: Tensor, bias: Tensor, *originals: Tensor) -> tuple[Tensor, ...]:
        """originals: the weights, then the biases of all layers."""
        half = states.to(matrix.dtype)
        ctx.save_for_backward(half, matrix)
        ctx.dtypes = states.dtype, originals[0].dtype
        ctx.widths = [len(weight) for weight in originals[: len(originals) // 2]]
        return F.linear(half, matrix, bias).split(ctx.widths, dim=-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *of_outputs: Tensor) -> tuple[Tensor | None, ...]:
        half, matrix = ctx.saved_tensors
        dtype, precise = ctx.dtypes
        needs_states, _, _, *needed = ctx.needs_input_grad
        gradients = [gradient.flatten(0, -2) for gradient in of_outputs]
        rows = torch.cat(gradients, dim=1) if len(gradients) > 1 else gradients[0]
        of_states = (rows @ matrix).view(half.shape).to(dtype) if needs_states else None
        of_originals = [None] * len(needed)
        if any(needed):
            states, of_biases = half.flatten(0, -2), rows.sum(dim=0, dtype=precise)
            if rows.is_cuda and precise == torch.float32:  # sums are not rounded to half precision
                of_weights = torch.mm(rows.t(), states, out_dtype=precise)
            else:
                of_weights = (rows.t() @ states).to(precise)
            of_originals = [*of_weights.split(ctx.widths), *of_biases.split(ctx.widths)]
        return of_states, None, None, *of_originals
