"""Linear layers under autocast, whose weights are cast once in an optimizer step and all at once.

Autocast casts each weight, each bias and each input in a kernel of its own, and every gradient back. Here copies of all
weights in half precision are refreshed by a few kernels, queries, keys and values have one product, and the gradients
of weights leave their products in the precision of the weights.

Shapes: N rows, I inputs, O outputs of several layers.
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
    """Copies of the weights and biases of linear layers in half precision.

    Those of queries, keys and values of an attention lie one behind the other, so that several of them are one matrix.
    """

    def __init__(self, layers: Sequence[nn.Module], dtype: torch.dtype) -> None:
        """layers: those of a network, whose linear layers are copied, unless adapters are in them."""
        self.dtype = dtype
        self.places: dict[nn.Module, tuple[Tensor, Tensor, int]] = {}  # matrix, biases, and the layer's first row
        self.copies: list[Tensor] = []
        self.originals: list[Tensor] = []
        for layer in layers:
            for module in layer.modules():
                parts = {name: part for name, part in module.named_children() if type(part) is nn.Linear}
                if {"q_proj", "k_proj", "v_proj"} <= parts.keys():
                    self._add([parts.pop(name) for name in ("q_proj", "k_proj", "v_proj")])
                for part in parts.values():
                    self._add([part])

    def _add(self, linears: Sequence[nn.Linear]) -> None:
        device, rows = linears[0].weight.device, sum(linear.out_features for linear in linears)
        matrix = torch.empty(rows, linears[0].in_features, dtype=self.dtype, device=device)
        biases, first = torch.empty(rows, dtype=self.dtype, device=device), 0
        for linear in linears:
            self.places[linear] = matrix, biases, first
            behind = first + linear.out_features
            self.copies += [matrix[first:behind], biases[first:behind]]
            self.originals += [linear.weight, linear.bias]
            first = behind

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the weights as they are now."""
        foreach.copy_(self.copies, self.originals)

    def project(self, states: Tensor, linears: Sequence[nn.Linear]) -> tuple[Tensor, ...] | None:
        """The outputs (…, O) of linear layers for states (…, I), in half precision; None without copies of these."""
        if any(linear not in self.places for linear in linears):
            return None
        matrix, biases, first = self.places[linears[0]]
        sizes = [linear.out_features for linear in linears]
        rows = slice(first, first + sum(sizes))
        parameters = [linear.weight for linear in linears] + [linear.bias for linear in linears]
        return _HalfLinear.apply(states, matrix[rows], biases[rows], *parameters).split(sizes, dim=-1)


class _HalfLinear(torch.autograd.Function):
    """Several layers' products as one, by copies of their weights; the gradients are those of the weights."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, matrix: Tensor, biases: Tensor, *parameters: Tensor) -> Tensor:
        half = states.to(matrix.dtype)
        ctx.save_for_backward(half, matrix)
        ctx.dtypes, ctx.sizes = (
            (states.dtype, parameters[0].dtype),
            [len(p) for p in parameters[: len(parameters) // 2]],
        )
        return F.linear(half, matrix, biases)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, of_outputs: Tensor) -> tuple[Tensor | None, ...]:
        half, matrix = ctx.saved_tensors
        needs_states, _, _, *needed = ctx.needs_input_grad
        dtype, precise = ctx.dtypes
        rows, count = of_outputs.flatten(0, -2), len(ctx.sizes)
        of_states = (of_outputs @ matrix).to(dtype) if needs_states else None
        of_weights: Sequence[Tensor | None] = [None] * count
        of_biases: Sequence[Tensor | None] = [None] * count
        if any(needed[:count]):
            of_weights = product(rows.t(), half.flatten(0, -2), precise).split(ctx.sizes)
        if any(needed[count:]):
            of_biases = rows.sum(dim=0, dtype=precise).split(ctx.sizes)
        return of_states, None, None, *of_weights, *of_biases


def product(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """The product of two matrices in half precision, whose sums are not rounded to it on a GPU."""
    if left.is_cuda and dtype == torch.float32:
        return torch.mm(left, right, out_dtype=dtype)
    return (left @ right).to(dtype)
