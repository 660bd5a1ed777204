"""The backend for NVIDIA's GPUs: in half precision rows without padding, under attention of variable lengths."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed.fsdp import FSDPModule

from bart.backend import Backend, Mask, Streams, join, product
from bart.rounding import multiple_of_rows
from bart.rows import Rows, Spans
from bart.torch_internals import attend_to_spans, foreach, has_flash, is_ampere

logger = logging.getLogger(__name__)


@cache
def load_kernels(device: torch.device) -> ModuleType | None:
    """`bart.cuda.kernels`; None where a device or an installation cannot run them."""
    if not is_ampere(device) or importlib.util.find_spec("triton") is None:
        return None
    kernels = importlib.import_module("bart.cuda.kernels")
    states = torch.zeros(1, 1, 16, 16, dtype=torch.bfloat16, device=device)
    try:  # Triton needs a compiler of C on first use
        kernels.attend_few(states, states, states, states[:, :, :1])
    except Exception as error:
        logger.warning("Triton cannot run here (%s); torch's operations take the place of its kernels", error)
        return None
    return kernels


class Preactivated(NamedTuple):
    """States without their bias, GELU and dropout, which a product computes in both passes, so that it keeps one."""

    states: Tensor
    bias: Tensor
    rate: float


class CudaBackend(Backend):
    """Rows without padding in half precision, copies of weights under autocast, and kernels in Triton."""

    dtype = torch.float16  # of the copies

    def __init__(self, leaves_out_padding: bool = True) -> None:
        """leaves_out_padding: of padded batches, too, whose loss may then not read the states of padding."""
        self.leaves_out_padding = leaves_out_padding
        # For the layers of one product, copies of their weights, one below the other, and of their biases.
        self.copies: dict[tuple[nn.Module, ...], tuple[Tensor, ...]] = {}
        self.parts: list[tuple[nn.Module, Tensor, Tensor]] = []  # of the above, by layer

    def rows_of(self, ids: Tensor, mask: Tensor | None, dtype: torch.dtype) -> Rows | None:
        computed = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else dtype
        if not self.leaves_out_padding or not has_flash(ids.device, computed):
            return None
        return Rows.of(ids, mask, multiple_of_rows("cuda", True))

    @contextmanager
    def step(self, layers: Sequence[nn.Module]) -> Iterator[None]:
        """Under autocast, products read copies of the weights meanwhile."""
        if torch.is_autocast_enabled("cuda") and not any(isinstance(layer, FSDPModule) for layer in layers):
            self.dtype, self.joins_layers = torch.get_autocast_dtype("cuda"), True
            self.refresh()
        try:
            yield
        finally:
            self.joins_layers = False

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the weights as they are now, all at once."""
        if self.parts:
            copies = [part for _, *parts in self.parts for part in parts]
            foreach.copy_(copies, [tensor for layer, *_ in self.parts for tensor in (layer.weight, layer.bias)])

    def _product(self, states: Any, layers: Sequence[Any], has_bias: bool = True) -> tuple[Tensor, ...] | None:
        """The outputs (…, O) of layers for states (…, I) by copies of their weights, which are made when first used.

        None outside of a step, and where adapters are in the layers.
        """
        if not self.joins_layers or any(type(layer) is not nn.Linear or layer.bias is None for layer in layers):
            return None
        layers = tuple(layers)
        weights, biases = [layer.weight for layer in layers], [layer.bias for layer in layers]
        if layers not in self.copies:
            self.copies[layers] = tuple(torch.cat(tensors).detach().to(self.dtype) for tensors in (weights, biases))
            parts = (whole.split([len(bias) for bias in biases]) for whole in self.copies[layers])
            self.parts += zip(layers, *parts, strict=True)
        matrix, bias = self.copies[layers]
        inner, inner_bias, rate = states if isinstance(states, Preactivated) else (states, None, 0.0)
        given = (bias, *weights, *biases) if has_bias else (None, *weights)
        return _HalfLinear.apply(load_kernels(matrix.device), rate, inner, inner_bias, matrix, *given)

    def project(self, states: Any, layers: Sequence[nn.Module]) -> tuple[Tensor, ...]:
        outputs = self._product(states, layers)
        if outputs is None and isinstance(states, Preactivated):  # adapters are in the layer
            states = self.dropout(F.gelu(states.states + states.bias), states.rate)
        return outputs or join(states, layers) or super().project(states, layers)

    def activated(self, states: Tensor, layer: nn.Module, activation: str | None, probability: float) -> Any:
        applies = self.joins_layers and activation == "gelu" and load_kernels(states.device) is not None
        outputs = self._product(states, [layer], has_bias=False) if applies else None
        if outputs is None:
            return super().activated(states, layer, activation, probability)
        return Preactivated(outputs[0], cast(Tensor, layer.bias), probability)

    def add_and_norm(
        self, inner: Any, layer: nn.Module, states: Streams, norm: nn.Module, probability: float
    ) -> Streams:
        """In training under autocast by one kernel, which adds the bias, and rounds for the next product, too."""
        hidden, _, seed = states
        applies = torch.is_autocast_enabled("cuda") and torch.is_grad_enabled()
        is_norm = type(norm) is nn.LayerNorm and norm.weight.dtype == torch.float32
        fits = applies and is_norm and hidden.dtype in (torch.float32, torch.bfloat16)
        kernels = load_kernels(hidden.device) if fits else None
        if kernels is None:
            return super().add_and_norm(inner, layer, states, norm, probability)
        outputs = self._product(inner, [layer], has_bias=False)
        update, bias = (self.linear(inner, layer), None) if outputs is None else (outputs[0], layer.bias)
        given = update, hidden, norm.weight, norm.bias, bias, seed, norm.eps, probability
        hidden, read, next_seed = kernels.AddAndNorm.apply(*given)
        return hidden, read, next_seed if probability else seed  # none was drawn where nothing is dropped

    def cross_entropy(
        self, logits: Tensor, bias: Tensor, labels: Tensor, label_smoothing: float, gradients: bool
    ) -> tuple[Tensor, Tensor]:
        fits = gradients and len(labels) > 0 and bias.dtype == torch.float32
        kernels = load_kernels(logits.device) if fits else None
        if kernels is None:
            return super().cross_entropy(logits, bias, labels, label_smoothing, gradients)
        return kernels.cross_entropy(logits, bias, labels, label_smoothing)

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, mask: Mask, is_causal: bool = False, dropout: float = 0.0
    ) -> Tensor:
        """Attend like `Backend.attend`; a decoding step has a kernel of its own."""
        if isinstance(mask, Spans) and has_flash(query.device, query.dtype):
            query, keys, values = (states.squeeze(0).transpose(0, 1) for states in (query, keys, values))
            starts, longest = zip(*((rows.starts, rows.span) for rows in mask), strict=True)
            context = attend_to_spans(query, keys, values, starts, longest, is_causal, dropout)
            return context.transpose(0, 1).unsqueeze(0)
        applies = isinstance(mask, Tensor) and not (is_causal or dropout or torch.is_grad_enabled())
        kernels = load_kernels(query.device) if applies else None
        if kernels is not None and kernels.can_attend_few(query, keys, mask):
            return kernels.attend_few(query, keys, values, mask)
        return super().attend(query, keys, values, mask, is_causal, dropout)


class _HalfLinear(torch.autograd.Function):
    """The product of states with the joined matrices of several layers, by copies of their weights.

    Autocast casts each weight, bias and input in a kernel of its own. Here layers share one cast and one product, and
    the gradients of weights leave their products in the precision of the weights. The gradients of its parts are
    joined, too: a sum over all layers is rounded once, as it leaves the product.
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
        """originals: the weights, then with a bias the biases of all layers; inner_bias and rate: of `Preactivated`.

        kernels: `bart.cuda.kernels`, where they can run.
        """
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
