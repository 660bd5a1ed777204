"""Batches without their padding, for training.

Layers see the rows of tokens alone, one article behind the other (the padding-free algorithm of Zhai et al., 2023,
arXiv:2210.03052). Behind them lie a few spare rows, an article of their own that nobody reads, so that numbers recur.

Shapes: B articles, L length of the longest, N tokens of all articles, M > N rows, D model width.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bart.backend import Backend, Rows

if TYPE_CHECKING:
    from typing import Self


class Unpadded(Rows, ABC):
    """The rows of a batch's tokens alone.

    Attributes:
        shape: (B, L) of the padded batch.
        tokens: N.
        places: (M,) of the rows among the B·L of the padded batch; spare rows are copies of the first place.
        starts: (B + 2,), the first row of each article, N, where the spare rows begin, and M.
        has_empty: true if an article has no token.
    """

    def __init__(self, is_token: Tensor, recurring: Callable[[int], int]) -> None:
        """is_token (B, L), in the memory of the host, is true at tokens; recurring rounds a number of rows up."""
        self.shape = is_token.shape
        places = is_token.flatten().nonzero().squeeze(1)
        self.tokens = len(places)
        # One at least: where targets have spare rows, these need a row of the sources to attend to, or become NaN.
        spare = recurring(self.tokens + 1) - self.tokens
        self.places = F.pad(places, (0, spare))
        counts = is_token.sum(dim=1)
        self.starts = F.pad(torch.cat([counts, torch.tensor([spare])]).cumsum(dim=0), (1, 0))
        self.has_empty = not bool(counts.all())

    @abstractmethod
    def reading(self, source: Any) -> Any:
        """The mask with which these rows read those of a source."""

    @property
    def are_faster(self) -> bool:
        """True if layers compute them faster than the padded batch."""
        return self.tokens < self.shape.numel()

    def moved(self, move: Callable[[Tensor], Tensor]) -> Self:
        """These rows in the memory that `move` takes tensors to."""
        rows = copy.copy(self)
        rows.places, rows.starts = move(self.places), move(self.starts)
        return rows

    @cached_property
    def mask(self) -> Any:
        return self.reading(self)

    def pack(self, states: Tensor) -> Tensor:
        """(B, L, D) -> (1, M, D)."""
        return states.flatten(0, 1).index_select(0, self.places)[None]

    def unpack(self, rows: Tensor) -> Tensor:
        """(1, M, D) -> (B, L, D), with zeros for padding."""
        states = rows.new_zeros(self.shape.numel(), rows.shape[2])
        return states.index_copy(0, self.places[: self.tokens], rows[0, : self.tokens]).view(*self.shape, -1)


@dataclass(frozen=True)
class KnownRows:
    """The rows that a mask stands for, which it carries to a device as its attribute `known_rows`."""

    tokens: Unpadded  # where the mask is true
    up_to_last: Unpadded  # those, and all in front of the last of them; the same object where these are no others

    @classmethod
    def of(cls, is_token: Tensor, kind: Callable[[Tensor], Unpadded]) -> KnownRows:
        all_before = until_last(is_token)
        tokens = kind(is_token)
        return cls(tokens, tokens if all_before.equal(is_token) else kind(all_before))

    @property
    def places(self) -> Tensor:
        """(N,) of the tokens among the B·L of the padded batch."""
        return self.tokens.places[: self.tokens.tokens]

    def moved(self, move: Callable[[Tensor], Tensor]) -> KnownRows:
        tokens = self.tokens.moved(move)
        return KnownRows(tokens, tokens if self.up_to_last is self.tokens else self.up_to_last.moved(move))


def known_rows(mask: Tensor | None) -> KnownRows | None:
    return getattr(mask, "known_rows", None)


def carrying(mask: Tensor, known: KnownRows | None) -> Tensor:
    """The mask, which carries known rows from now on."""
    mask.known_rows = known  # type: ignore[attr-defined]
    return mask


def until_last(wanted: Tensor) -> Tensor:
    """(B, T), true up to the last place of each row where `wanted` (B, T) is true."""
    return wanted.flip(1).cumsum(dim=1).flip(1) > 0


class UnpaddingBackend(Backend):
    """The base of backends that leave out padding in training, and join products of the same states."""

    def __init__(self, leaves_out_padding: bool = False) -> None:
        """leaves_out_padding: leave padding out; its states are then zeros, which no loss may read."""
        self.leaves_out_padding = leaves_out_padding

    def rows_of(self, states: Tensor, mask: Tensor | None, up_to_last: bool = False) -> Unpadded | None:
        """The rows of states (B, L, D) where a mask (B, L) is true, or not 0; None where nobody knows them here.

        up_to_last: those in front of the last such row of an article, too.
        """
        raise NotImplementedError

    def encoder_rows(self, states: Tensor, mask: Tensor | None) -> Rows:
        if self.leaves_out_padding and (tokens := self.rows_of(states, mask)) is not None and tokens.are_faster:
            return tokens
        return super().encoder_rows(states, mask)

    def decoder_rows(
        self, states: Tensor, mask: Tensor | None, wanted: Tensor | None, *of_encoder: Any
    ) -> tuple[Rows, Rows, Any]:
        """Choose like `Backend.decoder_rows`; without a mask, places behind the last wanted state are padding."""
        if self.leaves_out_padding and mask is None:
            target, source = self.rows_of(states, wanted, up_to_last=True), self.rows_of(*of_encoder)
            # A target whose source has no token would have no key to read.
            if target and source and (target.are_faster or source.are_faster) and not source.has_empty:
                return target, source, target.reading(source)
        return super().decoder_rows(states, mask, wanted, *of_encoder)

    def project(self, states: Tensor, layers: Sequence[nn.Module]) -> tuple[Tensor, ...]:
        """In training one product for several layers, unless adapters are in them."""
        if len(layers) == 1 or not (torch.is_grad_enabled() and all(type(layer) is nn.Linear for layer in layers)):
            return super().project(states, layers)
        weight, bias = (torch.cat([getattr(layer, name) for layer in layers]) for name in ("weight", "bias"))
        return F.linear(states, weight, bias).chunk(len(layers), dim=-1)
