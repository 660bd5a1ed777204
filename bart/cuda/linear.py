"""Linear layers under autocast, whose weights are cast once in an optimizer step and all at once.

Autocast casts each weight, each bias and each input in a kernel of its own, and every gradient back. Here copies of all
weights in half precision are refreshed by a few kernels, queries, keys and values share one cast, and the gradients of
weights leave their products in the precision of the weights.

Shapes: I inputs, O outputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, repeat
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from bart.torch_internals import foreach


class HalfCopies:
    """Copies of the weights and biases of linear layers in half precision, made when they are first used.

    Attributes:
        of: weight and bias of each layer.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.of: dict[nn.Linear, tuple[Tensor, Tensor]] = {}

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the weights as they are now."""
        if self.of:
            originals = [tensor for linear in self.of for tensor in (linear.weight, linear.bias)]
            foreach.copy_([*chain(*self.of.values())], originals)

    def project(self, states: Tensor, linears: Sequence[nn.Module]) -> tuple[Tensor, ...] | None:
        """The outputs (…, O) of linear layers for states (…, I), in half precision; None where adapters are in them."""
        for linear in linears:
            if linear not in self.of:
                if type(linear) is not nn.Linear or linear.bias is None:
                    return None
                self.of[linear] = linear.weight.detach().to(self.dtype), linear.bias.detach().to(self.dtype)
        copies = zip(*(self.of[linear] for linear in linears), strict=True)
        originals = zip(*((linear.weight, linear.bias) for linear in linears), strict=True)
        return _HalfLinear.apply(states, *chain(*copies, *originals))


class _HalfLinear(torch.autograd.Function):
    """The products of several layers with the same states, by copies of their weights.

    Each has a memory of its own for its outputs, because their gradients come one by one, and would have to be joined.
    """

    @staticmethod
    def forward(ctx: Any, states: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        """tensors: copies of the weights, copies of the biases, the weights and the biases of all layers."""
        count = len(tensors) // 4
        matrices, biases, weights, _ = (tensors[first : first + count] for first in range(0, len(tensors), count))
        half = states.to(matrices[0].dtype)
        ctx.save_for_backward(half, *matrices)
        ctx.dtypes = states.dtype, weights[0].dtype
        return tuple(map(F.linear, repeat(half), matrices, biases))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *of_outputs: Tensor) -> tuple[Tensor | None, ...]:
        half, *matrices = ctx.saved_tensors
        dtype, precise = ctx.dtypes
        count, inputs = len(matrices), half.flatten(0, -2)
        needs_states, needed = ctx.needs_input_grad[0], ctx.needs_input_grad[1 + 2 * count :]
        gradients = [gradient.flatten(0, -2) for gradient in of_outputs]
        of_states = None
        if needs_states:
            of_states = gradients[0] @ matrices[0]
            for gradient, matrix in zip(gradients[1:], matrices[1:], strict=True):
                of_states.addmm_(gradient, matrix)
            of_states = of_states.view(half.shape).to(dtype)
        of_weights = [
            product(rows.t(), inputs, precise) if is_needed else None
            for rows, is_needed in zip(gradients, needed[:count], strict=True)
        ]
        of_biases = [
            rows.sum(dim=0, dtype=precise) if is_needed else None
            for rows, is_needed in zip(gradients, needed[count:], strict=True)
        ]
        return of_states, *repeat(None, 2 * count), *of_weights, *of_biases


def product(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """The product of two matrices in half precision, whose sums are not rounded to it on a GPU."""
    if left.is_cuda and dtype == torch.float32:
        return torch.mm(left, right, out_dtype=dtype)
    return (left @ right).to(dtype)
