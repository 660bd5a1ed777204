"""Keys and values that decoding keeps between steps.

Tensors on a CUDA device, where a step can be recorded (see `graphs`), keep their shapes over many steps.

Shapes: T tokens there is room for.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bart.rounding import round_up

# The least number of tokens by which the room for keys and values of self-attention grows. Torch reads all of the room
# in every step, under a mask, so there should not be too much of it. But each growth changes shapes.
ROOM = 8
MOST_ROOM_OF_FIXED_SHAPES = 64
# A multiple of keys with which attention's kernels can read masks as they are.
ALIGNMENT = 16
# The least multiple to which sources are padded where shapes should recur.
SOURCE_PIECE = 64


def has_fixed_shapes(device: torch.device) -> bool:
    """True if shapes on this device should last and recur, at the price of more padding."""
    return device.type == "cuda"


def source_room(length: int) -> int:
    """Room for so many source positions: one of two numbers between powers of two, or a multiple of a piece."""
    return round_up(length, max(SOURCE_PIECE, (1 << (length - 1).bit_length()) // 4))


@dataclass
class LayerCache:
    """One decoder layer's keys and values.

    Cross-attention's are computed once per article, and its beams share them. Self-attention's stay where they are
    written: a step's token of beam k has column c·K + k, for a c that no beam reads any more, and a mask says which
    columns are a beam's own past.
    """

    cross_keys: Tensor  # (B, H, S, Dh), or another last dimension where the model's attention takes that
    cross_values: Tensor  # (B, H, S, Dh)
    self_keys: Tensor  # (B, H, T·K, Dh)
    self_values: Tensor  # (B, H, T·K, Dh)

    def store(self, keys: Tensor, values: Tensor, columns: slice | Tensor) -> tuple[Tensor, Tensor]:
        """Store the keys and values (B, H, K, Dh) of each beam's next token; return the whole stores."""
        self.self_keys[:, :, columns] = keys
        self.self_values[:, :, columns] = values
        return self.self_keys, self.self_values


class DecoderCache:
    """The decoder's memory of its articles, which may join at different times, and of the tokens that it has read.

    Stores hold 0 wherever an article has written nothing: attention multiplies hidden values by a weight of 0, and NaN
    times 0 is NaN.

    Args:
        cross: per layer, the keys and values of the encoder states, each (B, H, S, Dh).
        self_keys: some keys of self-attention (B, H, …, Dh), for their type.
        readable: (B, S), true where a source position may be read.
    """

    cross: list[Tensor]  # keys and values of cross-attention, those of one layer behind those of another
    own: list[Tensor]  # those of self-attention
    cross_mask: Any  # (B, 1, 1, S), or None where all may be read; where shapes are fixed there is always one

    def __init__(
        self,
        cross: Iterable[tuple[Tensor, ...]],
        self_keys: Tensor,
        readable: Tensor,
        beams: int,
        max_length: int,
    ) -> None:
        articles, length = readable.shape
        self.fixed_shapes = has_fixed_shapes(self_keys.device)
        self.room = ROOM
        if self.fixed_shapes:
            pieces = math.ceil(max_length / MOST_ROOM_OF_FIXED_SHAPES)
            self.room = round_up(math.ceil(max_length / pieces), ALIGNMENT)
            max_length = self.room * pieces
            length = source_room(length)
            readable = padded(readable, 1, length)
        empty = self_keys.new_empty((articles, self_keys.shape[1], 0, self_keys.shape[-1]))
        self.cross = [padded(store, 2, length) for store in chain.from_iterable(cross)]
        self.own = [empty] * len(self.cross)
        self.beams = beams
        self.max_length = max_length
        self.steps = 0
        self.joined = [0] * articles  # the number of steps before each article joined
        self.positions = torch.full((articles,), -1, device=self_keys.device)  # of the token that an article read last
        # (B, 1, K, T·K): 0 where a beam may read a column, -inf where it may not.
        self.self_mask = self_keys.new_empty((articles, 1, beams, 0))
        self.own_columns = additive(torch.eye(beams, dtype=torch.bool, device=self_keys.device), self_keys.dtype)
        self.free: deque[int] = deque()  # columns that no article reads
        self.used: deque[tuple[int, int]] = deque()  # (step, column) of the others, oldest first
        self.first_columns = torch.arange(beams, device=self_keys.device)
        # (K,) of each beam's next token; a slice is quicker on the CPU.
        self.columns: slice | Tensor = torch.empty_like(self.first_columns) if self.fixed_shapes else slice(0, 0)
        self._set_readable(readable)

    @property
    def layers(self) -> list[LayerCache]:
        stores = self.cross[::2], self.cross[1::2], self.own[::2], self.own[1::2]
        return [LayerCache(*of_layer) for of_layer in zip(*stores, strict=True)]

    @property
    def state(self) -> list[Any]:
        """The tensors that a step reads or changes, where shapes are fixed; a step may be given others instead."""
        return [*self.cross, *self.own, self.columns, self.positions, self.self_mask, self.cross_mask]

    @state.setter
    def state(self, tensors: Sequence[Tensor]) -> None:
        *stores, self.columns, self.positions, self.self_mask, self.cross_mask = tensors
        self.cross, self.own = stores[: len(self.cross)], stores[len(self.cross) :]

    def advance(self) -> None:
        """Make room for the next token of each beam and let it be read. The host waits for nothing."""
        if not self.free:
            self._grow()
        column = self.free.popleft()
        self.used.append((self.steps, column))
        self.self_mask[:, :, :, column : column + self.beams] = self.own_columns
        self.steps += 1
        self.positions += 1
        if isinstance(self.columns, Tensor):
            torch.add(self.first_columns, column, out=self.columns)
        else:
            self.columns = slice(column, column + self.beams)

    def reorder(self, beams: Tensor) -> None:
        """Let beam k of article b go on from what beam `beams[b, k]` (B, K) of that article has read."""
        self.self_mask = chosen(self.self_mask[:, 0], beams)[:, None]

    def keep(self, articles: Tensor) -> None:
        """Go on with some of the articles (M,) only."""
        self.cross, self.own = ([store[articles] for store in stores] for stores in (self.cross, self.own))
        self.self_mask, self.positions = self.self_mask[articles], self.positions[articles]
        self.joined = [self.joined[article] for article in articles.tolist()]
        self._free_columns()
        self._changed(self.readable[articles])

    def replace(self, articles: Tensor, new: DecoderCache) -> None:
        """Put the articles of a cache that has read nothing yet into the places of others (M,)."""
        length = max(self.readable.shape[1], new.readable.shape[1])
        self.cross = [
            padded(store, 2, length).index_copy_(0, articles, padded(added, 2, length))
            for store, added in zip(self.cross, new.cross, strict=True)
        ]
        for store in self.own:
            store[articles] = 0
        self.self_mask[articles] = -torch.inf
        self.restart(articles)
        # A mask may still belong to the caller.
        self._changed(padded(self.readable, 1, length).index_copy(0, articles, padded(new.readable, 1, length)))

    def restart(self, articles: Tensor) -> None:
        """Let articles (M,) begin anew; what they have read stays until it is overwritten."""
        self.positions[articles] = -1
        for article in articles.tolist():
            self.joined[article] = self.steps
        self._free_columns()

    def _free_columns(self) -> None:
        """Give up columns that none of the articles needs."""
        oldest = min(self.joined)
        while self.used and self.used[0][0] < oldest:
            self.free.append(self.used.popleft()[1])

    def _changed(self, readable: Tensor) -> None:
        """Give up source positions that none of the articles, of which these are readable, needs."""
        longest = int(readable.any(dim=0).nonzero().max()) + 1
        if self.fixed_shapes:
            longest = source_room(longest)
        if longest < readable.shape[1]:
            self.cross = [store[:, :, :longest] for store in self.cross]
        self._set_readable(readable[:, :longest])

    def _grow(self) -> None:
        columns = self.self_mask.shape[3]
        tokens = columns // self.beams
        # In proportion to what there is, so that each column is copied only a few times.
        tokens += self.room if self.fixed_shapes else max(self.room, tokens // 4)
        more = min(tokens, self.max_length) * self.beams
        self.free.extend(range(columns, more, self.beams))
        self.self_mask = padded(self.self_mask, 3, more, -torch.inf)
        self.own = [padded(store, 2, more) for store in self.own]

    def _set_readable(self, readable: Tensor) -> None:
        self.readable = readable
        self.cross_mask = None
        if self.fixed_shapes or not bool(readable.all()):
            self.cross_mask = additive(readable, self.self_mask.dtype)[:, None, None, :]


def chosen(tensor: Tensor, index: Tensor) -> Tensor:
    """Of a tensor (B, N, …), the parts index[b, m] (B, M) of each b -> (B, M, …)."""
    if tensor.device.type != "cpu":  # one launch
        places = index.view(*index.shape, *[1] * (tensor.dim() - 2))
        return tensor.gather(1, places.expand(-1, -1, *tensor.shape[2:]))
    # Whole rows are copied in a third of the time in which numbers are gathered.
    firsts = torch.arange(0, tensor.shape[0] * tensor.shape[1], tensor.shape[1])
    return tensor.flatten(0, 1).index_select(0, (firsts[:, None] + index).flatten()).unflatten(0, index.shape)


def padded(tensor: Tensor, dim: int, length: int, value: float = 0.0) -> Tensor:
    """The tensor, filled up to a length in one dimension; itself where it has that length."""
    if tensor.shape[dim] == length:
        return tensor
    dimensions_behind = tensor.dim() - 1 - dim
    return F.pad(tensor, [0, 0] * dimensions_behind + [0, length - tensor.shape[dim]], value=value)


def additive(mask: Tensor, dtype: torch.dtype, low: float = -torch.inf) -> Tensor:
    """True -> 0, false -> low. Done once, this saves attention the conversion in every layer."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, low)
