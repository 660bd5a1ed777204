"""Batches without their padding, for training on CPUs.

Layers see the rows of tokens alone, one article behind the other, and attention is told where each article begins
(unpadding, or the padding-free algorithm of Zhai et al., 2023, arXiv:2210.03052).

Shapes: B articles, L length of the longest, N tokens of all articles, D model width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


class Unpadded:
    """Which places of a batch hold tokens.

    Attributes:
        counts: (B,) tokens.
        starts: (B + 1,), the first row of each article, and N.
    """

    def __init__(self, states: Tensor, mask: Tensor | None) -> None:
        """states (B, L, D); mask (B, L) of ones, or true, and zeros, or None for all ones."""
        self.shape = states.shape[:2]
        is_token = torch.tensor(True) if mask is None else mask.bool()
        is_token = is_token.expand(self.shape)
        self.places = is_token.flatten().nonzero().squeeze(1)
        self.counts = is_token.sum(dim=1)
        self.starts = F.pad(self.counts.cumsum(dim=0), (1, 0))

    @property
    def has_padding(self) -> bool:
        return len(self.places) < self.shape.numel()

    def rows(self, states: Tensor) -> Tensor:
        """(B, L, D) -> (1, N, D)."""
        return states.flatten(0, 1).index_select(0, self.places)[None]

    def padded(self, rows: Tensor) -> Tensor:
        """(1, N, D) -> (B, L, D), with zeros for padding."""
        states = rows.new_zeros(self.shape.numel(), rows.shape[2])
        return states.index_copy(0, self.places, rows[0]).view(*self.shape, -1)
