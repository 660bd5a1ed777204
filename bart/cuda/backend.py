"""The backend for NVIDIA's GPUs: in half precision rows without padding, under attention of variable lengths."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from bart.backend import Backend, Mask, Streams, join
from bart.cuda.linear import HalfCopies, Preactivated
from bart.rounding import multiple_of_rows
from bart.rows import Rows, Spans
from bart.torch_internals import attend_to_spans, has_flash, is_ampere

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


class CudaBackend(Backend):
    """Rows without padding in half precision, copies of weights under autocast, and kernels in Triton."""

    copies: HalfCopies | None = None  # of the weights, where a step was under autocast

    def __init__(self, leaves_out_padding: bool = True) -> None:
        """leaves_out_padding: of padded batches, too, whose loss may then not read the states of padding."""
        self.leaves_out_padding = leaves_out_padding

    def rows_of(self, ids: Tensor, mask: Tensor | None, dtype: torch.dtype) -> Rows | None:
        computed = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else dtype
        if not self.leaves_out_padding or not has_flash(ids.device, computed):
            return None
        return Rows.of(ids, mask, multiple_of_rows("cuda", True))

    @contextmanager
    def step(self, layers: Sequence[nn.Module]) -> Iterator[None]:
        """Under autocast, products read copies of the weights meanwhile."""
        if torch.is_autocast_enabled("cuda") and not any(isinstance(layer, FSDPModule) for layer in layers):
            device = next(layers[0].parameters()).device
            self.copies = self.copies or HalfCopies(torch.get_autocast_dtype("cuda"), load_kernels(device))
            self.copies.refresh()
            self.joins_layers = True
        try:
            yield
        finally:
            self.joins_layers = False

    def _product(self, states: Any, layers: Sequence[nn.Module], has_bias: bool = True) -> tuple[Tensor, ...] | None:
        """The outputs of layers by copies of their weights; None where there are none."""
        return self.copies.project(states, layers, has_bias) if self.joins_layers and self.copies else None

    def project(self, states: Any, layers: Sequence[nn.Module]) -> tuple[Tensor, ...]:
        outputs = self._product(states, layers)
        if outputs is None and isinstance(states, Preactivated):  # adapters are in the layer
            states = self.dropout(F.gelu(states.states + states.bias), states.rate)
        return outputs or join(states, layers) or super().project(states, layers)

    def activated(self, states: Tensor, layer: nn.Module, activation: str | None, probability: float) -> Any:
        has_kernels = self.copies is not None and self.copies.kernels is not None
        outputs = self._product(states, [layer], has_bias=False) if activation == "gelu" and has_kernels else None
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
