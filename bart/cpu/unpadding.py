"""Batches without their padding, for training on CPUs.

Layers see the rows of tokens alone, one article behind the other, and attention is told where each article begins
(unpadding, or the padding-free algorithm of Zhai et al., 2023, arXiv:2210.03052). Behind them lie a few spare rows, an
article of their own that nobody reads, so that numbers of rows recur from batch to batch.

Shapes: B articles, L length of the longest, N tokens of all articles, M > N rows, D model width.
"""

from __future__ import annotations

from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from bart.backend import Rows
from bart.cpu.kernels import Spans
from bart.rounding import recurring


class Unpadded(Rows):
    """The rows of a batch's tokens alone.

    Attributes:
        counts: (B,) tokens.
        starts: (B + 2,), the first row of each article, N, where the spare rows begin, and M.
    """

    def __init__(self, states: Tensor, mask: Tensor | None) -> None:
        """states (B, L, D); mask (B, L) of ones, or true, and zeros, or None for all ones."""
        self.shape = states.shape[:2]
        is_token = torch.tensor(True) if mask is None else mask.bool()
        is_token = is_token.expand(self.shape)
        self.places = is_token.flatten().nonzero().squeeze(1)
        # One at least: where targets have spare rows, these need a row of the sources to attend to, or become NaN.
        self.spare = recurring(len(self.places) + 1, states) - len(self.places)
        self.counts = is_token.sum(dim=1)
        self.starts = F.pad(torch.cat([self.counts, torch.tensor([self.spare])]).cumsum(dim=0), (1, 0))

    @property
    def has_padding(self) -> bool:
        return len(self.places) < self.shape.numel()

    @cached_property
    def mask(self) -> Spans:
        return self.reading(self)

    def reading(self, source: Unpadded) -> Spans:
        """The mask with which these rows read those of a source."""
        return Spans(self.starts, source.starts)

    def pack(self, states: Tensor) -> Tensor:
        """(B, L, D) -> (1, M, D); spare rows are copies of the first place."""
        return states.flatten(0, 1).index_select(0, F.pad(self.places, (0, self.spare)))[None]

    def unpack(self, rows: Tensor) -> Tensor:
        """(1, M, D) -> (B, L, D), with zeros for padding."""
        states = rows.new_zeros(self.shape.numel(), rows.shape[2])
        return states.index_copy(0, self.places, rows[0, : len(self.places)]).view(*self.shape, -1)
