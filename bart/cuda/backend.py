"""The backend for NVIDIA's GPUs: in half precision rows without padding, under attention of variable lengths.

A batch's masks carry the rows with tokens, so that nobody waits for the GPU (`bart.unpadding.KnownRows`).
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from bart.backend import Streams
from bart.cuda.linear import HalfCopies
from bart.rounding import round_to_few
from bart.torch_internals import attend_to_spans, has_flash, is_ampere
from bart.unpadding import KnownRows, Unpadded, UnpaddingBackend, carrying, known_rows

logger = logging.getLogger(__name__)
# Numbers of rows are multiples of this, or of less, so that the memory of one batch's states can be that of the next.
ROWS = 512


@dataclass(frozen=True)
class CudaSpans:
    """The arguments of `attend_to_spans` for rows without padding."""

    starts: tuple[Tensor, Tensor]
    longest: tuple[int, int]


class CudaRows(Unpadded):
    """The rows of a batch's tokens, of which flash attention is told by `CudaSpans`."""

    are_faster = True  # without padding too, because attention takes no mask

    def __init__(self, is_token: Tensor) -> None:
        super().__init__(is_token, partial(round_to_few, multiple=ROWS))
        self.starts = self.starts.int()
        self.longest = int(self.starts.diff().max())

    def reading(self, source: CudaRows) -> CudaSpans:
        return CudaSpans((self.starts, source.starts), (self.longest, source.longest))


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


class CudaBackend(UnpaddingBackend):
    """Rows without padding in half precision, copies of weights under autocast, and kernels in Triton."""

    copies: HalfCopies | None = None  # of the weights, where a step was under autocast

    def chooses_rows(self, training: bool, compiled: bool) -> bool:
        return True

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
        return super().project(states, layers) if outputs is None else outputs

    def add_and_norm(self, update: Tensor, states: Tensor, norm: nn.Module, probability: float) -> Streams:
        """In training under autocast by one kernel, which rounds for the next product, too."""
        types = update.dtype in (torch.float16, torch.bfloat16), states.dtype in (torch.float32, torch.bfloat16)
        fits = all(types) and type(norm) is nn.LayerNorm and norm.weight.dtype == torch.float32
        applies = fits and torch.is_grad_enabled() and not torch.compiler.is_compiling()
        kernels = load_kernels(update.device) if applies else None
        if kernels is None:
            return super().add_and_norm(update, states, norm, probability)
        return kernels.AddAndNorm.apply(update, states, norm.weight, norm.bias, norm.eps, probability)

    def rows_of(self, states: Tensor, mask: Tensor | None, up_to_last: bool = False) -> Unpadded | None:
        kind = states.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else states.dtype
        if torch.compiler.is_compiling() or not has_flash(states.device, dtype):
            return None
        known = known_rows(mask)
        if known is None:
            if torch.is_grad_enabled():
                return None  # a step of training waits for nothing
            is_token = torch.ones(states.shape[:2], dtype=torch.bool) if mask is None else mask.bool().cpu()
            move = partial(Tensor.to, device=states.device, non_blocking=True)
            known = KnownRows.of(is_token, CudaRows).moved(move)
            if isinstance(mask, Tensor) and hasattr(mask, "known_rows"):
                carrying(mask, known)
        return known.up_to_last if up_to_last else known.tokens

    def attend(
        self, query: Tensor, keys: Tensor, values: Tensor, mask: Any, is_causal: bool = False, dropout: float = 0.0
    ) -> Tensor:
        """Attend like `Backend.attend`, also under spans, where B = 1; a decoding step has a kernel of its own."""
        if not isinstance(mask, CudaSpans):
            applies = isinstance(mask, Tensor) and not (is_causal or dropout or torch.is_grad_enabled())
            kernels = load_kernels(query.device) if applies and not torch.compiler.is_compiling() else None
            if kernels is not None and kernels.can_attend_few(query, keys, mask):
                return kernels.attend_few(query, keys, values, mask)
            return super().attend(query, keys, values, mask, is_causal, dropout)
        query, keys, values = (states.squeeze(0).transpose(0, 1) for states in (query, keys, values))
        context = attend_to_spans(query, keys, values, mask.starts, mask.longest, is_causal, dropout)
        return context.transpose(0, 1).unsqueeze(0)
