"""Token ids of many texts."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bart.tokenization.tokenization_bart import BartTokenizer
from utils.app.progress import progress

# Texts that the tokenizer gets at once: enough to keep its threads busy, few enough to bound its memory.
_AT_ONCE = 512
_CHUNK = 16 * _AT_ONCE  # texts of an array; a mapped file has some pages of each in memory


class TokenizedTexts:
    """Token ids of many texts in flat arrays, which take a sixteenth of the memory of lists of Python integers.

    Args:
        chunks: lists of ids, which may be made while they are taken.
        limit: the number of texts to take, the first ones; all if negative.

    Attributes:
        lengths: (N,) int64, tokens of each text.
        seconds: the time that it took to make or to map them.
    """

    def __init__(self, chunks: Iterable[pa.ListArray], limit: int = -1) -> None:
        began = time.perf_counter()
        self._texts = pa.chunked_array(chunks).slice(0, None if limit < 0 else limit)
        self.lengths = pc.list_value_length(self._texts).to_numpy().astype(np.int64)
        self.seconds = time.perf_counter() - began

    @classmethod
    def from_texts(cls, texts: Sequence[str], tokenizer: BartTokenizer, max_length: int) -> TokenizedTexts:
        """Tokenise texts, cut to max_length tokens with `</s>` kept last."""
        return cls(tokenise(texts, len(texts), tokenizer, max_length))

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> np.ndarray:
        """(S,) ids of a text, not to be written to."""
        return self._texts[index].values.to_numpy()


def type_of_ids(tokenizer: BartTokenizer) -> pa.DataType:
    """The smallest type of integers that holds a vocabulary."""
    return pa.uint16() if len(tokenizer) <= 1 << 16 else pa.int32()


def tokenise(texts: Iterable[str], total: int, tokenizer: BartTokenizer, max_length: int) -> Iterator[pa.ListArray]:
    """Yield the ids of `total` texts, _CHUNK of them at a time, cut to max_length tokens with `</s>` kept last."""
    kind = type_of_ids(tokenizer)
    texts = iter(progress("tokenising", total, "texts", texts))
    while True:
        flat: list[np.ndarray] = []
        ends = [0]
        while len(ends) <= _CHUNK and (batch := list(islice(texts, _AT_ONCE))):
            rows = tokenizer.encode_many(batch, max_length)
            flat.append(np.fromiter(chain.from_iterable(rows), kind.to_pandas_dtype()))
            ends += (ends[-1] + np.cumsum([len(row) for row in rows])).tolist()
        if not flat:
            return
        yield pa.ListArray.from_arrays(pa.array(ends, pa.int32()), np.concatenate(flat))
