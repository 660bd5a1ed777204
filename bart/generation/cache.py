"""Keys and values that decoding keeps between steps.

Shapes: B articles, K beams, H heads, S source length, T tokens there is room for, Dh the head width.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

# Tokens by which the room for self-attention's keys and values grows. All of the room is read in every step, under a
# mask, since matrix products would copy a part of it; so there should not be too much.
ROOM = 8


@dataclass
class LayerCache:
    """One decoder layer's keys and values.

    Cross-attention's are computed once per article and shared by its beams. Self-attention's stay where they are
    written: a step's token of beam k has column c·K + k, with a c that no beam still reads, and which columns are a
    beam's own past is a matter of the mask.
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


class DecoderCache:
    """What the decoder remembers of its articles and of the tokens it has read.

    Articles may join at different times: all of them read one token per step and beam, in the same column.

    Args:
        cross: per layer, the keys and values of the encoder states, each (B, H, S, Dh).
        readable: (B, S), true where a source position may be read, or None for all of them.
        beams: K, decoder rows per article.
        max_length: the most tokens a beam will be given.
    """

    def __init__(
        self, cross: Sequence[tuple[Tensor, Tensor]], readable: Tensor | None, beams: int, max_length: int
    ) -> None:
        keys = cross[0][0]
        articles, heads, _, width = keys.shape
        empty = keys.new_empty((articles, heads, 0, width))
        self.layers = [LayerCache(k, v, empty, empty) for k, v in cross]
        self.beams = beams
        self.max_length = max_length
        self.steps = 0
        self.joined = [0] * articles  # the step before which each article joined
        self.positions = torch.full((articles,), -1, device=keys.device)  # of the token that an article read last
        # (B, 1, K, T·K): 0 where a beam may read a column, -inf where it may not.
        self.self_mask = keys.new_empty((articles, 1, beams, 0))
        self.own_columns = additive(torch.eye(beams, dtype=torch.bool, device=keys.device), keys.dtype)
        self.free: deque[int] = deque()  # columns that hold nothing
        self.used: deque[tuple[int, int]] = deque()  # (step, column) of those that do, oldest first
        self._set_readable(keys.new_ones(articles, keys.shape[2]).bool() if readable is None else readable)

    def advance(self) -> int:
        """Make room for the next token of each beam and let it be read; its column."""
        if not self.free:
            self._grow()
        column = self.free.popleft()
        self.used.append((self.steps, column))
        self.self_mask[:, :, :, column : column + self.beams] = self.own_columns
        self.steps += 1
        self.positions = self.positions + 1
        return column

    def reorder(self, beams: Tensor) -> None:
        """Let beam k of article b go on from what beam `beams[b, k]` (B, K) of that article has read."""
        index = beams[:, None, :, None].expand_as(self.self_mask)
        self.self_mask = self.self_mask.gather(2, index)

    def keep(self, articles: Tensor) -> None:
        """Go on with some of the articles (M,) only, and with no more source positions than they have."""
        readable = self.readable[articles]
        longest = int(readable.any(dim=0).nonzero().max()) + 1
        for layer in self.layers:
            layer.cross_keys = layer.cross_keys[articles, :, :longest]
            layer.cross_values = layer.cross_values[articles, :, :longest]
            layer.self_keys, layer.self_values = layer.self_keys[articles], layer.self_values[articles]
        self.self_mask, self.positions = self.self_mask[articles], self.positions[articles]
        self.joined = [self.joined[article] for article in articles.tolist()]
        self._set_readable(readable[:, :longest])
        oldest = min(self.joined)
        while self.used and self.used[0][0] < oldest:
            self.free.append(self.used.popleft()[1])

    def join(self, other: DecoderCache) -> None:
        """Take in the articles of a cache that has read nothing yet, behind those that are here."""
        length = max(self.readable.shape[1], other.readable.shape[1])
        columns = self.self_mask.shape[3]
        for layer, new in zip(self.layers, other.layers, strict=True):
            for name in ("cross_keys", "cross_values"):
                old, added = getattr(layer, name), getattr(new, name)
                setattr(layer, name, torch.cat([padded(old, 2, length), padded(added, 2, length)]))
            for name in ("self_keys", "self_values"):
                old, added = getattr(layer, name), getattr(new, name)
                setattr(layer, name, torch.cat([old, padded(added, 2, columns)]))
        self.self_mask = torch.cat([self.self_mask, padded(other.self_mask, 3, columns, -torch.inf)])
        self.positions = torch.cat([self.positions, other.positions])
        self.joined += [self.steps] * len(other.joined)
        self._set_readable(torch.cat([padded(self.readable, 1, length), padded(other.readable, 1, length)]))

    def _grow(self) -> None:
        """Make room for more columns; what is not written yet is 0, for a masked NaN would still spread."""
        columns = self.self_mask.shape[3]
        more = min(columns + ROOM * self.beams, self.max_length * self.beams)
        self.free.extend(range(columns, more, self.beams))
        self.self_mask = padded(self.self_mask, 3, more, -torch.inf)
        for layer in self.layers:
            layer.self_keys, layer.self_values = (
                padded(store, 2, more) for store in (layer.self_keys, layer.self_values)
            )

    def _set_readable(self, readable: Tensor) -> None:
        self.readable = readable
        # (B, 1, 1, S), or None where all may be read.
        self.cross_mask = None
        if not bool(readable.all()):
            self.cross_mask = additive(readable, self.self_mask.dtype)[:, None, None, :]


def padded(tensor: Tensor, dim: int, length: int, value: float = 0.0) -> Tensor:
    """The tensor made so long in one dimension."""
    return F.pad(tensor, (0, 0) * (tensor.dim() - 1 - dim) + (0, length - tensor.shape[dim]), value=value)


def additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """True -> 0, false -> -inf: attention would else turn the mask into that in every layer."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, -torch.inf)
