"""The backend for training on NVIDIA's GPUs: rows without padding, under attention of variable lengths.

Which rows hold tokens is known where a batch is collated, in the memory of the host. A GPU that had to tell would be
waited for. So a batch's masks carry the rows, which were found there (`bart.unpadding.KnownRows`).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from bart.rounding import round_up
from bart.torch_internals import attend_to_spans
from bart.unpadding import Unpadded, UnpaddingBackend, known_rows

# Numbers of rows are multiples of this, or of less where that would be more than a sixteenth of them, so that the
# memory of one batch's states can be that of the next.
ROWS = 512
LENGTHS = 128  # the greatest length of a batch is rounded up to a multiple of this: compiled layers know few of them


@dataclass(frozen=True)
class CudaSpans:
    """The rows of each article, where those of all articles lie one behind the other, without padding.

    Attributes:
        query_starts, key_starts: (B + 1,) in int32, the first row of each article, and behind them the number of all.
        most_queries, most_keys: at least as many as any article has.
    """

    query_starts: Tensor
    key_starts: Tensor
    most_queries: int
    most_keys: int


class CudaRows(Unpadded):
    """The rows of a batch's tokens, of which flash attention is told by `CudaSpans`."""

    are_faster = True  # without padding too, because attention takes no mask

    def __init__(self, is_token: Tensor) -> None:
        super().__init__(is_token, recurring)
        self.starts = self.starts.int()
        self.longest = round_up(int(self.starts.diff().max()), LENGTHS)

    def reading(self, source: CudaRows) -> CudaSpans:
        return CudaSpans(self.starts, source.starts, self.longest, source.longest)


def recurring(rows: int) -> int:
    """At least so many rows, a number that is one of few."""
    return round_up(rows, min(ROWS, 1 << max(0, rows.bit_length() - 5)))


class CudaBackend(UnpaddingBackend):
    """Rows without padding in training, where a mask carries them, and one product for several projections."""

    chooses_compiled_rows = True

    def rows_of(self, states: Tensor, mask: Tensor | None, up_to_last: bool = False) -> CudaRows | None:
        if (known := known_rows(mask)) is None:
            return None
        return known.up_to_last if up_to_last else known.tokens

    def attend(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        mask: Tensor | CudaSpans | None,
        is_causal: bool = False,
        dropout: float = 0.0,
    ) -> Tensor:
        """Attend like `Backend.attend`, also under spans, where B = 1."""
        if not isinstance(mask, CudaSpans):
            return super().attend(query, keys, values, mask, is_causal, dropout)
        rows = (states[0].transpose(0, 1) for states in (query, keys, values))
        starts, most = (mask.query_starts, mask.key_starts), (mask.most_queries, mask.most_keys)
        return attend_to_spans(*rows, starts, most, is_causal, dropout).transpose(0, 1)[None]
