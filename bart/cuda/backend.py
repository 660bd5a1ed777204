"""The backend for NVIDIA's GPUs: in half precision rows without padding, under attention of variable lengths."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from bart.backend import Backend, Streams, join
from bart.cuda.linear import HalfCopies
from bart.rounding import multiple_of_rows
from bart.rows import Rows
from bart.torch_internals import attend_to_spans, has_flash, is_ampere

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class CudaSpans:
    """The arguments of `attend_to_spans` for rows without padding."""

    starts: tuple[Tensor, Tensor]
    longest: tuple[int, int]


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


def _computed(dtype: torch.dtype) -> torch.dtype:
    """The type that products of such states are computed in."""
    return torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else dtype


class CudaBackend(Backend):
    """Rows without padding in half precision, copies of weights under autocast, and kernels in Triton."""

    copies: HalfCopies | None = None  # of the weights, where a step was under autocast

    def rows_of(self, ids: Tensor, mask: Tensor | None, dtype: torch.dtype, training: bool) -> Rows | None:
        if not self.leaves_out_padding or torch.compiler.is_compiling() or not has_flash(ids.device, _computed(dtype)):
            return None
        return Rows.of(ids, mask, multiple_of_rows("cuda", True))

    def spans(self, queries: Rows, keys: Rows, states: Tensor) -> Any:
        if not has_flash(states.device, _computed(states.dtype)):
            return super().spans(queries, keys, states)
        return CudaSpans((queries.starts.int(), keys.starts.int()), (queries.span, keys.span))

    @contextmanager
    def step(self, layers: Sequence[nn.Module]) -> Iterator[None]:
        """Under autocast, products read copies of the weights meanwhile."""
        if torch.is_autocast_enabled("cuda") and not any(isinstance(layer, FSDPModule) for layer in layers):
            self.copies = self.copies or HalfCopies(torch.get_autocast_dtype("cuda"))
            self.copies.refresh()
            self.joins_layers = True
        try:
            yield
        finally:
            self.joins_layers = False

    def project(self, states: Tensor, layers: Sequence[nn.Module]) -> tuple[Tensor, ...]:
        outputs = None
        if self.joins_layers and self.copies is not None and not torch.compiler.is_compiling():
            outputs = self.copies.project(states, layers)
        return outputs or join(states, layers) or super().project(states, layers)

    def add_and_norm(self, update: Tensor, states: Tensor, norm: nn.Module, probability: float) -> Streams:
        """In training under autocast by one kernel, which rounds for the next product, too."""
        types = update.dtype in (torch.float16, torch.bfloat16), states.dtype in (torch.float32, torch.bfloat16)
        fits = all(types) and type(norm) is nn.LayerNorm and norm.weight.dtype == torch.float32
        applies = fits and torch.is_grad_enabled() and not torch.compiler.is_compiling()
        kernels = load_kernels(update.device) if applies else None
        if kernels is None:
            return super().add_and_norm(update, states, norm, probability)
        return kernels.AddAndNorm.apply(update, states, norm.weight, norm.bias, norm.eps, probability)

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, mask: Any, is_causal: bool = False, dropout: float = 0.0
    ) -> Tensor:
        """Attend like `Backend.attend`; a decoding step has a kernel of its own."""
        if not isinstance(mask, CudaSpans):
            applies = isinstance(mask, Tensor) and not (is_causal or dropout or torch.is_grad_enabled())
            kernels = load_kernels(query.device) if applies and not torch.compiler.is_compiling() else None
            if kernels is not None and kernels.can_attend_few(query, keys, mask):
                return kernels.attend_few(query, keys, values, mask)
            return super().attend(query, keys, values, mask, is_causal, dropout)
        query, keys, values = (states.squeeze(0).transpose(0, 1) for states in (query, keys, values))
        context = attend_to_spans(query, keys, values, mask.starts, mask.longest, is_causal, dropout)
        return context.transpose(0, 1).unsqueeze(0)
