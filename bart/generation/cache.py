"""Keys and values that decoding keeps between steps.

Shapes: B articles, K beams, H heads, S source length, T tokens there is room for, Dh the head width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

# Tokens by which the room for self-attention's keys and values grows. All of the room is read in every step, under a
# mask, since matrix products would copy a part of it; so there should not be too much.
ROOM = 32


@dataclass
class LayerCache:
    """One decoder layer's keys and values.

    Cross-attention's are computed once per article and shared by its beams. Self-attention's stay where they are
    written: column t·K + k holds those of the token that beam k read t-th, and which columns are a beam's own past is
    a matter of the mask.
    """

    cross_keys: Tensor  # (B, H, S, Dh)
    cross_values: Tensor  # (B, H, S, Dh)
    self_keys: Tensor  # (B, H, T·K, Dh)
    self_values: Tensor  # (B, H, T·K, Dh)

    def store(self, keys: Tensor, values: Tensor, column: int) -> tuple[Tensor, Tensor]:
        """Store the keys and values (B, H, K, Dh) of each beam's next token; return all there is room for."""
        end = column + keys.shape[2]
        self.self_keys[:, :, column:end] = keys
        self.self_values[:, :, column:end] = values
        return self.self_keys, self.self_values

    def grow(self, columns: int) -> None:
        """Make room for that many columns; what is not written yet is 0, for a masked NaN would still spread."""
        more = (0, 0, 0, columns - self.self_keys.shape[2])
        self.self_keys, self.self_values = F.pad(self.self_keys, more), F.pad(self.self_values, more)


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
        keys = cross[0][0]
        articles, heads, _, width = keys.shape
        empty = keys.new_empty((articles, heads, 0, width))
        self.layers = [LayerCache(k, v, empty, empty) for k, v in cross]
        self.cross_mask = None if cross_mask is None else _additive(cross_mask, keys.dtype)
        self.beams = beams
        self.max_length = max_length
        self.length = 0  # tokens read so far, the same for every beam
        # (B, 1, K, T·K): 0 where a beam may read a column, -inf where it may not.
        self.self_mask = keys.new_empty((articles, 1, beams, 0))
        self.own_columns = _additive(torch.eye(beams, dtype=torch.bool, device=keys.device), keys.dtype)

    def advance(self) -> int:
        """Make room for the next token of each beam and let it be read; its column."""
        column = self.length * self.beams
        if column == self.self_mask.shape[3]:
            columns = min(self.length + ROOM, self.max_length) * self.beams
            self.self_mask = F.pad(self.self_mask, (0, columns - column), value=-torch.inf)
            for layer in self.layers:
                layer.grow(columns)
        self.self_mask[:, :, :, column : column + self.beams] = self.own_columns
        self.length += 1
        return column

    @property
    def positions(self) -> Tensor:
        """(B,) position of the token that each article's beams read last."""
        return torch.full((len(self.self_mask),), self.length - 1, device=self.self_mask.device)

    def reorder(self, beams: Tensor) -> None:
        """Let beam k of article b go on from what beam `beams[b, k]` (B, K) of that article has read."""
        index = beams[:, None, :, None].expand_as(self.self_mask)
        self.self_mask = self.self_mask.gather(2, index)


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """True -> 0, false -> -inf: attention would else turn the mask into that in every layer."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, -torch.inf)
