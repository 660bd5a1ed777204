"""Linear layers under autocast, whose weights are cast once in an optimizer step and all at once.

Autocast casts each weight, bias and input in a kernel of its own. Here layers that read the same states share one cast
and one product, and the gradients of weights leave their products in the precision of the weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from bart.backend import product
from bart.torch_internals import foreach


class Preactivated(NamedTuple):
    """States without their bias, GELU and dropout, which a product computes in both passes, so that it keeps one."""

    states: Tensor
    bias: Tensor
    rate: float


class HalfCopies:
    """Copies of the weights and biases of linear layers in half precision, made when they are first used."""

    def __init__(self, dtype: torch.dtype, kernels: ModuleType | None = None) -> None:
        """kernels: `bart.cuda.kernels`, where they can run."""
        self.dtype, self.kernels = dtype, kernels
        # For the layers of one product, their weights, one below the other, and their biases.
        self.of: dict[tuple[nn.Module, ...], tuple[Tensor, ...]] = {}
        self._parts: list[tuple[nn.Module, Tensor, Tensor]] = []  # of the above, by layer

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the weights as they are now."""
        if self._parts:
            copies = [part for _, *parts in self._parts for part in parts]
            foreach.copy_(copies, [tensor for linear, *_ in self._parts for tensor in (linear.weight, linear.bias)])

    def project(
        self, states: Tensor | Preactivated, linears: Sequence[Any], has_bias: bool = True
    ) -> tuple[Tensor, ...] | None:
        """The outputs (…, O) of linear layers for states (…, I), in half precision; None where adapters are in them."""
        linears = tuple(linears)
        if linears not in self.of and any(type(linear) is not nn.Linear or linear.bias is None for linear in linears):
            return None
        weights, biases = [linear.weight for linear in linears], [linear.bias for linear in linears]
        if linears not in self.of:
            self.of[linears] = tuple(torch.cat(tensors).detach().to(self.dtype) for tensors in (weights, biases))
            parts = (whole.split([len(bias) for bias in biases]) for whole in self.of[linears])
            self._parts += zip(linears, *parts, strict=True)
        matrix, bias = self.of[linears]
        inner, inner_bias, rate = states if isinstance(states, Preactivated) else (states, None, 0.0)
        given = (bias, *weights, *biases) if has_bias else (None, *weights)
        return _HalfLinear.apply(self.kernels, rate, inner, inner_bias, matrix, *given)


class _HalfLinear(torch.autograd.Function):
    """The product of states with the joined matrices of several layers, by copies of their weights.

    The gradients of its parts are joined, too: a sum over all layers is rounded once, as it leaves the product.
    """

    @staticmethod
    def forward(
        ctx: Any,
        kernels: Any,
        rate: float,
        states: Tensor,
        inner_bias: Tensor | None,
        matrix: Tensor,
        bias: Tensor | None,
        *originals: Tensor,
    ) -> tuple[Tensor, ...]:
        """originals: the weights, then with a bias the biases of all layers; inner_bias and rate: of `Preactivated`."""
        half, seed = states.to(matrix.dtype), None
        inner = half
        if inner_bias is not None:
            ctx.sums, seed = torch.empty_like(inner_bias, dtype=torch.float32), kernels.new_seed(half.device, rate)
            inner = kernels.gelu(half, inner_bias, ctx.sums, seed, rate)
        ctx.save_for_backward(half, inner_bias, seed, matrix)
        ctx.kernels, ctx.rate, ctx.has_bias = kernels, rate, bias is not None
        ctx.dtypes = states.dtype, originals[0].dtype
        ctx.widths = [len(weight) for weight in originals if weight.dim() == 2]
        outputs = F.linear(inner.flatten(0, -2), matrix, bias)
        return outputs.view(*half.shape[:-1], len(matrix)).split(ctx.widths, dim=-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *of_outputs: Tensor) -> tuple[Tensor | None, ...]:
        half, inner_bias, seed, matrix = ctx.saved_tensors
        dtype, precise = ctx.dtypes
        _, _, needs_states, _, _, _, *needed = ctx.needs_input_grad
        gradients = [gradient.flatten(0, -2) for gradient in of_outputs]
        of_biases: Sequence[Tensor] = ()
        if ctx.has_bias and ctx.kernels is not None:
            rows, sums = ctx.kernels.join(gradients)
            of_biases = sums.split(ctx.widths)
        else:
            rows = torch.cat(gradients, dim=1) if len(gradients) > 1 else gradients[0]
            if ctx.has_bias and any(needed):
                of_biases = rows.sum(dim=0, dtype=precise).split(ctx.widths)
        of_states = of_inner_bias = None
        if needs_states or inner_bias is not None:
            of_states = product(rows, matrix, dtype).view(half.shape)
        if inner_bias is not None:
            of_inner_bias = ctx.kernels.zeros(ctx, inner_bias, len(inner_bias))
            half = ctx.kernels.gelu(half, inner_bias, of_inner_bias, seed, ctx.rate, of_states)
        of_originals: list[Tensor | None] = [None] * len(needed)
        if any(needed):
            of_originals = [*product(rows.t(), half.flatten(0, -2), precise).split(ctx.widths), *of_biases]
        return None, None, of_states, of_inner_bias, None, None, *of_originals
