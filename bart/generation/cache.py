"""Keys and values that decoding keeps between steps.

Shapes: B articles, K beams, R = B·K decoder rows (row r belongs to article r // K), H heads, S source length,
T the longest target, Dh the head width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class LayerCache:
    """One decoder layer's keys and values.

    Cross-attention's are computed once per article and shared by its beams; self-attention's are allocated once, at
    their final length, and filled from the left.
    """

    cross_keys: Tensor  # (B, H, S, Dh)
    cross_values: Tensor  # (B, H, S, Dh)
    self_keys: Tensor  # (R, H, T, Dh)
    self_values: Tensor  # (R, H, T, Dh)

    def append(self, keys: Tensor, values: Tensor, start: int) -> tuple[Tensor, Tensor]:
        """Store the keys and values (R, H, t, Dh) of positions start … start + t; return all up to there."""
        end = start + keys.shape[2]
        self.self_keys[:, :, start:end] = keys
        self.self_values[:, :, start:end] = values
        return self.self_keys[:, :, :end], self.self_values[:, :, :end]


class DecoderCache:
    """What the decoder remembers of its articles and of the tokens it has read.

    Args:
        cross: per layer, the keys and values of the encoder states, each (B, H, S, Dh).
        cross_mask: (B, 1, 1, S), true where a source position may be read, or None for all of them.
        beams: K, decoder rows per article.
        max_length: T, the most tokens the decoder will be given.
    """

    def __init__(
        self, cross: list[tuple[Tensor, Tensor]], cross_mask: Tensor | None, beams: int, max_length: int
    ) -> None:
        articles, heads, _, width = cross[0][0].shape
        shape = (articles * beams, heads, max_length, width)
        self.layers = [LayerCache(k, v, k.new_empty(shape), v.new_empty(shape)) for k, v in cross]
        self.cross_mask = cross_mask
        self.beams = beams
        self.max_length = max_length
        self.length = 0  # tokens read so far, the same for every row

    def reorder(self, row_index: Tensor) -> None:
        """Let row r go on from what row `row_index[r]` (R,) has read; rows stay within their article."""
        for layer in self.layers:
            for store in (layer.self_keys, layer.self_values):
                used = store[:, :, : self.length]
                used.copy_(torch.index_select(used, 0, row_index))
