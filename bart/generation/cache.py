"""Keys and values that decoding keeps between steps.

On a CUDA device a step can be recorded and replayed (see `graphs`). So tensors there keep their shapes over many steps,
and a step finds the columns to write to in a tensor.

Shapes: B articles, K beams, H heads, S source length, T tokens there is room for, Dh the head width.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

# Tokens by which the room for self-attention's keys and values grows at least. Torch's attention reads all of the room
# in every step, under a mask, since matrix products would copy a part of it; so there should not be too much. But a
# growth changes shapes.
ROOM = 8
MOST_ROOM_OF_FIXED_SHAPES = 64
# Of keys, so that attention's kernels can read masks as they are.
ALIGNMENT = 16
# Multiple to which sources are padded where shapes should recur.
SOURCE_PIECE = 64


def has_fixed_shapes(device: torch.device) -> bool:
    """Whether shapes on this device should last and recur, at the price of more padding."""
    return device.type == "cuda"


@dataclass
class LayerCache:
    """One decoder layer's keys and values.

    Cross-attention's are computed once per article and shared by its beams. Self-attention's stay where they are
    written: a step's token of beam k has column c·K + k, with a c that no beam still reads, and which columns are a
    beam's own past is a matter of the mask.
    """

    cross_keys: Tensor  # (B, H, S, Dh), or what else the model's attention takes
    cross_values: Tensor  # (B, H, S, Dh)
    self_keys: Tensor  # (B, H, T·K, Dh)
    self_values: Tensor  # (B, H, T·K, Dh)

    def store(self, keys: Tensor, values: Tensor, columns: slice | Tensor) -> tuple[Tensor, Tensor]:
        """Store the keys and values (B, H, K, Dh) of each beam's next token; return all there is room for."""
        self.self_keys[:, :, columns] = keys
        self.self_values[:, :, columns] = values
        return self.self_keys, self.self_values


class DecoderCache:
    """What the decoder remembers of its articles and of the tokens it has read.

    Articles may join at different times: all of them read one token per step and beam, in the same column.

    Args:
        cross: per layer, the keys and values of the encoder states, each (B, H, S, Dh).
        own: some keys of self-attention (…, Dh), for their type.
        readable: (B, S), true where a source position may be read, or None for all of them.
        beams: K, decoder rows per article.
        max_length: the most tokens a beam will be given.

    Attributes:
        columns: where the keys and values of each beam's next token belong: where shapes are fixed a tensor (K,), and
            else a slice, which is quicker on the CPU.
    """

    def __init__(
        self,
        cross: Sequence[tuple[Tensor, Tensor]],
        own: Tensor,
        readable: Tensor | None,
        beams: int,
        max_length: int,
    ) -> None:
        keys = cross[0][0]
        articles, heads, length, _ = keys.shape
        readable = keys.new_ones(articles, length).bool() if readable is None else readable
        self.fixed_shapes = has_fixed_shapes(keys.device)
        self.room = ROOM
        if self.fixed_shapes:
            pieces = math.ceil(max_length / MOST_ROOM_OF_FIXED_SHAPES)
            self.room = _rounded_up(math.ceil(max_length / pieces), ALIGNMENT)
            max_length = self.room * pieces
            length = _rounded_up(length, SOURCE_PIECE)
            cross = [(padded(k, 2, length), padded(v, 2, length)) for k, v in cross]
            readable = padded(readable, 1, length)
        empty = own.new_empty((articles, heads, 0, own.shape[-1]))
        self.layers = [LayerCache(k, v, empty, empty) for k, v in cross]
        self.beams = beams
        self.max_length = max_length
        self.steps = 0
        self.joined = [0] * articles  # the step before which each article joined
        self.positions = torch.full((articles,), -1, device=keys.device)  # of the token that an article read last
        # (B, 1, K, T·K): 0 where a beam may read a column, -inf where it may not.
        self.self_mask = own.new_empty((articles, 1, beams, 0))
        self.own_columns = additive(torch.eye(beams, dtype=torch.bool, device=keys.device), own.dtype)
        self.free: deque[int] = deque()  # columns that hold nothing
        self.used: deque[tuple[int, int]] = deque()  # (step, column) of those that do, oldest first
        self.first_columns = torch.arange(beams, device=keys.device)
        self.columns: slice | Tensor = torch.empty_like(self.first_columns) if self.fixed_shapes else slice(0, 0)
        self._set_readable(readable)

    @property
    def state(self) -> list[Tensor]:
        """The tensors that a step reads or changes, where shapes are fixed; a step may be given others in their place.

        Nothing else changes between two calls of `advance`.
        """
        layers = [tensor for layer in self.layers for tensor in vars(layer).values()]
        return [self.columns, self.positions, self.self_mask, self.cross_mask, *layers]

    @state.setter
    def state(self, tensors: Sequence[Tensor]) -> None:
        self.columns, self.positions, self.self_mask, self.cross_mask, *layers = tensors
        self.layers = [LayerCache(*layers[first : first + 4]) for first in range(0, len(layers), 4)]

    def advance(self) -> None:
        """Make room for the next token of each beam and let it be read. The host waits for nothing."""
        if not self.free:
            self._grow()
        column = self.free.popleft()
        self.used.append((self.steps, column))
        self.self_mask[:, :, :, column : column + self.beams] = self.own_columns
        self.steps += 1
        self.positions += 1
        if self.fixed_shapes:
            torch.add(self.first_columns, column, out=self.columns)
        else:
            self.columns = slice(column, column + self.beams)

    def reorder(self, beams: Tensor) -> None:
        """Let beam k of article b go on from what beam `beams[b, k]` (B, K) of that article has read."""
        index = beams[:, None, :, None].expand_as(self.self_mask)
        self.self_mask = self.self_mask.gather(2, index)

    def keep(self, articles: Tensor) -> None:
        """Go on with some of the articles (M,) only."""
        for layer in self.layers:
            layer.cross_keys, layer.cross_values = layer.cross_keys[articles], layer.cross_values[articles]
            layer.self_keys, layer.self_values = layer.self_keys[articles], layer.self_values[articles]
        self.self_mask, self.positions = self.self_mask[articles], self.positions[articles]
        self.joined = [self.joined[article] for article in articles.tolist()]
        self._changed(self.readable[articles])

    def replace(self, articles: Tensor, other: DecoderCache) -> None:
        """Put the articles of a cache that has read nothing yet in the places of others (M,), copying nothing else."""
        length = max(self.readable.shape[1], other.readable.shape[1])
        for layer, new in zip(self.layers, other.layers, strict=True):
            for name in ("cross_keys", "cross_values"):
                old, added = getattr(layer, name), getattr(new, name)
                if old.shape[2] < length:
                    old = padded(old, 2, length)
                    setattr(layer, name, old)
                old[articles, :, : added.shape[2]] = added  # what an earlier article left behind these is hidden
        self.self_mask[articles] = -torch.inf
        self.positions[articles] = -1
        for article in articles.tolist():
            self.joined[article] = self.steps
        readable = padded(self.readable, 1, length)
        readable[articles] = padded(other.readable, 1, length)
        self._changed(readable)

    def _changed(self, readable: Tensor) -> None:
        """Give up columns and source positions that none of the articles, with these readable ones, needs."""
        oldest = min(self.joined)
        while self.used and self.used[0][0] < oldest:
            self.free.append(self.used.popleft()[1])
        longest = int(readable.any(dim=0).nonzero().max()) + 1
        if self.fixed_shapes:
            longest = _rounded_up(longest, SOURCE_PIECE)
        if longest < readable.shape[1]:
            for layer in self.layers:
                for name in ("cross_keys", "cross_values"):
                    shorter = getattr(layer, name)[:, :, :longest]
                    # Recorded steps know tensors by where they begin.
                    setattr(layer, name, shorter.contiguous() if self.fixed_shapes else shorter)
        self._set_readable(readable[:, :longest])

    def _grow(self) -> None:
        """Make room for more columns; what is not written yet is 0, for a masked NaN would still spread."""
        columns = self.self_mask.shape[3]
        tokens = columns // self.beams
        # By a part of what there is, so that growths copy each column only some few times.
        tokens += self.room if self.fixed_shapes else max(self.room, tokens // 4)
        more = min(tokens, self.max_length) * self.beams
        self.free.extend(range(columns, more, self.beams))
        self.self_mask = padded(self.self_mask, 3, more, -torch.inf)
        for layer in self.layers:
            layer.self_keys, layer.self_values = (
                padded(store, 2, more) for store in (layer.self_keys, layer.self_values)
            )

    def _set_readable(self, readable: Tensor) -> None:
        self.readable = readable
        # (B, 1, 1, S), or None where all may be read. Where shapes are fixed there is always one.
        self.cross_mask = None
        if self.fixed_shapes or not bool(readable.all()):
            self.cross_mask = additive(readable, self.self_mask.dtype)[:, None, None, :]


def _rounded_up(number: int, multiple: int) -> int:
    return math.ceil(number / multiple) * multiple


def padded(tensor: Tensor, dim: int, length: int, value: float = 0.0) -> Tensor:
    """The tensor made so long in one dimension."""
    return F.pad(tensor, (0, 0) * (tensor.dim() - 1 - dim) + (0, length - tensor.shape[dim]), value=value)


def additive(mask: Tensor, dtype: torch.dtype, low: float = -torch.inf) -> Tensor:
    """True -> 0, false -> low: attention would else turn the mask into that in every layer."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, low)
