"""Batches without their padding: texts one behind the other on a line (Zhai et al., 2023, arXiv:2210.03052).

Shapes: B texts, L columns of the padded batch, N tokens of all texts, M > N rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from bart.rounding import round_to_few


@dataclass(frozen=True)
class Rows:
    """The tokens of texts, and behind them a few spare rows, a text that nobody reads, so that numbers of rows recur.

    Attributes:
        ids: (1, M), or embeddings (1, M, D) in their place.
        positions: (1, M), of each row in its text; 0 of spare rows.
        texts: (M,), the number of each row's text; B of spare rows.
        starts: (B + 2,), the first row of each text, N and M.
        longest: tokens of the longest text.
        span: at least the most rows between two starts.
        tokens: N.
    """

    ids: Tensor
    positions: Tensor
    texts: Tensor
    starts: Tensor
    longest: int
    span: int
    tokens: int

    @classmethod
    def of(
        cls, ids: Tensor, is_token: Tensor | None = None, multiple: int = 1, spare: int = 0, beside: int = 0
    ) -> Rows | None:
        """Ids (B, L), or embeddings (B, L, D), without what is behind a text; None where padding is not all behind.

        Args:
            is_token: (B, L), true or 1 at tokens; None: everywhere. Of a GPU it is waited for.
            multiple, beside: numbers of rows are multiples of this, or of less (see `round_to_few`).
            spare: the id of spare rows.
        """
        is_here = torch.ones(ids.shape[:2], dtype=torch.bool) if is_token is None else is_token.bool().cpu()
        counts, columns = is_here.sum(dim=1), torch.arange(ids.shape[1])
        if not is_here.equal(columns < counts[:, None]):
            return None
        tokens = int(counts.sum())
        # One spare row at least: where targets have some, these need a row of the sources to attend to, or become NaN.
        sizes = torch.cat([counts, torch.tensor([round_to_few(tokens + 1, multiple, beside) - tokens])])
        starts = F.pad(sizes.cumsum(dim=0), (1, 0)).int()  # as FlashAttention reads them
        texts = torch.arange(len(sizes)).repeat_interleave(sizes)
        positions = (torch.arange(len(texts)) - starts[texts]).where(texts < len(counts), 0)
        rows = cls(ids, positions[None], texts, starts, int(counts.max()), int(sizes.max()), tokens)
        if ids.device.type != "cpu":
            rows = rows.moved(lambda tensor: tensor.to(ids.device, non_blocking=True))
        return replace(rows, ids=rows.pack(ids, spare))

    def __len__(self) -> int:
        """B."""
        return len(self.starts) - 2

    def moved(self, move: Callable[[Tensor], Tensor]) -> Rows:
        """These rows in the memory that `move` takes tensors to."""
        moved: dict[str, Any] = {name: move(part) for name, part in vars(self).items() if isinstance(part, Tensor)}
        return replace(self, **moved)

    def without_counts(self) -> Rows:
        """These rows for a recording, which keeps numbers of the host: `span` is a power of two, at least 128; `tokens`
        is M, with which `pack` and `unpack` fail.
        """
        return replace(self, span=1 << max(7, (self.span - 1).bit_length()), tokens=len(self.texts))

    def pack(self, padded: Tensor, spare: int = 0) -> Tensor:
        """(B, L, …) -> (1, M, …)."""
        rows = padded[self.texts[: self.tokens], self.positions[0, : self.tokens]]
        return F.pad(rows, (0, 0) * (rows.dim() - 1) + (0, len(self.texts) - self.tokens), value=spare)[None]

    def unpack(self, rows: Tensor, length: int, value: float = 0.0) -> Tensor:
        """(1, M, …) -> (B, length, …), with a value for padding."""
        padded = rows.new_full((len(self), length, *rows.shape[2:]), value)
        return padded.index_put((self.texts[: self.tokens], self.positions[0, : self.tokens]), rows[0, : self.tokens])

    def places(self, columns: Tensor) -> Tensor:
        """The rows (B, W) of columns (B, W) of each text; a spare one where a column is behind it."""
        rows = self.starts[: len(self), None] + columns
        return rows.where(rows < self.starts[1 : len(self) + 1, None], len(self.texts) - 1)


class Spans(NamedTuple):
    """The mask of attention among rows: a query reads the keys of its own text."""

    queries: Rows
    keys: Rows

    @property
    def readable(self) -> Tensor:
        """(B, 1, 1, L), true where a padded key is one of a text."""
        counts = self.keys.starts.diff()[:-1]
        return (torch.arange(self.keys.longest, device=counts.device) < counts[:, None])[:, None, None]
